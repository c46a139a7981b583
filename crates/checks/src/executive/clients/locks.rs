//! Clients that take locks.
//!
//! A holder knows that it has a lock at certain moments: at each it asks the node for its status
//! over another connection. A node whose answer shows some lease left had the lease when it was
//! asked. So if the lock was not reported lost, it was held then ([`Hold::known_until`]). The grant
//! alone proves less: a node that is stopped before it reports a grant reports it late after it
//! continues.

use std::time::{Duration, Instant};

use plexus_admin::control::{Control, ControlError, ControlResponse};
use plexus_sim::Random;
use serde_json::{Value, json};

use super::{ANSWERS_WITHIN, Work, push};
use crate::executive::history::locks::Hold;

/// The names of locks; few, so that clients conflict.
const NAMES: u64 = 6;

/// The timeout of a lock request.
const WAITS: Duration = Duration::from_secs(3);

/// The longest time for which a lock is held.
const HOLDS_MS: u64 = 30;

/// The time to listen for the loss of a lock; the node would have reported it by then.
const LISTENS: Duration = Duration::from_millis(1);

/// One of so many locks is shared.
const SHARED_OF: u64 = 4;

impl Work {
    /// Runs one client until the end.
    pub fn lock(&self, seed: u64) {
        self.again(seed, |node, random| {
            let (lock, alive) = (self.reach(node, ANSWERS_WITHIN)?, self.reach(node, ANSWERS_WITHIN)?);
            if let Some(hold) = self.take(lock, alive, random)? {
                push(&self.holds, hold);
            }
            Ok(())
        });
    }

    /// Takes one lock, from its request to its release; returns `None` if it was not granted.
    fn take(
        &self,
        mut lock: Control,
        mut alive: Control,
        random: &mut Random,
    ) -> Result<Option<Hold>, ControlError> {
        let name = format!("lock {}", random.below(NAMES));
        let exclusive = random.below(SHARED_OF) > 0;
        let mode = if exclusive { "EX" } else { "PR" };
        let holds = Duration::from_millis(random.below(HOLDS_MS));
        let asked = self.now();
        lock.ask("lock", json!({ "name": name, "mode": mode, "wait_ms": WAITS.as_millis() as u64 }))?;
        let Some(token) = self.granted(&mut lock)? else { return Ok(None) };
        let granted = self.now();
        let mut hold = Hold { name, exclusive, token, asked, granted, known_until: asked };
        lock.set_timeout(LISTENS)?;
        let until = Instant::now() + holds;
        while Instant::now() < until {
            let asked = self.now();
            let status = alive.call("status", Value::Null, |_| ());
            let has_lease = status.is_ok_and(|status| status["membership"]["lease_ms"].as_f64() > Some(0.0));
            if !has_lease || !matches!(lock.hear(), Err(ControlError::Silent { .. })) {
                break;
            }
            hold.known_until = asked;
        }
        Ok(Some(hold))
    }

    /// Returns the token of the grant, if it comes in time.
    fn granted(&self, lock: &mut Control) -> Result<Option<u64>, ControlError> {
        let until = Instant::now() + WAITS + ANSWERS_WITHIN;
        while Instant::now() < until && !self.is_over() {
            match lock.hear() {
                Ok(ControlResponse::Progress(value)) => return Ok(value["granted"]["token"].as_u64()),
                Ok(ControlResponse::Done(_)) => return Ok(None),
                Err(ControlError::Silent { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}
