//! Asking for turns at a file that another node serves, until an answer is whole.

use std::collections::BTreeMap;

use plexus_base::{Nanos, NodeId};

use super::pieces::{About, MOST_PIECES, Message, Piece, cut};
use crate::{protocol::FileId, runtime::post::datagram::Kind, voting::packed};

struct Asked {
    host: NodeId,
    turn: u64,
    request: Vec<u8>,
    answer: Option<Message>,
    /// When to ask again, and when to give up.
    again: Nanos,
    until: Nanos,
}

/// What came of a turn: the whole file, or nothing.
pub(in crate::runtime) type Came = (FileId, Option<Vec<u8>>);

/// What is to be sent to whom.
pub(in crate::runtime) type Sends = Vec<(NodeId, Kind, Vec<u8>)>;

/// The turns under way, one at most at each file.
pub(in crate::runtime) struct Asker {
    asked: BTreeMap<FileId, Asked>,
    last: u64,
    /// After so long without a piece something was lost.
    timeout: Nanos,
    /// After so long a turn is of no use any more.
    limit: Nanos,
}

impl Asker {
    pub(in crate::runtime) fn new(timeout: Nanos, limit: Nanos) -> Self {
        Self { asked: BTreeMap::new(), last: 0, timeout, limit }
    }

    /// Begins a turn that writes these blocks.
    pub(in crate::runtime) fn ask(
        &mut self,
        host: NodeId,
        file: FileId,
        writes: &[(usize, Vec<u8>)],
        now: Nanos,
        out: &mut Sends,
    ) {
        self.last += 1;
        let mut request = Vec::new();
        writes.iter().for_each(|(number, block)| packed::pack(&mut request, *number, block));
        let (again, until) = (now + self.timeout, now + self.limit);
        let asked = Asked { host, turn: self.last, request, answer: None, again, until };
        asked.send(file, out);
        self.asked.insert(file, asked);
    }

    /// A piece of an answer came.
    pub(in crate::runtime) fn answered(&mut self, from: NodeId, body: &[u8], now: Nanos) -> Option<Came> {
        let piece = Piece::decode(body).ok()?;
        let file = piece.about.file;
        let asked =
            self.asked.get_mut(&file).filter(|asked| (asked.host, asked.turn) == (from, piece.about.turn))?;
        if piece.about.failed {
            self.asked.remove(&file);
            return Some((file, None));
        }
        asked.again = now + self.timeout;
        if !Message::take(&mut asked.answer, &piece, MOST_PIECES) {
            return None;
        }
        let whole = self.asked.remove(&file)?.answer?.whole();
        Some((file, packed::unpacked_file(&whole).ok()))
    }

    /// Asks again where nothing came for long; the turns that are given up.
    pub(in crate::runtime) fn remind(&mut self, now: Nanos, out: &mut Sends) -> Vec<FileId> {
        let late: Vec<FileId> =
            self.asked.iter().filter(|(_, asked)| asked.until <= now).map(|(file, _)| *file).collect();
        late.iter().for_each(|file| drop(self.asked.remove(file)));
        for (file, asked) in self.asked.iter_mut().filter(|(_, asked)| asked.again <= now) {
            asked.again = now + self.timeout;
            asked.send(*file, out);
        }
        late
    }

    /// When [`Asker::remind`] has something to do.
    pub(in crate::runtime) fn wake(&self) -> Option<Nanos> {
        self.asked.values().map(|asked| asked.again.min(asked.until)).min()
    }
}

impl Asked {
    fn send(&self, file: FileId, out: &mut Sends) {
        let about = About { file, turn: self.turn, failed: false };
        match &self.answer {
            None => {
                let pieces = cut(about, &self.request).into_iter();
                out.extend(pieces.map(|piece| (self.host, Kind::Ask, piece)));
            }
            Some(answer) => {
                let (bits, pieces) = answer.come();
                let missing = Piece { about, piece: 0, pieces, bytes: &bits };
                out.push((self.host, Kind::Missing, missing.encode()));
            }
        }
    }
}
