//! Tasks that use a tree of the store, and what is known of it.
//!
//! Each task has keys of its own, in pages that it shares with the others. So it knows which values
//! a key may have: the last one that was acknowledged, or one that was tried since.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    rc::Rc,
};

use plexus_base::BlockId;
use plexus_cache::{BlockRead, Blocks, CacheError, Committed};
use plexus_disks::Version;
use plexus_sim::Random;
use plexus_store::{
    StoreError,
    space::{FreeBlock, Space},
    tree::{EntryChange, OwnedEntry, ScanPlace, Tree},
};

use super::tasks::{SimBlocks, within};

/// The block of the root.
pub(crate) const ROOT: BlockId = BlockId(0);

/// The keys of each task: the first ones lie between those of other tasks, the others together.
const KEYS: u64 = 30;
const SHARED_KEYS: u64 = 14;

/// The number of changes of entries of which one finds its leaf contended.
const CONTENDED_EVERY: u64 = 40;

/// The values that a key may have, from the last acknowledged one on; `None`: it is not there.
type Values = Vec<Option<Vec<u8>>>;

/// The tree, as its tasks know it.
#[derive(Default)]
pub(crate) struct TreeTruth {
    /// True when the tree is durable.
    is_made: Cell<bool>,
    is_making: Cell<bool>,
    /// The first block that was never used, after the root, and those that were given back.
    unused: Cell<u64>,
    free: RefCell<Vec<FreeBlock>>,
    /// The changes of entries, some of which find their leaf contended.
    changes: Cell<u64>,
    /// The values that each key may have.
    values: RefCell<BTreeMap<Vec<u8>, Values>>,
    /// The pages of the tree at the end, and those that their parents did not know at any check.
    pub(crate) pages: Cell<u64>,
    pub(crate) untold: Cell<u64>,
    /// The pages that were removed.
    pub(crate) removed: Cell<u64>,
}

impl TreeTruth {
    pub(crate) fn is_made(&self) -> bool {
        self.is_made.get()
    }

    /// Checks the entries of the tree.
    ///
    /// # Errors
    /// A key has a value that it cannot have.
    pub(crate) fn check(&self, entries: &[OwnedEntry]) -> Result<(), String> {
        let found: BTreeMap<_, _> = entries.iter().map(|(key, value)| (key, value)).collect();
        let values = self.values.borrow();
        if let Some(foreign) = found.keys().find(|key| !values.contains_key(**key)) {
            return Err(format!("the key {foreign:?} was never set"));
        }
        for (key, may) in &*values {
            let value = found.get(key).map(|value| (*value).clone());
            if !may.contains(&value) {
                return Err(format!("the key {key:?} is {value:?}, which is none of {may:?}"));
            }
        }
        Ok(())
    }

    fn may_be(&self, key: &[u8], value: &Option<Vec<u8>>) -> bool {
        match self.values.borrow().get(key) {
            Some(may) => may.contains(value),
            None => value.is_none(),
        }
    }

    fn tries(&self, key: &[u8], value: Option<Vec<u8>>) {
        self.values.borrow_mut().entry(key.to_vec()).or_insert_with(|| vec![None]).push(value);
    }

    /// Notes that a value is durable, with all that were tried before.
    fn is_durable(&self, key: &[u8], value: &Option<Vec<u8>>) {
        let mut values = self.values.borrow_mut();
        let may = values.get_mut(key).expect("a key that was tried");
        let last = may.iter().rposition(|one| one == value).expect("a value that was tried");
        may.drain(..last);
    }
}

/// Returns a key of a task.
fn key_of(number: u64, task: usize) -> Vec<u8> {
    match number < SHARED_KEYS {
        true => vec![0, number as u8, task as u8],
        false => vec![1, task as u8, number as u8],
    }
}

/// Returns the task that has a key.
fn owner(key: &[u8]) -> usize {
    usize::from(if key[0] == 0 { key[2] } else { key[1] })
}

/// The blocks that no page has, for a task.
struct TreeSpace<'a> {
    truth: &'a TreeTruth,
    blocks: u64,
}

impl Space for TreeSpace<'_> {
    async fn take(&self) -> Result<FreeBlock, StoreError> {
        if let Some(free) = self.truth.free.borrow_mut().pop() {
            return Ok(free);
        }
        let block = self.truth.unused.get() + 1;
        if block >= self.blocks {
            return Err(StoreError::Full);
        }
        self.truth.unused.set(block);
        Ok(FreeBlock { block: BlockId(block), last: Version(0) })
    }

    fn give_back(&self, block: FreeBlock) {
        self.truth.free.borrow_mut().push(block);
    }

    fn is_contended(&self, _: BlockId, _: u64) -> bool {
        self.truth.changes.set(self.truth.changes.get() + 1);
        self.truth.changes.get().is_multiple_of(CONTENDED_EVERY)
    }
}

/// Forgets that the tree is being made, when the task that makes it ends.
struct Making<'a>(&'a TreeTruth);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.0.is_making.set(false);
    }
}

/// The work of a task until the run is over, or its node ends.
pub(super) async fn work(blocks: SimBlocks, mut random: Random, truth: Rc<TreeTruth>, task: usize) {
    let (blocks, truth) = (&blocks, &*truth);
    let space = &TreeSpace { truth, blocks: blocks.blocks() };
    while !blocks.is_over() {
        // A root that is given up could be taken away from the next task that makes it.
        let may_end = truth.is_made() && random.percent(20);
        let timeout_ns = may_end.then(|| random.below(40_000));
        let operation = operation(blocks, space, &mut random, truth, task);
        let result = match timeout_ns {
            Some(ns) => within(blocks, ns, operation).await,
            None => Some(operation.await),
        };
        match result {
            Some(Err(StoreError::Cache(CacheError::ShuttingDown))) => return,
            Some(Err(why @ (StoreError::Damaged { .. } | StoreError::TooLong { .. }))) => panic!("{why}"),
            _ => {}
        }
        blocks.rest(random.below(2_000)).await;
    }
}

async fn operation(
    blocks: &SimBlocks,
    space: &TreeSpace<'_>,
    random: &mut Random,
    truth: &TreeTruth,
    task: usize,
) -> Result<(), StoreError> {
    if !truth.is_made() {
        if truth.is_making.replace(true) {
            blocks.rest(10_000).await;
            return Ok(());
        }
        let _making = Making(truth);
        let root = FreeBlock { block: ROOT, last: Version(0) };
        let (_, committed) = Tree::create(blocks, space, root, 7).await?;
        blocks.durable(committed).await?;
        truth.is_made.set(true);
        return Ok(());
    }
    blocks.begin();
    let tree = Tree::open(blocks, space, ROOT);
    let key = key_of(random.below(KEYS), task);
    match random.below(11) {
        10 => remove_some(blocks, &tree, truth, task).await?,
        0 => {
            let value = tree.get(&key).await?;
            assert!(truth.may_be(&key, &value), "{key:?} is {value:?}");
        }
        1 => {
            let (mut last, mut place) = (None, Some(ScanPlace::from(&key)));
            while let Some(at) = place {
                let scanned = tree.scan(&at, random.between(1, 8) as usize).await?;
                for (key, value) in scanned.entries.iter() {
                    assert!(last.as_deref() < Some(key), "{key:?} after {last:?}");
                    let is_own = owner(key) == task;
                    assert!(!is_own || truth.may_be(key, &Some(value.to_vec())), "{key:?}");
                    last = Some(key.to_vec());
                }
                place = scanned.next;
            }
        }
        2 => {
            let mut keys = Vec::new();
            let take = &mut |key: &[u8], _: &[u8]| keys.push(key.to_vec());
            tree.scan_back(Some(&key), random.between(1, 8) as usize, take).await?;
            assert!(keys.is_sorted_by(|one, next| one > next), "{keys:?}");
        }
        chance => {
            let length = random.below(16) as usize;
            let value = (chance > 4).then(|| (0..length).map(|_| random.bits() as u8).collect::<Vec<_>>());
            truth.tries(&key, value.clone());
            let change = match &value {
                Some(value) => EntryChange::Set(value.clone()),
                None => EntryChange::Remove,
            };
            let (before, committed) =
                tree.change(&key, |old| (change.clone(), old.map(<[u8]>::to_vec))).await?;
            assert!(truth.may_be(&key, &before), "{key:?} was {before:?}");
            // A removal of nothing is based on one that may still be lost.
            if committed != Committed::default() && random.percent(60) {
                blocks.durable(committed).await?;
                truth.is_durable(&key, &value);
            }
        }
    }
    Ok(())
}

/// Removes the keys of a task that lie together, and then the pages that have no entries.
async fn remove_some(
    blocks: &SimBlocks,
    tree: &Tree<'_, SimBlocks, TreeSpace<'_>>,
    truth: &TreeTruth,
    task: usize,
) -> Result<(), StoreError> {
    for number in SHARED_KEYS..KEYS {
        let key = key_of(number, task);
        truth.tries(&key, None);
        let (before, _) = tree.change(&key, |old| (EntryChange::Remove, old.map(<[u8]>::to_vec))).await?;
        assert!(truth.may_be(&key, &before), "{key:?} was {before:?}");
    }
    let (mut place, mut removed) = (Some(ScanPlace::from(&[])), Vec::new());
    while let Some(at) = place {
        let leaf = tree.visit_leaf(&at, &mut |_, _| EntryChange::Keep).await?;
        if leaf.is_empty {
            removed.extend(tree.merge(0, &leaf.low).await?);
        }
        place = leaf.next;
    }
    removed.extend(tree.merge_inner().await?);
    for (block, committed) in removed {
        blocks.durable(committed).await?;
        let last = blocks.read(block).await?.version();
        truth.free.borrow_mut().push(FreeBlock { block, last });
        truth.removed.set(truth.removed.get() + 1);
    }
    Ok(())
}
