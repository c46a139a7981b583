//! Takes frames and puts from the caller: copied into the ring, and queued as operations, whole or
//! not at all.

use plexus_fabric::SendError;

use super::Endpoint;
use crate::{
    device::Device,
    operations::OperationKind,
    outgoing::Outgoing,
    touched::Touched,
    wire::{self, Kind, MAX_MESSAGE, Stamp},
};

/// The length up to which puts travel in the message: copying them costs less than another
/// operation, and the peer's processor can check before it writes them.
pub(super) const INLINE: usize = 4096;

/// The length above which puts get memory of their own.
pub(super) const LONG: usize = 256 << 10;

impl Endpoint {
    /// Takes a frame or put of the caller, whole or not at all.
    pub(crate) fn stage(&mut self, device: &Device, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        if outgoing.wordwise().is_none() {
            return self.stage_one(device, outgoing);
        }
        let mut pieces = outgoing.pieces();
        let mut staging = self.staging.clone();
        for piece in pieces.clone() {
            staging.take(wire::MAX_HEADER + piece.len()).ok_or(SendError::Full)?;
        }
        // One more than needed, as for a put with its message.
        if !self.operations.have_room_for(pieces.clone().count() + 1) {
            return Err(SendError::Full);
        }
        pieces.try_for_each(|piece| self.stage_one(device, &piece))
    }

    fn stage_one(&mut self, device: &Device, outgoing: &Outgoing<'_>) -> Result<(), SendError> {
        let Outgoing { head, body, put, silent, more } = *outgoing;
        let frame = head.len() + body.len();
        let data = put.map_or(&[][..], |(put, _)| put.data);
        let kind = match put {
            None => Kind::Frame,
            Some((_, window)) => {
                let fits = data.len() <= INLINE && wire::MAX_HEADER + frame + data.len() <= MAX_MESSAGE;
                if fits || window.span.wordwise { Kind::Inline } else { Kind::Behind }
            }
        };
        let inline = if kind == Kind::Inline { data } else { &[] };
        let header = wire::header_len(kind);
        let len = header + frame + inline.len();
        if !self.operations.have_room_for(2) {
            return Err(SendError::Full);
        }
        // Either both pieces are taken or none.
        let mut staging = self.staging.clone();
        let written = match (kind, data.len()) {
            (Kind::Behind, ..=LONG) => Some(staging.take(data.len()).ok_or(SendError::Full)?),
            _ => None,
        };
        let piece = staging.take(len).ok_or(SendError::Full)?;
        if let (Kind::Behind, Some((put, window))) = (kind, put) {
            let long = match written {
                Some(piece) => {
                    self.staged.write(piece.at, put.data);
                    None
                }
                None => Some(self.longs.give(device, self.port.object(), put.data)?),
            };
            let write = OperationKind::Write {
                address: window.base + put.offset,
                key: window.keys[self.lane.index()],
                touches: Touched::by(self.sequence, &put),
                long,
            };
            let (at, upto) = written.map_or((0, self.staging.taken()), |piece| (piece.at, piece.upto));
            self.operations.push(write, at, put.data.len(), upto);
        }
        self.staging = staging;
        let stamp = Stamp { silent, more, ..self.stamp() };
        let put = put.map(|(put, _)| put);
        let encoded = wire::encode(stamp, kind, head, body, put.as_ref());
        let mut at = piece.at;
        for part in [&encoded[..header], head, body, inline] {
            self.staged.write(at, part);
            at += part.len();
        }
        // The peer's processor writes or compares these data: nothing may overtake them.
        if let Some(put) = put.filter(|_| !silent || kind == Kind::Inline) {
            self.under_way.push(Touched::by(self.sequence, &put));
        }
        self.sequence = self.sequence.wrapping_add(1);
        self.operations.push(OperationKind::Message { taken: stamp.taken }, piece.at, len, piece.upto);
        Ok(())
    }

    /// The fields in front of the next message.
    pub(super) fn stamp(&self) -> Stamp {
        let Self { peer_session: session, lane, sequence, taken, .. } = *self;
        Stamp { session, lane, sequence, taken, silent: false, more: false, asks: false }
    }
}
