//! Two network namespaces joined by a link of 1 Gbit/s, which stand for two machines on Gigabit
//! Ethernet.
//!
//! The namespaces disappear however this process ends.

use std::{net::SocketAddr, path::PathBuf};

use plexus_namespaces::{CableEnd, Namespace, join, need};

/// The addresses of the two ends, in the namespaces' own address space.
const ADDRESSES: [[u8; 4]; 2] = [[10, 199, 0, 1], [10, 199, 0, 2]];

/// The port on which nodes listen.
const PORT: u16 = 7400;

/// The device names of the ends; each exists only in its namespace.
const ENDS: [&str; 2] = ["plexus0", "plexus1"];

/// The token bucket filter: the rate of Gigabit Ethernet, with bursts of up to four large segments.
const SHAPE: &str = "tbf rate 1gbit burst 256kb latency 50ms";

/// The two joined namespaces.
pub(super) struct Gigabit {
    namespaces: [Namespace; 2],
}

impl Gigabit {
    /// Creates and joins the namespaces, or returns why that is not possible here.
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

    /// Returns the path of one namespace, valid as long as this process runs and holds it.
    pub(super) fn path(&self, index: usize) -> PathBuf {
        self.namespaces[index].path()
    }

    /// Returns the address of a node at one end.
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
    fn the_two_ends_reach_each_other_or_the_reason_is_given() {
        let gigabit = match Gigabit::new() {
            Ok(gigabit) => gigabit,
            Err(why) => {
                // Only missing rights or programs may be the reason.
                return assert!(why.contains("only root") || why.contains("is not installed"), "{why}");
            }
        };
        let [a, b] = &gigabit.namespaces;
        let listener = a.inside(|| TcpListener::bind(Gigabit::address(0))).unwrap();
        b.inside(|| TcpStream::connect(Gigabit::address(0))?.write_all(b"hello")).unwrap();
        let mut received = String::new();
        listener.accept().unwrap().0.read_to_string(&mut received).unwrap();
        assert_eq!(received, "hello");
        for namespace in &gigabit.namespaces {
            let shown = namespace.inside(|| Command::new("tc").args(["qdisc", "show"]).output()).unwrap();
            let shown = String::from_utf8(shown.stdout).unwrap();
            assert!(shown.contains("tbf") && shown.contains("rate 1Gbit"), "{shown}");
        }
    }
}
