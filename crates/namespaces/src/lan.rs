//! Hosts on switches: each host is a namespace with a device in every network.

use std::net::Ipv4Addr;

use crate::Namespace;

/// The most hosts: a host's number is one byte of its addresses.
const MAX_HOSTS: usize = 200;

/// Hosts, and networks that connect all of them.
pub struct Lan {
    switch: Namespace,
    hosts: Vec<Namespace>,
    networks: usize,
}

impl Lan {
    /// Creates hosts that are all connected to each of the networks.
    ///
    /// # Errors
    /// Returns the reason why namespaces cannot be created here, so that a test can be skipped.
    ///
    /// # Panics
    /// Panics if there are more hosts or networks than addresses.
    pub fn new(hosts: usize, networks: usize) -> Result<Self, String> {
        assert!(hosts <= MAX_HOSTS && networks <= MAX_HOSTS, "more hosts or networks than addresses");
        let switch = Namespace::new()?;
        let hosts = (0..hosts).map(|_| Namespace::new()).collect::<Result<Vec<_>, _>>()?;
        let lan = Self { switch, hosts, networks };
        for network in 0..networks {
            lan.switch.run(&format!("ip link add br{network} type bridge"))?;
            lan.switch.run(&format!("ip link set br{network} up"))?;
            (0..lan.hosts.len()).try_for_each(|host| lan.wire(host, network))?;
        }
        Ok(lan)
    }

    fn wire(&self, host: usize, network: usize) -> Result<(), String> {
        let (namespace, port, device) = (&self.hosts[host], port(host, network), device(network));
        let there = namespace.path();
        self.switch
            .run(&format!("ip link add {port} type veth peer name {device} netns {}", there.display()))?;
        self.switch.run(&format!("ip link set {port} master br{network} up"))?;
        namespace.run(&format!("ip addr add {}/24 dev {device}", self.address(host, network)))?;
        namespace.run(&format!("ip link set {device} up"))
    }

    /// Returns a host.
    pub fn host(&self, host: usize) -> &Namespace {
        &self.hosts[host]
    }

    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        self.hosts.len()
    }

    /// Returns the number of networks.
    pub fn networks(&self) -> usize {
        self.networks
    }

    /// Returns the address of a host in a network.
    pub fn address(&self, host: usize, network: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 201, network as u8, 1 + host as u8)
    }

    /// Unplugs the cable of a host from the switch.
    ///
    /// # Errors
    /// Returns the message of the failed command.
    pub fn unplug(&self, host: usize, network: usize) -> Result<(), String> {
        self.switch.run(&format!("ip link set {} down", port(host, network)))
    }

    /// Plugs the cable in again.
    ///
    /// # Errors
    /// Returns the message of the failed command.
    pub fn plug(&self, host: usize, network: usize) -> Result<(), String> {
        self.switch.run(&format!("ip link set {} up", port(host, network)))
    }
}

/// Returns the name of a host's device in a network.
pub fn device(network: usize) -> String {
    format!("eth{network}")
}

fn port(host: usize, network: usize) -> String {
    format!("p{host}n{network}")
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        process::Command,
    };

    use super::*;

    #[test]
    fn all_hosts_reach_each_other_in_every_network_until_a_cable_is_unplugged() {
        let lan = match Lan::new(3, 2) {
            Ok(lan) => lan,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        for network in 0..lan.networks() {
            for (from, to) in [(0, 1), (1, 2), (2, 0)] {
                let target = (lan.address(to, network), 7000 + from as u16);
                let listener = lan.host(to).inside(|| TcpListener::bind(target)).unwrap();
                lan.host(from).inside(|| TcpStream::connect(target)?.write_all(b"hello")).unwrap();
                let mut heard = String::new();
                listener.accept().unwrap().0.read_to_string(&mut heard).unwrap();
                assert_eq!(heard, "hello");
            }
        }
        // Returns true if a device's cable is plugged in at the other end.
        let carrier = |host: usize, network: usize| {
            let device = device(network);
            let show = || Command::new("ip").args(["-o", "link", "show", &device]).output();
            let said = lan.host(host).inside(show).unwrap().stdout;
            String::from_utf8(said).unwrap().contains("LOWER_UP")
        };
        let carriers = || [(2, 0), (2, 1), (1, 1)].map(|(host, network)| carrier(host, network));
        assert_eq!(carriers(), [true, true, true]);
        lan.unplug(2, 1).unwrap();
        assert_eq!(carriers(), [true, false, true]);
        lan.plug(2, 1).unwrap();
        assert_eq!(carriers(), [true, true, true]);
        let listener = lan.host(2).inside(|| TcpListener::bind((lan.address(2, 1), 7003))).unwrap();
        let target = listener.local_addr().unwrap();
        lan.host(1).inside(|| TcpStream::connect(target)).unwrap();
        assert_eq!(lan.hosts(), 3);
    }
}
