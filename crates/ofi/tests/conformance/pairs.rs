//! Connected pairs of rails over libfabric, with the helpers of the other rails' tests.

#[path = "../../../fabric/tests/conformance/pairs.rs"]
pub(crate) mod others;

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, atomic::AtomicBool},
};

pub(crate) use others::*;
use plexus_fabric::{Rail, RailKind};
use plexus_ofi::{Offer, OfiEndpoint, OfiError, OfiRail};

/// The rail of a pair: a provider of libfabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Kind(pub(crate) &'static str);

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

impl Kind {
    /// The provider that every host with libfabric has.
    pub(crate) const TCP: Self = Self("tcp");
    pub(crate) const SHM: Self = Self("shm");

    pub(crate) fn rail(self) -> RailKind {
        RailKind::Ofi
    }

    /// Returns true if a worker can sleep until something arrives.
    pub(crate) fn sleeps(self) -> bool {
        self != Self::SHM
    }

    /// Returns true if the windows of the peer are mapped into this process.
    pub(crate) fn is_mapped(self) -> bool {
        false
    }

    /// Returns true if this machine supports the rail; prints the reason if not.
    pub(crate) fn is_here(self) -> bool {
        match OfiEndpoint::open(self.0, Some(LOOPBACK), Arc::default()) {
            Ok(_) => true,
            Err(why @ OfiError::Absent { .. }) => {
                println!("skipped: {why}");
                false
            }
            Err(why) => panic!("{why}"),
        }
    }
}

/// Opens an end over `provider`.
pub(crate) fn open(own: &Own, provider: &str) -> OfiEndpoint {
    OfiEndpoint::open(provider, Some(LOOPBACK), Arc::clone(&own.windows)).unwrap()
}

/// Connects with the offer of the peer. Poll both ends until they are connected.
pub(crate) fn connect(own: Own, end: OfiEndpoint, offer: &[u8]) -> (OfiRail, impl FnOnce(OfiRail) -> End) {
    let gone = Arc::new(AtomicBool::new(false));
    let rail = end.connect(Offer::decode(offer).unwrap(), Arc::clone(&gone)).unwrap();
    (rail, move |rail| End { rail: Box::new(rail), bell: own.bell, windows: own.windows, gone })
}

/// A connected pair.
pub(crate) fn pair(kind: Kind) -> (End, End) {
    pair_of(kind, Own::new(), Own::new())
}

/// A pair built from these two ends.
pub(crate) fn pair_of(kind: Kind, a: Own, b: Own) -> (End, End) {
    let (end_a, end_b) = (open(&a, kind.0), open(&b, kind.0));
    let (offer_a, offer_b) = (end_a.offer().encode(), end_b.offer().encode());
    let ((mut rail_a, a), (mut rail_b, b)) = (connect(a, end_a, &offer_b), connect(b, end_b, &offer_a));
    while !(rail_a.is_connected() && rail_b.is_connected()) {
        rail_a.flush().unwrap();
        rail_b.flush().unwrap();
    }
    (a(rail_a), b(rail_b))
}
