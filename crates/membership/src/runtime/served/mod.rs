//! Turns at a voting file that another node serves.
//!
//! [`Asker`] asks for one turn at a time at each file, [`Server`] takes them. Both are handed datagrams and the time and hand out what is to be
//! sent; neither knows of sockets, disks or threads.
//!
//! **Order.** Turns of a node are numbered, over its incarnations by (incarnation, number). A server takes none that is older than one it has seen, and forgets that only
//! with its own incarnation, in which nothing counts that was meant for the one before (`post`). So no turn is carried out after a later one.
//!
//! **Loss.** Who asked and got nothing asks again; who got a part names what is missing. A server keeps the last answer for each node and
//! file, and never takes a turn twice. The request is small, the answer some kilobytes; both have a bound.

mod asker;
mod pieces;
mod server;

pub(super) use asker::Asker;
pub(super) use server::{Ask, Server};

/// Reads a piece from any bytes, as a fuzz target would; whether it is one.
pub(super) fn piece_any(bytes: &[u8]) -> bool {
    let mut message = None;
    let piece = pieces::Piece::decode(bytes);
    piece.is_ok_and(|piece| pieces::Message::take(&mut message, &piece, pieces::MOST_PIECES))
}

#[cfg(test)]
mod tests;
