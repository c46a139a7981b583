//! The clients of each place: a holder that writes and reads it, and a recovery after its death.

use super::{
    super::{
        super::map::{Copy, DiskNumber, MapChange, Move, UNIT_BYTES},
        ClientOp, ClientResult, DiskRefusal,
    },
    STREAM_AT, Token, World,
    disk::{Cell, Data, Value},
    *,
};

/// A place of a chunk, with the node that has it.
#[derive(Debug)]
pub(super) struct Client {
    chunk: ChunkId,
    offset: u32,
    is_stream: bool,
    /// The incarnation that may use it.
    holder: Option<u64>,
    /// The newest acknowledged contents, and the newest ones whose redo is durable.
    acknowledged: Value,
    begun: Value,
    work: Work,
    /// A holder has ended, and may have left unfinished writes.
    is_in_doubt: bool,
    recovery: Option<Recovery>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    None,
    /// The write is not sent yet.
    Begun,
    Sent,
}

#[derive(Debug)]
struct Recovery {
    by: u64,
    version: u64,
    missing: usize,
    copies: Vec<(DiskNumber, Cell)>,
    has_failed: bool,
    /// What it writes.
    writes: Option<Value>,
}

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) by: u64,
    kind: OperationKind,
}

#[derive(Debug)]
enum OperationKind {
    Write(usize, Value),
    Read(usize, Value),
    RecoveryRead(usize),
    RecoveryWrite(usize),
    ScrubHold(usize),
    ScrubRead(usize),
    ScrubWrite(usize),
    Change,
}

/// The scrub of a place, one at a time: its unit is held, all copies are read, and the newest
/// replaces the others.
#[derive(Debug)]
pub(super) struct Scrub {
    by: u64,
    hold: Option<u64>,
    version: u64,
    missing: usize,
    copies: Vec<(DiskNumber, Cell)>,
}

impl Client {
    pub(super) fn new(chunk: ChunkId, offset: u32, is_stream: bool) -> Self {
        Self {
            chunk,
            offset,
            is_stream,
            holder: None,
            acknowledged: Value::default(),
            begun: Value::default(),
            work: Work::None,
            is_in_doubt: false,
            recovery: None,
        }
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.work == Work::None && !self.is_in_doubt && self.begun == self.acknowledged
    }
}

impl World {
    fn submit(&mut self, at: usize, kind: OperationKind, op: ClientOp<Data>) {
        let client = match kind {
            OperationKind::Write(client, _) | OperationKind::Read(client, _) => client,
            OperationKind::RecoveryRead(client) | OperationKind::RecoveryWrite(client) => client,
            OperationKind::ScrubHold(client) | OperationKind::ScrubRead(client) => client,
            OperationKind::ScrubWrite(client) => client,
            OperationKind::Change => unreachable!("a change is no operation of a chunk"),
        };
        let token = self.operation(at, kind);
        self.log(|| format!("n{at} begins {token}: {op:?} of {:?}", self.clients[client].chunk));
        let chunk = self.clients[client].chunk;
        self.core(at).submit(chunk, op, token);
        self.settle(at);
    }

    fn operation(&mut self, at: usize, kind: OperationKind) -> Token {
        self.last_token += 1;
        let by = self.nodes[at].as_ref().unwrap().incarnation;
        self.operations.insert(self.last_token, Operation { by, kind });
        self.last_token
    }

    fn write(&mut self, at: usize, client: usize, data: Value) {
        let op = ClientOp::Write {
            offset: self.clients[client].offset,
            data: Data::Block(Cell::Whole(data)),
            only: None,
            under: None,
        };
        self.submit(at, OperationKind::Write(client, data), op);
    }

    /// Has a node give up its places. Returns false if it has work.
    pub(super) fn hand_back(&mut self, by: u64) -> bool {
        let has_recovery =
            |client: &Client| client.recovery.as_ref().is_some_and(|recovery| recovery.by == by);
        let has_work = |client: &Client| client.holder == Some(by) && client.work != Work::None;
        let is_busy = self.operations.values().any(|operation| operation.by == by)
            || self.clients.iter().any(|client| has_recovery(client) || has_work(client))
            || self.scrub.as_ref().is_some_and(|scrub| scrub.by == by);
        if is_busy {
            return false;
        }
        for client in self.clients.iter_mut().filter(|client| client.holder == Some(by)) {
            client.holder = None;
        }
        true
    }

    /// Ends the holders that are not in the new view.
    pub(super) fn leave_clients(&mut self) {
        for number in 0..self.clients.len() {
            let is_in = |by: &u64| self.members.values().any(|member| member == by);
            let client = &mut self.clients[number];
            client.recovery.take_if(|recovery| !is_in(&recovery.by));
            self.scrub.take_if(|scrub| !is_in(&scrub.by));
            let Some(by) = client.holder.take_if(|holder| !is_in(holder)) else { continue };
            client.is_in_doubt = client.is_stream || client.begun != client.acknowledged;
            // An evicted node sends what it has begun. It begins a batch of redo at any time.
            match std::mem::replace(&mut client.work, Work::None) {
                Work::Begun => self.late_writes.push((by, number, client.begun)),
                Work::None if client.is_stream => {
                    let next = Value { version: client.begun.version + 1, writer: by };
                    self.late_writes.push((by, number, next));
                }
                Work::None | Work::Sent => {}
            }
        }
        self.is_changed = true;
    }

    pub(super) fn step_client(&mut self) {
        if self.random.percent(self.faults.changes) {
            return self.want_change();
        }
        if self.scrub.is_none() && self.random.percent(self.faults.scrubs) {
            return self.begin_scrub();
        }
        if !self.late_writes.is_empty() && self.random.percent(20) {
            return self.write_late();
        }
        let number = self.random.below(self.clients.len() as u64) as usize;
        let client = &self.clients[number];
        let Some(holder) = client.holder else {
            return match client.is_in_doubt {
                true => drop(self.step_recovery(number)),
                false => self.take(number),
            };
        };
        let Some(at) = self.at(holder) else { return };
        match client.work {
            Work::None => match self.random.below(10) {
                0..6 => {
                    let client = &mut self.clients[number];
                    client.begun = Value { version: client.begun.version + 1, writer: holder };
                    client.work = Work::Begun;
                    self.is_changed = true;
                }
                6..9 => {
                    let op =
                        ClientOp::Read { offset: client.offset, length: 8192, from: None, in_doubt: None };
                    let expected = client.acknowledged;
                    self.clients[number].work = Work::Sent;
                    self.submit(at, OperationKind::Read(number, expected), op);
                }
                _ => self.clients[number].holder = None,
            },
            Work::Begun => self.send_begun(at, number),
            Work::Sent => {}
        }
    }

    fn send_begun(&mut self, at: usize, number: usize) {
        self.clients[number].work = Work::Sent;
        self.write(at, number, self.clients[number].begun);
    }

    /// Goes on with what was begun. Returns false if there is nothing.
    pub(super) fn step_client_to_end(&mut self) -> bool {
        for number in 0..self.clients.len() {
            let client = &self.clients[number];
            if client.holder.is_none() && client.is_in_doubt && self.step_recovery(number) {
                return true;
            }
            let client = &self.clients[number];
            if let (Work::Begun, Some(at)) = (client.work, client.holder.and_then(|holder| self.at(holder))) {
                self.send_begun(at, number);
                return true;
            }
        }
        false
    }

    /// Gives a place to a node.
    fn take(&mut self, number: usize) {
        let usable = self.usable();
        if usable.is_empty() {
            self.counts.stopped += 1;
            return;
        }
        let at = *self.random.pick(&usable);
        let chunk = self.clients[number].chunk;
        // A member that knows a new chunk tells others of it, also those that do not know it yet.
        let mut maps =
            usable.iter().filter_map(|at| self.nodes[*at].as_ref().and_then(|node| node.core.map()));
        if maps.all(|map| map.copies(chunk).is_none()) {
            return;
        }
        self.clients[number].holder = self.nodes[at].as_ref().map(|node| node.incarnation);
        self.log(|| format!("n{at} takes place {number}"));
    }

    fn write_late(&mut self) {
        let which = self.random.below(self.late_writes.len() as u64) as usize;
        let (by, number, value) = self.late_writes.swap_remove(which);
        let Some(at) = self.at(by) else { return };
        self.counts.late += 1;
        let client = &mut self.clients[number];
        // A member that has not entered the new view still takes it.
        let is_open = client.recovery.as_ref().is_none_or(|recovery| recovery.writes.is_none());
        if client.holder.is_none() && is_open && client.is_in_doubt {
            client.begun = client.begun.max(value);
            self.is_changed = true;
        }
        self.write(at, number, value);
    }

    /// Has a node ask for a change of the map: a stream, or an opening.
    fn want_change(&mut self) {
        let usable = self.usable();
        if usable.is_empty() {
            return;
        }
        let at = *self.random.pick(&usable);
        let cores = || self.nodes.iter().flatten().map(|node| &node.core);
        let wanted = cores().flat_map(|core| core.wanted.iter().map(|(change, _)| change));
        let wanted = wanted.chain(cores().flat_map(|core| core.proposed.iter().map(|(change, _)| change)));
        // A disk that leaves must find room when all of them are made.
        let wanted = wanted.filter(|change| matches!(change, MapChange::Stream { .. })).count();
        let streams = self.registry.newest.streams().count() + wanted;
        let map = self.registry.newest.clone();
        let copies = map.copies_of_chunk();
        let disks: Vec<_> = map.disks().collect();
        let (disk, entry) = *self.random.pick(&disks);
        let id = u128::from(self.last_token) + 100;
        let change = match self.random.below(12) {
            10 => MapChange::Grow { disk, id: entry.id, slots: entry.slots + 1 },
            11 if map.chunks() < 2 * BLOCK_CHUNKS => MapChange::GrowGroup(map.chunks() + 1),
            0..3 if streams < self.faults.streams => {
                MapChange::Stream { name: format!("{at}.{streams}"), node: NodeId(at as u8), chunks: 1 }
            }
            // A change that no request minds.
            0 | 1 => MapChange::Balance(false),
            2 => MapChange::Offline(disk, self.random.percent(50)),
            3 => MapChange::Replace(disk, new_disk(disk.0, id, copies)),
            4 => MapChange::Balance(true),
            5 => MapChange::Leave(disk, self.random.percent(70)),
            6 | 7 if map.disks().count() < self.disks.iter().flatten().count() => {
                // Only one is removed at a time, so it gets its number again.
                let missing = (0..).find(|number| map.disk(DiskNumber(*number)).is_none()).unwrap();
                MapChange::Add(new_disk(missing, id, copies))
            }
            _ => {
                let chunks: Vec<_> = map.chunks_on(disk).collect();
                let (to, into) = *self.random.pick(&disks);
                let slot = self.random.below(u64::from(into.slots)) as u32;
                let Some(chunk) = chunks.first().map(|_| *self.random.pick(&chunks)) else { return };
                MapChange::Move(vec![Move::new(chunk, disk, Copy { disk: to, slot })])
            }
        };
        let may_leave = disks.len() == self.disks.iter().flatten().count()
            && disks.iter().all(|(_, disk)| !disk.is_leaving);
        let is_second_leave = matches!(change, MapChange::Leave(_, true)) && !may_leave;
        if self.faults.moves && may_leave && entry.state == DiskState::Stale && self.random.percent(20) {
            self.core(at).rebuild([disk].into());
            return self.settle(at);
        }
        let is_no_move =
            matches!(change, MapChange::Stream { .. } | MapChange::Balance(false) | MapChange::GrowGroup(_));
        if !self.faults.moves && !is_no_move
            || is_second_leave
            || matches!(change, MapChange::Replace(..)) && entry.state != DiskState::Stale
        {
            return;
        }
        self.change(at, change);
    }

    fn change(&mut self, at: usize, change: MapChange) {
        let token = self.operation(at, OperationKind::Change);
        self.log(|| format!("n{at} wants {change:?}"));
        self.core(at).change(change, token);
        self.settle(at);
    }

    /// Lets all disks return that were taken out of use.
    pub(super) fn end_operator(&mut self) {
        let map = self.registry.newest.clone();
        let offline = map.disks().find(|(_, disk)| disk.is_offline).map(|(disk, _)| disk);
        if let (Some(disk), Some(at)) = (offline, self.usable().first().copied()) {
            self.change(at, MapChange::Offline(disk, false));
        }
    }

    /// Adds the places of new streams and chunks.
    fn add_clients(&mut self) {
        let map = self.registry.newest.clone();
        let chunks = map.streams().filter_map(|name| map.stream(name)).flatten();
        for chunk in chunks {
            if self.clients.iter().all(|client| client.chunk != chunk) {
                self.clients.push(Client::new(chunk, STREAM_AT, true));
            }
        }
        for chunk in (BLOCK_CHUNKS..map.chunks()).map(ChunkId) {
            if self.clients.iter().all(|client| client.chunk != chunk) {
                self.clients.push(Client::new(chunk, BLOCKS_AT[1], false));
            }
        }
    }

    /// Takes a step of the recovery of a place in doubt. Returns false if it waits.
    fn step_recovery(&mut self, number: usize) -> bool {
        let client = &self.clients[number];
        match &client.recovery {
            None => {
                let usable = self.usable();
                if usable.is_empty() {
                    return false;
                }
                let at = *self.random.pick(&usable);
                self.begin_recovery(at, number);
                true
            }
            Some(recovery) if recovery.missing > 0 || recovery.writes.is_some() => false,
            Some(recovery) => {
                // It has ended, and the next view ends its recovery.
                let Some(at) = self.at(recovery.by) else { return false };
                let all = recovery.copies.clone();
                if recovery.has_failed {
                    self.clients[number].recovery = None;
                    return false;
                }
                let wholes = all.iter().filter_map(|(_, cell)| match cell {
                    Cell::Whole(value) => Some(*value),
                    Cell::Torn => None,
                });
                let newest = if client.is_stream { wholes.max().expect("a copy") } else { client.begun };
                let differing = all.iter().filter(|(_, cell)| *cell != Cell::Whole(newest));
                let differing: Vec<_> = differing.map(|(disk, _)| *disk).collect();
                let only = (!client.is_stream).then(|| (recovery.version, differing.clone()));
                let data = Data::Block(Cell::Whole(newest));
                let op = ClientOp::Write { offset: client.offset, data, only, under: None };
                self.clients[number].recovery.as_mut().unwrap().writes = Some(newest);
                self.submit(at, OperationKind::RecoveryWrite(number), op);
                true
            }
        }
    }

    fn begin_recovery(&mut self, at: usize, number: usize) {
        let client = &self.clients[number];
        let (offset, is_stream, chunk) = (client.offset, client.is_stream, client.chunk);
        let map = self.nodes[at].as_ref().unwrap().core.map().unwrap().clone();
        let by = self.nodes[at].as_ref().unwrap().incarnation;
        let disks: Vec<_> = map.current_copies(chunk).map(|copy| copy.disk).collect();
        let version = map.changed(chunk);
        self.clients[number].recovery = Some(Recovery {
            by,
            version,
            missing: disks.len(),
            copies: Vec::new(),
            has_failed: false,
            writes: None,
        });
        let in_doubt = (!is_stream).then_some(version);
        for disk in disks {
            let op = ClientOp::Read { offset, length: 8192, from: Some(disk), in_doubt };
            self.submit(at, OperationKind::RecoveryRead(number), op);
        }
    }

    fn recovered(&mut self, number: usize, value: Value) {
        let client = &mut self.clients[number];
        let acknowledged = client.acknowledged;
        assert!(value >= acknowledged, "D1: place {number} is recovered as {value:?} after {acknowledged:?}");
        (client.begun, client.acknowledged, client.is_in_doubt) = (value, value, false);
        client.recovery = None;
        (self.counts.recovered, self.is_changed) = (self.counts.recovered + 1, true);
        self.log(|| format!("place {number} is recovered as {value:?}"));
    }

    pub(super) fn finished(
        &mut self,
        at: usize,
        token: Token,
        result: Result<ClientResult<Data>, DiskRefusal>,
    ) {
        let Operation { by, kind } = self.operations.remove(&token).expect("an operation ends once");
        self.log(|| format!("n{at} ends {token} {kind:?}: {result:?}"));
        match (kind, result) {
            (OperationKind::Write(number, value), result) => self.written(by, number, value, result),
            (OperationKind::Read(number, expected), result) => {
                let client = &mut self.clients[number];
                if client.holder != Some(by) {
                    return;
                }
                client.work = Work::None;
                if let Ok(ClientResult::Read(data, disk)) = result {
                    let expected = Data::Block(Cell::Whole(expected));
                    assert_eq!(data, expected, "D2: place {number} as read from {disk}");
                    self.counts.reads += 1;
                }
            }
            (OperationKind::RecoveryRead(number), result) => {
                let recovery = self.clients[number].recovery.as_mut();
                let Some(recovery) = recovery.filter(|recovery| recovery.by == by) else { return };
                recovery.missing -= 1;
                match result {
                    Ok(ClientResult::Read(Data::Block(cell), disk)) => recovery.copies.push((disk, cell)),
                    _ => recovery.has_failed = true,
                }
            }
            (OperationKind::RecoveryWrite(number), result) => {
                let recovery = self.clients[number].recovery.as_mut();
                let Some(recovery) = recovery.filter(|recovery| recovery.by == by) else { return };
                match result {
                    Ok(_) => {
                        let value = recovery.writes.unwrap();
                        self.recovered(number, value);
                    }
                    Err(_) => self.clients[number].recovery = None,
                }
            }
            (OperationKind::ScrubHold(number), result) => self.scrub_held(at, number, result),
            (OperationKind::ScrubRead(number), result) => self.scrub_read(at, number, result),
            (OperationKind::ScrubWrite(_), result) => {
                self.counts.scrubbed += usize::from(result.is_ok());
                self.end_scrub(at);
            }
            (OperationKind::Change, _) => {}
        }
    }

    fn begin_scrub(&mut self) {
        let usable = self.usable();
        let number = self.random.below(self.clients.len() as u64) as usize;
        let client = &self.clients[number];
        if usable.is_empty() || client.is_stream {
            return;
        }
        let (chunk, unit) = (client.chunk, client.offset / UNIT_BYTES);
        let at = *self.random.pick(&usable);
        let by = self.nodes[at].as_ref().unwrap().incarnation;
        self.scrub = Some(Scrub { by, hold: None, version: 0, missing: 0, copies: Vec::new() });
        let token = self.operation(at, OperationKind::ScrubHold(number));
        self.log(|| format!("n{at} scrubs {chunk:?} {unit}: {token}"));
        self.core(at).hold_unit(chunk, unit, token);
        self.settle(at);
    }

    fn scrub_held(&mut self, at: usize, number: usize, result: Result<ClientResult<Data>, DiskRefusal>) {
        let by = self.nodes[at].as_ref().unwrap().incarnation;
        let is_its = self.scrub.as_ref().is_some_and(|scrub| scrub.by == by && scrub.hold.is_none());
        let hold = match result {
            Ok(ClientResult::Held(hold)) if is_its => hold,
            // It was evicted, and its scrub has ended.
            Ok(ClientResult::Held(hold)) => return self.core(at).release_unit(hold),
            _ if is_its => return self.scrub = None,
            _ => return,
        };
        let (chunk, offset) = (self.clients[number].chunk, self.clients[number].offset);
        let map = self.core(at).map().expect("a map").clone();
        let disks: Vec<_> = map.current_copies(chunk).map(|copy| copy.disk).collect();
        let scrub = self.scrub.as_mut().expect("a scrub");
        (scrub.hold, scrub.version, scrub.missing) = (Some(hold), map.changed(chunk), disks.len());
        if map.live_copies(chunk).count() != disks.len() {
            return self.end_scrub(at);
        }
        for disk in disks {
            let op = ClientOp::Read { offset, length: 8192, from: Some(disk), in_doubt: None };
            self.submit(at, OperationKind::ScrubRead(number), op);
        }
    }

    fn scrub_read(&mut self, at: usize, number: usize, result: Result<ClientResult<Data>, DiskRefusal>) {
        let by = self.nodes[at].as_ref().unwrap().incarnation;
        let Some(scrub) = self.scrub.as_mut().filter(|scrub| scrub.by == by) else { return };
        scrub.missing = scrub.missing.saturating_sub(1);
        if let Ok(ClientResult::Read(Data::Block(cell), disk)) = result {
            scrub.copies.push((disk, cell));
        }
        if scrub.missing > 0 {
            return;
        }
        let wholes = scrub.copies.iter().filter_map(|(disk, cell)| match cell {
            Cell::Whole(value) => Some((*value, *disk)),
            Cell::Torn => None,
        });
        let Some((newest, _)) = wholes.max() else { return self.end_scrub(at) };
        let differing = scrub.copies.iter().filter(|(_, cell)| *cell != Cell::Whole(newest));
        let bad: Vec<_> = differing.map(|(disk, _)| *disk).collect();
        if bad.is_empty() {
            return self.end_scrub(at);
        }
        let (only, under) = (Some((scrub.version, bad)), scrub.hold);
        let (offset, data) = (self.clients[number].offset, Data::Block(Cell::Whole(newest)));
        self.submit(at, OperationKind::ScrubWrite(number), ClientOp::Write { offset, data, only, under });
    }

    fn end_scrub(&mut self, at: usize) {
        let by = self.nodes[at].as_ref().unwrap().incarnation;
        let Some(scrub) = self.scrub.take_if(|scrub| scrub.by == by) else { return };
        if let Some(hold) = scrub.hold {
            self.core(at).release_unit(hold);
            self.settle(at);
        }
    }

    fn written(
        &mut self,
        by: u64,
        number: usize,
        value: Value,
        result: Result<ClientResult<Data>, DiskRefusal>,
    ) {
        let client = &mut self.clients[number];
        self.is_changed = true;
        match result {
            Ok(_) if client.holder == Some(by) => {
                assert_eq!((client.work, client.begun), (Work::Sent, value), "a write of its holder");
                (client.work, client.acknowledged) = (Work::None, value);
                self.counts.writes += 1;
            }
            // It is complete before another node uses the place.
            Ok(_) if client.is_in_doubt => client.acknowledged = client.acknowledged.max(value),
            Ok(_) => {
                let newest = client.acknowledged;
                assert!(value <= newest, "D7: i{by} has written {value:?} beside {newest:?} at {number}");
            }
            Err(DiskRefusal::Failed { .. }) if client.holder == Some(by) => client.work = Work::Begun,
            Err(DiskRefusal::Failed { .. }) => {}
            Err(why) => panic!("a write fails: {why}"),
        }
    }

    /// Checks what each current disk has.
    pub(super) fn check(&mut self) {
        if !std::mem::take(&mut self.is_changed) {
            return;
        }
        self.add_clients();
        let map = &self.registry.newest;
        for (number, client) in self.clients.iter().enumerate() {
            let is_settled = client.begun == client.acknowledged && !client.is_in_doubt;
            for copy in map.current_copies(client.chunk) {
                // One that has come into the group, and is not open yet, is another one.
                let id = map.disk(copy.disk).map(|disk| disk.id);
                let disk = self.disks[copy.disk.index()].as_ref().filter(|disk| Some(disk.id) == id);
                let cell =
                    disk.map_or(Cell::Whole(Value::default()), |disk| disk.cell(copy.slot, client.offset));
                let is_right = match cell {
                    Cell::Whole(value) if client.is_in_doubt => {
                        client.acknowledged <= value && value <= client.begun
                    }
                    Cell::Whole(value) => value == client.acknowledged || value == client.begun,
                    Cell::Torn => !is_settled,
                };
                assert!(is_right, "D1: {} has {cell:?} of place {number}: {client:?}", copy.disk);
            }
        }
    }
}
