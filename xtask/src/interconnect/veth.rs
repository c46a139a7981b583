//! Two network namespaces joined by a veth pair.
//!
//! The system removes both when this process ends, whatever the reason.

use std::process::Command;

use anyhow::{Error, Result};
use plexus_namespaces::{CableEnd, Namespace, join, need};

/// The addresses of the two ends, in the namespaces' own address space.
pub(super) const ADDRESSES: [&str; 2] = ["10.199.1.1", "10.199.1.2"];

/// The names of the two ends; each exists in its own namespace only.
pub(super) const ENDS: [&str; 2] = ["plexus0", "plexus1"];

/// Two namespaces joined by a veth pair.
pub(super) struct Veth {
    namespaces: [Namespace; 2],
}

impl Veth {
    /// Creates and joins the namespaces.
    ///
    /// # Errors
    /// A tool or a permission is missing.
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

    /// Returns the path of a namespace; it is valid while this value exists.
    pub(super) fn namespace(&self, index: usize) -> String {
        self.namespaces[index].path().display().to_string()
    }
}

/// Returns a command that starts `program` in the namespace at `path`.
///
/// It mounts a new `/sys`, which shows the devices of the namespace: UCX looks for them there.
pub(super) fn inside(path: &str, program: &str) -> Command {
    const SHOW: &str = r#"mount -t sysfs sysfs /sys && exec "$0" "$@""#;
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={path}")).args(["--", "unshare", "--mount", "sh", "-c", SHOW, program]);
    command
}
