//! Two paths between two processes: whatever kills one, the other takes over and nobody notices.

use plexus_checks::faults::{
    Net, Pair, Side,
    campaign::{self, Fault},
};
use plexus_fabric::RailKind;
use rustix::process::Signal;
use std::{thread, time::Duration};

use crate::{alone, net, program, spec, unharmed};

/// A pair over two paths that flows, both of them joined.
fn two_paths(net: &Net) -> Pair {
    let mut pair = Pair::start(spec(RailKind::Tcp, true), Some(net)).unwrap();
    both_joined(&mut pair);
    pair.flows().unwrap();
    pair
}

fn both_joined(pair: &mut Pair) {
    pair.until("both paths are joined", |_, report| {
        report.rails.iter().filter(|(_, state)| !state.starts_with("down")).count() == 2
    })
    .unwrap();
}

#[test]
fn a_path_that_dies_in_any_way_is_left_for_the_other() {
    let _alone = alone();
    let Some(net) = net(2) else { return };
    let mut pair = two_paths(&net);
    let before = Side::BOTH.map(|side| pair.holds(side).unwrap());
    for fault in Fault::ALL {
        for path in 0..2 {
            fault.strike(&net, path).unwrap();
            pair.flows().unwrap_or_else(|why| panic!("{}: {why}", fault.name()));
            net.heal().unwrap();
            both_joined(&mut pair);
        }
    }
    for side in Side::BOTH {
        let after = pair.holds(side).unwrap();
        assert!(after.is_flat_since(&before[side.index()]), "{:?}, then {after:?}", before[side.index()]);
    }
    unharmed(pair);
}

#[test]
fn a_path_that_carries_no_long_packets_is_left_for_the_other() {
    let _alone = alone();
    let Some(net) = net(2) else { return };
    let mut pair = two_paths(&net);
    for path in 0..2 {
        Side::BOTH.into_iter().for_each(|side| net.swallow_long(path, side, 700).unwrap());
        pair.flows().unwrap();
        net.heal().unwrap();
        both_joined(&mut pair);
    }
    unharmed(pair);
}

#[test]
fn a_member_that_is_killed_is_gone_and_leaves_nothing() {
    let _alone = alone();
    let Some(net) = net(2) else { return };
    let mut pair = two_paths(&net);
    let before = pair.holds(Side::A).unwrap();
    pair.kill(Side::B).unwrap();
    let gone = |pair: &mut Pair| {
        let report = pair.report(Side::A).unwrap();
        report.gone == 1 && report.rails.iter().all(|(_, state)| state.starts_with("down"))
    };
    let mut looks = 0;
    while !gone(&mut pair) {
        looks += 1;
        assert!(looks < 5000, "{:?}", pair.report(Side::A));
        thread::sleep(Duration::from_millis(2));
    }
    let after = pair.holds(Side::A).unwrap();
    assert!(after.is_flat_since(&before), "{before:?}, then {after:?}");
}

#[test]
fn a_member_that_stands_still_for_a_while_goes_on() {
    let _alone = alone();
    let Some(net) = net(2) else { return };
    let mut pair = two_paths(&net);
    for side in Side::BOTH {
        // Shorter than the patience of a link, then longer.
        for ms in [200, 2500] {
            pair.signal(side, Signal::STOP).unwrap();
            thread::sleep(Duration::from_millis(ms));
            pair.signal(side, Signal::CONT).unwrap();
            pair.flows().unwrap();
        }
    }
    both_joined(&mut pair);
    pair.finish().unwrap();
}

#[test]
fn fail_overs_are_counted_and_lose_nothing() {
    let _alone = alone();
    if net(2).is_none() {
        return;
    }
    let stalls = campaign::failovers(program(), 5, &mut |_| ()).unwrap();
    assert_eq!(stalls.to_string().lines().count(), Fault::ALL.len(), "{stalls}");
}

#[test]
fn a_soak_of_some_seconds() {
    let _alone = alone();
    if net(2).is_none() {
        return;
    }
    let soaked = campaign::soak(program(), Duration::from_secs(10), 1, &mut |_| ()).unwrap();
    assert!(soaked.faults > 0 && soaked.delivered > 0, "{soaked:?}");
}
