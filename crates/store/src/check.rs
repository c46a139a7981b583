//! Checks a store while nodes use it: trees, versions of rows, and the owner of each block.
//!
//! A tree is read level by level from left to right, by keys. Pages that are divided meanwhile are
//! read before or after that. A page that was removed meanwhile is found again by the key at which
//! it began. A transaction of repeatable read keeps the trees that are dropped meanwhile.

use std::collections::{BTreeSet, HashMap, HashSet};

use plexus_base::BlockId;
use plexus_cache::{BlockRead, Blocks, CacheError};

use crate::{
    Isolation, Store, StoreError, Transaction,
    layout::{self, STATUS_PAGE, StatusBlock},
    space::{ExtentState, Space},
    store::Shared,
    transactions::rows,
    tree::{
        ScanPlace, Tree,
        page::{Malformed, Node},
    },
};

/// The most faults that a check reports.
const MOST_FAULTS: usize = 100;

/// The number of blocks between two calls of the progress.
const TELL_EVERY: u64 = 256;

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CheckedStore {
    /// The trees.
    pub trees: u64,
    /// Their pages.
    pub pages: u64,
    /// The entries of their leaves.
    pub entries: u64,
    /// The status blocks: a row may name their transactions.
    pub status_blocks: u64,
    /// The status blocks that are free again.
    pub freed_status_blocks: u64,
    /// The blocks that were read to find out whether they are free.
    pub examined: u64,
    /// The pages that only their left siblings know, which is no fault: a node has died, or is
    /// about to tell the parent.
    pub untold: u64,
    /// What is wrong: at most 100 lines.
    pub faults: Vec<String>,
}

/// A check that is under way.
struct Check<'a, B> {
    shared: &'a Shared<B>,
    found: CheckedStore,
    /// The pages of all trees, a bit for each block.
    pages: Vec<u64>,
    /// The status blocks that versions name.
    writers: HashSet<u32>,
    progress: &'a mut dyn FnMut(u64),
    read: u64,
}

impl<B: Blocks + Send + Sync + 'static> Store<B> {
    /// Checks the store while nodes use it. `by` is a new transaction of repeatable read, for which
    /// trees stay that are dropped meanwhile. `progress` gets the number of blocks read.
    ///
    /// # Errors
    /// A block cannot be had.
    ///
    /// # Panics
    /// If the transaction is not of repeatable read.
    pub async fn check(
        &self,
        by: &mut Transaction<B>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<CheckedStore, StoreError> {
        assert_eq!(by.isolation(), Isolation::RepeatableRead, "trees must stay");
        let shared = self.shared();
        let before = shared.stock.map().states(&shared.blocks, true).await?;
        let mut trees: Vec<(u64, BlockId)> =
            layout::FIRST_TREES.iter().map(|block| (block.0, *block)).collect();
        let mut place = Some(ScanPlace::from(&[]));
        while let Some(from) = place {
            let (rows, next) = by.scan(layout::TREES, &from).await?;
            for (number, root) in rows.iter() {
                let [number, root] = [number, root].map(|bytes| <[u8; 8]>::try_from(bytes).ok());
                let (Some(number), Some(root)) = (number, root) else {
                    return Err(StoreError::Damaged { block: layout::TREES, what: "an entry is malformed" });
                };
                trees.push((u64::from_be_bytes(number), BlockId(u64::from_le_bytes(root))));
            }
            place = next;
        }
        let mut check = Check {
            shared,
            found: CheckedStore::default(),
            pages: vec![0; shared.blocks.blocks().div_ceil(64) as usize],
            writers: HashSet::new(),
            progress,
            read: 0,
        };
        for (number, root) in &trees {
            check.tree(*number, *root).await?;
        }
        let status = check.status_blocks().await?;
        check.found.status_blocks = status.len() as u64;
        let first = layout::handed_out(&shared.blocks).await?.first_status;
        check.found.freed_status_blocks = u64::from(first - 1);
        for writer in check.writers.iter().filter(|writer| !status.contains_key(*writer)) {
            let what = format!("a row names transactions of the status block {writer}, which does not exist");
            check.found.faults.push(what);
        }
        let roots: HashMap<u64, BlockId> = trees.into_iter().collect();
        check.space(&before, &status, &roots).await?;
        check.found.faults.truncate(MOST_FAULTS);
        Ok(check.found)
    }
}

impl<B: Blocks> Check<'_, B> {
    fn fault(&mut self, block: BlockId, what: &str) {
        if self.found.faults.len() < MOST_FAULTS {
            self.found.faults.push(format!("{block}: {what}"));
        }
    }

    /// Notes a page that cannot be read, which belongs to its tree.
    fn unreadable(&mut self, block: BlockId, why: CacheError) -> Result<(), StoreError> {
        if !why.is_of_block() {
            return Err(why.into());
        }
        self.claim(block);
        self.found.faults.push(why.to_string());
        Ok(())
    }

    fn tell(&mut self) {
        self.read += 1;
        if self.read.is_multiple_of(TELL_EVERY) {
            (self.progress)(self.read);
        }
    }

    /// Notes that a tree has a page. Returns false if one has it already.
    fn claim(&mut self, block: BlockId) -> bool {
        let Some(word) = self.pages.get_mut((block.0 / 64) as usize) else { return false };
        let bit = 1 << (block.0 % 64);
        let is_new = *word & bit == 0;
        *word |= bit;
        is_new
    }

    fn has(&self, block: BlockId) -> bool {
        self.pages.get((block.0 / 64) as usize).is_some_and(|word| word >> (block.0 % 64) & 1 == 1)
    }

    /// Checks a tree, level by level.
    async fn tree(&mut self, number: u64, root: BlockId) -> Result<(), StoreError> {
        self.found.trees += 1;
        let has_rows = ![layout::HOMES, layout::STATUS].contains(&root);
        let tree = Tree::open(&self.shared.blocks, &self.shared.stock, root);
        let mut known = vec![(Vec::new(), root)];
        let mut level = None;
        while let Some((key, first)) = known.first() {
            let (mut block, mut low) = (*first, key.clone());
            let mut expected = std::mem::take(&mut known).into_iter().peekable();
            loop {
                self.tell();
                let page = match self.shared.blocks.read_once(block).await {
                    Ok(page) => page,
                    Err(why) => {
                        self.unreadable(block, why)?;
                        // The parent knows where the next page begins.
                        while expected.next_if(|(key, _)| *key <= low).is_some() {}
                        let Some((key, child)) = expected.peek() else { break };
                        (block, low) = (*child, key.clone());
                        continue;
                    }
                };
                let here = Here { number, level, low: &low, has_rows };
                let mut next = self.page(&page, here, &mut known);
                drop(page);
                if let (Err(_), Some(level)) = (&next, level) {
                    // It may have been removed since its sibling was read.
                    let again = found(tree.page_at(level, &low).await)?.filter(|again| *again != block);
                    if let Some(again) = again {
                        block = again;
                        let page = self.shared.blocks.read_once(block).await?;
                        if let Some(behind) = behind(&page, number, &low) {
                            // Its left sibling has got its keys, and was read before.
                            drop(page);
                            (block, low) = behind;
                            continue;
                        }
                        next = self.page(&page, here, &mut known);
                    }
                }
                let next = match next {
                    Ok(next) => next,
                    Err(Malformed(what)) => {
                        self.fault(block, what);
                        return Ok(());
                    }
                };
                level = Some(next.level);
                if self.claim(block) {
                    self.found.pages += 1;
                } else if found(tree.page_at(next.level, &low).await)? != Some(block) {
                    self.fault(block, "it is in two trees");
                    return Ok(());
                }
                while let Some((key, child)) = expected.next_if(|(key, _)| *key < low) {
                    self.missed(&tree, next.level, &key, child).await?;
                }
                match expected.next_if(|(key, _)| *key == low) {
                    Some((_, child)) if child == block => {}
                    Some((key, child)) => self.missed(&tree, next.level, &key, child).await?,
                    None => self.found.untold += 1,
                }
                match next.right {
                    Some((right, high)) => (block, low) = (right, high),
                    None => break,
                }
            }
            for (key, child) in expected {
                self.missed(&tree, level.unwrap_or_default(), &key, child).await?;
            }
            level = level.and_then(|level| level.checked_sub(1));
        }
        Ok(())
    }

    /// Notes a child to which no sibling has led, if it was not removed meanwhile.
    async fn missed(
        &mut self,
        tree: &Tree<'_, B, impl Space>,
        level: u8,
        key: &[u8],
        child: BlockId,
    ) -> Result<(), StoreError> {
        let is_there = found(tree.page_at(level, key).await)? == Some(child);
        if is_there && tree.right_of_page_below(level, key).await? != Some(child) {
            self.fault(child, "it is a child, but no sibling leads to it");
        }
        Ok(())
    }

    /// Checks a page by itself. Adds its children to `known`.
    fn page(
        &mut self,
        page: &[u8],
        here: Here<'_>,
        known: &mut Vec<(Vec<u8>, BlockId)>,
    ) -> Result<NextPage, Malformed> {
        let node = Node::of(page)?;
        let high = node.high()?.map(<[u8]>::to_vec);
        if node.tree() != here.number {
            return Err(Malformed("it is a page of another tree"));
        }
        if here.level.is_some_and(|level| level != node.level()) {
            return Err(Malformed("it is at another level than its siblings"));
        }
        if node.low()? != here.low {
            return Err(Malformed("its lowest key is not the one of its left sibling"));
        }
        let mut last: Option<&[u8]> = None;
        for index in 0..node.count() {
            let (key, value) = node.entry(index)?;
            let is_outside = key < here.low || high.as_ref().is_some_and(|high| key >= &high[..]);
            if is_outside || last.is_some_and(|last| key <= last) {
                return Err(Malformed("its keys are not in order"));
            }
            last = Some(key);
            if node.level() > 0 {
                known.push((key.to_vec(), node.child(index)?));
                continue;
            }
            self.found.entries += 1;
            if here.has_rows {
                let writers = rows::writers(value).map_err(|_| Malformed("a row is malformed"))?;
                self.writers.extend(writers.into_iter().map(|id| id.status_block()));
            }
        }
        if node.level() > 0 && (node.count() == 0 || node.entry(0)?.0 != here.low) {
            return Err(Malformed("no child is for its lowest keys"));
        }
        match (node.right(), high) {
            (Some(right), Some(high)) => Ok(NextPage { level: node.level(), right: Some((right, high)) }),
            (None, None) => Ok(NextPage { level: node.level(), right: None }),
            _ => Err(Malformed("a sibling and a high key belong together")),
        }
    }

    /// Returns all status blocks.
    async fn status_blocks(&self) -> Result<HashMap<u32, BlockId>, StoreError> {
        let tree = Tree::open(&self.shared.blocks, &self.shared.stock, layout::STATUS);
        let (mut status, mut place) = (HashMap::new(), Some(ScanPlace::from(&[])));
        while let Some(from) = place {
            let scanned = tree.scan(&from, 256).await?;
            for (key, value) in scanned.entries.iter() {
                let number = key.try_into().map(u32::from_be_bytes);
                let malformed =
                    |_| StoreError::Damaged { block: layout::STATUS, what: "an entry is malformed" };
                status.insert(number.map_err(malformed)?, StatusBlock::decode(value)?.block);
            }
            place = scanned.next;
        }
        Ok(status)
    }

    /// Checks that each block of the extents that no node has is in a tree, is a status block, or
    /// is free. Those of the other extents are in use now.
    async fn space(
        &mut self,
        before: &[ExtentState],
        status: &HashMap<u32, BlockId>,
        roots: &HashMap<u64, BlockId>,
    ) -> Result<(), StoreError> {
        let map = self.shared.stock.map();
        let status: BTreeSet<BlockId> = status.values().copied().collect();
        let known = self.shared.known_trees().await?;
        let mut lost = Vec::new();
        for (extent, _) in (0..).zip(before).filter(|(_, state)| **state == ExtentState::Released) {
            for block in map.blocks(extent).map(BlockId) {
                let is_page = self.has(block);
                if is_page && !status.contains(&block) {
                    continue;
                }
                self.tell();
                self.found.examined += 1;
                let page = match self.shared.blocks.read_once(block).await {
                    Ok(page) => page,
                    Err(why) => {
                        self.unreadable(block, why)?;
                        continue;
                    }
                };
                let is_status = page.page_type() == Some(STATUS_PAGE);
                let is_known = is_page || is_status && status.contains(&block);
                if is_page && is_status {
                    self.fault(block, "it is a status block and in a tree");
                } else if !(is_known || known.in_use.is_free(&page)) {
                    let node = Node::of(&page).ok();
                    let key = node.and_then(|node| Some((node.tree(), node.level(), node.entry(0).ok()?.0)));
                    lost.push((extent, block, key.map(|(tree, level, key)| (tree, level, key.to_vec()))));
                }
            }
        }
        // A page that was made since is in an extent that a node had meanwhile, or is found now.
        let after = map.states(&self.shared.blocks, true).await?;
        for (extent, block, key) in lost {
            if after.get(extent as usize) != Some(&ExtentState::Released) {
                continue;
            }
            if let Some((number, level, key)) = key {
                match roots.get(&number) {
                    Some(root) => {
                        let tree = Tree::open(&self.shared.blocks, &self.shared.stock, *root);
                        // Behind a page that cannot be read it may be in its tree.
                        if found(tree.page_at(level, &key).await)?.is_none_or(|found| found == block) {
                            continue;
                        }
                    }
                    // It was made behind the begin of this check.
                    None if known.in_use.trees.contains(&number) => continue,
                    None => {}
                }
            }
            self.fault(block, "it is not free, and no tree has it");
        }
        Ok(())
    }
}

/// Returns a page that was searched for.
fn found(searched: Result<BlockId, StoreError>) -> Result<Option<BlockId>, StoreError> {
    match searched {
        Ok(block) => Ok(Some(block)),
        Err(StoreError::Damaged { .. }) => Ok(None),
        Err(StoreError::Cache(why)) if why.is_of_block() => Ok(None),
        Err(why) => Err(why),
    }
}

/// Returns the page behind one of a tree that begins below a key, and the key at which that begins.
fn behind(page: &[u8], number: u64, key: &[u8]) -> Option<(BlockId, Vec<u8>)> {
    let node = Node::of(page).ok().filter(|node| node.tree() == number)?;
    let bounds = node.bounds().ok().filter(|bounds| bounds.low < key)?;
    Some((bounds.right?, bounds.high?.to_vec()))
}

/// The place of a page in the tree that is checked.
#[derive(Clone, Copy)]
struct Here<'a> {
    number: u64,
    level: Option<u8>,
    low: &'a [u8],
    /// The entries of its leaves are rows.
    has_rows: bool,
}

/// The page behind a page, with its lowest key.
struct NextPage {
    level: u8,
    right: Option<(BlockId, Vec<u8>)>,
}
