//! The blocks that every node finds without looking: where the rest of the store is.
//!
//! | block | content |
//! |---|---|
//! | 0 | what was handed out so far |
//! | 1 | root of the catalog |
//! | 2 | root of the tree of homes: the limit of each node incarnation |
//! | 3 | root of the tree of status extents: the home and the first block of each |
//!
//! Space is handed out to nodes in extents, and numbers in ranges, so that nodes work without
//! meeting. A node uses nothing of them before it is durable that it has them.

use plexus_base::{
    BlockId, Epoch, Incarnation, NodeId,
    wire::{self, Fixed, require, require_magic, require_version},
};
use plexus_cache::{BlockChange, Blocks};
use plexus_disks::{PageType, Version};

use crate::{
    StoreError,
    space::{FreeBlock, Space},
    transactions::{EXTENT_SLOTS, Number, TransactionId, core::Home},
    tree::{ScanPlace, Tree},
};

/// The type of the blocks of status extents.
pub(crate) const STATUS_PAGE: PageType = PageType(2);

const MAGIC: [u8; 8] = *b"PLEXSTOR";
const VERSION: u32 = 1;

const FIRST: BlockId = BlockId(0);
pub(crate) const CATALOG: BlockId = BlockId(1);
const HOMES: BlockId = BlockId(2);
const STATUS: BlockId = BlockId(3);

/// The most blocks of an extent of space.
const EXTENT_BLOCKS: u64 = 1024;

/// The number of numbers that a node takes at once.
pub(crate) const ID_RANGE: u64 = 1 << 16;

wire::layout! {
    struct FirstWire: 40 {
        magic: [u8; 8], version: u32, next_status: u32, next_block: u64, next_id: u64, unused: u64
    }
}

wire::layout! {
    struct StatusWire: 24 {
        node: NodeId, zeros: [u8; 3], since: u32, incarnation: u64, first: u64
    }
}

/// The next of each thing that is handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HandedOut {
    /// The next status extent.
    pub(crate) next_status: u32,
    /// The first block that no extent has.
    pub(crate) next_block: u64,
    /// The next number for those who need one that is unique.
    pub(crate) next_id: u64,
}

impl HandedOut {
    fn read(bytes: &[u8]) -> Result<Self, StoreError> {
        let read = |reader: &mut wire::Reader<'_>| {
            let FirstWire { magic, version, next_status, next_block, next_id, unused: _ } = reader.take()?;
            require_magic(magic, MAGIC)?;
            require_version(version, VERSION)?;
            Ok(Self { next_status, next_block, next_id })
        };
        let head = bytes.get(..FirstWire::LEN).unwrap_or(bytes);
        wire::decode("first block of the store", head, read)
            .map_err(|why| StoreError::NotAStore(why.to_string()))
    }

    fn write(self, page: &mut impl BlockChange) {
        let Self { next_status, next_block, next_id } = self;
        let wire = FirstWire { magic: MAGIC, version: VERSION, next_status, next_block, next_id, unused: 0 };
        page.write(0, &wire::encode::<_, { FirstWire::LEN }>(&wire));
    }
}

/// A status extent: the home of its transactions, and its first block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StatusExtent {
    pub(crate) home: Home,
    pub(crate) first: BlockId,
}

impl StatusExtent {
    fn encode(self) -> [u8; StatusWire::LEN] {
        let Self { home: Home { node, incarnation, since }, first } = self;
        let since = since.0;
        wire::encode(&StatusWire { node, zeros: [0; 3], since, incarnation: incarnation.0, first: first.0 })
    }

    fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let read = |reader: &mut wire::Reader<'_>| {
            let StatusWire { node, zeros, since, incarnation, first } = reader.take()?;
            require(zeros == [0; 3], "unused field")?;
            let home = Home { node, incarnation: Incarnation(incarnation), since: Epoch(since) };
            Ok(Self { home, first: BlockId(first) })
        };
        wire::decode("status extent", bytes, read)
            .map_err(|_| StoreError::Damaged { block: STATUS, what: "an entry is malformed" })
    }
}

/// The place of a slot: its block and its offset there.
pub(crate) fn slot_place(extent: StatusExtent, id: TransactionId, user: usize) -> (BlockId, usize) {
    let slots = user / 8;
    let slot = usize::from(id.slot());
    (BlockId(extent.first.0 + (slot / slots) as u64), slot % slots * 8)
}

fn status_blocks(user: usize) -> u64 {
    u64::from(EXTENT_SLOTS).div_ceil(user as u64 / 8)
}

/// Makes the store, unless there is one. Several nodes may do so at once.
///
/// # Errors
/// A block cannot be had, or block 0 has something else.
pub(crate) async fn make_or_open<B: Blocks, S: Space>(blocks: &B) -> Result<(), StoreError> {
    let page = blocks.read(FIRST).await?;
    if page.iter().any(|byte| *byte != 0) {
        return HandedOut::read(&page).map(drop);
    }
    drop(page);
    let mut first = blocks.change(FIRST).await?;
    if first.iter().any(|byte| *byte != 0) {
        return HandedOut::read(&first).map(drop);
    }
    HandedOut { next_status: 1, next_block: STATUS.0 + 1, next_id: 1 }.write(&mut first);
    let mut pages = vec![first];
    for root in [CATALOG, HOMES, STATUS] {
        pages.push(Tree::<'_, B, S>::new_root(blocks, FreeBlock { block: root, last: Version(0) }).await?);
    }
    let committed = blocks.commit(pages);
    Ok(blocks.durable(committed).await?)
}

/// Hands something out: `take` changes what was handed out so far.
async fn hand_out<B: Blocks, T>(
    blocks: &B,
    take: impl FnOnce(&mut HandedOut) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let mut page = blocks.change(FIRST).await?;
    let mut handed_out = HandedOut::read(&page)?;
    let taken = take(&mut handed_out)?;
    handed_out.write(&mut page);
    let committed = blocks.commit_in_order(vec![page]);
    blocks.durable(committed).await?;
    Ok(taken)
}

fn take_blocks(handed_out: &mut HandedOut, all: u64, wanted: u64) -> Result<u64, StoreError> {
    let first = handed_out.next_block;
    if all.saturating_sub(first) < wanted {
        return Err(StoreError::Full);
    }
    handed_out.next_block += wanted;
    Ok(first)
}

/// Takes an extent of space: free blocks.
pub(crate) async fn take_space<B: Blocks>(blocks: &B) -> Result<Vec<FreeBlock>, StoreError> {
    let all = blocks.blocks();
    // A small group has room for many extents, too.
    let most = EXTENT_BLOCKS.min(all / 64).max(16);
    let (first, count) = hand_out(blocks, |handed_out| {
        let count = most.min(all.saturating_sub(handed_out.next_block)).max(1);
        Ok((take_blocks(handed_out, all, count)?, count))
    })
    .await?;
    let free = |block| FreeBlock { block: BlockId(block), last: Version(0) };
    Ok((first..first + count).rev().map(free).collect())
}

/// Takes a range of unique numbers; returns the first of [`ID_RANGE`].
pub(crate) async fn take_ids<B: Blocks>(blocks: &B) -> Result<u64, StoreError> {
    let take = |handed_out: &mut HandedOut| {
        let first = handed_out.next_id;
        handed_out.next_id += ID_RANGE;
        Ok(first)
    };
    hand_out(blocks, take).await
}

/// Takes a status extent for a home, and makes its first block. Returns its number.
pub(crate) async fn take_status<B: Blocks, S: Space>(
    blocks: &B,
    space: &S,
    home: Home,
    user: usize,
) -> Result<(u32, StatusExtent), StoreError> {
    let all = blocks.blocks();
    let (number, first) = hand_out(blocks, |handed_out| {
        let first = take_blocks(handed_out, all, status_blocks(user))?;
        let number = handed_out.next_status;
        handed_out.next_status += 1;
        Ok((number, BlockId(first)))
    })
    .await?;
    let extent = StatusExtent { home, first };
    let tree = Tree::open(blocks, space, STATUS);
    let committed = tree.put(&number.to_be_bytes(), &extent.encode()).await?;
    blocks.durable(committed).await?;
    Ok((number, extent))
}

/// Returns a status extent.
pub(crate) async fn find_status<B: Blocks, S: Space>(
    blocks: &B,
    space: &S,
    number: u32,
) -> Result<Option<StatusExtent>, StoreError> {
    let found = Tree::open(blocks, space, STATUS).get(&number.to_be_bytes()).await?;
    found.map(|bytes| StatusExtent::decode(&bytes)).transpose()
}

/// Makes a limit of a home durable.
pub(crate) async fn put_limit<B: Blocks, S: Space>(
    blocks: &B,
    space: &S,
    home: Home,
    limit: Number,
) -> Result<(), StoreError> {
    let mut key = vec![home.node.0];
    key.extend_from_slice(&home.incarnation.0.to_be_bytes());
    let committed = Tree::open(blocks, space, HOMES).put(&key, &limit.to_le_bytes()).await?;
    Ok(blocks.durable(committed).await?)
}

/// Returns the highest limit of the homes that `counts`.
pub(crate) async fn highest_limit<B: Blocks, S: Space>(
    blocks: &B,
    space: &S,
    counts: impl Fn(NodeId, Incarnation) -> bool,
) -> Result<Number, StoreError> {
    let damaged = || StoreError::Damaged { block: HOMES, what: "an entry is malformed" };
    let tree = Tree::open(blocks, space, HOMES);
    let (mut highest, mut place) = (0, Some(ScanPlace::from(&[])));
    while let Some(from) = place {
        let scanned = tree.scan(&from, 256).await?;
        for (key, value) in scanned.entries {
            let key: [u8; 9] = key.try_into().map_err(|_| damaged())?;
            let limit = Number::from_le_bytes(value.try_into().map_err(|_| damaged())?);
            let incarnation = u64::from_be_bytes(*key.last_chunk().expect("nine bytes"));
            if counts(NodeId(key[0]), Incarnation(incarnation)) {
                highest = limit.max(highest);
            }
        }
        place = scanned.next;
    }
    Ok(highest)
}
