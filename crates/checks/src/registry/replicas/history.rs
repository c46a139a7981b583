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

use plexus_registry::protocol::{Changed, Contents, Entry, Key, News, Refused, WatchId, Watches};

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
}

/// Sees everything.
#[derive(Default)]
pub struct History {
    shown: BTreeMap<u64, Arc<Contents>>,
    /// The greatest generation that anybody was answered.
    pub answered: u64,
    /// The version that each value got.
    versions: BTreeMap<Vec<u8>, u64>,
    /// Keys that somebody asked to be deleted, and how often.
    deletions: BTreeMap<Key, u64>,
    restores: Vec<Arc<Contents>>,
}

impl History {
    /// A client asks.
    pub fn asks(&mut self, asked: Asked) -> Operation {
        match &asked {
            Asked::Edit(key, _, None) => *self.deletions.entry(key.clone()).or_default() += 1,
            Asked::Restore(backup) => self.restores.push(Arc::clone(backup)),
            Asked::Look | Asked::Edit(..) => {}
        }
        Operation { asked, floor: self.answered }
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
                None if self.deletions.contains_key(key)
                    || self.is_restored(|backup| backup.entry(key.as_str()).is_none()) =>
                {
                    continue;
                }
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
            let again = |backup: &Contents| backup.under("").any(|(_, old)| old.value == entry.value);
            if known != entry.version && !self.is_restored(again) {
                return broken(
                    "once",
                    format!("what {key} has was done as {known} and as {}", entry.version),
                );
            }
        }
        Ok(())
    }

    fn is_restored(&self, how: impl Fn(&Contents) -> bool) -> bool {
        self.restores.iter().any(|backup| how(backup))
    }

    /// A client is answered, by a node that shows this.
    pub fn answers(
        &mut self,
        Operation { asked, floor }: &Operation,
        result: &Result<u64, Refused>,
        contents: Option<&Arc<Contents>>,
    ) -> Result<(), Broken> {
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
        let _ = self.watches.changed(changed).count();
    }

    /// Reads what there is to read and compares.
    pub fn compare(&mut self, contents: &Contents) -> Result<(), Broken> {
        while let Some(news) = self.watches.next(self.watch) {
            let generation = match news {
                News::Change(generation, keys) => {
                    for (key, entry) in keys {
                        match entry {
                            Some(entry) => drop(self.mirror.insert(key, entry)),
                            None => drop(self.mirror.remove(&key)),
                        }
                    }
                    generation
                }
                News::ReadAnew(generation) => {
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
