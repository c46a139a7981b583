//! Turns at a voting file that another node serves.
//!
//! [`TurnRequester`] requests one turn at a time at each file, and [`TurnServer`] executes them.
//! Both take datagrams and the time, and return the datagrams to send. They know nothing of
//! sockets, disks or threads.
//!
//! **Order.** Turns of a node are numbered by (incarnation, number). A server executes no turn
//! older than one it has seen. It forgets that only with its own incarnation, in which datagrams
//! for the previous one do not count (`network`). So no turn is executed after a later one.
//!
//! **Loss.** A requester without an answer repeats the request; one with a part of the answer names
//! the missing pieces. A server keeps the last answer for each node and file and never executes a
//! turn twice. Requests are small, answers take some kilobytes, and both are bounded.

mod pieces;
mod requester;
mod server;

pub(super) use requester::TurnRequester;
pub(super) use server::{TurnRequest, TurnServer};

/// Returns true if hostile bytes decode as a piece, for fuzz tests.
pub(super) fn piece_any(bytes: &[u8]) -> bool {
    let mut message = None;
    let piece = pieces::Piece::decode(bytes);
    piece.is_ok_and(|piece| pieces::Message::take(&mut message, &piece, pieces::MOST_PIECES))
}

#[cfg(test)]
mod tests;
