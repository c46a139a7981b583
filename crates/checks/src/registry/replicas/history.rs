//! What must hold of the registry of a cluster, seen by somebody who sees all nodes at once.
//!
//! | property | what |
//! |---|---|
//! | `same` | contents of one generation are the same wherever they are shown |
//! | `kept` | from one generation that was shown to the next, an entry goes only for a newer one, or because somebody asked for that |
//! | `order` | a command that was asked for after another was answered comes after it; what is read is as new as all that was answered before |
//! | `compare` | a comparison succeeds on the version that the key had just before, and fails on one that it does not have |
//! | `once` | what was asked for is done once |
//! | `watch` | who follows a watch has what is shown |
//!
//! Two more are looked at by the run: `faults` (nobody sends what none sends) and `ends` (all is answered and the same everywhere).

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::Epoch;
use plexus_registry::protocol::{Changed, Contents, Entry, Key, Refused, WatchEvent, WatchId, Watches};

use crate::failure::Broken;

/// What a client asked for; each edits one key.
#[derive(Clone, Debug)]
pub enum Asked {
    /// To be shown everything.
    Look,
    /// A key, the version that it must have, and its new value; none: deleted.
    Edit(Key, Option<u64>, Option<u64>),
    /// Everything that was held once.
    Restore(Arc<Contents>),
}

/// An operation under way.
#[derive(Clone, Debug)]
pub struct Operation {
    /// What.
    pub asked: Asked,
    /// The greatest generation that anybody was answered when it was asked for.
    pub floor: u64,
    /// Its place among all operations.
    number: usize,
}

/// When something can have been done: it made a generation above the first and not above the second.
#[derive(Clone, Copy)]
struct Window(u64, u64);

impl Window {
    /// Whether it can have made one of the generations behind `from`, up to `to`.
    fn meets(self, from: u64, to: u64) -> bool {
        self.0 < to && from < self.1
    }
}

/// Sees everything.
#[derive(Default)]
pub struct History {
    shown: BTreeMap<u64, Arc<Contents>>,
    /// The greatest generation that anybody was answered.
    pub answered: u64,
    /// The version that each value got.
    versions: BTreeMap<Vec<u8>, u64>,
    /// Everything that was asked for, and when it can have been done.
    operations: Vec<(Window, Asked)>,
}

impl History {
    /// A client asks.
    pub fn asks(&mut self, asked: Asked) -> Operation {
        self.operations.push((Window(self.answered, u64::MAX), asked.clone()));
        Operation { asked, floor: self.answered, number: self.operations.len() - 1 }
    }

    /// Whoever asked for it is dead and will be in no view after `epoch`.
    pub fn dies(&mut self, operation: &Operation, epoch: Epoch) {
        self.operations[operation.number].0.1 = (u64::from(epoch.0) + 1) << 32;
    }

    /// The newest that anybody has shown.
    pub fn newest(&self) -> u64 {
        self.shown.last_key_value().map_or(0, |(generation, _)| *generation)
    }

    /// A node shows contents.
    pub fn shows(&mut self, changed: &Changed, contents: &Arc<Contents>) -> Result<(), Broken> {
        let generation = contents.generation();
        if changed.generation != generation {
            return broken("same", format!("{generation} is shown as {}", changed.generation));
        }
        if let Some(before) = self.shown.get(&generation) {
            if before != contents {
                return broken("same", format!("{generation} is shown as {before:?} and {contents:?}"));
            }
            return Ok(());
        }
        if let Some((_, before)) = self.shown.range(..generation).next_back() {
            let before = Arc::clone(before);
            self.follows(&before, contents)?;
        }
        self.shown.insert(generation, Arc::clone(contents));
        Ok(())
    }

    fn follows(&mut self, before: &Contents, after: &Contents) -> Result<(), Broken> {
        let (from, to) = (before.generation(), after.generation());
        for (key, old) in before.under("") {
            let what = match after.entry(key.as_str()) {
                Some(new) if new == old || new.version > from => continue,
                None if self.can_be(from, to, |asked| takes(asked, key)) => continue,
                Some(new) => format!("version {}", new.version),
                None => "nothing".into(),
            };
            return broken("kept", format!("{key} has version {} at {from} and {what} at {to}", old.version));
        }
        for (key, entry) in after.under("").filter(|(key, entry)| before.entry(key.as_str()) != Some(entry)) {
            if entry.version <= from || entry.version > to {
                return broken(
                    "kept",
                    format!("{key} gets version {} between {from} and {to}", entry.version),
                );
            }
            let known = *self.versions.entry(entry.value.to_vec()).or_insert(entry.version);
            let again = |asked: &Asked| match asked {
                Asked::Restore(backup) => backup.under("").any(|(_, old)| old.value == entry.value),
                Asked::Look | Asked::Edit(..) => false,
            };
            if known != entry.version && !self.can_be(from, to, again) {
                return broken(
                    "once",
                    format!("what {key} has was done as {known} and as {}", entry.version),
                );
            }
        }
        Ok(())
    }

    /// Whether something like that can have been done behind `from`, up to `to`.
    fn can_be(&self, from: u64, to: u64, is: impl Fn(&Asked) -> bool) -> bool {
        self.operations.iter().any(|(window, asked)| window.meets(from, to) && is(asked))
    }

    /// A client is answered, by a node that shows this.
    pub fn answers(
        &mut self,
        Operation { asked, floor, number }: &Operation,
        result: &Result<u64, Refused>,
        contents: Option<&Arc<Contents>>,
    ) -> Result<(), Broken> {
        // Who is refused is told that nothing was done.
        self.operations[*number].0 = result
            .as_ref()
            .map_or(Window(0, 0), |generation| Window(generation.saturating_sub(1), *generation));
        let (generation, contents) = match (result, contents) {
            (Ok(generation), Some(contents)) => (*generation, contents),
            (Err(Refused::Version { key, found, expected }), Some(contents)) => {
                let version = version(contents, key);
                if version != *found || found == expected || contents.generation() < *floor {
                    let at = contents.generation();
                    let what = format!("{key} is said to have {found} and has {version} at {at}");
                    return broken("compare", what);
                }
                return Ok(());
            }
            (Err(Refused::Closed { .. }), _) => return Ok(()),
            (answer, _) => return broken("ends", format!("{asked:?} is answered with {answer:?}")),
        };
        let is_new = match asked {
            Asked::Look => generation >= *floor,
            Asked::Edit(..) | Asked::Restore(_) => generation > *floor,
        };
        if !is_new || contents.generation() < generation {
            let shown = contents.generation();
            return broken("order", format!("{asked:?} made {generation} behind {floor}, {shown} is shown"));
        }
        self.answered = self.answered.max(generation);
        let (Asked::Edit(key, expect, value), Some(made)) = (asked, self.shown.get(&generation)) else {
            return Ok(());
        };
        let before = self.shown.range(..generation).next_back().map(|(_, contents)| contents);
        if let (Some(expect), Some(before)) = (expect, before)
            && version(before, key) != *expect
            && before.generation() + 1 == generation
        {
            let has = version(before, key);
            return broken(
                "compare",
                format!("{key} was to have {expect} before {generation} and had {has}"),
            );
        }
        let expected = value.map(|value| Entry { version: generation, value: bytes(value) });
        if made.entry(key.as_str()) != expected.as_ref() {
            return broken("kept", format!("{key} is not what was made of it at {generation}"));
        }
        Ok(())
    }
}

/// Whether this takes a key away.
fn takes(asked: &Asked, key: &Key) -> bool {
    match asked {
        Asked::Edit(deleted, _, None) => deleted == key,
        Asked::Restore(backup) => backup.entry(key.as_str()).is_none(),
        Asked::Look | Asked::Edit(_, _, Some(_)) => false,
    }
}

/// The value with this number.
pub fn bytes(value: u64) -> Arc<[u8]> {
    value.to_le_bytes().as_slice().into()
}

fn version(contents: &Contents, key: &Key) -> u64 {
    contents.entry(key.as_str()).map_or(0, |entry| entry.version)
}

/// Follows what a node shows, by a watch.
pub struct Follower {
    watches: Watches,
    watch: WatchId,
    mirror: BTreeMap<Key, Entry>,
    told: u64,
}

impl Follower {
    /// From the first thing that is shown.
    pub fn new(contents: &Contents) -> Self {
        let mut watches = Watches::new(contents.generation());
        let watch = watches.watch("", 0).expect("the first");
        Self { watches, watch, mirror: BTreeMap::new(), told: 0 }
    }

    /// The node tells of a change.
    pub fn changed(&mut self, changed: Changed) {
        self.watches.changed(changed);
    }

    /// Reads what there is to read and compares.
    pub fn compare(&mut self, contents: &Contents) -> Result<(), Broken> {
        while let Some(news) = self.watches.next(self.watch) {
            let generation = match news {
                WatchEvent::Change(generation, keys) => {
                    for (key, entry) in keys {
                        match entry {
                            Some(entry) => drop(self.mirror.insert(key, entry)),
                            None => drop(self.mirror.remove(&key)),
                        }
                    }
                    generation
                }
                WatchEvent::ReadAgain(generation) => {
                    let all = contents.under("").map(|(key, entry)| (key.clone(), entry.clone()));
                    self.mirror = all.collect();
                    generation
                }
            };
            if generation <= self.told && self.told > 0 || generation > contents.generation() {
                return broken("watch", format!("told of {generation} after {}", self.told));
            }
            self.told = generation;
        }
        if !self.mirror.iter().eq(contents.under("")) {
            let at = contents.generation();
            return broken("watch", format!("who follows has {:?} at {at}, not {contents:?}", self.mirror));
        }
        Ok(())
    }
}

pub(super) fn broken<T>(property: &'static str, what: String) -> Result<T, Broken> {
    Err(Broken::general(property, what))
}

#[cfg(test)]
mod tests {
    use plexus_registry::protocol::{Change, ClusterName};

    use super::*;

    fn key() -> Key {
        Key::new("k").unwrap()
    }

    fn nothing() -> Contents {
        Contents::new(ClusterName(7))
    }

    /// `before` with a change that makes `generation`.
    fn with(before: &Contents, generation: u64, change: Change) -> Arc<Contents> {
        let mut contents = before.clone();
        contents.change(generation, None, &change).unwrap();
        contents.into()
    }

    fn set(before: &Contents, generation: u64, value: u64) -> Arc<Contents> {
        with(before, generation, Change::set(key(), &bytes(value)))
    }

    fn shows(history: &mut History, contents: &Arc<Contents>) -> Result<(), Broken> {
        let generation = contents.generation();
        history.shows(&Changed { generation, whole: false, keys: Vec::new() }, contents)
    }

    #[track_caller]
    fn breaks(property: &str, result: Result<(), Broken>) {
        assert_eq!(result.unwrap_err().property, property);
    }

    #[test]
    fn one_generation_with_two_contents_is_seen() {
        let mut history = History::default();
        shows(&mut history, &set(&nothing(), 1, 1)).unwrap();
        shows(&mut history, &set(&nothing(), 1, 1)).unwrap();
        breaks("same", shows(&mut history, &set(&nothing(), 1, 2)));
    }

    #[test]
    fn a_deletion_excuses_no_later_loss() {
        let mut history = History::default();
        let one = set(&nothing(), 1, 1);
        shows(&mut history, &one).unwrap();
        let deletion = history.asks(Asked::Edit(key(), None, None));
        let gone = with(&one, 2, Change::delete(key()));
        shows(&mut history, &gone).unwrap();
        history.answers(&deletion, &Ok(2), Some(&gone)).unwrap();
        let three = set(&gone, 3, 3);
        shows(&mut history, &three).unwrap();
        breaks("kept", shows(&mut history, &with(&three, 4, Change::delete(key()))));
    }

    #[test]
    fn a_deletion_that_was_refused_or_died_excuses_none() {
        let one = set(&nothing(), 1 << 32, 1);
        for is_refused in [true, false] {
            let mut history = History::default();
            shows(&mut history, &one).unwrap();
            let deletion = history.asks(Asked::Edit(key(), Some(7), None));
            if is_refused {
                let refused = Refused::Version { key: key(), expected: 7, found: one.generation() };
                history.answers(&deletion, &Err(refused), Some(&one)).unwrap();
            } else {
                history.dies(&deletion, Epoch(0));
            }
            let gone = with(&one, one.generation() + 1, Change::delete(key()));
            breaks("kept", shows(&mut history, &gone));
        }
    }

    #[test]
    fn what_was_asked_for_late_and_done_early_is_seen() {
        let mut history = History::default();
        let (one, two) = (set(&nothing(), 1, 1), set(&nothing(), 2, 2));
        let first = history.asks(Asked::Edit(key(), None, Some(2)));
        shows(&mut history, &one).unwrap();
        shows(&mut history, &two).unwrap();
        history.answers(&first, &Ok(2), Some(&two)).unwrap();
        let (look, edit) = (history.asks(Asked::Look), history.asks(Asked::Edit(key(), None, Some(1))));
        breaks("order", history.answers(&look, &Ok(1), Some(&two)));
        breaks("order", history.answers(&edit, &Ok(2), Some(&two)));
        breaks("order", history.answers(&look, &Ok(2), Some(&one)));
    }

    #[test]
    fn a_comparison_with_what_the_key_does_not_have_is_seen() {
        let mut history = History::default();
        let one = set(&nothing(), 1, 1);
        let two = set(&one, 2, 2);
        shows(&mut history, &one).unwrap();
        shows(&mut history, &two).unwrap();
        let edit = |history: &mut History| history.asks(Asked::Edit(key(), Some(9), Some(2)));
        let asked = edit(&mut history);
        breaks("compare", history.answers(&asked, &Ok(2), Some(&two)));
        for (expected, found) in [(9, 1), (2, 2)] {
            let asked = edit(&mut history);
            let refused = Refused::Version { key: key(), expected, found };
            breaks("compare", history.answers(&asked, &Err(refused), Some(&two)));
        }
    }

    #[test]
    fn an_answer_that_none_should_get_is_seen() {
        let mut history = History::default();
        let look = history.asks(Asked::Look);
        breaks("ends", history.answers(&look, &Err(Refused::Busy), None));
    }
}
