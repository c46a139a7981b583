//! The scrub of a mirrored group: the copies of every unit are read and compared. A copy that is
//! bad is replaced by a sound one.
//!
//! Copies are compared without stopping writes. Only a unit whose copies differ is held, and read
//! again: a write was under way, or one copy is bad.

use std::{
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use plexus_base::BlockId;
use serde::{Deserialize, Serialize};

use super::{
    MirrorBlocks,
    map::{ChunkId, DiskNumber, UNIT_BYTES},
    pace::Pace,
    protocol::DiskRefusal,
    service::ChunkWrite,
};
use crate::{DiskError, Page, Version};

/// The pause after which copies that have changed meanwhile are read again.
const AGAIN: Duration = Duration::from_millis(10);

/// The attempts for a unit whose copies change meanwhile.
const ATTEMPTS: u32 = 20;

/// The result of a scrub.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct Scrubbed {
    /// The units that were read, of 1 MiB each.
    pub units: u64,
    /// The units of the group.
    pub all: u64,
    /// The units that have no second copy now, or whose copies have changed too often.
    pub not_compared: u64,
    /// Copies of blocks that were bad and are replaced.
    pub repaired: u64,
    /// Blocks that are bad on all copies.
    pub lost: u64,
    /// Blocks whose copies are sound, of the same version, and differ.
    pub differing: u64,
    /// Copies of units of redo that cannot be read.
    pub unreadable: u64,
}

impl Scrubbed {
    /// Returns true if an operator must act.
    #[must_use]
    pub fn has_faults(&self) -> bool {
        self.lost + self.differing + self.unreadable > 0
    }
}

/// The choice for a block whose copies differ.
enum Choice {
    /// The newest sound copy replaces these.
    Replace(Bytes, Vec<DiskNumber>),
    Lost,
    Differing,
}

impl MirrorBlocks {
    /// Reads and compares all copies. `progress` is told what was done so far, and returns false to
    /// end it.
    ///
    /// # Errors
    /// The node ends, or a sound copy cannot be written.
    pub(crate) fn scrub(&self, progress: &mut dyn FnMut(&Scrubbed) -> bool) -> Result<Scrubbed, DiskError> {
        let map = self.mirror().wait_for_map()?;
        let streams = map.streams().filter_map(|name| map.stream(name)).flatten();
        let chunks: Vec<_> = (0..map.chunks()).map(ChunkId).chain(streams).collect();
        let units = map.units();
        let mut found = Scrubbed { all: chunks.len() as u64 * u64::from(units), ..Scrubbed::default() };
        let mut pace = Pace::default();
        for chunk in chunks {
            for unit in 0..units {
                let began = Instant::now();
                self.scrub_unit(chunk, unit, &mut found)?;
                found.units += 1;
                if !progress(&found) {
                    return Ok(found);
                }
                thread::sleep(Duration::from_micros(pace.pause_us(began.elapsed().as_micros() as u64)));
            }
        }
        Ok(found)
    }

    fn scrub_unit(&self, chunk: ChunkId, unit: u32, found: &mut Scrubbed) -> Result<(), DiskError> {
        for _ in 0..ATTEMPTS {
            let map = self.mirror().wait_for_map()?;
            let disks: Vec<_> = map.current_copies(chunk).map(|copy| copy.disk).collect();
            if disks.len() < 2 || map.live_copies(chunk).count() != disks.len() {
                found.not_compared += 1;
                return Ok(());
            }
            let copies = self.mirror().read_unit(chunk, unit, &disks);
            if chunk.is_of_stream() {
                // The end of the stream of a dead node may differ: recovery makes it equal.
                found.unreadable += copies.iter().filter(|copy| is_failed(copy)).count() as u64;
                return Ok(());
            }
            let is_equal = copies[0].is_ok() && copies.iter().all(|copy| copy == &copies[0]);
            if is_equal && self.is_sound(chunk, unit, copies[0].as_ref().ok()) {
                return Ok(());
            }
            let version = map.changed(chunk);
            let held = self
                .mirror()
                .holding(chunk, unit, |hold| self.repair(chunk, unit, &disks, (hold, version), found));
            match held {
                Err(DiskRefusal::Changed | DiskRefusal::NotReadable(_)) => {
                    thread::sleep(AGAIN);
                }
                done => return Ok(done?),
            }
        }
        found.not_compared += 1;
        Ok(())
    }

    /// Returns the blocks of a unit, with their places in it.
    fn blocks_of(&self, chunk: ChunkId, unit: u32) -> impl Iterator<Item = (BlockId, usize)> {
        let bytes = self.block_bytes() as u64;
        let chunk_bytes = self.mirror().map().map_or(0, |map| map.chunk_bytes());
        let first = (u64::from(chunk.0) * chunk_bytes + u64::from(unit) * u64::from(UNIT_BYTES)) / bytes;
        (0..u64::from(UNIT_BYTES) / bytes)
            .map(move |index| (BlockId(first + index), (index * bytes) as usize))
    }

    fn is_sound(&self, chunk: ChunkId, unit: u32, bytes: Option<&Bytes>) -> bool {
        let block = |bytes: &Bytes, at: usize| bytes.slice(at..at + self.block_bytes());
        bytes.is_some_and(|bytes| {
            self.blocks_of(chunk, unit).all(|(number, at)| Page::of(block(bytes, at)).verify(number).is_ok())
        })
    }

    /// Compares the copies of a unit that no node writes, and replaces those that are bad.
    fn repair(
        &self,
        chunk: ChunkId,
        unit: u32,
        disks: &[DiskNumber],
        (hold, version): (u64, u64),
        found: &mut Scrubbed,
    ) -> Result<(), DiskRefusal> {
        let mut copies = Vec::new();
        for (disk, copy) in disks.iter().zip(self.mirror().read_unit(chunk, unit, disks)) {
            match copy {
                Ok(bytes) => copies.push((*disk, Some(bytes))),
                Err(DiskRefusal::Failed { .. }) => copies.push((*disk, None)),
                Err(why) => return Err(why),
            }
        }
        let mut writes = Vec::new();
        let (mut lost, mut differing) = (0, 0);
        for (block, at) in self.blocks_of(chunk, unit) {
            match self.choose(block, at, &copies) {
                Some(Choice::Replace(data, bad)) => {
                    tracing::warn!(
                        "{block}: the copy on {bad:?} is bad, and is replaced by that of another disk"
                    );
                    let (offset, only, under) =
                        (unit * UNIT_BYTES + at as u32, Some((version, bad)), Some(hold));
                    writes.push(ChunkWrite { chunk, offset, data, only, under });
                }
                Some(Choice::Lost) => {
                    tracing::error!("{block}: all copies are bad");
                    lost += 1;
                }
                Some(Choice::Differing) => {
                    tracing::error!("{block}: the copies differ and are of the same version");
                    differing += 1;
                }
                None => {}
            }
        }
        let bad = writes.iter().filter_map(|write| write.only.clone()).flat_map(|(_, bad)| bad);
        let bad: Vec<_> = bad.collect();
        self.mirror().write(writes)?;
        self.mirror().note_repaired(&bad);
        found.repaired += bad.len() as u64;
        found.lost += lost;
        found.differing += differing;
        Ok(())
    }

    /// Chooses what becomes of a block; `None` if all copies are sound and equal.
    fn choose(&self, block: BlockId, at: usize, copies: &[(DiskNumber, Option<Bytes>)]) -> Option<Choice> {
        let part = |bytes: &Bytes| bytes.slice(at..at + self.block_bytes());
        let version = |bytes: &Bytes| Page::of(part(bytes)).verify(block).ok();
        let sound: Vec<(Version, Bytes)> = copies
            .iter()
            .filter_map(|(_, bytes)| Some((version(bytes.as_ref()?)?, part(bytes.as_ref()?))))
            .collect();
        let Some((newest, data)) = sound.iter().max_by_key(|(version, _)| *version) else {
            return Some(Choice::Lost);
        };
        if sound.iter().any(|(version, bytes)| version == newest && bytes != data) {
            return Some(Choice::Differing);
        }
        let is_bad = |bytes: &Option<Bytes>| bytes.as_ref().is_none_or(|bytes| part(bytes) != *data);
        let bad: Vec<_> = copies.iter().filter(|(_, bytes)| is_bad(bytes)).map(|(disk, _)| *disk).collect();
        (!bad.is_empty()).then(|| Choice::Replace(data.clone(), bad))
    }
}

fn is_failed(copy: &Result<Bytes, DiskRefusal>) -> bool {
    matches!(copy, Err(DiskRefusal::Failed { .. }))
}
