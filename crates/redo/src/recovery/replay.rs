//! Replay of blocks to the disk group.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use plexus_base::{BlockId, threads::beside};
use plexus_disks::{
    Buffer, DiskError, Group, Page, PageError, Version, apply_patch, mirror::BlockCopy, page_of_image,
};

use super::{
    files::{DeadStream, RedoFiles, StreamFile},
    records::{GatheredRecords, RecordsOfBlock},
};
use crate::stream::protocol::{
    RecordKind,
    replay::{BlockOnDisk, ReplayedBlock, replay},
};

/// The threads that read and write blocks, to keep a disk busy.
const THREADS: usize = 8;

/// The blocks that one sync covers.
const BLOCKS_PER_SYNC: usize = 256;

impl RedoFiles {
    /// Brings blocks to their newest version on disk, from the records of the dead and of the
    /// running nodes, whose streams must be durable as far as these blocks are concerned. No node
    /// holds one of the blocks or changes it meanwhile.
    ///
    /// `each` gets every block with its version, in the order of the blocks, after a sync that
    /// covers it; or the reason why it cannot be replayed, and then the block on disk is as it
    /// was. After `cancel` is set, the other blocks are not reported.
    pub fn replay(
        &self,
        blocks: impl IntoIterator<Item = BlockId>,
        dead: &[DeadStream],
        living: &[StreamFile],
        group: &Group,
        cancel: &AtomicBool,
        mut each: impl FnMut(BlockId, Result<Version, String>),
    ) {
        let mut records = GatheredRecords::of(blocks);
        for DeadStream { file, read } in dead {
            records.add(&self.places, file, read, false, cancel);
        }
        living.iter().for_each(|file| records.add(&self.places, file, &[], true, cancel));
        let blocks: Vec<_> = records.blocks().into_iter().map(|block| (block, records.take(block))).collect();
        let bring_up = |part: &[_]| bring_up_all(part, &records, group, cancel);
        in_parts(blocks, bring_up, || group.sync(), cancel, &mut each);
    }
}

/// Replays blocks in parts. While one is replayed, the one before is synced and reported.
fn in_parts<T: Sync>(
    blocks: impl IntoIterator<Item = T>,
    bring_up: impl Fn(&[T]) -> Vec<(BlockId, Result<Version, String>)> + Sync,
    sync: impl Fn() -> Result<(), DiskError>,
    cancel: &AtomicBool,
    each: &mut impl FnMut(BlockId, Result<Version, String>),
) {
    let (mut blocks, mut written) = (blocks.into_iter(), Vec::new());
    loop {
        // The last part is empty: it only syncs the one before.
        let part: Vec<T> = blocks.by_ref().take(BLOCKS_PER_SYNC).collect();
        let next = thread::scope(|scope| {
            let next = beside(scope, || bring_up(&part));
            report(std::mem::take(&mut written), &sync, each);
            next.join()
        });
        if part.is_empty() || cancel.load(Relaxed) {
            return;
        }
        written = next;
    }
}

/// Reports blocks after a sync. A dead node may have written a block that needs nothing more, and
/// not synced it.
fn report(
    written: Vec<(BlockId, Result<Version, String>)>,
    sync: impl FnOnce() -> Result<(), DiskError>,
    each: &mut impl FnMut(BlockId, Result<Version, String>),
) {
    if written.is_empty() {
        return;
    }
    let synced = sync().map_err(|why| why.to_string());
    for (block, result) in written {
        let why = |why: &String| format!("{block}: replay is not durable: {why}");
        each(block, result.and_then(|version| synced.as_ref().map(|()| version).map_err(why)));
    }
}

/// Replays blocks on several threads, and returns their results in the same order. After `cancel`
/// is set, some are missing; no thread is left.
fn bring_up_all(
    blocks: &[(BlockId, RecordsOfBlock)],
    all: &GatheredRecords,
    group: &Group,
    cancel: &AtomicBool,
) -> Vec<(BlockId, Result<Version, String>)> {
    let part = &|part: &[(BlockId, RecordsOfBlock)]| -> Vec<_> {
        let wanted = part.iter().take_while(|_| !cancel.load(Relaxed));
        wanted.map(|(block, records)| (*block, bring_up(records, *block, all, group))).collect()
    };
    let mut parts = blocks.chunks(blocks.len().div_ceil(THREADS).max(1));
    let first = parts.next().unwrap_or_default();
    thread::scope(|scope| {
        let others: Vec<_> = parts.map(|blocks| beside(scope, move || part(blocks))).collect();
        let mut results = part(first);
        for other in others {
            results.extend(other.join());
        }
        results
    })
}

/// Replays one block, and writes it if that changed it or it was torn.
fn bring_up(
    records: &RecordsOfBlock,
    block: BlockId,
    all: &GatheredRecords,
    group: &Group,
) -> Result<Version, String> {
    loop {
        // The copies may have changed between their read and the write.
        if let Some(version) = bring_up_copies(records, block, all, group)? {
            return Ok(version);
        }
    }
}

/// Replays one block from its newest copy. Returns `None` if its copies have changed meanwhile.
fn bring_up_copies(
    records: &RecordsOfBlock,
    block: BlockId,
    all: &GatheredRecords,
    group: &Group,
) -> Result<Option<Version>, String> {
    let length = group.shape().block_size.bytes();
    let copies = group.read_in_doubt(block).map_err(|why| why.to_string())?;
    let disk = newest(block, &copies, length)?;
    check_image(records, block, &disk, length)?;
    let apply = |bytes: &mut Vec<u8>, patch: &[u8]| {
        page_of_image(bytes, length);
        apply_patch(Page::of(&mut bytes[..]).user_mut(), patch)
    };
    let replayed = replay(block, disk, records.iter(), apply).map_err(|why| why.to_string());
    // Damage explains a gap, and what is behind it.
    let ReplayedBlock { version, mut bytes, writer, is_owed } = replayed.map_err(|why| {
        all.check(block, Version(0)).err().map_or(why.clone(), |damage| format!("{why}; {damage}"))
    })?;
    all.check(block, version)?;
    let mut buffer = Buffer::zeroed(length);
    let buffer = &mut buffer[..length];
    if is_owed {
        page_of_image(&mut bytes, length);
        buffer.copy_from_slice(&bytes);
        let mut page = Page::of(&mut buffer[..]);
        if let Some(writer) = writer {
            page.stamp(block, writer, version);
        }
        page.seal();
    } else {
        buffer.copy_from_slice(&bytes);
    }
    // A copy that has these bytes already is not written: a loss of power could tear it.
    let is_written = group.write_differing(block, buffer, &copies).map_err(|why| why.to_string())?;
    Ok(is_written.then_some(version))
}

/// Returns the newest whole copy of a block. Without one, a torn one.
fn newest(block: BlockId, copies: &[BlockCopy], length: usize) -> Result<BlockOnDisk, String> {
    let judged = copies.iter().map(|copy| on_disk(block, &copy.bytes[..length]));
    let rank = |found: &BlockOnDisk| match found {
        BlockOnDisk::Whole(version, _) => (true, *version),
        BlockOnDisk::Torn(version) => (false, *version),
    };
    let (found, faults): (Vec<_>, Vec<_>) = judged.partition(Result::is_ok);
    let found = found.into_iter().flatten().max_by_key(rank);
    found.ok_or_else(|| {
        let why = faults.into_iter().find_map(Result::err);
        why.map_or_else(|| format!("{block}: no current copy"), |why| why.to_string())
    })
}

/// Judges the bytes at the place of a block. Bytes that no interrupted write leaves are an error.
fn on_disk(block: BlockId, bytes: &[u8]) -> Result<BlockOnDisk, PageError> {
    match Page::of(bytes).verify(block) {
        Ok(version) => Ok(BlockOnDisk::Whole(version, bytes.to_vec())),
        Err(PageError::Torn { head, tail, .. }) => Ok(BlockOnDisk::Torn(head.max(tail))),
        Err(PageError::Flipped { .. }) => Ok(BlockOnDisk::Torn(Page::of(bytes).version())),
        // Only the middle of the first write has arrived.
        Err(PageError::NotAPage { found: [0, 0, 0, 0], .. }) => Ok(BlockOnDisk::Torn(Version(0))),
        Err(why) => Err(why),
    }
}

/// Checks that the newest image of a block is a page of it, if the replay begins with it.
fn check_image(
    records: &RecordsOfBlock,
    block: BlockId,
    disk: &BlockOnDisk,
    length: usize,
) -> Result<(), String> {
    let is_used = |version| !matches!(disk, BlockOnDisk::Whole(on_disk, _) if version <= *on_disk);
    let image = records.iter().find(|located| located.record.kind == RecordKind::Image);
    let Some(located) = image.filter(|located| is_used(located.record.after)) else { return Ok(()) };
    let mut bytes = located.record.bytes.to_vec();
    page_of_image(&mut bytes, length);
    let is_page = bytes.len() == length && {
        // The checksum is that of the last write, or none.
        let mut page = Page::of(bytes);
        page.seal();
        page.verify(block) == Ok(located.record.after)
    };
    if is_page {
        return Ok(());
    }
    let (stream, lsn, version) = (located.stream, located.lsn, located.record.after);
    Err(format!(
        "{block}: its image in redo at {version} ({stream}, {lsn}) is no page of it; restore the block from a copy"
    ))
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, sync::Mutex};

    use super::*;

    const BLOCKS: u64 = 2 * BLOCKS_PER_SYNC as u64 + 1;

    /// Replays blocks to a disk whose syncs fail or not. Each is reported with its result, and true
    /// if it is still there when the power is cut at the report.
    fn replayed(fails: bool) -> Vec<(Result<Version, String>, bool)> {
        let (written, durable) = (Mutex::new(BTreeSet::new()), Mutex::new(BTreeSet::new()));
        let bring_up = |part: &[BlockId]| -> Vec<_> {
            written.lock().expect("written").extend(part.iter().copied());
            part.iter().map(|block| (*block, Ok(Version(block.0)))).collect()
        };
        let sync = || {
            if fails {
                return Err(DiskError::NoMember { path: "disk".into() });
            }
            durable.lock().expect("durable").clone_from(&written.lock().expect("written"));
            Ok(())
        };
        let mut reports = Vec::new();
        in_parts((0..BLOCKS).map(BlockId), bring_up, sync, &AtomicBool::new(false), &mut |block, result| {
            assert_eq!(block.0, reports.len() as u64);
            reports.push((result, durable.lock().expect("durable").contains(&block)));
        });
        reports
    }

    #[test]
    fn a_replayed_block_is_reported_when_a_loss_of_power_does_not_undo_it() {
        let durable = (0..BLOCKS).map(|block| (Ok(Version(block)), true));
        assert_eq!(replayed(false), durable.collect::<Vec<_>>());
        let failed = replayed(true);
        let is_refused = |result: &Result<_, String>| {
            result.as_ref().is_err_and(|why| why.contains(": replay is not durable: "))
        };
        assert!(failed.len() as u64 == BLOCKS && failed.iter().all(|(result, _)| is_refused(result)));
    }
}
