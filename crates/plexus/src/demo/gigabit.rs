//! Two network namespaces joined by a link of 1 Gbit/s, so that two nodes on this machine are as far apart as two machines on
//! Gigabit Ethernet.
//!
//! Nothing of it is left behind, in whatever way this process ends.

use std::{net::SocketAddr, path::PathBuf};

use plexus_namespaces::{CableEnd, Namespace, join, need};

/// Its ends, in the namespaces' own address space.
const ADDRESSES: [[u8; 4]; 2] = [[10, 199, 0, 1], [10, 199, 0, 2]];

/// Where nodes listen.
const PORT: u16 = 7400;

/// The names of the ends, each seen in its namespace alone.
const ENDS: [&str; 2] = ["plexus0", "plexus1"];

/// What the token bucket lets through: the rate of Gigabit Ethernet, and no more at once than a large segment or four.
const SHAPE: &str = "tbf rate 1gbit burst 256kb latency 50ms";

/// The two namespaces.
pub(super) struct Gigabit {
    namespaces: [Namespace; 2],
}

impl Gigabit {
    /// Makes them and joins them, or says why that cannot be done here.
    pub(super) fn new() -> Result<Self, String> {
        need(&[("tc", "iproute2")])?;
        let namespaces = [Namespace::new()?, Namespace::new()?];
        join([0, 1].map(|index| CableEnd {
            namespace: &namespaces[index],
            device: ENDS[index],
            address: ADDRESSES[index].into(),
        }))?;
        for (namespace, end) in namespaces.iter().zip(ENDS) {
            namespace.run(&format!("tc qdisc add dev {end} root {SHAPE}"))?;
        }
        Ok(Self { namespaces })
    }

    /// The namespace of one end as a path, good as long as this process lives and holds it.
    pub(super) fn path(&self, index: usize) -> PathBuf {
        self.namespaces[index].path()
    }

    /// Where a node at one end listens.
    pub(super) fn address(index: usize) -> SocketAddr {
        (ADDRESSES[index], PORT).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        process::Command,
    };

    #[test]
    fn the_two_ends_reach_each_other_or_it_says_why_not() {
        let gigabit = match Gigabit::new() {
            Ok(gigabit) => gigabit,
            Err(why) => {
                // Where nothing is missing it must work.
                return assert!(why.contains("only root") || why.contains("is not installed"), "{why}");
            }
        };
        let [a, b] = &gigabit.namespaces;
        let listener = a.inside(|| TcpListener::bind(Gigabit::address(0))).unwrap();
        b.inside(|| TcpStream::connect(Gigabit::address(0))?.write_all(b"hello")).unwrap();
        let mut heard = String::new();
        listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
        assert_eq!(heard, "hello");
        for namespace in &gigabit.namespaces {
            let shown = namespace.inside(|| Command::new("tc").args(["qdisc", "show"]).output()).unwrap();
            let shown = String::from_utf8(shown.stdout).unwrap();
            assert!(shown.contains("tbf") && shown.contains("rate 1Gbit"), "{shown}");
        }
    }
}
