//! A client of the block workload: a task that reads and changes blocks as fast as it gets them.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use plexus_base::BlockId;
use plexus_cache::{BlockChange, Blocks, Cache, CacheError, Committed};

use super::{Durability, Order, Workload, counted};
use crate::{
    Responses, clock,
    stage::{MEASURING, OVER, Stage},
};

/// The results of one client.
#[derive(Default)]
pub(super) struct Done {
    /// The acknowledged changes, including the warm-up.
    pub(super) acknowledged: u64,
    /// The reads and changes during the measurement.
    pub(super) reads: u64,
    pub(super) changes: u64,
    /// The response times of operations that waited for a block, and the number of the others.
    pub(super) waits: Responses,
    pub(super) hits: u64,
    /// The response times of changes that waited until their redo was durable.
    pub(super) change_responses: Responses,
}

/// Random numbers by SplitMix64 (Steele et al. 2014): a few instructions, the same sequence for the
/// same seed.
struct Chance(u64);

impl Chance {
    #[inline]
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        BlockId(self.0).hash()
    }

    /// Returns a number below `end`.
    #[inline]
    fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }
}

/// The slot of a client among all clients of all nodes.
#[derive(Clone, Copy)]
pub(super) struct ClientSlot {
    pub(super) slot: usize,
    pub(super) of: usize,
}

/// The reason why a client cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ClientError {
    /// The node refuses it a block.
    #[error(transparent)]
    Node(#[from] CacheError),
    /// A block does not have the last change of its clients.
    #[error("{0}")]
    Wrong(String),
}

/// Works until the stage is over, and shows the number of acknowledged changes meanwhile. A failure
/// ends all clients of the node, as does the end of the node.
pub(super) async fn work(
    cache: &Cache,
    workload: &Workload,
    place: ClientSlot,
    stage: &Stage,
    acknowledged: &AtomicU64,
) -> Done {
    let mut done = Done::default();
    match Client::new(workload, place).work(cache, stage, &mut done, acknowledged).await {
        Ok(()) => {}
        // The node was told to end, and hands back its blocks.
        Err(ClientError::Node(_)) if cache.is_closed() => stage.end(),
        Err(error) => stage.fail(error.to_string()),
    }
    done
}

/// Reads the blocks of the workload's scan one after the other until the stage is over.
pub(super) async fn scan(cache: &Cache, workload: &Workload, stage: &Stage) {
    for block in (workload.hot..workload.hot + workload.scan).cycle().map(BlockId) {
        match cache.read_once(block).await {
            _ if stage.now() == OVER => return,
            Ok(page) => drop(page),
            Err(_) if cache.is_closed() => return stage.end(),
            Err(error) => return stage.fail(error.to_string()),
        }
    }
}

/// A client of the workload, with its choice of blocks.
pub(super) struct Client<'a> {
    workload: &'a Workload,
    slot: usize,
    chance: Chance,
    next: u64,
    /// The number of changes of each block by this client; `u64::MAX` before its first visit.
    mine: Vec<u64>,
    /// True if the client of this slot always changed whole groups.
    has_whole_groups: bool,
}

impl<'a> Client<'a> {
    /// Creates a client.
    pub(super) fn new(workload: &'a Workload, place: ClientSlot) -> Self {
        let seed = workload.seed.wrapping_mul(0x1_0000_0001).wrapping_add(place.slot as u64);
        Self {
            workload,
            slot: place.slot,
            chance: Chance(BlockId(seed).hash()),
            // Clients start apart, so that none follows another from the start.
            next: place.slot as u64 * workload.hot / place.of as u64,
            mine: vec![u64::MAX; workload.hot as usize],
            has_whole_groups: false,
        }
    }

    async fn work(
        &mut self,
        cache: &Cache,
        stage: &Stage,
        done: &mut Done,
        acknowledged: &AtomicU64,
    ) -> Result<(), ClientError> {
        let mut last = clock::now();
        loop {
            let now = stage.now();
            if now == OVER {
                return Ok(());
            }
            let block = BlockId(self.choose());
            let changes = self.chance.below(100) < u64::from(self.workload.writes_percent);
            let mut made = None;
            let waited;
            let made_blocks = if changes { u64::from(self.workload.group) } else { 0 };
            if changes {
                let committed;
                (committed, waited) = self.change(cache, block).await?;
                if self.workload.durability == Durability::Commit {
                    made = Some(clock::now());
                    cache.durable(committed).await?;
                }
                done.acknowledged += made_blocks;
                acknowledged.store(done.acknowledged, Relaxed);
            } else {
                waited = self.read(cache, block).await?;
            }
            let end = clock::now();
            // An operation that began before the stage and ended in it counts for neither.
            if now == MEASURING {
                done.changes += made_blocks;
                done.reads += u64::from(!changes);
                if changes && self.workload.durability == Durability::Commit {
                    done.change_responses.record(end.since(last).0);
                }
                if waited {
                    done.waits.record(made.unwrap_or(end).since(last).0);
                } else {
                    done.hits += 1;
                }
            }
            last = end;
            if self.workload.pause_us > 0 {
                thread::sleep(Duration::from_micros(self.workload.pause_us));
                last = clock::now();
            }
        }
    }

    /// Works until `told` returns false. It gets each durable change: the block, and the number of
    /// its changes by this client. All earlier clients of this slot had the same groups: half a
    /// group is an error.
    pub(super) async fn acknowledge(
        &mut self,
        cache: &Cache,
        told: &mut dyn FnMut(BlockId, u64) -> bool,
    ) -> Result<(), ClientError> {
        self.has_whole_groups = true;
        loop {
            let block = BlockId(self.choose());
            if self.chance.below(100) < u64::from(self.workload.writes_percent) {
                let (committed, _) = self.change(cache, block).await?;
                cache.durable(committed).await?;
                if !self.group_of(block).all(|block| told(block, self.mine[block.0 as usize])) {
                    return Ok(());
                }
            } else {
                self.read(cache, block).await?;
            }
        }
    }

    /// Reads a block, and returns whether it had to wait for it.
    #[inline]
    async fn read(&self, cache: &Cache, block: BlockId) -> Result<bool, ClientError> {
        let page = match self.workload.consistent_reads {
            false => cache.read(block).await,
            true => cache.read_consistent(block).await,
        }?;
        counted::total(&page).map(|_| page.waited()).ok_or_else(|| ClientError::Wrong(strange(block)))
    }

    #[inline]
    fn choose(&mut self) -> u64 {
        match self.workload.order {
            Order::Random => self.chance.below(self.workload.hot),
            Order::Round => {
                let block = self.next;
                self.next = if block + 1 == self.workload.hot { 0 } else { block + 1 };
                block
            }
        }
    }

    /// Returns the blocks that are changed together with a block.
    fn group_of(&self, block: BlockId) -> impl Iterator<Item = BlockId> + use<> {
        let (group, first) =
            (u64::from(self.workload.group), block.0 - block.0 % u64::from(self.workload.group));
        (first..first + group).map(BlockId)
    }

    /// Changes a block, or its group. Returns whether the client waited for a block.
    #[inline]
    async fn change(&mut self, cache: &Cache, block: BlockId) -> Result<(Committed, bool), ClientError> {
        if self.workload.group == 1 {
            let mut page = cache.change(block).await?;
            let counts = self.count(block, &page)?;
            counted::write(&mut page, counts);
            let waited = page.waited();
            return Ok((page.commit(), waited));
        }
        let blocks: Vec<BlockId> = self.group_of(block).collect();
        let mut pages = cache.change_all(&blocks).await?;
        let counts = || pages.iter().map(|page| counted::of_slot(page, self.slot));
        if self.has_whole_groups && counts().any(|count| Some(count) != counts().next()) {
            let counts: Vec<_> = counts().collect();
            return Err(ClientError::Wrong(format!(
                "{block}: a part of a group was lost: this client made {counts:?} changes"
            )));
        }
        for (block, page) in blocks.into_iter().zip(&mut pages) {
            let counts = self.count(block, page)?;
            counted::write(page, counts);
        }
        let waited = pages.iter().any(BlockChange::waited);
        Ok((cache.commit(pages), waited))
    }

    /// Checks that the block has all changes of this client, and returns what counts the next one.
    #[inline]
    fn count(&mut self, block: BlockId, user: &[u8]) -> Result<[(usize, [u8; 8]); 2], ClientError> {
        let mine = &mut self.mine[block.0 as usize];
        let there = counted::of_slot(user, self.slot);
        if *mine == u64::MAX {
            if counted::total(user).is_none() {
                return Err(ClientError::Wrong(strange(block)));
            }
        } else if *mine != there {
            return Err(ClientError::Wrong(format!(
                "{block}: this client made change {mine} of it, but the block has {there}: a change was lost or made twice"
            )));
        }
        *mine = there + 1;
        Ok(counted::counts(user, self.slot))
    }
}

/// Returns the error of a block whose counts do not add up.
pub(super) fn strange(block: BlockId) -> String {
    format!("{block} does not add up: it is torn, or holds something else than this workload left there")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::counted::tests::apply;

    fn client(workload: &Workload, slot: usize) -> Client<'_> {
        Client::new(workload, ClientSlot { slot, of: 4 })
    }

    #[test]
    fn blocks_are_chosen_as_asked() {
        let random = Workload { hot: 8, ..Workload::default() };
        let mut seen = [0; 8];
        let mut one = client(&random, 0);
        (0..8000).for_each(|_| seen[one.choose() as usize] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        let (mut same, mut other) = (client(&random, 1), client(&random, 2));
        assert!((0..32).any(|_| same.choose() != other.choose()), "clients differ");

        let round = Workload { order: Order::Round, ..random };
        let mut one = client(&round, 1);
        assert_eq!([(); 8].map(|()| one.choose()), [2, 3, 4, 5, 6, 7, 0, 1]);
    }

    #[test]
    fn a_lost_change_is_noticed_by_who_made_it() {
        let workload = Workload { hot: 1, ..Workload::default() };
        let mut one = client(&workload, 1);
        let mut user = vec![0; 4096 - 72];
        let counts = one.count(BlockId(0), &user).unwrap();
        apply(&mut user, counts);
        let before = user.clone();
        let counts = one.count(BlockId(0), &user).unwrap();
        apply(&mut user, counts);
        let why = one.count(BlockId(0), &before).unwrap_err().to_string();
        assert!(why.contains("lost or made twice"), "{why}");
        user[0] ^= 1;
        let why = client(&workload, 2).count(BlockId(0), &user).unwrap_err().to_string();
        assert!(why.contains("does not add up"), "{why}");
    }
}
