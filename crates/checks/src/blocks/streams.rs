//! The redo streams of a simulated cluster, and what a node does with those of others: scan,
//! replay, close.
//!
//! A position counts groups, and the length of records that travel with a block is their number. A
//! node that dies keeps what is durable of its stream, and any part of
//! the rest from its beginning.

use std::rc::Rc;

use plexus_base::{BlockId, Epoch, Incarnation, NodeId};
use plexus_cache::protocol::{Event, RedoSpan};
use plexus_disks::Version;
use plexus_redo::stream::protocol::{
    Lsn, Record,
    replay::{BlockOnDisk, LocatedRecord, ReplayedBlock, StreamName, replay},
};

use super::{
    cluster::{Cluster, ClusterEvent, Local, Phase},
    contents::Contents,
    disk::Disk,
    page::Page,
    properties::{latest::Truth, recoverable},
};
use crate::{failure::Broken, scenario::Params};

/// A record of the stream.
#[derive(Clone, Copy, Hash, Debug)]
pub(crate) struct SimRecord {
    group: u64,
    block: BlockId,
    before: u64,
    after: u64,
    /// The [contents](Contents) of an image, or the patch of a change.
    value: u64,
}

/// The most records that travel with a block, in any run.
pub(crate) const CARRIED_MAX: usize = 2;

/// The reservations for records that come with a block.
const RESERVED_MAX: u32 = 2;

/// Records that travel with a block.
#[derive(Clone, Copy, Hash, Debug, Default)]
pub struct Carried([Option<SimRecord>; CARRIED_MAX]);

/// The stream of one incarnation.
#[derive(Clone, Hash, Debug)]
pub(crate) struct SimStream {
    node: NodeId,
    records: Vec<SimRecord>,
    /// The position behind the last group.
    end: u64,
    durable: u64,
    checkpoint: u64,
    /// The position that a flush under way makes durable, and the one that is wanted.
    flushing: Option<u64>,
    wanted: u64,
    /// The number of blocks of the last group.
    blocks: usize,
    /// The reservations that are in use.
    reserved: u32,
    /// True from the first group until the stream is closed. By then every member has drained in a
    /// view with this incarnation, so no one takes it for dead.
    pub(crate) is_open: bool,
}

impl SimStream {
    pub(crate) fn new(node: NodeId) -> Self {
        let records = Vec::new();
        let (end, durable, checkpoint, wanted) = (1, 1, 1, 1);
        let (flushing, blocks, reserved, is_open) = (None, 0, 0, false);
        Self { node, records, end, durable, checkpoint, flushing, wanted, blocks, reserved, is_open }
    }

    /// Begins a group with records of so many blocks.
    pub(crate) fn begin_group(&mut self, blocks: usize) {
        (self.is_open, self.blocks) = (true, blocks);
        self.end += 1;
    }

    /// Appends to the group that was begun last: an image of `before`, or a change by a patch from
    /// one version to the next, or both.
    pub(crate) fn log(
        &mut self,
        span: &mut RedoSpan,
        block: BlockId,
        before: Option<Page>,
        change: Option<(u64, u64)>,
    ) {
        let group = self.end - 1;
        let image = |page: Page| SimRecord {
            group,
            block,
            before: page.version,
            after: page.version,
            value: page.value,
        };
        let changed = |(before, value)| SimRecord { group, block, before, after: before + 1, value };
        self.records.extend(before.map(image));
        self.records.extend(change.map(changed));
        let is_forced = RedoSpan::is_forced(before.is_some(), self.blocks);
        let force = if is_forced { self.end } else { span.force };
        *span = RedoSpan { first: if span.first == 0 { group } else { span.first }, last: self.end, force };
    }

    /// Returns the records of a block that are not durable, if there are at most `limit`.
    pub(crate) fn carry(&self, block: BlockId, limit: u32) -> Option<Carried> {
        let is_carried = |record: &&SimRecord| record.group >= self.durable && record.block == block;
        let mut carried = Carried::default();
        for (count, record) in self.records.iter().filter(is_carried).enumerate() {
            if count >= limit as usize {
                return None;
            }
            carried.0[count] = Some(*record);
        }
        Some(carried)
    }

    /// Appends the records that came with a block, except those up to a version.
    pub(crate) fn append_carried(&mut self, carried: Carried, known: u64) -> RedoSpan {
        let mut new = carried.0.into_iter().flatten().filter(|record| record.after > known).peekable();
        if new.peek().is_none() {
            return RedoSpan::default();
        }
        assert!(self.reserved > 0, "records came for which no room is reserved");
        self.begin_group(1);
        let group = self.end - 1;
        self.records.extend(new.map(|record| SimRecord { group, ..record }));
        RedoSpan { first: group, last: self.end, force: 0 }
    }

    /// Reserves room for records that come with a block, if there is some.
    pub(crate) fn reserve(&mut self) -> bool {
        let has_room = self.reserved < RESERVED_MAX;
        self.reserved += u32::from(has_room);
        has_room
    }

    pub(crate) fn release(&mut self) {
        self.reserved = self.reserved.checked_sub(1).expect("a reservation");
    }

    /// Returns the position behind the last group.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// Returns the number of groups that are not free.
    pub(crate) fn used(&self) -> u64 {
        self.end - self.checkpoint
    }

    /// Keeps a part of the groups that are not durable: the node has died.
    pub(crate) fn tear(&mut self, kept: u64) {
        self.end = self.durable + kept % (self.end - self.durable + 1);
        self.records.retain(|record| record.group < self.end);
        (self.durable, self.flushing) = (self.end, None);
    }

    /// Makes the stream durable up to `end`, and returns the blocks with their versions that become
    /// durable.
    pub(crate) fn synced(&mut self, end: u64) -> impl Iterator<Item = (BlockId, u64)> {
        let before = std::mem::replace(&mut self.durable, end);
        let new = self.records.iter().filter(move |record| (before..end).contains(&record.group));
        new.map(|record| (record.block, record.after))
    }

    /// Wants the stream to be durable up to `end`.
    pub(crate) fn want(&mut self, end: u64) {
        self.wanted = self.wanted.max(end);
    }

    /// Returns true if more is to become durable than is.
    pub(crate) fn wants(&self) -> bool {
        self.wanted > self.durable
    }

    /// Returns the highest version of a block in the stream.
    pub(crate) fn highest(&self, of: BlockId) -> Option<u64> {
        self.records.iter().filter(|record| record.block == of).map(|record| record.after).max()
    }

    /// Moves the checkpoint. Returns true if records went.
    pub(crate) fn advance(&mut self, checkpoint: u64) -> bool {
        let before = self.records.len();
        self.checkpoint = self.checkpoint.max(checkpoint.min(self.durable));
        self.records.retain(|record| record.group >= self.checkpoint);
        self.records.len() < before
    }

    /// Returns the records of a block that a death of the node leaves, or all.
    fn records_of(&self, block: BlockId, durable_only: bool) -> impl Iterator<Item = (NodeId, SimRecord)> {
        let end = if durable_only { self.durable } else { self.end };
        let records = self.records.iter().filter(move |record| record.group < end && record.block == block);
        records.map(|record| (self.node, *record))
    }
}

fn located((node, record): (NodeId, SimRecord), bytes: &[u8]) -> LocatedRecord<'_> {
    let SimRecord { group, block, before, after, .. } = record;
    let record = match before == after {
        true => Record::image(block, Version(after), bytes),
        false => Record::change(block, Version(before), Version(after), bytes),
    };
    let stream = StreamName { node, place: 0 };
    LocatedRecord { stream, incarnation: Incarnation(1), lsn: Lsn(group), record }
}

/// Replays the records of these streams, each with or without those that are not durable.
fn replayed<'a>(
    contents: &Contents,
    block: BlockId,
    disk: BlockOnDisk,
    streams: impl Iterator<Item = (&'a SimStream, bool)>,
) -> Result<ReplayedBlock, String> {
    let records = streams.flat_map(|(stream, durable_only)| stream.records_of(block, durable_only));
    let records: Vec<_> = records.map(|record| (record, contents.bytes(record.1.value))).collect();
    let records = records.iter().map(|(record, bytes)| located(*record, bytes));
    let apply = |bytes: &mut Vec<u8>, what: &[u8]| contents.apply(bytes, what);
    replay(block, disk, records, apply).map_err(|error| error.to_string())
}

fn on_disk(contents: &Contents, page: Page) -> BlockOnDisk {
    match page.torn {
        true => BlockOnDisk::Torn(Version(0)),
        false => BlockOnDisk::Whole(Version(page.version), contents.bytes(page.value).to_vec()),
    }
}

/// Replays the durable records of a block, and returns its page, and true if that must be written.
pub(crate) fn replay_page<'a>(
    contents: &mut Contents,
    disk: Page,
    streams: impl Iterator<Item = &'a SimStream>,
) -> Result<(Page, bool), Broken> {
    let block = disk.block;
    let streams = streams.map(|stream| (stream, true));
    let result = replayed(contents, block, on_disk(contents, disk), streams);
    let result = result.map_err(|error| Broken::new("recoverable", block, error))?;
    let value = contents.number(&result.bytes);
    Ok((Page { block, version: result.version.0, value, torn: false }, result.is_owed))
}

/// Checks what would be there of a block if all nodes died now: with the shortest and the longest
/// tails, and with a write under way torn.
pub(crate) fn check_recoverable(
    contents: &Contents,
    truth: &Truth,
    disk: &Disk,
    streams: &[SimStream],
    block: BlockId,
) -> Result<(), Broken> {
    for durable_only in [true, false] {
        for torn in [false, true] {
            if torn && !disk.is_writing(block) {
                continue;
            }
            let disk = match torn {
                true => BlockOnDisk::Torn(Version(0)),
                false => on_disk(contents, disk.page(block)),
            };
            let open = streams.iter().filter(|stream| stream.is_open).map(|stream| (stream, durable_only));
            let replayed = replayed(contents, block, disk, open);
            recoverable::check(contents, truth, block, replayed, (durable_only, torn))?;
        }
    }
    Ok(())
}

/// Returns the contents of a block if all nodes died now but `survivors`, by their numbers as bits.
/// Of the streams of the dead only what is durable stays, or all.
///
/// # Errors
/// It cannot be recovered.
pub(crate) fn crashed_now(
    cluster: &Cluster,
    block: BlockId,
    survivors: u64,
    durable_only: bool,
) -> Result<Rc<[u8]>, Broken> {
    let survives = |node: u8| survivors >> node & 1 != 0 && cluster.is_alive(NodeId(node));
    let keeps = |node: u8| cluster.local(node, block).kept(block);
    if let Some(page) = (0..cluster.params.nodes).filter(|node| survives(*node)).find_map(keeps) {
        return Ok(cluster.contents.borrow().bytes(page.value));
    }
    let stays = |owner: usize, node: NodeId| cluster.owner(node.index()) == owner && survives(node.0);
    let open = cluster.streams.iter().enumerate().filter(|(_, stream)| stream.is_open);
    let streams = open.map(|(owner, stream)| (stream, durable_only && !stays(owner, stream.node)));
    let contents = &*cluster.contents.borrow();
    let replayed = replayed(contents, block, on_disk(contents, cluster.disk.page(block)), streams);
    let replayed = replayed.map_err(|error| Broken::new("crash_now", block, error))?;
    Ok(replayed.bytes.into())
}

/// Returns the position of the oldest record that a node needs in its stream, from its workers.
pub(crate) fn oldest_needed(locals: &[Local]) -> u64 {
    let oldest = locals.iter().flat_map(|local| {
        let frames = local.frames.frames.iter().filter(|frame| frame.owes);
        let firsts = frames.map(|frame| frame.redo.first).filter(|first| *first > 0);
        firsts.chain(local.shard.oldest_handed_over()).chain(local.shard.oldest_copied())
    });
    oldest.min().unwrap_or(u64::MAX)
}

impl Cluster {
    /// Makes the stream of an incarnation durable up to `end`, later.
    pub(crate) fn flush(&mut self, owner: usize, end: u64) {
        let stream = &mut self.streams[owner];
        stream.want(end);
        if stream.flushing.is_none() && stream.wants() {
            stream.flushing = Some(stream.end);
            let after = self.params.disk.draw(&mut self.engine.random);
            self.engine.schedule(after, Some(owner), ClusterEvent::Flushed(owner));
        }
    }

    pub(crate) fn flushed(&mut self, owner: usize) {
        let stream = &mut self.streams[owner];
        let end = stream.flushing.take().expect("a flush is under way");
        let (node, wanted) = (stream.node, stream.wanted);
        stream.synced(end).for_each(|(block, version)| self.truth.is_durable(block, version));
        for at in self.indices(node.0) {
            self.schedule_at(node.index(), ..1_000, ClusterEvent::Shard(at, Event::Durable { end }));
        }
        self.flush(owner, wanted);
    }

    /// Moves the checkpoint of a node's stream as far as its workers allow.
    pub(crate) fn advance_checkpoint(&mut self, node: usize) {
        let owner = self.owner(node);
        let oldest = oldest_needed(self.locals_of(node as u8));
        self.streams[owner].advance(oldest);
        self.checkpoint_moved(node);
    }

    /// Begins the recovery of a view at a worker: what it replays for an earlier one ends first.
    pub(crate) fn recover(&mut self, at: usize, epoch: Epoch) {
        let node = self.port(at).node.index();
        let rest = self.locals[at].replays_until.saturating_sub(self.engine.now());
        let drained = ClusterEvent::Shard(at, Event::Drained { epoch });
        self.schedule_at(node, rest + 1..rest + 5_000, drained);
        self.schedule_at(node, rest + 5_000..=rest + 60_000, ClusterEvent::Scanned(at, epoch));
    }

    /// Returns the streams of nodes that are not members of a view.
    fn dead_streams(&self, epoch: Epoch) -> Vec<usize> {
        let members: Vec<usize> = self.owners_of(epoch);
        (0..self.streams.len())
            .filter(|owner| self.streams[*owner].is_open && !members.contains(owner))
            .collect()
    }

    pub(crate) fn scan(&mut self, at: usize, epoch: Epoch) -> Result<(), Broken> {
        // The result may be under way to a worker that enters a later view, which ignores it.
        let is_late = self.locals[at].shard.epoch() != epoch;
        if !is_late && self.has_later_view(at, epoch) {
            return Ok(());
        }
        let dead = self.dead_streams(epoch);
        if !dead.is_empty() && self.cannot_scan(at) {
            self.scans_failed += 1;
            let node = self.port(at).node;
            if node.0 >= self.params.unreadable {
                self.schedule_at(node.index(), 10_000..=200_000, ClusterEvent::Scanned(at, epoch));
            }
            return self.shard(at, Event::ScanFailed { epoch });
        }
        let mut found = Vec::new();
        for block in (0..self.params.blocks).map(BlockId) {
            let last = dead.iter().filter_map(|owner| self.streams[*owner].highest(block)).max();
            found.extend(last.map(|version| (block, version)));
        }
        if !is_late {
            self.locals[at].scanned = dead;
        }
        self.drive(at, |shard, now, io| shard.scanned(now, epoch, found, io))
    }

    fn cannot_scan(&mut self, at: usize) -> bool {
        let Params { scan_failures, unreadable, .. } = self.params;
        let fails = self.phase == Phase::Running && scan_failures > 0;
        self.port(at).node.0 < unreadable || fails && self.engine.random.permille(scan_failures)
    }

    /// Begins to replay the blocks in doubt at a worker.
    pub(crate) fn begin_replays(&mut self, at: usize, epoch: Epoch) {
        let node = self.port(at).node.index();
        for block in self.locals[at].shard.in_doubt().collect::<Vec<_>>() {
            self.schedule_at(node, 1..=30_000, ClusterEvent::Replay(at, epoch, block));
        }
    }

    /// Replays one block, and writes it if that changed it.
    pub(crate) fn replay_one(&mut self, at: usize, epoch: Epoch, block: BlockId) -> Result<(), Broken> {
        if self.locals[at].shard.epoch() != epoch {
            return Ok(());
        }
        if self.disk.is_writing(block) {
            return Err(Broken::new("recoverable", block, "replayed during a write".into()));
        }
        let node = self.port(at).node.index();
        let owner = self.owner(node);
        let mut streams = self.dead_streams(epoch);
        streams.extend(self.owners_of(epoch));
        let streams = streams.into_iter().map(|owner| &self.streams[owner]);
        let (page, is_owed) = replay_page(&mut self.contents.borrow_mut(), self.disk.page(block), streams)?;
        self.note(block, || format!("node {node} replays {page:?}"));
        // Some writes take long: a later view must wait for them.
        let slow = *self.engine.random.pick(&[1, 1, 30]);
        let after = if is_owed { slow * self.params.disk.draw(&mut self.engine.random) } else { 0 };
        if is_owed {
            self.engine.schedule(after, None, ClusterEvent::DiskLands(owner, page));
        }
        self.locals[at].replays_until = self.locals[at].replays_until.max(self.engine.now() + after);
        let done = ClusterEvent::Replayed(at, epoch, page);
        self.schedule_at(node, after + 1..=after + 5_000, done);
        Ok(())
    }

    pub(crate) fn replayed(&mut self, at: usize, epoch: Epoch, page: Page) -> Result<(), Broken> {
        self.truth.is_durable(page.block, page.version);
        self.shard(at, Event::Replayed { epoch, block: page.block, version: Some(page.version) })
    }

    /// Returns true if a worker of the node is in a later view: that ends the node's recovery of
    /// this one.
    fn has_later_view(&self, at: usize, epoch: Epoch) -> bool {
        self.locals_of(self.port(at).node.0).iter().any(|local| local.shard.epoch() > epoch)
    }

    /// Closes the scanned streams once every worker of the node needs them no more.
    pub(crate) fn close_streams(&mut self, at: usize, epoch: Epoch) {
        self.locals[at].closes = Some(epoch);
        let locals = &self.locals[self.indices(self.port(at).node.0)];
        if locals.iter().all(|local| local.closes == Some(epoch)) && !self.has_later_view(at, epoch) {
            let scanned = |owner: &usize| locals.iter().all(|local| local.scanned.contains(owner));
            let closed: Vec<usize> = locals[0].scanned.iter().copied().filter(scanned).collect();
            for owner in closed {
                self.streams[owner].is_open = false;
                self.streams_closed += 1;
            }
        }
    }
}
