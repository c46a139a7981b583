//! Parameters that vary from seed to seed.

use plexus_locks::protocol::Name;
use plexus_sim::Random;

/// The parameters of one run.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) nodes: usize,
    pub(crate) workers: u8,
    pub(crate) names: usize,
    /// The clients of each node.
    pub(crate) clients: usize,
    /// The requests of all clients together.
    pub(crate) operations: u64,
    /// The longest pause between two actions of a client.
    pub(crate) think_ns: u64,
    /// The longest delay of a message; one of fifty takes twenty times as long.
    pub(crate) delay_ns: u64,
    pub(crate) deadlock_ns: u64,
    pub(crate) waiting_max: usize,
    pub(crate) locks_max: usize,
    /// The maximum number of node deaths.
    pub(crate) deaths: u64,
    /// The longest time between two deaths.
    pub(crate) death_ns: u64,
    /// The percentage of actions that are a client's death.
    pub(crate) client_deaths: u64,
    /// The percentage of requests for EX or PW.
    pub(crate) strong: u64,
    /// True if clients request further locks while they wait.
    pub(crate) several: bool,
    /// The percentage of errands between workers of a node that are lost.
    pub(crate) tells_lost: u64,
    /// The longest time between two pauses for comparison.
    pub(crate) freeze_ns: u64,
}

impl Params {
    pub(crate) fn draw(random: &mut Random) -> Self {
        let quiet = random.percent(25);
        Self {
            nodes: random.between(1, 5) as usize,
            workers: random.between(1, 3) as u8,
            names: random.between(1, 6) as usize,
            clients: random.between(1, 4) as usize,
            operations: random.between(50, 300),
            think_ns: *random.pick(&[500, 5_000, 30_000]),
            delay_ns: *random.pick(&[300, 3_000, 20_000]),
            deadlock_ns: *random.pick(&[20_000, 100_000]),
            waiting_max: *random.pick(&[2, 100, 100]),
            locks_max: *random.pick(&[4, 1_000, 1_000]),
            deaths: if quiet { 0 } else { random.between(1, 8) },
            death_ns: *random.pick(&[20_000, 200_000, 1_000_000]),
            client_deaths: if quiet { 0 } else { *random.pick(&[0, 2, 5]) },
            strong: random.between(10, 90),
            several: random.percent(30),
            tells_lost: *random.pick(&[0, 0, 10]),
            freeze_ns: *random.pick(&[50_000, 300_000]),
        }
    }

    /// Draws the delay of a message.
    pub(crate) fn delay(&self, random: &mut Random) -> u64 {
        random.between(100, self.delay_ns) * if random.percent(2) { 20 } else { 1 }
    }
}

/// Returns a name that clients lock. The names lie in different partitions, and so at different
/// masters and workers.
pub(crate) fn name(number: usize) -> Name {
    Name::new(format!("resource {number}").as_bytes()).expect("a name")
}
