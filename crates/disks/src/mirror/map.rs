//! The map of a mirrored group: its disks with their states, and the copies of each chunk. It has
//! no side effects: a change is a new map, or a refusal.
//!
//! The map is in the registry. Each change of it also changes the key `map`, whose version is the
//! version of the map. So changes come one after the other, and a version is never used twice.
//!
//! | key | contents |
//! |---|---|
//! | `map` | head and 32 disks, of a fixed length |
//! | `map/N` | the copies of the chunks of blocks from `4096 * N` on |
//! | `chunks/NAME` | the copies of the chunks of a redo stream |
//!
//! A number of a version that is [`NOW`] in an entry is the version of that entry itself: a change
//! cannot know its own version.

use std::{collections::BTreeMap, fmt, sync::Arc};

use plexus_base::{
    NodeId,
    wire::{self, DecodeError, Fault, Reader, Writer, require, require_version},
};

/// The most disks of a group.
pub const MAX_DISKS: usize = 32;

/// The most chunks of blocks, so that the map takes a small part of the registry.
pub const MAX_CHUNKS: u32 = 131_072;

/// The bytes of a unit: striping, dirty bits and holds.
pub const UNIT_BYTES: u32 = 1 << 20;

/// The copies of a chunk.
pub const COPIES: usize = 2;

/// The chunks of blocks in one entry: as many as one value of the registry has room for.
const CHUNKS_PER_PIECE: u32 = 4096;

/// The version of the entry in which it stands.
const NOW: u64 = u64::MAX;

const FORMAT: u32 = 1;

/// The bit of the chunks of streams.
const OF_STREAM: u32 = 1 << 31;

/// The number of a disk in its group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DiskNumber(pub u8);

wire::newtypes!(DiskNumber(u8), ChunkId(u32));

impl DiskNumber {
    /// Returns the number as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for DiskNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "disk {}", self.0)
    }
}

/// A chunk: those of blocks count from 0; that of a stream is named by the place of its first copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChunkId(pub u32);

impl ChunkId {
    /// Returns true for the chunk of a redo stream.
    #[must_use]
    pub fn is_of_stream(self) -> bool {
        self.0 & OF_STREAM != 0
    }

    fn of_stream(first: Copy) -> Self {
        Self(OF_STREAM | u32::from(first.disk.0) << 24 | first.slot)
    }
}

wire::numbered! {
    /// The state of a disk.
    pub enum DiskState as "state of a disk" {
        /// It has every complete write.
        Current = 0,
        /// It gets all writes, and is not read.
        Syncing = 1,
        /// It gets no writes, and is not read.
        Stale = 2,
    }
}

/// A disk of the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskEntry {
    /// The random name on its label.
    pub id: u128,
    /// The node that executes its I/O.
    pub server: NodeId,
    /// The failure group: two copies of a chunk are in different ones.
    pub failure_group: u8,
    /// The state.
    pub state: DiskState,
    /// Everything must be copied when it returns, not only what the dirty bits name.
    pub copies_whole: bool,
    /// The number of its places for chunks.
    pub slots: u32,
    /// The version at which it was last current, and is not any more.
    pub since: u64,
    /// The version at which it became current.
    pub current_since: u64,
    /// The version at which its server opened it last, as on its label.
    pub opening: u64,
    /// The version at which its state changed last.
    pub changed: u64,
}

/// The place of a copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Copy {
    /// The disk.
    pub disk: DiskNumber,
    /// The slot on it.
    pub slot: u32,
}

wire::layout! {
    struct Head: 16 { format: u32, chunk_mib: u32, disks: u32, chunks: u32 }
    impl DiskEntry: 56 {
        id: u128, server: NodeId, failure_group: u8, state: DiskState, copies_whole: bool, slots: u32, since: u64,
        current_since: u64, opening: u64, changed: u64
    }
    impl Copy: 8 { disk: DiskNumber; 3; slot: u32 }
}

/// The key of the head and the disks.
const HEAD_KEY: &str = "map";

/// The bytes of the entry `map`.
const GROUP_BYTES: usize = 16 + MAX_DISKS * 56;

/// The chunks of one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    /// The version at which it changed last.
    version: u64,
    /// The copies of its chunks, one chunk behind the other.
    copies: Arc<[Copy]>,
}

/// A change of the map.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MapChange {
    /// Disks get no more writes.
    Stale(Vec<DiskNumber>),
    /// A stale disk that its server has opened gets all writes from now on.
    Syncing(DiskNumber),
    /// A syncing disk has everything.
    Current(DiskNumber),
    /// A redo stream gets chunks, one copy of each on a disk of this node if it has one.
    Stream {
        /// The name of the stream.
        name: String,
        /// The node that writes it.
        node: NodeId,
        /// The number of chunks.
        chunks: u32,
    },
    /// The server of a disk has opened it. The disk is an image of an earlier time if its label
    /// does not name the last opening.
    Opened {
        /// The disk.
        disk: DiskNumber,
        /// The number of the opening.
        opening: u64,
        /// The disk is older than the registry knows.
        is_older: bool,
    },
}

/// The reason why a map cannot change.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MapRefusal {
    /// A chunk would have no copy on a current disk.
    #[error("{} would have no current copy without {}", .chunks, list(.without))]
    LastCopy {
        /// The number of such chunks.
        chunks: usize,
        /// The disks without which there is none.
        without: Vec<DiskNumber>,
    },
    /// The disk is in another state.
    #[error("{disk} is {state:?}", state = .state)]
    State {
        /// The disk.
        disk: DiskNumber,
        /// Its state.
        state: DiskState,
    },
    /// There are no free slots on disks of two failure groups.
    #[error("no room for {chunks} more chunks with {COPIES} copies in different failure groups: add a disk")]
    NoRoom {
        /// The number of chunks.
        chunks: u32,
    },
    /// The stream exists.
    #[error("the redo stream {0} exists")]
    StreamExists(String),
}

fn list(disks: &[DiskNumber]) -> String {
    disks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// An entry of the registry that a change sets: its key, the version that it must have (0: it must
/// not exist), and its value. `None` keeps the value.
pub type MapEdit = (String, u64, Option<Vec<u8>>);

/// The map of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    version: u64,
    chunk_mib: u32,
    chunks: u32,
    disks: Vec<DiskEntry>,
    pieces: Vec<Piece>,
    streams: BTreeMap<String, Piece>,
    of_streams: BTreeMap<ChunkId, (u64, [Copy; COPIES])>,
}

impl Map {
    /// Makes the map of a new group with `chunks` chunks of blocks. All disks are current, because
    /// all are zero.
    ///
    /// # Errors
    /// The disks have no room for two copies of each in different failure groups.
    pub fn new(chunk_mib: u32, chunks: u32, disks: Vec<DiskEntry>) -> Result<Self, MapRefusal> {
        assert!(disks.len() <= MAX_DISKS && chunks <= MAX_CHUNKS, "the configuration was checked");
        let (pieces, streams, of_streams) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut map = Self { version: 0, chunk_mib, chunks, disks, pieces, streams, of_streams };
        let mut copies = Vec::new();
        let mut free = map.free_slots();
        for _ in 0..chunks {
            copies.extend(map.place(&mut free, None).ok_or(MapRefusal::NoRoom { chunks })?);
        }
        let pieces = copies.chunks(CHUNKS_PER_PIECE as usize * COPIES);
        map.pieces = pieces.map(|copies| Piece { version: NOW, copies: copies.into() }).collect();
        Ok(map)
    }

    /// Returns the version, by which requests to disks are judged.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the bytes of a chunk.
    #[must_use]
    pub fn chunk_bytes(&self) -> u64 {
        u64::from(self.chunk_mib) << 20
    }

    /// Returns the number of chunks of blocks.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the units of a chunk.
    #[must_use]
    pub fn units(&self) -> u32 {
        (self.chunk_bytes() / u64::from(UNIT_BYTES)) as u32
    }

    /// Returns the disks with their numbers.
    pub fn disks(&self) -> impl Iterator<Item = (DiskNumber, &DiskEntry)> {
        (0..).map(DiskNumber).zip(&self.disks)
    }

    /// Returns a disk.
    #[must_use]
    pub fn disk(&self, number: DiskNumber) -> Option<&DiskEntry> {
        self.disks.get(number.index())
    }

    /// Returns the state of a disk; one that does not exist is stale.
    #[must_use]
    pub fn state(&self, number: DiskNumber) -> DiskState {
        self.disk(number).map_or(DiskState::Stale, |disk| disk.state)
    }

    /// Returns the copies of a chunk.
    #[must_use]
    pub fn copies(&self, chunk: ChunkId) -> Option<[Copy; COPIES]> {
        if chunk.is_of_stream() {
            return self.of_streams.get(&chunk).map(|(_, copies)| *copies);
        }
        let piece = self.pieces.get((chunk.0 / CHUNKS_PER_PIECE) as usize)?;
        let at = (chunk.0 % CHUNKS_PER_PIECE) as usize * COPIES;
        piece.copies.get(at..at + COPIES)?.try_into().ok()
    }

    /// Returns the copies of a chunk that get its writes.
    pub fn live_copies(&self, chunk: ChunkId) -> impl Iterator<Item = Copy> {
        let copies = self.copies(chunk).into_iter().flatten();
        copies.filter(|copy| self.state(copy.disk) != DiskState::Stale)
    }

    /// Returns the copies of a chunk that can be read.
    pub fn current_copies(&self, chunk: ChunkId) -> impl Iterator<Item = Copy> {
        let copies = self.copies(chunk).into_iter().flatten();
        copies.filter(|copy| self.state(copy.disk) == DiskState::Current)
    }

    /// Returns the slot of a chunk on a disk.
    #[must_use]
    pub fn slot(&self, chunk: ChunkId, disk: DiskNumber) -> Option<u32> {
        self.copies(chunk)?.into_iter().find(|copy| copy.disk == disk).map(|copy| copy.slot)
    }

    /// Returns true if a copy of the chunk gets no writes.
    #[must_use]
    pub fn has_stale_copy(&self, chunk: ChunkId) -> bool {
        self.copies(chunk).into_iter().flatten().any(|copy| self.state(copy.disk) == DiskState::Stale)
    }

    /// Returns the last version at which a chunk or one of its disks changed.
    #[must_use]
    pub fn changed(&self, chunk: ChunkId) -> u64 {
        let own = match chunk.is_of_stream() {
            true => self.of_streams.get(&chunk).map(|(version, _)| *version),
            false => self.pieces.get((chunk.0 / CHUNKS_PER_PIECE) as usize).map(|piece| piece.version),
        };
        let disks = self.copies(chunk).into_iter().flatten().filter_map(|copy| self.disk(copy.disk));
        disks.map(|disk| disk.changed).chain(own).max().unwrap_or(u64::MAX)
    }

    /// Returns the chunks that have a copy on a disk, those of streams first.
    pub fn chunks_on(&self, disk: DiskNumber) -> impl Iterator<Item = ChunkId> {
        let streams = self.of_streams.keys().copied();
        streams.chain((0..self.chunks).map(ChunkId)).filter(move |chunk| self.slot(*chunk, disk).is_some())
    }

    /// Returns the chunks of a stream, in their order.
    #[must_use]
    pub fn stream(&self, name: &str) -> Option<Vec<ChunkId>> {
        let piece = self.streams.get(name)?;
        Some(piece.copies.chunks(COPIES).map(|copies| ChunkId::of_stream(copies[0])).collect())
    }

    /// Returns the names of all streams.
    pub fn streams(&self) -> impl Iterator<Item = &str> {
        self.streams.keys().map(String::as_str)
    }

    /// Returns the slots of a disk that have a chunk.
    #[must_use]
    pub fn used_slots(&self, disk: DiskNumber) -> u32 {
        self.all_copies().filter(|copy| copy.disk == disk).count() as u32
    }

    /// Returns the map after a change.
    ///
    /// # Errors
    /// The change is not allowed now.
    pub fn with(&self, change: &MapChange) -> Result<Self, MapRefusal> {
        let mut map = self.clone();
        match change {
            MapChange::Stale(disks) => {
                for disk in disks {
                    let Some(disk) = map.disks.get_mut(disk.index()) else { continue };
                    if disk.state == DiskState::Current {
                        disk.since = NOW;
                    }
                    if disk.state != DiskState::Stale {
                        (disk.state, disk.changed) = (DiskState::Stale, NOW);
                    }
                }
                map.guard(disks)?;
            }
            MapChange::Syncing(disk) => {
                let entry = map.in_state(*disk, DiskState::Stale)?;
                (entry.state, entry.changed) = (DiskState::Syncing, NOW);
            }
            MapChange::Current(disk) => {
                let entry = map.in_state(*disk, DiskState::Syncing)?;
                (entry.state, entry.changed, entry.current_since) = (DiskState::Current, NOW, NOW);
                entry.copies_whole = false;
            }
            MapChange::Opened { disk, opening, is_older } => {
                let entry = map.disks.get_mut(disk.index()).expect("a disk of the group");
                entry.opening = *opening;
                if *is_older {
                    if entry.state == DiskState::Current {
                        entry.since = NOW;
                    }
                    (entry.state, entry.changed, entry.copies_whole) = (DiskState::Stale, NOW, true);
                    map.guard(&[*disk])?;
                }
            }
            MapChange::Stream { name, node, chunks } => {
                if map.streams.contains_key(name) {
                    return Err(MapRefusal::StreamExists(name.clone()));
                }
                let mut free = map.free_slots();
                let own = map.disks().find(|(_, disk)| disk.server == *node).map(|(number, _)| number);
                let copies = (0..*chunks).map(|_| map.place(&mut free, own));
                let copies =
                    copies.collect::<Option<Vec<_>>>().ok_or(MapRefusal::NoRoom { chunks: *chunks })?;
                let copies = copies.into_iter().flatten().collect();
                map.add_stream(name.clone(), Piece { version: NOW, copies });
            }
        }
        Ok(map)
    }

    /// Returns the entries that lead from `before` to this map. The entry `map` is among them.
    #[must_use]
    pub fn edits(&self, before: Option<&Self>) -> Vec<MapEdit> {
        let version = before.map_or(0, |before| before.version);
        let mut edits = vec![(HEAD_KEY.to_owned(), version, Some(self.encode_group()))];
        for (number, piece) in self.pieces.iter().enumerate() {
            let old = before.and_then(|before| before.pieces.get(number));
            if old != Some(piece) {
                let version = old.map_or(0, |old| old.version);
                edits.push((format!("map/{number}"), version, Some(encode_copies(&piece.copies))));
            }
        }
        for (name, piece) in &self.streams {
            let old = before.and_then(|before| before.streams.get(name));
            if old != Some(piece) {
                let version = old.map_or(0, |old| old.version);
                edits.push((format!("chunks/{name}"), version, Some(encode_copies(&piece.copies))));
            }
        }
        edits
    }

    /// Reads a map from the entries of the registry: keys below that of the group, each with its
    /// version and value. `None` without the entry `map`: the group has no map yet.
    ///
    /// # Errors
    /// An entry is malformed.
    pub fn decode<'a>(
        entries: impl IntoIterator<Item = (&'a str, u64, &'a [u8])>,
    ) -> Result<Option<Self>, DecodeError> {
        let (mut map, mut pieces, mut streams) = (None, BTreeMap::<u32, _>::new(), Vec::new());
        for (key, version, value) in entries {
            if key == HEAD_KEY {
                map = Some(Self::decode_group(version, value)?);
            } else if let Some(number) = key.strip_prefix("map/").and_then(|number| number.parse().ok()) {
                pieces.insert(number, Piece { version, copies: decode_copies(value)? });
            } else if let Some(name) = key.strip_prefix("chunks/") {
                streams.push((name.to_owned(), Piece { version, copies: decode_copies(value)? }));
            }
        }
        let Some(mut map) = map else { return Ok(None) };
        map.pieces = pieces.into_values().collect();
        streams.into_iter().for_each(|(name, piece)| map.add_stream(name, piece));
        let known: usize = map.pieces.iter().map(|piece| piece.copies.len()).sum();
        let is_complete = known == map.chunks as usize * COPIES;
        let is_placed = |copy: Copy| map.disk(copy.disk).is_some_and(|disk| copy.slot < disk.slots);
        match is_complete && map.all_copies().all(is_placed) {
            true => Ok(Some(map)),
            false => Err(Fault::Field("copies of chunks").of("map of disks")),
        }
    }

    fn encode_group(&self) -> Vec<u8> {
        let head = Head {
            format: FORMAT,
            chunk_mib: self.chunk_mib,
            disks: self.disks.len() as u32,
            chunks: self.chunks,
        };
        let mut writer = Writer::with(&head, GROUP_BYTES);
        for disk in &self.disks {
            writer.put(disk);
        }
        writer.fill(GROUP_BYTES);
        writer.finish()
    }

    fn decode_group(version: u64, value: &[u8]) -> Result<Self, DecodeError> {
        let known = |number: u64| if number == NOW { version } else { number };
        wire::decode("map of disks", value, |reader| {
            let Head { format, chunk_mib, disks, chunks } = reader.take()?;
            require_version(format, FORMAT)?;
            require(disks as usize <= MAX_DISKS, "number of disks")?;
            require(chunks <= MAX_CHUNKS, "number of chunks")?;
            require([64, 256, 1024].contains(&chunk_mib), "length of a chunk")?;
            let disk = |reader: &mut Reader<'_>| {
                let disk: DiskEntry = reader.take()?;
                Ok(DiskEntry {
                    since: known(disk.since),
                    current_since: known(disk.current_since),
                    changed: known(disk.changed),
                    ..disk
                })
            };
            let disks = (0..disks).map(|_| disk(reader)).collect::<Result<Vec<_>, Fault>>()?;
            reader.rest();
            let (pieces, streams, of_streams) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
            Ok(Self { version, chunk_mib, chunks, disks, pieces, streams, of_streams })
        })
    }

    fn add_stream(&mut self, name: String, piece: Piece) {
        for copies in piece.copies.chunks(COPIES) {
            let copies: [Copy; COPIES] = copies.try_into().expect("whole chunks");
            self.of_streams.insert(ChunkId::of_stream(copies[0]), (piece.version, copies));
        }
        self.streams.insert(name, piece);
    }

    fn in_state(&mut self, disk: DiskNumber, state: DiskState) -> Result<&mut DiskEntry, MapRefusal> {
        let found = self.state(disk);
        let entry = self.disks.get_mut(disk.index()).filter(|_| found == state);
        entry.ok_or(MapRefusal::State { disk, state: found })
    }

    /// Refuses a map in which a chunk has no copy on a current disk.
    fn guard(&self, without: &[DiskNumber]) -> Result<(), MapRefusal> {
        let chunks = self.of_streams.keys().copied().chain((0..self.chunks).map(ChunkId));
        let chunks = chunks.filter(|chunk| self.current_copies(*chunk).next().is_none()).count();
        match chunks {
            0 => Ok(()),
            chunks => Err(MapRefusal::LastCopy { chunks, without: without.to_vec() }),
        }
    }

    fn all_copies(&self) -> impl Iterator<Item = Copy> {
        self.pieces.iter().chain(self.streams.values()).flat_map(|piece| piece.copies.iter().copied())
    }

    /// Returns the free slots of each disk, the lowest last.
    fn free_slots(&self) -> Vec<Vec<u32>> {
        let mut used = vec![std::collections::BTreeSet::new(); self.disks.len()];
        for copy in self.all_copies() {
            used[copy.disk.index()].insert(copy.slot);
        }
        let free = self.disks.iter().zip(used);
        free.map(|(disk, used)| (0..disk.slots).rev().filter(|slot| !used.contains(slot)).collect()).collect()
    }

    /// Takes a free slot for each copy of a chunk, from the disks with the most free ones, in
    /// different failure groups; the first one on disk `own`, if it has one.
    fn place(&self, free: &mut [Vec<u32>], own: Option<DiskNumber>) -> Option<[Copy; COPIES]> {
        let mut copies: Vec<Copy> = Vec::new();
        while copies.len() < COPIES {
            let is_new = |disk: &DiskEntry| {
                let groups =
                    copies.iter().filter_map(|copy| self.disk(copy.disk)).map(|disk| disk.failure_group);
                groups.into_iter().all(|group| group != disk.failure_group)
            };
            let fitting =
                self.disks().filter(|(number, disk)| is_new(disk) && !free[number.index()].is_empty());
            let is_own = |number: DiskNumber| copies.is_empty() && own == Some(number);
            // First the failure groups are filled evenly, then the disks of one.
            let free_in = |group: u8| {
                let disks = self.disks().filter(|(_, disk)| disk.failure_group == group);
                disks.map(|(number, _)| free[number.index()].len()).sum::<usize>()
            };
            let (disk, _) = fitting.max_by_key(|(number, disk)| {
                let free = (free_in(disk.failure_group), free[number.index()].len());
                (is_own(*number), free, std::cmp::Reverse(*number))
            })?;
            copies.push(Copy { disk, slot: free[disk.index()].pop()? });
        }
        copies.try_into().ok()
    }
}

fn encode_copies(copies: &[Copy]) -> Vec<u8> {
    copies.iter().flat_map(wire::encode::<_, 8>).collect()
}

fn decode_copies(value: &[u8]) -> Result<Arc<[Copy]>, DecodeError> {
    wire::decode("copies of chunks", value, |reader| {
        let mut copies = Vec::new();
        while !reader.is_empty() {
            let copy: Copy = reader.take()?;
            require(copy.disk.index() < MAX_DISKS && copy.slot < 1 << 24, "place of a copy")?;
            copies.push(copy);
        }
        require(copies.len().is_multiple_of(COPIES), "number of copies")?;
        Ok(copies.into())
    })
}

/// Reads a map from any bytes for a fuzz target.
#[doc(hidden)]
#[must_use]
pub fn map_any(bytes: &[u8]) -> bool {
    let (group, copies) = bytes.split_at(bytes.len().min(GROUP_BYTES));
    Map::decode([(HEAD_KEY, 1, group), ("map/0", 1, copies)]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Disks of these failure groups with so many slots.
    fn disks(disks: &[(u8, u32)]) -> Vec<DiskEntry> {
        let disk = |(number, (failure_group, slots)): (u8, &(u8, u32))| DiskEntry {
            id: number.into(),
            server: NodeId(*failure_group),
            failure_group: *failure_group,
            state: DiskState::Current,
            copies_whole: false,
            slots: *slots,
            since: 0,
            current_since: 0,
            opening: 0,
            changed: 0,
        };
        (0..).zip(disks).map(disk).collect()
    }

    /// Returns the map as the registry has it, with this version of all entries.
    fn stored(map: &Map, version: u64) -> Map {
        let edits = map.edits(None);
        let entries =
            edits.iter().map(|(key, _, value)| (key.as_str(), version, &value.as_ref().unwrap()[..]));
        Map::decode(entries).unwrap().unwrap()
    }

    #[test]
    fn every_chunk_has_copies_in_different_failure_groups_also_of_uneven_hosts() {
        let uneven = [(0, 170), (1, 170), (2, 44), (2, 44), (2, 44), (2, 44)];
        for all in [&[(0, 130), (1, 130)][..], &uneven, &[(0, 300), (1, 100), (2, 200)]] {
            let slots: u32 = all.iter().map(|(_, slots)| slots).sum();
            let chunks = slots / 2 - 5;
            let map = Map::new(64, chunks, disks(all)).unwrap();
            let mut used = std::collections::BTreeSet::new();
            for chunk in (0..chunks).map(ChunkId) {
                let [one, other] = map.copies(chunk).unwrap();
                let group = |copy: Copy| map.disk(copy.disk).unwrap().failure_group;
                assert_ne!(group(one), group(other), "{chunk:?}");
                assert!(used.insert(one) && used.insert(other), "{chunk:?}: a slot twice");
            }
            let none = Map::new(64, slots / 2 + 1, disks(all));
            assert!(matches!(none, Err(MapRefusal::NoRoom { .. })), "{none:?}");
        }
    }

    #[test]
    fn a_stream_has_a_copy_on_the_disk_of_its_node() {
        let map = stored(&Map::new(64, 2, disks(&[(0, 9), (1, 9), (2, 9)])).unwrap(), 4);
        let stream = MapChange::Stream { name: "n3.0".into(), node: NodeId(2), chunks: 3 };
        let next = stored(&map.with(&stream).unwrap(), 5);
        let chunks = next.stream("n3.0").unwrap();
        assert!(chunks.len() == 3 && chunks.iter().all(|chunk| next.slot(*chunk, DiskNumber(2)).is_some()));
        assert_eq!(next.with(&stream), Err(MapRefusal::StreamExists("n3.0".into())));
        assert_eq!(next.streams().collect::<Vec<_>>(), ["n3.0"]);
    }

    #[test]
    fn the_last_current_copy_stays() {
        let map = stored(&Map::new(64, 2, disks(&[(0, 9), (1, 9)])).unwrap(), 4);
        let without = stored(&map.with(&MapChange::Stale(vec![DiskNumber(1)])).unwrap(), 7);
        let entry = without.disk(DiskNumber(1)).unwrap();
        assert_eq!((entry.state, entry.since, entry.changed), (DiskState::Stale, 7, 7));
        let last = without.with(&MapChange::Stale(vec![DiskNumber(0)]));
        assert_eq!(last, Err(MapRefusal::LastCopy { chunks: 2, without: vec![DiskNumber(0)] }));
        // It has missed writes since 7, also if it is away again before it has all.
        let back = stored(&without.with(&MapChange::Syncing(DiskNumber(1))).unwrap(), 8);
        let away = stored(&back.with(&MapChange::Stale(vec![DiskNumber(1)])).unwrap(), 9);
        assert_eq!(away.disk(DiskNumber(1)).unwrap().since, 7);
        let again = away.with(&MapChange::Current(DiskNumber(1)));
        assert_eq!(again, Err(MapRefusal::State { disk: DiskNumber(1), state: DiskState::Stale }));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let map = Map::new(64, 2, disks(&[(0, 9), (1, 9)])).unwrap();
        let entries = map.edits(None).into_iter().filter_map(|(_, _, value)| value);
        let good = entries.collect::<Vec<_>>().concat();
        assert!(map_any(&good));
        plexus_sim::hostile(&[good], |bytes| {
            let _ = map_any(bytes);
        });
    }
}
