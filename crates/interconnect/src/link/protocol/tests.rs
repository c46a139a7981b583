//! Tests of protocol violations, and of the credits that bulk leaves to others; the simulator tests
//! the rest.

use super::*;

const RANK: Rank = Rank { class: 0, retains: true };

fn bill(channel: Channel, kind: Kind) -> Waybill {
    Waybill { channel, kind, lane: channel.lane(), span: None }
}

fn core(rails: u8) -> LinkCore<u32> {
    let mut core = LinkCore::new(Limits::default(), Pace::default());
    (0..rails).for_each(|slot| assert!(core.rail_up(slot, 1, RANK, Nanos(0))));
    core
}

/// Sends as many frames as go at once; returns their number.
fn fill(core: &mut LinkCore<u32>, bill: &Waybill) -> u32 {
    (0..)
        .find(|number| {
            let Some(slot) = core.route(bill) else { return true };
            let stamp = core.stamp(bill.channel);
            core.sent(slot, bill, stamp, || *number);
            false
        })
        .unwrap()
}

#[test]
fn bulk_and_normal_leave_credits_to_urgent_traffic() {
    let mut core = core(1);
    assert_eq!(fill(&mut core, &bill(Channel::CacheBlocks, Kind::Request)), 80);
    assert_eq!(fill(&mut core, &bill(Channel::Services, Kind::Request)), 32);
    assert_eq!(fill(&mut core, &bill(Channel::Locks, Kind::Request)), 16);
    assert_eq!(fill(&mut core, &bill(Channel::CacheBlocks, Kind::Reply)), 80, "each kind has its own");
}

/// A regression: the rail got as many frames at once as were in flight on the others, on a slow
/// path seconds of them.
#[test]
fn a_returned_rail_gets_few_frames_until_it_acknowledges() {
    let mut core = core(2);
    let bulk = bill(Channel::CacheBlocks, Kind::Request);
    let in_flight = |core: &LinkCore<u32>, slot: usize| {
        core.rails[slot].as_ref().unwrap().streams[Lane::Bulk.index()].in_flight()
    };
    fill(&mut core, &bulk);
    assert_eq!([in_flight(&core, 0), in_flight(&core, 1)], [40, 40], "no rail has acknowledged anything");
    core.rail_lost(1, Reason::Silent, Nanos(0));
    assert!(core.rail_up(1, 2, RANK, Nanos(0)));
    let later = Nanos(core.pace().trust.0);
    assert_eq!(core.tick(later, &mut |_| Signs { silent: Some(Nanos(0)), ..Signs::default() }), None);
    // As many frames come back as went, all from the first rail.
    core.receive(0, Lane::Prompt, None, [40, 0, 0]).unwrap();
    core.noted(0, [0, 40]).unwrap();
    assert_eq!(fill(&mut core, &bulk), 40);
    assert_eq!([in_flight(&core, 0), in_flight(&core, 1)], [36, 4]);
    core.receive(1, Lane::Prompt, None, [4, 0, 0]).unwrap();
    core.noted(1, [0, 4]).unwrap();
    assert_eq!(fill(&mut core, &bulk), 4);
    assert_eq!(
        [in_flight(&core, 0), in_flight(&core, 1)],
        [36, 4],
        "it may have eight now, and has the fewest in flight"
    );
    core.receive(0, Lane::Prompt, None, [30, 0, 0]).unwrap();
    core.noted(0, [0, 70]).unwrap();
    fill(&mut core, &bulk);
    assert_eq!([in_flight(&core, 0), in_flight(&core, 1)], [32, 8]);
}

#[test]
fn a_peer_cannot_have_credits_returned_twice() {
    let mut core = core(2);
    let (mut request, mut answered) = (0, Ok(()));
    // The peer's requests are handled and their credits returned with replies on rail 0, which it
    // uses and never acknowledges.
    while request < 600 && answered.is_ok() {
        answered =
            core.receive(1, Lane::Prompt, Some(Kind::Request), [0, 0, 1].map(|c| c * u8::from(request > 0)));
        core.consume(Kind::Request);
        let bill = bill(Channel::Locks, Kind::Reply);
        let stamp = core.stamp(bill.channel);
        core.sent(0, &bill, stamp, || 0);
        request += 1;
    }
    assert_eq!(answered, Ok(()));
    core.rail_lost(0, Reason::Reset, Nanos(0));
    let closed = RailClosed { slot: 0, generation: 1, received: [0, 0], had: true };
    assert_eq!(core.peer_closed(closed), Err(Violation::Credits));
}

/// A peer that sends a request, and returns the credit of every reply over this very rail.
fn hear(core: &mut LinkCore<u32>, replied: bool) -> Result<(), Violation> {
    core.receive(0, Lane::Prompt, Some(Kind::Request), [0, 0, u8::from(replied)])?;
    core.consume(Kind::Request);
    Ok(())
}

#[test]
fn unacknowledged_frames_make_others_wait() {
    let mut core = core(1);
    let bill = bill(Channel::Locks, Kind::Reply);
    let mut sent = 0;
    while let Some(slot) = core.route(&bill) {
        hear(&mut core, sent > 0).unwrap();
        let stamp = core.stamp(bill.channel);
        core.sent(slot, &bill, stamp, || 0);
        sent += 1;
    }
    assert_eq!(sent, MOST_UNACKNOWLEDGED);
    core.noted(0, [1, 0]).unwrap();
    assert_eq!(core.route(&bill), Some(0));
}

#[test]
fn a_peer_that_reads_and_never_acknowledges_is_cut_off() {
    let mut core = core(1);
    let mut notes = 0;
    let refused = (0..1_000_000).find_map(|_| {
        let heard = hear(&mut core, false);
        core.pump(&mut |_, _, _, _| {
            notes += 1;
            Ok(())
        });
        heard.err()
    });
    assert_eq!((refused, notes), (Some(Violation::Acknowledged), MOST_KEPT + 1));
}

#[test]
fn a_peer_that_closes_endless_rails_is_cut_off() {
    let mut core = core(1);
    for generation in 2..1_000 {
        let closed = RailClosed { slot: 3, generation, received: [0, 0], had: true };
        assert_eq!(core.peer_closed(closed), Ok(()));
    }
    assert!(core.is_overrun());
}

#[test]
fn two_puts_to_one_place_take_one_rail_and_others_spread() {
    let mut core = core(2);
    let put = |at: u64| Waybill {
        span: Some(Span { window: 1, from: at, to: at + 8 }),
        ..bill(Channel::CacheBlocks, Kind::Request)
    };
    let send = |core: &mut LinkCore<u32>, bill: Waybill| {
        let slot = core.route(&bill)?;
        let stamp = core.stamp(bill.channel);
        core.sent(slot, &bill, stamp, || 0);
        Some(slot)
    };
    let first = send(&mut core, put(0)).unwrap();
    assert_ne!(send(&mut core, put(8)), Some(first), "the other one has less under way");
    assert_eq!(
        [send(&mut core, put(4)), send(&mut core, put(0))],
        [None, Some(first)],
        "it overlaps both; it overlaps the first"
    );
    core.rail_lost(first, Reason::Reset, Nanos(0));
    assert_eq!(send(&mut core, put(0)), None, "whether the first has landed is not known");
    assert_ne!(send(&mut core, put(64)), None);
}

/// Ticks a link for so long while the system reports all rails healthy; returns the time until the
/// next tick.
fn looked(core: &mut LinkCore<u32>, from_ms: u64, to_ms: u64) -> Option<Nanos> {
    let mut signs = |_| Signs { silent: Some(Nanos(0)), ..Signs::default() };
    for ms in (from_ms..to_ms).step_by(5) {
        assert_eq!(core.tick(Nanos::from_ms(ms), &mut signs), None);
        core.pump(&mut |_, _, _, _| Ok(()));
    }
    core.next_tick()
}

#[test]
fn an_unused_link_is_checked_less_often() {
    assert_eq!(core(0).next_tick(), None);
    let mut core = core(2);
    let Pace { probe, .. } = core.pace();
    assert_eq!(looked(&mut core, 0, 500), Some(Nanos(probe.0 / 4)));
    assert_eq!(looked(&mut core, 500, 1500), Some(probe));
    fill(&mut core, &bill(Channel::Locks, Kind::Request));
    assert_eq!(looked(&mut core, 1500, 1510), Some(Nanos(probe.0 / 4)), "used again");
}
