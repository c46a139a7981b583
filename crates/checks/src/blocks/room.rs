//! The room in the redo streams of a simulated cluster: the [`Room`] of a node, and the passes that
//! make room. A byte of it is a group of records.

use std::{cell::RefCell, rc::Rc, task::Waker};

use plexus_cache::protocol::Event;
use plexus_redo::stream::protocol::{Fill, Reserved, Room, RoomEvent};

use super::cluster::{Cluster, ClusterEvent};
use crate::failure::Broken;

/// The time after the beginning of a pass at which the stream can be cut, and the longest time
/// until the next pass if that was not enough.
const PASS_NS: u64 = 20_000;
const AGAIN_NS: u64 = 10_000;

/// The room of one incarnation, which its tasks use between events.
pub(crate) struct SimRoom {
    room: Room<Waker>,
    fill: Fill,
    /// True if a pass is to begin.
    is_due: bool,
    /// The times that a task found no room.
    pub(crate) waits: u64,
}

/// The room of one incarnation, shared with its tasks.
pub(crate) type SharedRoom = Rc<RefCell<SimRoom>>;

impl SimRoom {
    pub(crate) fn new(length: u64) -> Self {
        let fill = Fill { free: length, used: 0, used_soon: 0, length };
        Self { room: Room::new(u64::MAX), fill, is_due: false, waits: 0 }
    }

    /// Handles an event and wakes those that it concerns.
    pub(crate) fn handle(&mut self, event: RoomEvent<Waker>) -> Reserved {
        let outcome = self.room.handle(event, || Some(self.fill));
        outcome.called.into_iter().for_each(Waker::wake);
        self.is_due |= outcome.is_due;
        self.waits += u64::from(matches!(outcome.reserved, Reserved::Full(Some(_))));
        outcome.reserved
    }
}

impl Cluster {
    /// Tells the room of a node how full its stream is.
    pub(crate) fn fill_room(&mut self, owner: usize) {
        let used = self.streams[owner].used();
        let mut room = self.rooms[owner].borrow_mut();
        let length = room.fill.length;
        room.fill = Fill { free: length.saturating_sub(used), used, used_soon: used, length };
    }

    /// Begins the pass that is due at a node.
    pub(crate) fn plan_pass(&mut self, node: usize) {
        let owner = self.owner(node);
        if std::mem::take(&mut self.rooms[owner].borrow_mut().is_due) {
            self.schedule_at(node, ..AGAIN_NS, ClusterEvent::Pass(node));
        }
    }

    /// Has all blocks of a node written, so that its stream can be cut.
    pub(crate) fn pass(&mut self, node: usize) -> Result<(), Broken> {
        for at in self.indices(node as u8) {
            self.locals[at].checkpoints.push_back(u64::MAX);
            self.shard(at, Event::Checkpoint { below: u64::MAX })?;
        }
        self.schedule_at(node, PASS_NS..=PASS_NS, ClusterEvent::PassEnded(node));
        Ok(())
    }

    /// Cuts the stream of a node after a pass.
    pub(crate) fn pass_ended(&mut self, node: usize) -> Result<(), Broken> {
        self.advance_checkpoint(node);
        let room = self.rooms[self.owner(node)].clone();
        room.borrow_mut().handle(RoomEvent::PassEnded);
        self.plan_pass(node);
        self.poll_tasks()
    }

    /// Tells the room of a node that its checkpoint may have moved.
    pub(crate) fn checkpoint_moved(&mut self, node: usize) {
        let owner = self.owner(node);
        self.fill_room(owner);
        self.rooms[owner].borrow_mut().handle(RoomEvent::CheckpointMoved);
    }
}
