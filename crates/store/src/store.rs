//! The store of a node: where transactions begin, and what they do.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::lock::Mutex as TaskMutex;
use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_cache::{Blocks, Committed};
use plexus_interconnect::executor;

use crate::{
    StoreError,
    layout::{self, ID_RANGE, STATUS_PAGE, StatusBlock, TakenStatus},
    space::{Owner, Space, Stock},
    transactions::{
        Number, Status, TransactionId,
        core::{Home, Notice, StatusPath},
        rows::{self, Changed, Changer, RowChange, Step, Unknown, VERSION_BYTES},
        service::Board,
    },
    tree::{OwnedEntry, ScanPlace, Tree},
};

/// The numbers of commits that a limit leaves. A larger one costs nothing but numbers.
const LIMIT_STEP: Number = 1 << 20;

/// The numbers that are left when the limit is raised.
const LIMIT_LEFT: Number = LIMIT_STEP / 4;

/// The free blocks below which a node takes an extent: more than a change of a tree needs, for many
/// changes at once.
const FEW_BLOCKS: usize = 64;

/// The most rows of one part of a scan.
const SCAN_ROWS: usize = 64;

/// The wait of a change for which the versions of its row leave no room.
const NO_ROOM_WAIT: Duration = Duration::from_millis(1);

/// The most such waits.
const NO_ROOM_WAITS: usize = 10_000;

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

/// The isolation of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Isolation {
    /// Each statement has a snapshot of its own.
    #[default]
    ReadCommitted,
    /// The transaction has one snapshot; the first of two that change a row wins.
    RepeatableRead,
}

/// A place in a transaction to which it can be rolled back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Savepoint(Step);

/// The part of a transaction that other threads see.
#[derive(Default, Debug)]
pub struct TransactionWatch {
    /// The number of the transaction plus one; 0 before its first change.
    id: AtomicU64,
    waits_for: AtomicU64,
}

impl TransactionWatch {
    fn read(number: &AtomicU64) -> Option<TransactionId> {
        number.load(Relaxed).checked_sub(1).map(TransactionId)
    }

    /// Returns the transaction, from its first change to its end.
    #[must_use]
    pub fn id(&self) -> Option<TransactionId> {
        Self::read(&self.id)
    }

    /// Returns the transaction whose end it waits for.
    #[must_use]
    pub fn waits_for(&self) -> Option<TransactionId> {
        Self::read(&self.waits_for)
    }
}

/// The number of a [`TransactionWatch`] that is zero again when this is dropped.
struct Watched<'a>(&'a AtomicU64);

impl<'a> Watched<'a> {
    fn new(number: &'a AtomicU64, id: TransactionId) -> Self {
        number.store(id.0 + 1, Relaxed);
        Self(number)
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.0.store(0, Relaxed);
    }
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
    board: Arc<Board>,
    home: Home,
    is_member: Arc<dyn Fn() -> bool + Send + Sync>,
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
        // The tree of trees has the pages that it needs for this; a page for each other tree follows.
        shared.refill().await?;
        layout::put_limit(&shared.blocks, &shared.stock, home, limit + LIMIT_STEP).await?;
        board.act(|core| core.set_limit(limit + LIMIT_STEP));
        let store = Self { shared: Arc::new(shared) };
        let weak: Weak<Shared<B>> = Arc::downgrade(&store.shared);
        board.on_view(move || {
            if let Some(shared) = weak.upgrade() {
                start(Self { shared });
            }
        });
        store.follow_view().await;
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
        Transaction {
            watch,
            longest_wait: None,
            never_waits: false,
            store: self.clone(),
            isolation,
            id: None,
            snapshot: None,
            step: 0,
            changed: Vec::new(),
            is_over: false,
        }
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

    pub(crate) fn shared(&self) -> &Shared<B> {
        &self.shared
    }

    fn tree(&self, root: BlockId) -> Tree<'_, B, impl Space> {
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
    fn status(&self, id: TransactionId, snapshot: Number) -> StatusPath {
        self.board.look(|core| core.status(id, snapshot))
    }

    /// Finds out what a reader or writer needs to know before it can go on.
    async fn find_out(
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
    async fn look_without_wait(&self, id: TransactionId) -> Result<(), StoreError> {
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
    async fn refill(&self) -> Result<(), StoreError> {
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
        let KnownTrees { live, gone } = self.known_trees().await?;
        if gone.is_subset(&reclaimed.known) {
            return Ok(false);
        }
        let (from, mut is_again) = (reclaimed.next, false);
        loop {
            let next =
                self.stock.reclaim(&self.blocks, self.owner(), reclaimed.next, 2 * FEW_BLOCKS, &live).await?;
            reclaimed.next = next.unwrap_or(0);
            if next.is_some() {
                return Ok(true);
            }
            // From the begin up to where this search began; then all blocks of these trees are used.
            if from == 0 || is_again {
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
                // It is needed as long as its transaction is under way.
                Err(rows::RowFault::Unknown(Unknown { way: StatusPath::Ask, .. })) => return Ok(false),
                Err(rows::RowFault::Unknown(unknown)) => self.find_out(unknown, None).await?,
            }
        }
    }

    /// Begins a transaction that changes something.
    async fn new_id(&self) -> Result<TransactionId, StoreError> {
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
    async fn commit(&self, id: TransactionId) -> Result<(), StoreError> {
        let number = loop {
            if self.board.look(|core| core.left()) < LIMIT_LEFT {
                self.raise_limit().await?;
            }
            match self.board.ask(|core, waiter| core.draw(id, waiter)).await {
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

/// A transaction. It is rolled back if it is dropped. After an error it can only be rolled back,
/// wholly or to a savepoint.
pub struct Transaction<B: Blocks + Send + Sync + 'static> {
    store: Store<B>,
    watch: Arc<TransactionWatch>,
    longest_wait: Option<Duration>,
    /// A row that another transaction has changed and not committed is refused.
    never_waits: bool,
    isolation: Isolation,
    /// Set with the first change.
    id: Option<TransactionId>,
    snapshot: Option<Number>,
    step: Step,
    /// The rows that were changed since the first savepoint.
    changed: Vec<(Step, BlockId, Vec<u8>)>,
    is_over: bool,
}

impl<B: Blocks + Send + Sync + 'static> Transaction<B> {
    /// Returns true if it has neither read nor changed anything.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.id.is_none() && self.snapshot.is_none()
    }

    pub(crate) fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Limits each later wait for another transaction.
    pub fn limit_waits(&mut self, longest: Option<Duration>) {
        self.longest_wait = longest;
    }

    /// Lets changes of this statement fail with [`StoreError::LockTimeout`] rather than wait for
    /// another transaction.
    pub fn never_wait(&mut self, never: bool) {
        self.never_waits = never;
    }

    /// Lets the next read take a new snapshot, unless the transaction has one for all statements.
    pub fn begin_statement(&mut self) {
        self.never_waits = false;
        if self.isolation == Isolation::ReadCommitted {
            self.release();
        }
    }

    fn release(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            self.store.shared.board.act(|core| core.release(snapshot));
        }
    }

    fn snapshot(&mut self) -> Result<Number, StoreError> {
        if let Some(snapshot) = self.snapshot {
            return Ok(snapshot);
        }
        let snapshot = self.store.shared.board.act(|core| core.snapshot());
        self.snapshot = Some(snapshot);
        // A node that is no member does not know the latest commits.
        match (self.store.shared.is_member)() {
            true => Ok(snapshot),
            false => Err(StoreError::NoMember),
        }
    }

    /// Returns the contents of a row.
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn get(&mut self, tree: BlockId, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let snapshot = self.snapshot()?;
        let Some(value) = self.store.tree(tree).get(key).await? else { return Ok(None) };
        self.shown(tree, &value, snapshot).await
    }

    /// Returns the contents that the snapshot shows of a row.
    async fn shown(
        &self,
        tree: BlockId,
        value: &[u8],
        snapshot: Number,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let shared = &*self.store.shared;
        loop {
            match rows::visible(value, self.id, snapshot, |id, snapshot| shared.status(id, snapshot)) {
                Ok(contents) => return Ok(contents.map(<[u8]>::to_vec)),
                Err(rows::RowFault::Malformed) => return Err(malformed(tree)),
                Err(rows::RowFault::Unknown(unknown)) => shared.find_out(unknown, None).await?,
            }
        }
    }

    /// Returns rows from a place on, and the place behind them; `None` at the end. There may be no
    /// row in a part.
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn scan(
        &mut self,
        tree: BlockId,
        from: &ScanPlace,
    ) -> Result<(Vec<OwnedEntry>, Option<ScanPlace>), StoreError> {
        let snapshot = self.snapshot()?;
        let scanned = self.store.tree(tree).scan(from, SCAN_ROWS).await?;
        Ok((self.all_shown(tree, scanned.entries, snapshot).await?, scanned.next))
    }

    /// Returns rows below a key, or the last ones, the last first, and the key below which the next
    /// are; `None` at the end.
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn scan_back(
        &mut self,
        tree: BlockId,
        below: Option<&[u8]>,
    ) -> Result<(Vec<OwnedEntry>, Option<Vec<u8>>), StoreError> {
        let snapshot = self.snapshot()?;
        let (entries, next) = self.store.tree(tree).scan_back(below, SCAN_ROWS).await?;
        Ok((self.all_shown(tree, entries, snapshot).await?, next))
    }

    async fn all_shown(
        &self,
        tree: BlockId,
        entries: Vec<OwnedEntry>,
        snapshot: Number,
    ) -> Result<Vec<OwnedEntry>, StoreError> {
        let mut shown = Vec::with_capacity(entries.len());
        for (key, value) in entries {
            shown.extend(self.shown(tree, &value, snapshot).await?.map(|contents| (key, contents)));
        }
        Ok(shown)
    }

    /// Changes a row. Waits for a transaction that has changed it and is not at its end. `decide`
    /// then gets the newest contents that are committed or of this transaction; it may be called
    /// more than once, and the last call counts.
    ///
    /// # Errors
    /// [`StoreError::Serialization`] if another transaction has changed the row since the snapshot
    /// of [`Isolation::RepeatableRead`]; a block cannot be had; there is no room.
    pub async fn change(
        &mut self,
        tree: BlockId,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&[u8]>) -> RowChange,
    ) -> Result<(), StoreError> {
        let snapshot = match self.isolation {
            Isolation::ReadCommitted => None,
            Isolation::RepeatableRead => Some(self.snapshot()?),
        };
        let shared = self.store.shared.clone();
        let id = match self.id {
            Some(id) => id,
            None => {
                let id = *self.id.insert(shared.new_id().await?);
                self.watch.id.store(id.0 + 1, Relaxed);
                id
            }
        };
        if self.step > 0 {
            self.changed.push((self.step, tree, key.to_vec()));
        }
        let mut waits = 0;
        loop {
            shared.refill().await?;
            let horizon = shared.board.look(|core| core.horizon());
            let by = Changer { id, step: self.step, snapshot, horizon: &horizon };
            let status = |id, snapshot| shared.status(id, snapshot);
            let mut longest = 0;
            let mut decide = |contents: Option<&[u8]>| {
                let decided = decide(contents);
                if let RowChange::Set(contents) = &decided {
                    longest = contents.len();
                }
                decided
            };
            let changed =
                self.store.tree(tree).change(key, |value| rows::change(value, by, status, &mut decide)).await;
            match changed {
                Ok((Changed::Done, _)) => return Ok(()),
                Ok((Changed::Serialization, _)) => return Err(StoreError::Serialization),
                Ok((Changed::Malformed, _)) => return Err(malformed(tree)),
                Ok((Changed::Unknown(unknown), _)) if self.never_waits => {
                    shared.look_without_wait(unknown.id).await?;
                }
                Ok((Changed::Unknown(unknown), _)) => {
                    let _watched = Watched::new(&self.watch.waits_for, unknown.id);
                    let found = shared.find_out(unknown, Some(id));
                    match self.longest_wait {
                        None => found.await?,
                        Some(longest) => {
                            executor::timeout(longest, found)
                                .await
                                .unwrap_or(Err(StoreError::LockTimeout))?;
                        }
                    }
                }
                // Older versions take the room that this one needs, until no snapshot needs them.
                Err(StoreError::TooLong { most, .. })
                    if key.len() + longest + VERSION_BYTES <= most && waits < NO_ROOM_WAITS =>
                {
                    waits += 1;
                    shared.board.act(|core| core.refresh());
                    executor::sleep(NO_ROOM_WAIT).await;
                }
                Err(why) => return Err(why),
            }
        }
    }

    /// Makes a new, empty tree. Returns its root. If the transaction is rolled back, the space of
    /// the tree is free again.
    ///
    /// # Errors
    /// There is no room, or a block cannot be had.
    pub async fn create_tree(&mut self) -> Result<BlockId, StoreError> {
        let shared = self.store.shared.clone();
        let number = self.store.fresh_id().await?;
        shared.refill().await?;
        let root = shared.stock.take().await?;
        let block = root.block.0.to_le_bytes().to_vec();
        let set = &mut |_: Option<&[u8]>| RowChange::Set(block.clone());
        // The row is first: a page whose tree has none is free.
        let made = match self.change(layout::TREES, &number.to_be_bytes(), set).await {
            Ok(()) => Tree::<'_, B, Stock>::new_root(&shared.blocks, root, number).await,
            Err(why) => Err(why),
        };
        match made {
            Ok(page) => {
                let committed = shared.blocks.commit_in_order(vec![page]);
                shared.stock.used(root.block, committed);
                Ok(root.block)
            }
            Err(why) => {
                shared.stock.give_back(root);
                Err(why)
            }
        }
    }

    /// Removes a tree. Its space is free when no snapshot can show it any more; until then others
    /// may read it.
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn drop_tree(&mut self, root: BlockId) -> Result<(), StoreError> {
        let number = self.store.tree(root).number().await?;
        self.change(layout::TREES, &number.to_be_bytes(), &mut |_| RowChange::Remove).await
    }

    /// Returns a place to which the transaction can be rolled back.
    pub fn savepoint(&mut self) -> Savepoint {
        self.step += 1;
        Savepoint(self.step)
    }

    /// Rolls back all changes since a savepoint, which can be used again.
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn rollback_to(&mut self, place: Savepoint) -> Result<(), StoreError> {
        let Some(id) = self.id else { return Ok(()) };
        while self.changed.last().is_some_and(|(step, ..)| *step >= place.0) {
            let Some((_, tree, key)) = self.changed.pop() else { break };
            let undo = |value: Option<&[u8]>| rows::undo(value, id, place.0);
            let (changed, _) = self.store.tree(tree).change(&key, undo).await?;
            if changed == Changed::Malformed {
                return Err(malformed(tree));
            }
        }
        self.step += 1;
        Ok(())
    }

    /// Commits. When it returns, the changes are durable, and every node shows them to
    /// transactions that begin.
    ///
    /// # Errors
    /// The node is no longer a member, or its redo has failed: the outcome is not known.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        self.release();
        self.is_over = true;
        let Some(id) = self.id else { return Ok(()) };
        let shared = self.store.shared.clone();
        // Who waits for the end of the transaction must see it, also if this wait is given up.
        let commit = executor::spawn(async move { shared.commit(id).await });
        commit.await.unwrap_or(Err(StoreError::NoMember))
    }

    /// Rolls back all changes.
    pub fn rollback(self) {}
}

impl<B: Blocks + Send + Sync + 'static> Drop for Transaction<B> {
    fn drop(&mut self) {
        self.release();
        self.watch.id.store(0, Relaxed);
        if let Some(id) = self.id.filter(|_| !self.is_over) {
            self.store.shared.board.act(|core| core.abort(id));
        }
    }
}

fn malformed(block: BlockId) -> StoreError {
    StoreError::Damaged { block, what: "a row of this tree is malformed" }
}
