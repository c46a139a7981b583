//! Two hosts as network namespaces, the paths between them, and what can be wrong with a path.
//!
//! Nothing of it is left behind, in whatever way this process ends.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use plexus_namespaces::{CableEnd, Direction, Namespace, join, need};

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
    namespaces: [Namespace; 2],
    paths: usize,
}

impl Net {
    /// Two hosts with so many paths between them, a veth pair each.
    ///
    /// # Errors
    /// Why that cannot be done here, for who then skips what needs it.
    pub fn new(paths: usize) -> Result<Self, String> {
        need(&[("tc", "iproute2"), ("nft", "nftables")])?;
        let net = Self { namespaces: [Namespace::new()?, Namespace::new()?], paths };
        for side in Side::BOTH {
            net.namespaces[side.index()].allow_rules()?;
        }
        for path in 0..paths {
            let devices = Side::BOTH.map(|side| device(side, path));
            join(Side::BOTH.map(|side| CableEnd {
                namespace: &net.namespaces[side.index()],
                device: &devices[side.index()],
                address: address(side, path),
            }))?;
            for (side, device) in Side::BOTH.into_iter().zip(devices) {
                // Each packet is one segment, so that rules about length mean what is on the wire.
                net.run(side, &format!("ip link set {device} gso_max_segs 1"))?;
            }
        }
        Ok(net)
    }

    /// The namespace of a host as a path, good as long as this process lives and holds it.
    #[must_use]
    pub fn namespace(&self, side: Side) -> PathBuf {
        self.namespaces[side.index()].path()
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
            self.namespaces[side.index()].clear_rules()?;
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
        let rule = format!("oifname {} {what}", device(side, path));
        self.namespaces[side.index()].rule(Direction::Out, &rule)
    }

    fn run(&self, side: Side, line: &str) -> Result<(), String> {
        self.namespaces[side.index()].run(line)
    }

    /// Does something in the namespace of a host.
    ///
    /// # Errors
    /// Its own, or the namespace cannot be entered.
    pub fn inside<R: Send>(&self, side: Side, act: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
        self.namespaces[side.index()].inside(act)
    }
}

fn device(side: Side, path: usize) -> String {
    format!("{}{path}", ["here", "there"][side.index()])
}

fn address(side: Side, path: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 200, path as u8, 1 + side.index() as u8)
}
