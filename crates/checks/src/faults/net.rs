//! Two hosts as network namespaces, the paths between them, and what can be wrong with a path.
//!
//! The namespaces have no names: they live as long as this process holds their descriptors or somebody is in one, and
//! everything in them goes with them. So nothing is left behind, in whatever way this process ends.

use std::{
    fmt,
    fs::File,
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::PathBuf,
    process::{Command, Output},
    thread,
};

use rustix::thread::{LinkNameSpaceType, UnshareFlags};

/// Where members listen.
const PORT: u16 = 7100;

/// One of the two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The first.
    A,
    /// The second.
    B,
}

impl Side {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The side as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The two hosts and the paths between them.
pub struct Net {
    namespaces: [OwnedFd; 2],
    paths: usize,
}

impl Net {
    /// Two hosts with so many paths between them, a veth pair each.
    ///
    /// # Errors
    /// Why that cannot be done here, for who then skips what needs it.
    pub fn new(paths: usize) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("only root may make network namespaces".into());
        }
        for (tool, package) in [("ip", "iproute2"), ("tc", "iproute2"), ("nft", "nftables")] {
            if Command::new(tool).arg("-V").output().is_err() {
                return Err(format!("`{tool}` is not installed (package {package})"));
            }
        }
        let namespace = || fresh_namespace().map_err(|error| format!("a network namespace: {error}"));
        let net = Self { namespaces: [namespace()?, namespace()?], paths };
        for side in Side::BOTH {
            net.run(side, "ip link set lo up")?;
            // One table for everything that is dropped or refused.
            net.run(side, "nft add table inet faults")?;
            net.run(side, "nft add chain inet faults out { type filter hook output priority 0 ; }")?;
        }
        let other = net.namespace(Side::B).display().to_string();
        for path in 0..paths {
            let [a, b] = Side::BOTH.map(|side| device(side, path));
            net.run(Side::A, &format!("ip link add {a} type veth peer name {b}"))?;
            net.run(Side::A, &format!("ip link set {b} netns {other}"))?;
            for side in Side::BOTH {
                let (device, address) = (device(side, path), address(side, path));
                net.run(side, &format!("ip addr add {address}/24 dev {device}"))?;
                // Each packet is one segment, so that rules about length mean what is on the wire.
                net.run(side, &format!("ip link set {device} gso_max_segs 1"))?;
                net.run(side, &format!("ip link set {device} up"))?;
            }
        }
        Ok(net)
    }

    /// The namespace of a host as a path, good as long as this process lives and holds it.
    #[must_use]
    pub fn namespace(&self, side: Side) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespaces[side.index()].as_raw_fd()).into()
    }

    /// Where a host listens, on each path.
    #[must_use]
    pub fn addresses(&self, side: Side) -> Vec<SocketAddr> {
        (0..self.paths).map(|path| SocketAddr::from((address(side, path), PORT))).collect()
    }

    /// How many paths there are.
    #[must_use]
    pub fn paths(&self) -> usize {
        self.paths
    }

    /// Which path an address is on.
    #[must_use]
    pub fn path_of(&self, text: &str) -> Option<usize> {
        (0..self.paths).find(|path| text.contains(&format!("{}:", address(Side::A, *path))))
    }

    /// Pulls the cable of a path.
    ///
    /// # Errors
    /// The system's.
    pub fn cut(&self, path: usize) -> Result<(), String> {
        self.run(Side::A, &format!("ip link set {} down", device(Side::A, path)))
    }

    /// Swallows, silently, what `side` sends over a path.
    ///
    /// # Errors
    /// The system's.
    pub fn swallow(&self, path: usize, side: Side) -> Result<(), String> {
        self.rule(path, side, "drop")
    }

    /// Swallows so many of a hundred packets that `side` sends over a path.
    ///
    /// # Errors
    /// The system's.
    pub fn lose(&self, path: usize, side: Side, percent: u32) -> Result<(), String> {
        self.rule(path, side, &format!("numgen random mod 100 < {percent} drop"))
    }

    /// Swallows, silently, the first packets of connections that `side` makes over a path.
    ///
    /// # Errors
    /// The system's.
    pub fn swallow_calls(&self, path: usize, side: Side) -> Result<(), String> {
        self.rule(path, side, "tcp flags & (syn|ack) == syn drop")
    }

    /// Resets every connection of `side` over a path, and refuses new ones.
    ///
    /// # Errors
    /// The system's.
    pub fn reset(&self, path: usize, side: Side) -> Result<(), String> {
        self.rule(path, side, "meta l4proto tcp reject with tcp reset")
    }

    /// Makes one end of a path carry shorter packets than the other believes.
    ///
    /// # Errors
    /// The system's.
    pub fn shorten(&self, path: usize, side: Side, mtu: u32) -> Result<(), String> {
        self.run(side, &format!("ip link set {} mtu {mtu}", device(side, path)))
    }

    /// Swallows, silently, what is longer than `bytes`: a switch in between with a smaller MTU.
    ///
    /// # Errors
    /// The system's.
    pub fn swallow_long(&self, path: usize, side: Side, bytes: u32) -> Result<(), String> {
        self.rule(path, side, &format!("meta length > {bytes} drop"))
    }

    /// Lets `side` send so many megabits a second over a path.
    ///
    /// # Errors
    /// The system's.
    pub fn throttle(&self, path: usize, side: Side, mbit: u32) -> Result<(), String> {
        let device = device(side, path);
        self.run(
            side,
            &format!("tc qdisc replace dev {device} root tbf rate {mbit}mbit burst 64kb latency 50ms"),
        )
    }

    /// Takes every fault away.
    ///
    /// # Errors
    /// The system's.
    pub fn heal(&self) -> Result<(), String> {
        for side in Side::BOTH {
            self.run(side, "nft flush chain inet faults out")?;
            for path in 0..self.paths {
                let device = device(side, path);
                self.run(side, &format!("ip link set {device} mtu 1500 up"))?;
                // There may be none.
                let _ = self.run(side, &format!("tc qdisc del dev {device} root"));
            }
        }
        Ok(())
    }

    fn rule(&self, path: usize, side: Side, what: &str) -> Result<(), String> {
        self.run(side, &format!("nft add rule inet faults out oifname {} {what}", device(side, path)))
    }

    fn run(&self, side: Side, line: &str) -> Result<(), String> {
        let says = |what: &dyn fmt::Display| format!("`{line}`: {what}");
        let output = self.inside(side, || output(line)).map_err(|error| says(&error))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(says(&String::from_utf8_lossy(&output.stderr).trim())),
        }
    }

    /// Does something in the namespace of a host.
    ///
    /// # Errors
    /// Its own, or the namespace cannot be entered.
    pub fn inside<R: Send>(&self, side: Side, act: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
        let namespace = self.namespaces[side.index()].as_fd();
        // A thread enters a namespace alone, and what it starts is there too.
        let enter = || {
            rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
            act()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    }
}

fn output(line: &str) -> io::Result<Output> {
    let mut words = line.split(' ');
    Command::new(words.next().unwrap_or_default()).args(words).output()
}

fn device(side: Side, path: usize) -> String {
    format!("{}{path}", ["here", "there"][side.index()])
}

fn address(side: Side, path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 200, path as u8, 1 + side.index() as u8)
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
