//! Changes of the disks of a group: chunks move, disks come and leave.

use std::collections::BTreeSet;

use super::{
    AddedDisk, ChunkId, Copy, DiskEntry, DiskNumber, DiskState, MAX_DISKS, Map, MapChange, MapRefusal, Move,
    NOW, Piece,
};

/// The most chunks that move at a time. The registry saves all its contents at a change: with this
/// many, the two changes of a move write little beside its chunks.
const MOVES_MAX: usize = 64;

impl Map {
    /// Marks a disk as stale. The chunks that move to it stay where they are.
    pub(super) fn mark(&mut self, number: DiskNumber) {
        let Ok(disk) = self.disk_mut(number) else { return };
        if disk.state == DiskState::Current {
            disk.since = NOW;
        }
        if disk.state != DiskState::Stale {
            (disk.state, disk.changed) = (DiskState::Stale, NOW);
            self.end_moves(number, false);
        }
    }

    /// Ends the moves to a disk: their chunks have moved, or stay.
    pub(super) fn end_moves(&mut self, to: DiskNumber, have_moved: bool) {
        let ended: Vec<_> = self.moves.values().filter(|moved| moved.to.disk == to).copied().collect();
        for moved in ended {
            self.moves.remove(&moved.chunk);
            // Also of a chunk that stays: its requests must not wait for the copy that is none.
            self.change_copies(moved.chunk, |copy| match copy.disk == moved.from && have_moved {
                true => moved.to,
                false => copy,
            });
        }
    }

    /// Changes the copies of a chunk, and the version of its piece.
    fn change_copies(&mut self, chunk: ChunkId, change: impl Fn(Copy) -> Copy) {
        let count = self.copies_of_chunk;
        let changed = |piece: &mut Piece, index: usize| {
            let at = index * count;
            let is_it = |place: usize| (at..at + count).contains(&place);
            let copies = piece.copies.iter().enumerate();
            let copies = copies.map(|(place, copy)| if is_it(place) { change(*copy) } else { *copy });
            *piece = Piece { version: NOW, copies: copies.collect() };
        };
        if !chunk.is_of_stream() {
            let (piece, index) = self.place_of(chunk);
            return changed(self.pieces.get_mut(piece).expect("a chunk of the map"), index);
        }
        let has = |first: ChunkId, piece: &Piece| {
            let index = chunk.0.checked_sub(first.0)? as usize;
            (index < piece.copies.len() / count).then_some(index)
        };
        let mut streams = self.streams.iter();
        let found =
            streams.find_map(|(name, stream)| Some((name.clone(), has(stream.first, &stream.piece)?)));
        let (name, index) = found.expect("a chunk of the map");
        let mut stream = self.streams.remove(&name).expect("it was found");
        changed(&mut stream.piece, index);
        self.add_stream(name, stream);
    }

    pub(super) fn add(&mut self, added: &AddedDisk) -> Result<(), MapRefusal> {
        self.check_is_new(added.id)?;
        let entry = DiskEntry { current_since: NOW, changed: NOW, ..DiskEntry::new(added) };
        match self.disks.iter().position(DiskEntry::is_removed) {
            Some(place) => self.disks[place] = entry,
            None if self.disks.len() == MAX_DISKS => return Err(MapRefusal::TooManyDisks),
            None => self.disks.push(entry),
        }
        Ok(())
    }

    fn check_is_new(&self, id: u128) -> Result<(), MapRefusal> {
        match self.disks().find(|(_, disk)| disk.id == id) {
            Some((number, _)) => Err(MapRefusal::IsInGroup(number)),
            None => Ok(()),
        }
    }

    pub(super) fn replace(&mut self, number: DiskNumber, added: &AddedDisk) -> Result<(), MapRefusal> {
        self.check_is_new(added.id)?;
        self.disk_mut(number)?;
        let old = *self.in_state(number, DiskState::Stale)?;
        let used = self.all_copies().filter(|copy| copy.disk == number).map(|copy| copy.slot + 1);
        let needed = used.max().unwrap_or(0);
        if added.slots < needed {
            return Err(MapRefusal::TooSmall { slots: added.slots, needed });
        }
        let others = |chunk: ChunkId| self.with_states(chunk).filter(move |(copy, _)| copy.disk != number);
        let is_beside = |chunk| {
            let mut groups = others(chunk).filter_map(|(copy, _)| self.disk(copy.disk));
            groups.any(|disk| disk.failure_group == added.failure_group)
        };
        if self.chunks_on(number).any(is_beside) {
            return Err(MapRefusal::SameFailureGroup);
        }
        let (since, lost_at, unused_from) = (old.since, old.lost_at, needed);
        let (state, copies_whole) = (DiskState::Stale, true);
        let new = DiskEntry::new(added);
        *self.disk_mut(number)? =
            DiskEntry { state, copies_whole, since, lost_at, unused_from, changed: NOW, ..new };
        Ok(())
    }

    /// Makes disks current although others have newer copies: as few as suffice, the newest first.
    /// Everything is copied to the others when they return.
    pub(super) fn force(&mut self, candidates: &[DiskNumber]) -> Result<(), MapRefusal> {
        // The time up to which a disk has everything; that of a mixture is worth less.
        let time = |disk: &DiskEntry| match disk.state {
            DiskState::Current => (true, NOW),
            DiskState::Syncing | DiskState::Stale => (!disk.is_mixed, disk.since),
        };
        let times: Vec<_> = self.disks.iter().map(time).collect();
        let has_contents = |disk: &DiskNumber| self.disk(*disk).is_some_and(|disk| !disk.copies_whole);
        let mut left: Vec<_> = candidates.iter().copied().filter(has_contents).collect();
        left.sort_by_key(|disk| times[disk.index()]);
        let moved_to: BTreeSet<_> = self.moves.values().map(|moved| moved.to.disk).collect();
        let all: Vec<_> = self.disks().map(|(number, _)| number).collect();
        for number in all {
            self.end_moves(number, false);
            let is_kept = times[number.index()].1 == NOW && candidates.contains(&number);
            if !is_kept {
                self.mark(number);
            }
            let disk = self.disk_mut(number)?;
            if !is_kept || moved_to.contains(&number) {
                disk.changed = NOW;
            }
            disk.copies_whole |= !is_kept;
        }
        let mut forced = Vec::new();
        while let Err(why) = self.guard(candidates) {
            let number = left.pop().ok_or(why)?;
            let disk = self.disk_mut(number)?;
            (disk.state, disk.current_since) = (DiskState::Current, NOW);
            (disk.copies_whole, disk.is_offline, disk.is_mixed) = (false, false, false);
            forced.push(number);
        }
        let of = |number: DiskNumber| times[number.index()];
        for older in forced {
            let beside = self.chunks_on(older).flat_map(|chunk| self.current_copies(chunk));
            if let Some(newer) = beside.map(|copy| copy.disk).find(|disk| of(*disk) != of(older)) {
                let (older, newer) = if of(older) < of(newer) { (older, newer) } else { (newer, older) };
                return Err(MapRefusal::DifferentTimes { older, newer });
            }
        }
        Ok(())
    }

    /// Begins a move. All other copies of the chunk must be current: the dirty bits of the new disk
    /// know nothing of what a stale one has missed before.
    pub(super) fn begin_move(&mut self, moved: Move) -> Result<(), MapRefusal> {
        let Move { chunk, from, to, .. } = moved;
        let refused = Err(MapRefusal::CannotMove(chunk));
        let Some(copies) = self.copies(chunk) else { return refused };
        let others = || copies.iter().filter(|copy| copy.disk != from);
        let is_sound = others().count() + 1 == self.copies_of_chunk
            && others().all(|copy| self.state(copy.disk) == DiskState::Current)
            && !self.moves.contains_key(&chunk)
            && self.all_copies().all(|copy| copy != to);
        let Some(disk) = self.disk(to.disk).filter(|disk| to.slot < disk.slots) else { return refused };
        let is_beside =
            |copy: &Copy| self.disk(copy.disk).is_none_or(|other| other.failure_group == disk.failure_group);
        if !is_sound || disk.state != DiskState::Current || to.disk == from || others().any(is_beside) {
            return refused;
        }
        self.moves.insert(chunk, moved);
        self.note_used(&[to]);
        Ok(())
    }

    /// Notes that slots are not zero any more.
    pub(super) fn note_used(&mut self, copies: &[Copy]) {
        for copy in copies {
            let disk = &mut self.disks[copy.disk.index()];
            disk.unused_from = disk.unused_from.max(copy.slot + 1);
        }
    }

    /// Refuses a map in which the chunks of the disks that leave find no other places.
    pub(super) fn find_room_elsewhere(&self) -> Result<(), MapRefusal> {
        let mut free = self.free_slots();
        let mut has_room = |chunk: &ChunkId| {
            let stays = |copy: &Copy| self.disk(copy.disk).is_some_and(|disk| !disk.is_leaving);
            let moved = self.moves.get(chunk);
            let place =
                |copy: Copy| moved.filter(|moved| moved.from == copy.disk).map_or(copy, |moved| moved.to);
            let mut copies: Vec<_> = self.all_of(*chunk).map(place).filter(stays).collect();
            while copies.len() < self.copies_of_chunk {
                let Some(copy) = self.emptiest(&copies, None, &mut free) else { return false };
                copies.push(copy);
            }
            true
        };
        let chunks = self.of_streams.keys().copied().chain((0..self.chunks).map(ChunkId));
        match chunks.filter(|chunk| !has_room(chunk)).count() as u32 {
            0 => Ok(()),
            chunks => Err(MapRefusal::NoRoomElsewhere { chunks }),
        }
    }

    /// Takes a free slot on the emptiest disk that may have a copy beside these.
    fn emptiest(&self, beside: &[Copy], except: Option<DiskNumber>, free: &mut [Vec<u32>]) -> Option<Copy> {
        let others = beside.iter().filter_map(|copy| self.disk(copy.disk));
        let groups: Vec<_> = others.map(|disk| disk.failure_group).collect();
        let fits = |(number, disk): &(DiskNumber, &DiskEntry)| {
            let is_usable = disk.state == DiskState::Current && !disk.is_leaving && Some(*number) != except;
            is_usable && !groups.contains(&disk.failure_group) && !free[number.index()].is_empty()
        };
        // By the share of its slots that is free.
        let share = |(number, disk): &(DiskNumber, &DiskEntry)| {
            (free[number.index()].len() as u64 * 1_000_000) / u64::from(disk.slots.max(1))
        };
        let (disk, _) = self.disks().filter(fits).max_by_key(share)?;
        Some(Copy { disk, slot: free[disk.index()].pop()? })
    }

    /// Returns the next change that brings chunks nearer to where they shall be.
    #[must_use]
    pub fn next_move(&self) -> Option<MapChange> {
        let leaving = || self.disks().filter(|(_, disk)| disk.is_leaving).map(|(number, _)| number);
        if let Some(empty) = leaving().find(|disk| self.used_slots(*disk) == 0) {
            return Some(MapChange::Remove(empty));
        }
        if !self.moves.is_empty() {
            return None;
        }
        let mut free = self.free_slots();
        let left = leaving().flat_map(|from| self.chunks_on(from).map(move |chunk| (chunk, from)));
        // A chunk with two copies that leave moves twice, one after the other.
        let mut begun = BTreeSet::new();
        let moves = left.filter_map(|(chunk, from)| {
            if begun.contains(&chunk) {
                return None;
            }
            self.may_move(chunk, from, &mut free).inspect(|_| {
                begun.insert(chunk);
            })
        });
        let mut moves: Vec<_> = moves.take(MOVES_MAX).collect();
        if moves.is_empty() && self.is_balancing {
            moves = self.balancing_moves(&mut free);
            // While one is not current, chunks with a copy there cannot move.
            if moves.is_empty() && self.disks().all(|(_, disk)| disk.state == DiskState::Current) {
                return Some(MapChange::Balance(false));
            }
        }
        (!moves.is_empty()).then_some(MapChange::Move(moves))
    }

    /// Returns the move of a copy from a disk, if it may move now.
    fn may_move(&self, chunk: ChunkId, from: DiskNumber, free: &mut [Vec<u32>]) -> Option<Move> {
        let others: Vec<_> = self.all_of(chunk).filter(|copy| copy.disk != from).collect();
        if !others.iter().all(|copy| self.state(copy.disk) == DiskState::Current) {
            return None;
        }
        Some(Move::new(chunk, from, self.emptiest(&others, Some(from), free)?))
    }

    /// Returns moves of chunks of blocks from fuller disks to emptier ones.
    fn balancing_moves(&self, free: &mut [Vec<u32>]) -> Vec<Move> {
        let mut moves = Vec::new();
        // The slots that will be free at the end of the moves.
        let mut gained = vec![0; self.disks.len()];
        for chunk in (0..self.chunks).map(ChunkId) {
            if moves.len() == MOVES_MAX {
                break;
            }
            for from in self.current_copies(chunk).map(|copy| copy.disk).collect::<Vec<_>>() {
                let Some(moved) = self.may_move(chunk, from, free) else { continue };
                let to = moved.to.disk;
                let left = |disk: DiskNumber| free[disk.index()].len() as u64 + gained[disk.index()];
                let slots = |disk: DiskNumber| u64::from(self.disks[disk.index()].slots);
                // The slot of the new copy is not free any more.
                if (left(from) + 1) * slots(to) <= left(to) * slots(from) {
                    gained[from.index()] += 1;
                    moves.push(moved);
                    break;
                }
                free[to.index()].push(moved.to.slot);
            }
        }
        moves
    }
}
