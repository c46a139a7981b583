//! Entries by key, in chunks that clones share.
//!
//! Every change first clones all entries, on the worker that serves the node's messages. That must
//! be fast even with [`KEYS_MAX`] entries. So the entries are kept in sorted chunks: a clone shares
//! the chunks, and a change copies only the chunk that it changes. A chunk that is too long is
//! split. A short chunk is joined with a short neighbour, so there are few. Two values are equal if
//! they have the same entries, in whatever chunks.
//!
//! [`KEYS_MAX`]: super::limits::KEYS_MAX

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use super::{Entry, Key};

/// The most entries in a chunk: about as many as there are chunks at the limit of keys.
const CHUNK: usize = 256;

/// Sorted entries in shared chunks; see the module.
#[derive(Clone, Default)]
pub(super) struct Entries {
    /// None of the chunks is empty.
    chunks: Vec<Arc<Vec<(Key, Entry)>>>,
    len: usize,
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, key: &str) -> Option<&Entry> {
        let (chunk, place) = self.find(key);
        place.ok().map(|at| &self.chunks[chunk][at].1)
    }

    /// Sets a key and returns its entry before.
    pub(super) fn insert(&mut self, key: Key, entry: Entry) -> Option<Entry> {
        let (at, place) = self.find(key.as_str());
        if self.chunks.is_empty() {
            self.chunks.push(Arc::default());
        }
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        match place {
            Ok(place) => return Some(std::mem::replace(&mut chunk[place].1, entry)),
            Err(place) => chunk.insert(place, (key, entry)),
        }
        self.len += 1;
        if chunk.len() > CHUNK {
            let upper = chunk.split_off(chunk.len() / 2);
            self.chunks.insert(at + 1, Arc::new(upper));
        }
        None
    }

    /// Removes a key and returns its entry.
    pub(super) fn remove(&mut self, key: &str) -> Option<Entry> {
        let (at, Ok(place)) = self.find(key) else { return None };
        let (_, entry) = Arc::make_mut(&mut self.chunks[at]).remove(place);
        self.len -= 1;
        if self.chunks[at].is_empty() {
            self.chunks.remove(at);
        }
        self.join(at);
        at.checked_sub(1).into_iter().for_each(|before| self.join(before));
        Some(entry)
    }

    /// Joins a chunk with the next if both are short.
    fn join(&mut self, at: usize) {
        let Some([one, next]) = self.chunks.get(at..at + 2) else { return };
        if one.len() + next.len() <= CHUNK / 2 {
            let next = self.chunks.remove(at + 1);
            Arc::make_mut(&mut self.chunks[at]).extend(next.iter().cloned());
        }
    }

    /// Returns all entries in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Entry)> {
        self.from("")
    }

    /// Returns the entries from this key on, in order.
    pub(super) fn from<'a>(&'a self, key: &'a str) -> impl Iterator<Item = (&'a Key, &'a Entry)> {
        let chunks = self.chunks[self.find(key).0..].iter();
        let all = chunks.flat_map(|chunk| chunk.iter()).map(|(key, entry)| (key, entry));
        // Entries before the key exist only in the first chunk.
        all.skip_while(move |(other, _)| other.as_str() < key)
    }

    /// Returns the greatest key.
    pub(super) fn last(&self) -> Option<&Key> {
        self.chunks.last()?.last().map(|(key, _)| key)
    }

    /// Gives every key this version.
    pub(super) fn set_versions(&mut self, version: u64) {
        let chunks = self.chunks.iter_mut().map(Arc::make_mut);
        chunks.flatten().for_each(|(_, entry)| entry.version = version);
    }

    /// Returns the chunk in which a key is or belongs, and its index there.
    fn find(&self, key: &str) -> (usize, Result<usize, usize>) {
        let is_before =
            |chunk: &Arc<Vec<(Key, Entry)>>| chunk.last().is_some_and(|(last, _)| last.as_str() < key);
        let chunk = self.chunks.partition_point(is_before).min(self.chunks.len().saturating_sub(1));
        let place = self
            .chunks
            .get(chunk)
            .map_or(Err(0), |chunk| chunk.binary_search_by(|(other, _)| other.as_str().cmp(key)));
        (chunk, place)
    }
}

impl PartialEq for Entries {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for Entries {}

impl Hash for Entries {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.len.hash(state);
        self.iter().for_each(|entry| entry.hash(state));
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use plexus_sim::Random;

    use super::*;

    fn key(number: u64) -> Key {
        Key::new(&format!("{number:05}")).unwrap()
    }

    fn entry(version: u64) -> Entry {
        Entry { version, value: Arc::default() }
    }

    /// Checks that both hold the same, in few enough chunks.
    fn check(entries: &Entries, model: &BTreeMap<Key, Entry>) {
        assert_eq!((entries.len(), entries.last()), (model.len(), model.keys().last()));
        assert!(entries.iter().eq(model.iter()));
        assert!(entries.chunks.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len())));
        assert!(entries.chunks.len() <= 4 * model.len() / CHUNK + 1, "{} chunks", entries.chunks.len());
    }

    #[test]
    fn entries_equal_a_map_and_clones_do_not_change() {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let (mut entries, mut model) = (Entries::default(), BTreeMap::new());
            let mut copies = Vec::new();
            for step in 0..6_000 {
                // The map grows, shrinks, and grows again.
                let is_growing = step / 2_000 % 2 == 0;
                let number = random.below(3_000);
                let key = key(number);
                assert_eq!(entries.get(key.as_str()), model.get(&key));
                if random.percent(if is_growing { 80 } else { 10 }) {
                    assert_eq!(entries.insert(key.clone(), entry(step)), model.insert(key, entry(step)));
                } else {
                    assert_eq!(entries.remove(key.as_str()), model.remove(&key));
                }
                if step % 500 == 0 {
                    check(&entries, &model);
                    copies.push((entries.clone(), model.clone()));
                }
                let from = format!("{:05}", random.below(3_000));
                let next = model.range::<Key, _>(Key::new(&from).unwrap()..).next();
                assert_eq!(entries.from(&from).next(), next);
            }
            copies.iter().for_each(|(entries, model)| check(entries, model));
            let again: Entries = model.iter().fold(Entries::default(), |mut again, (key, entry)| {
                again.insert(key.clone(), entry.clone());
                again
            });
            assert!(again == entries && again != copies[0].0);
        }
    }

    #[test]
    fn a_change_of_a_copy_copies_one_chunk() {
        let mut entries = Entries::default();
        (0..10_000).for_each(|number| drop(entries.insert(key(number), entry(0))));
        let mut copy = entries.clone();
        copy.insert(key(5_000), entry(1));
        copy.remove(key(5_001).as_str());
        let shared = |chunk: &&Arc<_>| entries.chunks.iter().any(|other| Arc::ptr_eq(chunk, other));
        assert_eq!(copy.chunks.iter().filter(shared).count(), entries.chunks.len() - 1);
        copy.set_versions(7);
        assert!(
            copy.iter().all(|(_, entry)| entry.version == 7)
                && entries.iter().all(|(_, entry)| entry.version == 0)
        );
    }
}
