//! Replay: the newest contents of one block, from the disk and the records of several streams.
//!
//! The changes of a block are totally ordered by its version, over all nodes, so the streams need
//! no common position. A change applies only to exactly the version before it. Older records are
//! skipped, carried ones that occur twice too. Replay starts from the newest whole contents: those
//! on disk or an image. A record that nothing leads to is an error and never guessed over.
//!
//! Must not know what a change means: the caller applies it.

use std::fmt;

use plexus_base::{BlockId, Incarnation, NodeId, wire::DecodeError};
use plexus_disks::{Version, Writer};

use super::{Lsn, Record, RecordKind};

/// The identity of a stream in messages. A node has several, in places from 0 on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct StreamName {
    /// The node.
    pub node: NodeId,
    /// The number of the stream among those of the node.
    pub place: u8,
}

impl fmt::Display for StreamName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {} of {}", self.place, self.node)
    }
}

/// A record and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LocatedRecord<'a> {
    /// The stream.
    pub stream: StreamName,
    /// The incarnation of the node that wrote the record.
    pub incarnation: Incarnation,
    /// The position in the stream.
    pub lsn: Lsn,
    /// The record.
    pub record: Record<'a>,
}

/// A block as the disk has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockOnDisk {
    /// The block is whole.
    Whole(Version, Vec<u8>),
    /// The block is torn or damaged. It had this version at least.
    Torn(Version),
}

/// A block after replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplayedBlock {
    /// The version.
    pub version: Version,
    /// The contents.
    pub bytes: Vec<u8>,
    /// The incarnation whose stream has the last change that was applied.
    pub writer: Option<Writer>,
    /// True if the disk does not have these contents, so that they must be written.
    pub is_owed: bool,
}

/// The reason why a block cannot be replayed. Other blocks are not affected.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    /// Records are missing.
    #[error(
        "{block}: redo is missing: it has {version}, and the next record ({stream}, {lsn}) applies to {next}; \
         restore the stream that lacks records, or the block from a copy"
    )]
    Gap {
        /// The block.
        block: BlockId,
        /// The version that was reached.
        version: Version,
        /// The version that the next record needs.
        next: Version,
        /// The stream with that record.
        stream: StreamName,
        /// Its position.
        lsn: Lsn,
    },
    /// Two different records lead on from one version.
    #[error(
        "{block}: redo contradicts itself after {version}: {stream} ({lsn}) and {other} ({other_lsn}) differ; \
         restore the block from a copy"
    )]
    Fork {
        /// The block.
        block: BlockId,
        /// The version before both records.
        version: Version,
        /// The stream with one record.
        stream: StreamName,
        /// Its position.
        lsn: Lsn,
        /// The stream with the other record.
        other: StreamName,
        /// Its position.
        other_lsn: Lsn,
    },
    /// The block is torn and no stream has an image of it.
    #[error("{0} is torn, and no redo stream has an image of it; restore the block from a copy")]
    NoImage(BlockId),
    /// The redo of a torn block ends too early.
    #[error(
        "{block} is torn, and redo leads only to {version} while the block had {at_least}; restore the block from a copy"
    )]
    Short {
        /// The block.
        block: BlockId,
        /// The version that was reached.
        version: Version,
        /// The version that the torn block shows.
        at_least: Version,
    },
    /// A record cannot be applied.
    #[error(
        "{block}: the record after {version} ({stream}, {lsn}) cannot be applied: {why}; restore the block from a copy"
    )]
    Malformed {
        /// The block.
        block: BlockId,
        /// The version before.
        version: Version,
        /// The stream.
        stream: StreamName,
        /// The position.
        lsn: Lsn,
        /// The reason.
        why: DecodeError,
    },
}

/// Returns the newest contents of `block`. `records` are those of all streams, from their
/// checkpoints on, in any order; those of other blocks are ignored. `apply` repeats a change.
///
/// # Errors
/// The records do not lead to one result.
pub fn replay<'a>(
    block: BlockId,
    disk: BlockOnDisk,
    records: impl IntoIterator<Item = LocatedRecord<'a>>,
    mut apply: impl FnMut(&mut Vec<u8>, &[u8]) -> Result<(), DecodeError>,
) -> Result<ReplayedBlock, ReplayError> {
    let all = records.into_iter().filter(|located| located.record.block == block);
    let (mut changes, images): (Vec<_>, Vec<_>) =
        all.partition(|located| located.record.kind == RecordKind::Change);
    let newest = images.into_iter().max_by_key(|located| located.record.after);
    let (mut version, mut bytes, at_least) = match disk {
        BlockOnDisk::Whole(version, bytes) if newest.is_none_or(|image| image.record.after <= version) => {
            (version, bytes, None)
        }
        BlockOnDisk::Whole(at_least, _) | BlockOnDisk::Torn(at_least) => {
            let image = newest.ok_or(ReplayError::NoImage(block))?.record;
            (image.after, image.bytes.to_vec(), Some(at_least))
        }
    };
    changes.sort_by_key(|LocatedRecord { stream, lsn, record, .. }| {
        (record.before, record.after, *stream, *lsn)
    });
    let mut last: Option<LocatedRecord<'_>> = None;
    for change in changes {
        let Record { before, after, bytes: what, .. } = change.record;
        if let Some(last) = last.filter(|last| last.record.before == before) {
            same(&last, &change)?;
        }
        if after <= version {
            continue;
        }
        if before != version {
            return Err(gap(&change, version));
        }
        let LocatedRecord { stream, lsn, .. } = change;
        apply(&mut bytes, what).map_err(|why| ReplayError::Malformed { block, version, stream, lsn, why })?;
        (version, last) = (after, Some(change));
    }
    if let Some(at_least) = at_least.filter(|at_least| *at_least > version) {
        return Err(ReplayError::Short { block, version, at_least });
    }
    let writer = last.map(|last| Writer { node: last.stream.node, incarnation: last.incarnation });
    Ok(ReplayedBlock { version, bytes, writer, is_owed: writer.is_some() || at_least.is_some() })
}

fn gap(at: &LocatedRecord<'_>, version: Version) -> ReplayError {
    let LocatedRecord { stream, lsn, record, .. } = *at;
    ReplayError::Gap { block: record.block, version, next: record.before, stream, lsn }
}

/// Checks that two records that lead on from one version are the same one, carried.
fn same(one: &LocatedRecord<'_>, other: &LocatedRecord<'_>) -> Result<(), ReplayError> {
    let (first, second) = (one.record, other.record);
    if (first.after, first.bytes) == (second.after, second.bytes) {
        return Ok(());
    }
    Err(ReplayError::Fork {
        block: first.block,
        version: first.before,
        stream: one.stream,
        lsn: one.lsn,
        other: other.stream,
        other_lsn: other.lsn,
    })
}

#[cfg(test)]
mod tests {
    use plexus_sim::Random;

    use super::*;

    const BLOCK: BlockId = BlockId(7);

    fn at(node: u8, lsn: u64, record: Record<'_>) -> LocatedRecord<'_> {
        let stream = StreamName { node: NodeId(node), place: 0 };
        LocatedRecord { stream, incarnation: Incarnation(9), lsn: Lsn(lsn), record }
    }

    fn change(before: u64, what: &[u8]) -> Record<'_> {
        Record::change(BLOCK, Version(before), Version(before + 1), what)
    }

    /// Replays the block, whose changes append bytes.
    fn replayed(disk: BlockOnDisk, records: &[LocatedRecord<'_>]) -> Result<(u64, String, bool), String> {
        let result = replay(BLOCK, disk, records.iter().copied(), append);
        let shown = |block: ReplayedBlock| {
            (block.version.0, String::from_utf8_lossy(&block.bytes).into_owned(), block.is_owed)
        };
        result.map(shown).map_err(|error| error.to_string())
    }

    fn append(bytes: &mut Vec<u8>, what: &[u8]) -> Result<(), DecodeError> {
        bytes.extend_from_slice(what);
        Ok(())
    }

    fn whole(version: u64, bytes: &str) -> BlockOnDisk {
        BlockOnDisk::Whole(Version(version), bytes.into())
    }

    #[test]
    fn a_block_that_moved_between_nodes_is_replayed_in_the_order_of_versions() {
        let other = Record::change(BlockId(8), Version(1), Version(2), b"other");
        let records = [
            at(0, 90, change(2, b"c")),
            at(1, 50, change(0, b"a")),
            at(1, 99, change(3, b"d")),
            at(2, 40, change(1, b"b")),
            at(2, 44, other),
        ];
        for (disk, owed) in [(whole(0, ""), true), (whole(2, "ab"), true), (whole(4, "abcd"), false)] {
            assert_eq!(replayed(disk, &records), Ok((4, "abcd".into(), owed)));
        }
        assert_eq!(replayed(whole(6, "newer"), &records), Ok((6, "newer".into(), false)));
        assert_eq!(replayed(whole(1, "x"), &[]), Ok((1, "x".into(), false)));
    }

    #[test]
    fn a_gap_is_named_and_not_guessed_over() {
        let records = [at(0, 90, change(1, b"b")), at(2, 50, change(3, b"d"))];
        let error = replayed(whole(1, "a"), &records).unwrap_err();
        assert!(error.starts_with("block 7: redo is missing: it has version 2"), "{error}");
        assert!(error.contains("(stream 0 of node 2, LSN 50) applies to version 3"), "{error}");
        // An image shows the whole block, whatever led to it.
        let image = at(1, 60, Record::image(BLOCK, Version(3), b"abc"));
        assert_eq!(replayed(whole(1, "a"), &[image, records[1]]), Ok((4, "abcd".into(), true)));
    }

    #[test]
    fn a_torn_block_starts_from_its_newest_image() {
        let old = at(0, 10, Record::image(BLOCK, Version(1), b"a"));
        let new = at(2, 30, Record::image(BLOCK, Version(3), b"abc"));
        // Change 2 is gone: the checkpoint of its stream has passed it.
        let records = [old, at(0, 11, change(1, b"b")), new, at(2, 31, change(3, b"d"))];
        assert_eq!(replayed(BlockOnDisk::Torn(Version(2)), &records), Ok((4, "abcd".into(), true)));
        assert_eq!(replayed(BlockOnDisk::Torn(Version(2)), &records[..3]), Ok((3, "abc".into(), true)));
        // A block that was damaged later: redo of that time is gone, and the image is too old.
        let error = replayed(BlockOnDisk::Torn(Version(5)), &records).unwrap_err();
        assert!(error.contains("leads only to version 4 while the block had version 5"), "{error}");
        let error = replayed(BlockOnDisk::Torn(Version(2)), &records[1..2]).unwrap_err();
        assert!(error.contains("block 7 is torn, and no redo stream has an image"), "{error}");
    }

    #[test]
    fn a_carried_record_counts_once_and_a_contradiction_is_named() {
        let carried = Record { is_carried: true, ..change(1, b"b") };
        let records = [at(0, 10, change(1, b"b")), at(1, 20, carried), at(1, 21, change(2, b"c"))];
        assert_eq!(replayed(whole(1, "a"), &records), Ok((3, "abc".into(), true)));
        let fork = [at(0, 10, change(1, b"b")), at(1, 20, change(1, b"B"))];
        let error = replayed(whole(1, "a"), &fork).unwrap_err();
        assert!(error.contains("contradicts itself after version 1"), "{error}");
        assert!(error.contains("stream 0 of node 0 (LSN 10) and stream 0 of node 1 (LSN 20)"), "{error}");
    }

    /// Gives the changes of a block to random streams, with images; trims what is on disk; and
    /// takes one record away.
    #[test]
    fn any_split_over_streams_gives_the_newest_version_and_any_missing_record_a_gap() {
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let (newest, on_disk) = (random.between(1, 30), random.below(20));
            let on_disk = on_disk.min(newest);
            let contents: Vec<u8> = (0..newest).map(|_| random.bits() as u8).collect();
            let trimmed = random.below(on_disk + 1);
            let mut records = Vec::new();
            for before in trimmed..newest {
                let node = random.below(3) as u8;
                if before == trimmed || random.percent(20) {
                    let image = Record::image(BLOCK, Version(before), &contents[..before as usize]);
                    records.push(at(node, before * 100, image));
                }
                let record = change(before, &contents[before as usize..before as usize + 1]);
                records.push(at(node, before * 100 + 1, record));
                if random.percent(20) {
                    let is_carried = true;
                    records.push(at((node + 1) % 3, before * 100 + 2, Record { is_carried, ..record }));
                }
            }
            records.sort_by_key(|located| (located.stream, located.lsn));
            let disk = BlockOnDisk::Whole(Version(on_disk), contents[..on_disk as usize].to_vec());
            for disk in
                [disk.clone(), BlockOnDisk::Torn(Version(on_disk))].into_iter().filter(|_| trimmed < newest)
            {
                let block = replay(BLOCK, disk, records.iter().copied(), append).expect("a complete chain");
                assert_eq!((block.version.0, block.bytes), (newest, contents.clone()), "seed {seed}");
            }
            if on_disk + 1 < newest {
                let missing = random.between(on_disk, newest - 2);
                let left = records.iter().copied().filter(|located| {
                    let Record { kind, before, .. } = located.record;
                    kind == RecordKind::Image && before.0 <= on_disk
                        || kind == RecordKind::Change && before.0 != missing
                });
                let gap = replay(BLOCK, disk, left, append).expect_err("a gap");
                assert!(
                    matches!(gap, ReplayError::Gap { version, .. } if version.0 == missing),
                    "seed {seed}"
                );
            }
        }
    }
}
