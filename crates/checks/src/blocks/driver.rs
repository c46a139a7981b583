//! Does the work of the cache's driver in the simulation: passes events to a shard and carries out
//! its actions.

use plexus_base::{BlockId, Epoch, Nanos, NodeId};
use plexus_cache::protocol::{Action, Ask, Event, Message, MessageBody, Shard, Slot};

use super::{
    cluster::{Cluster, ClusterEvent, Local, Phase},
    frames::{Done, Out},
    properties::checkpoint,
    streams::Carried,
    tasks,
};
use crate::{
    failure::Broken,
    transport::{Arrival, Packet, Put, Step, WorkerAddress},
};

impl Cluster {
    /// Passes an event to a shard and carries out the resulting actions.
    pub(crate) fn shard(&mut self, at: usize, event: Event) -> Result<(), Broken> {
        if let Some(block) = self.block_of(at, &event) {
            self.last_block = Some(block);
            let node = at / usize::from(self.params.workers);
            self.note(block, || format!("node {node} <- {event:?}"));
        }
        self.drive(at, |shard, now, io| shard.handle(now, event, io))
    }

    /// Calls a shard at the current time and carries out the resulting actions.
    pub(crate) fn drive(
        &mut self,
        at: usize,
        does: impl FnOnce(&mut Shard, Nanos, &mut Out<'_>),
    ) -> Result<(), Broken> {
        let mut done = std::mem::take(&mut self.done);
        let owner = self.owner(at / usize::from(self.params.workers));
        let Local { shard, frames, .. } = &mut self.locals[at];
        let stream = &mut self.streams[owner];
        let carried = Carried::default();
        does(shard, Nanos(self.engine.now()), &mut Out { frames, done: &mut done, stream, carried });
        self.carry_out(at, done)
    }

    /// Carries out the actions of a shard.
    pub(crate) fn carry_out(&mut self, at: usize, mut done: Vec<Done>) -> Result<(), Broken> {
        for done in done.drain(..) {
            match done {
                Done::Action(action) => self.act(at, action)?,
                Done::Ship { to, message, put, in_use } => {
                    if put.page.torn || in_use || put.page.block != message.block {
                        return Err(Broken::new("latest", message.block, format!("ships {put:?}")));
                    }
                    if matches!(message.body, MessageBody::Grant { ask: Ask::X, .. }) {
                        self.turns.given(at, message.block)?;
                    }
                    if self.params.redo && matches!(message.body, MessageBody::Grant { ask: Ask::S, .. }) {
                        self.truth.shared(put.page)?;
                    }
                    self.post(at, to, message, Some(put));
                }
            }
        }
        self.done = done;
        self.arrive()
    }

    fn block_of(&self, at: usize, event: &Event) -> Option<BlockId> {
        let slot = match event {
            Event::Want { block, .. } => return Some(*block),
            Event::Message { message: Message { body: MessageBody::Mark { .. }, .. }, .. }
            | Event::Checkpoint { .. } => {
                return None;
            }
            Event::Message { message, .. } => return Some(message.block),
            Event::Idle { slot, .. } | Event::Read { slot, .. } | Event::Wrote { slot, .. } => *slot,
            _ => return self.traced,
        };
        Some(self.locals[at].frames.frames[slot.index()].page.block)
    }

    fn act(&mut self, at: usize, action: Action) -> Result<(), Broken> {
        let node = at / usize::from(self.params.workers);
        let owner = self.owner(node);
        match action {
            Action::Send { to, message } => {
                if matches!(message.body, MessageBody::Invalidated { .. }) {
                    self.turns.given(at, message.block)?;
                }
                self.post(at, to, message, None);
                let first = matches!(message.body, MessageBody::Mark { .. }) || message.epoch == Epoch(1);
                if self.engine.random.permille(5) && !first {
                    // A late message of an older view, which must be refused. All receivers have
                    // left that view.
                    self.post(at, to, Message { epoch: Epoch(message.epoch.0 - 1), ..message }, None);
                }
            }
            Action::SendBehind { to, message } => self.post_on(at, to, message, None, true),
            Action::Open { epoch } => self.opens(at, epoch),
            Action::MayLeave => self.locals[at].may_leave = true,
            Action::ReadDisk { slot, block, .. } => {
                self.note(block, || format!("node {node} reads the disk into {slot:?}"));
                self.disk.read_begins(block)?;
                self.changes.begins(owner, at, (slot, block), false);
                let after = self.params.disk.draw(&mut self.engine.random);
                self.engine.schedule(after, Some(owner), ClusterEvent::DiskRead(at, slot, block));
            }
            Action::WriteDisk { slot, block } => self.write(at, slot, block)?,
            Action::Flush { end } => self.flush(owner, end),
            Action::Recover { epoch } => self.recover(at, epoch),
            Action::Replay { epoch } => self.begin_replays(at, epoch),
            Action::CloseStreams { epoch } => self.close_streams(at, epoch),
            Action::WriteFailed { .. } => {}
            Action::Wake { ticket, result } if tasks::is_task(ticket) => {
                let (task, wait) = tasks::wait_of(ticket);
                self.engine.schedule_in(..2_000, Some(owner), ClusterEvent::TaskWoken(task, wait, result));
            }
            Action::Wake { ticket, result } => {
                self.sessions[ticket.0 as usize].asked = false;
                self.turns.woken(ticket.0 as usize);
                self.engine.schedule_in(..2_000, Some(owner), ClusterEvent::Woken(ticket.0 as usize, result));
            }
            Action::CheckpointDone { failed } => {
                let below = self.locals[at].checkpoints.pop_front().expect("a checkpoint that began");
                // A block whose write fails meanwhile is owed again.
                if failed == 0 && self.params.write_failures == 0 {
                    checkpoint::check(&self.locals[at], below)?;
                }
            }
            Action::HandedBack { kept } => self.locals[at].handed_back = Some(kept),
            Action::Fault { from, what } => {
                return Err(Broken::general("fault", format!("node {node} says of {from}: {what}")));
            }
        }
        Ok(())
    }

    fn write(&mut self, at: usize, slot: Slot, block: BlockId) -> Result<(), Broken> {
        let node = at / usize::from(self.params.workers);
        let owner = self.owner(node);
        let copy = self.locals[at].frames.frames[slot.index()].copy;
        self.note(block, || format!("node {node} writes {copy:?}"));
        let Some(page) = copy.filter(|page| page.block == block) else {
            return Err(Broken::new("debt", block, format!("writes {copy:?}")));
        };
        self.disk.write_begins(block)?;
        self.changes.begins(owner, at, (slot, block), true);
        let random = &mut self.engine.random;
        let fails = self.phase == Phase::Running && random.permille(self.params.write_failures);
        // A failed write may still have reached the disk.
        let lands = !fails || random.percent(50);
        let (first, then) = (self.params.disk.draw(random), random.below(1_000));
        if lands {
            self.engine.schedule(first, None, ClusterEvent::DiskLands(owner, page));
        }
        self.engine.schedule(first + then, Some(owner), ClusterEvent::DiskWrote(at, slot, page, !fails));
        Ok(())
    }

    fn post(&mut self, at: usize, to: NodeId, message: Message, put: Option<Put>) {
        self.post_on(at, to, message, put, put.is_some());
    }

    /// Sends on the lane for blocks or on another lane.
    fn post_on(&mut self, at: usize, to: NodeId, message: Message, put: Option<Put>, blocks: bool) {
        let from = self.port(at);
        assert_ne!(to, from.node, "sent to oneself");
        if !matches!(message.body, MessageBody::Mark { .. }) {
            let Message { epoch, block, body } = message;
            self.note(block, || format!("{} -> {to}: {epoch:?} {body:?} {put:?}", from.node));
        }
        if !self.changes.reaches(self.locals[at].shard.epoch(), to) {
            return;
        }
        if carries_debt(&message, self.epoch()) {
            self.debts_under_way[message.block.0 as usize] += 1;
        }
        let mut packet = Packet {
            bytes: message.encode(),
            kind: message.body.kind(),
            put,
            blocks,
            both_lanes: false,
            number: 0,
        };
        let to = WorkerAddress { node: to, worker: from.worker };
        self.delivery.number(from, to, &mut packet);
        let owners = &self.changes.owners;
        let step = &mut Step { engine: &mut self.engine, out: &mut self.arrivals, owners };
        self.transport.send(step, from, to, packet);
    }

    /// Passes on what the transport delivered.
    pub(crate) fn arrive(&mut self) -> Result<(), Broken> {
        let mut at = 0;
        while at < self.arrivals.len() {
            let arrival = self.arrivals[at];
            at += 1;
            match arrival {
                Arrival::Land(to, put) => {
                    let local = self.index_of(to);
                    let landed = self.locals[local].frames.land(put);
                    if !landed && self.is_alive(to.node) {
                        let what = format!("{} did not expect {put:?}", to.node);
                        return Err(Broken::new("latest", put.page.block, what));
                    }
                }
                Arrival::Message { to, from, packet } => {
                    self.delivery.delivered(WorkerAddress { node: from, ..to }, to, &packet)?;
                    let message = Message::decode(&packet.bytes)
                        .map_err(|error| Broken::general("fault", error.to_string()))?;
                    packet.bytes.chunks_exact(8).for_each(|eight| {
                        self.engine.digest.add(u64::from_le_bytes(eight.try_into().expect("eight bytes")));
                    });
                    // Handled as a separate event, in order, so that a paused node handles it
                    // later.
                    let event = ClusterEvent::Shard(self.index_of(to), Event::Message { from, message });
                    let owner = self.owner(to.node.index());
                    self.engine.schedule(0, Some(owner), event);
                }
            }
        }
        self.arrivals.clear();
        Ok(())
    }
}

pub(crate) fn carries_debt(message: &Message, epoch: Epoch) -> bool {
    let body = matches!(
        message.body,
        MessageBody::Grant { owed: true, .. }
            | MessageBody::Forward { owed: true, .. }
            | MessageBody::Invalidated { owed: true, .. }
    );
    body && message.epoch == epoch
}
