//! The guards of a block that a session has: pinned to read, or latched to change, until the guard
//! is dropped.
//!
//! [`crate::frames`] states the rules of pins and the latch, and so why lending the frame's memory
//! is sound.

use std::ops::{Deref, DerefMut};

use plexus_base::BlockId;
use plexus_disks::{HEADER, Page, Patch, TRAILER, Version};

use crate::{
    LoggedChange, Session,
    frames::FrameTable,
    protocol::{Granted, Slot},
    service::CacheTask,
};

/// The common part of both guards: a frame that stays as it is while this exists.
struct Lent<'s> {
    session: &'s Session,
    table: &'s FrameTable,
    slot: Slot,
}

impl<'s> Lent<'s> {
    fn new(session: &'s Session, block: BlockId, granted: Granted) -> Self {
        let (Granted::Pinned(slot) | Granted::Private(slot)) = granted;
        Self { session, table: session.table(block), slot }
    }

    #[allow(unsafe_code, reason = "the frame table lends memory by contract")]
    fn page(&self) -> &[u8] {
        // SAFETY: pinned, latched or private to this session until the guard around this is
        // dropped.
        unsafe { self.table.block(self.slot) }
    }

    fn version(&self) -> Version {
        Page::of(self.page()).version()
    }

    fn user(&self) -> &[u8] {
        let page = self.page();
        &page[HEADER..page.len() - TRAILER]
    }

    fn tell(&self, task: CacheTask) {
        self.session.tell(self.table, task);
    }
}

/// A block that is being read: its user bytes.
pub struct Read<'s> {
    lent: Lent<'s>,
    granted: Granted,
}

impl<'s> Read<'s> {
    pub(crate) fn new(session: &'s Session, block: BlockId, granted: Granted) -> Self {
        Self { lent: Lent::new(session, block, granted), granted }
    }

    /// Returns the number of changes of the block.
    #[must_use]
    pub fn version(&self) -> Version {
        self.lent.version()
    }
}

impl Deref for Read<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.lent.user()
    }
}

impl Drop for Read<'_> {
    fn drop(&mut self) {
        match self.granted {
            Granted::Pinned(slot) if self.lent.table.unpin(slot) => self.lent.tell(CacheTask::Idle(slot)),
            Granted::Pinned(_) => {}
            Granted::Private(slot) => self.lent.tell(CacheTask::Freed(slot)),
        }
    }
}

/// A change that was made: with it a session can wait until the change is durable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Committed(pub(crate) u64);

/// A block that is being changed: its user bytes. If they were borrowed mutably, the block gets a
/// new version when this is committed or dropped.
pub struct Change<'s> {
    lent: Lent<'s>,
    block: BlockId,
    changed: bool,
    /// The page before the change, if changes are logged and there is one.
    before: Vec<u8>,
    /// True once the change was stamped and logged.
    finished: bool,
    /// The end of the redo of this change.
    redo_end: u64,
}

impl<'s> Change<'s> {
    pub(crate) fn new(session: &'s Session, block: BlockId, granted: Granted) -> Self {
        let lent = Lent::new(session, block, granted);
        Self { lent, block, changed: false, before: Vec::new(), finished: false, redo_end: 0 }
    }

    /// Ends the change. Its redo is appended, and becomes durable later:
    /// [`Cache::wait_durable`](crate::Cache::wait_durable) waits for that.
    pub fn commit(mut self) -> Committed {
        self.finish();
        Committed(self.redo_end)
    }

    fn begin(&mut self) {
        if !self.changed && self.lent.session.redo().is_some() {
            self.before = self.lent.session.buffer().take();
            self.before.clear();
            self.before.extend_from_slice(self.lent.page());
        }
        self.changed = true;
    }

    /// Gives the changed block its new version and logs the change.
    fn finish(&mut self) {
        if !self.changed || std::mem::replace(&mut self.finished, true) {
            return;
        }
        let (block, writer) = (self.block, self.lent.session.writer());
        let before = self.version();
        let Some(after) = before.0.checked_add(1).map(Version) else {
            tracing::error!("{block} has the last version there is; its page is damaged");
            return;
        };
        Page::of(self.page_mut()).stamp(block, writer, after);
        let Lent { session, table, slot } = self.lent;
        if let Some(redo) = session.redo() {
            let change = Patch::difference(Page::of(&self.before).user(), self.lent.user()).finish();
            let image = table.needs_image(slot).then_some(&self.before[..]);
            table.will_log(slot, redo.position());
            self.redo_end =
                redo.append(&LoggedChange { block, before, image, change: Some((after, &change)) });
            table.logged(slot, self.redo_end);
            session.buffer().set(std::mem::take(&mut self.before));
        }
    }

    /// Returns the number of changes of the block before this one.
    #[must_use]
    pub fn version(&self) -> Version {
        self.lent.version()
    }

    #[allow(unsafe_code, reason = "the frame table lends memory by contract")]
    fn page_mut(&mut self) -> &mut [u8] {
        // SAFETY: latched until this guard is dropped, and `&mut self` allows one slice at a time.
        unsafe { self.lent.table.block_mut(self.lent.slot) }
    }
}

impl Deref for Change<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.lent.user()
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.begin();
        let page = self.page_mut();
        let end = page.len() - TRAILER;
        &mut page[HEADER..end]
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.finish();
        if self.redo_end == 0 {
            self.lent.session.redo().inspect(|redo| redo.release());
        }
        if self.lent.table.unlatch(self.lent.slot, self.changed) {
            self.lent.tell(CacheTask::Idle(self.lent.slot));
        }
    }
}
