//! Two nodes with a disk each, in one process: real files, messages in their format, and a registry
//! that commits at once.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use plexus_base::{BlockId, Incarnation};

use super::*;
use crate::{
    BlockSize, Device, GroupId, Page, Shape, Version, Writer,
    mirror::{
        MirrorBlocks, MirrorStream, NewDisk, Scrubbed, create_disk,
        map::{AddedDisk, DiskEntry, DiskState},
    },
};

const BLOCK: usize = 8192;

fn new_disk(number: u8) -> NewDisk {
    let block_size = BlockSize::from_kib(8).unwrap();
    NewDisk { group: GroupId(7), id: u128::from(number) + 1, number, block_size, chunk_mib: 64, slots: 4 }
}

/// The nodes with what joins them.
struct Nodes {
    directory: tempfile::TempDir,
    nodes: Vec<Arc<Mirror>>,
    proposals: Mutex<Vec<mpsc::Receiver<MapProposal>>>,
    /// The members of the view, as bits.
    members: AtomicU64,
    version: AtomicU64,
    is_over: AtomicBool,
    /// True while no message is carried.
    is_cut: AtomicBool,
}

impl Nodes {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (nodes, proposals) = (0..2)
            .map(|number| {
                let (propose, proposals) = mpsc::channel();
                (Mirror::new(NodeId(number), NodeSet::EMPTY, 0, propose), proposals)
            })
            .unzip();
        let nodes = Self {
            directory,
            nodes,
            proposals: Mutex::new(proposals),
            members: AtomicU64::new(0),
            version: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            is_cut: AtomicBool::new(false),
        };
        (0..2).for_each(|number| create_disk(&nodes.path(number), &new_disk(number)).unwrap());
        let disk = |number: u8| {
            let (id, server) = (u128::from(number) + 1, NodeId(number));
            DiskEntry::new(&AddedDisk { id, server, failure_group: number, slots: 4 })
        };
        let map = Map::new(64, 2, 2, vec![disk(0), disk(1)]).unwrap();
        nodes.commit(&map, None);
        nodes
    }

    fn path(&self, number: u8) -> PathBuf {
        self.directory.path().join(number.to_string())
    }

    /// Makes a map the next one everywhere.
    fn commit(&self, next: &Map, base: Option<&Map>) {
        let version = self.version.fetch_add(1, Relaxed) + 1;
        let mut entries: BTreeMap<String, (u64, Vec<u8>)> = BTreeMap::new();
        for (key, expected, value) in base.map_or(Vec::new(), |base| base.edits(None)) {
            assert_eq!(expected, 0);
            entries.insert(key, (base.map_or(0, Map::version), value.unwrap()));
        }
        for (key, _, value) in next.edits(base) {
            entries.insert(key, (version, value.unwrap()));
        }
        let entries = entries.iter().map(|(key, (version, value))| (key.as_str(), *version, &value[..]));
        let map = Arc::new(Map::decode(entries).unwrap().unwrap());
        self.nodes.iter().for_each(|node| node.applied(map.clone()));
        self.nodes.iter().for_each(|node| node.committed(map.clone()));
    }

    fn serve(&self, number: u8) {
        let open = |answer| ServedDisk::open(&self.path(number), &new_disk(number), answer);
        self.nodes[usize::from(number)].serve((DiskNumber(number), u128::from(number) + 1), open).unwrap();
    }

    /// Begins a view of these nodes.
    fn view(&self, epoch: u32, members: &[u8]) {
        let members: NodeSet = members.iter().map(|number| NodeId(*number)).collect();
        self.members.store(members.iter().map(|node| 1 << node.0).sum(), Relaxed);
        for node in members.iter() {
            self.nodes[node.index()].act(|core| core.view(Epoch(epoch), members));
        }
    }

    /// Carries messages and proposals, until the end.
    fn carry(&self) {
        let mut now = 0;
        while !self.is_over.load(Relaxed) {
            if self.is_cut.load(Relaxed) {
                thread::yield_now();
                continue;
            }
            let is_member = |node: usize| self.members.load(Relaxed) >> node & 1 == 1;
            for from in 0..2 {
                for (to, epoch, message) in self.nodes[from].take_sends() {
                    if is_member(from) && is_member(to.index()) {
                        let payload = message::encode(epoch, &message);
                        self.nodes[to.index()].message(NodeId(from as u8), &payload).unwrap();
                    }
                }
            }
            for (node, proposals) in self.nodes.iter().zip(&*self.proposals.lock().unwrap()) {
                while let Ok(MapProposal { base, next, .. }) = proposals.try_recv() {
                    let is_made = base.version() == self.version.load(Relaxed);
                    if is_made {
                        self.commit(&next, Some(&base));
                    }
                    node.proposed(is_made);
                }
            }
            // Slow enough that a busy machine reads and writes within the timeout of a disk.
            now += 5;
            self.nodes.iter().for_each(|node| node.tick(now));
            thread::sleep(Duration::from_micros(50));
        }
    }

    fn write(&self, node: usize, chunk: u32, offset: u32, byte: u8) {
        let data = Bytes::from(vec![byte; BLOCK]);
        let write = ChunkWrite { chunk: ChunkId(chunk), offset, data, only: None, under: None };
        self.nodes[node].write(vec![write]).unwrap();
    }

    /// Reads the copy of one disk.
    fn copy(&self, node: usize, disk: u8, chunk: u32, offset: u32) -> Result<u8, DiskRefusal> {
        let from = Some(DiskNumber(disk));
        let (data, found) = self.nodes[node].read(ChunkId(chunk), offset, BLOCK as u32, from, None)?;
        assert!(found == DiskNumber(disk) && data.iter().all(|byte| *byte == data[0]));
        Ok(data[0])
    }

    fn until(&self, what: &str, state: DiskState) {
        for _ in 0..20_000 {
            if self.nodes[0].map().is_some_and(|map| map.state(DiskNumber(1)) == state) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("{what}: {:?}", self.nodes[0].trouble());
    }
}

#[test]
fn what_a_disk_has_missed_is_copied_when_it_returns() {
    let nodes = Nodes::new();
    thread::scope(|scope| {
        scope.spawn(|| nodes.carry());
        (0..2).for_each(|number| nodes.serve(number));
        nodes.view(1, &[0, 1]);
        nodes.write(0, 0, 0, 1);
        nodes.write(1, 1, 5 << 20, 2);
        for disk in 0..2 {
            assert_eq!((nodes.copy(0, disk, 0, 0), nodes.copy(0, disk, 1, 5 << 20)), (Ok(1), Ok(2)));
        }
        // Node 1 is gone with its disk: the other one goes on, and notes what is missed.
        nodes.view(2, &[0]);
        nodes.until("an absent disk is marked", DiskState::Stale);
        nodes.write(0, 0, 0, 3);
        nodes.write(0, 1, 63 << 20, 4);
        assert!(nodes.copy(0, 1, 0, 0).is_err(), "a stale copy is read");
        // A probe would clear the bit of what is missed.
        let probe = |disk| nodes.nodes[0].probe(ChunkId(0), DiskNumber(disk), 0);
        assert!((0..2).all(|disk| probe(disk).is_err()), "a probe while a copy is missing");
        let copied = nodes.nodes[1].counts().copied_units;
        nodes.view(3, &[0, 1]);
        nodes.until("a disk that has returned is current", DiskState::Current);
        assert_eq!(nodes.nodes[1].counts().copied_units - copied, 2, "only what was missed is copied");
        assert!((0..2).all(|disk| probe(disk).is_ok()));
        let all = [(0, 0, 3), (1, 5 << 20, 2), (1, 63 << 20, 4)];
        for (chunk, offset, byte) in all {
            assert_eq!(nodes.copy(0, 0, chunk, offset), Ok(byte));
            assert_eq!(nodes.copy(0, 1, chunk, offset), Ok(byte));
        }
        nodes.is_over.store(true, Relaxed);
    });
    nodes.nodes.iter().for_each(|node| node.end());
}

#[test]
fn many_writes_go_on_while_a_disk_goes_and_returns() {
    let nodes = Nodes::new();
    thread::scope(|scope| {
        scope.spawn(|| nodes.carry());
        (0..2).for_each(|number| nodes.serve(number));
        nodes.view(1, &[0, 1]);
        let writers: Vec<_> = (0..4_u32)
            .map(|writer| {
                let nodes = &nodes;
                let place = move |round: u32| (round % 8 * (1 << 20)) + writer * BLOCK as u32;
                let run = move || {
                    (1..=200_u32).for_each(|round| nodes.write(0, writer % 2, place(round), round as u8));
                };
                (scope.spawn(run), move || {
                    (193..=200_u32).map(move |round| (writer % 2, place(round), round as u8))
                })
            })
            .collect();
        nodes.view(2, &[0]);
        nodes.until("an absent disk is marked", DiskState::Stale);
        thread::sleep(Duration::from_millis(20));
        nodes.view(3, &[0, 1]);
        nodes.until("a disk that has returned is current", DiskState::Current);
        for (writer, expected) in writers {
            writer.join().unwrap();
            for (chunk, offset, byte) in expected() {
                for disk in 0..2 {
                    assert_eq!(nodes.copy(0, disk, chunk, offset), Ok(byte), "disk {disk}");
                }
            }
        }
        nodes.is_over.store(true, Relaxed);
    });
    nodes.nodes.iter().for_each(|node| node.end());
}

/// The thread that writes zeros ahead and the one that writes batches use one device.
#[test]
fn a_sync_waits_for_what_another_one_has_taken() {
    let nodes = Nodes::new();
    thread::scope(|scope| {
        scope.spawn(|| nodes.carry());
        (0..2).for_each(|number| nodes.serve(number));
        nodes.view(1, &[0, 1]);
        let stream = MapChange::Stream { name: "n1.0".into(), node: NodeId(0), chunks: 1 };
        nodes.nodes[0].change(stream).unwrap();
        let stream = Arc::new(MirrorStream::open(&nodes.nodes[0], "n1.0", None).unwrap().unwrap());
        nodes.is_cut.store(true, Relaxed);
        stream.write(0, &[1; BLOCK]).unwrap();
        let syncs = stream.clone();
        let first = scope.spawn(move || syncs.sync());
        while stream.has_pending() {
            thread::yield_now();
        }
        let (nodes, syncs) = (&nodes, stream.clone());
        let second = scope.spawn(move || {
            syncs.sync().unwrap();
            nodes.is_cut.load(Relaxed)
        });
        thread::sleep(Duration::from_millis(20));
        nodes.is_cut.store(false, Relaxed);
        first.join().unwrap().unwrap();
        let ended_before = second.join().unwrap();
        nodes.is_over.store(true, Relaxed);
        assert!(!ended_before, "the sync has ended before the write");
    });
    nodes.nodes.iter().for_each(|node| node.end());
}

/// Chunks move to a disk, and everything is read from there.
#[test]
fn chunks_move_and_a_scrub_replaces_what_is_bad() {
    let nodes = Nodes::new();
    thread::scope(|scope| {
        scope.spawn(|| nodes.carry());
        (0..2).for_each(|number| nodes.serve(number));
        nodes.view(1, &[0, 1]);
        let block_size = BlockSize::from_kib(8).unwrap();
        let shape = Shape { id: GroupId(7), block_size, blocks: 16_384 };
        let blocks = MirrorBlocks::new(&shape, nodes.nodes[0].clone());
        let page = |block: u64, version: u64| {
            let mut page = vec![0; BLOCK];
            let writer = Writer { node: NodeId(0), incarnation: Incarnation(1) };
            Page::of(&mut page[..]).stamp(BlockId(block), writer, Version(version));
            Page::of(&mut page[..]).seal();
            page
        };
        let all: Vec<_> = [0, 1, 9000, 16_383].map(|block| (BlockId(block), page(block, 7))).into();
        let writes: Vec<_> = all.iter().map(|(block, page)| (*block, &page[..])).collect();
        blocks.write(&writes).unwrap();
        let scrub = || blocks.scrub(&mut |_| true).unwrap();
        let sound = Scrubbed { units: 128, all: 128, ..Scrubbed::default() };
        assert_eq!(scrub(), sound);
        // One is destroyed, one is older, one is on both.
        let place = |node: &Mirror, block: u64| {
            let (chunk, offset) = ((block / 8192) as u32, (block % 8192) as u32 * BLOCK as u32);
            let (slot, _) = node.map().unwrap().slot(ChunkId(chunk), DiskNumber(1)).unwrap();
            new_disk(1).length() - u64::from(4 - slot) * (64 << 20) + u64::from(offset)
        };
        let file = std::fs::OpenOptions::new().write(true).open(nodes.path(1)).unwrap();
        let damage = |block: u64, bytes: &[u8]| {
            std::os::unix::fs::FileExt::write_all_at(&file, bytes, place(&nodes.nodes[0], block)).unwrap();
        };
        damage(1, &[3; 100]);
        damage(9000, &page(9000, 6));
        assert_eq!(scrub(), Scrubbed { repaired: 2, ..sound });
        assert_eq!(scrub(), sound);
        for (block, page) in &all {
            let copies = blocks.read_in_doubt(*block).unwrap();
            assert!(
                copies.len() == 2 && copies.iter().all(|copy| copy.bytes[..BLOCK] == page[..]),
                "{block}"
            );
        }
        nodes.is_over.store(true, Relaxed);
    });
    nodes.nodes.iter().for_each(|node| node.end());
}
