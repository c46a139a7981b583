//! The side of the disks: which requests a disk takes.

use std::sync::Arc;

use plexus_base::{Epoch, NodeId};

use super::{
    super::map::{DiskState, Map, UNIT_BYTES},
    DiskAnswer, DiskOp, DiskRequest, MirrorAction, MirrorCore, MirrorMessage,
};

/// A request that a disk of this node has taken and not executed yet.
#[derive(Clone, Copy)]
pub(super) struct Taken {
    from: NodeId,
    epoch: Epoch,
    id: u64,
}

impl<D: Clone, W> MirrorCore<D, W> {
    /// Takes a request of this view, or refuses it.
    pub(super) fn take(&mut self, from: NodeId, request: DiskRequest<D>) {
        let DiskRequest { id, version, disk, chunk, op } = request;
        // Other nodes copy whole units from here, and write only for their clients.
        self.client_requests += u64::from(match op {
            DiskOp::Write { .. } => from != self.me,
            DiskOp::Read { length, .. } => from != self.me && length < UNIT_BYTES,
            DiskOp::Dirty | DiskOp::Clean { .. } => false,
        });
        let may_be_used = |state: DiskState| match (state, &op) {
            (DiskState::Current, _) | (DiskState::Syncing, DiskOp::Write { .. }) => true,
            (DiskState::Syncing | DiskState::Stale, _) => false,
        };
        let is_open = |map: &&Arc<Map>| {
            let id = map.disk(disk).map(|disk| disk.id);
            self.served.get(&disk).is_some_and(|served| Some(served.id) == id)
        };
        let slot = self.applied.as_ref().filter(is_open).and_then(|map| {
            // A change of the chunk or of its disks after that version may have made this request
            // wrong: a copy may be missing in it.
            let unit = match op {
                DiskOp::Write { offset, .. } | DiskOp::Read { offset, .. } => offset / UNIT_BYTES,
                DiskOp::Clean { unit } => unit,
                DiskOp::Dirty => 0,
            };
            let slot = map.slot(chunk, disk).filter(|(_, state)| may_be_used(*state) && unit < map.units());
            slot.filter(|_| map.changed(chunk) <= version).map(|(slot, _)| {
                let writes = matches!(op, DiskOp::Write { .. } | DiskOp::Read { in_doubt: true, .. });
                (slot, writes && map.has_stale_copy(chunk))
            })
        });
        let Some((slot, notes)) = slot else {
            return self.send(from, MirrorMessage::Answer(id, DiskAnswer::Refused));
        };
        let ticket = self.number();
        self.taken.insert(ticket, Taken { from, epoch: self.epoch, id });
        self.actions.push(MirrorAction::Execute { ticket, disk, slot, op, notes });
    }

    /// Notes that a disk has executed a request.
    ///
    /// # Panics
    /// No such request was to be executed.
    pub fn executed(&mut self, ticket: u64, answer: DiskAnswer<D>) {
        let Taken { from, epoch, id } = self.taken.remove(&ticket).expect("a request that was taken");
        // A client of an earlier view has made its requests again.
        if epoch == self.epoch {
            self.send(from, MirrorMessage::Answer(id, answer));
            self.settle();
        }
    }
}
