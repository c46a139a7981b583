//! The properties of the registry of a cluster, checked by a global observer of all nodes.
//!
//! | property | rule |
//! |---|---|
//! | `same` | contents of one generation are the same wherever they are shown |
//! | `kept` | from one shown generation to the next, an entry disappears only for a newer one or on request |
//! | `order` | a command requested after the answer of another comes after it; a read is as new as all earlier answers |
//! | `compare` | a comparison succeeds on the version that the key had just before, and fails on another |
//! | `once` | a request is done once |
//! | `watch` | a follower of a watch has the shown content |
//!
//! The run checks three more: `faults` (no protocol violation is reported), `ends` (all requests
//! are answered, and all nodes are equal) and `room` (a node without space gets no
//! command but those that were under way).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use plexus_base::Epoch;
use plexus_registry::protocol::{Changed, Contents, Entry, Key, Refused, WatchEvent, WatchId, Watches};

use crate::failure::Broken;

/// A request of a client; each edits one key.
#[derive(Clone, Debug)]
pub enum ClientRequest {
    /// Read everything.
    Look,
    /// The key, the version that it must have, and its new value; `None` deletes it.
    Edit(Key, Option<u64>, Option<u64>),
    /// Restore an earlier content.
    Restore(Arc<Contents>),
}

/// An operation under way.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The request.
    pub asked: ClientRequest,
    /// The greatest generation answered to any client before the request.
    pub floor: u64,
    /// Its number among all operations.
    number: usize,
}

/// The time in which an operation can have been done: it made a generation above the first and not
/// above the second.
#[derive(Clone, Copy)]
struct Window(u64, u64);

impl Window {
    /// Returns true if it can have made a generation after `from` and up to `to`.
    fn meets(self, from: u64, to: u64) -> bool {
        self.0 < to && from < self.1
    }
}

/// The global observer.
#[derive(Default)]
pub struct History {
    shown: BTreeMap<u64, Arc<Contents>>,
    /// The greatest generation answered to any client.
    pub answered: u64,
    /// The version of each value.
    versions: BTreeMap<Vec<u8>, u64>,
    /// The values of the changes that were refused for want of space.
    refused: BTreeSet<Vec<u8>>,
    /// All requests, with the time in which each can have been done.
    operations: Vec<(Window, ClientRequest)>,
}

impl History {
    /// Notes the request of a client.
    pub fn asks(&mut self, asked: ClientRequest) -> Operation {
        self.operations.push((Window(self.answered, u64::MAX), asked.clone()));
        Operation { asked, floor: self.answered, number: self.operations.len() - 1 }
    }

    /// Notes that the requesting client is dead and will be in no view after `epoch`.
    pub fn dies(&mut self, operation: &Operation, epoch: Epoch) {
        self.operations[operation.number].0.1 = (u64::from(epoch.0) + 1) << 32;
    }

    /// Returns the newest generation that any node has shown.
    pub fn newest(&self) -> u64 {
        self.shown.last_key_value().map_or(0, |(generation, _)| *generation)
    }

    /// Checks the contents that a node shows.
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
            if self.refused.contains(&entry.value[..]) {
                return broken("once", format!("the command of {key} was answered as not made and is done"));
            }
            let known = *self.versions.entry(entry.value.to_vec()).or_insert(entry.version);
            let again = |asked: &ClientRequest| match asked {
                ClientRequest::Restore(backup) => backup.under("").any(|(_, old)| old.value == entry.value),
                ClientRequest::Look | ClientRequest::Edit(..) => false,
            };
            if known != entry.version && !self.can_be(from, to, again) {
                return broken(
                    "once",
                    format!("the command of {key} was done as {known} and as {}", entry.version),
                );
            }
        }
        Ok(())
    }

    /// Checks that a refused change was not made, and remembers that it must not be made later.
    fn is_refused(&mut self, asked: &ClientRequest) -> Result<(), Broken> {
        let ClientRequest::Edit(_, _, Some(value)) = asked else { return Ok(()) };
        let value = bytes(*value).to_vec();
        if let Some(version) = self.versions.get(&value) {
            return broken("once", format!("{asked:?} was done as {version} and is answered as not made"));
        }
        self.refused.insert(value);
        Ok(())
    }

    /// Returns true if a matching request can have been done after `from` and up to `to`.
    fn can_be(&self, from: u64, to: u64, is: impl Fn(&ClientRequest) -> bool) -> bool {
        self.operations.iter().any(|(window, asked)| window.meets(from, to) && is(asked))
    }

    /// Checks the answer to a client of a node with these contents.
    pub fn answers(
        &mut self,
        Operation { asked, floor, number }: &Operation,
        result: &Result<u64, Refused>,
        contents: Option<&Arc<Contents>>,
    ) -> Result<(), Broken> {
        // A refusal says that nothing was done.
        self.operations[*number].0 = result
            .as_ref()
            .map_or(Window(0, 0), |generation| Window(generation.saturating_sub(1), *generation));
        let (generation, contents) = match (result, contents) {
            (Ok(generation), Some(contents)) => (*generation, contents),
            (Err(Refused::Version { key, found, expected }), Some(contents)) => {
                let version = version(contents, key);
                if version != *found || found == expected || contents.generation() < *floor {
                    let at = contents.generation();
                    let what = format!("{key} was reported with version {found} but has {version} at {at}");
                    return broken("compare", what);
                }
                return Ok(());
            }
            (Err(Refused::Closed { .. }), _) => return Ok(()),
            (Err(Refused::Full { .. }), _) if !matches!(asked, ClientRequest::Look) => {
                return self.is_refused(asked);
            }
            (answer, _) => return broken("ends", format!("{asked:?} is answered with {answer:?}")),
        };
        let is_new = match asked {
            ClientRequest::Look => generation >= *floor,
            ClientRequest::Edit(..) | ClientRequest::Restore(_) => generation > *floor,
        };
        if !is_new || contents.generation() < generation {
            let shown = contents.generation();
            return broken("order", format!("{asked:?} made {generation} behind {floor}, {shown} is shown"));
        }
        self.answered = self.answered.max(generation);
        let (ClientRequest::Edit(key, expect, value), Some(made)) = (asked, self.shown.get(&generation))
        else {
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
                format!("{key} was compared with {expect} before {generation} but had {has}"),
            );
        }
        let expected = value.map(|value| Entry { version: generation, value: bytes(value) });
        if made.entry(key.as_str()) != expected.as_ref() {
            return broken("kept", format!("{key} differs from its change at {generation}"));
        }
        Ok(())
    }
}

/// Returns true if a request removes a key.
fn takes(asked: &ClientRequest, key: &Key) -> bool {
    match asked {
        ClientRequest::Edit(deleted, _, None) => deleted == key,
        ClientRequest::Restore(backup) => backup.entry(key.as_str()).is_none(),
        ClientRequest::Look | ClientRequest::Edit(_, _, Some(_)) => false,
    }
}

/// Returns the value with this number.
pub fn bytes(value: u64) -> Arc<[u8]> {
    value.to_le_bytes().as_slice().into()
}

fn version(contents: &Contents, key: &Key) -> u64 {
    contents.entry(key.as_str()).map_or(0, |entry| entry.version)
}

/// Follows the contents of a node with a watch.
pub struct Follower {
    watches: Watches,
    watch: WatchId,
    mirror: BTreeMap<Key, Entry>,
    told: u64,
}

impl Follower {
    /// Starts with the first contents shown.
    pub fn new(contents: &Contents) -> Self {
        let mut watches = Watches::new(contents.generation());
        let watch = watches.watch("", 0).expect("the first");
        Self { watches, watch, mirror: BTreeMap::new(), told: 0 }
    }

    /// Notes a change of the node.
    pub fn changed(&mut self, changed: Changed) {
        self.watches.changed(changed);
    }

    /// Reads all pending events and compares the contents.
    pub fn compare(&mut self, contents: &Contents) -> Result<(), Broken> {
        while let Some(event) = self.watches.next(self.watch) {
            let generation = match event {
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
                return broken("watch", format!("received {generation} after {}", self.told));
            }
            self.told = generation;
        }
        if !self.mirror.iter().eq(contents.under("")) {
            let at = contents.generation();
            return broken("watch", format!("the follower has {:?} at {at}, not {contents:?}", self.mirror));
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

    /// Returns `before` with a change that makes `generation`.
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
    fn one_generation_with_two_contents_is_detected() {
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
        let deletion = history.asks(ClientRequest::Edit(key(), None, None));
        let gone = with(&one, 2, Change::delete(key()));
        shows(&mut history, &gone).unwrap();
        history.answers(&deletion, &Ok(2), Some(&gone)).unwrap();
        let three = set(&gone, 3, 3);
        shows(&mut history, &three).unwrap();
        breaks("kept", shows(&mut history, &with(&three, 4, Change::delete(key()))));
    }

    #[test]
    fn refused_or_lost_deletion_excuses_no_loss() {
        let one = set(&nothing(), 1 << 32, 1);
        for is_refused in [true, false] {
            let mut history = History::default();
            shows(&mut history, &one).unwrap();
            let deletion = history.asks(ClientRequest::Edit(key(), Some(7), None));
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
    fn change_visible_before_its_request_is_detected() {
        let mut history = History::default();
        let (one, two) = (set(&nothing(), 1, 1), set(&nothing(), 2, 2));
        let first = history.asks(ClientRequest::Edit(key(), None, Some(2)));
        shows(&mut history, &one).unwrap();
        shows(&mut history, &two).unwrap();
        history.answers(&first, &Ok(2), Some(&two)).unwrap();
        let (look, edit) =
            (history.asks(ClientRequest::Look), history.asks(ClientRequest::Edit(key(), None, Some(1))));
        breaks("order", history.answers(&look, &Ok(1), Some(&two)));
        breaks("order", history.answers(&edit, &Ok(2), Some(&two)));
        breaks("order", history.answers(&look, &Ok(2), Some(&one)));
    }

    #[test]
    fn comparison_with_a_wrong_version_is_detected() {
        let mut history = History::default();
        let one = set(&nothing(), 1, 1);
        let two = set(&one, 2, 2);
        shows(&mut history, &one).unwrap();
        shows(&mut history, &two).unwrap();
        let edit = |history: &mut History| history.asks(ClientRequest::Edit(key(), Some(9), Some(2)));
        let asked = edit(&mut history);
        breaks("compare", history.answers(&asked, &Ok(2), Some(&two)));
        for (expected, found) in [(9, 1), (2, 2)] {
            let asked = edit(&mut history);
            let refused = Refused::Version { key: key(), expected, found };
            breaks("compare", history.answers(&asked, &Err(refused), Some(&two)));
        }
    }

    #[test]
    fn impossible_answer_is_detected() {
        let mut history = History::default();
        let look = history.asks(ClientRequest::Look);
        breaks("ends", history.answers(&look, &Err(Refused::Busy), None));
    }
}
