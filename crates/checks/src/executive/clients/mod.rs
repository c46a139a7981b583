//! Clients of a cluster under faults: threads that send requests to random nodes and record the
//! answers.
//!
//! [`locks`] take locks and hold them for a while; [`keys`] read and change the registry. The
//! histories are judged at the end.

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

use plexus_admin::{
    control::{Control, ControlError},
    layout::ClusterDir,
};
use plexus_sim::Random;

pub use self::keys::Counts;
use super::{
    history::{self, keys::Operation, locks::Hold},
    nodes::Nodes,
};

/// The longest time for a node to accept a request or to report its status; later answers are
/// ignored.
const ANSWERS_WITHIN: Duration = Duration::from_millis(200);

/// The pause of a client that reaches no node.
const RESTS: Duration = Duration::from_millis(20);

/// The state that all clients share.
pub struct Work {
    dir: ClusterDir,
    nodes: usize,
    /// The start of the clock.
    start: Instant,
    over: AtomicBool,
    holds: Mutex<Vec<Hold>>,
    operations: Mutex<Vec<Operation>>,
    /// The number of operations on keys so far; values are taken from it.
    number: AtomicU64,
}

impl Work {
    /// Creates clients of a cluster with `nodes` nodes.
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

    /// Returns the number of locks granted, and of those known to be held afterwards, if the
    /// history is possible.
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

    /// Opens a connection to a node, with a timeout for each answer.
    fn reach(&self, node: usize, timeout: Duration) -> Result<Control, ControlError> {
        let mut control = Control::connect_within(&self.dir, &Nodes::name(node), ANSWERS_WITHIN)?;
        control.set_timeout(timeout)?;
        Ok(control)
    }

    /// Runs `once` at random nodes until the end; pauses after each failure.
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
