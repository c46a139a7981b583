//! Two network namespaces joined by a link of 1 Gbit/s, so that two nodes on this machine are as far apart as two machines on
//! Gigabit Ethernet.
//!
//! The namespaces have no names: they live as long as this process holds their descriptors or a node is in one,
//! and the link goes with them. So nothing is left behind, in whatever way this process ends.

use std::{
    fs::File,
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    process::Command,
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Its ends, in the namespaces' own address space.
const ADDRESSES: [[u8; 4]; 2] = [[10, 199, 0, 1], [10, 199, 0, 2]];

/// Where nodes listen.
const PORT: u16 = 7400;

/// The names of the ends, each seen in its namespace alone.
const ENDS: [&str; 2] = ["plexus0", "plexus1"];

/// What the token bucket lets through: the rate of Gigabit Ethernet, and no more at once than a large segment or four.
const SHAPE: [&str; 7] = ["tbf", "rate", "1gbit", "burst", "256kb", "latency", "50ms"];

/// The two namespaces.
pub(super) struct Gigabit {
    namespaces: [OwnedFd; 2],
}

impl Gigabit {
    /// Makes them and joins them, or says why that cannot be done here.
    pub(super) fn new() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may make network namespaces".into());
        }
        for tool in ["ip", "tc"] {
            if Command::new(tool).arg("-V").output().is_err() {
                return Err(format!("`{tool}` is not installed (package iproute2)"));
            }
        }
        let namespace = || fresh_namespace().map_err(|error| format!("a network namespace: {error}"));
        let gigabit = Self { namespaces: [namespace()?, namespace()?] };
        let other = gigabit.path(1).display().to_string();
        gigabit.run(0, &["ip", "link", "add", ENDS[0], "type", "veth", "peer", "name", ENDS[1]])?;
        gigabit.run(0, &["ip", "link", "set", ENDS[1], "netns", &other])?;
        for (index, end) in ENDS.into_iter().enumerate() {
            let [a, b, c, d] = ADDRESSES[index];
            gigabit.run(index, &["ip", "link", "set", "lo", "up"])?;
            gigabit.run(index, &["ip", "addr", "add", &format!("{a}.{b}.{c}.{d}/30"), "dev", end])?;
            gigabit.run(index, &["ip", "link", "set", end, "up"])?;
            gigabit.run(index, &[&["tc", "qdisc", "add", "dev", end, "root"], &SHAPE[..]].concat())?;
        }
        Ok(gigabit)
    }

    /// The namespace of one end as a path, good as long as this process lives and holds it.
    pub(super) fn path(&self, index: usize) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespaces[index].as_raw_fd()).into()
    }

    /// Where a node at one end listens.
    pub(super) fn address(index: usize) -> SocketAddr {
        (ADDRESSES[index], PORT).into()
    }

    /// Runs a tool in one of the namespaces.
    fn run(&self, index: usize, command: &[&str]) -> Result<(), String> {
        let says = |what: &dyn std::fmt::Display| format!("`{}`: {what}", command.join(" "));
        // A thread enters a namespace alone, and what it starts is there too.
        let output = thread::scope(|scope| {
            let run = || -> io::Result<_> {
                rustix::thread::move_into_link_name_space(
                    self.namespaces[index].as_fd(),
                    Some(LinkNameSpaceType::Network),
                )?;
                Command::new(command[0]).args(&command[1..]).output()
            };
            scope.spawn(run).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
        });
        let output = output.map_err(|error| says(&error))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(says(&String::from_utf8_lossy(&output.stderr).trim())),
        }
    }
}

/// A network namespace that nobody is in.
fn fresh_namespace() -> io::Result<OwnedFd> {
    let make = || -> io::Result<OwnedFd> {
        #[allow(
            deprecated,
            reason = "its other form is unsafe for flags that make threads share less memory or fewer descriptors; this is none"
        )]
        rustix::thread::unshare(UnshareFlags::NEWNET)?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    };
    // Only the thread that makes it is ever inside, and it ends at once.
    thread::spawn(make).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_ends_reach_each_other_or_it_says_why_not() {
        let gigabit = match Gigabit::new() {
            Ok(gigabit) => gigabit,
            Err(why) => return assert!(why.len() > 10, "{why}"),
        };
        gigabit.run(0, &["ip", "route", "get", "10.199.0.2"]).unwrap();
        let refused = gigabit.run(0, &["ip", "link", "set", "nothing", "up"]).unwrap_err();
        assert!(refused.starts_with("`ip link set nothing up`: "), "{refused}");
        // This thread has stayed where it was.
        assert!(!std::fs::read_to_string("/proc/thread-self/net/dev").unwrap().contains(ENDS[0]));
        let theirs = std::fs::metadata(gigabit.path(1)).unwrap();
        use std::os::unix::fs::MetadataExt;
        assert_ne!(theirs.ino(), std::fs::metadata("/proc/self/ns/net").unwrap().ino());
    }
}
