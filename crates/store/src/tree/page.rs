//! A page of a tree: sorted entries of a key and a value.
//!
//! | bytes | content |
//! |---|---|
//! | 0 | level: 0 for a leaf |
//! | 1 | zero |
//! | 2..4 | number of entries |
//! | 4..6 | begin of the cells, which reach to the end of the page |
//! | 6..8 | bytes of cells that nothing refers to |
//! | 8..16 | the block of the right sibling; all ones: none |
//! | 16..18 | place of the cell with the high key; 0: there is none |
//! | 18..26 | the number of the tree; 0: the page was removed from its tree |
//! | 26..28 | place of the cell with the low key; 0: the page has the lowest keys |
//! | 28.. | place of the cell of each entry, in the order of keys: 2 bytes each |
//! | cells | length of the key (2 bytes), length of the value (2 bytes), key, value |
//!
//! All numbers are little-endian. All keys of a page are from its low key on and below its high
//! key. An entry of an inner page
//! has the block of a child as its value (8 bytes) and the low key of the child.

use std::{cmp::Ordering, ops::Range};

use plexus_base::BlockId;
use plexus_cache::BlockChange;

use super::OwnedEntry;

const LEVEL: usize = 0;
const COUNT: usize = 2;
const CELLS: usize = 4;
const UNUSED: usize = 6;
const RIGHT: usize = 8;
const HIGH: usize = 16;
const TREE: usize = 18;
const LOW: usize = 26;
const SLOTS: usize = 28;

/// The bytes of a cell besides key and value.
const CELL: usize = 4;

const NO_BLOCK: u64 = u64::MAX;

/// Returns the most bytes of a key in pages with so many user bytes.
pub(crate) fn most_key_bytes(user: usize) -> usize {
    user / 8
}

/// Returns the most bytes of a key and its value in pages with so many user bytes: four entries, a
/// low key and a high key fit, so that a page without room can be divided.
pub(crate) fn most_bytes(user: usize) -> usize {
    (user - SLOTS - 2 * (most_key_bytes(user) + CELL)) / 4 - CELL - 2
}

/// Returns the bytes of a page with these bytes of entries and of keys that are its bounds.
pub(crate) fn bytes_for(entries: usize, bounds: usize) -> usize {
    SLOTS + entries + bounds + 2 * CELL
}

/// The contents of a page that no correct node writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// The keys that a page may have, and what is behind them.
#[derive(Clone, Copy, Default)]
pub(crate) struct PageBounds<'a> {
    /// The lowest key.
    pub(crate) low: &'a [u8],
    /// All keys are below this one; `None` for the last page.
    pub(crate) high: Option<&'a [u8]>,
    /// The right sibling, which has the keys from there on.
    pub(crate) right: Option<BlockId>,
}

/// A page of a tree, to be read.
#[derive(Clone, Copy)]
pub(crate) struct Node<'a>(&'a [u8]);

/// An entry: its key and its value.
pub(crate) type Entry<'a> = (&'a [u8], &'a [u8]);

const LOST: Malformed = Malformed("a cell is beyond its end");

impl<'a> Node<'a> {
    /// Checks the parts of a page that all others rely on.
    #[inline]
    pub(crate) fn of(user: &'a [u8]) -> Result<Self, Malformed> {
        let node = Self(user);
        let slots_end = SLOTS + 2 * node.count();
        match slots_end <= node.word(CELLS) && node.word(CELLS) <= user.len() {
            true => Ok(node),
            false => Err(Malformed("it has no places for its entries")),
        }
    }

    #[inline]
    fn word(&self, at: usize) -> usize {
        usize::from(u16::from_le_bytes([self.0[at], self.0[at + 1]]))
    }

    pub(crate) fn level(&self) -> u8 {
        self.0[LEVEL]
    }

    pub(crate) fn count(&self) -> usize {
        self.word(COUNT)
    }

    /// Returns the number of the tree; 0 in a page that no tree has.
    pub(crate) fn tree(&self) -> u64 {
        u64::from_le_bytes(self.0[TREE..TREE + 8].try_into().expect("eight bytes"))
    }

    /// Returns the right sibling.
    pub(crate) fn right(&self) -> Option<BlockId> {
        let block = u64::from_le_bytes(self.0[RIGHT..RIGHT + 8].try_into().expect("eight bytes"));
        (block != NO_BLOCK).then_some(BlockId(block))
    }

    #[inline]
    fn cell(&self, place: usize) -> Result<Entry<'a>, Malformed> {
        let (key, rest, value) = self.key_of_cell(place)?;
        Ok((key, rest.get(..value).ok_or(LOST)?))
    }

    /// Returns the key of a cell, the bytes behind it, and how many of them are its value.
    #[inline]
    fn key_of_cell(&self, place: usize) -> Result<(&'a [u8], &'a [u8], usize), Malformed> {
        let cell = self.0.get(place..).ok_or(LOST)?;
        let (head, bytes) = cell.split_first_chunk::<CELL>().ok_or(LOST)?;
        let [key, value] = [[head[0], head[1]], [head[2], head[3]]].map(u16::from_le_bytes).map(usize::from);
        let (key, rest) = bytes.split_at_checked(key).ok_or(LOST)?;
        Ok((key, rest, value))
    }

    /// Returns the key below which all keys of the page are.
    pub(crate) fn high(&self) -> Result<Option<&'a [u8]>, Malformed> {
        match self.word(HIGH) {
            0 => Ok(None),
            place => Ok(Some(self.cell(place)?.0)),
        }
    }

    /// Returns the lowest key that the page may have.
    #[inline]
    pub(crate) fn low(&self) -> Result<&'a [u8], Malformed> {
        match self.word(LOW) {
            0 => Ok(&[]),
            place => Ok(self.cell(place)?.0),
        }
    }

    pub(crate) fn bounds(&self) -> Result<PageBounds<'a>, Malformed> {
        Ok(PageBounds { low: self.low()?, high: self.high()?, right: self.right() })
    }

    /// Returns the bytes that the entries take.
    pub(crate) fn used(&self) -> Result<usize, Malformed> {
        let size = |index| self.entry(index).map(|(key, value)| key.len() + value.len() + CELL + 2);
        (0..self.count()).map(size).sum()
    }

    #[inline]
    pub(crate) fn entry(&self, index: usize) -> Result<Entry<'a>, Malformed> {
        self.cell(self.word(SLOTS + 2 * index))
    }

    /// Returns the number of entries whose keys are below `key`, or also `key` itself.
    pub(crate) fn below(&self, key: &[u8], with_it: bool) -> Result<usize, Malformed> {
        let (mut from, mut to) = (0, self.count());
        while from < to {
            let middle = usize::midpoint(from, to);
            // Its value is not looked at.
            let (found, ..) = self.key_of_cell(self.word(SLOTS + 2 * middle))?;
            match found.cmp(key) {
                Ordering::Less => from = middle + 1,
                Ordering::Equal if with_it => from = middle + 1,
                _ => to = middle,
            }
        }
        Ok(from)
    }

    /// Returns the place of a key, or the place where it would be.
    pub(crate) fn find(&self, key: &[u8]) -> Result<Result<usize, usize>, Malformed> {
        let index = self.below(key, false)?;
        let is_it = index < self.count() && self.entry(index)?.0 == key;
        Ok(if is_it { Ok(index) } else { Err(index) })
    }

    /// Returns the block of a child.
    pub(crate) fn child(&self, index: usize) -> Result<BlockId, Malformed> {
        let child = self.entry(index)?.1.try_into();
        child.map(|child| BlockId(u64::from_le_bytes(child))).map_err(|_| Malformed("a child is no block"))
    }

    /// Returns the bytes for further entries, if the cells are moved together.
    fn room(&self) -> usize {
        self.word(CELLS) + self.word(UNUSED) - (SLOTS + 2 * self.count())
    }

    /// Returns the entry at which the page is divided: its left part has about half of the bytes,
    /// or all if a new entry comes behind the last one of the last page.
    fn middle(&self, new: usize) -> Result<usize, Malformed> {
        let count = self.count();
        if new == count && self.right().is_none() && count > 1 {
            return Ok(count - 1);
        }
        let all = self.used()?;
        let mut left = 0;
        for index in 0..count {
            let (key, value) = self.entry(index)?;
            left += key.len() + value.len() + CELL + 2;
            if 2 * left >= all {
                return Ok((index + 1).clamp(1, count - 1));
            }
        }
        Err(Malformed("a full page has no entries"))
    }
}

/// A page of a tree, to be changed.
pub(crate) struct NodeEdit<'a, C>(&'a mut C);

impl<'a, C: BlockChange> NodeEdit<'a, C> {
    /// Edits a page, which was checked.
    pub(crate) fn of(change: &'a mut C) -> Result<Self, Malformed> {
        Node::of(change)?;
        Ok(Self(change))
    }

    /// Makes an empty page of a new one, or of one whose entries are elsewhere.
    pub(crate) fn init(
        change: &'a mut C,
        tree: u64,
        level: u8,
        bounds: PageBounds<'_>,
    ) -> Result<Self, Malformed> {
        let end = change.len();
        let mut edit = Self(change);
        edit.0.write(LEVEL, &[level, 0]);
        edit.0.write(TREE, &tree.to_le_bytes());
        edit.set_word(COUNT, 0);
        edit.set_word(CELLS, end);
        edit.set_word(UNUSED, 0);
        edit.0.write(RIGHT, &bounds.right.map_or(NO_BLOCK, |right| right.0).to_le_bytes());
        for (at, key) in [(LOW, Some(bounds.low).filter(|low| !low.is_empty())), (HIGH, bounds.high)] {
            let add = |key| edit.add_cell(key, &[]).ok_or(Malformed("there is no room for its bounds"));
            let place = key.map(add).transpose()?.unwrap_or(0);
            edit.set_word(at, place);
        }
        Ok(edit)
    }

    pub(crate) fn node(&self) -> Node<'_> {
        Node(self.0)
    }

    fn set_word(&mut self, at: usize, word: usize) {
        // Pages are shorter than 64 KiB.
        self.0.write(at, &(word as u16).to_le_bytes());
    }

    /// Writes a cell in front of the others, if there is room without moving any. Returns its
    /// place.
    fn add_cell(&mut self, key: &[u8], value: &[u8]) -> Option<usize> {
        let node = self.node();
        let place = node.word(CELLS).checked_sub(CELL + key.len() + value.len())?;
        if place < SLOTS + 2 * node.count() {
            return None;
        }
        let mut cell = Vec::with_capacity(CELL + key.len() + value.len());
        cell.extend_from_slice(&(key.len() as u16).to_le_bytes());
        cell.extend_from_slice(&(value.len() as u16).to_le_bytes());
        cell.extend_from_slice(key);
        cell.extend_from_slice(value);
        self.0.write(place, &cell);
        self.set_word(CELLS, place);
        Some(place)
    }

    fn drop_cell(&mut self, place: usize) -> Result<(), Malformed> {
        let (key, value) = self.node().cell(place)?;
        let unused = self.node().word(UNUSED) + CELL + key.len() + value.len();
        self.set_word(UNUSED, unused);
        Ok(())
    }

    /// Moves all cells together.
    fn compact(&mut self) -> Result<(), Malformed> {
        let node = self.node();
        let entries = owned(node, 0..node.count())?;
        self.refill(&entries)
    }

    /// Gives the page these entries instead of its own. Level and bounds stay.
    fn refill(&mut self, entries: &[OwnedEntry]) -> Result<(), Malformed> {
        let node = self.node();
        let (tree, level, PageBounds { low, high, right }) = (node.tree(), node.level(), node.bounds()?);
        let (low, high) = (low.to_vec(), high.map(<[u8]>::to_vec));
        let bounds = PageBounds { low: &low, high: high.as_deref(), right };
        let mut edit = NodeEdit::init(&mut *self.0, tree, level, bounds)?;
        match edit.insert_run(0, entries, 0, |into, value| into.extend_from_slice(value))? {
            count if count == entries.len() => Ok(()),
            _ => Err(Malformed("entries of a page do not fit into it")),
        }
    }

    /// Makes `other` a page with the level, the bounds and the entries of this one.
    pub(crate) fn copy_to(&self, other: &mut C) -> Result<(), Malformed> {
        let node = self.node();
        let entries = owned(node, 0..node.count())?;
        NodeEdit::init(other, node.tree(), node.level(), node.bounds()?)?.refill(&entries)
    }

    /// Takes the entries and the keys of the right sibling, which is removed from the tree.
    pub(crate) fn absorb(&mut self, right: &mut C) -> Result<(), Malformed> {
        let (node, other) = (self.node(), Node::of(right)?);
        let (tree, level, low) = (node.tree(), node.level(), node.low()?.to_vec());
        let mut entries = owned(node, 0..node.count())?;
        entries.extend(owned(other, 0..other.count())?);
        let bounds = PageBounds { low: &low, ..other.bounds()? };
        NodeEdit::init(&mut *self.0, tree, level, bounds)?.refill(&entries)?;
        NodeEdit::init(right, 0, level, PageBounds::default())?;
        Ok(())
    }

    /// Inserts an entry. Returns false if there is no room.
    pub(crate) fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) -> Result<bool, Malformed> {
        let needed = CELL + key.len() + value.len() + 2;
        if self.node().room() < needed {
            return Ok(false);
        }
        let slots_end = SLOTS + 2 * self.node().count();
        if self.node().word(CELLS) < slots_end + needed {
            self.compact()?;
        }
        let place = self.add_cell(key, value).ok_or(Malformed("it counts its room wrongly"))?;
        let moved = self.0[SLOTS + 2 * index..slots_end].to_vec();
        self.set_word(SLOTS + 2 * index, place);
        self.0.write(SLOTS + 2 * index + 2, &moved);
        let count = self.node().count() + 1;
        self.set_word(COUNT, count);
        Ok(true)
    }

    /// Inserts entries at one place, as many from the first one on as find room: their keys rise,
    /// and all belong there. A value has `more` bytes more than its contents; `put` appends it.
    /// Returns how many these are.
    pub(crate) fn insert_run(
        &mut self,
        index: usize,
        entries: &[OwnedEntry],
        more: usize,
        put: impl Fn(&mut Vec<u8>, &[u8]),
    ) -> Result<usize, Malformed> {
        let cell = |(key, contents): &OwnedEntry| CELL + key.len() + contents.len() + more;
        let (room, mut fits, mut cells) = (self.node().room(), 0, 0);
        for entry in entries {
            if cells + cell(entry) + 2 * (fits + 1) > room {
                break;
            }
            cells += cell(entry);
            fits += 1;
        }
        let slots_end = SLOTS + 2 * self.node().count();
        if self.node().word(CELLS) < slots_end + cells + 2 * fits {
            self.compact()?;
        }
        let end = self.node().word(CELLS);
        let (mut bytes, mut slots, mut place) = (Vec::with_capacity(cells), Vec::new(), end);
        // Cells grow towards the begin of the page.
        for (key, contents) in entries[..fits].iter().rev() {
            bytes.extend_from_slice(&(key.len() as u16).to_le_bytes());
            bytes.extend_from_slice(&((contents.len() + more) as u16).to_le_bytes());
            bytes.extend_from_slice(key);
            put(&mut bytes, contents);
        }
        for entry in &entries[..fits] {
            place -= cell(entry);
            slots.extend_from_slice(&(place as u16).to_le_bytes());
        }
        if bytes.len() != cells || place != end - cells {
            return Err(Malformed("an entry has another length than it said"));
        }
        slots.extend_from_slice(&self.0[SLOTS + 2 * index..slots_end]);
        self.0.write(place, &bytes);
        self.0.write(SLOTS + 2 * index, &slots);
        self.set_word(CELLS, place);
        let count = self.node().count() + fits;
        self.set_word(COUNT, count);
        Ok(fits)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, index: usize) -> Result<(), Malformed> {
        let slots_end = SLOTS + 2 * self.node().count();
        let place = self.node().word(SLOTS + 2 * index);
        self.drop_cell(place)?;
        let moved = self.0[SLOTS + 2 * index + 2..slots_end].to_vec();
        self.0.write(SLOTS + 2 * index, &moved);
        let count = self.node().count() - 1;
        self.set_word(COUNT, count);
        Ok(())
    }

    /// Replaces the value of an entry. Returns false if there is no room.
    pub(crate) fn replace(&mut self, index: usize, value: &[u8]) -> Result<bool, Malformed> {
        let place = self.node().word(SLOTS + 2 * index);
        let (key, old) = self.node().cell(place)?;
        if old.len() == value.len() {
            let at = place + CELL + key.len();
            self.0.write(at, value);
            return Ok(true);
        }
        if self.node().room() + old.len() < value.len() {
            return Ok(false);
        }
        let key = key.to_vec();
        self.remove(index)?;
        self.insert(index, &key, value)
    }

    /// Moves the right part of the entries to `right`, which becomes the right sibling. `new` is
    /// the place of the entry for which room is made. Returns the key that separates the two.
    pub(crate) fn split(&mut self, new: usize, block: BlockId, right: &mut C) -> Result<Vec<u8>, Malformed> {
        let node = self.node();
        let middle = node.middle(new)?;
        let (left, moved) = (owned(node, 0..middle)?, owned(node, middle..node.count())?);
        let separator = match node.level() {
            0 => separator(&left[middle - 1].0, &moved[0].0),
            _ => moved[0].0.clone(),
        };
        let (tree, level) = (node.tree(), node.level());
        let low = node.low()?.to_vec();
        let bounds = PageBounds { low: &separator, ..node.bounds()? };
        NodeEdit::init(right, tree, level, bounds)?.refill(&moved)?;
        let bounds = PageBounds { low: &low, high: Some(&separator), right: Some(block) };
        NodeEdit::init(&mut *self.0, tree, level, bounds)?.refill(&left)?;
        Ok(separator)
    }
}

fn owned(node: Node<'_>, indexes: Range<usize>) -> Result<Vec<OwnedEntry>, Malformed> {
    let owned = |index| node.entry(index).map(|(key, value)| (key.to_vec(), value.to_vec()));
    indexes.map(owned).collect()
}

/// Returns the shortest key above `low` that is not above `high`.
fn separator(low: &[u8], high: &[u8]) -> Vec<u8> {
    let same = low.iter().zip(high).take_while(|(low, high)| low == high).count();
    high[..(same + 1).min(high.len())].to_vec()
}
