//! Reads a stream from a device: its valid end, its records from the checkpoint on, and a scan that
//! uses the footers of segments.
//!
//! The valid end is the first position at which the next batch is missing. The next batch is behind
//! the last one or, if that segment had no room for it, at the start of the next segment; it
//! repeats the checksum of the last one. A writer makes each batch durable before it writes the
//! next. A valid batch behind a missing one is thus corruption, an error that names the position.
//! So is an end before the position at which the current incarnation begins.
//!
//! The stream of a running node changes while it is read. [`StreamReader::of_running`] reads what
//! was durable when the reading began, and takes any missing batch for the end. Where the writer
//! has used a segment again, reading goes on at the checkpoint that allowed it.

use std::collections::BTreeMap;

use plexus_base::{
    BlockId, NodeId,
    wire::{DecodeError, Fault},
};
use plexus_disks::{Buffer, Device, DiskError, Version};

use super::protocol::{
    Batch, BatchHead, Geometry, HEADERS, Lsn, PAGE, StreamHeader, StreamTail, TouchedBlocks, newest,
};

/// The reason why a stream cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The device failed.
    #[error("redo stream: {0}")]
    Disk(#[from] DiskError),
    /// Neither header is sound, or one has a newer format.
    #[error("redo stream: {0}; {advice}", advice = advice(.0))]
    Header(DecodeError),
    /// The device is shorter than the stream.
    #[error(
        "redo stream of {node}: a segment is missing: {found} bytes of {expected}; restore the stream from a copy"
    )]
    Missing {
        /// The node of the stream.
        node: NodeId,
        /// The bytes of the device.
        found: u64,
        /// The bytes that the header names.
        expected: u64,
    },
    /// The stream belongs to another node or cluster.
    #[error(
        "redo stream of {found} of cluster {found_cluster:032x} where that of {expected} of cluster \
         {expected_cluster:032x} is expected; correct the path"
    )]
    Foreign {
        /// The node of the stream.
        found: NodeId,
        /// The cluster of the stream.
        found_cluster: u128,
        /// The expected node.
        expected: NodeId,
        /// The expected cluster.
        expected_cluster: u128,
    },
    /// Batches are missing or damaged in front of valid ones.
    #[error(
        "redo stream of {node} is damaged at {lsn} (byte {offset}): no valid batch is there, and {evidence}; restore \
         the stream from a copy"
    )]
    Corrupt {
        /// The node of the stream.
        node: NodeId,
        /// The position of the missing batch.
        lsn: Lsn,
        /// Its offset on the device.
        offset: u64,
        /// The reason why this is not the end.
        evidence: Evidence,
    },
}

/// Returns what to do about a header that cannot be read.
fn advice(why: &DecodeError) -> &'static str {
    match why.fault {
        Fault::Version { found, known } if found < known => {
            "end the cluster with the version of plexus that wrote it (`plexus down --all`), then remove the stream"
        }
        _ => "restore the stream from a copy, or use the version of plexus that wrote it",
    }
}

/// The evidence that a stream goes on behind a missing batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Evidence {
    /// A valid batch of the same incarnation or a later one is behind it.
    #[error("a valid one at {0} is behind it")]
    BatchBehind(Lsn),
    /// The incarnation that wrote last found more batches.
    #[error("the last incarnation of the node began at {0}")]
    BeginsBehind(Lsn),
}

/// The blocks and the end that a scan finds in a stream.
#[derive(Debug)]
pub struct StreamScan {
    /// The highest version of each block with a record at or above the checkpoint. Blocks with
    /// records only shortly below it may be there too.
    pub highest: BTreeMap<BlockId, Version>,
    /// The end, for the next incarnation.
    pub tail: StreamTail,
    /// The batches of the last segment, which were read. There are none if any was damaged.
    pub batches: Vec<Batch>,
    /// The first damage. `highest` has the blocks of the damaged parts.
    pub damage: Option<StreamError>,
}

/// A part of a stream that cannot be read, in front of valid batches.
#[derive(Debug)]
pub struct StreamDamage {
    /// The reason, with the position.
    pub why: StreamError,
    /// The last versions of the blocks with records in the segments or the batch of that part;
    /// `None` if they are not known, and any block may have records there.
    pub blocks: Option<BTreeMap<BlockId, Version>>,
}

/// The bytes that are read at once. A longer batch is read at once too.
const READ_AHEAD: u64 = 4 << 20;

/// An iterator over the valid batches of a stream, from the checkpoint on.
pub struct StreamReader<'a> {
    device: &'a dyn Device,
    header: StreamHeader,
    /// True if the writer may be at work.
    is_running: bool,
    /// A scan names no blocks of batches below this position.
    needed: Lsn,
    window: Window,
    /// The position of the next batch, unless it is in the next segment.
    next: Lsn,
    /// The checksum of the last batch; `None` where the reader began.
    previous: Option<u32>,
}

/// The bytes of the device that were read last.
struct Window {
    offset: u64,
    length: usize,
    buffer: Buffer,
}

impl<'a> StreamReader<'a> {
    /// Reads the headers of the stream on `device`.
    ///
    /// # Errors
    /// The device fails or has no stream, or only a part of one.
    pub fn open(device: &'a dyn Device) -> Result<Self, StreamError> {
        let header = read_header(device)?;
        let (node, found, expected) = (header.node, device.length(), header.geometry.length());
        if found < expected {
            return Err(StreamError::Missing { node, found, expected });
        }
        let window = Window { offset: 0, length: 0, buffer: Buffer::zeroed(0) };
        Ok(Self {
            device,
            header,
            is_running: false,
            needed: Lsn(0),
            window,
            next: header.checkpoint,
            previous: None,
        })
    }

    /// Reads the stream of a running node, whose end is not checked.
    #[must_use]
    pub fn of_running(self) -> Self {
        Self { is_running: true, ..self }
    }

    /// Leaves out the blocks of earlier incarnations: the stream was closed before it was opened
    /// again, so their blocks are on disk.
    #[must_use]
    pub fn of_last_incarnation(self) -> Self {
        Self { needed: self.header.begin, ..self }
    }

    /// Refuses the stream of another cluster or node.
    ///
    /// # Errors
    /// The header names others.
    pub fn of(self, cluster: u128, node: NodeId) -> Result<Self, StreamError> {
        let StreamHeader { cluster: found_cluster, node: found, .. } = self.header;
        if (found_cluster, found) == (cluster, node) {
            return Ok(self);
        }
        Err(StreamError::Foreign { found, found_cluster, expected: node, expected_cluster: cluster })
    }

    /// Returns the header in force.
    #[must_use]
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// Returns the position of the next batch, unless it is in the next segment.
    #[must_use]
    pub fn position(&self) -> Lsn {
        self.next
    }

    /// Reads the next batch, or returns `None` at the end of the stream.
    ///
    /// # Errors
    /// The device fails, or the stream is damaged here.
    pub fn next_batch(&mut self) -> Result<Option<Batch>, StreamError> {
        loop {
            if let Some(batch) = self.following()? {
                return Ok(Some(batch));
            }
            if !self.is_running {
                return self.check_end().map(|()| None);
            }
            let checkpoint = read_header(self.device)?.checkpoint;
            if checkpoint <= self.next {
                return Ok(None);
            }
            self.resume(checkpoint);
        }
    }

    /// Reads the next batch. Where the stream is damaged in front of valid batches, it describes
    /// the damage and goes on with the first of them. Returns `None` at the end of the stream.
    ///
    /// # Errors
    /// The device fails, or no batch follows where one must be.
    pub fn next_or_damage(&mut self) -> Result<Option<Result<Batch, StreamDamage>>, StreamError> {
        let next = match self.next_batch() {
            Ok(None) if self.is_running => self.check_running_end().map(|()| None),
            next => next,
        };
        match next {
            Err(why @ StreamError::Corrupt { lsn, evidence: Evidence::BatchBehind(behind), .. })
                if behind > lsn =>
            {
                let blocks = self.blocks_between(lsn, behind)?;
                self.resume(behind);
                Ok(Some(Err(StreamDamage { why, blocks })))
            }
            next => Ok(next?.map(Ok)),
        }
    }

    /// Judges the end at which the reading of a running stream has stopped. More batches may have
    /// come since.
    fn check_running_end(&mut self) -> Result<(), StreamError> {
        self.window.length = 0;
        let Err(damage) = self.check_end() else { return Ok(()) };
        // The writer wrote a batch that is behind the end after the one that was missing.
        self.window.length = 0;
        let has_moved = self.following()?.is_some() || read_header(self.device)?.checkpoint > self.next;
        if has_moved { Ok(()) } else { Err(damage) }
    }

    /// Continues at `lsn`, where a batch begins, whatever batch is before it.
    fn resume(&mut self, lsn: Lsn) {
        (self.next, self.previous, self.window.length) = (lsn, None, 0);
    }

    /// Returns the last versions of the blocks of the damaged part between two positions, from the
    /// footer of the batch behind it or those of its segments; `None` if one of them is missing.
    fn blocks_between(
        &mut self,
        from: Lsn,
        behind: Lsn,
    ) -> Result<Option<BTreeMap<BlockId, Version>>, StreamError> {
        let has_footer = |batch: &Batch| batch.head().footer > 0;
        let next = self.batch_at(behind)?.filter(has_footer);
        if let Some(next) = next.filter(|next| next.head().since <= from) {
            return Ok(Some(next.footer().collect()));
        }
        let mut blocks = BTreeMap::new();
        let mut at = from;
        while at < behind {
            at = self.geometry().next_segment(at);
            let first = self.batch_at(at)?.filter(has_footer);
            let Some(first) = first.filter(|first| self.is_current(first.head())) else { return Ok(None) };
            first.footer().for_each(|(block, version)| raise(&mut blocks, block, version));
        }
        Ok(Some(blocks))
    }

    /// Reads the batch behind the last one, if it is there.
    fn following(&mut self) -> Result<Option<Batch>, StreamError> {
        let geometry = self.geometry();
        let behind = geometry.next_segment(self.next);
        // Where the reader begins, and at the start of a segment, there is a batch or the end.
        let may_skip = self.previous.is_some() && !geometry.is_segment_start(self.next);
        for lsn in [Some(self.next), may_skip.then_some(behind)].into_iter().flatten() {
            if let Some(batch) = self.batch_at(lsn)?.filter(|batch| self.follows(batch.head())) {
                (self.next, self.previous) = (batch.end(), Some(batch.checksum()));
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Finds the highest version of each block, and the end. Segments with a footer are not read.
    ///
    /// # Errors
    /// The device fails, or a part of the stream that was read is damaged and its blocks are not
    /// known.
    pub fn scan(mut self) -> Result<StreamScan, StreamError> {
        let geometry = self.geometry();
        let (mut highest, mut damage) = (BTreeMap::new(), None);
        // A segment is complete once the next one has begun.
        loop {
            let start = geometry.next_segment(self.next);
            let Some(first) = self.batch_at(start)?.filter(|batch| self.is_current(batch.head())) else {
                break;
            };
            if first.head().footer == 0 {
                while self.next < start && self.scan_next(&mut highest, &mut damage)?.is_some() {}
            }
            first.footer().for_each(|(block, version)| raise(&mut highest, block, version));
            (self.next, self.previous) = (start, None);
        }
        let since = self.next;
        let mut touched = TouchedBlocks::default();
        let mut batches = Vec::new();
        while let Some(batch) = self.scan_next(&mut highest, &mut damage)? {
            batch.records().for_each(|(_, record, _)| touched.note(geometry, record.block, record.after));
            batches.push(batch);
        }
        let last: Option<Batch> = batches.last().cloned();
        let clock = last.as_ref().map_or(0, |batch| batch.head().clock);
        let tail = StreamTail { header: self.header, end: self.next, last, touched, since, clock };
        if damage.is_some() {
            batches.clear();
        }
        Ok(StreamScan { highest, tail, batches, damage })
    }

    /// Notes the blocks of the next batch, which is returned, and those of damaged parts before it.
    fn scan_next(
        &mut self,
        highest: &mut BTreeMap<BlockId, Version>,
        damage: &mut Option<StreamError>,
    ) -> Result<Option<Batch>, StreamError> {
        loop {
            match self.next_or_damage()? {
                None => return Ok(None),
                Some(Ok(batch)) => {
                    if batch.head().lsn >= self.needed {
                        batch.records().for_each(|(_, record, _)| raise(highest, record.block, record.after));
                    }
                    return Ok(Some(batch));
                }
                Some(Err(StreamDamage { why, blocks })) => {
                    let Some(blocks) = blocks else { return Err(why) };
                    blocks.into_iter().for_each(|(block, version)| raise(highest, block, version));
                    damage.get_or_insert(why);
                }
            }
        }
    }

    fn geometry(&self) -> Geometry {
        self.header.geometry
    }

    /// Returns true if a batch is the one behind the last.
    fn follows(&self, head: &BatchHead) -> bool {
        self.is_current(head) && self.previous.is_none_or(|previous| previous == head.previous)
    }

    /// Returns true if the incarnation that wrote a batch was to write at its position.
    fn is_current(&self, head: &BatchHead) -> bool {
        match head.lsn < self.header.begin {
            true => head.incarnation < self.header.incarnation,
            false => head.incarnation == self.header.incarnation,
        }
    }

    /// Reads the batch that begins at `lsn`, if a valid one does.
    fn batch_at(&mut self, lsn: Lsn) -> Result<Option<Batch>, StreamError> {
        let found = self.any_batch_at(lsn)?;
        Ok(found.filter(|batch| batch.head().lsn == lsn))
    }

    /// Reads the valid batch of this node at the place of `lsn`, whatever position it names.
    fn any_batch_at(&mut self, lsn: Lsn) -> Result<Option<Batch>, StreamError> {
        let offset = self.geometry().offset(lsn);
        let room = self.geometry().next_segment(lsn).0 - lsn.0;
        let longest = room.min(self.geometry().batch_max());
        let node = self.header.node;
        let Ok((head, length)) = Batch::peek(self.bytes(offset, PAGE)?) else { return Ok(None) };
        if head.node != node || length > longest {
            return Ok(None);
        }
        Ok(Batch::decode(self.bytes(offset, length)?.to_vec()).ok())
    }

    /// Returns bytes of the segments, which may have been read before.
    fn bytes(&mut self, offset: u64, length: u64) -> Result<&[u8], StreamError> {
        let Window { offset: start, length: filled, buffer } = &mut self.window;
        let end = *start + *filled as u64;
        if offset < *start || offset + length > end {
            // What is read follows what was read before, so that a device can read ahead.
            let kept = if (*start..end).contains(&offset) { end - offset } else { 0 };
            let left = self.header.geometry.length() - offset - kept;
            let ahead = READ_AHEAD.min(left).max(length - kept);
            let all = (kept + ahead) as usize;
            if buffer.len() < all {
                let before = std::mem::replace(buffer, Buffer::zeroed(all));
                buffer[..*filled].copy_from_slice(&before[..*filled]);
            }
            buffer.copy_within(*filled - kept as usize..*filled, 0);
            *filled = 0;
            self.device.read(offset + kept, &mut buffer[kept as usize..all])?;
            (*start, *filled) = (offset, all);
        }
        let from = (offset - *start) as usize;
        Ok(&buffer[from..from + length as usize])
    }

    /// Checks that the stream ends here: no later batch is where one can follow a missing one.
    fn check_end(&mut self) -> Result<(), StreamError> {
        let (geometry, here) = (self.geometry(), self.next);
        let node = self.header.node;
        let corrupt = |evidence| {
            let offset = geometry.offset(here);
            Err(StreamError::Corrupt { node, lsn: here, offset, evidence })
        };
        for start in [here, geometry.next_segment(here)] {
            let room = geometry.next_segment(start).0 - start.0;
            let mut pages = Buffer::zeroed(room.min(geometry.batch_max() + PAGE) as usize);
            self.device.read(geometry.offset(start), &mut pages)?;
            let heads = pages.chunks(PAGE as usize).map(Batch::peek);
            for (index, (head, _)) in
                heads.enumerate().filter_map(|(index, peeked)| Some((index, peeked.ok()?)))
            {
                let is_newer = head.incarnation > self.header.incarnation;
                let is_later = head.lsn >= here && (is_newer || self.is_current(&head));
                let at = start.after(index as u64 * PAGE);
                if is_later && let Some(batch) = self.any_batch_at(at)? {
                    return corrupt(Evidence::BatchBehind(batch.head().lsn));
                }
            }
        }
        if here < self.header.begin {
            return corrupt(Evidence::BeginsBehind(self.header.begin));
        }
        Ok(())
    }
}

fn raise(highest: &mut BTreeMap<BlockId, Version>, block: BlockId, version: Version) {
    let highest = highest.entry(block).or_insert(version);
    *highest = version.max(*highest);
}

fn read_header(device: &dyn Device) -> Result<StreamHeader, StreamError> {
    let mut headers = Buffer::zeroed(HEADERS);
    let readable = headers.len().min(device.length() as usize / PAGE as usize * PAGE as usize);
    device.read(0, &mut headers[..readable])?;
    newest(&headers).map_err(StreamError::Header)
}

impl Iterator for StreamReader<'_> {
    type Item = Result<Batch, StreamError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}
