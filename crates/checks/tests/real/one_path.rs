//! One path between two processes: faults of the path, and unauthenticated connections.

use std::{
    collections::BTreeSet,
    fs,
    io::Write,
    net::{TcpListener, TcpStream},
    path::PathBuf,
    thread,
    time::Duration,
};

use plexus_checks::{
    faults::{Pair, Side},
    relay::{Direction, Relay},
};
use plexus_fabric::RailKind;

use crate::{alone, net, spec, unharmed};

/// Returns the names in shared memory.
pub(crate) fn segments() -> BTreeSet<PathBuf> {
    fs::read_dir("/dev/shm").into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path())).collect()
}

#[test]
fn everything_is_delivered_over_every_rail() {
    let _alone = alone();
    let before = segments();
    for (rail, encrypt) in [(RailKind::Shm, false), (RailKind::Tcp, false), (RailKind::Tcp, true)] {
        let mut pair = Pair::start(spec(rail, encrypt), None).unwrap();
        pair.flows().unwrap();
        unharmed(pair);
    }
    let after = segments();
    let left: Vec<_> =
        after.difference(&before).filter(|path| path.to_string_lossy().contains("plexus")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn single_bad_path_delivers_everything() {
    let _alone = alone();
    let Some(net) = net(1) else { return };
    let mut pair = Pair::start(spec(RailKind::Tcp, true), Some(&net)).unwrap();
    pair.flows().unwrap();
    // Packets are lost in both directions.
    Side::BOTH.into_iter().for_each(|side| net.lose(0, side, 3).unwrap());
    pair.flows().unwrap();
    net.heal().unwrap();
    // One end assumes longer packets than the other.
    net.shorten(0, Side::B, 900).unwrap();
    pair.flows().unwrap();
    net.heal().unwrap();
    // A slow line.
    Side::BOTH.into_iter().for_each(|side| net.throttle(0, side, 20).unwrap());
    pair.flows().unwrap();
    net.heal().unwrap();
    pair.flows().unwrap();
    unharmed(pair);
}

#[test]
fn a_short_outage_right_after_a_reset_does_not_end_the_link() {
    let _alone = alone();
    let Some(net) = net(1) else { return };
    let mut pair = Pair::start(spec(RailKind::Tcp, false), Some(&net)).unwrap();
    pair.flows().unwrap();
    for _ in 0..3 {
        let before = pair.joined(1).unwrap();
        // The member with the higher number calls.
        net.swallow_calls(0, Side::B).unwrap();
        Side::BOTH.into_iter().for_each(|side| net.reset(0, side).unwrap());
        pair.until("the connection is reset", |_, report| !report.rails[0].is_up()).unwrap();
        // Calls are made and lost.
        thread::sleep(Duration::from_millis(150));
        net.heal().unwrap();
        pair.flows().unwrap();
        let after = pair.joined(1).unwrap();
        assert!(after[0].rails[0].generation > before[0].rails[0].generation, "{after:?}");
    }
    unharmed(pair);
}

#[test]
fn single_path_with_a_smaller_mtu_reconnects_with_shorter_segments() {
    let _alone = alone();
    let Some(net) = net(1) else { return };
    let mut pair = Pair::start(spec(RailKind::Tcp, true), Some(&net)).unwrap();
    pair.flows().unwrap();
    // A switch on the path whose MTU shrinks without notice.
    for longest in [1460, 1260, 600] {
        let before = pair.joined(1).unwrap();
        Side::BOTH.into_iter().for_each(|side| net.swallow_long(0, side, longest).unwrap());
        pair.until("it is joined again", |side, report| {
            report.rails[0].is_up() && report.rails[0].generation > before[side.index()].rails[0].generation
        })
        .unwrap();
        pair.flows().unwrap();
    }
    unharmed(pair);
}

#[test]
fn unauthenticated_connections_do_not_disturb_the_link() {
    let _alone = alone();
    let Some(net) = net(1) else { return };
    let mut pair = Pair::start(spec(RailKind::Tcp, true), Some(&net)).unwrap();
    pair.flows().unwrap();
    let door = net.addresses(Side::A)[0];
    // A thousand connections that send nothing and stay open as long as possible.
    let silent =
        net.inside(Side::B, || (0..1000).map(|_| TcpStream::connect(door)).collect::<Result<Vec<_>, _>>());
    pair.flows().unwrap();
    // A thousand that send invalid bytes.
    let noise = [0xa5; 512];
    let shout = || -> std::io::Result<()> {
        for _ in 0..500 {
            // The listener closes them at some point, as expected.
            let _ = TcpStream::connect(door)?.write_all(&noise);
        }
        Ok(())
    };
    let stall_us = thread::scope(|scope| {
        let flood = scope.spawn(|| net.inside(Side::B, shout));
        let mut stall_us = pair.flows().unwrap();
        while !flood.is_finished() {
            stall_us = stall_us.max(pair.flows().unwrap());
        }
        flood.join().unwrap().unwrap();
        stall_us
    });
    eprintln!("traffic stood still during unauthenticated connections for {} ms", stall_us / 1000);
    assert_eq!(silent.unwrap().len(), 1000);
    pair.until("the unauthenticated connections are closed", |side, report| {
        side == Side::B || report.unauthenticated >= 1500
    })
    .unwrap();
    unharmed(pair);
}

#[test]
fn corrupted_bytes_are_sent_again() {
    let _alone = alone();
    for encrypt in [false, true] {
        // The member with the higher number calls the one with the lower, through a relay.
        let addresses = ["127.0.0.1:0"; 2].map(|any| {
            let listener = TcpListener::bind(any).unwrap();
            vec![listener.local_addr().unwrap()]
        });
        let relay = Relay::start(addresses[0][0], 7).unwrap();
        let routes = [addresses[1].clone(), vec![relay.address()]];
        let mut pair = Pair::routed(spec(RailKind::Tcp, encrypt), None, addresses, routes).unwrap();
        pair.flows().unwrap();
        for _ in 0..5 {
            for way in Direction::BOTH {
                relay.flip(way);
                pair.flows().unwrap();
            }
            relay.reset();
            pair.flows().unwrap();
        }
        unharmed(pair);
    }
}
