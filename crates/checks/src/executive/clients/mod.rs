//! Clients of a cluster under faults: threads that take locks at any node, hold them for a while, and write down what they saw.
//!
//! Who has a lock knows it of moments: at each it asks the node, over another connection, how it is. A node that answers was alive when it was
//! asked; so as long as it did not say that the lock is lost, the lock was held then ([`Hold::known_until`]). A node that was stopped for long may thus
//! answer nothing when it is continued: it would speak for a lock that others have.

use std::{
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use plexus_sim::Random;
use serde_json::{Value, json};

use super::{
    control::{Control, Said},
    history::locks::Hold,
};

/// How long a request for a lock waits before it is given up.
const WAITS_MS: u64 = 3000;

/// How long a node may take to answer who holds a lock; later answers count for nothing.
const ANSWERS_WITHIN: Duration = Duration::from_millis(200);

/// The longest that a lock is held.
const HOLDS_MS: u64 = 30;

/// How long a client rests that finds nobody.
const RESTS: Duration = Duration::from_millis(20);

/// Of so many locks one is exclusive, but for one.
const SHARED_OF: u64 = 4;

/// What all clients have in common.
pub struct Work {
    /// Where the nodes are asked.
    pub sockets: Vec<PathBuf>,
    /// Names of locks; few, so that clients meet.
    pub names: u64,
    /// Where time begins.
    pub start: Instant,
    over: AtomicBool,
    holds: Mutex<Vec<Hold>>,
}

impl Work {
    /// Nothing done yet.
    #[must_use]
    pub fn new(sockets: Vec<PathBuf>, names: u64) -> Self {
        Self { sockets, names, start: Instant::now(), over: AtomicBool::new(false), holds: Mutex::default() }
    }

    /// Ends all clients.
    pub fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// What they saw so far.
    #[must_use]
    pub fn holds(&self) -> Vec<Hold> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many locks were granted so far.
    #[must_use]
    pub fn granted(&self) -> usize {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// One client, until the end.
    pub fn run(&self, seed: u64) {
        let mut random = Random::new(seed);
        while !self.over.load(Ordering::Relaxed) {
            let socket = &self.sockets[random.below(self.sockets.len() as u64) as usize];
            let connected = Control::connect(socket, ANSWERS_WITHIN)
                .and_then(|lock| Ok((lock, Control::connect(socket, ANSWERS_WITHIN)?)));
            let Ok((lock, alive)) = connected else {
                thread::sleep(RESTS);
                continue;
            };
            if let Some(hold) = self.take(lock, alive, &mut random) {
                self.holds.lock().unwrap_or_else(PoisonError::into_inner).push(hold);
            }
        }
    }

    /// One lock, from asking for it to giving it up; nothing if it was not granted.
    fn take(&self, mut lock: Control, mut alive: Control, random: &mut Random) -> Option<Hold> {
        let name = format!("lock {}", random.below(self.names));
        let exclusive = random.below(SHARED_OF) > 0;
        let mode = if exclusive { "EX" } else { "PR" };
        let asked = self.now();
        lock.ask("lock", &json!({ "name": name, "mode": mode, "wait_ms": WAITS_MS })).ok()?;
        let token = self.granted_token(&mut lock)?;
        let granted = self.now();
        let mut hold = Hold { name, exclusive, token, asked, granted, known_until: granted };
        let until = Instant::now() + Duration::from_millis(random.below(HOLDS_MS));
        while Instant::now() < until {
            let asked = self.now();
            if !matches!(alive.call("status", &Value::Null), Said::Done(_)) {
                break;
            }
            // That it is lost would have been said by now.
            if lock.set_patience(Duration::from_millis(1)).is_err() || lock.hear() != Said::Nothing {
                break;
            }
            hold.known_until = asked;
        }
        Some(hold)
    }

    fn granted_token(&self, lock: &mut Control) -> Option<u64> {
        let patience = Duration::from_millis(WAITS_MS) + ANSWERS_WITHIN;
        let until = Instant::now() + patience;
        while Instant::now() < until && !self.over.load(Ordering::Relaxed) {
            match lock.hear() {
                Said::Progress(value) => return value["granted"]["token"].as_u64(),
                Said::Nothing => {}
                Said::Done(_) | Said::Refused(_) | Said::Gone => return None,
            }
        }
        None
    }
}
