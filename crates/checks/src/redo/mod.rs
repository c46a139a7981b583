//! A redo stream and the blocks that it protects, on a device that tears and loses writes, with
//! crashes at any moment, also while the stream is opened again.
//!
//! After every crash the records from the checkpoint on are exactly the groups that were appended
//! there, up to some end: none is missing, half, changed or invented, and every group that was
//! reported as durable is among them. Once an incarnation has opened the stream behind that end,
//! the end is final. Batches are written only where zeros or batches are durable. Replay of these
//! records gives each block as the last of them left it, also a block that was torn. At last,
//! damage to a batch in front of others is an error and never taken for the end, the other batches
//! are found, and the blocks that may lack records are named.

mod blocks;

use std::collections::VecDeque;

use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{Device, DeviceFault, SimulatedDevice};
use plexus_redo::stream::{
    protocol::{Action, AppendError, Batch, Event, Geometry, Lsn, PAGE, Record, StreamHeader, StreamWriter},
    reader::{StreamDamage, StreamError, StreamReader},
};
use plexus_sim::{Digest, Random};

use self::blocks::{Blocks, LoggedGroup};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation, chance::Chance},
};

const NODE: NodeId = NodeId(3);

/// The bytes of both headers.
const HEADERS: u64 = 2 * PAGE;

/// The parameters of a run.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The number of groups to append.
    pub groups: u64,
    /// Pages of a segment.
    pub pages: u64,
    /// The number of segments.
    pub segments: u32,
    /// The number of events, of a thousand, that are followed by a crash.
    pub crash: u64,
    /// The number of events, of a thousand, at which the device fails.
    pub faults: u64,
}

/// A stream with its device and its blocks.
pub struct Redo {
    plan: Plan,
    chance: Chance,
    digest: Digest,
    device: SimulatedDevice,
    incarnation: u64,
    writer: StreamWriter,
    actions: VecDeque<Action>,
    /// The step under way. `Some(result)` for a write, which the device has got already.
    step: Option<Option<bool>>,
    /// The end of the zeros that are being written, and the result.
    zeroing: Option<(u64, bool)>,
    /// The offset below which zeros or batches were durable.
    zeroed: u64,
    /// The places of the headers that were written and not synced.
    unsynced_headers: Vec<u64>,
    /// True if something was done during this step.
    has_acted: bool,
    is_open: bool,
    is_closed: bool,
    has_failed: bool,
    /// True after a group was refused, until there is room.
    is_full: bool,
    /// All groups that count, from the first one on, in their order.
    log: Vec<LoggedGroup>,
    /// The groups that the incarnation has found; final when it has opened.
    found: usize,
    blocks: Blocks,
    /// The highest checkpoint that was asked for.
    checkpoint: Lsn,
    events: u64,
    tallies: [(&'static str, u64); 7],
}

const CRASHES: usize = 0;
const REFUSED: usize = 1;
const TORN: usize = 2;
const DAMAGED: usize = 3;
const FOOTERS: usize = 4;
const ZEROS: usize = 5;
const NAMED: usize = 6;

impl Simulation for Redo {
    fn now(&self) -> u64 {
        self.events
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        self.run().map_err(|what| Broken::general("redo", what))?;
        let outcome = Outcome {
            digest: self.digest.value(),
            events: self.events,
            operations: self.log.len() as u64,
            ..Outcome::default()
        };
        Ok(outcome.with(self.tallies))
    }
}

/// Takes a stream through every history with at most `faults` crashes: each behind any event, of
/// the process or of power, with every unsynced write kept, lost, or torn at either end. Returns
/// the number of histories.
///
/// # Errors
/// The property that does not hold, and the history.
pub fn every_history(groups: u64, faults: usize) -> Result<u64, String> {
    let plan = Plan { groups, pages: 4, segments: 2, crash: 1, faults: 0 };
    let mut chance = Chance::every(faults);
    for histories in 1.. {
        let mut redo = Redo::new(plan, chance, 0);
        let result = redo.run();
        chance = redo.chance;
        result.map_err(|what| format!("{what}\nafter {chance:?}"))?;
        if !chance.again() {
            return Ok(histories);
        }
    }
    unreachable!("histories end")
}

impl Redo {
    /// Creates a run drawn from a seed.
    pub fn drawn(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan {
            groups: random.between(5, 80),
            pages: random.between(4, 16),
            segments: random.between(2, 4) as u32,
            crash: *random.pick(&[0, 20, 100]),
            faults: *random.pick(&[0, 0, 10]),
        };
        Self::new(plan, Chance::Drawn(random), seed)
    }

    fn new(plan: Plan, chance: Chance, seed: u64) -> Self {
        let geometry = Geometry::new(plan.pages * PAGE, plan.segments).expect("possible segments");
        let device = SimulatedDevice::new(geometry.length());
        let header = StreamHeader::new(7, NODE, geometry);
        device.write(header.offset(), &header.encode()).expect("a new device works");
        device.sync().expect("a new device works");
        let zeroed = geometry.offset(geometry.first_zeros());
        device.damage(zeroed, |unwritten| unwritten.fill(0xa5));
        let scan = StreamReader::open(&device).and_then(StreamReader::scan).expect("a new stream");
        let mut actions = VecDeque::new();
        let writer = StreamWriter::open(scan.tail, Incarnation(1), &mut |action| actions.push_back(action));
        Self {
            plan,
            chance,
            digest: Digest::new(seed),
            device,
            incarnation: 1,
            writer,
            actions,
            step: None,
            zeroing: None,
            zeroed,
            unsynced_headers: Vec::new(),
            has_acted: false,
            is_open: false,
            is_closed: false,
            has_failed: false,
            is_full: false,
            log: Vec::new(),
            found: 0,
            blocks: Blocks::default(),
            checkpoint: Lsn::FIRST,
            events: 0,
            tallies: [
                ("crashes", 0),
                ("refused", 0),
                ("torn", 0),
                ("damaged", 0),
                ("footers", 0),
                ("zeros", 0),
                ("named", 0),
            ],
        }
    }

    /// Runs the plan, heals everything, damages the stream or closes it.
    ///
    /// # Errors
    /// The property that does not hold.
    pub fn run(&mut self) -> Result<(), String> {
        self.take_actions()?;
        let mut groups = self.plan.groups;
        while groups > 0 || self.is_busy() {
            let is_free = !self.is_busy();
            let acts = match &mut self.chance {
                Chance::Drawn(random) => random.percent(40),
                // Also during each sync, where groups gather.
                Chance::Every { .. } => self.step == Some(None) && !self.has_acted,
            };
            if groups > 0 && self.is_open && (acts || is_free) {
                self.has_acted = true;
                groups -= self.act(groups)?;
            } else {
                self.advance()?;
            }
            self.crash_at_times()?;
        }
        (self.plan.crash, self.plan.faults) = (0, 0);
        if let Chance::Every { left, .. } = &mut self.chance {
            *left = 0;
        }
        self.handle(Event::Want(Lsn(u64::MAX)))?;
        self.settle()?;
        if let Some(group) = self.log.iter().find(|group| !group.is_durable) {
            return Err(format!("the group at {} never becomes durable", group.start));
        }
        self.damage()?;
        let may_misdirect = self.chance.of_drawn(3) == 2;
        if may_misdirect { self.misdirect() } else { self.close() }
    }

    /// Does one thing that a node does; returns the number of groups that were appended.
    fn act(&mut self, groups: u64) -> Result<u64, String> {
        let choice = match &mut self.chance {
            Chance::Drawn(random) => random.below(10),
            Chance::Every { .. } => {
                if groups.is_multiple_of(3) && self.blocks.any_clean(&self.writer) {
                    9
                } else {
                    0
                }
            }
        };
        if self.is_full || choice == 9 {
            self.handle(Event::Want(Lsn(u64::MAX)))?;
            // Not all at once: the checkpoint moves on while a header is being written.
            let chance = &mut self.chance;
            self.blocks.write_back(self.writer.durable(), |_| chance.of_drawn(2) == 0);
            let checkpoint = self.blocks.checkpoint(self.writer.durable());
            self.checkpoint = self.checkpoint.max(checkpoint);
            self.handle(Event::Checkpoint(checkpoint))?;
            if self.is_full {
                // Nothing that the checkpoint frees may be used before its header is durable.
                let mut appended = 0;
                while appended < groups && self.append()? {
                    appended += 1;
                }
                return Ok(appended);
            }
            if !matches!(self.chance, Chance::Every { .. }) {
                return Ok(0);
            }
        }
        if choice == 8
            && let Chance::Drawn(random) = &mut self.chance
        {
            self.blocks.write_back(self.writer.durable(), |_| random.percent(50));
            return Ok(0);
        }
        self.append().map(u64::from)
    }

    fn append(&mut self) -> Result<bool, String> {
        let number = self.log.len() as u64 + self.events * 1000;
        let (group, mut logged) = self.blocks.group(number, &mut self.chance);
        let (mut out, position) = (Vec::new(), self.writer.position());
        let appended = match self.writer.append(&group, &mut |action| out.push(action)) {
            Ok(appended) => appended,
            Err(AppendError::Full { free, .. }) => {
                self.tallies[REFUSED].1 += 1;
                self.is_full = true;
                let segment = self.plan.pages * PAGE;
                return match free >= segment {
                    true => Err(format!("refused with {free} free bytes")),
                    false => Ok(false),
                };
            }
            Err(error) => return Err(error.to_string()),
        };
        (logged.start, logged.end) = (appended.start, appended.end);
        if let Some(last) = self.log.last()
            && (logged.start < last.start || logged.end <= last.end)
        {
            return Err(format!("{} is used again", logged.end));
        }
        self.blocks.logged(&logged, position);
        self.log.push(logged);
        self.actions.extend(out);
        self.take_actions()?;
        if self.chance.of_drawn(10) < 7 {
            self.handle(Event::Want(appended.end))?;
        }
        Ok(true)
    }

    fn is_busy(&self) -> bool {
        self.step.is_some() || self.zeroing.is_some()
    }

    /// Ends the step or the zeros that are under way.
    fn advance(&mut self) -> Result<(), String> {
        if (self.step.is_none() || self.chance.of_drawn(3) == 0)
            && let Some((end, is_written)) = self.zeroing.take()
        {
            let is_durable = is_written && self.device.sync().is_ok();
            if is_durable {
                self.zeroed = end;
                self.unsynced_headers.clear();
            }
            self.events += 1;
            self.tallies[ZEROS].1 += 1;
            self.handle(Event::Zeroed(is_durable))?;
            return if self.has_failed { self.crash(true) } else { Ok(()) };
        }
        let Some(step) = self.step.take() else { return Ok(()) };
        self.events += 1;
        self.has_acted = false;
        let has_succeeded = step.unwrap_or_else(|| {
            self.unsynced_headers.clear();
            self.device.sync().is_ok()
        });
        self.digest.add(self.events * 4 + u64::from(step.is_some()) * 2 + u64::from(has_succeeded));
        self.handle(Event::Done(has_succeeded))?;
        if self.has_failed {
            return self.crash(true);
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), String> {
        while self.is_busy() {
            self.advance()?;
        }
        Ok(())
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let actions = &mut self.actions;
        self.writer.handle(event, &mut |action| actions.push_back(action));
        self.take_actions()
    }

    fn take_actions(&mut self) -> Result<(), String> {
        while let Some(action) = self.actions.pop_front() {
            let is_step = matches!(action, Action::Write(..) | Action::Batch(..) | Action::Sync);
            if is_step && self.step.is_some() {
                return Err("two steps at once".into());
            }
            match action {
                Action::Write(offset, bytes) => self.write(offset, &bytes)?,
                Action::Batch(offset, batch) => {
                    let mut bytes = vec![0; batch.length()];
                    let sealed = Event::Sealed(batch.seal(&mut bytes));
                    self.writer.handle(sealed, &mut |action| unreachable!("{action:?}"));
                    self.write(offset, &bytes)?;
                }
                Action::Sync => self.step = Some(None),
                Action::Zero(offset, length) => {
                    let zeros = vec![0; length as usize];
                    self.keeps_what_is_needed(offset, &zeros)?;
                    self.fail_at_times();
                    let is_written = self.device.write(offset, &zeros).is_ok();
                    self.zeroing = Some((offset + length, is_written));
                }
                Action::Opened => {
                    self.is_open = true;
                    self.log.truncate(self.found);
                    self.log.iter_mut().for_each(|group| group.is_durable = true);
                }
                Action::Durable(lsn) => {
                    let durable = self.log.iter_mut().rev().skip_while(|group| group.end > lsn);
                    durable.take_while(|group| !group.is_durable).for_each(|group| group.is_durable = true);
                }
                Action::Room => self.is_full = false,
                Action::Closed => self.is_closed = true,
                Action::Failed => self.has_failed = true,
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.keeps_what_is_needed(offset, bytes)?;
        if offset >= HEADERS && offset + bytes.len() as u64 > self.zeroed {
            return Err(format!("a batch at byte {offset} where no zeros are durable"));
        }
        self.fail_at_times();
        self.digest.add(offset);
        self.unsynced_headers.extend(Some(offset).filter(|offset| *offset < HEADERS));
        self.step = Some(Some(self.device.write(offset, bytes).is_ok()));
        Ok(())
    }

    /// Checks that a write leaves the durable groups above the durable checkpoint as they are.
    fn keeps_what_is_needed(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let StreamHeader { geometry, checkpoint, .. } = *self.writer.header();
        let written = offset..offset + bytes.len() as u64;
        let needed = self.log.iter().rev().take_while(|group| group.start >= checkpoint);
        let mut hit =
            needed.filter(|group| group.is_durable && written.contains(&geometry.offset(group.start)));
        let Some(group) = hit.next() else { return Ok(()) };
        // The next incarnation writes the last batch again.
        let mut found = vec![0; bytes.len()];
        self.device.read(offset, &mut found).map_err(|error| error.to_string())?;
        if found == bytes { Ok(()) } else { Err(format!("the group up to {} is overwritten", group.end)) }
    }

    fn fail_at_times(&mut self) {
        if let Chance::Drawn(random) = &mut self.chance
            && random.permille(self.plan.faults)
        {
            let faults = [DeviceFault::WriteFails, DeviceFault::Full, DeviceFault::SyncFails];
            self.device.fail_next(*random.pick(&faults));
        }
    }

    fn crash_at_times(&mut self) -> Result<(), String> {
        match self.chance.fault(self.plan.crash, 2) {
            0 => Ok(()),
            kind => self.crash(kind == 2),
        }
    }

    /// Ends the process, and cuts the power if `power`. The next incarnation opens what it finds.
    fn crash(&mut self, power: bool) -> Result<(), String> {
        self.tallies[CRASHES].1 += 1;
        let chance = &mut self.chance;
        if self.step.take().is_some_and(|step| step.is_some()) && !power {
            self.device.interrupt_last(|sectors| survivors(chance, sectors));
        }
        if power {
            self.device.lose_power(|sectors| survivors(chance, sectors));
            // All of a header is in one sector, which is torn as well. Nothing is left if that can
            // happen to both.
            let mut headers = std::mem::take(&mut self.unsynced_headers);
            headers.sort_unstable();
            headers.dedup();
            let all = headers.len() > 1 && chance.of(2) == 0;
            for header in headers.into_iter().filter(|_| all || chance.of_drawn(4) == 1) {
                self.device.damage(header, |bytes| bytes[40] ^= 4);
            }
            self.tallies[TORN].1 += u64::from(self.blocks.tear(self.writer.durable(), chance));
        }
        self.actions.clear();
        self.zeroing = None;
        (self.is_open, self.has_failed, self.is_full, self.has_acted) = (false, false, false, false);
        self.reopen()
    }

    fn reopen(&mut self) -> Result<(), String> {
        let batches = self.read().map_err(|error| error.to_string())?;
        self.found = self.check(&batches)?;
        self.blocks.recover(&self.log[..self.found], NODE, &batches)?;
        let scan = StreamReader::open(&self.device).and_then(StreamReader::scan);
        let scan = scan.map_err(|error| error.to_string())?;
        for (_, record, _) in batches.iter().flat_map(Batch::records) {
            if scan.highest.get(&record.block).is_none_or(|highest| *highest < record.after) {
                return Err(format!("{}: the scan misses {}", record.block, record.after));
            }
        }
        for (block, highest) in &scan.highest {
            if self.blocks.version(*block) < highest.0 {
                return Err(format!("{block}: the scan finds {highest}, which never was"));
            }
        }
        self.tallies[FOOTERS].1 += batches.iter().filter(|batch| batch.head().footer > 0).count() as u64;
        self.incarnation += 1;
        let actions = &mut self.actions;
        let incarnation = Incarnation(self.incarnation);
        self.writer = StreamWriter::open(scan.tail, incarnation, &mut |action| actions.push_back(action));
        self.take_actions()
    }

    fn read(&self) -> Result<Vec<Batch>, StreamError> {
        StreamReader::open(&self.device)?.of(7, NODE)?.collect()
    }

    /// Compares what is on the device with the groups that were appended. Returns how many of them
    /// are there or below the checkpoint.
    fn check(&self, batches: &[Batch]) -> Result<usize, String> {
        let reader = StreamReader::open(&self.device).map_err(|error| error.to_string())?;
        let checkpoint = reader.header().checkpoint;
        if checkpoint > self.checkpoint {
            return Err(format!("the checkpoint {checkpoint} is above {}", self.checkpoint));
        }
        if batches.is_empty() && self.log.iter().any(|group| group.is_durable) {
            return Err(format!("the last batch is gone: no batch is at the checkpoint {checkpoint}"));
        }
        let below = self.log.iter().take_while(|group| group.start < checkpoint).count();
        let mut expected = self.log[below..].iter();
        let mut found = below;
        for group in blocks::groups(batches) {
            match expected.next() {
                Some(logged) if logged.end == group.end && logged.changes == group.changes => found += 1,
                Some(logged) => {
                    return Err(format!("the group up to {} is not that of {}", group.end, logged.end));
                }
                None => {
                    return Err(format!(
                        "the group up to {} was never appended, or was cut before",
                        group.end
                    ));
                }
            }
        }
        match self.log[found..].iter().find(|group| group.is_durable) {
            Some(lost) => Err(format!("the durable group up to {} is lost", lost.end)),
            None => Ok(found),
        }
    }

    /// Flips a bit of each batch that has another behind it: reading must fail, or go on behind it.
    fn damage(&mut self) -> Result<(), String> {
        let batches = self.read().map_err(|error| error.to_string())?;
        for batch in batches.iter().rev().skip(1) {
            let geometry = self.writer.header().geometry;
            let at = geometry.offset(batch.head().lsn) + self.chance.of_drawn(batch.bytes().len()) as u64;
            self.device.damage(at, |bytes| bytes[0] ^= 4);
            let result = self.read();
            let gone = self.reads_around(&batches, batch);
            self.device.damage(at, |bytes| bytes[0] ^= 4);
            self.tallies[DAMAGED].1 += 1;
            match result {
                Err(StreamError::Corrupt { lsn, .. }) if lsn == batch.head().lsn => {}
                Err(StreamError::Corrupt { lsn, .. }) if lsn < batch.head().lsn => {}
                other => return Err(format!("damage at {} gives {other:?}", batch.head().lsn)),
            }
            self.tallies[NAMED].1 += u64::from(gone?);
        }
        Ok(())
    }

    /// Reads the stream, of which a batch is damaged. Returns true if its blocks are named.
    fn reads_around(&self, batches: &[Batch], damaged: &Batch) -> Result<bool, String> {
        let failed = |why: StreamError| format!("damage at {} ends the reading: {why}", damaged.head().lsn);
        let mut reader = StreamReader::open(&self.device).map_err(failed)?;
        let mut expected = batches.iter().filter(|batch| *batch != damaged);
        let mut named = None;
        while let Some(next) = reader.next_or_damage().map_err(failed)? {
            match next {
                Ok(batch) if expected.next() == Some(&batch) => {}
                Ok(batch) => return Err(format!("{} is not the next batch", batch.head().lsn)),
                Err(StreamDamage { blocks, .. }) => named = Some(blocks),
            }
        }
        let named = named.ok_or("no damage is found")?;
        if expected.next().is_some() {
            return Err("batches behind a damage are missing".into());
        }
        let Some(blocks) = named else { return Ok(false) };
        for (_, Record { block, after, .. }, _) in damaged.records() {
            if blocks.get(&block).is_none_or(|last| *last < after) {
                return Err(format!("{block}: the damage of {after} is not named"));
            }
        }
        Ok(true)
    }

    /// Misdirects one write and writes on: reading fails or gives everything.
    fn misdirect(&mut self) -> Result<(), String> {
        let pages = self.device.length() / PAGE - self.plan.pages;
        let elsewhere = self.chance.of(pages as usize) as u64 * PAGE;
        for round in 0..3 {
            if round == 0 {
                self.device.fail_next(DeviceFault::Misdirected(elsewhere));
            }
            if !self.append()? {
                // A full stream would first write a header.
                return Ok(());
            }
            self.handle(Event::Want(Lsn(u64::MAX)))?;
            self.settle()?;
        }
        match self.read() {
            Err(_) => Ok(()),
            Ok(batches) => self.check(&batches).map(drop),
        }
    }

    /// Closes the stream, at times while groups are not durable, and at times cuts the power
    /// meanwhile. A closed stream has all groups.
    fn close(&mut self) -> Result<(), String> {
        self.blocks.write_back(self.writer.durable(), |_| true);
        self.checkpoint = self.writer.durable();
        let mut groups = self.chance.of_drawn(4);
        while groups > 0 && self.append()? {
            groups -= 1;
        }
        self.handle(Event::Close)?;
        let mut has_power = true;
        while self.is_busy() && has_power {
            self.advance()?;
            has_power = self.chance.of_drawn(8) != 7;
        }
        let is_told = std::mem::take(&mut self.is_closed);
        if !has_power {
            let chance = &mut self.chance;
            self.device.lose_power(|sectors| survivors(chance, sectors));
        }
        let reader = StreamReader::open(&self.device).map_err(|error| error.to_string())?;
        let is_closed = reader.header().is_closed;
        let found = self.check(&self.read().map_err(|error| error.to_string())?)?;
        match (is_told, is_closed) {
            (true, false) => Err("a stream is reported as closed and is not".into()),
            (false, false) if has_power => Err("a stream is never closed".into()),
            (_, true) if found < self.log.len() => {
                Err(format!("a stream is closed with {found} of {} groups", self.log.len()))
            }
            (_, true) => self.open_closed(),
            _ => Ok(()),
        }
    }

    /// Opens a closed stream, of which no block needs a record, and writes on.
    fn open_closed(&mut self) -> Result<(), String> {
        self.blocks.write_back(Lsn(u64::MAX), |_| true);
        self.checkpoint = self.writer.end();
        self.crash(true)?;
        self.settle()?;
        self.append()?;
        self.handle(Event::Want(Lsn(u64::MAX)))?;
        self.settle()?;
        self.crash(true)
    }
}

/// Draws which sectors of a write survive: all, none, the front, the back, or any.
fn survivors(chance: &mut Chance, sectors: usize) -> Vec<bool> {
    let kinds = if matches!(chance, Chance::Drawn(_)) { 5 } else { 4 };
    let kind = chance.of(kinds);
    let survives = |sector: usize| match kind {
        0 => true,
        1 => false,
        2 => sector < sectors.div_ceil(2),
        3 => sector > 0,
        _ => chance.of(2) == 0,
    };
    (0..sectors).map(survives).collect()
}

/// Returns the block of a number.
fn block(number: usize) -> BlockId {
    BlockId(number as u64)
}
