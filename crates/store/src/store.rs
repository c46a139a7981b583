//! The store of a node: where transactions begin, and what they do.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use futures_util::lock::Mutex as TaskMutex;
use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_cache::{Blocks, Committed};
use plexus_interconnect::executor;

use crate::{
    Isolation, StoreError, Transaction, TransactionWatch,
    layout::{self, ID_RANGE, STATUS_PAGE, StatusBlock, TakenStatus},
    space::{Owner, Space, Stock},
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
    /// Held by the task that raises the limit.
    limit: TaskMutex<()>,
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
}

/// The trees that have a row.
#[derive(Default)]
pub(crate) struct KnownTrees {
    pub(crate) live: HashSet<u64>,
    /// Those that no snapshot can show any more.
    gone: HashSet<u64>,
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
        let StoreSettings { me, incarnation, is_member } = settings;
        // Otherwise a member could commit in the view before, and its number would not come here.
        while !board.look(|core| core.is_gathered()) {
            board.ask(|core, waiter| core.gather(waiter)).await.ok_or(StoreError::NoMember)?;
        }
        let user = blocks.read(BlockId(0)).await?.len();
        let stock = Stock::new(layout::make_or_open::<B, Stock>(&blocks).await?);
        let others = |node, other| (node, other) != (me, incarnation);
        // So the clock is above all numbers of commits that were acknowledged before this view.
        let limit = layout::highest_limit(&blocks, &stock, others).await?;
        board.act(|core| core.raise(limit));
        let home = Home { node: me, incarnation, since: board.look(|core| core.epoch()) };
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
            limit: TaskMutex::new(()),
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
        layout::put_limit(&shared.blocks, &shared.stock, home, limit + LIMIT_STEP).await?;
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
            match layout::highest_limit(&shared.blocks, &shared.stock, is_gone).await {
                Ok(limit) => {
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

    fn owner(&self) -> Owner {
        (self.home.node, self.home.incarnation)
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
    ) -> Result<(), StoreError> {
        match way {
            StatusPath::Known(_) => {}
            StatusPath::FindHome => drop(self.status_block(id).await?),
            StatusPath::Ask => {
                let answer = self.board.ask(|core, waiter| core.ask(id, snapshot, by, waiter));
                if answer.await.ok_or(StoreError::NoMember)? == Notice::Deadlock {
                    return Err(StoreError::Deadlock);
                }
            }
            StatusPath::ReadSlot => {
                let (block, at) = self.status_block(id).await?.slot(id);
                let page = self.blocks.read(block).await?;
                let number = page.get(at..at + 8).and_then(|slot| slot.try_into().ok());
                let status = match Number::from_le_bytes(number.unwrap_or_default()) {
                    0 => Status::Aborted,
                    number => Status::Committed(number),
                };
                drop(page);
                self.board.act(|core| core.learn(id, status));
            }
        }
        Ok(())
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
                way => self.find_out(Unknown { id, snapshot, way }, None).await?,
            }
        }
    }

    async fn status_block(&self, id: TransactionId) -> Result<StatusBlock, StoreError> {
        let number = id.status_block();
        let known = self.status_blocks.lock().unwrap_or_else(PoisonError::into_inner).get(&number).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = layout::find_status(&self.blocks, &self.stock, number).await?;
        let missing = StoreError::Damaged { block: BlockId(0), what: "a status block is missing" };
        let found = found.ok_or(missing)?;
        self.know(number, found);
        Ok(found)
    }

    /// Takes an extent of space if there are few free blocks.
    pub(crate) async fn refill(&self) -> Result<(), StoreError> {
        while self.stock.count() < FEW_BLOCKS {
            let mut reclaimed = self.refills.lock().await;
            if self.stock.count() >= FEW_BLOCKS {
                break;
            }
            self.stock.release_used(&self.blocks, self.owner()).await?;
            let is_gone = |(node, incarnation)| !self.board.look(|core| core.is_member(node, incarnation));
            let mut live = async || Ok(self.known_trees().await?.live);
            if self.stock.claim(&self.blocks, self.owner(), is_gone, &mut live).await? {
                continue;
            }
            if !self.reclaim(&mut reclaimed).await? {
                // The last blocks may be enough.
                break;
            }
        }
        Ok(())
    }

    /// Looks for blocks of trees that are gone. Returns whether it has found enough.
    async fn reclaim(&self, reclaimed: &mut Reclaimed) -> Result<bool, StoreError> {
        let gone = self.known_trees().await?.gone;
        let mut live = async || Ok(self.known_trees().await?.live);
        if gone.is_subset(&reclaimed.known) {
            return Ok(false);
        }
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
                reclaimed.known = gone;
                return Ok(self.stock.count() >= FEW_BLOCKS);
            }
            is_again = true;
        }
    }

    /// Returns the trees that have a row, and those that no snapshot can show any more.
    pub(crate) async fn known_trees(&self) -> Result<KnownTrees, StoreError> {
        let mut trees = KnownTrees::default();
        trees.live.extend(layout::FIRST_TREES.map(|block| block.0));
        let lowest = self.board.look(|core| core.horizon().lowest());
        let tree = Tree::open(&self.blocks, &self.stock, layout::TREES);
        let mut place = Some(ScanPlace::from(&[]));
        while let Some(from) = place {
            let scanned = tree.scan(&from, 256).await?;
            for (key, value) in scanned.entries {
                let number = key.try_into().map(u64::from_be_bytes);
                let number = number.map_err(|_| malformed(layout::TREES))?;
                match self.is_gone(&value, lowest).await? {
                    true => trees.gone.insert(number),
                    false => trees.live.insert(number),
                };
            }
            place = scanned.next;
        }
        Ok(trees)
    }

    /// Returns whether no snapshot can show a row of the tree of trees any more.
    async fn is_gone(&self, value: &[u8], lowest: Number) -> Result<bool, StoreError> {
        loop {
            match rows::is_gone(value, lowest, |id| self.status(id, lowest)) {
                Ok(is_gone) => return Ok(is_gone),
                Err(rows::RowFault::Malformed) => return Err(malformed(layout::TREES)),
                Err(rows::RowFault::Unknown(unknown)) => self.find_out(unknown, None).await?,
            }
        }
    }

    /// Begins a transaction that changes something.
    pub(crate) async fn new_id(&self) -> Result<TransactionId, StoreError> {
        let mut slots = self.slots.lock().await;
        if slots.next == self.user / 8 {
            slots.blocks.pop_front();
            slots.next = 0;
        }
        if slots.blocks.is_empty() {
            slots.blocks.extend(layout::take_status(&self.blocks, &self.stock, self.home).await?);
        }
        let slot = slots.next as u16;
        let taken = slots.blocks.front().ok_or(StoreError::Full)?;
        let id = TransactionId::new(taken.number, slot);
        if slot == 0 {
            let page = self.blocks.create(taken.free.block, STATUS_PAGE, taken.free.last).await?;
            let committed = self.blocks.commit(vec![page]);
            self.stock.used(taken.free.block, committed);
            self.know(taken.number, taken.status);
        }
        slots.next += 1;
        self.board.act(|core| core.begin(id));
        Ok(id)
    }

    async fn raise_limit(&self) -> Result<(), StoreError> {
        let _raises = self.limit.lock().await;
        let (left, clock) = self.board.look(|core| (core.left(), core.clock()));
        if left < LIMIT_LEFT {
            let limit = clock + LIMIT_STEP;
            layout::put_limit(&self.blocks, &self.stock, self.home, limit).await?;
            self.board.act(|core| core.set_limit(limit));
        }
        Ok(())
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
        let (block, at) = self.status_block(id).await?.slot(id);
        let recorded = self.record(block, at, number).await?;
        self.blocks.durable(recorded).await?;
        let ended = self.board.ask(|core, waiter| core.durable(id, waiter)).await;
        ended.map(drop).ok_or(StoreError::NoMember)
    }

    async fn record(&self, block: BlockId, at: usize, number: Number) -> Result<Committed, StoreError> {
        use plexus_cache::BlockChange;

        let mut page = self.blocks.change(block).await?;
        page.write(at, &number.to_le_bytes());
        Ok(self.blocks.commit(vec![page]))
    }
}

pub(crate) fn malformed(block: BlockId) -> StoreError {
    StoreError::Damaged { block, what: "a row of this tree is malformed" }
}
