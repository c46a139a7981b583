//! The interface to blocks for code that waits.

use std::ops::{Deref, Range};

use plexus_base::BlockId;
use plexus_disks::{PageType, Version};
use plexus_interconnect::executor;

use crate::{CacheError, Committed, protocol::Mode};

/// The most blocks that one group of changes may have. Their frames are pinned at the same time,
/// and their redo is one group of records: both need a bound.
pub const GROUP_BLOCKS: usize = 8;

/// The number of attempts to latch all blocks of a group without waiting for one while others are
/// latched.
const ATTEMPTS: usize = 3;

/// A block that is being read: its user bytes.
pub trait BlockRead: Deref<Target = [u8]> {
    /// Returns the number of changes of the block.
    fn version(&self) -> Version;

    /// Returns the type of the page; `None` for a block that was never changed.
    fn page_type(&self) -> Option<PageType>;
}

/// A block that is being changed: its user bytes. No other task, here or on another node, has it
/// meanwhile. If it is dropped, by an error, a panic or a task that ends, it is as it was before;
/// [`Blocks::commit`] makes the change.
pub trait BlockChange: BlockRead {
    /// Returns the number of the [grant](crate::grants) since which this node has had the block to
    /// itself: no other node has read or changed it since then, but for
    /// [copies](Blocks::read_consistent).
    fn granted(&self) -> u64;

    /// Returns whether the task has waited for the block.
    fn waited(&self) -> bool;

    /// Returns the bytes of a range, to be changed. The redo has these bytes and no others, so ask
    /// for those that change.
    ///
    /// # Panics
    /// If the range is not one of the user bytes.
    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8];

    /// Replaces the bytes from `offset` on.
    ///
    /// # Panics
    /// If there are fewer user bytes.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.bytes_mut(offset..offset + bytes.len()).copy_from_slice(bytes);
    }
}

/// Blocks that every node reads and changes.
///
/// The methods that wait are for tasks ([`Cache::run`](crate::Cache::run)). A task stays on its
/// thread, and may be dropped while it waits. There is one implementation over the workers of a
/// node, and one in the simulator.
///
/// **A task that has a block must not wait for another**, nor for a lock or any other answer, or
/// two tasks could wait for each other for ever: that is asserted. For several blocks at a time
/// there are [`change_all`](Self::change_all), which latches them in the order of their numbers,
/// [`try_change`](Self::try_change), which does not wait, and [`create`](Self::create).
///
/// All methods that give a block fail as [`CacheError`] says.
#[allow(async_fn_in_trait, reason = "tasks stay on their thread")]
pub trait Blocks {
    /// A block that is being read.
    type Read<'a>: BlockRead
    where
        Self: 'a;

    /// A block that is being changed.
    type Change<'a>: BlockChange
    where
        Self: 'a;

    /// The right to wait for a block while others are latched.
    type Alone<'a>
    where
        Self: 'a;

    /// Returns the number of blocks.
    fn blocks(&self) -> u64;

    /// Waits for a block for reading. It stays here afterwards until another node changes it or the
    /// room is needed.
    async fn read(&self, block: BlockId) -> Result<Self::Read<'_>, CacheError>;

    /// Waits for a copy of a block as it was at some moment between call and return. A node that is
    /// changing the block keeps it. The copy may show changes that are not durable, and that a
    /// death of nodes undoes.
    async fn read_consistent(&self, block: BlockId) -> Result<Self::Read<'_>, CacheError>;

    /// Waits for a block for reading, as [`read`](Self::read), which this task will not need again
    /// soon. A scan that reads in this way leaves the blocks in memory that others use.
    async fn read_once(&self, block: BlockId) -> Result<Self::Read<'_>, CacheError>;

    /// Asks for blocks that will be needed in `mode`, without waiting for them. Blocks that are on
    /// disk are read at the same time.
    fn prefetch(&self, blocks: &[BlockId], mode: Mode);

    /// Makes changes as one group: after every death of nodes all of them are there, or none. The
    /// redo of the group is appended, and becomes durable later.
    fn commit(&self, changes: Vec<Self::Change<'_>>) -> Committed;

    /// Makes changes as [`commit`](Self::commit) that rely on earlier changes which this node made
    /// in other blocks: no block of the group leaves the node before those are durable, so they are
    /// not lost alone.
    fn commit_in_order(&self, changes: Vec<Self::Change<'_>>) -> Committed;

    /// Waits until changes are durable: then no death of nodes loses them. Without redo it returns
    /// at once.
    async fn durable(&self, committed: Committed) -> Result<(), CacheError>;

    /// Waits for a block for changing.
    async fn change(&self, block: BlockId) -> Result<Self::Change<'_>, CacheError> {
        // Before the block is latched: the log may wait for a write of this block.
        let mut reserved = Reserved::new(self, 1).await?;
        let change = self.latch(block, false).await?;
        reserved.changes -= 1;
        Ok(change)
    }

    /// Waits for a block whose contents are not needed, and makes a new page of it. Its user bytes
    /// are zero. The disk is not read, and redo has only what is written to the new page. `last` is
    /// the version that the block had when its contents were given up, 0 if it was never used: the
    /// new page has a later one.
    ///
    /// A task may call it that has other blocks, because no task has a block whose contents are
    /// given up. It then fails with [`CacheError::NoFrame`] if there is no room.
    ///
    /// From this call on the old contents are gone, also if this fails or is dropped. A new page
    /// that is dropped without a commit is there and empty. If the call itself is dropped, its
    /// request may still be under way and take away what others write: the block is free for them
    /// when this node has had it once more, by [`change`](Self::change).
    async fn create(
        &self,
        block: BlockId,
        page_type: PageType,
        last: Version,
    ) -> Result<Self::Change<'_>, CacheError> {
        let mut reserved = match executor::has_possessions() {
            // Room may come only when one of those blocks is written.
            true if !self.try_reserve(1)? => return Err(CacheError::NoFrame(block)),
            true => Reserved { blocks: self, changes: 1 },
            false => Reserved::new(self, 1).await?,
        };
        let change = self.latch_new(block, page_type, last).await?;
        reserved.changes -= 1;
        Ok(change)
    }

    /// Waits for several different blocks for changing, and returns them in the order of `blocks`.
    ///
    /// # Panics
    /// If a block is named twice, or there are more than [`GROUP_BLOCKS`].
    async fn change_all(&self, blocks: &[BlockId]) -> Result<Vec<Self::Change<'_>>, CacheError> {
        let mut order: Vec<(BlockId, usize)> = blocks.iter().copied().zip(0..).collect();
        order.sort_unstable();
        assert!(order.len() <= GROUP_BLOCKS, "a group has at most {GROUP_BLOCKS} blocks");
        assert!(order.is_sorted_by(|one, next| one.0 < next.0), "a group has different blocks");
        let all = order.len() as u32;
        let mut latched = Vec::with_capacity(order.len());
        let mut attempts = 0;
        loop {
            let mut reserved = Reserved::new(self, all).await?;
            // Other tasks want some of these blocks, too. A set has fewer frames than tasks could
            // latch while they wait for other frames, so only one task of a node waits in this way.
            // It may be refused a frame: then it waits without blocks, as in an attempt.
            let alone = if attempts < ATTEMPTS { None } else { Some(self.alone().await) };
            let missing = latch_all(&mut reserved, &order, alone.is_some(), &mut latched).await?;
            let Some(missing) = missing else { return Ok(in_order(latched)) };
            attempts += 1;
            latched.clear();
            drop((reserved, alone));
            let later = order.iter().map(|(block, _)| *block).filter(|block| *block != missing);
            self.prefetch(&later.collect::<Vec<_>>(), Mode::X);
            // It comes here, and is free for others again.
            drop(self.change(missing).await?);
        }
    }

    /// Returns a block for changing if it is here and free, and the log has room. It never waits
    /// for another task, so a task may call it that has blocks. It has no place in a line: it may
    /// fail again and again while others read the block. [`change`](Self::change) and
    /// [`change_all`](Self::change_all) wait in line, and later readers wait for them.
    async fn try_change(&self, block: BlockId) -> Result<Option<Self::Change<'_>>, CacheError> {
        if !self.try_reserve(1)? {
            return Ok(None);
        }
        let mut reserved = Reserved { blocks: self, changes: 1 };
        let change = self.try_latch(block).await?;
        reserved.changes -= u32::from(change.is_some());
        Ok(change)
    }

    /// Waits until the log has room for changes, and reserves it. A change gives it back when it
    /// ends.
    #[doc(hidden)]
    async fn reserve(&self, changes: u32) -> Result<(), CacheError>;

    /// Reserves room in the log if there is enough.
    #[doc(hidden)]
    fn try_reserve(&self, changes: u32) -> Result<bool, CacheError>;

    /// Gives room in the log back that no change has.
    #[doc(hidden)]
    fn release(&self, changes: u32);

    /// Waits for a block for changing, with a reservation that was made for it. `has_others`: the
    /// task has other blocks meanwhile, so this may fail with [`CacheError::NoFrame`].
    #[doc(hidden)]
    async fn latch(&self, block: BlockId, has_others: bool) -> Result<Self::Change<'_>, CacheError>;

    /// Waits for a block and makes a new page of it, as [`create`](Self::create), with a
    /// reservation that was made for it.
    #[doc(hidden)]
    async fn latch_new(
        &self,
        block: BlockId,
        page_type: PageType,
        last: Version,
    ) -> Result<Self::Change<'_>, CacheError>;

    /// Returns a block for changing if it is here and free, as [`latch`](Self::latch).
    #[doc(hidden)]
    async fn try_latch(&self, block: BlockId) -> Result<Option<Self::Change<'_>>, CacheError>;

    /// Waits until this is the only task of the node that may wait for a block while it has others.
    #[doc(hidden)]
    async fn alone(&self) -> Self::Alone<'_>;
}

/// Room in the log for changes that have no block yet.
struct Reserved<'a, B: Blocks + ?Sized> {
    blocks: &'a B,
    changes: u32,
}

impl<'a, B: Blocks + ?Sized> Reserved<'a, B> {
    async fn new(blocks: &'a B, changes: u32) -> Result<Self, CacheError> {
        blocks.reserve(changes).await?;
        Ok(Self { blocks, changes })
    }
}

impl<B: Blocks + ?Sized> Drop for Reserved<'_, B> {
    fn drop(&mut self) {
        if self.changes > 0 {
            self.blocks.release(self.changes);
        }
    }
}

/// Latches all blocks in their order, those that are here and free, or each after a wait for it.
/// Returns the first that could not be latched.
async fn latch_all<'a, B: Blocks + ?Sized>(
    reserved: &mut Reserved<'a, B>,
    order: &[(BlockId, usize)],
    waits: bool,
    latched: &mut Vec<(usize, B::Change<'a>)>,
) -> Result<Option<BlockId>, CacheError> {
    for (block, place) in order {
        let change = if waits {
            match reserved.blocks.latch(*block, !latched.is_empty()).await {
                Err(CacheError::NoFrame(_)) => None,
                change => Some(change?),
            }
        } else {
            reserved.blocks.try_latch(*block).await?
        };
        let Some(change) = change else { return Ok(Some(*block)) };
        reserved.changes -= 1;
        latched.push((*place, change));
    }
    Ok(None)
}

fn in_order<T>(mut latched: Vec<(usize, T)>) -> Vec<T> {
    latched.sort_unstable_by_key(|(place, _)| *place);
    latched.into_iter().map(|(_, change)| change).collect()
}
