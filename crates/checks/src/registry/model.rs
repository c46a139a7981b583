//! What the registry should hold, in the simplest words: the reference that the real one is compared with.

use std::collections::BTreeMap;

use plexus_base::{Incarnation, NodeId};
use plexus_registry::protocol::{Change, Command, Contents, Edit, Key, Origin, What};

/// The version of what was saved without anybody being told its generation.
pub const UNTOLD: u64 = u64::MAX;

/// One key of an operation: which, the version it must have, what it gets (`None`: deleted).
pub type Part = (u64, Option<u64>, Option<u64>);

/// What somebody asks for.
#[derive(Clone, Debug)]
pub enum Op {
    /// Edits.
    Edits(Vec<Part>),
    /// All that was held once, and the backup with it.
    Restore(BTreeMap<u64, (u64, u64)>, std::sync::Arc<Contents>),
}

impl Op {
    /// As a command.
    #[must_use]
    pub fn command(&self) -> Command {
        match self {
            Self::Edits(parts) => Command::Change(Change(parts.iter().map(edit).collect())),
            Self::Restore(_, backup) => Command::Restore(backup.clone()),
        }
    }
}

fn edit((key, expect, value): &Part) -> Edit {
    let what = value.map_or(What::Delete, |value| What::Set(value.to_le_bytes().as_slice().into()));
    Edit { key: Key::new(&format!("k/{key}")).expect("a key"), expect: *expect, what }
}

/// The one who numbers his operations.
#[must_use]
pub fn origin(number: u64) -> Origin {
    Origin { node: NodeId(1), incarnation: Incarnation(1), number }
}

/// Keys with value and version, and the last numbered operation with the generation it made.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct State {
    /// By key.
    pub keys: BTreeMap<u64, (u64, u64)>,
    /// The last numbered operation.
    pub done: Option<(u64, u64)>,
}

impl State {
    /// Does an operation at this generation; whether it was done: not if a version does not fit.
    pub fn apply(&mut self, op: &Op, number: Option<u64>, generation: u64) -> bool {
        match op {
            Op::Edits(parts) => {
                let version = |key| self.keys.get(key).map_or(0, |(_, version)| *version);
                if parts.iter().any(|(key, expect, _)| expect.is_some_and(|expect| expect != version(key))) {
                    return false;
                }
                for (key, _, value) in parts {
                    match value {
                        Some(value) => drop(self.keys.insert(*key, (*value, generation))),
                        None => drop(self.keys.remove(key)),
                    }
                }
            }
            Op::Restore(old, _) => {
                self.keys = old.iter().map(|(key, (value, _))| (*key, (*value, generation))).collect();
            }
        }
        self.done = number.map(|number| (number, generation)).or(self.done);
        true
    }

    /// Whether it was done before, and which generation it made.
    #[must_use]
    pub fn done(&self, number: Option<u64>) -> Option<u64> {
        self.done.filter(|(last, _)| Some(*last) == number).map(|(_, generation)| generation)
    }

    /// What the contents say, in these words.
    #[must_use]
    pub fn of(contents: &Contents, numbers: u64) -> Self {
        let number =
            |text: &str| text.strip_prefix("k/").and_then(|text| text.parse().ok()).expect("a key of ours");
        let value = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let keys = contents
            .under("")
            .map(|(key, entry)| (number(key.as_str()), (value(&entry.value), entry.version)));
        let done = (1..=numbers).find_map(|number| Some((number, contents.done(origin(number))?)));
        Self { keys: keys.collect(), done }
    }

    /// Whether this is what `seen` is, as far as anybody was told.
    #[must_use]
    pub fn agrees(&self, seen: &Self) -> bool {
        let same = |ours: u64, theirs: u64| ours == UNTOLD || ours == theirs;
        let keys = self.keys.len() == seen.keys.len()
            && self.keys.iter().zip(&seen.keys).all(|((key, (value, version)), (other, (has, at)))| {
                key == other && value == has && same(*version, *at)
            });
        let done = match (self.done, seen.done) {
            (None, None) => true,
            (Some((number, generation)), Some((other, at))) => number == other && same(generation, at),
            _ => false,
        };
        keys && done
    }
}
