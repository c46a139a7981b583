//! Requests for turns at a file that another node serves, repeated until the answer is complete.

use std::collections::BTreeMap;

use plexus_base::{Nanos, NodeId};

use super::pieces::{MOST_PIECES, Message, Piece, PieceHeader, cut};
use crate::{protocol::FileId, runtime::network::datagram::Kind, voting::packed};

struct OpenRequest {
    host: NodeId,
    turn: u64,
    request: Vec<u8>,
    answer: Option<Message>,
    /// The times of the next repetition and of giving up.
    again: Nanos,
    until: Nanos,
}

/// The result of a turn: the whole file, or `None` after a failure.
pub(in crate::runtime) type TurnAnswer = (FileId, Option<Vec<u8>>);

/// Messages to send, with their receivers.
pub(in crate::runtime) type OutgoingMessages = Vec<(NodeId, Kind, Vec<u8>)>;

/// The turns under way, at most one at each file.
pub(in crate::runtime) struct TurnRequester {
    open: BTreeMap<FileId, OpenRequest>,
    last: u64,
    /// The time without a piece after which the request is repeated.
    timeout: Nanos,
    /// The time after which a turn is given up.
    limit: Nanos,
}

impl TurnRequester {
    pub(in crate::runtime) fn new(timeout: Nanos, limit: Nanos) -> Self {
        Self { open: BTreeMap::new(), last: 0, timeout, limit }
    }

    /// Begins a turn that writes these blocks.
    pub(in crate::runtime) fn ask(
        &mut self,
        host: NodeId,
        file: FileId,
        writes: &[(usize, Vec<u8>)],
        now: Nanos,
        out: &mut OutgoingMessages,
    ) {
        self.last += 1;
        let mut request = Vec::new();
        writes.iter().for_each(|(number, block)| packed::pack(&mut request, *number, block));
        let (again, until) = (now + self.timeout, now + self.limit);
        let open = OpenRequest { host, turn: self.last, request, answer: None, again, until };
        open.send(file, out);
        self.open.insert(file, open);
    }

    /// Handles a piece of an answer.
    pub(in crate::runtime) fn answered(
        &mut self,
        from: NodeId,
        body: &[u8],
        now: Nanos,
    ) -> Option<TurnAnswer> {
        let piece = Piece::decode(body).ok()?;
        let file = piece.header.file;
        let open =
            self.open.get_mut(&file).filter(|open| (open.host, open.turn) == (from, piece.header.turn))?;
        if piece.header.failed {
            self.open.remove(&file);
            return Some((file, None));
        }
        open.again = now + self.timeout;
        if !Message::take(&mut open.answer, &piece, MOST_PIECES) {
            return None;
        }
        let whole = self.open.remove(&file)?.answer?.whole();
        Some((file, packed::unpacked_file(&whole).ok()))
    }

    /// Repeats requests without progress. Returns the turns that are given up.
    pub(in crate::runtime) fn remind(&mut self, now: Nanos, out: &mut OutgoingMessages) -> Vec<FileId> {
        let late: Vec<FileId> =
            self.open.iter().filter(|(_, open)| open.until <= now).map(|(file, _)| *file).collect();
        late.iter().for_each(|file| drop(self.open.remove(file)));
        for (file, open) in self.open.iter_mut().filter(|(_, open)| open.again <= now) {
            open.again = now + self.timeout;
            open.send(*file, out);
        }
        late
    }

    /// Returns the time of the next [`TurnRequester::remind`].
    pub(in crate::runtime) fn wake(&self) -> Option<Nanos> {
        self.open.values().map(|open| open.again.min(open.until)).min()
    }
}

impl OpenRequest {
    fn send(&self, file: FileId, out: &mut OutgoingMessages) {
        let header = PieceHeader { file, turn: self.turn, failed: false };
        match &self.answer {
            None => {
                let pieces = cut(header, &self.request).into_iter();
                out.extend(pieces.map(|piece| (self.host, Kind::TurnRequest, piece)));
            }
            Some(answer) => {
                let (bits, pieces) = answer.arrived();
                let missing = Piece { header, piece: 0, pieces, bytes: &bits };
                out.push((self.host, Kind::Missing, missing.encode()));
            }
        }
    }
}
