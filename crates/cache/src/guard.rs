//! The guards of a block that a task has: pinned to read, or latched to change, until the guard is
//! dropped.
//!
//! [`crate::frames`] states the rules of pins and the latch, and so why lending the frame's memory
//! is sound.

use std::{
    mem,
    ops::{Deref, Range},
};

use plexus_base::BlockId;
use plexus_disks::{HEADER, Page, PageType, TRAILER, Version, Writer};
use plexus_interconnect::executor::Possession;

use crate::{
    BlockChange, BlockRead, Cache, LoggedChange, RedoLog,
    cache::TaskBlock,
    edits::Edits,
    frames::FrameTable,
    protocol::{Ask, Granted, Mode, RedoSpan, Slot},
    service::CacheTask,
};

/// The common part of both guards: a frame that stays as it is while this exists.
struct Lent<'a> {
    cache: &'a Cache,
    table: &'a FrameTable,
    slot: Slot,
    waited: bool,
    _possession: Possession,
}

impl<'a> Lent<'a> {
    fn new(cache: &'a Cache, block: BlockId, held: TaskBlock) -> Self {
        let (Granted::Pinned(slot) | Granted::Private(slot)) = held.granted;
        let (table, waited) = (cache.table(block), held.waited);
        Self { cache, table, slot, waited, _possession: Possession::new() }
    }

    #[allow(unsafe_code, reason = "the frame table lends memory by contract")]
    fn page(&self) -> &[u8] {
        // SAFETY: pinned, latched or private to this task until the guard around this is dropped.
        unsafe { self.table.block(self.slot) }
    }

    fn version(&self) -> Version {
        Page::of(self.page()).version()
    }

    fn page_type(&self) -> Option<PageType> {
        Page::of(self.page()).page_type()
    }

    fn user(&self) -> &[u8] {
        let page = self.page();
        &page[HEADER..page.len() - TRAILER]
    }

    fn tell(&self, task: Option<CacheTask>) {
        task.into_iter().for_each(|task| self.cache.tell(self.table, task));
    }
}

/// A new page that a task makes of a block.
#[derive(Clone, Copy, Debug)]
pub struct NewPage {
    /// The type of the page.
    pub page_type: PageType,
    /// The version that the block had when its contents were given up.
    pub last: Version,
    /// The node that makes it.
    pub writer: Writer,
}

impl NewPage {
    /// Makes the page in a frame that is latched, and returns its image for redo. Its version is
    /// above each that the block had.
    #[allow(unsafe_code, reason = "the frame table lends memory by contract")]
    fn make(self, table: &FrameTable, slot: Slot, block: BlockId) -> BlankImage {
        // SAFETY: latched until the caller unlatches it, and there is no other slice.
        let page = unsafe { table.block_mut(slot) };
        let last = Page::of(&*page).version().max(self.last);
        Page::of(&mut *page).blank(block, self.writer, Version(last.0.saturating_add(1)), self.page_type);
        let mut image = [0; HEADER];
        image.copy_from_slice(&page[..HEADER]);
        image
    }
}

/// The image of an empty page: its header.
type BlankImage = [u8; HEADER];

/// The request of a task for a block.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) block: BlockId,
    pub(crate) ask: Ask,
    /// The page that it makes of the block, for [`Ask::New`].
    pub(crate) new: Option<NewPage>,
}

impl Wanted {
    /// Gives back a block that was granted to a task that has ended. Returns the task for the
    /// worker, if it must be told.
    pub(crate) fn give_back(
        &self,
        table: &FrameTable,
        redo: Option<&dyn RedoLog>,
        granted: Granted,
    ) -> Option<CacheTask> {
        let Granted::Pinned(slot) = granted else { return undo(table, granted, self.ask) };
        // Contents that others have made since the task asked stay: only a task that goes on may
        // give up the contents of a block.
        let Some(new) = self.new.filter(|_| !table.has_contents(slot)) else {
            return undo(table, granted, self.ask);
        };
        // The frame has no contents yet: it becomes an empty page.
        let image = new.make(table, slot, self.block);
        log_blank(table, redo, slot, self.block, &image);
        table.unlatch(slot, true).then_some(CacheTask::Idle(slot))
    }
}

/// Logs an empty page in a frame that is latched.
fn log_blank(table: &FrameTable, redo: Option<&dyn RedoLog>, slot: Slot, block: BlockId, image: &BlankImage) {
    let Some(redo) = redo else { return table.will_write(slot) };
    table.will_log(slot, redo.position());
    let before = Page::version_in(image);
    let change = LoggedChange { block, before, image: Some(image), change: None };
    table.logged(slot, redo.append(&[change]), true);
}

/// Gives back a block that was granted and not changed. Returns the task for the worker, if it must
/// be told.
fn undo(table: &FrameTable, granted: Granted, ask: Ask) -> Option<CacheTask> {
    match granted {
        Granted::Private(slot) => Some(CacheTask::Freed(slot)),
        Granted::Pinned(slot) => {
            let tells = match ask.mode() {
                Mode::X => table.unlatch(slot, false),
                _ => table.unpin(slot),
            };
            tells.then_some(CacheTask::Idle(slot))
        }
    }
}

/// A block that is being read: its user bytes.
pub struct Read<'a> {
    lent: Lent<'a>,
    granted: Granted,
}

impl<'a> Read<'a> {
    pub(crate) fn new(cache: &'a Cache, block: BlockId, held: TaskBlock) -> Self {
        Self { lent: Lent::new(cache, block, held), granted: held.granted }
    }

    /// Returns whether the task waited for the block.
    #[must_use]
    pub fn waited(&self) -> bool {
        self.lent.waited
    }
}

impl Deref for Read<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.lent.user()
    }
}

impl BlockRead for Read<'_> {
    fn version(&self) -> Version {
        self.lent.version()
    }

    fn page_type(&self) -> Option<PageType> {
        self.lent.page_type()
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        self.lent.tell(undo(self.lent.table, self.granted, Ask::S));
    }
}

/// Changes that were made: with it a task can wait until they are durable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Committed(pub u64);

/// A block that is being changed. If it is dropped, it is as it was before; a new page is empty.
pub struct Change<'a> {
    lent: Lent<'a>,
    block: BlockId,
    edits: Edits,
    /// The image of a new page, until it is logged.
    blank: Option<BlankImage>,
    /// The version before the change, and the one that it has made; the same for an empty new page.
    made: Option<(Version, Version)>,
    /// True while the log has room reserved for the change.
    is_reserved: bool,
}

impl<'a> Change<'a> {
    pub(crate) fn new(cache: &'a Cache, block: BlockId, held: TaskBlock) -> Self {
        let (lent, is_reserved) = (Lent::new(cache, block, held), cache.redo().is_some());
        Self { lent, block, edits: Edits::spare(), blank: None, made: None, is_reserved }
    }

    /// Makes a new page of a block that the task got.
    pub(crate) fn of_new_page(cache: &'a Cache, block: BlockId, held: TaskBlock, new: NewPage) -> Self {
        let mut change = Self::new(cache, block, held);
        change.blank = Some(new.make(change.lent.table, change.lent.slot, block));
        change
    }

    /// Makes the change. Its redo is appended, and becomes durable later:
    /// [`Blocks::durable`](crate::Blocks::durable) waits for that.
    pub fn commit(mut self) -> Committed {
        log_group(self.lent.cache, std::slice::from_mut(&mut self), false)
    }

    /// Gives an edited block its new version. Returns true if there is something to log.
    fn make(&mut self) -> bool {
        if self.edits.is_empty() && self.blank.is_none() || self.made.is_some() {
            return false;
        }
        let (block, writer, before) = (self.block, self.lent.cache.writer(), self.lent.version());
        if self.edits.is_empty() {
            // A new page that stays empty has its version.
            self.made = Some((before, before));
            return self.is_reserved;
        }
        let Some(after) = before.0.checked_add(1).map(Version) else {
            tracing::error!("{block} has the last version there is; its page is damaged");
            return false;
        };
        Page::of(self.page_mut()).stamp(block, writer, after);
        self.made = Some((before, after));
        if self.is_reserved {
            self.edits.finish(self.lent.user());
        }
        self.is_reserved
    }

    /// Returns the record of a change that was made.
    fn logged(&self) -> Option<LoggedChange<'_>> {
        let (before, after) = self.made?;
        let image = self.blank.as_ref().map(|image| &image[..]).or(self.edits.image());
        let block = self.block;
        let change = (before < after).then(|| (after, self.edits.patch()));
        Some(LoggedChange { block, before, image, change })
    }

    #[allow(unsafe_code, reason = "the frame table lends memory by contract")]
    fn page_mut(&mut self) -> &mut [u8] {
        // SAFETY: latched until this guard is dropped, and `&mut self` allows one slice at a time.
        unsafe { self.lent.table.block_mut(self.lent.slot) }
    }
}

/// Makes and logs changes as one group of records. No block of the group leaves this node before
/// all of it is durable: the end of the group is the end of the last record of each block, and they
/// stay latched until that is noted.
pub(crate) fn log_group(cache: &Cache, changes: &mut [Change<'_>], in_order: bool) -> Committed {
    let count = changes.iter_mut().map(|change| usize::from(change.make())).sum();
    let Some(redo) = cache.redo().filter(|_| count > 0) else {
        return Committed::default();
    };
    let made = || changes.iter().filter(|change| change.made.is_some());
    made().for_each(|change| change.lent.table.will_log(change.lent.slot, redo.position()));
    let end = match &*changes {
        [one] => redo.append(one.logged().as_slice()),
        all => redo.append(&all.iter().filter_map(Change::logged).collect::<Vec<_>>()),
    };
    for change in changes.iter_mut().filter(|change| change.made.is_some()) {
        let has_image = change.blank.is_some() || change.edits.image().is_some();
        let is_forced = in_order || RedoSpan::is_forced(has_image, count);
        change.lent.table.logged(change.lent.slot, end, is_forced);
        // The record of a change has the room now; an image needs none.
        change.is_reserved = change.made.is_some_and(|(before, after)| before == after);
    }
    Committed(end)
}

impl Deref for Change<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.lent.user()
    }
}

impl BlockRead for Change<'_> {
    fn version(&self) -> Version {
        self.lent.version()
    }

    fn page_type(&self) -> Option<PageType> {
        self.lent.page_type()
    }
}

impl BlockChange for Change<'_> {
    fn granted(&self) -> u64 {
        self.lent.table.granted(self.lent.slot)
    }

    fn waited(&self) -> bool {
        self.lent.waited
    }

    fn bytes_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        let table = self.lent.table;
        let needs_image = self.is_reserved && self.blank.is_none() && table.needs_image(self.lent.slot);
        self.edits.touch(self.lent.page(), range.clone(), needs_image);
        &mut self.page_mut()[HEADER + range.start..HEADER + range.end]
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        let (table, slot) = (self.lent.table, self.lent.slot);
        let mut is_made = self.made.is_some();
        if is_made {
            // If it was not logged.
            table.will_write(slot);
        } else {
            let mut edits = mem::replace(&mut self.edits, Edits::NONE);
            edits.undo(self.page_mut());
            self.edits = edits;
        }
        if let Some(image) = self.blank.take().filter(|_| !is_made) {
            log_blank(table, self.lent.cache.redo(), slot, self.block, &image);
            is_made = true;
        }
        self.edits.recycle();
        if self.is_reserved {
            self.lent.cache.redo().inspect(|redo| redo.release(1));
        }
        if table.unlatch(slot, is_made) {
            self.lent.tell(Some(CacheTask::Idle(slot)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc, Mutex,
            atomic::{AtomicU32, Ordering::Relaxed},
            mpsc,
        },
        task::{Context, Poll},
    };

    use plexus_base::{Epoch, Incarnation, NodeId, WorkerId, wire::DecodeError};
    use plexus_disks::{BlockSize, Group, GroupId, Shape, Writer, mirror::Mirror};
    use plexus_interconnect::Net;
    use plexus_membership::subsystem::WorkerPort;

    use super::*;
    use crate::{
        Blocks, CacheRedo, CacheService, RedoDurability, RedoFailed, RedoLog, RedoRecovery, SharedWork,
        protocol::Config,
    };

    const END: u64 = 9;

    /// A stream whose groups all end at [`END`], and no worker. It keeps of each change the length
    /// of the image and the version afterwards, and counts the room that was given back.
    #[derive(Default)]
    struct Stream(Mutex<Vec<(usize, Option<Version>)>>, AtomicU32);

    impl RedoLog for Stream {
        fn poll_reserve(
            &self,
            _: &mut Option<u64>,
            _: u32,
            _: &mut Context<'_>,
        ) -> Poll<Result<(), RedoFailed>> {
            Poll::Ready(Ok(()))
        }
        fn forget(&self, _: u64) {}
        fn try_reserve(&self, _: u32) -> Result<bool, RedoFailed> {
            Ok(true)
        }
        fn release(&self, changes: u32) {
            self.1.fetch_add(changes, Relaxed);
        }
        fn append(&self, group: &[LoggedChange<'_>]) -> u64 {
            let logged = |change: &LoggedChange<'_>| {
                (change.image.map_or(0, <[u8]>::len), change.change.map(|(after, _)| after))
            };
            self.0.lock().unwrap().extend(group.iter().map(logged));
            END
        }
        fn carry(&self, _: BlockId, _: usize) -> Option<Vec<u8>> {
            None
        }
        fn append_carried(&self, _: BlockId, _: Version, _: &[u8]) -> Result<Option<u64>, DecodeError> {
            Ok(None)
        }
        fn position(&self) -> u64 {
            3
        }
    }

    impl RedoDurability for Stream {
        fn durable(&self) -> u64 {
            1
        }
        fn flush(&self, _: WorkerId, _: u64) {}
        fn poll_durable(&self, _: u64, _: &mut Context<'_>, _: bool) -> Poll<Result<(), RedoFailed>> {
            Poll::Pending
        }
    }

    impl RedoRecovery for Stream {
        fn begin(&self) {}
        fn recover(&self, _: WorkerId, _: Epoch, _: Vec<(NodeId, Incarnation)>) {}
        fn replay(&self, _: WorkerId, _: Epoch, _: Vec<BlockId>) {}
        fn close(&self, _: WorkerId, _: Epoch) {}
    }

    impl SharedWork for Stream {
        fn lead(&self, _: &dyn Fn() -> bool) {}
        fn delegate(&self) {}
    }

    impl WorkerPort<CacheService> for Stream {
        fn submit(&self, _: WorkerId, _: CacheTask) {}
        fn offer(&self, _: WorkerId, _: CacheTask) {}
        fn visit(&self, _: WorkerId, _: &mut dyn FnMut(&mut CacheService, &mut Net)) -> bool {
            false
        }
        fn attend(&self, _: WorkerId) {}
    }

    fn cache() -> (Cache, Arc<FrameTable>) {
        let (cache, table, _) = cache_and_stream();
        (cache, table)
    }

    fn cache_and_stream() -> (Cache, Arc<FrameTable>, Arc<Stream>) {
        let (me, worker) = (NodeId(0), WorkerId(0));
        let (nodes, workers, blocks, sets, ways, redo, carry_bytes) = (2, 1, 1000, 1, 8, true, 0);
        let config = Config { me, nodes, worker, workers, blocks, sets, ways, redo, carry_bytes };
        let table = Arc::new(FrameTable::of_test(config));
        let writer = Writer { node: me, incarnation: Incarnation(1) };
        let (tables, stream) = (vec![Arc::clone(&table)], Arc::<Stream>::default());
        let redo = Some(CacheRedo::new(stream.clone()));
        let shape = Shape { id: GroupId(1), block_size: BlockSize::from_kib(8).unwrap(), blocks };
        let group = Arc::new(Group::mirrored(
            &shape,
            Mirror::new(me, plexus_base::NodeSet::EMPTY, 0, mpsc::channel().0),
        ));
        (Cache::new(stream.clone(), tables, group, writer, Arc::default(), redo), table, stream)
    }

    fn change<'a>(cache: &'a Cache, table: &FrameTable, slot: Slot) -> Change<'a> {
        let block = BlockId(u64::from(slot.0) + 5);
        let granted = Granted::Pinned(table.hit(block, Mode::X).expect("it is here and free"));
        Change::new(cache, block, TaskBlock { granted, waited: false })
    }

    /// The worker lets a block go when its last record is durable, and a group is replayed as a
    /// whole.
    #[test]
    fn every_block_of_a_group_waits_for_the_end_of_the_group() {
        let (cache, table) = cache();
        let slots = [0, 1, 2].map(Slot);
        let mut changes = slots.map(|slot| {
            table.open(slot, BlockId(u64::from(slot.0) + 5), Mode::X);
            change(&cache, &table, slot)
        });
        changes.iter_mut().for_each(|change| change.write(0, &[1]));
        assert_eq!(cache.commit(changes.into()), Committed(END));
        for slot in slots {
            let contents = table.close(slot).expect("no latch is left");
            assert_eq!(contents.redo, RedoSpan { first: 3, last: END, force: END }, "{slot:?}");
        }
    }

    /// The record has the room of the change then, so giving it back too would lose room of others.
    #[test]
    fn a_change_that_writes_the_bytes_that_are_there_uses_its_room() {
        let (cache, table, stream) = cache_and_stream();
        table.open(Slot(0), BlockId(5), Mode::X);
        let mut same = change(&cache, &table, Slot(0));
        same.write(100, &[0; 4]);
        assert_eq!(same.commit(), Committed(END));
        assert_eq!(stream.0.lock().unwrap().last().unwrap().1, Some(Version(1)));
        assert_eq!(stream.1.load(Relaxed), 0);
        drop(change(&cache, &table, Slot(0)));
        assert_eq!(stream.1.load(Relaxed), 1, "a change without a record gives its room back");
    }

    /// Otherwise another session would see a page without contents, or a replay would begin with
    /// the contents that were given up.
    #[test]
    fn the_header_of_a_new_page_is_logged_however_its_change_ends() {
        let (cache, table, stream) = cache_and_stream();
        let (slot, block) = (Slot(0), BlockId(5));
        table.open(slot, block, Mode::X);
        let new = NewPage { page_type: PageType(7), last: Version(40), writer: cache.writer() };
        let held = || {
            let granted = Granted::Pinned(table.hit(block, Mode::X).expect("it is here and free"));
            TaskBlock { granted, waited: false }
        };
        let make = || Change::of_new_page(&cache, block, held(), new);
        let mut written = make();
        written.write(3, b"new");
        assert_eq!(written.commit(), Committed(END));
        assert_eq!(make().commit(), Committed(END), "it stays empty");
        make().write(0, b"dropped");
        let logged = || std::mem::take(&mut *stream.0.lock().unwrap());
        assert_eq!(logged(), [(HEADER, Some(Version(42))), (HEADER, None), (HEADER, None)]);
        let page = change(&cache, &table, slot);
        assert_eq!((page.version(), page.page_type()), (Version(44), Some(PageType(7))));
        assert!(page.iter().all(|byte| *byte == 0), "what was written to it is undone");
        drop(page);
        // A task that has ended before its block came.
        let wanted = Wanted { block, ask: Ask::New, new: Some(new) };
        let give_back = || assert!(wanted.give_back(&table, cache.redo(), held().granted).is_none());
        give_back();
        assert_eq!((logged(), change(&cache, &table, slot).version()), (vec![], Version(44)), "it stays");
        assert!(table.close(slot).is_some());
        table.blank(slot, 50);
        table.open(slot, block, Mode::X);
        give_back();
        assert_eq!((logged(), change(&cache, &table, slot).version()), (vec![(HEADER, None)], Version(51)));
    }

    #[test]
    fn a_change_that_ends_without_a_commit_leaves_the_block_as_it_was() {
        let (cache, table) = cache();
        let (slot, block) = (Slot(0), BlockId(5));
        table.open(slot, block, Mode::X);
        let mut first = change(&cache, &table, slot);
        first.write(100, b"before");
        first.commit();
        let before = change(&cache, &table, slot).lent.page().to_vec();
        // An error, a task that ends, and a panic drop the guard.
        for panics in [false, true] {
            let dropped = std::thread::scope(|scope| {
                let edits = || {
                    let mut change = change(&cache, &table, slot);
                    change.write(98, b"changed");
                    change.write(104, b"again");
                    change.bytes_mut(0..4000).fill(7);
                    assert!(!panics, "while the block is changed");
                };
                scope.spawn(edits).join()
            });
            assert_eq!(dropped.is_err(), panics);
            assert_eq!(change(&cache, &table, slot).lent.page(), before);
        }
        assert_eq!(Page::of(&before).version(), Version(1));
        let mut next = change(&cache, &table, slot);
        next.write(0, b"next");
        assert_eq!(next.commit(), Committed(END), "the block can be changed");
    }
}
