//! A sorted map that keeps the entry that was added last beside its tree.
//!
//! A lock that its own node masters is mostly released before the next one is taken. Such a lock,
//! and its resource, never enter a tree.

use std::{collections::BTreeMap, fmt};

/// A sorted map for short-lived entries; see the module.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct RecentMap<K, V> {
    /// The entry that [`RecentMap::add_recent`] added last, if it is still there; not in the tree.
    recent: Option<(K, V)>,
    tree: BTreeMap<K, V>,
}

impl<K, V> Default for RecentMap<K, V> {
    fn default() -> Self {
        Self { recent: None, tree: BTreeMap::new() }
    }
}

impl<K: Ord, V> RecentMap<K, V> {
    pub(super) fn len(&self) -> usize {
        self.tree.len() + usize::from(self.recent.is_some())
    }

    /// Returns all entries in the order of their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let recent = self.recent.as_ref().map(|(key, value)| (key, value));
        let mut tree = self.tree.iter().peekable();
        let mut recent = recent.into_iter().peekable();
        std::iter::from_fn(move || match (tree.peek(), recent.peek()) {
            (Some((first, _)), Some((other, _))) if other < first => recent.next(),
            (Some(_), _) => tree.next(),
            (None, _) => recent.next(),
        })
    }

    #[inline]
    pub(super) fn get(&self, key: &K) -> Option<&V> {
        match &self.recent {
            Some((recent, value)) if recent == key => Some(value),
            _ => self.tree.get(key),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        match &mut self.recent {
            Some((recent, value)) if recent == key => Some(value),
            _ => self.tree.get_mut(key),
        }
    }

    /// Adds an entry that will probably be removed before the next one is added. The key must be
    /// new.
    #[inline]
    pub(super) fn add_recent(&mut self, key: K, value: V) {
        if let Some((key, value)) = self.recent.replace((key, value)) {
            self.tree.insert(key, value);
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, key: &K) -> Option<V> {
        match self.recent.take_if(|(recent, _)| recent == key) {
            Some((_, value)) => Some(value),
            None => self.tree.remove(key),
        }
    }

    /// Moves the recent entry into the tree and returns the tree.
    pub(super) fn tree(&mut self) -> &mut BTreeMap<K, V> {
        self.tree.extend(self.recent.take());
        &mut self.tree
    }
}

impl<K: Ord + fmt::Debug, V: fmt::Debug> fmt::Debug for RecentMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use plexus_sim::Random;

    use super::*;

    #[test]
    fn it_is_a_sorted_map_with_or_without_a_recent_entry() {
        let mut random = Random::new(3);
        let (mut map, mut model) = (RecentMap::default(), BTreeMap::new());
        for step in 0..4_000u64 {
            let key = random.below(9);
            match random.below(4) {
                0 if !model.contains_key(&key) => map.add_recent(key, step),
                1 => assert_eq!(map.tree().insert(key, step), model.get(&key).copied()),
                2 => {
                    assert_eq!(map.remove(&key), model.remove(&key));
                    continue;
                }
                _ => {
                    assert_eq!(map.get_mut(&key), model.get_mut(&key));
                    continue;
                }
            }
            model.insert(key, step);
            assert_eq!(map.get(&key), Some(&step));
            assert!(map.iter().eq(&model));
            assert_eq!((map.len(), format!("{map:?}")), (model.len(), format!("{model:?}")));
        }
    }
}
