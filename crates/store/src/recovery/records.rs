//! The records of some blocks, from one pass over all streams.
//!
//! A block needs its changes and its newest image. So the memory is bounded by the changes in the
//! streams, and a page for each block.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
};

use plexus_base::{BlockId, Incarnation};
use plexus_disks::{FileDevice, Version};

use super::files::StreamFile;
use crate::stream::{
    protocol::{
        Batch, Lsn, Record, RecordKind,
        replay::{LocatedRecord, StreamName},
    },
    reader::{Evidence, StreamError, StreamReader},
};

/// The records of some blocks.
#[derive(Default)]
pub(super) struct GatheredRecords {
    blocks: BTreeMap<BlockId, BlockRecords>,
    damages: Vec<StreamDamage>,
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
struct StreamDamage {
    /// The file and the reason.
    what: String,
    /// The last versions of the blocks with records in the segments of that part; `None` if they
    /// are not known, and any block may have records there.
    blocks: Option<BTreeMap<BlockId, Version>>,
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

    /// Adds the records of a stream, which its node may be writing. Stops early if `cancel` is set.
    pub(super) fn add(&mut self, file: &StreamFile, is_running: bool, cancel: &AtomicBool) {
        if let Err(why) = self.read(file, is_running, cancel) {
            let what = format!("{}: {why}", file.path.display());
            self.damages.push(StreamDamage { what, blocks: None });
        }
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
        for StreamDamage { what, blocks } in &self.damages {
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

    fn read(&mut self, file: &StreamFile, is_running: bool, cancel: &AtomicBool) -> Result<(), StreamError> {
        let device = FileDevice::open(&file.path)?;
        let mut reader = StreamReader::open(&device)?;
        if is_running {
            reader = reader.of_running();
        }
        while !cancel.load(Relaxed) {
            match reader.next_batch() {
                Ok(Some(batch)) => self.keep(file.name(), &batch),
                Ok(None) => break,
                Err(StreamError::Corrupt { node, lsn, offset, evidence: Evidence::BatchBehind(behind) })
                    if behind > lsn =>
                {
                    let blocks = blocks_between(&mut reader, lsn, behind)?;
                    let evidence = Evidence::BatchBehind(behind);
                    let why = StreamError::Corrupt { node, lsn, offset, evidence };
                    let what = format!("{}: {why}", file.path.display());
                    self.damages.push(StreamDamage { what, blocks });
                    reader.resume(behind);
                }
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn keep(&mut self, stream: StreamName, batch: &Batch) {
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

/// Returns the last versions of the blocks of the segments between two positions, or `None` if one
/// of them has no footer.
fn blocks_between(
    reader: &mut StreamReader<'_>,
    from: Lsn,
    end: Lsn,
) -> Result<Option<BTreeMap<BlockId, Version>>, StreamError> {
    let mut all: BTreeMap<BlockId, Version> = BTreeMap::new();
    let mut at = from;
    while at < end {
        let Some(blocks) = reader.footer(at)? else { return Ok(None) };
        for (block, version) in blocks {
            let last = all.entry(block).or_insert(version);
            *last = version.max(*last);
        }
        at = reader.header().geometry.next_segment(at);
    }
    Ok(Some(all))
}
