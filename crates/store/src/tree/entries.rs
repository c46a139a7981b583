//! Entries of a tree in one piece of memory.

/// Entries in the order of a scan, in one piece of memory: a scan allocates little for each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Entries {
    bytes: Vec<u8>,
    /// The end of each key and of each value.
    ends: Vec<(usize, usize)>,
}

impl Entries {
    /// Adds an entry behind the others.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let end = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((end, self.bytes.len()));
    }

    /// Returns an entry: its key and its value.
    #[must_use]
    pub fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let (key, value) = *self.ends.get(index)?;
        let begin = index.checked_sub(1).map_or(0, |before| self.ends[before].1);
        Some((&self.bytes[begin..key], &self.bytes[key..value]))
    }

    /// Returns the entries.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&[u8], &[u8])> {
        (0..self.len()).filter_map(|index| self.entry(index))
    }

    /// Returns their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
