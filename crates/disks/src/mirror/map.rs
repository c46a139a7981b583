//! The map of a mirrored group: its disks with their states, and the copies of each chunk. It has
//! no side effects: a change is a new map, or a refusal.
//!
//! The map is in the registry. Each change of it also changes the key `map`, whose version is the
//! version of the map. So changes come one after the other, and a version is never used twice.
//!
//! | key | contents |
//! |---|---|
//! | `map` | head and 32 disks, of a fixed length |
//! | `map/N` | the copies of the chunks of blocks from `4096 * N` on, or `2730 * N` with three copies of each |
//! | `chunks/NAME` | the number of the first chunk of a redo stream, and the copies of all |
//! | `moves` | the chunks that move, each with its new copy |
//! | `disk/ID` | path and failure group of a disk that was added, which only its node needs |
//!
//! A number of a version that is [`NOW`] in an entry is the version of that entry itself: a change
//! cannot know its own version.

mod change;
mod moves;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt, ops::RangeInclusive, sync::Arc};

pub(super) use self::change::list;
pub use self::change::{AddedDisk, MapChange, MapRefusal};

use plexus_base::{
    NodeId, NodeSet,
    wire::{self, DecodeError, Fault, Reader, Writer, Zeros, require, require_version},
};

/// The most disks of a group.
pub const MAX_DISKS: usize = 32;

/// The most chunks of blocks, so that the map takes a small part of the registry.
pub const MAX_CHUNKS: u32 = 131_072;

/// The most slots of a disk.
const MAX_SLOTS: u32 = 1 << 24;

/// The bytes of a unit: striping, dirty bits and holds.
pub const UNIT_BYTES: u32 = 1 << 20;

/// The numbers of copies that the chunks of a group can have.
pub const COPIES: RangeInclusive<usize> = 2..=3;

/// The most copies in one entry, of 8 bytes each: one value of the registry has room for them.
const COPIES_PER_PIECE: usize = 8192;

/// The version of the entry in which it stands.
const NOW: u64 = u64::MAX;

const FORMAT: u32 = 2;

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

/// A chunk: those of blocks count from 0, and so do those of streams, with a bit set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ChunkId(pub u32);

impl ChunkId {
    /// Returns true for the chunk of a redo stream.
    #[must_use]
    pub fn is_of_stream(self) -> bool {
        self.0 & OF_STREAM != 0
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
    /// A copy to it has begun and has not ended: it has contents of different times.
    pub is_mixed: bool,
    /// An operator keeps it stale.
    pub is_offline: bool,
    /// Its chunks move to other disks. Then it is removed.
    pub is_leaving: bool,
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
    /// The time at which it was last current, and is not any more, in seconds since 1970.
    pub lost_at: u64,
    /// The slots from here on were never used, so they are zero.
    pub unused_from: u32,
    /// The nodes that reach a shared disk: one of them takes the place of its server. Empty for a
    /// disk that only its server reaches.
    pub sharers: NodeSet,
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
    struct Head: 24 {
        format: u32, chunk_mib: u32, disks: u32, chunks: u32, stream_chunks: u32, is_balancing: bool,
        copies_beyond_two: u8, zeros: Zeros<2>
    }
    impl DiskEntry: 80 {
        id: u128, server: NodeId, failure_group: u8, state: DiskState, copies_whole: bool, slots: u32, since: u64,
        current_since: u64, opening: u64, changed: u64, lost_at: u64, unused_from: u32, is_offline: bool,
        is_leaving: bool, is_mixed: bool, sharers: NodeSet; 7
    }
    impl Copy: 8 { disk: DiskNumber; 3; slot: u32 }
    impl Move: 16 { chunk: ChunkId, from: DiskNumber, zeros: Zeros<3>, to: Copy }
    struct StreamHead: 8 { first: ChunkId, zeros: Zeros<4> }
}

/// The key of the head and the disks.
const HEAD_KEY: &str = "map";

/// The key of the moves.
const MOVES_KEY: &str = "moves";

/// The bytes of the entry `map`.
const GROUP_BYTES: usize = 24 + MAX_DISKS * 80;

/// The chunks of one entry.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Piece {
    /// The version at which it changed last.
    version: u64,
    /// The copies of its chunks, one chunk behind the other.
    copies: Arc<[Copy]>,
}

/// A redo stream: its first chunk, and the copies of all.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Stream {
    first: ChunkId,
    piece: Piece,
}

/// A chunk that moves. Its new copy gets all writes, and is not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The chunk.
    pub chunk: ChunkId,
    /// The disk whose copy is given up at the end.
    pub from: DiskNumber,
    zeros: Zeros<3>,
    /// The new copy.
    pub to: Copy,
}

impl Move {
    /// Makes the move of a copy.
    #[must_use]
    pub fn new(chunk: ChunkId, from: DiskNumber, to: Copy) -> Self {
        Self { chunk, from, zeros: Zeros, to }
    }
}

/// An entry of the registry that a change sets: its key, the version that it must have (0: it must
/// not exist), and its value. `None` keeps the value.
pub type MapEdit = (String, u64, Option<Vec<u8>>);

/// The map of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Map {
    version: u64,
    chunk_mib: u32,
    copies_of_chunk: usize,
    chunks: u32,
    disks: Vec<DiskEntry>,
    pieces: Vec<Piece>,
    streams: BTreeMap<String, Stream>,
    of_streams: BTreeMap<ChunkId, (u64, Box<[Copy]>)>,
    /// The number of the next chunk of a stream.
    stream_chunks: u32,
    is_balancing: bool,
    moves_version: u64,
    moves: BTreeMap<ChunkId, Move>,
}

impl Map {
    /// Makes the map of a new group with `chunks` chunks of blocks, each with so many of the
    /// [`COPIES`]. All disks are current, because all are zero.
    ///
    /// # Errors
    /// The disks have no room for all copies of each in different failure groups.
    pub fn new(
        chunk_mib: u32,
        chunks: u32,
        copies_of_chunk: usize,
        disks: Vec<DiskEntry>,
    ) -> Result<Self, MapRefusal> {
        let is_checked =
            disks.len() <= MAX_DISKS && chunks <= MAX_CHUNKS && COPIES.contains(&copies_of_chunk);
        assert!(is_checked, "the configuration was checked");
        let mut map = Self::of(0, &Head::new(chunk_mib, copies_of_chunk, disks.len(), chunks), disks);
        let mut copies = Vec::new();
        let mut free = map.free_slots();
        for _ in 0..chunks {
            copies.extend(map.place(&mut free, None).ok_or_else(|| map.no_room(chunks))?);
        }
        map.note_used(&copies);
        let pieces = copies.chunks(map.copies_of_piece());
        map.pieces = pieces.map(|copies| Piece { version: NOW, copies: copies.into() }).collect();
        Ok(map)
    }

    fn of(version: u64, head: &Head, disks: Vec<DiskEntry>) -> Self {
        Self {
            version,
            chunk_mib: head.chunk_mib,
            copies_of_chunk: 2 + usize::from(head.copies_beyond_two),
            chunks: head.chunks,
            disks,
            pieces: Vec::new(),
            streams: BTreeMap::new(),
            of_streams: BTreeMap::new(),
            stream_chunks: head.stream_chunks,
            is_balancing: head.is_balancing,
            moves_version: 0,
            moves: BTreeMap::new(),
        }
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

    /// Returns the number of copies that each chunk has.
    #[must_use]
    pub fn copies_of_chunk(&self) -> usize {
        self.copies_of_chunk
    }

    /// Returns the number of copies in a whole entry.
    fn copies_of_piece(&self) -> usize {
        COPIES_PER_PIECE / self.copies_of_chunk * self.copies_of_chunk
    }

    /// Returns the entry of a chunk of blocks, and its place there.
    fn place_of(&self, chunk: ChunkId) -> (usize, usize) {
        let chunks = COPIES_PER_PIECE / self.copies_of_chunk;
        (chunk.0 as usize / chunks, chunk.0 as usize % chunks)
    }

    /// Returns the number of chunks of blocks.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Returns the bytes of all chunks of blocks.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.chunks) * self.chunk_bytes()
    }

    /// Returns the units of a chunk.
    #[must_use]
    pub fn units(&self) -> u32 {
        (self.chunk_bytes() / u64::from(UNIT_BYTES)) as u32
    }

    /// Returns the disks with their numbers.
    pub fn disks(&self) -> impl Iterator<Item = (DiskNumber, &DiskEntry)> {
        (0..).map(DiskNumber).zip(&self.disks).filter(|(_, disk)| !disk.is_removed())
    }

    /// Returns a disk.
    #[must_use]
    pub fn disk(&self, number: DiskNumber) -> Option<&DiskEntry> {
        self.disks.get(number.index()).filter(|disk| !disk.is_removed())
    }

    fn disk_mut(&mut self, number: DiskNumber) -> Result<&mut DiskEntry, MapRefusal> {
        let disk = self.disks.get_mut(number.index()).filter(|disk| !disk.is_removed());
        disk.ok_or(MapRefusal::NoDisk(number))
    }

    /// Returns true while chunks move so that all disks become equally full.
    #[must_use]
    pub fn is_balancing(&self) -> bool {
        self.is_balancing
    }

    /// Returns the chunks that move.
    pub fn moves(&self) -> impl Iterator<Item = &Move> {
        self.moves.values()
    }

    /// Returns the state of a disk; one that does not exist is stale.
    #[must_use]
    pub fn state(&self, number: DiskNumber) -> DiskState {
        self.disk(number).map_or(DiskState::Stale, |disk| disk.state)
    }

    /// Returns the copies of a chunk, without the new one of a chunk that moves.
    #[must_use]
    pub fn copies(&self, chunk: ChunkId) -> Option<&[Copy]> {
        if chunk.is_of_stream() {
            return self.of_streams.get(&chunk).map(|(_, copies)| &**copies);
        }
        let (piece, index) = self.place_of(chunk);
        let at = index * self.copies_of_chunk;
        self.pieces.get(piece)?.copies.get(at..at + self.copies_of_chunk)
    }

    /// Returns the same, and nothing for a chunk that the group has not.
    fn all_of(&self, chunk: ChunkId) -> impl Iterator<Item = Copy> {
        self.copies(chunk).unwrap_or_default().iter().copied()
    }

    /// Returns all copies of a chunk with their states. The new one of a chunk that moves is
    /// syncing: its disk is current.
    fn with_states(&self, chunk: ChunkId) -> impl Iterator<Item = (Copy, DiskState)> {
        let copies = self.all_of(chunk).map(|copy| (copy, self.state(copy.disk)));
        copies.chain(self.moves.get(&chunk).map(|moved| (moved.to, DiskState::Syncing)))
    }

    /// Returns the copies of a chunk that get its writes.
    pub fn live_copies(&self, chunk: ChunkId) -> impl Iterator<Item = Copy> {
        let copies = self.with_states(chunk);
        copies.filter(|(_, state)| *state != DiskState::Stale).map(|(copy, _)| copy)
    }

    /// Returns the copies of a chunk that can be read.
    pub fn current_copies(&self, chunk: ChunkId) -> impl Iterator<Item = Copy> {
        self.all_of(chunk).filter(|copy| self.state(copy.disk) == DiskState::Current)
    }

    /// Returns the slot of a chunk on a disk, and the state of that copy.
    #[must_use]
    pub fn slot(&self, chunk: ChunkId, disk: DiskNumber) -> Option<(u32, DiskState)> {
        let mut copies = self.with_states(chunk);
        copies.find(|(copy, _)| copy.disk == disk).map(|(copy, state)| (copy.slot, state))
    }

    /// Returns true if a copy of the chunk gets no writes.
    #[must_use]
    pub fn has_stale_copy(&self, chunk: ChunkId) -> bool {
        self.all_of(chunk).any(|copy| self.state(copy.disk) == DiskState::Stale)
    }

    /// Returns the last version at which a chunk or one of its disks changed.
    #[must_use]
    pub fn changed(&self, chunk: ChunkId) -> u64 {
        let own = match chunk.is_of_stream() {
            true => self.of_streams.get(&chunk).map(|(version, _)| *version),
            false => self.pieces.get(self.place_of(chunk).0).map(|piece| piece.version),
        };
        let moves = self.moves.contains_key(&chunk).then_some(self.moves_version);
        let disks = self.with_states(chunk).filter_map(|(copy, _)| self.disk(copy.disk));
        disks.map(|disk| disk.changed).chain(own).chain(moves).max().unwrap_or(u64::MAX)
    }

    /// Returns the chunks that have a copy on a disk, those of streams first.
    pub fn chunks_on(&self, disk: DiskNumber) -> impl Iterator<Item = ChunkId> {
        let streams = self.of_streams.keys().copied();
        let has_copy = move |chunk: &ChunkId| self.all_of(*chunk).any(|copy| copy.disk == disk);
        streams.chain((0..self.chunks).map(ChunkId)).filter(has_copy)
    }

    /// Returns the chunks of a stream, in their order.
    #[must_use]
    pub fn stream(&self, name: &str) -> Option<Vec<ChunkId>> {
        let Stream { first, piece } = self.streams.get(name)?;
        Some((first.0..).map(ChunkId).take(piece.copies.len() / self.copies_of_chunk).collect())
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

    /// Returns the map with the time of the losses that its change has made, in seconds since 1970.
    #[must_use]
    pub fn at(mut self, now: u64) -> Self {
        self.disks.iter_mut().filter(|disk| disk.since == NOW).for_each(|disk| disk.lost_at = now);
        self
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
        for (name, stream) in &self.streams {
            let old = before.and_then(|before| before.streams.get(name));
            if old != Some(stream) {
                let version = old.map_or(0, |old| old.piece.version);
                let head = wire::encode::<_, 8>(&StreamHead { first: stream.first, zeros: Zeros });
                let value = [&head[..], &encode_copies(&stream.piece.copies)].concat();
                edits.push((format!("chunks/{name}"), version, Some(value)));
            }
        }
        if before.map_or(!self.moves.is_empty(), |before| before.moves != self.moves) {
            let version = before.map_or(0, |before| before.moves_version);
            let moves = self.moves.values().flat_map(wire::encode::<_, 16>).collect();
            edits.push((MOVES_KEY.to_owned(), version, Some(moves)));
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
        let mut moves = None;
        for (key, version, value) in entries {
            if key == HEAD_KEY {
                map = Some(Self::decode_group(version, value)?);
            } else if let Some(number) = key.strip_prefix("map/").and_then(|number| number.parse().ok()) {
                pieces.insert(number, Piece { version, copies: decode_copies(value)? });
            } else if let Some(name) = key.strip_prefix("chunks/") {
                let (head, copies) = value.split_at(value.len().min(8));
                let first = wire::decode("chunks of a stream", head, |reader| {
                    let StreamHead { first, .. } = reader.take()?;
                    let fits = first.0.checked_add((value.len() / 8) as u32).is_some();
                    require(first.is_of_stream() && fits, "chunk of a stream")?;
                    Ok(first)
                })?;
                let piece = Piece { version, copies: decode_copies(copies)? };
                streams.push((name.to_owned(), Stream { first, piece }));
            } else if key == MOVES_KEY {
                moves = Some((version, decode_moves(value)?));
            }
        }
        let Some(mut map) = map else { return Ok(None) };
        if let Some((version, moves)) = moves {
            (map.moves_version, map.moves) = (version, moves);
        }
        let has_gap = (0..).zip(pieces.keys()).any(|(number, found)| number != *found);
        map.pieces = pieces.into_values().collect();
        streams.into_iter().for_each(|(name, stream)| map.add_stream(name, stream));
        let known: usize = map.pieces.iter().map(|piece| piece.copies.len()).sum();
        let (whole, mut pieces) = (map.copies_of_piece(), map.pieces.iter().rev());
        let is_divided = pieces.next().is_none_or(|last| last.copies.len() <= whole)
            && pieces.all(|piece| piece.copies.len() == whole);
        let is_complete = is_divided
            && known == map.chunks as usize * map.copies_of_chunk
            && map.streams.values().all(|stream| stream.piece.copies.len() % map.copies_of_chunk == 0);
        let is_placed = |copy: Copy| map.disk(copy.disk).is_some_and(|disk| copy.slot < disk.slots);
        let moves = map.moves.values().all(|moved| {
            map.copies(moved.chunk).is_some_and(|copies| {
                let is_new = copies.iter().all(|copy| copy.disk != moved.to.disk);
                is_new && copies.iter().any(|copy| copy.disk == moved.from)
            })
        });
        let is_sound = !has_gap && is_complete && moves && map.all_copies().all(is_placed);
        match is_sound && map.has_distinct_places() {
            true => Ok(Some(map)),
            false => Err(Fault::Field("copies of chunks").of("map of disks")),
        }
    }

    /// Returns true if no two copies have the same place, and no chunk has two on a disk.
    fn has_distinct_places(&self) -> bool {
        let mut used: Vec<_> = self.all_copies().collect();
        used.sort_unstable();
        let pieces = self.pieces.iter().chain(self.streams.values().map(|stream| &stream.piece));
        let mut chunks = pieces.flat_map(|piece| piece.copies.chunks(self.copies_of_chunk));
        let is_alone =
            |copies: &[Copy], copy: &Copy| copies.iter().filter(|other| other.disk == copy.disk).count() == 1;
        used.windows(2).all(|pair| pair[0] != pair[1])
            && chunks.all(|copies| copies.iter().all(|copy| is_alone(copies, copy)))
    }

    fn encode_group(&self) -> Vec<u8> {
        let head = Head {
            stream_chunks: self.stream_chunks,
            is_balancing: self.is_balancing,
            ..Head::new(self.chunk_mib, self.copies_of_chunk, self.disks.len(), self.chunks)
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
            let head: Head = reader.take()?;
            let Head { format, chunk_mib, disks, chunks, stream_chunks, copies_beyond_two, .. } = head;
            require_version(format, FORMAT)?;
            require(copies_beyond_two <= 1, "number of copies")?;
            require(disks as usize <= MAX_DISKS, "number of disks")?;
            require(chunks <= MAX_CHUNKS && stream_chunks < OF_STREAM, "number of chunks")?;
            require(chunk_mib.is_power_of_two() && chunk_mib <= 1024, "length of a chunk")?;
            let disk = |reader: &mut Reader<'_>| {
                let disk: DiskEntry = reader.take()?;
                require(disk.slots <= MAX_SLOTS, "number of slots")?;
                Ok(DiskEntry {
                    since: known(disk.since),
                    current_since: known(disk.current_since),
                    changed: known(disk.changed),
                    ..disk
                })
            };
            let disks = (0..disks).map(|_| disk(reader)).collect::<Result<Vec<_>, Fault>>()?;
            reader.rest();
            Ok(Self::of(version, &head, disks))
        })
    }

    fn add_stream(&mut self, name: String, stream: Stream) {
        let Stream { first, piece } = &stream;
        for (chunk, copies) in (first.0..).zip(piece.copies.chunks(self.copies_of_chunk)) {
            self.of_streams.insert(ChunkId(chunk), (piece.version, copies.into()));
        }
        self.streams.insert(name, stream);
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

    fn no_room(&self, chunks: u32) -> MapRefusal {
        MapRefusal::NoRoom { chunks, copies: self.copies_of_chunk }
    }

    fn all_copies(&self) -> impl Iterator<Item = Copy> {
        let pieces = self.pieces.iter().chain(self.streams.values().map(|stream| &stream.piece));
        let copies = pieces.flat_map(|piece| piece.copies.iter().copied());
        copies.chain(self.moves.values().map(|moved| moved.to))
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
    fn place(&self, free: &mut [Vec<u32>], own: Option<DiskNumber>) -> Option<Vec<Copy>> {
        let mut copies: Vec<Copy> = Vec::new();
        while copies.len() < self.copies_of_chunk {
            let is_new = |disk: &DiskEntry| {
                let groups =
                    copies.iter().filter_map(|copy| self.disk(copy.disk)).map(|disk| disk.failure_group);
                groups.into_iter().all(|group| group != disk.failure_group)
            };
            let fitting = self.disks().filter(|(number, disk)| {
                is_new(disk) && !disk.is_leaving && !free[number.index()].is_empty()
            });
            let is_own = |number: DiskNumber| copies.is_empty() && own == Some(number);
            // First the failure groups are filled evenly, then the disks of one.
            let free_in = |group: u8| {
                let disks = self.disks().filter(|(_, disk)| disk.failure_group == group);
                disks.map(|(number, _)| free[number.index()].len()).sum::<usize>()
            };
            let (disk, _) = fitting.max_by_key(|(number, disk)| {
                let free = (free_in(disk.failure_group), free[number.index()].len());
                let is_current = disk.state == DiskState::Current;
                (is_own(*number), is_current, free, std::cmp::Reverse(*number))
            })?;
            copies.push(Copy { disk, slot: free[disk.index()].pop()? });
        }
        Some(copies)
    }
}

impl Head {
    fn new(chunk_mib: u32, copies_of_chunk: usize, disks: usize, chunks: u32) -> Self {
        Self {
            format: FORMAT,
            chunk_mib,
            disks: disks as u32,
            chunks,
            stream_chunks: 0,
            is_balancing: false,
            copies_beyond_two: (copies_of_chunk - COPIES.start()) as u8,
            zeros: Zeros,
        }
    }
}

impl DiskEntry {
    /// Makes a disk that is current, because it is zero and has no chunks yet.
    #[must_use]
    pub fn new(added: &AddedDisk) -> Self {
        let AddedDisk { id, server, failure_group, slots } = *added;
        Self {
            id,
            server,
            failure_group,
            state: DiskState::Current,
            copies_whole: false,
            is_mixed: false,
            is_offline: false,
            is_leaving: false,
            slots,
            since: 0,
            current_since: 0,
            opening: 0,
            changed: 0,
            lost_at: 0,
            unused_from: 0,
            sharers: NodeSet::EMPTY,
        }
    }

    /// Makes the entry of a number that no disk has.
    fn removed() -> Self {
        let added = AddedDisk { id: 0, server: NodeId(0), failure_group: 0, slots: 0 };
        Self { state: DiskState::Stale, changed: NOW, ..Self::new(&added) }
    }

    fn is_removed(&self) -> bool {
        self.id == 0
    }
}

fn decode_moves(value: &[u8]) -> Result<BTreeMap<ChunkId, Move>, DecodeError> {
    wire::decode("moves of chunks", value, |reader| {
        let mut moves = BTreeMap::new();
        while !reader.is_empty() {
            let moved: Move = reader.take()?;
            require(moved.to.disk.index() < MAX_DISKS, "place of a copy")?;
            moves.insert(moved.chunk, moved);
        }
        Ok(moves)
    })
}

fn encode_copies(copies: &[Copy]) -> Vec<u8> {
    copies.iter().flat_map(wire::encode::<_, 8>).collect()
}

fn decode_copies(value: &[u8]) -> Result<Arc<[Copy]>, DecodeError> {
    wire::decode("copies of chunks", value, |reader| {
        let mut copies = Vec::new();
        while !reader.is_empty() {
            let copy: Copy = reader.take()?;
            require(copy.disk.index() < MAX_DISKS && copy.slot < MAX_SLOTS, "place of a copy")?;
            copies.push(copy);
        }
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
