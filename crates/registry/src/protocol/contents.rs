//! All that the registry holds at one generation.
//!
//! Guarantees: a change is made whole, or refused with nothing changed; the limits hold; versions
//! of a key only grow. Must not know where any of it is kept.

use std::{collections::BTreeMap, fmt, sync::Arc};

use plexus_base::NodeId;

use super::{
    Change, Changed, Edit, EditKind, Key, Origin, Refused,
    entries::Entries,
    image::ENTRY,
    limits::{DISKS, GENERATION_MAX, KEYS_MAX, TOTAL_MAX},
};

/// The random identifier of a cluster, made once. Data of another cluster is never used or
/// overwritten.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClusterName(pub u128);

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The value and version of a key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The generation of its last change.
    pub version: u64,
    /// The value.
    pub value: Arc<[u8]>,
}

/// The registry at one generation. Clones share keys and values.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Contents {
    pub(super) cluster: ClusterName,
    pub(super) generation: u64,
    pub(super) entries: Entries,
    /// The number of bytes that the entries take in a copy.
    pub(super) bytes: usize,
    /// The last command of each node that was done, and the generation that it made.
    pub(super) done: BTreeMap<NodeId, (Origin, u64)>,
}

impl Contents {
    /// Creates empty contents at generation 0.
    pub fn new(cluster: ClusterName) -> Self {
        Self { cluster, generation: 0, entries: Entries::default(), bytes: 0, done: BTreeMap::new() }
    }

    /// Returns the cluster of this registry.
    pub fn cluster(&self) -> ClusterName {
        self.cluster
    }

    /// Returns the generation of the last command.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the entry of `key`.
    pub fn entry(&self, key: &str) -> Option<&Entry> {
        self.entries.get(key)
    }

    /// Returns all keys that begin with `prefix`, in order.
    pub fn under<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a Key, &'a Entry)> {
        self.entries.from(prefix).take_while(move |(key, _)| key.as_str().starts_with(prefix))
    }

    /// Returns the number of keys.
    pub fn keys(&self) -> usize {
        self.entries.len()
    }

    /// Returns the generation that this command made, if it is the last done command of its node.
    pub fn done(&self, origin: Origin) -> Option<u64> {
        self.done.get(&origin.node).filter(|(last, _)| *last == origin).map(|(_, generation)| *generation)
    }

    /// Makes a change with `generation`, which must be above that of the contents.
    ///
    /// # Errors
    /// The reason for the refusal; nothing has changed then.
    pub fn change(
        &mut self,
        generation: u64,
        origin: Option<Origin>,
        change: &Change,
    ) -> Result<Changed, Refused> {
        change.check()?;
        self.fits(change)?;
        self.made(generation, origin)?;
        Ok(self.edit(generation, change))
    }

    /// Replaces the contents by those of a backup of this cluster, with `generation`, which must be
    /// above that of the contents. What the nodes know about the disks stays as it is.
    ///
    /// # Errors
    /// The reason for the refusal; nothing has changed then.
    pub fn restore(
        &mut self,
        generation: u64,
        origin: Option<Origin>,
        backup: &Self,
    ) -> Result<Changed, Refused> {
        if backup.cluster != self.cluster {
            return Err(Refused::Foreign { found: backup.cluster, expected: self.cluster });
        }
        let mut restored = backup.clone();
        for (key, entry) in backup.under(DISKS) {
            restored.bytes -= size(key, &entry.value);
            restored.entries.remove(key.as_str());
        }
        for (key, entry) in self.under(DISKS) {
            restored.bytes += size(key, &entry.value);
            restored.entries.insert(key.clone(), entry.clone());
        }
        check_limits(restored.entries.len(), restored.bytes)?;
        self.made(generation, origin)?;
        (self.bytes, self.entries) = (restored.bytes, restored.entries);
        self.entries.set_versions(generation);
        Ok(Changed { generation, whole: true, keys: Vec::new() })
    }

    fn made(&mut self, generation: u64, origin: Option<Origin>) -> Result<(), Refused> {
        assert!(generation > self.generation, "generations go up");
        if generation > GENERATION_MAX {
            return Err(Refused::Generation { generation: generation - 1 });
        }
        self.generation = generation;
        if let Some(origin) = origin {
            self.done.insert(origin.node, (origin, generation));
        }
        Ok(())
    }

    /// Checks that the change fits these contents.
    fn fits(&self, Change(edits): &Change) -> Result<(), Refused> {
        let (mut keys, mut bytes) = (self.entries.len(), self.bytes);
        for Edit { key, expect, what } in edits {
            let old = self.entries.get(key.as_str());
            let found = old.map_or(0, |entry| entry.version);
            if let Some(expected) = expect.filter(|expected| *expected != found) {
                return Err(Refused::Version { key: key.clone(), expected, found });
            }
            if *what != EditKind::Keep {
                keys -= usize::from(old.is_some());
                bytes -= old.map_or(0, |entry| size(key, &entry.value));
            }
            if let EditKind::Set(value) = what {
                keys += 1;
                bytes += size(key, value);
            }
        }
        check_limits(keys, bytes)
    }

    fn edit(&mut self, generation: u64, Change(edits): &Change) -> Changed {
        let mut keys = Vec::with_capacity(edits.len());
        for Edit { key, what, .. } in edits {
            let entry = match what {
                EditKind::Keep => continue,
                EditKind::Set(value) => Some(Entry { version: generation, value: Arc::clone(value) }),
                EditKind::Delete => None,
            };
            let old = match &entry {
                Some(entry) => {
                    self.bytes += size(key, &entry.value);
                    self.entries.insert(key.clone(), entry.clone())
                }
                None => self.entries.remove(key.as_str()),
            };
            self.bytes -= old.as_ref().map_or(0, |old| size(key, &old.value));
            if entry.is_some() || old.is_some() {
                keys.push((key.clone(), entry));
            }
        }
        Changed { generation, whole: false, keys }
    }
}

fn check_limits(keys: usize, bytes: usize) -> Result<(), Refused> {
    match (keys, bytes) {
        (keys, _) if keys > KEYS_MAX => Err(Refused::Keys { keys }),
        (_, bytes) if bytes > TOTAL_MAX => Err(Refused::Total { bytes }),
        _ => Ok(()),
    }
}

/// Returns the number of bytes that an entry takes in a copy.
pub(super) fn size(key: &Key, value: &[u8]) -> usize {
    ENTRY + key.as_str().len() + value.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{EDITS_MAX, VALUE_MAX};

    const CLUSTER: ClusterName = ClusterName(7);

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn set(text: &str, value: &[u8]) -> Edit {
        Edit { key: key(text), expect: None, what: EditKind::Set(value.into()) }
    }

    fn apply(contents: &mut Contents, edits: Vec<Edit>) -> Result<Changed, Refused> {
        contents.change(contents.generation + 1, None, &Change(edits))
    }

    #[test]
    fn a_change_is_made_whole_or_not_at_all() {
        let mut contents = Contents::new(CLUSTER);
        apply(&mut contents, vec![set("a", b"1"), set("b", b"1")]).unwrap();
        let before = contents.clone();
        let stale = Edit { key: key("b"), expect: Some(0), what: EditKind::Delete };
        let refused = apply(&mut contents, vec![set("a", b"2"), stale]).unwrap_err();
        assert_eq!(refused, Refused::Version { key: key("b"), expected: 0, found: 1 });
        assert_eq!(contents, before);
        let fresh = Edit { key: key("b"), expect: Some(1), what: EditKind::Delete };
        let changed = apply(&mut contents, vec![set("a", b"2"), fresh]).unwrap();
        assert_eq!(changed.keys.len(), 2);
        assert_eq!((contents.entry("a").unwrap().version, contents.entry("b")), (2, None));
        let keep = Edit { key: key("b"), expect: Some(0), what: EditKind::Keep };
        assert_eq!(apply(&mut contents, vec![keep]).unwrap().keys, []);
        assert_eq!(contents.keys(), 1);
    }

    #[test]
    fn an_invalid_change_is_refused_with_its_reason() {
        let mut contents = Contents::new(CLUSTER);
        let long = vec![0; VALUE_MAX + 1];
        assert!(matches!(apply(&mut contents, vec![set("a", &long)]), Err(Refused::Value { .. })));
        assert_eq!(apply(&mut contents, vec![]), Err(Refused::Empty));
        let twice = apply(&mut contents, vec![set("a", b""), set("a", b"")]);
        assert_eq!(twice, Err(Refused::Twice { key: key("a") }));
        let many = (0..=EDITS_MAX).map(|n| set(&n.to_string(), b"")).collect();
        assert!(matches!(apply(&mut contents, many), Err(Refused::Edits { .. })));
        assert_eq!(contents, Contents::new(CLUSTER));
    }

    #[test]
    fn it_can_be_filled_to_its_limits_and_emptied_again() {
        let mut contents = Contents::new(CLUSTER);
        for part in 0..KEYS_MAX / EDITS_MAX {
            apply(&mut contents, (0..EDITS_MAX).map(|n| set(&format!("{part}/{n}"), b"")).collect()).unwrap();
        }
        assert_eq!(apply(&mut contents, vec![set("more", b"")]), Err(Refused::Keys { keys: KEYS_MAX + 1 }));
        apply(&mut contents, vec![set("0/0", b"again")]).unwrap();

        let mut contents = Contents::new(CLUSTER);
        let long = vec![1; VALUE_MAX];
        let full =
            (0..).find_map(|n| apply(&mut contents, vec![set(&format!("{n:03}"), &long)]).err()).unwrap();
        assert_eq!(full, Refused::Total { bytes: (ENTRY + 3 + VALUE_MAX) * 256 });
        apply(&mut contents, vec![Edit { what: EditKind::Delete, ..set("000", b"") }]).unwrap();
        apply(&mut contents, vec![set("255", &long)]).unwrap();
        let all: usize = contents.entries.iter().map(|(key, entry)| size(key, &entry.value)).sum();
        assert_eq!(contents.bytes, all);
    }

    #[test]
    fn a_prefix_finds_the_keys_that_begin_with_it() {
        let mut contents = Contents::new(CLUSTER);
        apply(&mut contents, ["a", "n/1", "n/2", "na", "o"].map(|text| set(text, b"")).to_vec()).unwrap();
        let under = |prefix| contents.under(prefix).map(|(key, _)| key.as_str()).collect::<Vec<_>>();
        assert_eq!(under("n/"), ["n/1", "n/2"]);
        assert_eq!(under(""), ["a", "n/1", "n/2", "na", "o"]);
    }

    #[test]
    fn restoring_gives_every_key_the_new_version() {
        let mut contents = Contents::new(CLUSTER);
        apply(&mut contents, vec![set("a", b"1")]).unwrap();
        let backup = contents.clone();
        apply(&mut contents, vec![set("a", b"2"), set("b", b"2")]).unwrap();
        let changed = contents.restore(9, None, &backup).unwrap();
        assert!(changed.whole);
        assert_eq!(contents.entry("a"), Some(&Entry { version: 9, value: b"1".as_slice().into() }));
        assert_eq!((contents.keys(), contents.generation()), (1, 9));
        // What the nodes know about the disks is newer than a backup.
        apply(&mut contents, vec![set("disks/g/group", b"5")]).unwrap();
        let backup = contents.clone();
        apply(&mut contents, vec![set("disks/g/group", b"6"), set("disks/g/stream/n1.0", b"")]).unwrap();
        contents.restore(20, None, &backup).unwrap();
        let value = |key| contents.entry(key).map(|entry| entry.value.to_vec());
        assert_eq!((value("disks/g/group"), value("disks/g/stream/n1.0")), (Some(b"6".into()), Some(vec![])));
        let all: usize = contents.entries.iter().map(|(key, entry)| size(key, &entry.value)).sum();
        assert_eq!(contents.bytes, all);
        let foreign = Contents::new(ClusterName(8)).restore(1, None, &backup);
        assert_eq!(foreign, Err(Refused::Foreign { found: CLUSTER, expected: ClusterName(8) }));
    }
}
