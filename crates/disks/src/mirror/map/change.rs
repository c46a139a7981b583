//! The changes of a map, and the reasons why one is refused.

use plexus_base::NodeId;

use super::{
    ChunkId, Copy, DiskEntry, DiskNumber, DiskState, MAX_CHUNKS, MAX_DISKS, MAX_SLOTS, Map, Move, NOW,
    OF_STREAM, Piece, Stream,
};

/// A disk that comes into the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AddedDisk {
    /// The random name on its label.
    pub id: u128,
    /// The node that executes its I/O.
    pub server: NodeId,
    /// The failure group.
    pub failure_group: u8,
    /// The number of its places for chunks.
    pub slots: u32,
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
    /// A node serves shared disks: in place of a server that has ended for certain, or to open them
    /// itself.
    Serve(Vec<DiskNumber>, NodeId),
    /// An operator takes a disk out of use, or lets it return.
    Offline(DiskNumber, bool),
    /// A new disk, without chunks.
    Add(AddedDisk),
    /// A new disk takes the place of a stale one, and everything is copied to it.
    Replace(DiskNumber, AddedDisk),
    /// The chunks of a disk move to others and then it is removed; or it stays.
    Leave(DiskNumber, bool),
    /// The disk with this identifier has become larger: it has room for so many chunks.
    Grow {
        /// The disk.
        disk: DiskNumber,
        /// The random name on its label.
        id: u128,
        /// The number of its places for chunks.
        slots: u32,
    },
    /// The group gets chunks of blocks, until it has so many.
    GrowGroup(u32),
    /// Chunks move until all disks are equally full.
    Balance(bool),
    /// Chunks begin to move.
    Move(Vec<Move>),
    /// The chunks that move to a disk are complete there.
    Moved(DiskNumber),
    /// A disk without chunks leaves the group.
    Remove(DiskNumber),
    /// An operator gives up what only other disks than these have.
    Force(Vec<DiskNumber>),
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
    /// There are no free slots on disks of enough failure groups.
    #[error("no room for {chunks} more chunks with {copies} copies in different failure groups: add a disk")]
    NoRoom {
        /// The number of chunks.
        chunks: u32,
        /// The number of copies of each.
        copies: usize,
    },
    /// The stream exists.
    #[error("the redo stream {0} exists")]
    StreamExists(String),
    /// The group has no such disk.
    #[error("the group has no {0}")]
    NoDisk(DiskNumber),
    /// The group has all the disks that it can have.
    #[error("the group has {MAX_DISKS} disks, which are the most")]
    TooManyDisks,
    /// A disk cannot become smaller.
    #[error("{disk} has room for {slots} chunks already")]
    NotLarger {
        /// The disk.
        disk: DiskNumber,
        /// Its slots.
        slots: u32,
    },
    /// The group cannot become smaller, or larger than a map can describe.
    #[error("the group has {chunks} chunks: it can only grow, to at most {MAX_CHUNKS}")]
    SizeOfGroup {
        /// The chunks that it has.
        chunks: u32,
    },
    /// The disk is in the group.
    #[error("it is {0} of the group")]
    IsInGroup(DiskNumber),
    /// The new disk is smaller than what it replaces needs.
    #[error("it has room for {slots} chunks, and {needed} are needed")]
    TooSmall {
        /// Its slots.
        slots: u32,
        /// The slots that are needed.
        needed: u32,
    },
    /// Two copies of a chunk would be in one failure group.
    #[error("two copies of a chunk would be in one failure group: use a disk of another host")]
    SameFailureGroup,
    /// The disks that would remain have no room for all chunks, in different failure groups.
    #[error(
        "the other disks have no room for {chunks} of its chunks in other failure groups: add a disk first"
    )]
    NoRoomElsewhere {
        /// The number of such chunks.
        chunks: u32,
    },
    /// The disk has chunks.
    #[error("{disk} has {chunks} chunks")]
    HasChunks {
        /// The disk.
        disk: DiskNumber,
        /// Their number.
        chunks: u32,
    },
    /// The group does not wait for disks.
    #[error("the disks that are there have everything: nothing is to be given up")]
    NotStopped,
    /// Two disks of different times would both be current.
    #[error(
        "{older} lacks changes that {newer} has, and both have copies of the same chunks: they cannot both be used; start a node whose disk has everything"
    )]
    DifferentTimes {
        /// The one that became stale earlier.
        older: DiskNumber,
        /// The other one.
        newer: DiskNumber,
    },
    /// A chunk cannot move so.
    #[error("{0:?} cannot move so now")]
    CannotMove(ChunkId),
}

/// Names disks in a text.
pub(in super::super) fn list(disks: &[DiskNumber]) -> String {
    disks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl Map {
    /// Returns the map after a change.
    ///
    /// # Errors
    /// The change is not allowed now.
    pub fn with(&self, change: &MapChange) -> Result<Self, MapRefusal> {
        let mut map = self.clone();
        match change {
            MapChange::Stale(disks) => {
                disks.iter().for_each(|disk| map.mark(*disk));
                map.guard(disks)?;
            }
            MapChange::Syncing(disk) => {
                map.disk_mut(*disk)?;
                let entry = map.in_state(*disk, DiskState::Stale)?;
                (entry.state, entry.changed, entry.is_mixed) = (DiskState::Syncing, NOW, true);
            }
            MapChange::Current(disk) => {
                let entry = map.in_state(*disk, DiskState::Syncing)?;
                (entry.state, entry.changed, entry.current_since) = (DiskState::Current, NOW, NOW);
                (entry.copies_whole, entry.is_mixed) = (false, false);
            }
            MapChange::Opened { disk, opening, is_older } => {
                map.disk_mut(*disk)?.opening = *opening;
                if *is_older {
                    map.mark(*disk);
                    let entry = map.disk_mut(*disk)?;
                    (entry.changed, entry.copies_whole) = (NOW, true);
                    map.guard(&[*disk])?;
                }
            }
            MapChange::Stream { name, node, chunks } => {
                if map.streams.contains_key(name) {
                    return Err(MapRefusal::StreamExists(name.clone()));
                }
                let own = map.disks().find(|(_, disk)| disk.server == *node && !disk.is_leaving);
                let copies = map.place_new(*chunks, own.map(|(number, _)| number))?;
                let first = ChunkId(OF_STREAM | map.stream_chunks);
                map.stream_chunks += *chunks;
                let disks: Vec<_> = copies.iter().map(|copy| copy.disk).collect();
                let piece = Piece { version: NOW, copies: copies.into() };
                map.add_stream(name.clone(), Stream { first, piece });
                map.guard(&disks)?;
            }
            MapChange::Serve(disks, server) => {
                for disk in disks {
                    let entry = map.disk_mut(*disk)?;
                    (entry.server, entry.changed) = (*server, NOW);
                }
            }
            MapChange::Offline(disk, is_offline) => {
                map.disk_mut(*disk)?.is_offline = *is_offline;
                if *is_offline {
                    map.mark(*disk);
                    map.guard(&[*disk])?;
                }
            }
            MapChange::Add(added) => map.add(added)?,
            MapChange::Replace(disk, added) => map.replace(*disk, added)?,
            MapChange::Leave(disk, is_leaving) => {
                map.disk_mut(*disk)?.is_leaving = *is_leaving;
                if *is_leaving {
                    map.find_room_elsewhere()?;
                }
            }
            MapChange::Grow { disk, id, slots } => {
                let entry = map.disk_mut(*disk)?;
                if entry.id != *id {
                    return Err(MapRefusal::NoDisk(*disk));
                }
                if *slots <= entry.slots || *slots > MAX_SLOTS {
                    return Err(MapRefusal::NotLarger { disk: *disk, slots: entry.slots });
                }
                entry.slots = *slots;
            }
            MapChange::GrowGroup(chunks) => map.grow(*chunks)?,
            MapChange::Balance(is_balancing) => map.is_balancing = *is_balancing,
            MapChange::Move(moves) => moves.iter().try_for_each(|moved| map.begin_move(*moved))?,
            MapChange::Moved(disk) => map.end_moves(*disk, true),
            MapChange::Force(disks) => map.force(disks)?,
            MapChange::Remove(disk) => {
                map.disk_mut(*disk)?;
                let chunks = map.used_slots(*disk);
                if chunks > 0 {
                    return Err(MapRefusal::HasChunks { disk: *disk, chunks });
                }
                *map.disk_mut(*disk)? = DiskEntry::removed();
            }
        }
        Ok(map)
    }

    /// Returns the change that each incarnation of a server must have made before it writes to a
    /// disk that it opens. Only a shared disk needs it: it shows that this incarnation is the
    /// server now, and not one by an older map.
    #[must_use]
    pub fn claim(&self, disk: DiskNumber, server: NodeId) -> Option<MapChange> {
        let is_shared = self.disk(disk).is_some_and(|disk| !disk.sharers.is_empty());
        is_shared.then(|| MapChange::Serve(vec![disk], server))
    }

    /// Places new chunks, which begin with zeros: in slots that were never used.
    fn place_new(&mut self, chunks: u32, own: Option<DiskNumber>) -> Result<Vec<Copy>, MapRefusal> {
        let mut free = self.free_slots();
        for (free, disk) in free.iter_mut().zip(&self.disks) {
            free.retain(|slot| *slot >= disk.unused_from);
        }
        let copies = (0..chunks).map(|_| self.place(&mut free, own));
        let copies = copies.collect::<Option<Vec<_>>>().ok_or_else(|| self.no_room(chunks))?;
        let copies: Vec<_> = copies.into_iter().flatten().collect();
        self.note_used(&copies);
        Ok(copies)
    }

    fn grow(&mut self, chunks: u32) -> Result<(), MapRefusal> {
        let new = chunks.checked_sub(self.chunks).filter(|new| *new > 0 && chunks <= MAX_CHUNKS);
        let new = new.ok_or(MapRefusal::SizeOfGroup { chunks: self.chunks })?;
        let mut copies = &self.place_new(new, None)?[..];
        let disks: Vec<_> = copies.iter().map(|copy| copy.disk).collect();
        let per_piece = self.copies_of_piece();
        if let Some(last) = self.pieces.last_mut().filter(|last| last.copies.len() < per_piece) {
            let (here, rest) = copies.split_at(copies.len().min(per_piece - last.copies.len()));
            *last = Piece { version: NOW, copies: last.copies.iter().chain(here).copied().collect() };
            copies = rest;
        }
        let pieces = copies.chunks(per_piece);
        self.pieces.extend(pieces.map(|copies| Piece { version: NOW, copies: copies.into() }));
        self.chunks = chunks;
        self.guard(&disks)
    }
}
