//! One block in every order of events, as far as the tests have time (`src/one_block` lists the
//! properties).

use plexus_checks::blocks::one_block::{Limits, explored};

#[test]
fn no_order_of_events_loses_a_durable_change_of_a_block() {
    let none = Limits::NONE;
    for limits in [
        Limits { changes: 2, reads: 1, checkpoints: 1, deaths: 1, ..none },
        Limits { changes: 2, checkpoints: 1, hand_backs: 1, deaths: 1, ..none },
        Limits { changes: 1, deaths: 2, starts: 1, ..none },
        Limits { nodes: 3, changes: 1, deaths: 2, ..none },
        Limits { changes: 3, deaths: 1, carried: 2, ..none },
        Limits { changes: 1, reads: 1, deaths: 1, scan_failures: 1, ..none },
    ] {
        let worlds = explored(limits).unwrap_or_else(|what| panic!("{what}"));
        println!("{limits:?}: {worlds:?}");
        assert!(worlds.at_rest > 10, "{limits:?}: {worlds:?}");
    }
}
