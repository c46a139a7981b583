//! The blocks that every node finds without looking: where the rest of the store is.
//!
//! | block | content |
//! |---|---|
//! | 0 | what was handed out so far |
//! | 1 | root of the catalog |
//! | 2 | root of the tree of homes: the limit of each node incarnation |
//! | 3 | root of the tree of status blocks: the home and the place of each |
//! | 4 | root of the tree of trees: a row for each that is made by transactions, with its root |
//! | 5 | the first map of [space](crate::space) |
//!
//! Each tree has a number. That of the first ones is their block; others get unique ones. Numbers
//! are handed out in ranges, so that nodes work without meeting. A node uses none before it is
//! durable that it has them.

use plexus_base::{
    BlockId, Epoch, Incarnation, NodeId,
    wire::{self, Fixed, require, require_magic, require_version},
};
use plexus_cache::{BlockChange, Blocks, Committed};
use plexus_disks::{PageType, Version};

use crate::{
    StoreError,
    space::{FreeBlock, Space, SpaceMap},
    transactions::{Number, TransactionId, core::Home},
    tree::{ScanPlace, Tree},
};

/// The type of status blocks.
pub(crate) const STATUS_PAGE: PageType = PageType(2);

const MAGIC: [u8; 8] = *b"PLEXSTOR";
const VERSION: u32 = 2;

const FIRST: BlockId = BlockId(0);
pub(crate) const CATALOG: BlockId = BlockId(1);
pub(crate) const HOMES: BlockId = BlockId(2);
pub(crate) const STATUS: BlockId = BlockId(3);
pub(crate) const TREES: BlockId = BlockId(4);

/// The trees that always exist.
pub(crate) const FIRST_TREES: [BlockId; 4] = [CATALOG, HOMES, STATUS, TREES];

/// The first block of space.
const SPACE: u64 = 5;

/// The first number that is handed out; the first trees have lower ones.
const FIRST_NUMBER: u64 = 16;

/// The status blocks that a node takes at once.
const STATUS_BLOCKS: u32 = 8;

/// The number of numbers that a node takes at once.
pub(crate) const ID_RANGE: u64 = 1 << 16;

wire::layout! {
    struct FirstWire: 40 {
        magic: [u8; 8], version: u32, next_status: u32, extent: u64, next_id: u64, unused: u64
    }
}

wire::layout! {
    struct StatusWire: 24 {
        node: NodeId, zeros: [u8; 3], since: u32, incarnation: u64, block: u64
    }
}

/// The next of each thing that is handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct HandedOut {
    /// The next status block.
    pub(crate) next_status: u32,
    /// The blocks of an extent of space, which never changes.
    pub(crate) extent: u64,
    /// The next number for those who need one that is unique.
    pub(crate) next_id: u64,
}

impl HandedOut {
    fn read(bytes: &[u8]) -> Result<Self, StoreError> {
        let read = |reader: &mut wire::Reader<'_>| {
            let FirstWire { magic, version, next_status, extent, next_id, unused: _ } = reader.take()?;
            require_magic(magic, MAGIC)?;
            require_version(version, VERSION)?;
            Ok(Self { next_status, extent, next_id })
        };
        let head = bytes.get(..FirstWire::LEN).unwrap_or(bytes);
        wire::decode("first block of the store", head, read)
            .map_err(|why| StoreError::NotAStore(why.to_string()))
    }

    fn write(self, page: &mut impl BlockChange) {
        let Self { next_status, extent, next_id } = self;
        let wire = FirstWire { magic: MAGIC, version: VERSION, next_status, extent, next_id, unused: 0 };
        page.write(0, &wire::encode::<_, { FirstWire::LEN }>(&wire));
    }
}

/// A status block: the home of its transactions, and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StatusBlock {
    pub(crate) home: Home,
    pub(crate) block: BlockId,
}

impl StatusBlock {
    fn encode(self) -> [u8; StatusWire::LEN] {
        let Self { home: Home { node, incarnation, since }, block } = self;
        let since = since.0;
        wire::encode(&StatusWire { node, zeros: [0; 3], since, incarnation: incarnation.0, block: block.0 })
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let read = |reader: &mut wire::Reader<'_>| {
            let StatusWire { node, zeros, since, incarnation, block } = reader.take()?;
            require(zeros == [0; 3], "unused field")?;
            let home = Home { node, incarnation: Incarnation(incarnation), since: Epoch(since) };
            Ok(Self { home, block: BlockId(block) })
        };
        wire::decode("status block", bytes, read)
            .map_err(|_| StoreError::Damaged { block: STATUS, what: "an entry is malformed" })
    }

    /// Returns the place of a slot: its block and its offset there.
    pub(crate) fn slot(self, id: TransactionId) -> (BlockId, usize) {
        (self.block, usize::from(id.slot()) * 8)
    }
}

/// A status block that a node takes, and the slots that it has.
pub(crate) struct TakenStatus {
    pub(crate) number: u32,
    pub(crate) status: StatusBlock,
    pub(crate) free: FreeBlock,
}

/// Makes the store, unless there is one. Several nodes may do so at once. Returns its map.
///
/// # Errors
/// A block cannot be had, or block 0 has something else.
pub(crate) async fn make_or_open<B: Blocks, S: Space>(blocks: &B) -> Result<SpaceMap, StoreError> {
    let all = blocks.blocks();
    let page = blocks.read(FIRST).await?;
    let map = |handed_out: HandedOut, user: usize| SpaceMap::new(SPACE, handed_out.extent, all, user);
    if page.iter().any(|byte| *byte != 0) {
        return Ok(map(HandedOut::read(&page)?, page.len()));
    }
    drop(page);
    let mut first = blocks.change(FIRST).await?;
    let user = first.len();
    if first.iter().any(|byte| *byte != 0) {
        return Ok(map(HandedOut::read(&first)?, user));
    }
    let handed_out = HandedOut { next_status: 1, extent: SpaceMap::length_for(all), next_id: FIRST_NUMBER };
    handed_out.write(&mut first);
    let mut pages = vec![first];
    for block in FIRST_TREES {
        let root = FreeBlock { block, last: Version(0) };
        pages.push(Tree::<'_, B, S>::new_root(blocks, root, block.0).await?);
    }
    let committed = blocks.commit(pages);
    blocks.durable(committed).await?;
    Ok(map(handed_out, user))
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

/// Takes a range of unique numbers; returns the first of [`ID_RANGE`].
pub(crate) async fn take_ids<B: Blocks>(blocks: &B) -> Result<u64, StoreError> {
    let take = |handed_out: &mut HandedOut| {
        let first = handed_out.next_id;
        handed_out.next_id += ID_RANGE;
        Ok(first)
    };
    hand_out(blocks, take).await
}

/// Takes status blocks for a home. Each is made when it is first used.
pub(crate) async fn take_status<B: Blocks, S: Space>(
    blocks: &B,
    space: &S,
    home: Home,
) -> Result<Vec<TakenStatus>, StoreError> {
    let first = hand_out(blocks, |handed_out| {
        let first = handed_out.next_status;
        handed_out.next_status += STATUS_BLOCKS;
        Ok(first)
    })
    .await?;
    let tree = Tree::open(blocks, space, STATUS);
    let (mut taken, mut last) = (Vec::new(), Committed::default());
    for number in first..first + STATUS_BLOCKS {
        let free = space.take().await?;
        let status = StatusBlock { home, block: free.block };
        last = tree.put(&number.to_be_bytes(), &status.encode()).await?.max(last);
        taken.push(TakenStatus { number, status, free });
    }
    blocks.durable(last).await?;
    Ok(taken)
}

/// Returns a status block.
pub(crate) async fn find_status<B: Blocks, S: Space>(
    blocks: &B,
    space: &S,
    number: u32,
) -> Result<Option<StatusBlock>, StoreError> {
    let found = Tree::open(blocks, space, STATUS).get(&number.to_be_bytes()).await?;
    found.map(|bytes| StatusBlock::decode(&bytes)).transpose()
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
