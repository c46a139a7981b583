//! The blocks that every node finds without looking: where the rest of the store is.
//!
//! | block | content |
//! |---|---|
//! | 0 | what was handed out so far |
//! | 1 | root of the catalog |
//! | 2 | root of the tree of homes: the limit of each node incarnation |
//! | 3 | root of the tree of status blocks: the home and the place of each |
//! | 4 | root of the tree of trees: a row for each that is made by transactions, with its root |
//! | 5 | root of the tree of [long](crate::long) contents |
//! | 6 | the first map of [space](crate::space) |
//!
//! Each tree has a number. That of the first ones is their block; others get unique ones. Numbers
//! are handed out in ranges, so that nodes work without meeting. A node uses none before it is
//! durable that it has them.

use plexus_base::{
    BlockId, Epoch, Incarnation, NodeId,
    wire::{self, Fixed, require, require_magic, require_version},
};
use plexus_cache::{BlockChange, BlockRead, Blocks, Committed};
use plexus_disks::{PageType, Version};

use crate::{
    StoreError,
    space::{FreeBlock, Owner, Space, SpaceMap},
    transactions::{Number, TransactionId, core::Home},
    tree::{ScanPlace, Tree},
};

/// The type of status blocks.
pub(crate) const STATUS_PAGE: PageType = PageType(2);

const MAGIC: [u8; 8] = *b"PLEXSTOR";
const VERSION: u32 = 4;

const FIRST: BlockId = BlockId(0);
pub(crate) const CATALOG: BlockId = BlockId(1);
pub(crate) const HOMES: BlockId = BlockId(2);
pub(crate) const STATUS: BlockId = BlockId(3);
pub(crate) const TREES: BlockId = BlockId(4);
pub(crate) const LONG: BlockId = BlockId(5);

/// The trees that always exist.
pub(crate) const FIRST_TREES: [BlockId; 5] = [CATALOG, HOMES, STATUS, TREES, LONG];

/// The first block of space.
const SPACE: u64 = 6;

/// The first number that is handed out; the first trees have lower ones.
const FIRST_NUMBER: u64 = 16;

/// The status blocks that a node takes at once.
const STATUS_BLOCKS: u32 = 8;

/// The number of numbers that a node takes at once.
pub(crate) const ID_RANGE: u64 = 1 << 16;

wire::layout! {
    struct FirstWire: 44 {
        magic: [u8; 8], version: u32, next_status: u32, extent: u64, next_id: u64, round: u64,
        first_status: u32
    }
}

wire::layout! {
    struct HomeWire: 20 {
        limit: u64, round: u64, oldest: u32
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
    /// The last round of [cleaning](crate::cleaning).
    pub(crate) round: u64,
    /// Status blocks with lower numbers are free: no row names their transactions.
    pub(crate) first_status: u32,
}

/// The row in which a home tells the others something, durably.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct HomeRow {
    /// It draws no number above this one.
    pub(crate) limit: Number,
    /// The last round of [cleaning](crate::cleaning) that it has answered: all changes that it
    /// made before are durable.
    pub(crate) round: u64,
    /// When it answered, its transactions of lower status blocks were at their end.
    pub(crate) oldest: u32,
}

impl HandedOut {
    fn read(bytes: &[u8]) -> Result<Self, StoreError> {
        let read = |reader: &mut wire::Reader<'_>| {
            let FirstWire { magic, version, next_status, extent, next_id, round, first_status } =
                reader.take()?;
            require_magic(magic, MAGIC)?;
            require_version(version, VERSION)?;
            Ok(Self { next_status, extent, next_id, round, first_status })
        };
        let head = bytes.get(..FirstWire::LEN).unwrap_or(bytes);
        wire::decode("first block of the store", head, read)
            .map_err(|why| StoreError::NotAStore(why.to_string()))
    }

    fn write(self, page: &mut impl BlockChange) {
        let Self { next_status, extent, next_id, round, first_status } = self;
        let (magic, version) = (MAGIC, VERSION);
        let wire = FirstWire { magic, version, next_status, extent, next_id, round, first_status };
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

    /// Returns the place of a slot: its block and its offset there. The first eight bytes of the
    /// block are its number.
    pub(crate) fn slot(self, id: TransactionId) -> (BlockId, usize) {
        (self.block, usize::from(id.slot()) * 8)
    }
}

/// Returns the number of the status block that a page is.
pub(crate) fn status_number(page: &impl BlockRead) -> Option<u32> {
    let is_status = page.page_type() == Some(STATUS_PAGE);
    let number = page.first_chunk().filter(|_| is_status).map(|number| u64::from_le_bytes(*number))?;
    number.try_into().ok()
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
    let page = blocks.read(FIRST).await?;
    let all = blocks.blocks();
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
    let handed_out = HandedOut {
        next_status: 1,
        extent: SpaceMap::length_for(all),
        next_id: FIRST_NUMBER,
        round: 0,
        first_status: 1,
    };
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

/// Returns what was handed out so far.
pub(crate) async fn handed_out<B: Blocks>(blocks: &B) -> Result<HandedOut, StoreError> {
    HandedOut::read(&blocks.read(FIRST).await?)
}

/// Hands something out: `take` changes what was handed out so far. It is durable then.
pub(crate) async fn hand_out<B: Blocks, T>(
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

/// Takes status blocks for a home: fewer if there is little room. Each is made when it is first
/// used.
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
        let made = async {
            let free = space.take().await?;
            let status = StatusBlock { home, block: free.block };
            match tree.put(&number.to_be_bytes(), &status.encode()).await {
                Ok(put) => Ok((put, TakenStatus { number, status, free })),
                Err(why) => {
                    space.give_back(free);
                    Err(why)
                }
            }
        };
        match made.await {
            Ok((put, made)) => {
                last = put.max(last);
                taken.push(made);
            }
            Err(why) if taken.is_empty() => return Err(why),
            Err(_) => break,
        }
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

/// Makes the row of a home durable, and all that this node has changed before.
pub(crate) async fn put_home<B: Blocks, S: Space>(
    blocks: &B,
    space: &S,
    (node, incarnation): Owner,
    HomeRow { limit, round, oldest }: HomeRow,
) -> Result<(), StoreError> {
    let mut key = vec![node.0];
    key.extend_from_slice(&incarnation.0.to_be_bytes());
    let row: [u8; HomeWire::LEN] = wire::encode(&HomeWire { limit, round, oldest });
    let committed = Tree::open(blocks, space, HOMES).put(&key, &row).await?;
    Ok(blocks.durable(committed).await?)
}

/// Returns the rows of all homes.
pub(crate) async fn homes<B: Blocks, S: Space>(
    blocks: &B,
    space: &S,
) -> Result<Vec<(Owner, HomeRow)>, StoreError> {
    let damaged = || StoreError::Damaged { block: HOMES, what: "an entry is malformed" };
    let tree = Tree::open(blocks, space, HOMES);
    let (mut homes, mut place) = (Vec::new(), Some(ScanPlace::from(&[])));
    while let Some(from) = place {
        let scanned = tree.scan(&from, 256).await?;
        for (key, value) in scanned.entries.iter() {
            let key: [u8; 9] = key.try_into().map_err(|_| damaged())?;
            let read = |reader: &mut wire::Reader<'_>| reader.take::<HomeWire>();
            let HomeWire { limit, round, oldest } =
                wire::decode("row of a home", value, read).map_err(|_| damaged())?;
            let incarnation = u64::from_be_bytes(*key.last_chunk().expect("nine bytes"));
            let home = (NodeId(key[0]), Incarnation(incarnation));
            homes.push((home, HomeRow { limit, round, oldest }));
        }
        place = scanned.next;
    }
    Ok(homes)
}
