//! The registry in the simulator: two copies on disks that fail, and the members of views that
//! keep the same contents.

pub mod copies;
pub mod disks;
pub mod explored;
pub mod replicas;

use copies::{Copies, Plan};
use disks::Faults;

use crate::harness::chance::Chance;

/// Takes three saves through every history with at most `faults` faults. A step fails, or the
/// process crashes or power fails after any step, with every possible disk content. Returns the
/// number of histories.
///
/// # Errors
/// The property that does not hold, and the history.
pub fn every_history(faults: usize) -> Result<u64, String> {
    let plan = Plan { saves: 3, faults: Faults { step: 1, disk: 0 }, crash: 1, damage: 0 };
    let mut chance = Chance::every(faults);
    let mut histories = 0;
    loop {
        histories += 1;
        let mut copies = Copies::new(plan, chance);
        let result = copies.run();
        chance = copies.into_chance();
        result.map_err(|what| format!("{what}\nafter {chance:?}"))?;
        if !chance.again() {
            return Ok(histories);
        }
    }
}
