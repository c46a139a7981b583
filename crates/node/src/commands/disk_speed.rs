//! The command `disk.measure`: the speed of a mirrored disk as this node sees it.
//!
//! | command | arguments | answer |
//! |---|---|---|
//! | `disk.measure` | `disk`, `ms` for each of the three measurements | [`DiskSpeed`] |
//!
//! It changes nothing: it reads chunks that are there, and writes with
//! [`Mirror::probe`](plexus_disks::mirror::Mirror::probe), one request after the other. Requests go
//! through the queue of the disk, so other clients slow them down as they do each other.

use std::{
    ops::Deref,
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_admin::control::Progress;
use plexus_disks::mirror::{
    Mirror,
    map::{ChunkId, DiskNumber, UNIT_BYTES},
    protocol::DiskRefusal,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::commands::{CommandContext, args, aside, json_of};

/// The bytes of a small read.
const SMALL: u32 = 16 << 10;

/// The units that are read, one after the other.
const PLACES: usize = 256;

/// The fraction of the golden ratio in 64 bits: its multiples are spread over all places.
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// The longest measurement in milliseconds.
const MS_MAX: u64 = 10_000;

/// The arguments of `disk.measure`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasureArgs {
    /// The number of the disk.
    pub disk: u8,
    /// The milliseconds of each measurement.
    pub ms: u64,
}

/// The speed of a disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DiskSpeed {
    /// Reads of 16 KiB.
    pub read: RequestTimes,
    /// Writes of 4 KiB, each with a sync.
    pub synced_write: RequestTimes,
    /// The bytes/s of reads of 1 MiB.
    pub read_bytes_per_s: f64,
    /// True if none of the read places was ever written: a file reads them without its disk.
    pub is_empty: bool,
}

/// The times of requests, made one after the other.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RequestTimes {
    /// The median in microseconds.
    pub p50_us: f64,
    /// The 99th percentile in microseconds.
    pub p99_us: f64,
    /// The requests in a second.
    pub per_s: f64,
}

impl RequestTimes {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64();
        let all: Duration = times.iter().sum();
        let per_s = times.len() as f64 / all.as_secs_f64().max(1e-9);
        Self { p50_us: at(50) * 1e6, p99_us: at(99) * 1e6, per_s }
    }
}

pub(crate) fn measure(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let MeasureArgs { disk, ms } = args(asked)?;
    let mirror = on.runtime().mirror().ok_or("the cluster has no mirrored disks")?.clone();
    let limit = Duration::from_millis(ms.min(MS_MAX));
    let disk = MeasuredDisk { mirror, disk: DiskNumber(disk), limit };
    let speed = aside(progress, move || disk.measure().map_err(|why| why.to_string()))?;
    json_of(&speed)
}

/// A disk to measure.
struct MeasuredDisk {
    mirror: Arc<Mirror>,
    disk: DiskNumber,
    /// The time of each measurement.
    limit: Duration,
}

impl MeasuredDisk {
    fn measure(&self) -> Result<DiskSpeed, DiskRefusal> {
        let (places, is_empty) = self.places()?;
        let of = |number: u64| places[number as usize % places.len()];
        let read = self.times(|number| {
            let (chunk, unit) = of(number);
            let within = number.wrapping_mul(SPREAD) as u32 % (UNIT_BYTES / SMALL) * SMALL;
            self.read(chunk, unit * UNIT_BYTES + within, SMALL).map(drop)
        })?;
        let synced_write = self.times(|number| {
            let (chunk, unit) = of(number);
            self.mirror.probe(chunk, self.disk, unit)
        })?;
        let large = self.times(|number| {
            let (chunk, unit) = of(number);
            self.read(chunk, unit * UNIT_BYTES, UNIT_BYTES).map(drop)
        })?;
        let read_bytes_per_s = RequestTimes::of(large).per_s * f64::from(UNIT_BYTES);
        let [read, synced_write] = [read, synced_write].map(RequestTimes::of);
        Ok(DiskSpeed { read, synced_write, read_bytes_per_s, is_empty })
    }

    /// Returns units on the disk, those that were written if there are some, and true if none was.
    fn places(&self) -> Result<(Vec<(ChunkId, u32)>, bool), DiskRefusal> {
        let map = self.mirror.wait_for_map()?;
        let chunks: Vec<_> = map.chunks_on(self.disk).collect();
        if chunks.is_empty() {
            return Err(DiskRefusal::NotReadable(self.disk));
        }
        let units = u64::from(map.units());
        let all = chunks.len() as u64 * units;
        let place = |number: u64| {
            let at = ((u128::from(number.wrapping_mul(SPREAD)) * u128::from(all)) >> 64) as u64;
            (chunks[(at / units) as usize], (at % units) as u32)
        };
        let (began, mut places, mut written) = (Instant::now(), Vec::new(), Vec::new());
        for (chunk, unit) in (1..=PLACES as u64).map(place) {
            let bytes = self.read(chunk, unit * UNIT_BYTES, SMALL)?;
            places.push((chunk, unit));
            if bytes.iter().any(|byte| *byte != 0) {
                written.push((chunk, unit));
            }
            if began.elapsed() > self.limit {
                break;
            }
        }
        Ok(if written.is_empty() { (places, true) } else { (written, false) })
    }

    fn read(
        &self,
        chunk: ChunkId,
        offset: u32,
        length: u32,
    ) -> Result<impl Deref<Target = [u8]>, DiskRefusal> {
        self.mirror.read(chunk, offset, length, Some(self.disk), None).map(|(bytes, _)| bytes)
    }

    /// Makes requests until the time is over, at least one.
    fn times(
        &self,
        mut request: impl FnMut(u64) -> Result<(), DiskRefusal>,
    ) -> Result<Vec<Duration>, DiskRefusal> {
        let (began, mut times) = (Instant::now(), Vec::new());
        while times.is_empty() || began.elapsed() < self.limit {
            let start = Instant::now();
            request(times.len() as u64)?;
            times.push(start.elapsed());
        }
        Ok(times)
    }
}
