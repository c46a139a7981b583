//! Two network namespaces joined by a veth pair.
//!
//! Nothing of it is left behind, in whatever way this process ends.

use std::process::Command;

use anyhow::{Error, Result};
use plexus_namespaces::{CableEnd, Namespace, join, need};

/// The addresses of the two ends, in the namespaces' own address space.
pub(super) const ADDRESSES: [&str; 2] = ["10.199.1.1", "10.199.1.2"];

/// The names of the two ends, each seen in its namespace alone.
pub(super) const ENDS: [&str; 2] = ["plexus0", "plexus1"];

/// The two namespaces.
pub(super) struct Veth {
    namespaces: [Namespace; 2],
}

impl Veth {
    /// Makes them and joins them.
    ///
    /// # Errors
    /// Why that cannot be done here.
    pub(super) fn new() -> Result<Self> {
        need(&[("nsenter", "util-linux"), ("unshare", "util-linux"), ("mount", "mount")])
            .map_err(Error::msg)?;
        let made = || Namespace::new().map_err(Error::msg);
        let namespaces = [made()?, made()?];
        join([0, 1].map(|index| CableEnd {
            namespace: &namespaces[index],
            device: ENDS[index],
            address: ADDRESSES[index].parse().expect("an address"),
        }))
        .map_err(Error::msg)?;
        Ok(Self { namespaces })
    }

    /// One of the namespaces as a path, good as long as this process lives and holds it.
    pub(super) fn namespace(&self, index: usize) -> String {
        self.namespaces[index].path().display().to_string()
    }
}

/// A program to be started in the namespace at `path`. Its `/sys` shows the devices that are there, which is where
/// UCX looks for them: the one of this process shows others.
pub(super) fn inside(path: &str, program: &str) -> Command {
    const SHOW: &str = r#"mount -t sysfs sysfs /sys && exec "$0" "$@""#;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={path}")).args(["--", "unshare", "--mount", "sh", "-c", SHOW, program]);
    command
}
