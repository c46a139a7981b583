//! Two hosts as network namespaces, the paths between them, and the faults of a path.
//!
//! Nothing is left behind, however this process ends.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use plexus_namespaces::{CableEnd, Direction, Namespace, join, need};

/// The port that members listen on.
const PORT: u16 = 7100;

/// One of the two hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The first host.
    A,
    /// The second host.
    B,
}

impl Side {
    /// Both sides.
    pub const BOTH: [Self; 2] = [Self::A, Self::B];

    /// Returns the side as an index.
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
    /// Creates two hosts with `paths` paths between them, a veth pair each.
    ///
    /// # Errors
    /// The reason why namespaces cannot be created here; tests that need them are then skipped.
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

    /// Returns the namespace of a host as a path, valid while this process runs and holds it.
    pub fn namespace(&self, side: Side) -> PathBuf {
        self.namespaces[side.index()].path()
    }

    /// Returns the address of a host on each path.
    pub fn addresses(&self, side: Side) -> Vec<SocketAddr> {
        (0..self.paths).map(|path| SocketAddr::from((address(side, path), PORT))).collect()
    }

    /// Returns the number of paths.
    pub fn paths(&self) -> usize {
        self.paths
    }

    /// Returns the path of an address.
    pub fn path_of(&self, text: &str) -> Option<usize> {
        (0..self.paths).find(|path| text.contains(&format!("{}:", address(Side::A, *path))))
    }

    /// Unplugs a path.
    ///
    /// # Errors
    /// The error of the system.
    pub fn cut(&self, path: usize) -> Result<(), String> {
        self.run(Side::A, &format!("ip link set {} down", device(Side::A, path)))
    }

    /// Silently drops the packets that `side` sends over a path.
    ///
    /// # Errors
    /// The error of the system.
    pub fn swallow(&self, path: usize, side: Side) -> Result<(), String> {
        self.rule(path, side, "drop")
    }

    /// Drops `percent` of the packets that `side` sends over a path.
    ///
    /// # Errors
    /// The error of the system.
    pub fn lose(&self, path: usize, side: Side, percent: u32) -> Result<(), String> {
        self.rule(path, side, &format!("numgen random mod 100 < {percent} drop"))
    }

    /// Silently drops the first packets of connections that `side` opens over a path.
    ///
    /// # Errors
    /// The error of the system.
    pub fn swallow_calls(&self, path: usize, side: Side) -> Result<(), String> {
        self.rule(path, side, "tcp flags & (syn|ack) == syn drop")
    }

    /// Resets every connection of `side` over a path, and refuses new ones.
    ///
    /// # Errors
    /// The error of the system.
    pub fn reset(&self, path: usize, side: Side) -> Result<(), String> {
        self.rule(path, side, "meta l4proto tcp reject with tcp reset")
    }

    /// Lowers the MTU of one end of a path without the knowledge of the other.
    ///
    /// # Errors
    /// The error of the system.
    pub fn shorten(&self, path: usize, side: Side, mtu: u32) -> Result<(), String> {
        self.run(side, &format!("ip link set {} mtu {mtu}", device(side, path)))
    }

    /// Silently drops packets longer than `bytes`, as a switch with a smaller MTU does.
    ///
    /// # Errors
    /// The error of the system.
    pub fn swallow_long(&self, path: usize, side: Side, bytes: u32) -> Result<(), String> {
        self.rule(path, side, &format!("meta length > {bytes} drop"))
    }

    /// Limits `side` to `mbit` megabits per second over a path.
    ///
    /// # Errors
    /// The error of the system.
    pub fn throttle(&self, path: usize, side: Side, mbit: u32) -> Result<(), String> {
        let device = device(side, path);
        self.run(
            side,
            &format!("tc qdisc replace dev {device} root tbf rate {mbit}mbit burst 64kb latency 50ms"),
        )
    }

    /// Removes every fault.
    ///
    /// # Errors
    /// The error of the system.
    pub fn heal(&self) -> Result<(), String> {
        for side in Side::BOTH {
            self.namespaces[side.index()].clear_rules()?;
            for path in 0..self.paths {
                let device = device(side, path);
                self.run(side, &format!("ip link set {device} mtu 1500 up"))?;
                // There may be no such rule.
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

    /// Runs `act` in the namespace of a host.
    ///
    /// # Errors
    /// The error of `act`, or the namespace cannot be entered.
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
