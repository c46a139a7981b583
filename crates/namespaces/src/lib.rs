//! Network namespaces that stand for hosts, and the cables between them: for whoever wants two hosts and has one machine.
//!
//! A [`Namespace`] has no name: it lives as long as this process holds it or somebody is in it, and everything in it goes
//! with it. So nothing is left behind, in whatever way this process ends. Addresses are in the namespaces' own address space,
//! and a device is seen in its namespace alone, so neither can meet what the machine uses itself.
//!
//! This crate knows nothing of Plexus. It needs root, and `ip` of iproute2; rules about packets need `nft` of nftables.

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
    lan::{Lan, device},
    rules::Way,
};

/// A network namespace that this process holds and is not in itself.
pub struct Namespace(OwnedFd);

/// One end of a cable.
#[derive(Clone, Copy)]
pub struct End<'a> {
    /// Where it is.
    pub namespace: &'a Namespace,
    /// The name of its device.
    pub device: &'a str,
    /// Its address.
    pub address: Ipv4Addr,
}

/// Says what is missing: these tools, each with the package that it comes in.
///
/// # Errors
/// One of them is not installed.
pub fn need(tools: &[(&str, &str)]) -> Result<(), String> {
    let missing = tools.iter().find(|(tool, _)| Command::new(tool).arg("-V").output().is_err());
    missing.map_or(Ok(()), |(tool, package)| Err(format!("`{tool}` is not installed (package {package})")))
}

/// Moves this thread, and what it starts from now on, into the namespace at `path`.
///
/// # Errors
/// The system's.
pub fn enter(path: &Path) -> io::Result<()> {
    move_into(File::open(path)?.as_fd())
}

/// Joins two namespaces by a pair of devices with addresses in one /24.
///
/// # Errors
/// What the system says.
pub fn join([a, b]: [End<'_>; 2]) -> Result<(), String> {
    a.namespace.run(&format!("ip link add {} type veth peer name {}", a.device, b.device))?;
    a.namespace.run(&format!("ip link set {} netns {}", b.device, b.namespace.path().display()))?;
    for End { namespace, device, address } in [a, b] {
        namespace.run(&format!("ip addr add {address}/24 dev {device}"))?;
        namespace.run(&format!("ip link set {device} up"))?;
    }
    Ok(())
}

impl Namespace {
    /// A namespace with nothing in it but a loopback device, which is up.
    ///
    /// # Errors
    /// Why there can be none here, for who then skips what needs it.
    pub fn new() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may make network namespaces".into());
        }
        need(&[("ip", "iproute2")])?;
        let made = Self(fresh().map_err(|error| format!("a network namespace: {error}"))?);
        made.run("ip link set lo up")?;
        Ok(made)
    }

    /// Its path, good as long as this process lives and holds it.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd()).into()
    }

    /// Does something in it, on a thread of its own: what is opened and started there stays there.
    ///
    /// # Errors
    /// Its own, or the namespace cannot be entered.
    pub fn inside<R: Send>(&self, act: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
        let entered = || move_into(self.0.as_fd()).and_then(|()| act());
        thread::scope(|scope| scope.spawn(entered).join().unwrap_or_else(|_| Err(panicked())))
    }

    /// Runs a command in it, whose words have one blank between.
    ///
    /// # Errors
    /// It cannot be started, or says that it failed: the command, and what it said.
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

/// Only the thread that makes it is ever inside, and it ends at once.
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

    /// Two namespaces, where they can be made.
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
    fn joined_namespaces_reach_each_other_and_nobody_else() {
        let Some([a, b]) = two() else { return };
        let end = |namespace, device, last| End { namespace, device, address: [10, 198, 0, last].into() };
        join([end(&a, "nsa", 1), end(&b, "nsb", 2)]).unwrap();
        let listener = a.inside(|| TcpListener::bind("10.198.0.1:0")).unwrap();
        let door = listener.local_addr().unwrap();
        b.inside(|| TcpStream::connect(door)?.write_all(b"hello")).unwrap();
        let mut heard = String::new();
        listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hello");
        // This thread has stayed where it was, and sees neither device.
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
    fn what_fails_says_which_command_and_why() {
        let Some([a, _]) = two() else { return };
        let refused = a.run("ip link set nothing up").unwrap_err();
        assert!(refused.starts_with("`ip link set nothing up`: ") && refused.len() > 30, "{refused}");
        assert!(a.run("no-such-command").unwrap_err().starts_with("`no-such-command`: "));
        assert!(a.inside(|| -> io::Result<()> { panic!("on purpose") }).is_err());
    }

    #[test]
    fn a_tool_that_is_missing_is_named_with_its_package() {
        assert_eq!(need(&[("sh", "dash")]), Ok(()));
        let said = need(&[("sh", "dash"), ("no-such-tool", "no-such-package")]).unwrap_err();
        assert_eq!(said, "`no-such-tool` is not installed (package no-such-package)");
    }
}
