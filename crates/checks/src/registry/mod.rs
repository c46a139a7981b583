//! The registry in the simulator: two copies on disks that fail, and the members of views that keep the same contents.

pub mod chance;
pub mod copies;
pub mod disks;
pub mod explored;
pub mod replicas;

use chance::Chance;
use copies::{Copies, Plan};
use disks::Faults;

/// Takes three saves through every history with so many faults at most: a step that fails, a crash, a loss of power, behind every
/// step, and all that may stand on the disks then. How many histories there were.
///
/// # Errors
/// What does not hold, and in which history.
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
