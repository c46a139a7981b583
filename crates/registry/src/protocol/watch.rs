//! Watches: each watch gets every change under its prefix once, in the order of generations.
//!
//! A bounded history of changes is kept, and a watch is a position in it. So a watch that is never
//! read costs nothing: when the history has moved past it, its reader must read the contents again.
//! Must not know who watches or how the readers are woken.

use std::collections::{BTreeMap, VecDeque};

use super::{
    Changed, Entry, Key,
    contents::size,
    limits::{HISTORY_BYTES_MAX, HISTORY_MAX, WATCHES_MAX},
};

/// The number of a watch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WatchId(pub u64);

/// An event of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WatchEvent {
    /// The next change under the prefix: its generation, and the changed keys with their new
    /// entries, `None` for a deleted key.
    Change(u64, Vec<(Key, Option<Entry>)>),
    /// Changes were missed, or a backup was restored: read the contents again, at this generation
    /// or a later one. The watch continues after this generation.
    ReadAgain(u64),
}

struct Watch {
    prefix: String,
    /// The generation up to which changes were returned.
    told: u64,
}

/// A change in the history.
struct KeptChange {
    changed: Changed,
    /// The bytes that count for it.
    bytes: usize,
}

/// All watches of one node, and the history that they read.
#[derive(Default)]
pub struct Watches {
    history: VecDeque<KeptChange>,
    bytes: usize,
    /// Every change after this generation is in the history.
    floor: u64,
    newest: u64,
    watches: BTreeMap<WatchId, Watch>,
    last: u64,
}

impl Watches {
    /// Creates the state without watches. The history starts at `generation`, that of the contents.
    pub fn new(generation: u64) -> Self {
        Self { floor: generation, newest: generation, ..Self::default() }
    }

    /// Watches keys that begin with `prefix`, for changes after generation `from`, that of the
    /// contents read before. `None` if the limit [`WATCHES_MAX`] is reached.
    pub fn watch(&mut self, prefix: &str, from: u64) -> Option<WatchId> {
        if self.watches.len() >= WATCHES_MAX {
            return None;
        }
        self.last += 1;
        self.watches.insert(WatchId(self.last), Watch { prefix: prefix.into(), told: from });
        Some(WatchId(self.last))
    }

    /// Ends a watch.
    pub fn end(&mut self, watch: WatchId) {
        self.watches.remove(&watch);
    }

    /// Adds a change to the history.
    ///
    /// # Panics
    /// Its generation is not above the last.
    pub fn changed(&mut self, changed: Changed) {
        assert!(changed.generation > self.newest, "changes come in order");
        self.newest = changed.generation;
        if changed.whole {
            self.history.clear();
            (self.bytes, self.floor) = (0, changed.generation);
        } else {
            let bytes = changed.keys.iter().map(|(key, entry)| size(key, value(entry))).sum();
            self.bytes += bytes;
            self.history.push_back(KeptChange { changed, bytes });
        }
        while self.history.len() > HISTORY_MAX || self.bytes > HISTORY_BYTES_MAX {
            let gone = self.history.pop_front().expect("what is too much is there");
            self.bytes -= gone.bytes;
            self.floor = gone.changed.generation;
        }
    }

    /// Returns the next event of the watch; `None` if there is none now, or no such watch.
    pub fn next(&mut self, watch: WatchId) -> Option<WatchEvent> {
        let watch = self.watches.get_mut(&watch)?;
        if watch.told < self.floor {
            watch.told = self.floor;
            return Some(WatchEvent::ReadAgain(self.floor));
        }
        let from = self.history.partition_point(|kept| kept.changed.generation <= watch.told);
        for KeptChange { changed, .. } in self.history.range(from..) {
            watch.told = changed.generation;
            let keys: Vec<_> = changed.keys.iter().filter(|(key, _)| watch.sees(key)).cloned().collect();
            if !keys.is_empty() {
                return Some(WatchEvent::Change(changed.generation, keys));
            }
        }
        None
    }
}

impl Watch {
    fn sees(&self, key: &Key) -> bool {
        key.as_str().starts_with(&self.prefix)
    }
}

fn value(entry: &Option<Entry>) -> &[u8] {
    entry.as_ref().map_or(&[], |entry| &entry.value)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use plexus_sim::Random;

    fn change(generation: u64, keys: &[&str], len: usize) -> Changed {
        let value: Arc<[u8]> = vec![0; len].into();
        let entry = |_| Some(Entry { version: generation, value: Arc::clone(&value) });
        let keys = keys.iter().map(|key| (Key::new(key).unwrap(), entry(key))).collect();
        Changed { generation, whole: false, keys }
    }

    fn all(watches: &mut Watches, watch: WatchId) -> Vec<u64> {
        std::iter::from_fn(|| watches.next(watch))
            .map(|events| match events {
                WatchEvent::Change(generation, _) => generation,
                WatchEvent::ReadAgain(generation) => panic!("read again from {generation}"),
            })
            .collect()
    }

    #[test]
    fn each_change_under_the_prefix_is_returned_once_in_order() {
        let mut watches = Watches::new(10);
        let n = watches.watch("n/", 10).unwrap();
        let every = watches.watch("", 12).unwrap();
        watches.changed(change(11, &["n/1", "o"], 1));
        watches.changed(change(12, &["o"], 1));
        watches.changed(change(15, &["n/2"], 1));
        let Some(WatchEvent::Change(11, keys)) = watches.next(n) else { panic!("the first change") };
        assert_eq!(keys.len(), 1);
        assert_eq!(all(&mut watches, n), [15]);
        assert_eq!(all(&mut watches, every), [15]);
        let late = watches.watch("n/", 11).unwrap();
        assert_eq!(all(&mut watches, late), [15]);
        watches.end(n);
        assert_eq!(watches.next(n), None);
    }

    #[test]
    fn a_watch_that_lost_its_history_must_read_again_and_misses_nothing_after() {
        let mut watches = Watches::new(10);
        let early = watches.watch("a", 3).unwrap();
        assert_eq!(watches.next(early), Some(WatchEvent::ReadAgain(10)));
        let slow = watches.watch("a", 10).unwrap();
        for generation in 11..12 + HISTORY_MAX as u64 {
            watches.changed(change(generation, &["a"], 0));
        }
        assert_eq!(watches.next(slow), Some(WatchEvent::ReadAgain(11)));
        assert_eq!(all(&mut watches, slow).len(), HISTORY_MAX);
        let restored = Changed { generation: 9000, whole: true, keys: Vec::new() };
        watches.changed(restored);
        assert_eq!(watches.next(slow), Some(WatchEvent::ReadAgain(9000)));
        assert_eq!(watches.next(slow), None);
    }

    #[test]
    fn memory_is_bounded() {
        let mut watches = Watches::new(0);
        for generation in 1..300 {
            watches.changed(change(generation, &["a"], 64 * 1024));
            assert!(watches.bytes <= HISTORY_BYTES_MAX);
        }
        assert_eq!(
            watches.history.len(),
            HISTORY_BYTES_MAX / (64 * 1024 + size(&Key::new("a").unwrap(), &[]))
        );
        assert_eq!((0..=WATCHES_MAX).filter_map(|_| watches.watch("", 0)).count(), WATCHES_MAX);
    }

    #[test]
    fn a_reader_that_follows_a_watch_has_the_same_contents() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let (mut watches, mut contents, mut mirror) = (Watches::new(0), BTreeMap::new(), BTreeMap::new());
            let watch = watches.watch("k", 0).unwrap();
            let mut generation = 0;
            for _ in 0..random.between(1, 200) {
                generation += random.between(1, 3);
                let key = format!("{}{}", random.pick(&["k", "x"]), random.below(4));
                let len = *random.pick(&[0, 9, 65_536]);
                let mut made = change(generation, &[&key], len as usize);
                match random.below(20) {
                    0..4 => made.keys[0].1 = None,
                    4 => {
                        contents.clear();
                        made = Changed { generation, whole: true, keys: Vec::new() };
                    }
                    _ => {}
                }
                for (key, entry) in &made.keys {
                    contents.insert(key.clone(), entry.clone());
                }
                watches.changed(made);
                if random.percent(3) {
                    while let Some(events) = watches.next(watch) {
                        match events {
                            WatchEvent::ReadAgain(_) => mirror = contents.clone(),
                            WatchEvent::Change(_, keys) => mirror.extend(keys),
                        }
                    }
                    mirror.retain(|key, _| key.as_str().starts_with('k'));
                    contents.retain(|key, _| key.as_str().starts_with('k'));
                    assert_eq!(mirror, contents, "seed {seed}");
                }
            }
        }
    }
}
