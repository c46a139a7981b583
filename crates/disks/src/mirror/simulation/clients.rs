//! The clients of each place: a holder that writes and reads it, and a recovery after its death.

use super::{
    super::{
        super::map::{DiskNumber, MapChange},
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
    Change,
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
        };
        self.submit(at, OperationKind::Write(client, data), op);
    }

    /// Ends the holders that are not in the new view.
    pub(super) fn leave_clients(&mut self) {
        for number in 0..self.clients.len() {
            let is_in = |by: &u64| self.members.values().any(|member| member == by);
            let client = &mut self.clients[number];
            client.recovery.take_if(|recovery| !is_in(&recovery.by));
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
        if self.core(at).map().is_none_or(|map| map.copies(chunk).is_none()) {
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
        let streams = self.registry.newest.streams().count();
        let change = match self.random.percent(50) && streams < self.faults.streams {
            true => MapChange::Stream { name: format!("{at}.{streams}"), node: NodeId(at as u8), chunks: 1 },
            false => {
                let number = self.random.below(self.registry.newest.disks().count() as u64) as u8;
                MapChange::Opened { disk: DiskNumber(number), opening: self.now, is_older: false }
            }
        };
        let token = self.operation(at, OperationKind::Change);
        self.core(at).change(change, token);
        self.settle(at);
    }

    /// Adds the places of new streams.
    fn add_streams(&mut self) {
        let map = self.registry.newest.clone();
        let chunks = map.streams().filter_map(|name| map.stream(name)).flatten();
        for chunk in chunks {
            if self.clients.iter().all(|client| client.chunk != chunk) {
                self.clients.push(Client::new(chunk, STREAM_AT, true));
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
                let op = ClientOp::Write { offset: client.offset, data, only };
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
            (OperationKind::Change, _) => {}
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
        self.add_streams();
        let map = &self.registry.newest;
        for (number, client) in self.clients.iter().enumerate() {
            let is_settled = client.begun == client.acknowledged && !client.is_in_doubt;
            for copy in map.current_copies(client.chunk) {
                let cell = self.disks[copy.disk.index()].as_ref().unwrap().cell(copy.slot, client.offset);
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
