//! A message about a turn that exceeds a datagram, cut into pieces:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 8 | the voting file |
//! | 8 | 8 | number of the turn, in the incarnation of the requesting node |
//! | 16 | 2 | number of this piece, from 0 |
//! | 18 | 2 | pieces in all, 1 to 256 |
//! | 20 | 1 | in an answer: 0 read, 1 failed (without content); else 0 |
//! | 21 | 3 | zero |
//! | 24 | | of a request: blocks to write, packed; of an answer: all blocks, packed; of a list of missing pieces: a bit for each piece that came |
//!
//! Every piece but the last is as long as a datagram allows.

use plexus_base::wire::{self, DecodeError, Writer, Zeros, require};

use crate::{
    protocol::FileId,
    runtime::network::datagram::MOST,
    voting::{format::BLOCKS, packed},
};

const HEAD: usize = 24;

/// The most bytes of a message in a piece.
const PART: usize = MOST - HEAD;

/// The most pieces of a message.
pub(super) const MOST_PIECES: usize = 256;

/// The most pieces of a request, which has a report and a ballot.
pub(super) const REQUEST_PIECES: usize = packed::most(2).div_ceil(PART);

const _: () = assert!(packed::most(BLOCKS).div_ceil(PART) <= MOST_PIECES);

wire::layout! {
    struct Layout: 24 { file: FileId, turn: u64, piece: u16, pieces: u16, failed: bool, zero: Zeros<3> }
}

/// The fields that all pieces of a message share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PieceHeader {
    pub(super) file: FileId,
    pub(super) turn: u64,
    pub(super) failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece<'a> {
    pub(super) header: PieceHeader,
    pub(super) piece: usize,
    pub(super) pieces: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Piece<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let PieceHeader { file, turn, failed } = self.header;
        let (piece, pieces) = (self.piece as u16, self.pieces as u16);
        let layout = Layout { file, turn, piece, pieces, failed, zero: Zeros };
        let mut writer = Writer::with(&layout, self.bytes.len());
        writer.bytes(self.bytes);
        writer.finish()
    }

    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        wire::decode("piece of a turn", bytes, |reader| {
            let Layout { file, turn, piece, pieces, failed, .. } = reader.take()?;
            let (piece, pieces, bytes) = (usize::from(piece), usize::from(pieces), reader.rest());
            require(piece < pieces && pieces <= MOST_PIECES && bytes.len() <= PART, "piece")?;
            Ok(Self { header: PieceHeader { file, turn, failed }, piece, pieces, bytes })
        })
    }
}

/// Cuts a message into pieces, in order.
pub(super) fn cut(header: PieceHeader, message: &[u8]) -> Vec<Vec<u8>> {
    let parts: Vec<&[u8]> = if message.is_empty() { vec![message] } else { message.chunks(PART).collect() };
    let pieces = parts.len();
    let piece = |(piece, bytes)| Piece { header, piece, pieces, bytes }.encode();
    parts.into_iter().enumerate().map(piece).collect()
}

/// A message of which some pieces have arrived.
#[derive(Debug)]
pub(super) struct Message {
    parts: Vec<Option<Vec<u8>>>,
}

impl Message {
    /// Adds a piece of a message of at most `most` pieces; the first one starts the message.
    /// Returns true if all have arrived.
    pub(super) fn take(message: &mut Option<Self>, piece: &Piece<'_>, most: usize) -> bool {
        if piece.pieces > most {
            return false;
        }
        let message = message.get_or_insert_with(|| Self { parts: vec![None; piece.pieces] });
        let is_last = piece.piece + 1 == piece.pieces;
        if message.parts.len() != piece.pieces || !is_last && piece.bytes.len() != PART {
            return false;
        }
        message.parts[piece.piece].get_or_insert_with(|| piece.bytes.to_vec());
        message.parts.iter().all(Option::is_some)
    }

    /// Returns the message, or the pieces that have arrived.
    pub(super) fn whole(self) -> Vec<u8> {
        self.parts.into_iter().flatten().flatten().collect()
    }

    /// Returns one bit for each piece that has arrived, and the number of pieces.
    pub(super) fn arrived(&self) -> (Vec<u8>, usize) {
        let mut bits = vec![0; self.parts.len().div_ceil(8)];
        for (piece, _) in self.parts.iter().enumerate().filter(|(_, part)| part.is_some()) {
            bits[piece / 8] |= 1 << (piece % 8);
        }
        (bits, self.parts.len())
    }
}

/// Returns true if a piece has arrived according to its receiver.
pub(super) fn has_arrived(bits: &[u8], piece: usize) -> bool {
    bits.get(piece / 8).is_some_and(|byte| byte & (1 << (piece % 8)) != 0)
}
