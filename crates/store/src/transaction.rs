//! A transaction: what it reads, changes and waits for.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use plexus_base::BlockId;
use plexus_cache::Blocks;
use plexus_interconnect::executor;

use crate::{
    RowChange, Store, StoreError,
    cleaning::Tally,
    layout,
    long::{self, LongChange, LongContents, Wanted},
    space::{Space, Stock},
    store::{FoundOut, count_recycled, malformed},
    transactions::{
        Number, Status, TransactionId,
        core::StatusPath,
        rows::{self, Changed, Changer, Contents, Decided, RowLock, Step, VERSION_BYTES},
    },
    tree::{Entries, EntryChange, OwnedEntry, ScanPlace, Tree},
};

/// The most rows of one part of a scan.
const SCAN_ROWS: usize = 64;

/// The bytes of contents after which a part of a scan ends.
const SCAN_BYTES: usize = 4 << 20;

/// The wait of a change for which the versions of its row leave no room.
const NO_ROOM_WAIT: Duration = Duration::from_millis(1);

/// The most such waits.
const NO_ROOM_WAITS: usize = 10_000;

/// The isolation of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Isolation {
    /// Each statement has a snapshot of its own.
    #[default]
    ReadCommitted,
    /// The transaction has one snapshot; the first of two that change a row wins.
    RepeatableRead,
}

/// The rows of a part of a scan.
#[derive(Default)]
struct ScannedPart {
    /// Their contents.
    entries: Entries,
    /// The entries that are whole rows still, in their order.
    open: Vec<usize>,
    /// The writer of the row before, if it has committed: many rows have the same one.
    writer: Cell<Option<(TransactionId, Status)>>,
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
    /// The snapshot plus one; 0 without one.
    snapshot: AtomicU64,
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

    /// Returns its snapshot: versions of rows stay that it shows.
    #[must_use]
    pub fn snapshot(&self) -> Option<u64> {
        self.snapshot.load(Relaxed).checked_sub(1)
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
    /// The newest grant of the leaves that were changed.
    granted: u64,
    step: Step,
    /// The steps of the savepoints that are left, rising.
    places: Vec<Step>,
    /// It has changed a row, not only locked some.
    pub(crate) has_changed: bool,
    /// The rows that were changed or locked since the first savepoint.
    changed: Vec<(Step, BlockId, Vec<u8>)>,
    /// What it has done with each tree.
    tallies: Vec<(BlockId, Tally)>,
    is_over: bool,
}

impl<B: Blocks + Send + Sync + 'static> Transaction<B> {
    pub(crate) fn new(store: Store<B>, isolation: Isolation, watch: Arc<TransactionWatch>) -> Self {
        Self {
            store,
            watch,
            longest_wait: None,
            never_waits: false,
            isolation,
            id: None,
            snapshot: None,
            granted: 0,
            step: 0,
            places: Vec::new(),
            has_changed: false,
            changed: Vec::new(),
            tallies: Vec::new(),
            is_over: false,
        }
    }

    /// Returns true if it has neither read nor changed anything.
    #[must_use]
    pub fn is_new(&self) -> bool {
        self.id.is_none() && self.snapshot.is_none()
    }

    /// Returns the store whose rows it reads and changes.
    #[must_use]
    pub fn store(&self) -> &Store<B> {
        &self.store
    }

    /// Returns its isolation.
    #[must_use]
    pub fn isolation(&self) -> Isolation {
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
            self.watch.snapshot.store(0, Relaxed);
            self.store.shared().board.act(|core| core.release(snapshot));
        }
    }

    fn snapshot(&mut self) -> Result<Number, StoreError> {
        if let Some(snapshot) = self.snapshot {
            return Ok(snapshot);
        }
        let snapshot = self.store.shared().board.act(|core| core.snapshot());
        self.snapshot = Some(snapshot);
        self.watch.snapshot.store(snapshot + 1, Relaxed);
        // A node that is no member does not know the latest commits.
        match (self.store.shared().is_member)() {
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
        self.shown(tree, key, value, snapshot).await
    }

    /// Returns the contents that the snapshot shows of a row.
    async fn shown(
        &self,
        tree: BlockId,
        key: &[u8],
        value: Vec<u8>,
        snapshot: Number,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        enum Shown {
            Here(Vec<u8>),
            Long(LongContents),
        }
        let shared = &**self.store.shared();
        let look = |value: &[u8]| {
            let seen = rows::visible(value, self.id, snapshot, |id, snapshot| shared.status(id, snapshot))?;
            Ok(seen.map(|contents| match contents {
                Contents::Here(contents) => Shown::Here(contents.to_vec()),
                Contents::Long(long) => Shown::Long(long),
            }))
        };
        match shared.look_at(tree, key, value, look).await?.flatten() {
            None => Ok(None),
            Some(Shown::Here(contents)) => Ok(Some(contents)),
            Some(Shown::Long(long)) => {
                let missing = StoreError::Damaged { block: tree, what: "long contents are missing" };
                self.load(tree, long).await?.ok_or(missing).map(Some)
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
    ) -> Result<(Entries, Option<ScanPlace>), StoreError> {
        self.scan_below(tree, from, None).await
    }

    /// Does the same, and returns only rows below a key.
    ///
    /// # Errors
    /// As [`scan`](Self::scan).
    pub async fn scan_below(
        &mut self,
        tree: BlockId,
        from: &ScanPlace,
        to: Option<&[u8]>,
    ) -> Result<(Entries, Option<ScanPlace>), StoreError> {
        let snapshot = self.snapshot()?;
        let mut part = ScannedPart::default();
        let take = &mut |key: &[u8], value: &[u8]| self.add_shown(&mut part, key, value, snapshot);
        let next = self.store.tree(tree).scan_below(from, to, SCAN_ROWS, take).await?;
        let (shown, rest) = self.all_shown(tree, part, snapshot).await?;
        Ok((shown, rest.map(|(_, key)| ScanPlace::from(&key)).or(next)))
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
    ) -> Result<(Entries, Option<Vec<u8>>), StoreError> {
        let snapshot = self.snapshot()?;
        let mut part = ScannedPart::default();
        let take = &mut |key: &[u8], value: &[u8]| self.add_shown(&mut part, key, value, snapshot);
        let next = self.store.tree(tree).scan_back(below, SCAN_ROWS, take).await?;
        let (shown, rest) = self.all_shown(tree, part, snapshot).await?;
        Ok((shown, rest.map(|(before, _)| before).or(next)))
    }

    /// Adds what the snapshot shows of a row, or the whole row if that cannot be told at once.
    fn add_shown(&self, part: &mut ScannedPart, key: &[u8], value: &[u8], snapshot: Number) {
        let shared = &**self.store.shared();
        let status = |id, snapshot| match part.writer.get() {
            Some((known, status)) if known == id => StatusPath::Known(status),
            _ => {
                let way = shared.status(id, snapshot);
                if let StatusPath::Known(status @ Status::Committed(_)) = way {
                    part.writer.set(Some((id, status)));
                }
                way
            }
        };
        match rows::visible(value, self.id, snapshot, status) {
            Ok(None) => {}
            Ok(Some(Contents::Here(contents))) => part.entries.push(key, contents),
            // Long contents, states that are not known here, and faults.
            Ok(Some(Contents::Long(_))) | Err(_) => {
                part.open.push(part.entries.len());
                part.entries.push(key, value);
            }
        }
    }

    /// Completes rows up to some MiB of contents. Returns them, and the keys of the last one and of
    /// the first one that is left.
    async fn all_shown(
        &self,
        tree: BlockId,
        part: ScannedPart,
        snapshot: Number,
    ) -> Result<(Entries, Option<(Vec<u8>, Vec<u8>)>), StoreError> {
        let ScannedPart { entries, open, .. } = part;
        if open.is_empty() {
            return Ok((entries, None));
        }
        let (mut shown, mut bytes, mut before) = (Entries::default(), 0, &[][..]);
        for (index, (key, value)) in entries.iter().enumerate() {
            if bytes >= SCAN_BYTES {
                return Ok((shown, Some((before.to_vec(), key.to_vec()))));
            }
            match open.binary_search(&index) {
                Err(_) => shown.push(key, value),
                Ok(_) => {
                    if let Some(contents) = self.shown(tree, key, value.to_vec(), snapshot).await? {
                        bytes += contents.len();
                        shown.push(key, &contents);
                    }
                }
            }
            before = key;
        }
        Ok((shown, None))
    }

    /// Returns the number of rows of a tree, about: rows that are gone or not there yet may count.
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn rows_about(&self, tree: BlockId) -> Result<u64, StoreError> {
        self.store.tree(tree).entries_about().await
    }

    /// Returns the number of rows between two keys, about, as [`rows_about`](Self::rows_about).
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn rows_between_about(
        &self,
        tree: BlockId,
        from: &[u8],
        to: Option<&[u8]>,
    ) -> Result<f64, StoreError> {
        self.store.tree(tree).entries_between_about(from, to).await
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
        self.change_and_clear(tree, key, None, &mut |contents| decide(contents).into()).await
    }

    /// Locks a row up to the end of the transaction, if `wants` says so of its newest contents,
    /// which it gets as in [`change`](Self::change): other transactions that change the row, or
    /// lock it with a strength that excludes this one, wait. A transaction that only locks rows
    /// writes nothing at its end.
    ///
    /// # Errors
    /// As [`change`](Self::change).
    pub async fn lock(
        &mut self,
        tree: BlockId,
        key: &[u8],
        strength: RowLock,
        wants: &mut dyn FnMut(Option<&[u8]>) -> bool,
    ) -> Result<(), StoreError> {
        let decide =
            &mut |contents: Option<&[u8]>| if wants(contents) { Decided::Lock } else { Decided::Keep };
        self.change_and_clear(tree, key, Some(strength), decide).await
    }

    async fn change_and_clear(
        &mut self,
        tree: BlockId,
        key: &[u8],
        lock: Option<RowLock>,
        decide: &mut dyn FnMut(Option<&[u8]>) -> Decided,
    ) -> Result<(), StoreError> {
        let snapshot = match self.isolation {
            Isolation::ReadCommitted => None,
            Isolation::RepeatableRead => Some(self.snapshot()?),
        };
        for unused in self.change_row(tree, key, snapshot, lock, decide).await? {
            self.remove_long(tree, unused).await?;
        }
        Ok(())
    }

    /// Changes or locks a row. Returns the long contents that are not used any more.
    pub(crate) async fn change_row(
        &mut self,
        tree: BlockId,
        key: &[u8],
        snapshot: Option<Number>,
        lock: Option<RowLock>,
        decide: &mut dyn FnMut(Option<&[u8]>) -> Decided,
    ) -> Result<Vec<LongContents>, StoreError> {
        let shared = self.store.shared().clone();
        let (id, step) = self.begin_change().await?;
        self.note_change(tree, key);
        // Once: what is not at its end now is not asked for again.
        let now = shared.board.look(|core| core.clock());
        let (mut waits, mut recycled, mut unused) = (0, 0, Vec::new());
        let mut change = LongChange::new(long::most_short(shared.user()).saturating_sub(key.len()), decide);
        loop {
            shared.refill().await?;
            let horizon = shared.board.look(|core| core.horizon());
            let keeps_removal = tree == layout::TREES;
            let (horizon, places) = (&horizon, &self.places[..]);
            let by = Changer { id, step, places, snapshot, horizon, keeps_removal, lock, now };
            let status = |id, snapshot| shared.status(id, snapshot);
            let rows = self.store.tree(tree);
            let most = long::most_wide(shared.user());
            let act = |value: Option<&[u8]>| {
                let decided = rows::change(value, by, status, &mut |contents| change.decide(contents));
                match &decided.0 {
                    EntryChange::Set(row) if key.len() + row.len() > most && change.use_less_room() => {
                        rows::change(value, by, status, &mut |contents| change.decide(contents))
                    }
                    _ => decided,
                }
            };
            let changed = rows.change(key, act).await;
            self.granted = rows.granted().max(self.granted);
            match changed {
                Ok((Changed::Done, _)) => match std::mem::replace(&mut change.wanted, Wanted::Nothing) {
                    Wanted::Nothing => {
                        if change.changes {
                            self.has_changed = true;
                            self.tally(tree, 1, change.removes.into());
                        }
                        let (replaced, uses_inserted) = (change.replaced, change.uses_inserted);
                        unused.extend(change.inserted.filter(|_| !uses_inserted).map(|(long, _)| long));
                        unused.extend(replaced);
                        return Ok(unused);
                    }
                    Wanted::Old(long) => match self.load(tree, long).await? {
                        Some(contents) => change.loaded = Some((long, contents)),
                        None => count_recycled(tree, &mut recycled)?,
                    },
                    Wanted::New(contents) => {
                        unused.extend(change.inserted.take().map(|(long, _)| long));
                        change.inserted = Some((self.insert_long(tree, &contents).await?, contents));
                    }
                },
                Ok((Changed::Serialization, _)) => return Err(StoreError::Serialization),
                Ok((Changed::Malformed, _)) => return Err(malformed(tree)),
                Ok((Changed::Unknown(unknown), _)) if self.never_waits && unknown.snapshot == Number::MAX => {
                    shared.look_without_wait(unknown.id).await?;
                }
                Ok((Changed::Unknown(unknown), _)) => {
                    let _watched = Watched::new(&self.watch.waits_for, unknown.id);
                    let found = shared.find_out(unknown, Some(id));
                    let found = match self.longest_wait {
                        None => found.await?,
                        Some(longest) => {
                            executor::timeout(longest, found).await.unwrap_or(Err(StoreError::LockTimeout))?
                        }
                    };
                    if found == FoundOut::Recycled {
                        count_recycled(tree, &mut recycled)?;
                    }
                }
                // Older versions take the room that this one needs, until no snapshot needs them.
                Err(StoreError::TooLong { most, .. }) if key.len() <= most && waits < NO_ROOM_WAITS => {
                    waits += 1;
                    shared.board.act(|core| core.refresh());
                    executor::sleep(NO_ROOM_WAIT).await;
                }
                Err(why) => return Err(why),
            }
        }
    }

    pub(crate) fn tally(&mut self, tree: BlockId, changed: u64, removed: u64) {
        let at = self.tallies.iter().position(|(known, _)| *known == tree).unwrap_or_else(|| {
            self.tallies.push((tree, Tally::default()));
            self.tallies.len() - 1
        });
        self.tallies[at].1.changed += changed;
        self.tallies[at].1.removed += removed;
    }

    /// Returns the transaction, which changes something, and its step.
    pub(crate) async fn begin_change(&mut self) -> Result<(TransactionId, Step), StoreError> {
        if let Some(id) = self.id {
            return Ok((id, self.step));
        }
        let id = *self.id.insert(self.store.shared().new_id().await?);
        self.watch.id.store(id.0 + 1, Relaxed);
        Ok((id, self.step))
    }

    /// Notes a change that a rollback to a savepoint undoes.
    pub(crate) fn note_change(&mut self, tree: BlockId, key: &[u8]) {
        if self.step > 0 {
            self.changed.push((self.step, tree, key.to_vec()));
        }
    }

    /// Inserts rows with rising keys into one leaf: those at the begin that belong to it, find no
    /// row of their key, and find room. Returns how many these are; for the next one there is
    /// [`change`](Self::change).
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn insert_run(&mut self, tree: BlockId, rows: &[OwnedEntry]) -> Result<usize, StoreError> {
        let most = long::most_short(self.store.shared().user());
        let short = rows.iter().take_while(|(key, contents)| key.len() + contents.len() <= most).count();
        self.insert_entries(tree, &rows[..short]).await
    }

    /// Inserts pieces as [`insert_run`](Self::insert_run).
    pub(crate) async fn insert_pieces(&mut self, pieces: &[OwnedEntry]) -> Result<usize, StoreError> {
        self.insert_entries(layout::LONG, pieces).await
    }

    async fn insert_entries(&mut self, tree: BlockId, rows: &[OwnedEntry]) -> Result<usize, StoreError> {
        let (id, step) = self.begin_change().await?;
        self.has_changed = true;
        let leaves = self.store.tree(tree);
        let put = |into: &mut Vec<u8>, contents: &[u8]| rows::put_new(into, id, step, contents);
        let (count, _) = leaves.insert_run(rows, VERSION_BYTES, put).await?;
        self.granted = leaves.granted().max(self.granted);
        self.tally(tree, count as u64, 0);
        if step > 0 {
            self.changed.extend(rows[..count].iter().map(|(key, _)| (step, tree, key.clone())));
        }
        Ok(count)
    }

    /// Makes a new, empty tree. Returns its root. If the transaction is rolled back, the space of
    /// the tree is free again.
    ///
    /// # Errors
    /// There is no room, or a block cannot be had.
    pub async fn create_tree(&mut self) -> Result<BlockId, StoreError> {
        let shared = self.store.shared().clone();
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

    /// Returns a place to which the transaction can be rolled back. Savepoints without a change in
    /// between share a step.
    ///
    /// # Errors
    /// No step is left.
    pub fn savepoint(&mut self) -> Result<Savepoint, StoreError> {
        if self.step == 0 || self.changed.last().is_some_and(|(step, ..)| *step == self.step) {
            self.step = self.step.checked_add(1).ok_or(StoreError::TooManySavepoints)?;
        }
        self.places.push(self.step);
        Ok(Savepoint(self.step))
    }

    /// Leaves so many savepoints, the first ones: the transaction is not rolled back to the others
    /// any more, and rows do not keep their versions.
    pub fn keep_savepoints(&mut self, count: usize) {
        self.places.truncate(count);
    }

    /// Rolls back all changes since a savepoint, which can be used again.
    ///
    /// # Errors
    /// A block cannot be had.
    pub async fn rollback_to(&mut self, place: Savepoint) -> Result<(), StoreError> {
        let Some(id) = self.id else { return Ok(()) };
        // A rollback that is given up can be repeated.
        while let Some((_, tree, key)) = self.changed.last().filter(|(step, ..)| *step >= place.0).cloned() {
            let undo = |value: Option<&[u8]>| rows::undo(value, id, place.0);
            let (changed, _) = self.store.tree(tree).change(&key, undo).await?;
            if changed == Changed::Malformed {
                return Err(malformed(tree));
            }
            self.changed.pop();
        }
        self.step = place.0;
        Ok(())
    }

    /// Commits. When it returns, the changes are durable, and every node shows them to
    /// transactions that begin. Locks end.
    ///
    /// # Errors
    /// The node is no longer a member, or its redo has failed: the outcome is not known.
    pub async fn commit(mut self) -> Result<(), StoreError> {
        self.release();
        // Locks alone end like a transaction that is rolled back.
        let Some(id) = self.id.filter(|_| self.has_changed) else { return Ok(()) };
        self.is_over = true;
        let shared = self.store.shared().clone();
        // Who waits for the end of the transaction must see it, also if this wait is given up.
        let (granted, tallies) = (self.granted, std::mem::take(&mut self.tallies));
        let commit = executor::spawn(async move {
            shared.commit(id, granted).await?;
            shared.cleaning.note(&tallies, true);
            Ok(())
        });
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
            self.store.shared().board.act(|core| core.abort(id));
            self.store.shared().cleaning.note(&self.tallies, false);
        }
    }
}
