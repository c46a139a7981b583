//! Clients of a cluster under faults: threads that ask any node for something, again and again, and write down what they saw.
//!
//! [`locks`] take locks and hold them for a while; [`keys`] read and change the registry. What they saw is judged when all is over.

mod keys;
mod locks;

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plexus_node::{
    control::{Control, ControlError},
    layout::ClusterDir,
};
use plexus_sim::Random;

pub use self::keys::Counts;
use super::{
    history::{self, keys::Operation, locks::Hold},
    nodes::Nodes,
};

/// How long a node may take to take a request or to answer how it is; later answers count for nothing.
const ANSWERS_WITHIN: Duration = Duration::from_millis(200);

/// How long a client rests that finds nobody.
const RESTS: Duration = Duration::from_millis(20);

/// What all clients have in common.
pub struct Work {
    dir: ClusterDir,
    nodes: usize,
    /// Where time begins.
    start: Instant,
    over: AtomicBool,
    holds: Mutex<Vec<Hold>>,
    operations: Mutex<Vec<Operation>>,
    /// Operations on keys so far: of these numbers are the values.
    number: AtomicU64,
}

impl Work {
    /// Nothing done yet on a cluster of so many nodes.
    #[must_use]
    pub fn new(dir: ClusterDir, nodes: usize) -> Self {
        Self {
            dir,
            nodes,
            start: Instant::now(),
            over: AtomicBool::new(false),
            holds: Mutex::default(),
            operations: Mutex::default(),
            number: AtomicU64::new(0),
        }
    }

    /// Ends all clients.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// How many locks were granted, and how many of them were known to be held after that, if what clients saw can be true.
    ///
    /// # Errors
    /// Two holds that no server grants.
    pub fn judge_locks(&self) -> Result<[usize; 2], String> {
        let holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        history::locks::check(&holds).map_err(|overlap| overlap.to_string())?;
        Ok([holds.len(), holds.iter().filter(|hold| hold.known_until > hold.granted).count()])
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// A connection to a node, which waits for each answer as long as is said.
    fn reach(&self, node: usize, timeout: Duration) -> Result<Control, ControlError> {
        let mut control = Control::connect_within(&self.dir, &Nodes::name(node), ANSWERS_WITHIN)?;
        control.set_timeout(timeout)?;
        Ok(control)
    }

    /// Does something at a node drawn at random, again and again until the end; it rests where nothing came of it.
    fn again(&self, seed: u64, once: impl Fn(usize, &mut Random) -> Result<(), ControlError>) {
        let mut random = Random::new(seed);
        while !self.is_over() {
            let node = random.below(self.nodes as u64) as usize;
            if once(node, &mut random).is_err() {
                thread::sleep(RESTS);
            }
        }
    }
}

fn push<T>(all: &Mutex<Vec<T>>, one: T) {
    all.lock().unwrap_or_else(PoisonError::into_inner).push(one);
}
