//! The guards of a block that a session has: pinned to read, or latched to change, until the guard
//! is dropped.
//!
//! [`crate::frames`] states the rules of pins and the latch, and so why lending the frame's memory
//! is sound.

use std::ops::{Deref, DerefMut};

use plexus_base::BlockId;
use plexus_disks::{HEADER, Page, TRAILER, Version};

use crate::{
    Session,
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

/// A block that is being changed: its user bytes. If they were borrowed mutably, the block gets a
/// new version when this is dropped.
pub struct Change<'s> {
    lent: Lent<'s>,
    block: BlockId,
    changed: bool,
}

impl<'s> Change<'s> {
    pub(crate) fn new(session: &'s Session, block: BlockId, granted: Granted) -> Self {
        Self { lent: Lent::new(session, block, granted), block, changed: false }
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
        self.changed = true;
        let page = self.page_mut();
        let end = page.len() - TRAILER;
        &mut page[HEADER..end]
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if self.changed {
            let (block, writer) = (self.block, self.lent.session.writer());
            let mut page = Page::of(self.page_mut());
            match page.version().0.checked_add(1) {
                Some(next) => page.stamp(block, writer, Version(next)),
                None => tracing::error!("{block} has the last version there is; its page is damaged"),
            }
        }
        if self.lent.table.unlatch(self.lent.slot, self.changed) {
            self.lent.tell(CacheTask::Idle(self.lent.slot));
        }
    }
}
