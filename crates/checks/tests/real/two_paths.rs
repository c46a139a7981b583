//! Two paths between two processes: traffic leaves a path that is reset, drops packets, is
//! unplugged or too narrow. The path comes back, and nothing is lost; slow paths share the bulk.

use plexus_checks::faults::{
    Net, Pair, Side,
    campaign::{self, Fault},
};
use plexus_fabric::RailKind;
use std::time::Duration;

use crate::{alone, net, program, spec, unharmed};

/// Starts a pair with traffic over two paths.
fn two_paths(net: &Net) -> Pair {
    let mut pair = Pair::start(spec(RailKind::Tcp, true), Some(net)).unwrap();
    pair.joined(2).unwrap();
    pair.flows().unwrap();
    pair
}

#[test]
fn traffic_fails_over_from_a_dead_path() {
    let _alone = alone();
    let Some(net) = net(2) else { return };
    let mut pair = two_paths(&net);
    for fault in Fault::ALL {
        for path in 0..2 {
            fault.strike(&net, path).unwrap();
            pair.flows().unwrap_or_else(|why| panic!("{}: {why}", fault.name()));
            net.heal().unwrap();
            pair.joined(2).unwrap();
        }
    }
    unharmed(pair);
}

#[test]
fn traffic_fails_over_from_a_path_that_drops_long_packets() {
    let _alone = alone();
    let Some(net) = net(2) else { return };
    let mut pair = two_paths(&net);
    for path in 0..2 {
        Side::BOTH.into_iter().for_each(|side| net.swallow_long(path, side, 700).unwrap());
        let stall_us = pair.flows().unwrap();
        eprintln!("path {path} swallowed long packets: traffic stood still for {} ms", stall_us / 1000);
        net.heal().unwrap();
        pair.joined(2).unwrap();
    }
    unharmed(pair);
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
fn half_a_minute_of_random_faults() {
    let _alone = alone();
    if net(2).is_none() {
        return;
    }
    let soaked = campaign::soak(program(), Duration::from_secs(30), 1, &mut |_| ()).unwrap();
    eprintln!("{soaked:?}");
    assert!(soaked.faults > 10 && soaked.delivered > 0, "{soaked:?}");
}

#[test]
fn bulk_is_shared_in_proportion_to_path_rates() {
    let _alone = alone();
    if net(2).is_none() {
        return;
    }
    // Slow enough to be filled by a machine with little time to spare.
    let shares = campaign::shares(program(), [8, 2], Duration::from_secs(3)).unwrap();
    eprintln!("paths of 8 and 2 Mbit/s: {shares}");
    assert!(shares.rails_stayed(), "a rail that carried was given up: {shares}");
    assert!(shares.of_first().iter().all(|share| (0.6..0.95).contains(share)), "{shares}");
}
