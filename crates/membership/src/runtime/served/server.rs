//! Execution of turns at a file of this node for other nodes.

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Incarnation, NodeId};

use super::pieces::{Message, Piece, PieceHeader, REQUEST_PIECES, cut, has_arrived};
use crate::{
    protocol::FileId,
    runtime::network::Route,
    voting::{
        format::{self, FileName},
        packed,
    },
};

/// A turn to execute after all turns returned before.
#[derive(Debug)]
pub(in crate::runtime) struct TurnRequest {
    pub(in crate::runtime) file: FileId,
    pub(in crate::runtime) turn: u64,
    pub(in crate::runtime) writes: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug)]
enum State {
    Receiving(Option<Message>),
    UnderWay,
    /// The content that was read, or `None` after a failure.
    Over(Option<Arc<[u8]>>),
}

/// The last turn of a node at a file.
#[derive(Debug)]
struct LastTurn {
    number: (Incarnation, u64),
    state: State,
    /// The path and key of its last piece.
    route: Route,
}

/// The last turns that other nodes have requested.
pub(in crate::runtime) struct TurnServer {
    cluster: format::ClusterId,
    last: BTreeMap<(FileId, NodeId), LastTurn>,
}

impl TurnServer {
    pub(in crate::runtime) fn new(cluster: format::ClusterId) -> Self {
        Self { cluster, last: BTreeMap::new() }
    }

    /// Handles a piece of a request. Returns the turn once the request is complete. Pieces of an
    /// existing answer go to `out`.
    pub(in crate::runtime) fn handle_piece(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        body: &[u8],
        route: Route,
        is_served: impl FnOnce(FileId) -> bool,
        out: &mut Vec<Vec<u8>>,
    ) -> Option<TurnRequest> {
        let piece = Piece::decode(body).ok()?;
        let PieceHeader { file, turn, .. } = piece.header;
        if !is_served(file) {
            *out = cut(PieceHeader { failed: true, ..piece.header }, &[]);
            return None;
        }
        let number = (incarnation, turn);
        let last = self.last.entry((file, node)).or_insert(LastTurn {
            number,
            state: State::Receiving(None),
            route,
        });
        if number < last.number {
            return None;
        }
        if number > last.number {
            *last = LastTurn { number, state: State::Receiving(None), route };
        }
        last.route = route;
        match &mut last.state {
            State::Receiving(message) => {
                if !Message::take(message, &piece, REQUEST_PIECES) {
                    return None;
                }
                let whole = message.take()?.whole();
                last.state = State::UnderWay;
                let writes = packed::unpacked(&whole).ok();
                let name = FileName { cluster: self.cluster, file };
                let Some(writes) =
                    writes.filter(|writes| writes.iter().all(|write| is_own(name, node, write)))
                else {
                    last.state = State::Over(None);
                    *out = answer(piece.header, None);
                    return None;
                };
                Some(TurnRequest { file, turn, writes })
            }
            State::UnderWay => None,
            State::Over(over) => {
                // One piece of a repeated request is enough.
                if piece.piece == 0 {
                    *out = answer(piece.header, over.as_deref());
                }
                None
            }
        }
    }

    /// Handles the end of a turn. Returns the pieces of its answer with their path, unless the node
    /// has requested another turn meanwhile.
    pub(in crate::runtime) fn over(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        file: FileId,
        turn: u64,
        read: Option<Arc<[u8]>>,
    ) -> Option<(Route, Vec<Vec<u8>>)> {
        let last = self.last.get_mut(&(file, node)).filter(|last| last.number == (incarnation, turn))?;
        let pieces = answer(PieceHeader { file, turn, failed: false }, read.as_deref());
        last.state = State::Over(read);
        Some((last.route, pieces))
    }

    /// Returns the pieces that a node reports as missing. A host that has started again since does
    /// not know the turn: it fails.
    pub(in crate::runtime) fn missing(
        &self,
        (node, incarnation): (NodeId, Incarnation),
        body: &[u8],
    ) -> Vec<Vec<u8>> {
        let Ok(piece) = Piece::decode(body) else { return Vec::new() };
        let PieceHeader { file, turn, .. } = piece.header;
        let last = self.last.get(&(file, node)).filter(|last| last.number == (incarnation, turn));
        let Some(last) = last else { return answer(piece.header, None) };
        let State::Over(Some(read)) = &last.state else { return Vec::new() };
        let pieces = cut(PieceHeader { failed: false, ..piece.header }, read).into_iter().enumerate();
        pieces.filter(|(number, _)| !has_arrived(piece.bytes, *number)).map(|(_, piece)| piece).collect()
    }
}

fn answer(header: PieceHeader, read: Option<&[u8]>) -> Vec<Vec<u8>> {
    cut(PieceHeader { failed: read.is_none(), ..header }, read.unwrap_or_default())
}

/// Returns true if a block belongs to this node and to its position in the file.
fn is_own(name: FileName, node: NodeId, (number, block): &(usize, Vec<u8>)) -> bool {
    let is_ballot = |slot| {
        *number == format::ballot_at(node, slot)
            && matches!(format::ballot_decoded(name, node, block), Ok(Some(_)))
    };
    *number == format::heartbeat_at(node)
        && matches!(format::heartbeat_decoded(name, node, block), Ok(Some(_)))
        || is_ballot(0)
        || is_ballot(1)
}
