//! The space of a store: which node gives out which blocks.
//!
//! Behind the first blocks are *regions*: a block with a map, and the *extents* that it describes.
//! A node claims an extent in the map, and gives its blocks out alone. When all are given out and
//! used, it releases the extent; if the node is gone, another one claims it. The map does not say
//! which blocks of an extent are free, the blocks do: one is free if it was never changed, if it
//! was removed from its tree, if it is a page of a tree that no snapshot can show any more, or a
//! status block of which no row needs to know. So a tree is dropped by one change of a row, and
//! neither an end of a node nor a tree that was never committed loses space.
//!
//! An entry of the map has 16 bytes; they are zero for an extent that no node ever had:
//!
//! | bytes | content |
//! |---|---|
//! | 0 | 1: no node has the extent; 2: this one has it |
//! | 1 | the node |
//! | 2..8 | zero |
//! | 8..16 | its incarnation |

use std::{
    collections::HashSet,
    ops::Range,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use plexus_base::{
    BlockId, Incarnation, NodeId,
    wire::{self, Fixed},
};
use plexus_cache::{BlockChange, BlockRead, Blocks, Committed, protocol::Mode};
use plexus_disks::Version;

use crate::{
    StoreError,
    layout::{STATUS_PAGE, status_number},
    tree::{TREE_PAGE, page::Node},
};

/// The most blocks of an extent.
const EXTENT_BLOCKS: u64 = 1024;

/// The blocks that are asked for together when an extent is examined.
const READ_AHEAD: u64 = 32;

/// The leaves of which is known how often they move between nodes.
const WAITED: usize = 256;

/// The moves of a leaf to this node within a time from which it is divided. In a table whose rows
/// are changed in no order each leaf moves far less often.
const MOVES: u32 = 32;
const MOVES_WITHIN: Duration = Duration::from_secs(1);

const RELEASED: u8 = 1;
const CLAIMED: u8 = 2;

wire::layout! {
    struct EntryWire: 16 {
        state: u8, node: NodeId, zeros: [u8; 6], incarnation: u64
    }
}

/// A block that no other task uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeBlock {
    /// The block.
    pub block: BlockId,
    /// The last version that it had; 0 if it was never used.
    pub last: Version,
}

/// A source of free blocks.
#[allow(async_fn_in_trait, reason = "tasks stay on their thread")]
pub trait Space {
    /// Takes a free block. A task that ends before it uses the block gives it
    /// [back](Self::give_back).
    ///
    /// # Errors
    /// There is none, or it cannot be found.
    async fn take(&self) -> Result<FreeBlock, StoreError>;

    /// Gives a block back that was not used.
    fn give_back(&self, block: FreeBlock);

    /// Notes that a block is used by this change.
    fn used(&self, block: BlockId, by: Committed) {
        let _ = (block, by);
    }

    /// Notes that a task has waited for a leaf to change a row in it, which was
    /// [granted](plexus_cache::BlockChange::granted) with this number. Returns whether it moves
    /// between nodes all the time.
    fn is_contended(&self, block: BlockId, granted: u64) -> bool {
        let _ = (block, granted);
        false
    }
}

/// An owner of an extent.
pub(crate) type Owner = (NodeId, Incarnation);

/// The state of an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ExtentState {
    /// No node ever had it: all blocks are free.
    Fresh,
    /// No node has it.
    Released,
    /// This node gives its blocks out.
    Claimed(Owner),
}

impl ExtentState {
    fn encode(self) -> [u8; EntryWire::LEN] {
        let (state, (node, Incarnation(incarnation))) = match self {
            Self::Fresh => (0, (NodeId(0), Incarnation(0))),
            Self::Released => (RELEASED, (NodeId(0), Incarnation(0))),
            Self::Claimed(owner) => (CLAIMED, owner),
        };
        wire::encode(&EntryWire { state, node, zeros: [0; 6], incarnation })
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let read = |reader: &mut wire::Reader<'_>| reader.take::<EntryWire>();
        let EntryWire { state, node, zeros, incarnation } =
            wire::decode("entry of a map", bytes, read).ok()?;
        match state {
            0 => Some(Self::Fresh),
            RELEASED => Some(Self::Released),
            CLAIMED if zeros == [0; 6] => Some(Self::Claimed((node, Incarnation(incarnation)))),
            _ => None,
        }
    }
}

/// The places of maps and extents.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SpaceMap {
    /// The first map.
    first: u64,
    /// The blocks of an extent.
    length: u64,
    /// The extents of a region.
    per_region: u64,
    /// The blocks of the group.
    all: u64,
}

impl SpaceMap {
    pub(crate) fn new(first: u64, length: u64, all: u64, user: usize) -> Self {
        Self { first, length, per_region: (user / EntryWire::LEN) as u64, all }
    }

    /// Returns the blocks of an extent in a new store.
    pub(crate) fn length_for(all: u64) -> u64 {
        // A small group has room for many extents, too.
        EXTENT_BLOCKS.min(all / 64).max(16)
    }

    fn region(&self) -> u64 {
        1 + self.per_region * self.length
    }

    /// Returns the number of extents; the last one may be shorter.
    pub(crate) fn extents(&self) -> u64 {
        let blocks = self.all.saturating_sub(self.first);
        let rest = (blocks % self.region()).saturating_sub(1);
        blocks / self.region() * self.per_region + rest.div_ceil(self.length)
    }

    /// Returns the blocks of an extent.
    pub(crate) fn blocks(&self, extent: u64) -> Range<u64> {
        let (region, index) = (extent / self.per_region, extent % self.per_region);
        let start = self.first + region * self.region() + 1 + index * self.length;
        start..(start + self.length).min(self.all)
    }

    /// Returns the extent of a block; `None` for the first blocks and maps.
    pub(crate) fn extent_of(&self, block: BlockId) -> Option<u64> {
        let place = block.0.checked_sub(self.first)?;
        let index = (place % self.region()).checked_sub(1)? / self.length;
        Some(place / self.region() * self.per_region + index)
    }

    fn place(&self, extent: u64) -> (BlockId, usize) {
        let (region, index) = (extent / self.per_region, extent % self.per_region);
        (BlockId(self.first + region * self.region()), index as usize * EntryWire::LEN)
    }

    fn state_in(map: BlockId, page: &[u8], at: usize) -> Result<ExtentState, StoreError> {
        let state = page.get(at..at + EntryWire::LEN).and_then(ExtentState::decode);
        state.ok_or(StoreError::Damaged { block: map, what: "an entry of a map is malformed" })
    }

    /// Returns the states of all extents, or of those up to the first that no node ever had.
    pub(crate) async fn states<B: Blocks>(
        &self,
        blocks: &B,
        with_fresh: bool,
    ) -> Result<Vec<ExtentState>, StoreError> {
        let mut states = Vec::new();
        while (states.len() as u64) < self.extents() {
            let (map, mut at) = self.place(states.len() as u64);
            let page = blocks.read(map).await?;
            for _ in 0..self.per_region.min(self.extents() - states.len() as u64) {
                let state = Self::state_in(map, &page, at)?;
                states.push(state);
                at += EntryWire::LEN;
                if state == ExtentState::Fresh && !with_fresh {
                    return Ok(states);
                }
            }
        }
        Ok(states)
    }

    /// Sets the state of an extent if it is still `old`. Returns whether it was.
    async fn set<B: Blocks>(
        &self,
        blocks: &B,
        extent: u64,
        old: ExtentState,
        new: ExtentState,
    ) -> Result<bool, StoreError> {
        let (map, at) = self.place(extent);
        let mut page = blocks.change(map).await?;
        if Self::state_in(map, &page, at)? != old {
            return Ok(false);
        }
        page.write(at, &new.encode());
        let committed = blocks.commit_in_order(vec![page]);
        blocks.durable(committed).await?;
        Ok(true)
    }
}

/// An extent whose blocks a node gives out.
struct HeldExtent {
    extent: u64,
    /// The last one is given out first.
    free: Vec<FreeBlock>,
    /// The blocks that tasks have taken and not used yet.
    out: u64,
    /// The last use of one of its blocks.
    used: Committed,
}

/// A leaf that was waited for.
#[derive(Clone, Copy)]
struct WaitedLeaf {
    block: BlockId,
    granted: u64,
    count: u32,
    since: Instant,
}

/// The free blocks of a node.
pub(crate) struct Stock {
    map: SpaceMap,
    /// The blocks of the group.
    all: AtomicU64,
    /// The leaves that were waited for last, each at a place of its own.
    waited: Mutex<[Option<WaitedLeaf>; WAITED]>,
    /// The extents, the oldest first.
    held: Mutex<Vec<HeldExtent>>,
}

impl Stock {
    pub(crate) fn new(map: SpaceMap) -> Self {
        let all = AtomicU64::new(map.all);
        Self { map, all, waited: Mutex::new([None; WAITED]), held: Mutex::default() }
    }

    /// Returns the places in the group as it was when an extent was last looked for.
    pub(crate) fn map(&self) -> SpaceMap {
        SpaceMap { all: self.all.load(Relaxed), ..self.map }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<HeldExtent>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of free blocks.
    pub(crate) fn count(&self) -> usize {
        self.lock().iter().map(|held| held.free.len()).sum()
    }

    fn add(&self, extent: u64, free: Vec<FreeBlock>) {
        self.lock().push(HeldExtent { extent, free, out: 0, used: Committed::default() });
    }

    /// Ends the use of a block by a task.
    fn change(&self, block: BlockId, act: impl FnOnce(&mut HeldExtent)) {
        let extent = self.map().extent_of(block);
        let mut held = self.lock();
        if let Some(held) = held.iter_mut().find(|held| Some(held.extent) == extent) {
            held.out = held.out.saturating_sub(1);
            act(held);
        }
    }

    /// Releases the extents of which nothing is left.
    pub(crate) async fn release_used<B: Blocks>(&self, blocks: &B, me: Owner) -> Result<(), StoreError> {
        loop {
            let used = {
                let mut held = self.lock();
                let at = held.iter().position(|held| held.free.is_empty() && held.out == 0);
                let Some(at) = at else { return Ok(()) };
                held.remove(at)
            };
            // The next owner looks at the blocks.
            blocks.durable(used.used).await?;
            self.map().set(blocks, used.extent, ExtentState::Claimed(me), ExtentState::Released).await?;
        }
    }

    /// Claims an extent that no node ever had, or else one of a node that is gone. Returns false if
    /// there is none. `live` returns what is in use.
    pub(crate) async fn claim<B: Blocks>(
        &self,
        blocks: &B,
        me: Owner,
        is_gone: impl Fn(Owner) -> bool,
        live: &mut impl AsyncFnMut() -> Result<InUse, StoreError>,
    ) -> Result<bool, StoreError> {
        // The group may have grown.
        self.all.store(blocks.blocks(), Relaxed);
        loop {
            let states = self.map().states(blocks, false).await?;
            let abandoned = (0..).zip(&states).find_map(|(extent, state)| match state {
                ExtentState::Claimed(owner) if is_gone(*owner) => Some((extent, *state)),
                ExtentState::Fresh => Some((extent, *state)),
                _ => None,
            });
            let Some((extent, state)) = abandoned else { return Ok(false) };
            if !self.map().set(blocks, extent, state, ExtentState::Claimed(me)).await? {
                continue;
            }
            let free = match state {
                ExtentState::Fresh => {
                    let free = |block| FreeBlock { block: BlockId(block), last: Version(0) };
                    self.map().blocks(extent).rev().map(free).collect()
                }
                _ => self.free_blocks(blocks, extent, live).await?,
            };
            if free.is_empty() {
                self.map().set(blocks, extent, ExtentState::Claimed(me), ExtentState::Released).await?;
                continue;
            }
            self.add(extent, free);
            return Ok(true);
        }
    }

    /// Looks for free blocks in extents that no node has, from this one on, until there are
    /// `wanted`. Returns the extent at which to go on, or `None` at the end. `live` returns what is
    /// in use.
    pub(crate) async fn reclaim<B: Blocks>(
        &self,
        blocks: &B,
        me: Owner,
        from: u64,
        wanted: usize,
        live: &mut impl AsyncFnMut() -> Result<InUse, StoreError>,
    ) -> Result<Option<u64>, StoreError> {
        let states = self.map().states(blocks, true).await?;
        for (extent, state) in (0..).zip(states).skip(from as usize) {
            if self.count() >= wanted {
                return Ok(Some(extent));
            }
            if state != ExtentState::Released
                || !self.map().set(blocks, extent, state, ExtentState::Claimed(me)).await?
            {
                continue;
            }
            let free = self.free_blocks(blocks, extent, live).await?;
            if free.is_empty() {
                self.map().set(blocks, extent, ExtentState::Claimed(me), ExtentState::Released).await?;
            } else {
                self.add(extent, free);
            }
        }
        Ok(None)
    }

    /// Returns the free blocks of an extent that this node has claimed: no other one uses them
    /// meanwhile. `live` returns what is in use. It is called now, because another node may
    /// have made a tree in the extent just before it released it.
    async fn free_blocks<B: Blocks>(
        &self,
        blocks: &B,
        extent: u64,
        live: &mut impl AsyncFnMut() -> Result<InUse, StoreError>,
    ) -> Result<Vec<FreeBlock>, StoreError> {
        let live = live().await?;
        let range = self.map().blocks(extent);
        let mut free = Vec::new();
        for block in range.clone() {
            if (block - range.start).is_multiple_of(READ_AHEAD) {
                let ahead: Vec<_> = (block..range.end.min(block + READ_AHEAD)).map(BlockId).collect();
                blocks.prefetch(&ahead, Mode::S);
            }
            let page = match blocks.read_once(BlockId(block)).await {
                Ok(page) => page,
                // It is not free; who needs it gets the error.
                Err(why) if why.is_of_block() => continue,
                Err(why) => return Err(why.into()),
            };
            if live.is_free(&page) {
                free.push(FreeBlock { block: BlockId(block), last: page.version() });
            }
        }
        free.reverse();
        Ok(free)
    }
}

/// The uses of blocks.
#[derive(Default)]
pub(crate) struct InUse {
    /// The trees that exist.
    pub(crate) trees: HashSet<u64>,
    /// The first status block that is needed.
    pub(crate) first_status: u32,
}

impl InUse {
    /// Returns whether a block has nothing that is needed.
    pub(crate) fn is_free(&self, page: &impl BlockRead) -> bool {
        // A new page that was given up is zero.
        let is_zero = || page.iter().all(|byte| *byte == 0);
        match page.page_type() {
            None => true,
            // A page that was removed from its tree names none.
            Some(TREE_PAGE) => {
                Node::of(page).map_or_else(|_| is_zero(), |node| !self.trees.contains(&node.tree()))
            }
            Some(STATUS_PAGE) => status_number(page).is_some_and(|number| number < self.first_status),
            Some(_) => false,
        }
    }
}

impl Space for Stock {
    async fn take(&self) -> Result<FreeBlock, StoreError> {
        let mut all = self.lock();
        let held = all.iter_mut().find(|held| !held.free.is_empty()).ok_or(StoreError::Full)?;
        held.out += 1;
        held.free.pop().ok_or(StoreError::Full)
    }

    fn give_back(&self, block: FreeBlock) {
        self.change(block.block, |held| held.free.push(block));
    }

    fn used(&self, block: BlockId, by: Committed) {
        self.change(block, |held| held.used = by.max(held.used));
    }

    fn is_contended(&self, block: BlockId, granted: u64) -> bool {
        let now = Instant::now();
        let mut all = self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        let place = &mut all[(block.0 % WAITED as u64) as usize];
        let is_it = |known: &&mut WaitedLeaf| known.block == block && now - known.since < MOVES_WITHIN;
        let Some(known) = place.as_mut().filter(is_it) else {
            *place = Some(WaitedLeaf { block, granted, count: 1, since: now });
            return false;
        };
        known.count += u32::from(known.granted != granted);
        known.granted = granted;
        let is_contended = known.count >= MOVES;
        if is_contended {
            *place = None;
        }
        is_contended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_is_of_one_extent_or_of_none() {
        for (length, all) in [(16, 200), (16, 5), (16, 6), (64, 64 * 1000), (1024, 7_000_000)] {
            let map = SpaceMap::new(5, length, all, 4000);
            let mut next = 5;
            for extent in 0..map.extents() {
                let blocks = map.blocks(extent);
                let is_region = extent.is_multiple_of(map.per_region);
                assert_eq!(blocks.start, next + u64::from(is_region), "{map:?} {extent}");
                assert!(!blocks.is_empty() && blocks.end <= all, "{map:?} {extent} {blocks:?}");
                assert_eq!(map.extent_of(BlockId(blocks.start)), Some(extent));
                assert_eq!(map.extent_of(BlockId(blocks.end - 1)), Some(extent));
                assert_ne!(map.extent_of(BlockId(blocks.start - 1)), Some(extent));
                next = blocks.end;
            }
            assert!(next == all || next + 1 == all, "{map:?}: {next}");
            assert_eq!(map.extent_of(BlockId(4)), None);
        }
    }
}
