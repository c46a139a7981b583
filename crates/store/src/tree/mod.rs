//! B-link trees: keys and values in pages that every node reads and changes.
//!
//! Each page has the key below which all its keys are, and its right sibling. A page that is full
//! is divided: its right part and the new sibling are one group of redo. The parent learns of the
//! sibling afterwards, by a change of its own. Until then, and for ever if the node dies between
//! the two, the sibling is found from the left page. A change that finds a page in this way tells
//! the parent.
//!
//! The root stays where it is. When it is full, its entries move to two new pages, which become
//! its children.
//!
//! A leaf whose rows several nodes change is divided although it has room, so that each gets its
//! rows to itself (contention splits: Alhomssi and Leis, *Contention and Space Management in
//! B-Trees*, CIDR 2021).
//!
//! A task has one page at a time, besides new ones. It finds a page by reading, gives it back, and
//! waits for it again to change it. Meanwhile the page may have been divided, and never merged: a
//! key is in the page or to the right of it.

pub mod check;
pub(crate) mod page;

use std::cell::Cell;

use plexus_base::BlockId;
use plexus_cache::{BlockChange, Blocks, CacheError, Committed};
use plexus_disks::PageType;

use self::page::{Malformed, Node, NodeEdit, most_bytes};
use crate::{
    StoreError,
    space::{FreeBlock, Space},
};

/// The type of the pages of trees.
pub const TREE_PAGE: PageType = PageType(1);

/// The most levels of a tree: a page has at least two children, and more would be a circle.
const MOST_LEVELS: u8 = 64;

/// An entry of a tree: key and value.
pub type OwnedEntry = (Vec<u8>, Vec<u8>);

/// The change of one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EntryChange {
    /// It stays as it is.
    Keep,
    /// It gets this value; it is made if there was none.
    Set(Vec<u8>),
    /// It is removed, if there is one.
    Remove,
}

/// A part of a scan.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScannedEntries {
    /// The entries, in their order.
    pub entries: Vec<OwnedEntry>,
    /// The place where the next part begins; `None` at the end.
    pub next: Option<ScanPlace>,
}

/// A place between two parts of a scan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScanPlace {
    key: Vec<u8>,
    /// The page that has the key, or one on the left of it.
    page: Option<BlockId>,
}

impl ScanPlace {
    /// A scan from this key on.
    #[must_use]
    pub fn from(key: &[u8]) -> Self {
        Self { key: key.to_vec(), page: None }
    }
}

/// A sibling that its parent may not know.
struct NewSibling {
    /// The level of the parent.
    level: u8,
    separator: Vec<u8>,
    block: BlockId,
}

/// The result of the search for an entry under the latch of its page.
enum Changed<T> {
    Done(T, Committed),
    /// The page was divided, to make room.
    Divided(Option<NewSibling>),
    /// The key is in the right sibling, of which the parent may not know.
    Right(NewSibling),
    /// The page is not at the expected level: it is the root, which has got children meanwhile.
    Higher,
}

/// A tree, as a task of a node uses it.
pub struct Tree<'a, B, S> {
    blocks: &'a B,
    space: &'a S,
    root: BlockId,
    /// The newest grant of the leaves that were changed.
    granted: Cell<u64>,
}

impl<'a, B: Blocks, S: Space> Tree<'a, B, S> {
    /// Makes a new, empty tree of a free block. Its number, which is not 0, is in all its pages.
    ///
    /// # Errors
    /// The block cannot be had.
    pub async fn create(
        blocks: &'a B,
        space: &'a S,
        root: FreeBlock,
        number: u64,
    ) -> Result<(Self, Committed), StoreError> {
        let committed = blocks.commit(vec![Self::new_root(blocks, root, number).await?]);
        Ok((Self::open(blocks, space, root.block), committed))
    }

    /// Makes the root of a new tree, which is there once it is committed.
    ///
    /// # Errors
    /// The block cannot be had.
    pub async fn new_root(blocks: &'a B, root: FreeBlock, number: u64) -> Result<B::Change<'a>, StoreError> {
        let mut change = blocks.create(root.block, TREE_PAGE, root.last).await?;
        NodeEdit::init(&mut change, number, 0, None, None).map_err(damaged(root.block))?;
        Ok(change)
    }

    /// Opens the tree with this root.
    pub fn open(blocks: &'a B, space: &'a S, root: BlockId) -> Self {
        Self { blocks, space, root, granted: Cell::new(0) }
    }

    /// Returns the newest [grant](plexus_cache::grants) of the leaves that were changed through
    /// this.
    pub(crate) fn granted(&self) -> u64 {
        self.granted.get()
    }

    /// Returns the number of the tree.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn number(&self) -> Result<u64, StoreError> {
        let page = self.blocks.read(self.root).await?;
        Node::of(&page).map(|node| node.tree()).map_err(damaged(self.root))
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let (mut block, mut number) = (self.root, None);
        for _ in 0..self.most_steps() {
            let page = self.blocks.read(block).await?;
            let mut step = || {
                let node = node_of(&page, &mut number)?;
                if let Some(next) = next_page(node, key, 0)? {
                    return Ok(Err(next));
                }
                let found = node.find(key)?.ok().map(|index| node.entry(index)).transpose()?;
                Ok(Ok(found.map(|(_, value)| value.to_vec())))
            };
            match step().map_err(damaged(block))? {
                Ok(value) => return Ok(value),
                Err(next) => {
                    drop(page);
                    block = next;
                }
            }
        }
        Err(StoreError::Damaged { block, what: "a circle of pages" })
    }

    /// Changes the entry of a key. `act` looks at the value under the latch of its page, where no
    /// other task can change it, and decides. It may be called more than once; the last call
    /// counts. Returns what it returned, and the commit to wait for. That is the default, which is
    /// no wait, if nothing was changed: what `act` has seen may still be lost with another node.
    ///
    /// # Errors
    /// A block cannot be had or is damaged, or there is no room.
    pub async fn change<T>(
        &self,
        key: &[u8],
        mut act: impl FnMut(Option<&[u8]>) -> (EntryChange, T),
    ) -> Result<(T, Committed), StoreError> {
        let mut block = self.page_at(0, key).await?;
        loop {
            let changed = match self.change_in(block, key, &mut act).await {
                Err(StoreError::Cache(CacheError::NoFrame(_))) => {
                    self.wait_for_room().await?;
                    block = self.page_at(0, key).await?;
                    continue;
                }
                changed => changed?,
            };
            match changed {
                Changed::Done(result, committed) => return Ok((result, committed)),
                Changed::Divided(sibling) => {
                    if let Some(sibling) = sibling {
                        self.tell_parent(sibling).await?;
                    }
                    block = self.page_at(0, key).await?;
                }
                Changed::Right(sibling) => {
                    block = sibling.block;
                    self.tell_parent(sibling).await?;
                }
                Changed::Higher => block = self.page_at(0, key).await?,
            }
        }
    }

    /// Inserts entries with rising keys, as one change of one leaf: those at the begin that belong
    /// to it, find no entry of their key, and find room. Returns how many these are.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn insert_run(&self, entries: &[OwnedEntry]) -> Result<(usize, Committed), StoreError> {
        let Some((first, _)) = entries.first() else { return Ok((0, Committed::default())) };
        let block = self.page_at(0, first).await?;
        let mut page = self.blocks.change(block).await?;
        self.granted.set(page.granted().max(self.granted.get()));
        let most = most_bytes(page.len());
        let insert = |page: &mut B::Change<'a>| -> Result<usize, Malformed> {
            let node = Node::of(page)?;
            if node.level() > 0 {
                return Ok(0);
            }
            let high = node.high()?.map(<[u8]>::to_vec);
            let mut last: Option<&[u8]> = None;
            for (count, (key, value)) in entries.iter().enumerate() {
                let is_elsewhere = high.as_ref().is_some_and(|high| high <= key);
                if is_elsewhere || last >= Some(key) || key.len() + value.len() > most {
                    return Ok(count);
                }
                let mut edit = NodeEdit::of(page)?;
                match edit.node().find(key)? {
                    Err(index) if edit.insert(index, key, value)? => last = Some(key),
                    _ => return Ok(count),
                }
            }
            Ok(entries.len())
        };
        match insert(&mut page).map_err(damaged(block))? {
            0 => Ok((0, Committed::default())),
            count => Ok((count, self.blocks.commit(vec![page]))),
        }
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// As [`Tree::change`].
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<Committed, StoreError> {
        Ok(self.change(key, |_| (EntryChange::Set(value.to_vec()), ())).await?.1)
    }

    /// Removes a key. Returns whether there was one; if not, nothing was changed.
    ///
    /// # Errors
    /// As [`Tree::change`].
    pub async fn remove(&self, key: &[u8]) -> Result<(bool, Committed), StoreError> {
        self.change(key, |value| (EntryChange::Remove, value.is_some())).await
    }

    /// Returns entries from a place on: at most so many, from one page. The pages behind are asked
    /// for, so that they come while the caller works.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn scan(&self, from: &ScanPlace, most: usize) -> Result<ScannedEntries, StoreError> {
        let mut block = match from.page {
            Some(page) => page,
            None => self.page_at(0, &from.key).await?,
        };
        for _ in 0..self.most_steps() {
            let page = self.blocks.read_once(block).await?;
            let step = || {
                let node = Node::of(&page)?;
                if let Some(next) = next_page(node, &from.key, 0)? {
                    return Ok(Err(next));
                }
                let first = node.below(&from.key, false)?;
                let last = node.count().min(first + most);
                let owned = |index| node.entry(index).map(|(key, value)| (key.to_vec(), value.to_vec()));
                let entries = (first..last).map(owned).collect::<Result<Vec<_>, _>>()?;
                let next = if last < node.count() {
                    Some(ScanPlace { key: node.entry(last)?.0.to_vec(), page: Some(block) })
                } else {
                    node.high()?.map(|high| ScanPlace { key: high.to_vec(), page: node.right() })
                };
                Ok(Ok((ScannedEntries { entries, next }, node.right())))
            };
            match step().map_err(damaged(block))? {
                Ok((scanned, right)) => {
                    drop(page);
                    self.blocks.prefetch(right.as_slice(), plexus_cache::protocol::Mode::S);
                    return Ok(scanned);
                }
                Err(next) => {
                    drop(page);
                    block = next;
                }
            }
        }
        Err(StoreError::Damaged { block, what: "a circle of pages" })
    }

    /// Returns entries below a key, or the last ones: at most so many, from one page, the last
    /// first. `None` for the next key means that there are no others.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn scan_back(
        &self,
        below: Option<&[u8]>,
        most: usize,
    ) -> Result<(Vec<OwnedEntry>, Option<Vec<u8>>), StoreError> {
        let mut below = below.map(<[u8]>::to_vec);
        loop {
            let (page, low) = self.page_below(below.as_deref()).await?;
            let (block, page) = page;
            let step = || {
                let node = Node::of(&page)?;
                let last = match &below {
                    Some(key) => node.below(key, false)?,
                    None => node.count(),
                };
                let first = last.saturating_sub(most);
                let owned = |index| node.entry(index).map(|(key, value)| (key.to_vec(), value.to_vec()));
                let entries = (first..last).rev().map(owned).collect::<Result<Vec<_>, _>>()?;
                let more = if first > 0 { Some(node.entry(first)?.0.to_vec()) } else { None };
                Ok((entries, more))
            };
            let (entries, more) = step().map_err(damaged(block))?;
            // A page whose lowest possible key is empty is the first one.
            let next = more.or_else(|| (!low.is_empty()).then_some(low));
            let is_lower = |next: &Vec<u8>| below.as_ref().is_none_or(|below| next < below);
            if next.as_ref().is_some_and(|next| !is_lower(next)) {
                return Err(StoreError::Damaged { block, what: "its keys are not in order" });
            }
            if !entries.is_empty() || next.is_none() {
                return Ok((entries, next));
            }
            below = next;
        }
    }

    /// Returns a bound of the pages that a search looks at: each level once, and siblings.
    fn most_steps(&self) -> u64 {
        self.blocks.blocks().saturating_add(u64::from(MOST_LEVELS))
    }

    /// Returns a page at a level in which a key is, or which is on the left of that page.
    pub(crate) async fn page_at(&self, level: u8, key: &[u8]) -> Result<BlockId, StoreError> {
        let (mut block, mut number) = (self.root, None);
        for _ in 0..self.most_steps() {
            let page = self.blocks.read(block).await?;
            let next = node_of(&page, &mut number).and_then(|node| next_page(node, key, level));
            match next.map_err(damaged(block))? {
                None => return Ok(block),
                Some(next) => {
                    drop(page);
                    block = next;
                }
            }
        }
        Err(StoreError::Damaged { block, what: "a circle of pages" })
    }

    /// Returns the last leaf that may have keys below `below`, and the lowest key that it may have.
    async fn page_below(
        &self,
        below: Option<&[u8]>,
    ) -> Result<((BlockId, B::Read<'a>), Vec<u8>), StoreError> {
        let (mut block, mut low, mut number) = (self.root, Vec::new(), None);
        for _ in 0..self.most_steps() {
            let page = self.blocks.read(block).await?;
            let mut step = || {
                let node = node_of(&page, &mut number)?;
                let is_right = match (node.high()?, below) {
                    (Some(high), Some(below)) => high < below,
                    (high, None) => high.is_some(),
                    (None, _) => false,
                };
                if is_right {
                    let right = node.right().ok_or(Malformed("its right sibling is missing"))?;
                    return Ok(Some((right, node.high()?.unwrap_or_default().to_vec())));
                }
                if node.level() == 0 {
                    return Ok(None);
                }
                let before = match below {
                    Some(below) => node.below(below, false)?,
                    None => node.count(),
                };
                let index = before.saturating_sub(1);
                Ok(Some((node.child(index)?, node.entry(index)?.0.to_vec())))
            };
            match step().map_err(damaged(block))? {
                None => return Ok(((block, page), low)),
                Some((next, next_low)) => {
                    drop(page);
                    low = low.max(next_low);
                    block = next;
                }
            }
        }
        Err(StoreError::Damaged { block, what: "a circle of pages" })
    }

    /// Changes the entry of a key in a leaf, if it belongs there and there is room; else divides
    /// the leaf.
    async fn change_in<T>(
        &self,
        block: BlockId,
        key: &[u8],
        act: &mut impl FnMut(Option<&[u8]>) -> (EntryChange, T),
    ) -> Result<Changed<T>, StoreError> {
        let mut page = self.blocks.change(block).await?;
        self.granted.set(page.granted().max(self.granted.get()));
        let node = Node::of(&page).map_err(damaged(block))?;
        if node.level() > 0 {
            return Ok(Changed::Higher);
        }
        if let Some(sibling) = right_of(node, key).map_err(damaged(block))? {
            return Ok(Changed::Right(sibling));
        }
        let found = node.find(key).map_err(damaged(block))?;
        let old = found.ok().map(|index| node.entry(index)).transpose().map_err(damaged(block))?;
        let (change, result) = act(old.map(|(_, value)| value));
        if let (Ok(index), true) = (found, node.count() > 1 && page.waited())
            && self.space.is_contended(block, page.granted())
        {
            return Ok(Changed::Divided(self.divide(block, page, index).await?));
        }
        let most = most_bytes(page.len());
        let has_room = match (&change, found) {
            (EntryChange::Keep, _) | (EntryChange::Remove, Err(_)) => {
                return Ok(Changed::Done(result, Committed::default()));
            }
            (EntryChange::Set(value), _) if key.len() + value.len() > most => {
                return Err(StoreError::TooLong { bytes: key.len() + value.len(), most });
            }
            (EntryChange::Remove, Ok(index)) => {
                edit(block, &mut page, |node| node.remove(index)).map(|()| true)
            }
            (EntryChange::Set(value), Ok(index)) => edit(block, &mut page, |node| node.replace(index, value)),
            (EntryChange::Set(value), Err(index)) => {
                edit(block, &mut page, |node| node.insert(index, key, value))
            }
        };
        if has_room? {
            return Ok(Changed::Done(result, self.blocks.commit(vec![page])));
        }
        let place = match found {
            Ok(index) | Err(index) => index,
        };
        Ok(Changed::Divided(self.divide(block, page, place).await?))
    }

    /// Divides a full page. `place` is that of the entry for which room is made. Returns the new
    /// sibling, unless the page is the root.
    async fn divide(
        &self,
        block: BlockId,
        mut page: B::Change<'a>,
        place: usize,
    ) -> Result<Option<NewSibling>, StoreError> {
        let (level, number) =
            Node::of(&page).map(|node| (node.level(), node.tree())).map_err(damaged(block))?;
        if level >= MOST_LEVELS {
            return Err(StoreError::Damaged { block, what: "it has too many levels" });
        }
        // The page is latched meanwhile: a source of blocks must not wait for another task.
        let (free, mut right) = self.new_page().await?;
        if block != self.root {
            let separator = edit(block, &mut page, |node| node.split(place, free.block, &mut right))?;
            let committed = self.blocks.commit(vec![page, right]);
            self.space.used(free.block, committed);
            return Ok(Some(NewSibling { level: level + 1, separator, block: free.block }));
        }
        let (left_free, mut left) = match self.new_page().await {
            Ok(left) => left,
            Err(why) => {
                drop(right);
                self.space.give_back(free);
                return Err(why);
            }
        };
        let mut divide = || {
            NodeEdit::of(&mut page)?.copy_to(&mut left)?;
            let separator = NodeEdit::of(&mut left)?.split(place, free.block, &mut right)?;
            let mut root = NodeEdit::init(&mut page, number, level + 1, None, None)?;
            root.insert(0, &[], &left_free.block.0.to_le_bytes())?;
            root.insert(1, &separator, &free.block.0.to_le_bytes())
        };
        divide().map_err(damaged(block))?;
        let committed = self.blocks.commit(vec![page, left, right]);
        [free, left_free].into_iter().for_each(|free| self.space.used(free.block, committed));
        Ok(None)
    }

    async fn new_page(&self) -> Result<(FreeBlock, B::Change<'a>), StoreError> {
        let free = self.space.take().await?;
        match self.blocks.create(free.block, TREE_PAGE, free.last).await {
            Ok(page) => Ok((free, page)),
            Err(why) => {
                self.space.give_back(free);
                Err(why.into())
            }
        }
    }

    /// Waits until there is room for a new page in memory and in the redo stream. The task has no
    /// block meanwhile: room may come only when the block is written for which it needs the page.
    async fn wait_for_room(&self) -> Result<(), StoreError> {
        let (free, page) = self.new_page().await?;
        drop(page);
        self.space.give_back(free);
        Ok(())
    }

    /// Tells the parent of a page that it has a new sibling, if the parent does not know it.
    async fn tell_parent(&self, sibling: NewSibling) -> Result<(), StoreError> {
        let mut untold = vec![sibling];
        let mut steps = self.most_steps();
        while let Some(sibling) = untold.pop() {
            steps = steps
                .checked_sub(1)
                .ok_or(StoreError::Damaged { block: sibling.block, what: "no page can be its parent" })?;
            let NewSibling { level, separator, block: child } = &sibling;
            let block = self.page_at(*level, separator).await?;
            let mut page = self.blocks.change(block).await?;
            let node = Node::of(&page).map_err(damaged(block))?;
            if node.level() != *level {
                untold.push(sibling);
                continue;
            }
            if let Some(right) = right_of(node, separator).map_err(damaged(block))? {
                untold.extend([sibling, right]);
                continue;
            }
            let Err(index) = node.find(separator).map_err(damaged(block))? else { continue };
            let value = child.0.to_le_bytes();
            if edit(block, &mut page, |node| node.insert(index, separator, &value))? {
                // No other node must have a parent of a page that may still be lost with this one.
                self.blocks.commit_in_order(vec![page]);
            } else {
                match self.divide(block, page, index).await {
                    Err(StoreError::Cache(CacheError::NoFrame(_))) => {
                        self.wait_for_room().await?;
                        steps += 1;
                        untold.push(sibling);
                    }
                    divided => {
                        untold.push(sibling);
                        untold.extend(divided?);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns a page of the tree whose root was seen first.
fn node_of<'a>(page: &'a [u8], number: &mut Option<u64>) -> Result<Node<'a>, Malformed> {
    let node = Node::of(page)?;
    match *number.get_or_insert(node.tree()) == node.tree() {
        true => Ok(node),
        false => Err(Malformed("it is a page of another tree")),
    }
}

/// Returns the page to go to from a page in search of a key at a level: a child or the right
/// sibling; `None`: this is the page.
fn next_page(node: Node<'_>, key: &[u8], level: u8) -> Result<Option<BlockId>, Malformed> {
    if node.is_left_of(key)? {
        return node.right().map(Some).ok_or(Malformed("its right sibling is missing"));
    }
    if node.level() <= level {
        return Ok(None);
    }
    let before = node.below(key, true)?;
    node.child(before.checked_sub(1).ok_or(Malformed("no child is for low keys"))?).map(Some)
}

/// Returns the right sibling if a key belongs to it.
fn right_of(node: Node<'_>, key: &[u8]) -> Result<Option<NewSibling>, Malformed> {
    let Some(high) = node.high()?.filter(|high| *high <= key) else { return Ok(None) };
    let block = node.right().ok_or(Malformed("its right sibling is missing"))?;
    Ok(Some(NewSibling { level: node.level() + 1, separator: high.to_vec(), block }))
}

fn edit<C: BlockChange, T>(
    block: BlockId,
    page: &mut C,
    act: impl FnOnce(&mut NodeEdit<'_, C>) -> Result<T, Malformed>,
) -> Result<T, StoreError> {
    NodeEdit::of(page).and_then(|mut node| act(&mut node)).map_err(damaged(block))
}

fn damaged(block: BlockId) -> impl Fn(Malformed) -> StoreError {
    move |Malformed(what)| StoreError::Damaged { block, what }
}

#[cfg(test)]
mod tests;
