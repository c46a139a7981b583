//! Shared helpers of mesh tests: addresses, names of clusters, configurations.
#![allow(dead_code, reason = "not every test that includes it uses all of it")]

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_base::{Incarnation, NodeId, Waiting};
use plexus_fabric::RailKind;
use plexus_interconnect::mesh::{Admission, Config, Key, Peer, check_available};

/// The time limit of these tests: far longer than they take.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Returns addresses that were bound and let go: the system gives the same ports to no other
/// program so soon.
pub(crate) fn addresses(count: usize) -> Vec<SocketAddr> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap()).collect()
}

/// Returns a name for the cluster of this process whose first node listens at `address`.
pub(crate) fn name(address: SocketAddr) -> [u8; 16] {
    let mut name = [0; 16];
    name[..4].copy_from_slice(&std::process::id().to_le_bytes());
    name[8..10].copy_from_slice(&address.port().to_le_bytes());
    name
}

/// Describes a peer that listens at `addresses`.
pub(crate) fn peer(id: u8, addresses: &[SocketAddr], rails: &[RailKind], encrypt: bool) -> Peer {
    let (addresses, rails) = (addresses.to_vec(), rails.to_vec());
    Peer { id: NodeId(id), addresses, rails, encrypt, fingerprint: 5 }
}

/// Describes node `me` in its first incarnation, which admits the first incarnation of each peer.
pub(crate) fn config(me: u8, cluster: [u8; 16], listen: &[SocketAddr], peers: Vec<Peer>) -> Config {
    Config {
        me: NodeId(me),
        incarnation: Incarnation(u64::from(me) + 1),
        cluster,
        admission: Admission::First,
        keys: Arc::new(vec![Key::new([9; 32])]),
        listen: listen.to_vec(),
        local: None,
        peers,
        windows: Vec::new(),
        waiting: Waiting::Adaptive,
        timeout: Duration::from_secs(1),
        probe: Duration::from_millis(20),
        ofi_provider: None,
    }
}

/// Returns true if rails over libfabric can be tested here.
pub(crate) fn has_ofi() -> bool {
    let available = check_available(RailKind::Ofi);
    if let Err(why) = &available {
        println!("without ofi: {why}");
    }
    available.is_ok()
}

/// Polls until it is `done`.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns bytes that look random and are the same in every run.
pub(crate) fn noise(length: usize) -> Vec<u8> {
    let mut state = 88172645463325252u64 + length as u64;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| byte()).collect()
}
