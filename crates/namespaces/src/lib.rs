//! Network namespaces that act as hosts, and virtual cables between them, for tests on one machine
//! that need several hosts. Also mounts, small disks and block devices for one test
//! ([`with_own_mounts`], [`on_small_disk`], [`LoopDevice`]).
//!
//! A [`Namespace`] has no name. It exists while this process holds it or a process is in it, so
//! nothing is left behind, however this process ends. Addresses and devices exist only inside the
//! namespaces and cannot conflict with those of the machine.
//!
//! This crate knows nothing of Plexus. It needs root and `ip` of iproute2; packet rules need `nft`
//! of nftables.

mod disk;
mod lan;
mod rules;

use std::{
    fmt,
    fs::File,
    io,
    net::Ipv4Addr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    process::Command,
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

pub use self::{
    disk::{LoopDevice, on_small_disk, with_own_mounts},
    lan::{Lan, device},
    rules::Direction,
};

/// A network namespace that this process holds but is not in.
pub struct Namespace(OwnedFd);

/// One end of a cable.
#[derive(Clone, Copy)]
pub struct CableEnd<'a> {
    /// The namespace that has this end.
    pub namespace: &'a Namespace,
    /// The name of its device.
    pub device: &'a str,
    /// Its address.
    pub address: Ipv4Addr,
}

/// Checks that tools are installed. Each tool comes with the name of its package.
///
/// # Errors
/// Returns the first missing tool and its package.
pub fn need(tools: &[(&str, &str)]) -> Result<(), String> {
    let missing = tools.iter().find(|(tool, _)| Command::new(tool).arg("-V").output().is_err());
    missing.map_or(Ok(()), |(tool, package)| Err(format!("`{tool}` is not installed (package {package})")))
}

/// Moves this thread, and the processes and threads it starts later, into the namespace at `path`.
///
/// # Errors
/// Returns the I/O error.
pub fn enter(path: &Path) -> io::Result<()> {
    move_into(File::open(path)?.as_fd())
}

/// Connects two namespaces by a pair of devices with addresses in one /24 network.
///
/// # Errors
/// Returns the message of the failed command.
pub fn join([a, b]: [CableEnd<'_>; 2]) -> Result<(), String> {
    a.namespace.run(&format!("ip link add {} type veth peer name {}", a.device, b.device))?;
    a.namespace.run(&format!("ip link set {} netns {}", b.device, b.namespace.path().display()))?;
    for CableEnd { namespace, device, address } in [a, b] {
        namespace.run(&format!("ip addr add {address}/24 dev {device}"))?;
        namespace.run(&format!("ip link set {device} up"))?;
    }
    Ok(())
}

impl Namespace {
    /// Creates a namespace with only a loopback device, which is up.
    ///
    /// # Errors
    /// Returns the reason why namespaces cannot be created here, so that a test can be skipped.
    pub fn new() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may make network namespaces".into());
        }
        need(&[("ip", "iproute2")])?;
        let made = Self(fresh().map_err(|error| format!("a network namespace: {error}"))?);
        made.run("ip link set lo up")?;
        Ok(made)
    }

    /// Returns its path, valid while this process lives and holds it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// Runs a function in the namespace on its own thread. Sockets and processes that it creates
    /// stay there.
    ///
    /// # Errors
    /// Returns the function's error, or that the namespace cannot be entered.
    pub fn inside<R: Send>(&self, act: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
        let entered = || move_into(self.0.as_fd()).and_then(|()| act());
        thread::scope(|scope| scope.spawn(entered).join().unwrap_or_else(|_| Err(panicked())))
    }

    /// Runs a command in the namespace. Its words are separated by one space.
    ///
    /// # Errors
    /// Returns the command and its error message if it cannot be started or fails.
    pub fn run(&self, line: &str) -> Result<(), String> {
        let says = |what: &dyn fmt::Display| format!("`{line}`: {what}");
        let mut words = line.split(' ');
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        let output = self.inside(|| command.output()).map_err(|error| says(&error))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(says(&String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}

fn move_into(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Creates a namespace on a thread that then ends, so that no thread is left inside.
fn fresh() -> io::Result<OwnedFd> {
    let make = || -> io::Result<OwnedFd> {
        #[allow(
            deprecated,
            reason = "its other form is unsafe for flags that make threads share less memory or fewer descriptors; this is none"
        )]
        rustix::thread::unshare(UnshareFlags::NEWNET)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    };
    thread::spawn(make).join().unwrap_or_else(|_| Err(panicked()))
}

fn panicked() -> io::Error {
    io::Error::other("the thread that was to enter a namespace has panicked")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    /// Returns two namespaces if they can be created.
    fn two() -> Option<[Namespace; 2]> {
        match (Namespace::new(), Namespace::new()) {
            (Ok(a), Ok(b)) => Some([a, b]),
            (Err(why), _) | (_, Err(why)) => {
                eprintln!("skipped: {why}");
                None
            }
        }
    }

    #[test]
    fn connected_namespaces_reach_only_each_other() {
        let Some([a, b]) = two() else { return };
        let end =
            |namespace, device, last| CableEnd { namespace, device, address: [10, 198, 0, last].into() };
        join([end(&a, "nsa", 1), end(&b, "nsb", 2)]).unwrap();
        let listener = a.inside(|| TcpListener::bind("10.198.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        b.inside(|| TcpStream::connect(address)?.write_all(b"hello")).unwrap();
        let mut heard = String::new();
        listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hello");
        // This thread has stayed outside and sees neither device.
        let devices = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        assert!(!devices.contains("nsa") && !devices.contains("nsb"), "{devices}");
    }

    #[test]
    fn a_namespace_is_entered_by_its_path() {
        let Some([a, b]) = two() else { return };
        let own = || std::fs::read_link("/proc/thread-self/ns/net");
        let entered = thread::scope(|scope| {
            scope.spawn(|| enter(&a.path()).and_then(|()| own())).join().unwrap().unwrap()
        });
        assert_eq!(entered, a.inside(own).unwrap());
        assert_ne!(entered, b.inside(own).unwrap());
        assert_ne!(entered, own().unwrap());
        assert!(enter(Path::new("/nothing/here")).is_err());
    }

    #[test]
    fn a_failed_command_is_reported_with_its_error() {
        let Some([a, _]) = two() else { return };
        let refused = a.run("ip link set nothing up").unwrap_err();
        assert!(refused.starts_with("`ip link set nothing up`: ") && refused.len() > 30, "{refused}");
        assert!(a.run("no-such-command").unwrap_err().starts_with("`no-such-command`: "));
        assert!(a.inside(|| -> io::Result<()> { panic!("on purpose") }).is_err());
    }

    #[test]
    fn a_missing_tool_is_reported_with_its_package() {
        assert_eq!(need(&[("sh", "dash")]), Ok(()));
        let said = need(&[("sh", "dash"), ("no-such-tool", "no-such-package")]).unwrap_err();
        assert_eq!(said, "`no-such-tool` is not installed (package no-such-package)");
    }
}
