//! Visits of all leaves of a tree, and the removal of pages that are not needed.

use plexus_base::BlockId;
use plexus_cache::{Blocks, Committed, protocol::Mode};

use super::{
    EntryChange, MOST_LEVELS, ScanPlace, Sought, Step, Tree, damaged,
    page::{Malformed, Node, NodeEdit, PageBounds, bytes_for},
};
use crate::{StoreError, space::Space};

/// The attempts to have three pages at once.
const MERGE_ATTEMPTS: u32 = 3;

/// A leaf whose entries were looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VisitedLeaf {
    /// The lowest key that it may have.
    pub low: Vec<u8>,
    /// It has no entries now.
    pub is_empty: bool,
    /// The place of the next leaf; `None` at the end.
    pub next: Option<ScanPlace>,
    /// The change of entries.
    pub changed: Committed,
}

impl<B: Blocks, S: Space> Tree<'_, B, S> {
    /// Looks at all entries of the leaf at a place, and changes those that `act` changes, to values
    /// that are not longer. `act` may be called more than once for an entry; the last call counts.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn visit_leaf(
        &self,
        from: &ScanPlace,
        act: &mut impl FnMut(&[u8], &[u8]) -> EntryChange,
    ) -> Result<VisitedLeaf, StoreError> {
        let (mut block, mut restarts) = (self.begin(from).await?, 0);
        for _ in 0..self.most_steps() {
            let page = self.blocks.read_once(block).await?;
            let mut look = || {
                let node = Node::of(&page)?;
                let step = self.step(node, Some(0), Sought::At(&from.key), 0)?;
                if !matches!(step, Step::Here) {
                    return Ok(Err(step));
                }
                let mut has_changes = false;
                for index in 0..node.count() {
                    let (key, value) = node.entry(index)?;
                    has_changes |= act(key, value) != EntryChange::Keep;
                }
                Ok(Ok((has_changes, self.visited(node)?, node.right())))
            };
            let looked = look().map_err(damaged(block))?;
            drop(page);
            match looked {
                Ok((false, visited, right)) => {
                    self.blocks.prefetch(right.as_slice(), Mode::S);
                    return Ok(visited);
                }
                Ok((true, ..)) => {
                    if let Some(visited) = self.change_leaf(block, &from.key, act).await? {
                        return Ok(visited);
                    }
                }
                Err(step) => block = self.follow(step, block, &from.key, &mut restarts).await?,
            }
        }
        Err(StoreError::Damaged { block, what: "a circle of pages" })
    }

    fn visited(&self, node: Node<'_>) -> Result<VisitedLeaf, Malformed> {
        let (high, page, number) = (node.high()?, node.right(), self.number.get());
        Ok(VisitedLeaf {
            low: node.low()?.to_vec(),
            is_empty: node.count() == 0,
            next: high.map(|high| ScanPlace::at(high, page, number)),
            changed: Committed::default(),
        })
    }

    /// Changes the entries of a leaf, if it still is the one that has `key`.
    async fn change_leaf(
        &self,
        block: BlockId,
        key: &[u8],
        act: &mut impl FnMut(&[u8], &[u8]) -> EntryChange,
    ) -> Result<Option<VisitedLeaf>, StoreError> {
        let mut page = self.blocks.change(block).await?;
        let mut change = || {
            let node = Node::of(&page)?;
            if !matches!(self.step(node, Some(0), Sought::At(key), 0)?, Step::Here) {
                return Ok(None);
            }
            let mut edit = NodeEdit::of(&mut page)?;
            for index in (0..edit.node().count()).rev() {
                let (key, value) = edit.node().entry(index)?;
                match act(key, value) {
                    EntryChange::Keep => {}
                    EntryChange::Remove => edit.remove(index)?,
                    EntryChange::Set(value) => _ = edit.replace(index, &value)?,
                }
            }
            Ok(Some(self.visited(edit.node())?))
        };
        let visited = change().map_err(damaged(block))?;
        Ok(visited.map(|visited| VisitedLeaf { changed: self.blocks.commit(vec![page]), ..visited }))
    }

    /// Removes the page at a level that begins with this key, if it is a leaf without entries, or
    /// an inner page whose entries fit into its left sibling. Returns its block, which is free when
    /// the change is durable. Does nothing if another task uses the pages, or if its parent begins
    /// with it.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn merge(&self, level: u8, low: &[u8]) -> Result<Option<(BlockId, Committed)>, StoreError> {
        for _ in 0..MERGE_ATTEMPTS {
            let (parent, page) = self.page_for(Sought::At(low), level + 1).await?;
            let siblings = Node::of(&page).and_then(|node| siblings_in(node, level + 1, low));
            let Some((_, left, right)) = siblings.map_err(damaged(parent))? else { return Ok(None) };
            drop(page);
            // They come here, and are free for others again: a task waits for one page at a time.
            drop(self.blocks.change(left).await?);
            drop(self.blocks.change(right).await?);
            let mut page = self.blocks.change(parent).await?;
            let Some(mut left_page) = self.blocks.try_change(left).await? else { continue };
            let Some(mut right_page) = self.blocks.try_change(right).await? else { continue };
            let mut merge = || {
                let node = Node::of(&page)?;
                if !self.is_expected(node, Some(level + 1), Sought::At(low))? {
                    return Ok(None);
                }
                let index = match siblings_in(node, level + 1, low)? {
                    Some((index, one, other)) if (one, other) == (left, right) => index,
                    _ => return Ok(None),
                };
                let (one, other) = (Node::of(&left_page)?, Node::of(&right_page)?);
                let are_they = self.is_expected(one, Some(level), Sought::At(low))?
                    && self.is_expected(other, Some(level), Sought::At(low))?
                    && one.right() == Some(right)
                    && other.low()? == low;
                if !are_they {
                    return Ok(None);
                }
                let bounds = one.low()?.len() + other.high()?.map_or(0, <[u8]>::len);
                let room = match level {
                    0 if other.count() > 0 => return Ok(Some(false)),
                    0 => left_page.len(),
                    // A page that is divided soon would be no gain.
                    _ => left_page.len() / 2,
                };
                if bytes_for(one.used()? + other.used()?, bounds) > room {
                    return Ok(Some(false));
                }
                NodeEdit::of(&mut left_page)?.absorb(&mut right_page)?;
                NodeEdit::of(&mut page)?.remove(index)?;
                Ok(Some(true))
            };
            match merge().map_err(damaged(parent))? {
                Some(true) => {
                    let committed = self.blocks.commit_in_order(vec![page, left_page, right_page]);
                    return Ok(Some((right, committed)));
                }
                Some(false) => return Ok(None),
                None => {}
            }
        }
        Ok(None)
    }

    /// Merges the inner pages that fit into their left siblings. Returns their blocks, as
    /// [`merge`](Self::merge). To be called after that has removed leaves.
    ///
    /// # Errors
    /// A block cannot be had or is damaged.
    pub async fn merge_inner(&self) -> Result<Vec<(BlockId, Committed)>, StoreError> {
        let mut removed = Vec::new();
        for level in 1..MOST_LEVELS {
            let mut key = Some(Vec::new());
            while let Some(low) = key {
                let (block, page) = self.page_for(Sought::At(&low), level).await?;
                let bounds = Node::of(&page).and_then(|node| {
                    let PageBounds { low, high, .. } = node.bounds()?;
                    Ok((node.level(), low.to_vec(), high.map(<[u8]>::to_vec)))
                });
                let (found, low, high) = bounds.map_err(damaged(block))?;
                drop(page);
                if found < level {
                    return Ok(removed);
                }
                removed.extend(self.merge(level, &low).await?);
                key = high;
            }
        }
        Ok(removed)
    }
}

/// Returns the place of the page that begins with `low` in its parent at a level, its left sibling
/// and itself. `None`: this is no parent of both.
fn siblings_in(
    node: Node<'_>,
    level: u8,
    low: &[u8],
) -> Result<Option<(usize, BlockId, BlockId)>, Malformed> {
    match node.find(low)? {
        Ok(index) if index > 0 && node.level() == level => {
            Ok(Some((index, node.child(index - 1)?, node.child(index)?)))
        }
        _ => Ok(None),
    }
}
