//! The store of a node: where transactions begin, and what they do.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

use futures_util::lock::Mutex as TaskMutex;
use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_cache::{BlockChange, Blocks, Committed};
use plexus_interconnect::executor;

use crate::{
    Isolation, StoreError, Transaction, TransactionWatch,
    cleaning::Cleaning,
    layout::{self, HomeRow, ID_RANGE, STATUS_PAGE, StatusBlock, TakenStatus},
    space::{InUse, Owner, Space, Stock},
    transactions::{
        Number, Status, TransactionId,
        core::{Home, Notice, StatusPath},
        rows::{self, Unknown},
        service::Board,
    },
    tree::{ScanPlace, Tree},
};

/// The numbers of commits that a limit leaves. A larger one costs nothing but numbers.
const LIMIT_STEP: Number = 1 << 20;

/// The numbers that are left when the limit is raised.
const LIMIT_LEFT: Number = LIMIT_STEP / 4;

/// The free blocks below which a node takes an extent: more than a change of a tree needs, for many
/// changes at once.
const FEW_BLOCKS: usize = 64;

/// The free blocks with which a task goes on while another one looks for more.
const ENOUGH_BLOCKS: usize = 16;

/// The time in which a search for free blocks is not repeated that has found none.
const NOTHING_FOR: Duration = Duration::from_secs(10);

/// The time between two looks whether a dropped tree is gone, when nothing else is free, and the
/// most looks.
const DROP_WAIT: Duration = Duration::from_millis(20);
const DROP_WAITS: u32 = 150;

/// The most versions of one row that were read from a copy which is too old.
const MOST_RECYCLED: u32 = 100;

/// The wait before a failed look at the limits of other nodes is repeated.
const RETRY: Duration = Duration::from_millis(100);

/// The settings of a node's store.
pub struct StoreSettings {
    /// This node.
    pub me: NodeId,
    /// The incarnation of this node.
    pub incarnation: Incarnation,
    /// Returns whether the node is a member now, by its lease.
    pub is_member: Arc<dyn Fn() -> bool + Send + Sync>,
    /// The transactions after which all rows are cleaned of them; without it, a sixty-fourth of the
    /// disk group is used for their ends.
    pub clean_after: Option<u64>,
}

/// The store of a node. Cheap to clone.
pub struct Store<B> {
    shared: Arc<Shared<B>>,
}

impl<B> Clone for Store<B> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

pub(crate) struct Shared<B> {
    pub(crate) blocks: B,
    pub(crate) board: Arc<Board>,
    home: Home,
    pub(crate) is_member: Arc<dyn Fn() -> bool + Send + Sync>,
    /// The user bytes of a block.
    user: usize,
    pub(crate) stock: Stock,
    slots: TaskMutex<Slots>,
    status_blocks: Mutex<HashMap<u32, StatusBlock>>,
    /// Held by the task that looks for space; the trees that are gone of which none was found.
    refills: TaskMutex<Reclaimed>,
    ids: TaskMutex<std::ops::Range<u64>>,
    /// What this node has told the others.
    told: TaskMutex<HomeRow>,
    pub(crate) cleaning: Cleaning,
}

/// The slots that the next transactions of a node get.
#[derive(Default)]
struct Slots {
    /// The blocks, and the slots of the first one that are taken.
    blocks: VecDeque<TakenStatus>,
    next: usize,
}

/// The search for blocks of trees that are gone.
#[derive(Default)]
struct Reclaimed {
    /// The extent at which it goes on.
    next: u64,
    /// The trees that were gone when it was at the end, and had no blocks left.
    known: HashSet<u64>,
    /// The time when it was at the end, and the last round of cleaning then.
    ended: Option<(Instant, u64)>,
    /// The time when a wait for dropped trees was given up.
    given_up: Option<Instant>,
}

/// The trees that exist, those that are gone, and the other uses of blocks.
#[derive(Default)]
pub(crate) struct KnownTrees {
    pub(crate) in_use: InUse,
    /// The trees that no snapshot can show any more.
    pub(crate) gone: HashSet<u64>,
    /// A tree is dropped that a snapshot may show.
    pub(crate) has_dropped: bool,
}

/// The result of a question about a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub(crate) enum FoundOut {
    /// What there is to know for now.
    Known,
    /// No row names the transaction any more: who has read one that does, reads it again.
    Recycled,
}

impl<B: Blocks + Send + Sync + 'static> Store<B> {
    /// Opens the store of a node that is a member, and makes it if there is none. Calls `start`
    /// with work for a thread of tasks after each later view.
    ///
    /// # Errors
    /// A block cannot be had, or the disk group has something else.
    pub async fn open(
        blocks: B,
        board: Arc<Board>,
        settings: StoreSettings,
        start: impl Fn(Store<B>) + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let StoreSettings { me, incarnation, is_member, clean_after } = settings;
        // Otherwise a member could commit in the view before, and its number would not come here.
        while !board.look(|core| core.is_gathered()) {
            board.ask(|core, waiter| core.gather(waiter)).await.ok_or(StoreError::NoMember)?;
        }
        let user = blocks.read(BlockId(0)).await?.len();
        let stock = Stock::new(layout::make_or_open::<B, Stock>(&blocks).await?);
        let homes = layout::homes(&blocks, &stock).await?;
        let others = homes.iter().filter(|(home, _)| *home != (me, incarnation));
        // So the clock is above all numbers of commits that were acknowledged before this view.
        let limit = others.map(|(_, row)| row.limit).max().unwrap_or_default();
        board.act(|core| core.raise(limit));
        let home = Home { node: me, incarnation, since: board.look(|core| core.epoch()) };
        let cleaning = Cleaning::new(clean_after, blocks.blocks(), user as u64 / 8);
        let shared = Shared {
            blocks,
            board: board.clone(),
            home,
            is_member,
            user,
            stock,
            slots: TaskMutex::default(),
            status_blocks: Mutex::default(),
            refills: TaskMutex::default(),
            ids: TaskMutex::new(0..0),
            told: TaskMutex::default(),
            cleaning,
        };
        let store = Self { shared: Arc::new(shared) };
        let weak: Weak<Shared<B>> = Arc::downgrade(&store.shared);
        board.on_view(move || {
            if let Some(shared) = weak.upgrade() {
                start(Self { shared });
            }
        });
        // First: the search for space may need the ends of transactions of nodes that are gone.
        store.follow_view().await;
        let shared = &*store.shared;
        shared.refill().await?;
        shared.tell(|row| row.limit = limit + LIMIT_STEP).await?;
        board.act(|core| core.set_limit(limit + LIMIT_STEP));
        Ok(store)
    }

    /// Raises the clock above the numbers of all nodes that are gone in the present view, and tells
    /// the other members. Until all have done so, the ends of transactions of those nodes are not
    /// known. To be called after each view.
    pub async fn follow_view(&self) {
        let shared = &*self.shared;
        loop {
            let epoch = shared.board.look(|core| core.epoch());
            let is_gone = |node, incarnation| !shared.board.look(|core| core.is_member(node, incarnation));
            match layout::homes(&shared.blocks, &shared.stock).await {
                Ok(homes) => {
                    let gone = homes.iter().filter(|((node, other), _)| is_gone(*node, *other));
                    let limit = gone.map(|(_, row)| row.limit).max().unwrap_or_default();
                    let is_same = shared.board.act(|core| {
                        let is_same = core.epoch() == epoch;
                        if is_same {
                            core.raised(epoch, limit);
                        }
                        is_same
                    });
                    if is_same {
                        return;
                    }
                }
                Err(StoreError::Cache(plexus_cache::CacheError::ShuttingDown)) => return,
                Err(why) => {
                    tracing::warn!("the limits of other nodes cannot be read, trying again: {why}");
                    executor::sleep(RETRY).await;
                }
            }
        }
    }

    /// Begins a transaction. Its first statement takes its snapshot.
    #[must_use]
    pub fn begin(&self, isolation: Isolation) -> Transaction<B> {
        self.begin_watched(isolation, Arc::default())
    }

    /// Begins a transaction that other threads see.
    #[must_use]
    pub fn begin_watched(&self, isolation: Isolation, watch: Arc<TransactionWatch>) -> Transaction<B> {
        Transaction::new(self.clone(), isolation, watch)
    }

    /// Returns the root of the catalog, a tree that always exists.
    #[must_use]
    pub fn catalog(&self) -> BlockId {
        layout::CATALOG
    }

    /// Returns a number that no node of the cluster has got before.
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn fresh_id(&self) -> Result<u64, StoreError> {
        let mut ids = self.shared.ids.lock().await;
        if ids.is_empty() {
            let first = layout::take_ids(&self.shared.blocks).await?;
            *ids = first..first + ID_RANGE;
        }
        ids.start += 1;
        Ok(ids.start - 1)
    }

    pub(crate) fn shared(&self) -> &Arc<Shared<B>> {
        &self.shared
    }

    pub(crate) fn tree(&self, root: BlockId) -> Tree<'_, B, impl Space> {
        Tree::open(&self.shared.blocks, &self.shared.stock, root)
    }
}

impl<B> Shared<B> {
    fn know(&self, number: u32, status: StatusBlock) {
        self.status_blocks.lock().unwrap_or_else(PoisonError::into_inner).insert(number, status);
        self.board.act(|core| core.learn_home(number, status.home));
    }

    /// Returns the user bytes of a block.
    pub(crate) fn user(&self) -> usize {
        self.user
    }

    fn owner(&self) -> Owner {
        (self.home.node, self.home.incarnation)
    }
}

impl<B: Blocks + Send + Sync + 'static> Shared<B> {
    /// Begins a transaction that changes something.
    pub(crate) async fn new_id(self: &Arc<Self>) -> Result<TransactionId, StoreError> {
        loop {
            let mut slots = self.slots.lock().await;
            if let Some(taken) = slots.blocks.front().filter(|_| (1..self.user / 8).contains(&slots.next)) {
                let id = TransactionId::new(taken.number, slots.next as u16);
                slots.next += 1;
                self.board.act(|core| core.begin(id));
                return Ok(id);
            }
            drop(slots);
            // It goes on if this call is dropped: a block must not be made twice.
            let shared = Arc::clone(self);
            let made = executor::spawn(async move { shared.make_slots().await });
            made.await.unwrap_or(Err(StoreError::NoMember))?;
        }
    }

    /// Makes the next status block.
    async fn make_slots(&self) -> Result<(), StoreError> {
        self.refill().await?;
        let mut slots = self.slots.lock().await;
        if slots.next == self.user / 8 {
            slots.blocks.pop_front();
            slots.next = 0;
        }
        if slots.next > 0 {
            return Ok(());
        }
        if slots.blocks.is_empty() {
            slots.blocks.extend(layout::take_status(&self.blocks, &self.stock, self.home).await?);
        }
        let taken = slots.blocks.front().ok_or(StoreError::Full)?;
        let mut page = self.blocks.create(taken.free.block, STATUS_PAGE, taken.free.last).await?;
        page.write(0, &u64::from(taken.number).to_le_bytes());
        let committed = self.blocks.commit(vec![page]);
        self.stock.used(taken.free.block, committed);
        // A row that names one of its transactions may be durable on another node before it is.
        self.blocks.durable(committed).await?;
        self.know(taken.number, taken.status);
        slots.next = 1;
        Ok(())
    }
}

impl<B: Blocks> Shared<B> {
    pub(crate) fn status(&self, id: TransactionId, snapshot: Number) -> StatusPath {
        self.board.look(|core| core.status(id, snapshot))
    }

    /// Finds out what a reader or writer needs to know before it can go on.
    pub(crate) async fn find_out(
        &self,
        Unknown { id, snapshot, way }: Unknown,
        by: Option<TransactionId>,
    ) -> Result<FoundOut, StoreError> {
        match way {
            StatusPath::Known(_) => {}
            StatusPath::FindHome => {
                if self.status_block(id.status_block()).await?.is_none() {
                    return Ok(FoundOut::Recycled);
                }
            }
            StatusPath::Ask => {
                let answer = self.board.ask(|core, waiter| core.ask(id, snapshot, by, waiter));
                if answer.await.ok_or(StoreError::NoMember)? == Notice::Deadlock {
                    return Err(StoreError::Deadlock);
                }
            }
            StatusPath::ReadSlot => {
                let known = self.status_block(id.status_block()).await?;
                let Some((block, at)) = known.map(|status| status.slot(id)) else {
                    return Ok(FoundOut::Recycled);
                };
                let page = self.blocks.read(block).await?;
                if layout::status_number(&page) != Some(id.status_block()) {
                    drop(page);
                    self.forget(id.status_block());
                    return Ok(FoundOut::Recycled);
                }
                let number = page.get(at..at + 8).and_then(|slot| slot.try_into().ok());
                let status = match Number::from_le_bytes(number.unwrap_or_default()) {
                    0 => Status::Aborted,
                    number => Status::Committed(number),
                };
                drop(page);
                self.board.act(|core| core.learn(id, status));
            }
        }
        Ok(FoundOut::Known)
    }

    /// Finds out whether a transaction is at its end.
    ///
    /// # Errors
    /// [`StoreError::LockTimeout`] if it is not.
    pub(crate) async fn look_without_wait(&self, id: TransactionId) -> Result<(), StoreError> {
        // An answer for this snapshot needs no end.
        let snapshot = self.board.look(|core| core.clock());
        loop {
            match self.status(id, snapshot) {
                StatusPath::Known(Status::After(_)) => return Err(StoreError::LockTimeout),
                StatusPath::Known(_) => return Ok(()),
                way => {
                    if self.find_out(Unknown { id, snapshot, way }, None).await? == FoundOut::Recycled {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// Returns a status block; `None` if no row names its transactions.
    async fn status_block(&self, number: u32) -> Result<Option<StatusBlock>, StoreError> {
        let known = self.status_blocks.lock().unwrap_or_else(PoisonError::into_inner).get(&number).copied();
        if known.is_some() {
            return Ok(known);
        }
        let found = layout::find_status(&self.blocks, &self.stock, number).await?;
        found.into_iter().for_each(|found| self.know(number, found));
        Ok(found)
    }

    fn forget(&self, number: u32) {
        self.status_blocks.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// Forgets status blocks that are free.
    pub(crate) fn forget_status_blocks(&self, below: u32) {
        // First: a status block that is known has a home.
        self.board.act(|core| core.forget_homes(below));
        let mut known = self.status_blocks.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|number, _| *number >= below);
    }

    /// Takes an extent of space if there are few free blocks.
    pub(crate) async fn refill(&self) -> Result<(), StoreError> {
        let mut waits = 0;
        while self.stock.count() < FEW_BLOCKS {
            let mut reclaimed = match self.refills.try_lock() {
                Some(reclaimed) => reclaimed,
                // Another task looks for some, and there are enough for this one.
                None if self.stock.count() >= ENOUGH_BLOCKS => break,
                None => self.refills.lock().await,
            };
            if self.stock.count() >= FEW_BLOCKS {
                break;
            }
            self.stock.release_used(&self.blocks, self.owner()).await?;
            let is_gone = |(node, incarnation)| !self.board.look(|core| core.is_member(node, incarnation));
            let mut live = async || Ok(self.known_trees().await?.in_use);
            if self.stock.claim(&self.blocks, self.owner(), is_gone, &mut live).await? {
                continue;
            }
            if self.reclaim(&mut reclaimed).await? {
                continue;
            }
            // The last blocks may be enough. Otherwise a drop frees some when no snapshot shows its
            // tree any more: that of a node that cleans is old for a moment.
            let may_wait = reclaimed.given_up.is_none_or(|given_up| given_up.elapsed() >= NOTHING_FOR);
            if self.stock.count() >= ENOUGH_BLOCKS || !may_wait || !self.known_trees().await?.has_dropped {
                break;
            }
            waits += 1;
            if waits > DROP_WAITS {
                reclaimed.given_up = Some(Instant::now());
                break;
            }
            drop(reclaimed);
            self.board.act(|core| core.refresh());
            executor::sleep(DROP_WAIT).await;
        }
        Ok(())
    }

    /// Looks for free blocks in all extents that no node has. Returns whether it has found enough.
    async fn reclaim(&self, reclaimed: &mut Reclaimed) -> Result<bool, StoreError> {
        let gone = self.known_trees().await?.gone;
        let mut live = async || Ok(self.known_trees().await?.in_use);
        let round = layout::handed_out(&self.blocks).await?.round;
        let is_late =
            reclaimed.ended.is_none_or(|(ended, last)| ended.elapsed() >= NOTHING_FOR || last != round);
        if gone.is_subset(&reclaimed.known) && !is_late {
            return Ok(false);
        }
        self.remove_pieces(&gone).await?;
        let (first, mut is_again) = (reclaimed.next, false);
        loop {
            let (me, from) = (self.owner(), reclaimed.next);
            let next = self.stock.reclaim(&self.blocks, me, from, 2 * FEW_BLOCKS, &mut live).await?;
            reclaimed.next = next.unwrap_or(0);
            if next.is_some() {
                return Ok(true);
            }
            // From the begin up to where this search began; then all blocks of these trees are
            // used.
            if first == 0 || is_again {
                (reclaimed.known, reclaimed.ended) = (gone, Some((Instant::now(), round)));
                return Ok(self.stock.count() >= FEW_BLOCKS);
            }
            is_again = true;
        }
    }

    /// Returns what is in use, and the trees that no snapshot can show any more.
    pub(crate) async fn known_trees(&self) -> Result<KnownTrees, StoreError> {
        self.known_trees_at(self.board.look(|core| core.horizon().lowest())).await
    }

    /// The same for snapshots from this one on.
    pub(crate) async fn known_trees_at(&self, lowest: Number) -> Result<KnownTrees, StoreError> {
        let mut trees = KnownTrees::default();
        trees.in_use.first_status = layout::handed_out(&self.blocks).await?.first_status;
        trees.in_use.trees.extend(layout::FIRST_TREES.map(|block| block.0));
        for (number, value) in self.tree_rows().await? {
            let is_dropped = rows::is_removed(&value);
            match self.is_gone_at(number, value, lowest).await? {
                true => trees.gone.insert(number),
                false => {
                    trees.has_dropped |= is_dropped;
                    trees.in_use.trees.insert(number)
                }
            };
        }
        Ok(trees)
    }

    /// Returns the rows of the tree of trees, by the numbers of the trees.
    pub(crate) async fn tree_rows(&self) -> Result<Vec<(u64, Vec<u8>)>, StoreError> {
        let tree = Tree::open(&self.blocks, &self.stock, layout::TREES);
        let (mut rows, mut place) = (Vec::new(), Some(ScanPlace::from(&[])));
        while let Some(from) = place {
            let scanned = tree.scan(&from, 256).await?;
            for (key, value) in scanned.entries.iter() {
                let number = key.try_into().map(u64::from_be_bytes);
                rows.push((number.map_err(|_| malformed(layout::TREES))?, value.to_vec()));
            }
            place = scanned.next;
        }
        Ok(rows)
    }

    /// Looks at a row of a tree, once the states that it needs are known. Returns `None` if the row
    /// is gone.
    pub(crate) async fn look_at<T>(
        &self,
        tree: BlockId,
        key: &[u8],
        mut value: Vec<u8>,
        look: impl Fn(&[u8]) -> Result<T, rows::RowFault>,
    ) -> Result<Option<T>, StoreError> {
        let mut recycled = 0;
        loop {
            match look(&value) {
                Ok(seen) => return Ok(Some(seen)),
                Err(rows::RowFault::Malformed) => return Err(malformed(tree)),
                Err(rows::RowFault::Unknown(unknown)) => {
                    if self.find_out(unknown, None).await? == FoundOut::Recycled {
                        count_recycled(tree, &mut recycled)?;
                        let again = Tree::open(&self.blocks, &self.stock, tree).get(key).await?;
                        let Some(again) = again else { return Ok(None) };
                        value = again;
                    }
                }
            }
        }
    }

    /// Returns whether no snapshot can show a tree any more.
    pub(crate) async fn is_gone(&self, tree: u64, value: Vec<u8>) -> Result<bool, StoreError> {
        self.is_gone_at(tree, value, self.board.look(|core| core.horizon().lowest())).await
    }

    async fn is_gone_at(&self, tree: u64, value: Vec<u8>, lowest: Number) -> Result<bool, StoreError> {
        let is_gone = |value: &[u8]| rows::is_gone(value, lowest, |id| self.status(id, lowest));
        Ok(self.look_at(layout::TREES, &tree.to_be_bytes(), value, is_gone).await?.unwrap_or(true))
    }

    async fn raise_limit(&self) -> Result<(), StoreError> {
        let mut told = self.told.lock().await;
        let (left, clock) = self.board.look(|core| (core.left(), core.clock()));
        if left < LIMIT_LEFT {
            let row = HomeRow { limit: clock + LIMIT_STEP, ..*told };
            layout::put_home(&self.blocks, &self.stock, self.owner(), row).await?;
            *told = row;
            self.board.act(|core| core.set_limit(row.limit));
        }
        Ok(())
    }

    /// Tells all nodes something durably.
    async fn tell(&self, act: impl FnOnce(&mut HomeRow)) -> Result<(), StoreError> {
        let mut told = self.told.lock().await;
        let mut row = *told;
        act(&mut row);
        layout::put_home(&self.blocks, &self.stock, self.owner(), row).await?;
        *told = row;
        Ok(())
    }

    /// Answers a round of cleaning, unless it has done so.
    pub(crate) async fn answer(&self, round: u64) -> Result<(), StoreError> {
        if self.told.lock().await.round >= round {
            return Ok(());
        }
        let mut slots = self.slots.lock().await;
        // Later transactions get slots of later blocks.
        let is_used = slots.next > 0;
        slots.next = 0;
        for taken in slots.blocks.drain(..).skip(usize::from(is_used)) {
            self.stock.give_back(taken.free);
        }
        // Those that begin now wait for the slots.
        let oldest = self.board.look(|core| core.oldest()).unwrap_or(u32::MAX);
        drop(slots);
        self.tell(|row| (row.round, row.oldest) = (round, oldest)).await
    }

    /// Commits a transaction that has changed something.
    pub(crate) async fn commit(&self, id: TransactionId, granted: u64) -> Result<(), StoreError> {
        let number = loop {
            if self.board.look(|core| core.left()) < LIMIT_LEFT {
                self.raise_limit().await?;
            }
            match self.board.ask(|core, waiter| core.draw(id, granted, waiter)).await {
                Some(Notice::Drawn(number)) => break number,
                Some(_) => {}
                None => return Err(StoreError::NoMember),
            }
        };
        let missing = StoreError::Damaged { block: layout::STATUS, what: "a status block is missing" };
        let (block, at) = self.status_block(id.status_block()).await?.ok_or(missing)?.slot(id);
        let recorded = self.record(block, at, number).await?;
        self.blocks.durable(recorded).await?;
        let ended = self.board.ask(|core, waiter| core.durable(id, waiter)).await;
        ended.map(drop).ok_or(StoreError::NoMember)
    }

    async fn record(&self, block: BlockId, at: usize, number: Number) -> Result<Committed, StoreError> {
        let mut page = self.blocks.change(block).await?;
        page.write(at, &number.to_le_bytes());
        Ok(self.blocks.commit(vec![page]))
    }
}

/// Counts that the end of a transaction is not known any more that a row has named.
pub(crate) fn count_recycled(tree: BlockId, count: &mut u32) -> Result<(), StoreError> {
    *count += 1;
    match *count > MOST_RECYCLED {
        true => Err(StoreError::Damaged { block: tree, what: "a row names a transaction that is not known" }),
        false => Ok(()),
    }
}

pub(crate) fn malformed(block: BlockId) -> StoreError {
    StoreError::Damaged { block, what: "a row of this tree is malformed" }
}
