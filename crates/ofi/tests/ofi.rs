//! Properties of rails over libfabric only: unauthenticated peers, ends that do not match, and
//! clean-up.
//!
//! Each provider is skipped, with the reason printed, where libfabric is absent.

#[allow(dead_code, reason = "the suite uses the rest")]
#[path = "conformance/pairs.rs"]
mod pairs;

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use pairs::{DIVIDED, GRANULE, Kind, Own, WHOLE, connect, open, pair};
use plexus_fabric::{Lane, Lost, Put, Rail};
use plexus_ofi::{Offer, OfiEndpoint, OfiError};

fn here() -> impl Iterator<Item = &'static str> {
    [Kind::TCP, Kind::SHM].into_iter().filter(|kind| kind.is_here()).map(|kind| kind.0)
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// The names that this process has in `/dev/shm`.
fn names() -> usize {
    let own = format!("{}:", std::process::id());
    let is_own = |entry: &std::fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&own);
    std::fs::read_dir("/dev/shm").unwrap().flatten().filter(is_own).count()
}

fn resident_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Opens pairs, uses and closes them.
fn rails_come_and_go(provider: &'static str, count: usize) {
    for round in 0..count {
        let (mut a, mut b) = pair(Kind(provider));
        let put = Put { window: WHOLE, offset: 0, generation: 0, data: &[round as u8; 100_000] };
        a.rail.put(Lane::Bulk, put, b"put", b"").unwrap();
        a.rail.send(Lane::Prompt, b"frame", b"").unwrap();
        assert_eq!(b.take_from(&mut a, 2).len(), 2);
    }
}

/// The signals that this process handles, as the system prints them.
fn caught() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().find(|line| line.starts_with("SigCgt:")).unwrap().to_owned()
}

/// One test for everything that counts the resources of the process, so that no other test runs
/// beside it.
#[test]
fn ended_rails_leave_nothing_and_unauthenticated_peers_do_no_harm() {
    let signals = caught();
    drop(OfiEndpoint::open("tcp", None, Arc::default()));
    assert_eq!(caught(), signals, "libfabric must not install signal handlers");
    for provider in here() {
        // The provider allocates some resources once and keeps them.
        rails_come_and_go(provider, 5);
        let before = (descriptors(), names(), resident_kib());
        rails_come_and_go(provider, 50);
        // Operations of the provider that were pending at the end are closed elsewhere, soon.
        let until = Instant::now() + Duration::from_secs(10);
        while (descriptors(), names()) != (before.0, before.1) && Instant::now() < until {
            std::thread::yield_now();
        }
        let after = (descriptors(), names(), resident_kib());
        println!("{provider}: descriptors, names, KiB: {before:?}, after 50 pairs {after:?}");
        assert_eq!((after.0, after.1), (before.0, before.1), "{provider}: descriptors and names");
        // A pair that stayed would be more than a MiB of used buffers and 8 MiB of windows.
        assert!(after.2 < before.2 + 50 * 1024, "{provider}: {} KiB became {}", before.2, after.2);

        // Over `shm` every process that may open the memory has full access.
        if provider != "shm" {
            an_unauthenticated_peer_is_ignored(provider);
        }
        a_late_put_ends_the_rail(provider);
        a_peer_that_does_not_poll_is_silent(provider);
        dropping_a_busy_rail_does_not_block(provider);
        ends_that_do_not_match_are_refused(provider);
    }
    absent_providers_are_named();
}

/// An unauthenticated peer knows the address but not the session.
fn an_unauthenticated_peer_is_ignored(provider: &'static str) {
    let (a, b, unauthenticated) = (Own::new(), Own::new(), Own::new());
    let ends = [&a, &b, &unauthenticated].map(|own| open(own, provider));
    let [offer_a, offer_b, _] = ends.each_ref().map(|end| end.offer().encode());
    // The session stands at byte 16.
    let mut guessed = offer_a.clone();
    guessed[16] ^= 1;
    plexus_base::wire::seal(&mut guessed, 12);
    let [end_a, end_b, unauthenticated_end] = ends;
    let ((mut rail_a, a), (mut rail_b, b)) = (connect(a, end_a, &offer_b), connect(b, end_b, &offer_a));
    let (mut unauthenticated_rail, _) = connect(unauthenticated, unauthenticated_end, &guessed);
    for _ in 0..100 {
        // Only some of it goes out, and takes buffers of the other end for a moment.
        let _ = unauthenticated_rail.send(Lane::Prompt, b"let me in", &[7; 500]);
        unauthenticated_rail.flush().unwrap();
        rail_a.flush().unwrap();
        rail_b.flush().unwrap();
    }
    while !(rail_a.is_connected() && rail_b.is_connected()) {
        rail_a.flush().unwrap();
        rail_b.flush().unwrap();
    }
    let (mut a, mut b) = (a(rail_a), b(rail_b));
    b.rail.send(Lane::Prompt, b"peer", b"").unwrap();
    assert_eq!(a.take_from(&mut b, 1), [(Lane::Prompt, b"peer".to_vec())]);
    assert!(!unauthenticated_rail.is_connected());
}

/// Both kinds of put, with a generation that is no longer expected.
fn a_late_put_ends_the_rail(provider: &'static str) {
    for len in [64, GRANULE] {
        let (mut a, mut b) = pair(Kind(provider));
        b.window(DIVIDED).set_generation(0, 5);
        let data = vec![9; len];
        a.rail.send(Lane::Bulk, b"before", b"").unwrap();
        let put = Put { window: DIVIDED, offset: 0, generation: 3, data: &data };
        a.rail.put(Lane::Bulk, put, b"late", b"").unwrap();
        a.rail.send(Lane::Bulk, b"behind", b"").unwrap();
        let mut frames = Vec::new();
        let lost = loop {
            let _ = a.rail.flush();
            match b.rail.poll(4, &mut |_, frame| frames.push(pairs::bytes(&frame))) {
                Ok(_) => {}
                Err(lost) => break lost,
            }
        };
        assert_eq!(frames, [b"before".to_vec()]);
        assert!(matches!(lost, Lost::Corrupt(_)), "{lost:?}");
    }
}

/// A peer that does not poll looks like a fabric that carries nothing.
fn a_peer_that_does_not_poll_is_silent(provider: &'static str) {
    let (mut a, mut b) = pair(Kind(provider));
    let silent = |end: &mut pairs::End| end.rail.health().silent.expect("this rail reports silence").0;
    let until = Instant::now() + Duration::from_secs(30);
    assert!((0..100).all(|_| silent(&mut a) == 0), "no answer is owed");
    for round in 0..3 {
        assert!(a.offer(Lane::Prompt, b"are you there", b""));
        while silent(&mut a) < 20_000_000 {
            assert!(Instant::now() < until, "{provider}, round {round}: never silent");
        }
        // A peer that polls answers, without a frame of its own.
        let mut frames = 0;
        while frames == 0 || silent(&mut a) > 0 {
            frames += b.rail.poll(4, &mut |_, _| {}).unwrap();
            b.rail.flush().unwrap();
            assert!(Instant::now() < until, "{provider}, round {round}: silent for ever");
        }
        assert_eq!(frames, 1);
        let quiet = Instant::now();
        while quiet.elapsed() < Duration::from_millis(30) {
            assert_eq!(silent(&mut a), 0, "everything is answered");
        }
    }
}

/// A rail with as many operations in flight and waiting as it takes, to a peer that does not poll.
fn dropping_a_busy_rail_does_not_block(provider: &'static str) {
    let data = vec![7; 200_000];
    let mut shortest = Duration::MAX;
    for _ in 0..5 {
        let (mut a, b) = pair(Kind(provider));
        for lane in Lane::ALL {
            while a
                .rail
                .put(lane, Put { window: WHOLE, offset: 0, generation: 0, data: &data }, b"", b"")
                .is_ok()
            {}
        }
        assert!(a.rail.health().unsent > 0, "{provider}: some data are in flight");
        a.rail.abandon();
        let begin = Instant::now();
        drop(a.rail);
        shortest = shortest.min(begin.elapsed());
        drop(b);
    }
    println!("{provider}: a rail with operations in flight was dropped in {shortest:?}");
    // Over `shm` the drop took 100 ms each time when it waited for the operations; the buffers of
    // loopback sockets take them all.
    assert!(shortest < Duration::from_millis(90), "{provider}: {shortest:?}");
}

fn ends_that_do_not_match_are_refused(provider: &'static str) {
    let (a, b) = (Own::new(), Own::new());
    let mut bytes = open(&b, provider).offer().encode();
    bytes[32] = b'x';
    plexus_base::wire::seal(&mut bytes, 12);
    let offer = Offer::decode(&bytes).unwrap();
    let refused = open(&a, provider).connect(offer, Arc::new(AtomicBool::new(false)));
    assert!(matches!(refused, Err(OfiError::Differs { .. })));
}

fn absent_providers_are_named() {
    match OfiEndpoint::open("nothing-of-this-name", None, Arc::default()) {
        Err(OfiError::Provider { wanted, .. }) => assert_eq!(wanted, "nothing-of-this-name"),
        Err(why @ OfiError::Absent { .. }) => assert!(why.to_string().contains("install it")),
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("opened a provider that does not exist"),
    }
}
