//! The lock manager in the simulator: its runs cover the protocol.

use crate::sums;

#[test]
fn every_path_of_the_protocol_is_taken() {
    let sums = sums("locks", 100).tallies;
    // Only a misbehaving member makes faults.
    assert!(sums.iter().all(|(name, count)| (*count == 0) == (*name == "faults")), "{sums:?}");
    assert!(sums["compared"] > 500 && sums["deaths"] > 100, "{sums:?}");
}
