//! Cleaning: what transactions leave behind goes.
//!
//! A change of a row also removes its older versions. Nothing else changes a row that was removed
//! or rolled back, so a node visits the leaves of a tree when it has removed many rows of it. It
//! stamps finished versions, removes rows that no snapshot shows, and removes leaves that have no
//! rows any more.
//!
//! **Status blocks are free again** when no row names a transaction of them. The member with the
//! lowest number sees to this when there are many:
//!
//! 1. It begins a *round*, a number in the first block of the store. Each member answers in its
//!    row: its transactions of status blocks below this one are at their end.
//! 2. It visits all leaves of all trees. Then no row names a transaction of a block below the
//!    lowest answer.
//! 3. That a row has no such version may be the change of another node, which is not durable. So it
//!    begins another round: who answers has made durable all that it changed before.
//! 4. It removes the entries of these blocks, and then says which is the first that is needed.
//!
//! If the view changes meanwhile, it begins again: a node that is gone may have taken changes with
//! it. A reader may have a copy of a row from before. So the first slot of a status block has its
//! number, and a reader who does not find it reads the row again.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use plexus_base::{BlockId, Epoch};
use plexus_cache::{Blocks, Committed};
use plexus_interconnect::executor;

use crate::{
    Store, StoreError, layout,
    space::Owner,
    store::{Shared, malformed},
    transactions::{
        Number,
        rows::{self, Unknown},
    },
    tree::{EntryChange, ScanPlace, Tree},
};

/// The time between two looks for work.
const INTERVAL: Duration = Duration::from_secs(1);

/// The time between two looks for the answers of a round.
const LOOK: Duration = Duration::from_millis(100);

/// The time between two looks for answers that members give at once.
const ANSWER: Duration = Duration::from_millis(2);

/// The wait behind a cleaning that has not achieved what it should.
const PAUSE: Duration = Duration::from_secs(30);

/// The removed rows of a tree for which it is visited, and those for each of its leaves.
const REMOVED_ROWS: u64 = 1000;
const REMOVED_PER_LEAF: u64 = 8;

/// The most visits of one leaf to find out how its transactions have ended.
const MOST_VISITS: u32 = 10_000;

/// The part of all blocks that may be status blocks of which no row needs to know.
const STATUS_PART: u64 = 64;

/// The work after which a visit of leaves rests, and how long: cleaning takes a fifth of a thread.
const WORK: Duration = Duration::from_micros(500);
const REST: Duration = Duration::from_millis(2);

/// The rows of a tree that a transaction has changed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) changed: u64,
    pub(crate) removed: u64,
}

/// A tree of which this node has removed rows.
#[derive(Default)]
struct Dirty {
    removed: u64,
    /// The leaves at the last visit.
    leaves: u64,
    /// The last visit left rows that a snapshot may show.
    next: Option<Instant>,
}

/// The cleaning of a node.
pub(crate) struct Cleaning {
    dirty: Mutex<HashMap<BlockId, Dirty>>,
    /// The number of status blocks for which all rows are visited.
    status_blocks: u32,
    /// The time before which this is not tried again.
    next: Mutex<Option<Instant>>,
}

/// The result of a visit of all leaves of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct CleanedTree {
    leaves: u64,
    removed_leaves: u64,
    /// About so many removed rows stay, which a snapshot or a transaction may need.
    kept_rows: u64,
}

/// Lets other tasks run now and then.
struct Pace(Instant);

impl Pace {
    async fn rest(&mut self) {
        if self.0.elapsed() >= WORK {
            executor::sleep(REST).await;
            self.0 = Instant::now();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_over(time: Option<Instant>) -> bool {
    time.is_none_or(|time| time <= Instant::now())
}

impl Cleaning {
    /// Makes the state of a node. `transactions` is the number of transactions after which rows are
    /// cleaned of them; without it, as many as a sixty-fourth of `blocks` blocks has slots.
    pub(crate) fn new(transactions: Option<u64>, blocks: u64, slots: u64) -> Self {
        let all = transactions.map_or(blocks / STATUS_PART, |transactions| transactions / slots);
        let status_blocks = all.clamp(4, u64::from(u32::MAX / 2)) as u32;
        Self { dirty: Mutex::default(), status_blocks, next: Mutex::default() }
    }

    /// Notes what a transaction has left in trees.
    pub(crate) fn note(&self, tallies: &[(BlockId, Tally)], is_committed: bool) {
        let mut dirty = lock(&self.dirty);
        for (tree, Tally { changed, removed }) in tallies {
            let left = if is_committed { *removed } else { *changed };
            if left > 0 {
                dirty.entry(*tree).or_default().removed += left;
            }
        }
    }

    /// Returns whether trees were dropped since the last call.
    fn take_dropped(&self) -> bool {
        lock(&self.dirty).remove(&layout::TREES).is_some()
    }

    /// Takes a tree that is to be visited.
    fn take(&self) -> Option<BlockId> {
        let is_due = |dirty: &Dirty| {
            dirty.removed >= REMOVED_ROWS.max(dirty.leaves * REMOVED_PER_LEAF) && is_over(dirty.next)
        };
        let mut dirty = lock(&self.dirty);
        let due = dirty.iter_mut().filter(|(_, dirty)| is_due(dirty));
        let (tree, dirty) = due.max_by_key(|(_, dirty)| dirty.removed)?;
        dirty.removed = 0;
        Some(*tree)
    }
}

/// A snapshot that is registered until this is dropped.
struct HeldSnapshot<'a, B> {
    shared: &'a Shared<B>,
    number: Number,
}

impl<B> Drop for HeldSnapshot<'_, B> {
    fn drop(&mut self) {
        self.shared.board.act(|core| core.release(self.number));
    }
}

impl<B: Blocks + Send + Sync + 'static> Store<B> {
    /// Answers the rounds of other nodes, for ever.
    pub async fn answer_rounds(&self) {
        let answer = async || self.shared().answer_round().await;
        always("rounds of cleaning are not answered now", answer).await;
    }

    /// Cleans what is due, for ever.
    pub async fn clean_when_due(&self) {
        let clean = async || self.shared().clean_what_is_due().await;
        always("rows are not cleaned now", clean).await;
    }

    /// Visits all leaves of trees: rows and leaves go that no snapshot shows.
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn clean(&self, trees: &[BlockId]) -> Result<(), StoreError> {
        let shared = self.shared();
        let (snapshot, shown) = shared.settled_trees().await?;
        let shown = shown.unwrap_or_default();
        for tree in trees.iter().filter(|tree| shown.contains(tree)) {
            shared.clean_with(*tree, snapshot.number, 0).await?;
        }
        Ok(())
    }
}

/// Acts once in each interval, until the node ends.
async fn always(failed: &str, act: impl AsyncFn() -> Result<(), StoreError>) {
    loop {
        executor::sleep(INTERVAL).await;
        match act().await {
            Err(StoreError::Cache(plexus_cache::CacheError::ShuttingDown)) => return,
            Err(why) => {
                tracing::warn!("{failed}: {why}");
                executor::sleep(PAUSE).await;
            }
            Ok(()) => {}
        }
    }
}

impl<B: Blocks> Shared<B> {
    async fn answer_round(&self) -> Result<(), StoreError> {
        let handed_out = layout::handed_out(&self.blocks).await?;
        self.answer(handed_out.round).await?;
        self.forget_status_blocks(handed_out.first_status);
        Ok(())
    }

    async fn clean_what_is_due(&self) -> Result<(), StoreError> {
        if self.cleaning.take_dropped() {
            let gone = self.known_trees().await?.gone;
            self.remove_pieces(&gone).await?;
        }
        if let Some(tree) = self.cleaning.take() {
            let cleaned = self.clean_tree(tree).await?;
            let mut dirty = lock(&self.cleaning.dirty);
            match cleaned {
                Some(CleanedTree { leaves, kept_rows, .. }) => {
                    let dirty = dirty.entry(tree).or_default();
                    dirty.removed += kept_rows;
                    dirty.leaves = leaves;
                    dirty.next = (kept_rows > 0).then(|| Instant::now() + PAUSE);
                }
                None => drop(dirty.remove(&tree)),
            }
        }
        let handed_out = layout::handed_out(&self.blocks).await?;
        let used = handed_out.next_status - handed_out.first_status;
        let is_due = used >= self.cleaning.status_blocks && is_over(*lock(&self.cleaning.next));
        if is_due && self.board.look(|core| core.is_first()) {
            let freed = self.free_status_blocks().await?;
            let is_done = freed >= self.cleaning.status_blocks / 2;
            *lock(&self.cleaning.next) = (!is_done).then(|| Instant::now() + PAUSE);
        }
        Ok(())
    }

    /// Cleans all rows of transactions that are long at their end, and gives their status blocks
    /// free. Returns how many these are.
    async fn free_status_blocks(&self) -> Result<u32, StoreError> {
        let epoch = self.board.look(|core| core.epoch());
        let Some((before, answers)) = self.round(epoch).await? else { return Ok(0) };
        let first = answers.into_iter().fold(before.next_status, u32::min);
        let count = first.saturating_sub(before.first_status);
        if count < self.cleaning.status_blocks / 2 {
            tracing::debug!("an old transaction needs status block {first}");
            return Ok(0);
        }
        let (snapshot, trees) = self.settled_trees().await?;
        let Some(trees) = trees else { return Ok(0) };
        for tree in trees {
            if self.board.look(|core| core.epoch()) != epoch {
                return Ok(0);
            }
            self.clean_with(tree, snapshot.number, first).await?;
        }
        drop(snapshot);
        if self.round(epoch).await?.is_none() {
            return Ok(0);
        }
        let remove = |key: &[u8], _: &[u8], _: &mut Vec<Unknown>| match key < &first.to_be_bytes()[..] {
            true => EntryChange::Remove,
            false => EntryChange::Keep,
        };
        let (_, changed) = self.visit(layout::STATUS, remove).await?;
        self.blocks.durable(changed).await?;
        layout::hand_out(&self.blocks, |handed_out| {
            handed_out.first_status = first.max(handed_out.first_status);
            Ok(())
        })
        .await?;
        self.forget_status_blocks(first);
        tracing::debug!("no row names transactions of status blocks below {first}: {count} are free");
        Ok(count)
    }

    /// Begins a round and waits for the answers of all members. Returns what was handed out at its
    /// begin, and the oldest status block of each; `None` in another view.
    async fn round(&self, epoch: Epoch) -> Result<Option<(layout::HandedOut, Vec<u32>)>, StoreError> {
        let begun = layout::hand_out(&self.blocks, |handed_out| {
            handed_out.round += 1;
            Ok(*handed_out)
        })
        .await?;
        self.answer(begun.round).await?;
        loop {
            let homes = layout::homes(&self.blocks, &self.stock).await?;
            if self.board.look(|core| core.epoch()) != epoch {
                return Ok(None);
            }
            let is_member =
                |(node, incarnation): Owner| self.board.look(|core| core.is_member(node, incarnation));
            let members: Vec<_> = homes.into_iter().filter(|(home, _)| is_member(*home)).collect();
            if members.iter().all(|(_, row)| row.round >= begun.round) {
                return Ok(Some((begun, members.into_iter().map(|(_, row)| row.oldest).collect())));
            }
            executor::sleep(LOOK).await;
        }
    }

    /// Takes a snapshot, and returns the roots of the trees with rows that it shows: they stay
    /// while it is held. `None`: older snapshots show other trees, too.
    async fn settled_trees(&self) -> Result<(HeldSnapshot<'_, B>, Option<Vec<BlockId>>), StoreError> {
        let number = self.board.act(|core| core.snapshot());
        let held = HeldSnapshot { shared: self, number };
        // The other nodes tell which snapshots they have. A node that is gone is not waited for,
        // and one that comes is asked, too.
        loop {
            let (epoch, asked) = self.board.act(|core| (core.epoch(), core.next_round()));
            while !self.board.look(|core| core.is_answered(asked)) {
                executor::sleep(ANSWER).await;
            }
            if self.board.look(|core| core.epoch()) == epoch {
                break;
            }
        }
        let mut trees = vec![layout::CATALOG, layout::TREES, layout::LONG];
        for (tree, value) in self.tree_rows().await? {
            let shown = |value: &[u8]| {
                let version = rows::visible_version(value, None, number, |id, of| self.status(id, of))?;
                Ok(version.map(|version| rows::root_of(version.contents)))
            };
            match self.look_at(layout::TREES, &tree.to_be_bytes(), value.clone(), shown).await?.flatten() {
                Some(Some(root)) => trees.push(root),
                // A transaction that makes it has not ended, or it was dropped.
                None => {}
                Some(None) if self.is_gone(tree, value).await? => {}
                Some(None) => return Ok((held, None)),
            }
        }
        Ok((held, Some(trees)))
    }

    /// Visits the leaves of a tree with rows. Returns `None` if no transaction that begins now sees
    /// the tree.
    async fn clean_tree(&self, root: BlockId) -> Result<Option<CleanedTree>, StoreError> {
        let (snapshot, trees) = self.settled_trees().await?;
        match trees {
            // It is left for later.
            None => Ok(Some(CleanedTree { kept_rows: REMOVED_ROWS, ..CleanedTree::default() })),
            Some(trees) if trees.contains(&root) => self.clean_with(root, snapshot.number, 0).await.map(Some),
            Some(_) => Ok(None),
        }
    }

    /// Visits the leaves of a tree with rows, which this snapshot shows. Transactions of status
    /// blocks below `final_before` are finished.
    async fn clean_with(
        &self,
        root: BlockId,
        snapshot: Number,
        final_before: u32,
    ) -> Result<CleanedTree, StoreError> {
        // A row of a tree goes after the long contents of the tree.
        let horizon = self.board.look(|core| core.horizon());
        if root == layout::TREES {
            let gone = self.known_trees_at(horizon.lowest()).await?.gone;
            self.remove_pieces(&gone).await?;
        }
        let mut kept_rows = 0;
        let clean = |_: &[u8], value: &[u8], unknown: &mut Vec<Unknown>| {
            let status = |id, snapshot| self.status(id, snapshot);
            // What is malformed is left to those who read it.
            let change = rows::clean(value, &horizon, snapshot, final_before, status, unknown);
            kept_rows += u64::from(matches!(&change, Ok(EntryChange::Keep)) && rows::is_removed(value));
            change.unwrap_or(EntryChange::Keep)
        };
        let (cleaned, _) = self.visit(root, clean).await?;
        Ok(CleanedTree { kept_rows, ..cleaned })
    }

    /// Removes the long contents of trees that are gone, durably.
    pub(crate) async fn remove_pieces(&self, gone: &HashSet<u64>) -> Result<(), StoreError> {
        let tree = Tree::open(&self.blocks, &self.stock, layout::LONG);
        let mut changed = Committed::default();
        for number in gone {
            let prefix = number.to_be_bytes();
            let mut act = |key: &[u8], _: &[u8]| match key.starts_with(&prefix) {
                true => EntryChange::Remove,
                false => EntryChange::Keep,
            };
            let mut place = Some(ScanPlace::from(&prefix));
            while let Some(from) = place {
                let leaf = tree.visit_leaf(&from, &mut act).await?;
                changed = leaf.changed.max(changed);
                if leaf.is_empty {
                    tree.merge(0, &leaf.low).await?;
                }
                place = leaf.next.filter(|next| next.key().starts_with(&prefix));
            }
        }
        Ok(self.blocks.durable(changed).await?)
    }

    /// Visits the leaves of a tree, and removes those that are empty then.
    async fn visit(
        &self,
        root: BlockId,
        mut act: impl FnMut(&[u8], &[u8], &mut Vec<Unknown>) -> EntryChange,
    ) -> Result<(CleanedTree, Committed), StoreError> {
        let tree = Tree::open(&self.blocks, &self.stock, root);
        let (mut cleaned, mut changed) = (CleanedTree::default(), Committed::default());
        let (mut pace, mut unknown, mut visits) = (Pace(Instant::now()), Vec::new(), 0);
        let mut place = Some(ScanPlace::from(&[]));
        while let Some(from) = place {
            let leaf = tree.visit_leaf(&from, &mut |key, value| act(key, value, &mut unknown)).await?;
            changed = leaf.changed.max(changed);
            pace.rest().await;
            if !unknown.is_empty() {
                visits += 1;
                if visits > MOST_VISITS {
                    return Err(malformed(root));
                }
                for unknown in unknown.drain(..) {
                    // The row may be another one now: it is looked at again.
                    let _ = self.find_out(unknown, None).await?;
                }
                place = Some(from);
                continue;
            }
            visits = 0;
            cleaned.leaves += 1;
            if leaf.is_empty && tree.merge(0, &leaf.low).await?.is_some() {
                cleaned.removed_leaves += 1;
            }
            place = leaf.next;
        }
        if cleaned.removed_leaves > 0 {
            tree.merge_inner().await?;
        }
        Ok((cleaned, changed))
    }
}
