//! Measures the disk of a mirrored group without a cluster, and the map of a large group, for
//! `cargo xtask bench disks`. It creates the file of its first argument and prints JSON.

use std::{
    env, fs,
    path::Path,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use bytes::Bytes;
use plexus_base::NodeId;
use plexus_disks::{
    BlockSize, GroupId,
    mirror::{
        DiskJob, NewDisk, ServedDisk, create_disk,
        map::{AddedDisk, DiskEntry, Map},
        protocol::{DiskAnswer, DiskOp},
    },
};

/// The time of a measurement.
const TIME: Duration = Duration::from_secs(1);

const CHUNK_MIB: u32 = 64;
const SLOTS: u32 = 4;
const MIB: u32 = 1 << 20;

/// 100 TiB in chunks of 1 GiB, on 32 disks of 16 nodes.
const MAP_CHUNKS: u32 = 100 << 10;
const MAP_DISKS: u8 = 32;

fn main() {
    let path = env::args().nth(1).expect("usage: disk_speed FILE");
    let mut disk = MeasuredDisk::create(Path::new(&path));
    let mut figures = vec![
        ("read_16k", disk.rate(16 << 10, 1, false)),
        ("read_16k_deep", disk.rate(16 << 10, 8, false)),
        ("read_1m", disk.rate(MIB, 1, false)),
        ("write_16k", disk.rate(16 << 10, 1, true)),
        ("write_1m", disk.rate(MIB, 1, true)),
    ];
    figures.extend(map());
    let fields: Vec<_> = figures.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    println!("{{ {} }}", fields.join(", "));
}

struct MeasuredDisk {
    disk: ServedDisk,
    answers: mpsc::Receiver<DiskAnswer<Bytes>>,
    requests: u64,
}

impl MeasuredDisk {
    /// Creates a disk and writes all of its slots.
    fn create(path: &Path) -> Self {
        let block_size = BlockSize::from_kib(16).expect("a block size");
        let (group, id, number) = (GroupId(1), 1, 0);
        let new = NewDisk { group, id, number, block_size, chunk_mib: CHUNK_MIB, slots: SLOTS };
        create_disk(path, &new).expect("the disk is created");
        let (tell, answers) = mpsc::channel();
        let answer = move |_, answer| drop(tell.send(answer));
        let disk = ServedDisk::open(path, &new, answer).expect("the disk is opened");
        let mut this = Self { disk, answers, requests: 0 };
        let data = Bytes::from(vec![7; MIB as usize]);
        for at in 0..SLOTS * CHUNK_MIB {
            let op = DiskOp::Write { offset: at % CHUNK_MIB * MIB, data: data.clone() };
            this.submit(at / CHUNK_MIB, op);
        }
        (0..SLOTS * CHUNK_MIB).for_each(|_| this.wait());
        this
    }

    fn submit(&mut self, slot: u32, op: DiskOp<Bytes>) {
        self.requests += 1;
        self.disk.submit(DiskJob { ticket: self.requests, slot, op, notes: false });
    }

    fn wait(&self) {
        let answer = self.answers.recv().expect("an answer");
        assert!(matches!(answer, DiskAnswer::Done | DiskAnswer::Read(_)), "{answer:?}");
    }

    /// Returns the requests in a second, at random places, with `depth` under way.
    fn rate(&mut self, length: u32, depth: u32, writes: bool) -> f64 {
        let data = Bytes::from(vec![3; length as usize]);
        let places = SLOTS * CHUNK_MIB * (MIB / length);
        let next = |this: &mut Self| {
            // Multiples of the golden ratio: spread over all places.
            let place = (this.requests.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32 % places;
            let per_slot = CHUNK_MIB * (MIB / length);
            let offset = place % per_slot * length;
            let op = match writes {
                true => DiskOp::Write { offset, data: data.clone() },
                false => DiskOp::Read { offset, length, in_doubt: false },
            };
            this.submit(place / per_slot, op);
        };
        (0..depth).for_each(|_| next(self));
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < TIME {
            self.wait();
            done += 1;
            next(self);
        }
        let rate = f64::from(done) / began.elapsed().as_secs_f64();
        (0..depth).for_each(|_| self.wait());
        rate
    }
}

/// Measures the map of 100 TiB with two copies: bytes in the registry and in memory, milliseconds.
fn map() -> Vec<(&'static str, f64)> {
    let slots = 2 * MAP_CHUNKS / u32::from(MAP_DISKS) + 64;
    let disk = |number: u8| {
        let (id, server) = (u128::from(number) + 1, NodeId(number / 2));
        DiskEntry::new(&AddedDisk { id, server, failure_group: number / 2, slots })
    };
    let map = Map::new(1024, MAP_CHUNKS, 2, (0..MAP_DISKS).map(disk).collect()).expect("it has room");
    let began = Instant::now();
    let edits = map.edits(None);
    let encoded = began.elapsed();
    let entries: Vec<_> =
        edits.iter().filter_map(|(key, _, value)| Some((&**key, value.as_deref()?))).collect();
    let bytes: usize = entries.iter().map(|(_, value)| value.len()).sum();
    let before = resident_bytes();
    let began = Instant::now();
    let decoded: Vec<_> = (1..=8)
        .map(|version| {
            let entries = entries.iter().map(|(key, value)| (*key, version, *value));
            Arc::new(Map::decode(entries).expect("it is sound").expect("it is there"))
        })
        .collect();
    let time = began.elapsed() / decoded.len() as u32;
    let memory = (resident_bytes() - before) / decoded.len() as f64;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    vec![
        ("map_mib", bytes as f64 / f64::from(MIB)),
        ("map_memory_mib", memory.max(bytes as f64) / f64::from(MIB)),
        ("map_encode_ms", ms(encoded)),
        ("map_decode_ms", ms(time)),
    ]
}

fn resident_bytes() -> f64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or_default() * 4096.0
}
