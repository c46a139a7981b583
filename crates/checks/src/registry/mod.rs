//! The registry in the simulator: two copies on disks that fail, and the members of views that keep the same contents.

pub mod chance;
pub mod copies;
pub mod disks;
pub mod explored;
pub mod replicas;

use plexus_sim::Random;

use chance::Chance;
use copies::{Copies, Plan};
use disks::Faults;

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The hash of the run.
    pub digest: u64,
    /// Steps of disks that there were.
    pub events: u64,
    /// What was reported as saved, or answered as done.
    pub done: u64,
    /// Crashes.
    pub crashes: u64,
}

/// Takes one seed through a history of one node's two copies.
///
/// # Errors
/// What does not hold.
pub fn run_copies(seed: u64) -> Result<Outcome, String> {
    let mut random = Random::new(seed);
    let plan = Plan {
        saves: random.between(5, 60),
        faults: Faults { step: *random.pick(&[0, 20, 150]), disk: *random.pick(&[0, 5, 30]) },
        crash: *random.pick(&[0, 20, 100]),
        damage: *random.pick(&[0, 20]),
    };
    let mut copies = Copies::new(plan, Chance::Drawn(random));
    copies.digest = seed;
    copies.run()?;
    Ok(Outcome { digest: copies.digest, events: copies.steps, done: copies.saved, crashes: copies.crashes })
}

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
