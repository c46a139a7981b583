//! Clients that read and change keys of the registry at any node.
//!
//! The registry compares versions, but the judge compares values ([`Op::Swap`]): each value is
//! written once, so one stands for the other. Keys are used for a while and then left alone, which
//! keeps each history short enough for the search. At the end all keys are read at all nodes.

use std::{
    collections::BTreeMap,
    sync::{PoisonError, atomic::Ordering},
    time::Duration,
};

use plexus_admin::control::{Control, ControlError};
use plexus_node::registry::{Bytes, Entry};
use serde_json::json;

use super::{Work, push};
use crate::executive::history::{
    self,
    keys::{Op, Operation},
};

/// The timeout of a client for an answer; the operation then counts as unanswered.
const WAITS: Duration = Duration::from_secs(3);

/// The longest time in which a node must list all keys once everything is healed.
const LISTS_WITHIN: Duration = Duration::from_secs(30);

/// The keys in use at a time; few, so that clients conflict.
const KEYS: u64 = 3;

/// The operations on these keys before others replace them.
const EACH_FOR: u64 = 300;

/// The prefix of all keys.
const PREFIX: &str = "torture/";

/// The state of a key.
#[derive(Clone, Copy)]
struct Found {
    /// The version; 0 if the key does not exist.
    version: u64,
    value: Option<u64>,
}

impl Found {
    const NOTHING: Self = Self { version: 0, value: None };

    /// Reads an entry; text that is no number becomes a value that was never written.
    fn of(entry: Entry) -> Self {
        let number = match entry.value {
            Bytes::Text(text) => text.parse().ok(),
            Bytes::Hex(_) => None,
        };
        Self { version: entry.version, value: Some(number.unwrap_or(u64::MAX)) }
    }
}

/// The results of all operations on keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Keys that were read.
    pub reads: usize,
    /// Changes that were made.
    pub changes: usize,
    /// Changes refused because the key had another value than expected.
    pub refused: usize,
    /// Changes that were never answered.
    pub unanswered: usize,
}

impl Counts {
    fn of(operations: &[Operation]) -> Self {
        let mut counts = Self::default();
        for operation in operations {
            *match operation.op {
                _ if operation.end.is_none() => &mut counts.unanswered,
                Op::Read(_) => &mut counts.reads,
                Op::Write(_) | Op::Swap { done: true, .. } => &mut counts.changes,
                Op::Swap { done: false, .. } => &mut counts.refused,
            } += 1;
        }
        counts
    }
}

impl Work {
    /// Runs one client until the end.
    pub fn change(&self, seed: u64) {
        self.again(seed, |node, random| {
            let number = 1 + self.number.fetch_add(1, Ordering::Relaxed);
            let key = format!("{PREFIX}{:08}", number / EACH_FOR * KEYS + random.below(KEYS));
            let changes = random.below(4);
            // The key was read at one node and is changed at another.
            let other = random.below(self.nodes as u64) as usize;
            match changes {
                0 => drop(self.read(&mut self.reach(node, WAITS)?, &key)?),
                1 => self.edit(&mut self.reach(node, WAITS)?, &key, number, None)?,
                _ => {
                    let found = self.read(&mut self.reach(node, WAITS)?, &key)?;
                    self.edit(&mut self.reach(other, WAITS)?, &key, number, Some(found))?;
                }
            }
            Ok(())
        });
    }

    /// Records the operation requested at `begin` and its result.
    fn note(&self, key: &str, op: Op, begin: u64, answered: bool) {
        let end = answered.then(|| self.now());
        push(&self.operations, Operation { key: key.into(), op, begin, end });
    }

    fn read(&self, control: &mut Control, key: &str) -> Result<Found, ControlError> {
        let begin = self.now();
        let found = match control.call("registry.get", json!({ "key": key }), |_| ()) {
            Ok(said) => Found::of(serde_json::from_value(said).map_err(|error| strange(control, error))?),
            Err(ControlError::Refused { what, .. }) if what == format!("{key}: is not there") => {
                Found::NOTHING
            }
            Err(error) => return Err(error),
        };
        self.note(key, Op::Read(found.value), begin, true);
        Ok(found)
    }

    /// Sets a key, either in any case or only if it still has the value found.
    fn edit(
        &self,
        control: &mut Control,
        key: &str,
        new: u64,
        found: Option<Found>,
    ) -> Result<(), ControlError> {
        let value = Bytes::Text(new.to_string());
        let asked = json!({ "key": key, "value": value, "if_version": found.map(|found| found.version) });
        let op = |done| match found {
            Some(Found { value: expected, .. }) => Op::Swap { expected, new, done },
            None => Op::Write(new),
        };
        let begin = self.now();
        match control.call("registry.set", asked, |_| ()) {
            Ok(_) => self.note(key, op(true), begin, true),
            Err(ControlError::Refused { what, .. })
                if found.is_some() && what.starts_with(&format!("{key}: has version ")) =>
            {
                self.note(key, op(false), begin, true);
            }
            Err(error) => {
                self.note(key, op(true), begin, false);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Checks the clients' histories; first reads all keys at every node.
    ///
    /// # Errors
    /// A node does not answer, or a history is impossible.
    pub fn judge_keys(&self) -> Result<Counts, String> {
        (0..self.nodes).try_for_each(|node| self.read_all(node))?;
        let operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        history::keys::check(&operations).map_err(|judgement| judgement.to_string())?;
        Ok(Counts::of(&operations))
    }

    fn read_all(&self, node: usize) -> Result<(), String> {
        let begin = self.now();
        let mut listed = Vec::new();
        let list = self.reach(node, LISTS_WITHIN).and_then(|mut control| {
            control.call("registry.list", json!({ "prefix": PREFIX }), |more| listed.push(more))
        });
        list.map_err(|error| format!("cannot list the keys at the end: {error}"))?;
        let entries = listed.into_iter().filter_map(|more| serde_json::from_value::<Vec<Entry>>(more).ok());
        let mut values: BTreeMap<String, Found> =
            entries.flatten().map(|entry| (entry.key.clone(), Found::of(entry))).collect();
        let written = 1 + self.number.load(Ordering::Relaxed) / EACH_FOR;
        for number in 0..written * KEYS {
            let key = format!("{PREFIX}{number:08}");
            let found = values.remove(&key).unwrap_or(Found::NOTHING);
            self.note(&key, Op::Read(found.value), begin, true);
        }
        match values.first_key_value() {
            Some((key, _)) => Err(format!("{key}: no client wrote this key")),
            None => Ok(()),
        }
    }
}

/// Makes an error of an answer that cannot be decoded.
fn strange(control: &Control, error: serde_json::Error) -> ControlError {
    ControlError::Io { name: control.name().into(), source: error.into() }
}
