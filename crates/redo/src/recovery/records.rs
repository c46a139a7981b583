//! The records of some blocks, from one pass over all streams.
//!
//! A block needs its changes and its newest image. So the memory is bounded by the changes in the
//! streams, and a page for each block.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use plexus_base::{BlockId, Incarnation};
use plexus_disks::{Device, Version};

use super::{ahead::ReadAhead, files::StreamFile, places::StreamPlaces};
use crate::stream::{
    protocol::{
        Batch, Lsn, Record, RecordKind,
        replay::{LocatedRecord, StreamName},
    },
    reader::{StreamDamage, StreamError, StreamReader},
};

/// The records of some blocks.
#[derive(Default)]
pub(super) struct GatheredRecords {
    blocks: BTreeMap<BlockId, BlockRecords>,
    damages: Vec<LocatedDamage>,
}

#[derive(Default)]
struct BlockRecords {
    changes: Vec<KeptRecord>,
    image: Option<KeptRecord>,
}

struct KeptRecord {
    stream: StreamName,
    incarnation: Incarnation,
    lsn: Lsn,
    kind: RecordKind,
    before: Version,
    after: Version,
    bytes: Vec<u8>,
}

/// A part of a stream that cannot be read.
struct LocatedDamage {
    /// The file and the reason.
    what: String,
    /// As in [`StreamDamage`].
    blocks: Option<BTreeMap<BlockId, Version>>,
}

impl LocatedDamage {
    /// Describes a stream of which nothing more can be read.
    fn of(file: &StreamFile, why: &str) -> Self {
        Self { what: format!("{}: {why}", file.path.display()), blocks: None }
    }
}

impl GatheredRecords {
    /// Prepares to gather the records of these blocks.
    pub(super) fn of(blocks: impl IntoIterator<Item = BlockId>) -> Self {
        let blocks = blocks.into_iter().map(|block| (block, BlockRecords::default())).collect();
        Self { blocks, damages: Vec::new() }
    }

    /// Returns the blocks, in their order.
    pub(super) fn blocks(&self) -> Vec<BlockId> {
        self.blocks.keys().copied().collect()
    }

    /// Adds the records of a stream, which its node may be writing. Its batches from the first of
    /// `read` on were read before. Stops early if `cancel` is set.
    pub(super) fn add(
        &mut self,
        places: &StreamPlaces,
        file: &StreamFile,
        read: &[Batch],
        is_running: bool,
        cancel: &AtomicBool,
    ) {
        let devices = match is_running {
            true => places.open(&file.path).map(|device| vec![device]),
            // What is damaged on one copy may be sound on another.
            false => places.open_copies(&file.path),
        };
        let devices = match devices {
            Ok(devices) => devices,
            Err(why) => return self.damages.push(LocatedDamage::of(file, &why.to_string())),
        };
        let mut best: Option<Self> = None;
        for device in devices {
            let mut found = Self::of(self.blocks.keys().copied());
            if let Err(why) = found.read(&*device, file, read, is_running, cancel) {
                found.damages.push(LocatedDamage::of(file, &why.to_string()));
            }
            let is_sound = found.damages.is_empty();
            if best.as_ref().is_none_or(|best| found.damages.len() < best.damages.len()) {
                best = Some(found);
            }
            if is_sound {
                break;
            }
        }
        self.join(best.expect("a stream has a copy"));
    }

    /// Adds what was found in one stream.
    fn join(&mut self, found: Self) {
        for (block, BlockRecords { changes, image }) in found.blocks {
            let known = self.blocks.entry(block).or_default();
            known.changes.extend(changes);
            let is_newer =
                |image: &KeptRecord| known.image.as_ref().is_none_or(|known| known.after < image.after);
            if image.as_ref().is_some_and(is_newer) {
                known.image = image;
            }
        }
        self.damages.extend(found.damages);
    }

    /// Removes and returns the records of a block.
    pub(super) fn take(&mut self, block: BlockId) -> RecordsOfBlock {
        let BlockRecords { mut changes, image } = self.blocks.remove(&block).unwrap_or_default();
        changes.extend(image);
        RecordsOfBlock { block, records: changes }
    }

    /// Checks that no damaged part of a stream may lead `block` beyond `version`.
    ///
    /// # Errors
    /// The damage, for the user.
    pub(super) fn check(&self, block: BlockId, version: Version) -> Result<(), String> {
        for LocatedDamage { what, blocks } in &self.damages {
            match blocks.as_ref().map(|blocks| blocks.get(&block)) {
                Some(None) => {}
                Some(Some(last)) if *last <= version => {}
                Some(Some(last)) => {
                    return Err(format!(
                        "{block}: has {version}, and damaged redo leads it to {last}: {what}"
                    ));
                }
                None => {
                    return Err(format!(
                        "{block}: has {version}, and damaged redo may lead it further: {what}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        device: &dyn Device,
        file: &StreamFile,
        read: &[Batch],
        is_running: bool,
        cancel: &AtomicBool,
    ) -> Result<(), StreamError> {
        thread::scope(|scope| {
            let device = ReadAhead::new(device, scope);
            let mut reader = StreamReader::open(&device)?;
            if is_running {
                reader = reader.of_running();
            }
            let end = read.first().map_or(Lsn(u64::MAX), |first| first.head().lsn);
            while reader.position() < end && !cancel.load(Relaxed) {
                match reader.next_or_damage()? {
                    None => break,
                    Some(Ok(batch)) if batch.head().lsn >= end => break,
                    Some(Ok(batch)) => self.keep(file, &batch),
                    Some(Err(StreamDamage { why, blocks })) => {
                        let what = format!("{}: {why}", file.path.display());
                        self.damages.push(LocatedDamage { what, blocks });
                    }
                }
            }
            read.iter().for_each(|batch| self.keep(file, batch));
            Ok(())
        })
    }

    /// Keeps the records of the blocks in question. An earlier incarnation has closed the stream,
    /// so no block needs its last batch, which is still there.
    fn keep(&mut self, file: &StreamFile, batch: &Batch) {
        if batch.head().incarnation != file.header.incarnation {
            return;
        }
        let stream = file.name();
        for (lsn, record, _) in batch.records() {
            let Record { kind, block, before, after, bytes, .. } = record;
            let Some(block) = self.blocks.get_mut(&block) else { continue };
            let incarnation = batch.head().incarnation;
            let kept = || KeptRecord { stream, incarnation, lsn, kind, before, after, bytes: bytes.into() };
            match kind {
                RecordKind::Change => block.changes.push(kept()),
                RecordKind::Image if block.image.as_ref().is_none_or(|image| image.after < after) => {
                    block.image = Some(kept());
                }
                RecordKind::Image => {}
            }
        }
    }
}

/// The records that replay of one block needs.
pub(super) struct RecordsOfBlock {
    block: BlockId,
    records: Vec<KeptRecord>,
}

impl RecordsOfBlock {
    /// Iterates over the records.
    pub(super) fn iter(&self) -> impl Iterator<Item = LocatedRecord<'_>> {
        self.records.iter().map(|kept| {
            let KeptRecord { stream, incarnation, lsn, kind, before, after, ref bytes } = *kept;
            let record = Record { kind, is_carried: false, block: self.block, before, after, bytes };
            LocatedRecord { stream, incarnation, lsn, record }
        })
    }
}
