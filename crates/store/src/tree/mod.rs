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
//! A page without entries is removed: its left sibling gets its keys, and their parent forgets it,
//! in one group. Its block is free at once. So a task that follows an older pointer may find
//! anything there. It looks whether the page is of this tree, at the right level, and begins at or
//! below its key; if not, it begins again at the root.
//!
//! A task waits for one page at a time, besides new ones. It finds a page by reading, gives it
//! back, and waits for it again to change it. Meanwhile the page may have been divided: then the
//! key is to the right of it.

pub mod check;
mod clean;
mod entries;
pub(crate) mod page;
mod scan;

use std::cell::Cell;

use plexus_base::BlockId;
use plexus_cache::{BlockChange, Blocks, CacheError, Committed};
use plexus_disks::PageType;

use self::page::{Malformed, Node, NodeEdit, PageBounds, most_bytes, most_key_bytes};
pub use self::{
    clean::VisitedLeaf,
    entries::Entries,
    scan::{ScanPlace, ScannedEntries},
};
use crate::{
    StoreError,
    space::{FreeBlock, Space},
};

/// The type of the pages of trees.
pub const TREE_PAGE: PageType = PageType(1);

/// The most levels of a tree: a page has at least two children, and more would be a circle.
const MOST_LEVELS: u8 = 64;

/// The most searches for one page that find a page which was removed meanwhile.
const MOST_RESTARTS: u32 = 1000;

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

/// The aim of a search.
#[derive(Clone, Copy)]
enum Sought<'k> {
    /// The page that has this key.
    At(&'k [u8]),
    /// The last page that has keys below this one; `None`: the last page.
    Below(Option<&'k [u8]>),
}

/// The next step of a search.
enum Step {
    Here,
    To(BlockId, u8),
    /// This page was removed from its place.
    Again,
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
    /// The page is another one now: the root, which has got children meanwhile, or a page that was
    /// removed.
    Elsewhere,
}

/// A tree, as a task of a node uses it.
pub struct Tree<'a, B, S> {
    blocks: &'a B,
    space: &'a S,
    root: BlockId,
    /// Its number; 0 before the root was read.
    number: Cell<u64>,
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
        NodeEdit::init(&mut change, number, 0, PageBounds::default()).map_err(damaged(root.block))?;
        Ok(change)
    }

    /// Opens the tree with this root.
    pub fn open(blocks: &'a B, space: &'a S, root: BlockId) -> Self {
        Self { blocks, space, root, number: Cell::new(0), granted: Cell::new(0) }
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

    /// Returns the number of entries, about: that of a tree in which all pages of a level are like
    /// the one on the way to its middle.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn entries_about(&self) -> Result<u64, StoreError> {
        self.about(None).await.map(|(entries, _)| entries)
    }

    /// Returns the number of entries between two keys, about; without the second one, up to the
    /// end.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn entries_between_about(&self, from: &[u8], to: Option<&[u8]>) -> Result<f64, StoreError> {
        let (entries, before) = self.about(Some(from)).await?;
        let (others, end) = match to {
            Some(to) => self.about(Some(to)).await?,
            None => (entries, 1.0),
        };
        Ok((end - before).max(0.0) * (entries as f64 * others as f64).sqrt())
    }

    /// Returns the number of entries, and the share of them before a key, both about.
    async fn about(&self, key: Option<&[u8]>) -> Result<(u64, f64), StoreError> {
        let (mut block, mut entries, mut above) = (self.root, 1u64, None);
        let (mut before, mut share) = (0.0, 1.0);
        loop {
            let page = self.blocks.read(block).await?;
            let look = |node: Node<'_>| {
                let (count, place) = (node.count(), (node.tree(), node.level()));
                let at = match key {
                    None => count / 2,
                    Some(key) if place.1 > 0 => node.below(key, true)?.max(1) - 1,
                    Some(key) => node.below(key, false)?,
                };
                let child = if place.1 > 0 && count > 0 { Some(node.child(at)?) } else { None };
                Ok((count as u64, place, at, child))
            };
            let (count, place, at, child) = match (Node::of(&page).and_then(look), above) {
                (Ok(found), above) if above.is_none_or(|(tree, level)| found.1 == (tree, level - 1)) => found,
                (Err(why), None) => return Err(damaged(block)(why)),
                // The page was removed, and is another one by now.
                _ => return Ok((entries, before)),
            };
            if above.is_none() && count == 0 {
                return Ok((0, 0.0));
            }
            entries = entries.saturating_mul(count.max(1));
            before += share * at as f64 / count.max(1) as f64;
            share /= count.max(1) as f64;
            let Some(child) = child else { return Ok((entries, before)) };
            (block, above) = (child, Some(place));
        }
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let (block, page) = self.page_for(Sought::At(key), 0).await?;
        let find = || {
            let node = Node::of(&page)?;
            let found = node.find(key)?.ok().map(|index| node.entry(index)).transpose()?;
            Ok(found.map(|(_, value)| value.to_vec()))
        };
        find().map_err(damaged(block))
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
                Changed::Elsewhere => block = self.page_at(0, key).await?,
            }
        }
    }

    /// Inserts entries with rising keys, as one change of one leaf: those at the begin that belong
    /// to it, find no entry of their key, and find room. A value has `more` bytes more than the
    /// contents of its entry; `put` appends it. Returns how many these are.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn insert_run(
        &self,
        entries: &[OwnedEntry],
        more: usize,
        put: impl Fn(&mut Vec<u8>, &[u8]),
    ) -> Result<(usize, Committed), StoreError> {
        let Some((first, _)) = entries.first() else { return Ok((0, Committed::default())) };
        let block = self.page_at(0, first).await?;
        let mut page = self.blocks.change(block).await?;
        self.granted.set(page.granted().max(self.granted.get()));
        let (most, most_key) = (most_bytes(page.len()), most_key_bytes(page.len()));
        let is_short =
            |(key, contents): &OwnedEntry| key.len() <= most_key && key.len() + contents.len() + more <= most;
        let insert = |page: &mut B::Change<'a>| -> Result<usize, Malformed> {
            if !self.is_expected(Node::of(page)?, Some(0), Sought::At(first))? {
                return Ok(0);
            }
            let mut done = 0;
            while let Some((key, _)) = entries.get(done) {
                let node = Node::of(page)?;
                if node.high()?.is_some_and(|high| high <= &key[..]) {
                    break;
                }
                let Err(index) = node.find(key)? else { break };
                // Those up to the next entry, or to the end of the page.
                let end = match index < node.count() {
                    true => Some(node.entry(index)?.0),
                    false => node.high()?,
                };
                let rest = &entries[done..];
                let belongs = |at: &usize| {
                    let is_next = *at == 0 || rest[at - 1].0 < rest[*at].0;
                    is_next && end.is_none_or(|end| &rest[*at].0[..] < end) && is_short(&rest[*at])
                };
                let together = (0..rest.len()).take_while(belongs).count();
                let inserted = NodeEdit::of(page)?.insert_run(index, &rest[..together], more, &put)?;
                done += inserted;
                let is_rising = rest.get(together).is_some_and(|next| rest[together.max(1) - 1].0 < next.0);
                if inserted < together || together == 0 || !is_rising {
                    break;
                }
            }
            Ok(done)
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

    /// Returns a bound of the pages that a search looks at: each level once, and siblings.
    fn most_steps(&self) -> u64 {
        self.blocks.blocks().saturating_add(u64::from(MOST_LEVELS))
    }

    /// Returns the page at a level that has a key.
    pub(crate) async fn page_at(&self, level: u8, key: &[u8]) -> Result<BlockId, StoreError> {
        Ok(self.page_for(Sought::At(key), level).await?.0)
    }

    /// Returns the page at a level for which a search is, or the root if it is not so high.
    async fn page_for(&self, sought: Sought<'_>, level: u8) -> Result<(BlockId, B::Read<'a>), StoreError> {
        let (mut block, mut expected, mut restarts) = (self.root, None, 0);
        for _ in 0..self.most_steps() {
            let page = self.blocks.read(block).await?;
            let step = Node::of(&page).and_then(|node| self.step(node, expected, sought, level));
            match step.map_err(damaged(block))? {
                Step::Here => return Ok((block, page)),
                Step::To(next, at) => (block, expected) = (next, Some(at)),
                Step::Again if block == self.root || restarts > MOST_RESTARTS => {
                    return Err(StoreError::Damaged { block, what: "it is a page of another tree" });
                }
                Step::Again => (block, expected, restarts) = (self.root, None, restarts + 1),
            }
        }
        Err(StoreError::Damaged { block, what: "a circle of pages" })
    }

    /// Returns whether a page is one to which a search may lead: of this tree, at the level, and
    /// with no key that is too high. The first page is the root.
    fn is_expected(&self, node: Node<'_>, level: Option<u8>, sought: Sought<'_>) -> Result<bool, Malformed> {
        if self.number.get() == 0 {
            self.number.set(node.tree());
        }
        let low = node.low()?;
        let may_be = match sought {
            Sought::At(key) => low <= key,
            Sought::Below(Some(below)) => low.is_empty() || low < below,
            Sought::Below(None) => true,
        };
        let is_at = level.is_none_or(|level| node.level() == level);
        Ok(may_be && is_at && node.tree() == self.number.get() && node.tree() != 0)
    }

    /// Returns the next step of a search for a page at `level`, from a page that is expected to be
    /// at another one.
    fn step(
        &self,
        node: Node<'_>,
        expected: Option<u8>,
        sought: Sought<'_>,
        level: u8,
    ) -> Result<Step, Malformed> {
        if !self.is_expected(node, expected, sought)? {
            return Ok(Step::Again);
        }
        let is_right = match (node.high()?, sought) {
            (None, _) => false,
            (Some(high), Sought::At(key)) => high <= key,
            (Some(high), Sought::Below(Some(below))) => high < below,
            (Some(_), Sought::Below(None)) => true,
        };
        if is_right {
            let right = node.right().ok_or(Malformed("its right sibling is missing"))?;
            return Ok(Step::To(right, node.level()));
        }
        if node.level() <= level {
            return Ok(Step::Here);
        }
        let before = match sought {
            Sought::At(key) => node.below(key, true)?,
            Sought::Below(Some(below)) => node.below(below, false)?.max(1),
            Sought::Below(None) => node.count(),
        };
        let index = before.checked_sub(1).ok_or(Malformed("no child is for low keys"))?;
        Ok(Step::To(node.child(index)?, node.level() - 1))
    }

    /// Returns the right sibling of the last page at a level that has keys below this one.
    pub(crate) async fn right_of_page_below(
        &self,
        level: u8,
        key: &[u8],
    ) -> Result<Option<BlockId>, StoreError> {
        let (block, page) = self.page_for(Sought::Below(Some(key)), level).await?;
        Node::of(&page).map(|node| node.right()).map_err(damaged(block))
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
        if !self.is_expected(node, Some(0), Sought::At(key)).map_err(damaged(block))? {
            return Ok(Changed::Elsewhere);
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
        let (most, most_key) = (most_bytes(page.len()), most_key_bytes(page.len()));
        let has_room = match (&change, found) {
            (EntryChange::Keep, _) | (EntryChange::Remove, Err(_)) => {
                return Ok(Changed::Done(result, Committed::default()));
            }
            (EntryChange::Set(_), Err(_)) if key.len() > most_key => {
                return Err(StoreError::TooLong { bytes: key.len(), most: most_key });
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
            let mut root = NodeEdit::init(&mut page, number, level + 1, PageBounds::default())?;
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
            let expected = self.is_expected(node, Some(*level), Sought::At(separator));
            if !expected.map_err(damaged(block))? {
                untold.push(sibling);
                continue;
            }
            if let Some(right) = right_of(node, separator).map_err(damaged(block))? {
                untold.extend([sibling, right]);
                continue;
            }
            let Err(index) = node.find(separator).map_err(damaged(block))? else { continue };
            // It stays meanwhile: who removes it needs this parent. If others use it, one of them
            // tells the parent later.
            let Some(found) = self.blocks.try_change(*child).await? else { continue };
            let is_it = Node::of(&found).and_then(|node| {
                Ok(self.is_expected(node, Some(level - 1), Sought::At(separator))?
                    && node.low()? == separator)
            });
            drop(found);
            if !is_it.map_err(damaged(*child))? {
                continue;
            }
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
