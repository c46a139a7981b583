//! Clients that take locks.
//!
//! Who has a lock knows it of moments: at each it asks the node, over another connection, how it is. A node that answers with some of its lease left
//! had it when it was asked; so as long as it did not say that the lock is lost, the lock was held then ([`Hold::known_until`]). The grant itself says
//! less: a node that was stopped when it was about to tell it, and is continued, tells it late.

use std::time::{Duration, Instant};

use plexus_node::control::{Control, ControlError, ControlResponse};
use plexus_sim::Random;
use serde_json::{Value, json};

use super::{ANSWERS_WITHIN, Work, push};
use crate::executive::history::locks::Hold;

/// Names of locks; few, so that clients meet.
const NAMES: u64 = 6;

/// How long a request for a lock waits before it is given up.
const WAITS: Duration = Duration::from_secs(3);

/// The longest that a lock is held.
const HOLDS_MS: u64 = 30;

/// How long is listened whether a lock is lost: that it is would have been said by then.
const LISTENS: Duration = Duration::from_millis(1);

/// Of so many locks one is shared.
const SHARED_OF: u64 = 4;

impl Work {
    /// One client, until the end.
    pub fn lock(&self, seed: u64) {
        self.again(seed, |node, random| {
            let (lock, alive) = (self.reach(node, ANSWERS_WITHIN)?, self.reach(node, ANSWERS_WITHIN)?);
            if let Some(hold) = self.take(lock, alive, random)? {
                push(&self.holds, hold);
            }
            Ok(())
        });
    }

    /// One lock, from asking for it to giving it up; nothing if it was not granted.
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

    /// The token that is granted, if one is in time.
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
