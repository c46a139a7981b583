//! Parts of the measurement of recovery inside one node: a client that notes each long wait, and
//! one that makes a given amount of redo.

use std::time::{Duration, Instant, SystemTime};

use plexus_base::BlockId;
use plexus_cache::CacheError;
use plexus_node::runtime::NodeRuntime;
use serde::{Deserialize, Serialize};

use super::{client, counted};

/// The longest time of a probe, and of making redo.
const MAX_TIME: Duration = Duration::from_secs(120);

/// The number of waits that a probe remembers.
const MAX_WAITS: usize = 10_000;

/// A range of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct BlockRange {
    pub(super) first: u64,
    pub(super) blocks: u64,
}

impl BlockRange {
    fn check(&self, of: u64) -> Result<(), String> {
        match self.first.checked_add(self.blocks) {
            Some(end) if self.blocks > 0 && end <= of => Ok(()),
            _ => Err(format!("blocks {} and {} more: the group has {of}", self.first, self.blocks)),
        }
    }
}

/// The arguments of `bench.probe`: the blocks are used one after the other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Probe {
    #[serde(flatten)]
    pub(super) range: BlockRange,
    /// The distance from one block to the next.
    pub(super) step: u64,
    /// True to change the blocks, false to read them.
    pub(super) changes: bool,
    /// The pause between two blocks.
    pub(super) pause_us: u64,
    /// The time after which the probe ends; `None`: it ends after the last block.
    pub(super) time_ms: Option<u64>,
}

/// The waits of a probe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Probed {
    /// The number of operations.
    pub(super) done: u64,
    /// The start and the end of each operation of a millisecond or more, in microseconds of Unix
    /// time.
    pub(super) waits: Vec<(u64, u64)>,
    /// The end of the last operation, in microseconds of Unix time.
    pub(super) end_us: u64,
}

/// Returns the microseconds of Unix time.
pub(super) fn unix_us() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_micros() as u64
}

fn line(error: CacheError) -> String {
    error.to_string()
}

/// Runs a probe.
pub(super) fn probe(runtime: &NodeRuntime, probe: &Probe) -> Result<Probed, String> {
    let Probe { range, step, changes, pause_us, time_ms } = *probe;
    let cache = runtime.cache();
    range.check(cache.blocks())?;
    let end = Instant::now() + time_ms.map_or(MAX_TIME, Duration::from_millis).min(MAX_TIME);
    let mut session = cache.session();
    let mut probed = Probed { done: 0, waits: Vec::new(), end_us: unix_us() };
    let mut places = (0..range.blocks).step_by(step.max(1) as usize);
    while Instant::now() < end {
        let place = match places.next() {
            Some(place) => place,
            None if time_ms.is_none() => break,
            None => {
                places = (0..range.blocks).step_by(step.max(1) as usize);
                continue;
            }
        };
        let (block, start) = (BlockId(range.first + place), unix_us());
        if changes {
            let mut page = session.change(block).map_err(line)?;
            counted::change(&mut page, 0);
            page.commit();
        } else if counted::total(&session.read(block).map_err(line)?).is_none() {
            return Err(client::strange(block));
        }
        probed.done += 1;
        probed.end_us = unix_us();
        if probed.end_us >= start + 1000 && probed.waits.len() < MAX_WAITS {
            probed.waits.push((start, probed.end_us));
        }
        if pause_us > 0 {
            std::thread::sleep(Duration::from_micros(pause_us));
        }
    }
    Ok(probed)
}

/// The arguments of `bench.fill`: the blocks are changed one after the other.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Fill {
    #[serde(flatten)]
    pub(super) range: BlockRange,
    /// The bytes of redo to make.
    pub(super) redo_bytes: u64,
}

/// The result of making redo.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Filled {
    /// The number of changes; all are durable.
    pub(super) changes: u64,
    /// The bytes that were written to the stream meanwhile.
    pub(super) redo_bytes: u64,
}

/// Changes blocks until their redo has the given length, and waits until all changes are durable.
pub(super) fn fill(runtime: &NodeRuntime, fill: &Fill) -> Result<Filled, String> {
    let cache = runtime.cache();
    fill.range.check(cache.blocks())?;
    let (before, end) = (runtime.redo_counts(), Instant::now() + MAX_TIME);
    let mut session = cache.session();
    let (mut changes, mut last) = (0, None);
    loop {
        for place in 0..fill.range.blocks {
            let mut page = session.change(BlockId(fill.range.first + place)).map_err(line)?;
            counted::change(&mut page, 0);
            last = Some(page.commit());
            changes += 1;
        }
        let made = runtime.redo_counts().record_bytes - before.record_bytes;
        if made >= fill.redo_bytes || Instant::now() > end {
            break;
        }
    }
    last.map_or(Ok(()), |last| cache.wait_durable(last)).map_err(line)?;
    let redo_bytes = runtime.redo_counts().batch_bytes - before.batch_bytes;
    Ok(Filled { changes, redo_bytes })
}
