//! The writer of a stream: groups of records in, writes and syncs out.
//!
//! [`StreamWriter::append`] gives a group its position in the last batch that is not being written.
//! A *flush* is at most one batch and at most one header, each written, and then one sync. Only
//! one flush is under way. When it has ended, what it carried is durable, and the next one starts
//! at once with everything that came meanwhile (group commit). No timer takes part.
//!
//! Guarantees:
//!
//! - [`Action::Durable`] follows the sync of everything below its position. So at most one batch
//!   can be torn: a valid batch behind a bad one is corruption and not the end of the stream.
//! - A segment is used again only after a header with a checkpoint above it is durable. A group
//!   that finds no room is refused with the reason and changes nothing; [`Action::Room`] follows
//!   every checkpoint that has moved.
//! - An incarnation first makes durable what it found (the last batch by writing it again), then a
//!   header with its number and the position at which it begins, and only then writes batches. A
//!   batch that its predecessor left half written thus never counts, even if an interrupted write
//!   completes it.
//! - A batch is written only where zeros or batches were durable before. So its sync concerns no
//!   more than its bytes; the file system has nothing else to note. Zeros are written half a
//!   segment ahead, behind everything that any incarnation may have written.
//! - After a failed write or sync nothing more is written or reported as durable.
//!
//! The driver carries out one [`Action::Write`] or [`Action::Sync`] at a time and reports each with
//! [`Event::Done`]; it seals each batch, which needs no state of the writer, and says its checksum.
//! Beside them it writes zeros: one [`Action::Zero`], and [`Event::Zeroed`]. Must not know devices,
//! threads, or the meaning of records.

use std::{collections::VecDeque, sync::Arc};

use plexus_base::{BlockId, Incarnation, NodeId, wire::Writer};

use super::{
    Batch, BatchHead, Fill, Geometry, Group, Lsn, Record, StreamHeader, UnsealedBatch, batch,
    footer::TouchedBlocks,
    geometry::{BATCH_HEAD, FOOTER_ENTRY, whole_pages},
};

/// An input of the writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A client waits until everything below this position is durable.
    Want(Lsn),
    /// Records below this position are not needed any more. It is the start of a batch, or beyond
    /// the last durable one, which stays in any case.
    Checkpoint(Lsn),
    /// No group follows, and no record is needed when all are durable.
    Close,
    /// The checksum of the batch that is being written. Comes before its [`Event::Done`].
    Sealed(u32),
    /// The last write or sync has ended; true if it succeeded.
    Done(bool),
    /// The zeros that were requested are durable, or have failed.
    Zeroed(bool),
}

/// An output of the writer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Write these bytes at this offset of the device.
    Write(u64, Vec<u8>),
    /// Seal this batch, and write it at this offset of the device.
    Batch(u64, Arc<UnsealedBatch>),
    /// Make everything that was written durable.
    Sync,
    /// Write so many zeros at this offset of the device, and make them durable.
    Zero(u64, u64),
    /// The header of this incarnation is durable.
    Opened,
    /// Everything below this position is durable.
    Durable(Lsn),
    /// The checkpoint has moved, so there may be room.
    Room,
    /// The header that closes the stream is durable.
    Closed,
    /// A write or sync failed, and nothing more becomes durable.
    Failed,
}

/// The reason why a group was not appended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendError {
    /// The group must wait for the checkpoint.
    #[error(
        "redo stream of {node} is full: a group of {needed} bytes finds {free} bytes; it waits until the blocks \
         changed since {checkpoint} are on disk"
    )]
    Full {
        /// The node of the stream.
        node: NodeId,
        /// The bytes of the group.
        needed: u64,
        /// The bytes that are free.
        free: u64,
        /// The durable checkpoint.
        checkpoint: Lsn,
    },
    /// The stream takes no more groups.
    #[error("redo stream of {0} is closed: the node is leaving")]
    Closed(NodeId),
    /// A write or sync has failed.
    #[error("redo stream of {0} failed: see the log for the disk; the node must end and be recovered")]
    Failed(NodeId),
}

/// The position of an appended group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Appended {
    /// The start of the batch that contains the group: a position for a checkpoint.
    pub start: Lsn,
    /// The end of the group. The group is durable when everything below this position is.
    pub end: Lsn,
}

/// The end of a stream as the next incarnation finds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamTail {
    /// The header in force.
    pub header: StreamHeader,
    /// The position behind the last valid batch.
    pub end: Lsn,
    /// The last valid batch from the checkpoint on.
    pub last: Option<Batch>,
    /// The blocks touched by the last segment, from the position `since` on.
    pub touched: TouchedBlocks,
    /// See `touched`.
    pub since: Lsn,
    /// The highest clock of all batches.
    pub clock: u64,
}

plexus_base::counts! {
    /// Counts of a stream since it was opened.
    pub struct StreamCounts {
        /// Groups that were appended.
        groups,
        /// Bytes of their records.
        record_bytes,
        /// Bytes of the images among the records.
        image_bytes,
        /// Batches that were written.
        batches,
        /// Bytes of the batches, with heads and the unused part of their last page.
        batch_bytes,
        /// Syncs.
        syncs,
    }
}

/// A batch that is not being written yet.
struct OpenBatch {
    lsn: Lsn,
    footer: u32,
    since: Lsn,
    content: Writer,
    length: u64,
}

/// Writes under way, and what holds after their sync.
#[derive(Default)]
struct Flush {
    /// The writes that have not begun.
    writes: VecDeque<Action>,
    is_syncing: bool,
    batch: Option<Arc<UnsealedBatch>>,
    header: Option<StreamHeader>,
}

/// The writer of one incarnation. The module describes its contract.
pub struct StreamWriter {
    incarnation: Incarnation,
    /// The position at which this incarnation begins.
    begin: Lsn,
    /// The last header that was written, and the last one that is durable.
    written: StreamHeader,
    synced: StreamHeader,
    /// The last batch of the incarnation before, until it is written again.
    tail: Option<Batch>,
    /// The batches that wait, by position. Groups are appended to the last one.
    waiting: VecDeque<OpenBatch>,
    flush: Option<Flush>,
    /// The position behind all batches.
    end: Lsn,
    /// Everything below is durable.
    durable: Lsn,
    /// The start of the last durable batch: the highest possible checkpoint.
    last_durable: Lsn,
    wanted: Lsn,
    /// The checkpoint of the next header.
    checkpoint: Lsn,
    /// The position below which every byte was written, and the one that zeros under way will
    /// reach.
    zeroed: Lsn,
    zeroing: Option<Lsn>,
    /// The checksum of the last batch that was sealed.
    checksum: u32,
    clock: u64,
    /// The blocks touched by the segment of the last batch, and from which position on.
    touched: TouchedBlocks,
    since: Lsn,
    /// The same of the last batch.
    last_touched: TouchedBlocks,
    last_since: Lsn,
    is_closing: bool,
    has_failed: bool,
    counts: StreamCounts,
}

impl StreamWriter {
    /// Opens a stream for an incarnation that is higher than all before.
    /// [`Action::Opened`] follows.
    ///
    /// # Panics
    /// If an earlier opening had this incarnation or a higher one.
    pub fn open(tail: StreamTail, incarnation: Incarnation, out: &mut impl FnMut(Action)) -> Self {
        let StreamTail { header, end, last, touched, since, clock } = tail;
        assert!(incarnation > header.incarnation, "an incarnation opens a stream once");
        let last_durable = last.as_ref().map_or(header.checkpoint, |last| last.head().lsn);
        let mut last_touched = TouchedBlocks::default();
        for (_, record, _) in last.iter().flat_map(Batch::records) {
            last_touched.note(header.geometry, record.block, record.after);
        }
        let mut writer = Self {
            incarnation,
            begin: end,
            written: header,
            synced: header,
            checksum: last.as_ref().map_or(0, Batch::checksum),
            tail: last,
            waiting: VecDeque::new(),
            flush: None,
            end,
            // What was found is durable when the stream is open.
            durable: header.begin,
            last_durable,
            wanted: end,
            // No block needs the records of a closed stream.
            checkpoint: if header.is_closed { last_durable } else { header.checkpoint },
            zeroed: header.zeroed.max(end),
            zeroing: None,
            clock,
            // No block needs the records of a closed stream, so no footer must name them.
            touched: if header.is_closed { TouchedBlocks::default() } else { touched },
            since,
            last_touched,
            last_since: last_durable,
            is_closing: false,
            has_failed: false,
            counts: StreamCounts::default(),
        };
        if writer.tail.is_none() {
            // A header that was found must be durable before another one is written.
            writer.flush = Some(Flush { is_syncing: true, ..Flush::default() });
            out(Action::Sync);
        }
        writer.start(out);
        writer
    }

    /// Appends a group. It becomes durable after [`Event::Want`], or with later groups.
    ///
    /// # Errors
    /// The stream is full, closed, or has failed. Then nothing has changed.
    ///
    /// # Panics
    /// If the group is empty, or longer than [`Geometry::group_max`].
    pub fn append(&mut self, group: &Group, out: &mut impl FnMut(Action)) -> Result<Appended, AppendError> {
        let (geometry, node) = (self.geometry(), self.written.node);
        let needed = group.bytes().len() as u64;
        assert!((1..=geometry.group_max()).contains(&needed), "a group of {needed} bytes");
        if self.has_failed {
            return Err(AppendError::Failed(node));
        }
        if self.is_closing {
            return Err(AppendError::Closed(node));
        }
        if !self.waiting.back().is_some_and(|batch| batch.has_room(geometry, needed)) {
            let lsn = self.place(needed);
            let (limit, checkpoint) = (geometry.limit(self.synced.checkpoint), self.synced.checkpoint);
            if lsn >= limit {
                let free = limit.0.saturating_sub(self.end.0);
                return Err(AppendError::Full { node, needed, free, checkpoint });
            }
            self.begin_batch(lsn);
        }
        let batch = self.waiting.back_mut().expect("a batch with room");
        batch.content.bytes(group.bytes());
        batch.length += needed;
        let appended = Appended { start: batch.lsn, end: batch.lsn.after(batch.length) };
        self.end = batch.lsn.after(whole_pages(batch.length));
        self.counts.groups += 1;
        self.counts.record_bytes += needed;
        self.counts.image_bytes += group.image_bytes();
        for (block, version) in group.blocks() {
            self.touched.note(geometry, *block, *version);
            self.last_touched.note(geometry, *block, *version);
        }
        self.clock = self.clock.max(group.clock());
        self.start(out);
        Ok(appended)
    }

    /// Handles an event and returns the resulting actions through `out`.
    ///
    /// # Panics
    /// If the end of a write or sync is reported that was not requested.
    pub fn handle(&mut self, event: Event, out: &mut impl FnMut(Action)) {
        match event {
            Event::Want(lsn) => self.wanted = self.wanted.max(lsn.min(self.end)),
            Event::Checkpoint(lsn) => self.checkpoint = self.checkpoint.max(lsn.min(self.last_durable)),
            Event::Close => self.is_closing = true,
            Event::Sealed(checksum) => {
                self.checksum = checksum;
                return;
            }
            Event::Done(true) => return self.done(out),
            Event::Zeroed(true) => self.zeroed = self.zeroing.take().expect("zeros are under way"),
            Event::Zeroed(false) => {
                self.has_failed = true;
                out(Action::Failed);
            }
            Event::Done(false) => {
                (self.flush, self.has_failed) = (None, true);
                out(Action::Failed);
            }
        }
        self.start(out);
    }

    /// Returns the position up to which everything is durable.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Returns the position behind all groups, padded to whole pages.
    pub fn end(&self) -> Lsn {
        self.end
    }

    /// Returns true if no write or sync is under way, and none will begin without an event.
    pub fn is_idle(&self) -> bool {
        self.flush.is_none()
    }

    /// Returns the fill of the stream.
    pub fn fill(&self) -> Fill {
        let (end, durable) = (self.end.0, self.synced.checkpoint);
        Fill {
            free: self.geometry().limit(durable).0 - end,
            used: end - durable.0,
            used_soon: end - self.checkpoint.0,
            length: self.geometry().length(),
        }
    }

    /// Returns true if no more zeros will be written.
    pub fn is_zeroed(&self) -> bool {
        self.zeroed >= self.geometry().second_round()
    }

    /// Returns the start of the last batch, which is at or below the next group. The end is not:
    /// the next batch may have no room in this segment, and reading cannot begin where no batch
    /// does.
    pub fn position(&self) -> Lsn {
        let in_flush = self.flush.as_ref().and_then(|flush| flush.batch.as_ref());
        let in_flush = || in_flush.map_or(self.last_durable, |batch| batch.head.lsn);
        self.waiting.back().map_or_else(in_flush, |batch| batch.lsn)
    }

    /// Returns the records of a block that are not durable, marked as carried; `None` if they are
    /// longer than `limit` bytes, or will never be durable.
    pub fn carry(&self, block: BlockId, limit: usize) -> Option<Group> {
        let in_flush = self.flush.iter().filter_map(|flush| flush.batch.as_deref());
        let waiting = self.waiting.iter().flat_map(OpenBatch::records);
        let mut group = Group::default();
        for (_, record, _) in in_flush
            .flat_map(UnsealedBatch::records)
            .chain(waiting)
            .filter(|(_, record, _)| record.block == block)
        {
            group.push(&Record { is_carried: true, ..record });
            if group.bytes().len() > limit {
                return None;
            }
        }
        (!self.has_failed).then_some(group)
    }

    /// Returns the counts since the stream was opened.
    pub fn counts(&self) -> StreamCounts {
        self.counts
    }

    /// Returns the last header that is durable.
    pub fn header(&self) -> &StreamHeader {
        &self.synced
    }

    fn geometry(&self) -> Geometry {
        self.written.geometry
    }

    fn is_open(&self) -> bool {
        self.synced.incarnation == self.incarnation
    }

    /// Returns the start of a new batch for `needed` bytes: behind the last one, or in the next
    /// segment if this one has no room.
    fn place(&self, needed: u64) -> Lsn {
        let next = self.geometry().next_segment(self.end);
        let end = self.end.after(whole_pages(BATCH_HEAD + self.last_touched.bytes() + needed));
        if self.geometry().is_segment_start(self.end) || end <= next { self.end } else { next }
    }

    fn begin_batch(&mut self, lsn: Lsn) {
        let mut content = batch::begin();
        let mut touched = std::mem::take(&mut self.last_touched);
        let mut since = std::mem::replace(&mut self.last_since, self.end);
        if self.geometry().is_segment_start(lsn) {
            touched = std::mem::take(&mut self.touched);
            since = std::mem::replace(&mut self.since, self.end);
        }
        let footer = touched.put(&mut content);
        let length = BATCH_HEAD + u64::from(footer) * FOOTER_ENTRY;
        self.waiting.push_back(OpenBatch { lsn, footer, since, content, length });
    }

    /// Starts to write zeros if the stream comes close to where none are.
    fn zero_ahead(&mut self, out: &mut impl FnMut(Action)) {
        let (geometry, from) = (self.geometry(), self.zeroed);
        let wanted = geometry.zeros_for(self.end);
        if from >= wanted || self.zeroing.is_some() || !self.is_open() || self.has_failed {
            return;
        }
        let bytes = geometry.zeros_max().min(geometry.second_round().0 - from.0);
        self.zeroing = Some(from.after(bytes));
        out(Action::Zero(geometry.offset(from), bytes));
    }

    /// Starts the next flush if none is under way and there is something to write.
    fn start(&mut self, out: &mut impl FnMut(Action)) {
        self.zero_ahead(out);
        if self.flush.is_some() || self.has_failed {
            return;
        }
        let mut flush = Flush::default();
        if let Some(tail) = self.tail.take() {
            // Its own flush: a header that says where we begin must not be durable before it.
            let offset = self.geometry().offset(tail.head().lsn);
            flush.writes.push_back(Action::Write(offset, tail.into_bytes()));
        } else {
            if let Some(header) = self.next_header() {
                flush.writes.push_back(Action::Write(header.offset(), header.encode()));
                (self.written, flush.header) = (header, Some(header));
            }
            if let Some(batch) = self.next_batch() {
                let offset = self.geometry().offset(batch.head.lsn);
                flush.writes.push_back(Action::Batch(offset, Arc::clone(&batch)));
                flush.batch = Some(batch);
            }
        }
        if let Some(first) = flush.writes.pop_front() {
            self.flush = Some(flush);
            out(first);
        }
    }

    /// Returns the header to write, unless the last one says the same.
    fn next_header(&self) -> Option<StreamHeader> {
        let same = StreamHeader {
            incarnation: self.incarnation,
            begin: self.begin,
            checkpoint: self.checkpoint,
            is_closed: self.is_closing && self.durable == self.end,
            ..self.written
        };
        let zeroed = self.zeroed;
        (same != self.written).then(|| StreamHeader { number: same.number + 1, zeroed, ..same })
    }

    /// Returns the next batch to write if a client waits for it or it can take no more.
    fn next_batch(&mut self) -> Option<Arc<UnsealedBatch>> {
        let is_due = self.wanted > self.durable || self.waiting.len() > 1 || self.is_closing;
        let has_zeros =
            |batch: &OpenBatch| self.is_zeroed() || batch.lsn.after(whole_pages(batch.length)) <= self.zeroed;
        if !is_due || !self.is_open() || !self.waiting.front().is_some_and(has_zeros) {
            return None;
        }
        let OpenBatch { lsn, footer, since, content, .. } = self.waiting.pop_front()?;
        let (node, incarnation, clock) = (self.written.node, self.incarnation, self.clock);
        let head = BatchHead { node, incarnation, lsn, clock, footer, previous: self.checksum, since };
        let batch = UnsealedBatch { head, content: content.finish() };
        self.counts.batches += 1;
        self.counts.batch_bytes += batch.length() as u64;
        Some(Arc::new(batch))
    }

    /// Continues a flush whose last step has succeeded.
    fn done(&mut self, out: &mut impl FnMut(Action)) {
        let flush = self.flush.as_mut().expect("a write or sync is under way");
        if self.has_failed {
            self.flush = None;
            return;
        }
        if let Some(write) = flush.writes.pop_front() {
            return out(write);
        }
        if !flush.is_syncing {
            flush.is_syncing = true;
            self.counts.syncs += 1;
            return out(Action::Sync);
        }
        let Flush { batch, header, .. } = self.flush.take().unwrap_or_default();
        if let Some(header) = header {
            self.header_is_durable(header, out);
        }
        if let Some(batch) = batch {
            (self.last_durable, self.durable) = (batch.head.lsn, batch.end());
            out(Action::Durable(batch.end()));
        }
        self.start(out);
    }

    fn header_is_durable(&mut self, header: StreamHeader, out: &mut impl FnMut(Action)) {
        let before = std::mem::replace(&mut self.synced, header);
        if before.incarnation != header.incarnation {
            self.durable = self.begin;
            out(Action::Opened);
        }
        if before.checkpoint < header.checkpoint {
            out(Action::Room);
        }
        if header.is_closed {
            out(Action::Closed);
        }
    }
}

impl OpenBatch {
    fn records(&self) -> impl Iterator<Item = (Lsn, Record<'_>, bool)> {
        batch::records(self.lsn, self.footer, self.content.so_far())
    }

    /// Returns true if `needed` more bytes fit into the batch and its segment.
    fn has_room(&self, geometry: Geometry, needed: u64) -> bool {
        let length = whole_pages(self.length + needed);
        length <= geometry.batch_max() && self.lsn.after(length) <= geometry.next_segment(self.lsn)
    }
}
