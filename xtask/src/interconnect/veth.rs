//! Two network namespaces joined by a veth pair.
//!
//! They have no names: they live as long as this process holds their descriptors or somebody is in one, and the pair
//! goes with them. So nothing is left behind, in whatever way this process ends.

use std::{
    fs::File,
    io,
    os::fd::{AsRawFd, OwnedFd},
    process::Command,
    thread,
};

use anyhow::{Context, Result, ensure};
use rustix::thread::UnshareFlags;

use crate::command;

/// The addresses of the two ends, in the namespaces' own address space.
pub(super) const ADDRESSES: [&str; 2] = ["10.199.1.1", "10.199.1.2"];

/// The names of the two ends, each seen in its namespace alone.
pub(super) const ENDS: [&str; 2] = ["plexus0", "plexus1"];

/// The two namespaces.
pub(super) struct Veth {
    namespaces: [OwnedFd; 2],
}

impl Veth {
    /// Makes them and joins them.
    ///
    /// # Errors
    /// Why that cannot be done here.
    pub(super) fn new() -> Result<Self> {
        ensure!(rustix::process::geteuid().is_root(), "only root may make network namespaces");
        for tool in ["ip", "nsenter", "unshare", "mount"] {
            ensure!(command::found(tool), "`{tool}` is not installed (packages iproute2, util-linux, mount)");
        }
        let veth = Self { namespaces: [fresh_namespace()?, fresh_namespace()?] };
        let other = veth.namespace(1);
        veth.ip(0, &["link", "add", ENDS[0], "type", "veth", "peer", "name", ENDS[1]])?;
        veth.ip(0, &["link", "set", ENDS[1], "netns", &other])?;
        for (index, end) in ENDS.into_iter().enumerate() {
            veth.ip(index, &["link", "set", "lo", "up"])?;
            veth.ip(index, &["addr", "add", &format!("{}/30", ADDRESSES[index]), "dev", end])?;
            veth.ip(index, &["link", "set", end, "up"])?;
        }
        Ok(veth)
    }

    /// One of the namespaces as a path, good as long as this process lives and holds it.
    pub(super) fn namespace(&self, index: usize) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespaces[index].as_raw_fd())
    }

    fn ip(&self, index: usize, arguments: &[&str]) -> Result<()> {
        command::output(inside(&self.namespace(index), "ip").args(arguments)).map(drop)
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

/// A network namespace that nobody is in.
fn fresh_namespace() -> Result<OwnedFd> {
    let make = || -> io::Result<OwnedFd> {
        #[allow(
            deprecated,
            reason = "its other form is unsafe for flags that make threads share less memory or fewer descriptors; this is none"
        )]
        rustix::thread::unshare(UnshareFlags::NEWNET)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    };
    // Only the thread that makes it is ever inside, and it ends at once.
    let made = thread::spawn(make).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
    made.context("cannot make a network namespace")
}
