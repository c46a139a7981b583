//! Taking turns at a file of this node for the others.

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Incarnation, NodeId};

use super::pieces::{ASK_PIECES, About, Message, Piece, cut, has_come};
use crate::{
    protocol::FileId,
    runtime::post::Way,
    voting::{
        format::{self, FileName},
        packed,
    },
};

/// A turn to be carried out, after those that were handed out before.
#[derive(Debug)]
pub(in crate::runtime) struct Ask {
    pub(in crate::runtime) file: FileId,
    pub(in crate::runtime) turn: u64,
    pub(in crate::runtime) writes: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug)]
enum State {
    Asking(Option<Message>),
    UnderWay,
    /// `None`: it failed.
    Over(Option<Arc<[u8]>>),
}

/// The last turn of a node at a file.
#[derive(Debug)]
struct Last {
    number: (Incarnation, u64),
    state: State,
    /// How the last piece of it came.
    way: Way,
}

/// What the other nodes have asked for last.
pub(in crate::runtime) struct Server {
    cluster: format::ClusterId,
    last: BTreeMap<(FileId, NodeId), Last>,
}

impl Server {
    pub(in crate::runtime) fn new(cluster: format::ClusterId) -> Self {
        Self { cluster, last: BTreeMap::new() }
    }

    /// A piece of an ask came. A turn, if that makes it whole; pieces of the answer go to `out`, if there is one already.
    pub(in crate::runtime) fn asked(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        body: &[u8],
        way: Way,
        is_served: impl FnOnce(FileId) -> bool,
        out: &mut Vec<Vec<u8>>,
    ) -> Option<Ask> {
        let piece = Piece::decode(body).ok()?;
        let About { file, turn, .. } = piece.about;
        if !is_served(file) {
            *out = cut(About { failed: true, ..piece.about }, &[]);
            return None;
        }
        let number = (incarnation, turn);
        let last = self.last.entry((file, node)).or_insert(Last { number, state: State::Asking(None), way });
        if number < last.number {
            return None;
        }
        if number > last.number {
            *last = Last { number, state: State::Asking(None), way };
        }
        last.way = way;
        match &mut last.state {
            State::Asking(message) => {
                if !Message::take(message, &piece, ASK_PIECES) {
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
                    *out = answer(piece.about, None);
                    return None;
                };
                Some(Ask { file, turn, writes })
            }
            State::UnderWay => None,
            State::Over(over) => {
                // One piece of what is asked again is enough.
                if piece.piece == 0 {
                    *out = answer(piece.about, over.as_deref());
                }
                None
            }
        }
    }

    /// A turn that was handed out is over; the pieces of its answer, and which way they go, unless the node has asked for another meanwhile.
    pub(in crate::runtime) fn over(
        &mut self,
        (node, incarnation): (NodeId, Incarnation),
        file: FileId,
        turn: u64,
        read: Option<Arc<[u8]>>,
    ) -> Option<(Way, Vec<Vec<u8>>)> {
        let last = self.last.get_mut(&(file, node)).filter(|last| last.number == (incarnation, turn))?;
        let pieces = answer(About { file, turn, failed: false }, read.as_deref());
        last.state = State::Over(read);
        Some((last.way, pieces))
    }

    /// What a node says is missing of an answer.
    pub(in crate::runtime) fn missing(
        &self,
        (node, incarnation): (NodeId, Incarnation),
        body: &[u8],
    ) -> Vec<Vec<u8>> {
        let Ok(piece) = Piece::decode(body) else { return Vec::new() };
        let About { file, turn, .. } = piece.about;
        let last = self.last.get(&(file, node)).filter(|last| last.number == (incarnation, turn));
        let Some(Last { state: State::Over(Some(read)), .. }) = last else { return Vec::new() };
        let pieces = cut(About { failed: false, ..piece.about }, read).into_iter().enumerate();
        pieces.filter(|(number, _)| !has_come(piece.bytes, *number)).map(|(_, piece)| piece).collect()
    }
}

fn answer(about: About, read: Option<&[u8]>) -> Vec<Vec<u8>> {
    cut(About { failed: read.is_none(), ..about }, read.unwrap_or_default())
}

/// Whether a block is one of this node's, for the place where it is to stand.
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
