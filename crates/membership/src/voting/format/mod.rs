//! A voting file: a header, and three blocks for each of 16 nodes, each block 4096 bytes, little
//! endian:
//!
//! | block | what |
//! |---|---|
//! | 0 | header |
//! | 1 + 3n | heartbeat of node n: its report |
//! | 2 + 3n, 3 + 3n | ballot of node n, written in turn: the one with the higher counter is in force |
//!
//! A block that was never written is all zeros. Every other block has the same prefix (`block.rs`).
//! A block of another cluster, file or position is refused with the reason. No bytes make a decoder
//! panic.

mod ballot;
mod block;
mod header;
mod report;
mod view;

use std::sync::Arc;

use plexus_base::{
    MAX_NODES, NodeId,
    wire::{Reader, require},
};

pub use block::{BLOCK, BlockError, ClusterId, FileName};
pub use header::Header;
pub use report::{MESSAGE, message, message_decoded};

use self::block::{BlockPosition as At, Kind, seal};
use crate::protocol::{Ballot, Block, Contents, NodeBlocks, Report, Writes};

/// The number of blocks of a voting file.
pub const BLOCKS: usize = 1 + 3 * MAX_NODES;

/// The number of bytes of a voting file.
pub const FILE: usize = BLOCKS * BLOCK;

/// Returns the number of the heartbeat block of `node`.
#[must_use]
pub fn heartbeat_at(node: NodeId) -> usize {
    1 + 3 * node.index()
}

/// Returns the number of the first (0) or second (1) ballot block of `node`.
#[must_use]
pub fn ballot_at(node: NodeId, slot: u8) -> usize {
    2 + 3 * node.index() + usize::from(slot)
}

/// Encodes a report as a heartbeat block.
#[must_use]
pub fn heartbeat(name: FileName, report: &Report) -> Vec<u8> {
    let at = At { name, kind: Kind::Heartbeat, node: report.node };
    seal(at, report.counter, &report::encode(report))
}

/// Encodes a ballot of `node` as a ballot block.
#[must_use]
pub fn ballot(name: FileName, node: NodeId, ballot: &Ballot) -> Vec<u8> {
    seal(At { name, kind: Kind::Ballot, node }, ballot.counter, &ballot::encode(ballot))
}

/// Returns the number and bytes of each block to write in a turn.
#[must_use]
pub fn writes(name: FileName, node: NodeId, writes: &Writes) -> Vec<(usize, Vec<u8>)> {
    let report = writes.heartbeat.as_ref().map(|report| (heartbeat_at(node), heartbeat(name, report)));
    let ballot = writes.ballot.as_ref().map(|(slot, own)| (ballot_at(node, *slot), ballot(name, node, own)));
    report.into_iter().chain(ballot).collect()
}

/// Evaluates [`Writes::must_be_durable`] for `bytes`, written to block `number` in place of
/// `before`.
pub(super) fn must_be_durable(number: usize, before: &[u8], bytes: &[u8]) -> bool {
    let (name, node) = block::claimed(bytes);
    let report = |block| found(heartbeat_decoded(name, node, block));
    match report(bytes) {
        Block::Good(now) if number == heartbeat_at(node) => {
            Writes { heartbeat: Some(now), ballot: None }.must_be_durable(&report(before))
        }
        // A ballot, or a block of another version.
        _ => true,
    }
}

/// Returns the node and counter of `bytes` if block `number` is a heartbeat block.
pub(super) fn beat(number: usize, bytes: &[u8]) -> Option<(NodeId, u64)> {
    let (_, node) = block::claimed(bytes);
    (number == heartbeat_at(node)).then(|| (node, block::counter(bytes)))
}

/// Decodes a heartbeat block.
///
/// # Errors
/// Returns the reason why the block is refused.
pub fn heartbeat_decoded(name: FileName, node: NodeId, bytes: &[u8]) -> Result<Option<Report>, BlockError> {
    let Some((counter, body)) = block::open(At { name, kind: Kind::Heartbeat, node }, bytes)? else {
        return Ok(None);
    };
    let report = report::decode(&mut Reader::new(body))?;
    require(report.node == node && report.counter == counter, "node or counter")?;
    Ok(Some(report))
}

/// Decodes a ballot block.
///
/// # Errors
/// Returns the reason why the block is refused.
pub fn ballot_decoded(name: FileName, node: NodeId, bytes: &[u8]) -> Result<Option<Ballot>, BlockError> {
    let Some((counter, body)) = block::open(At { name, kind: Kind::Ballot, node }, bytes)? else {
        return Ok(None);
    };
    Ok(Some(ballot::decode(counter, body)?))
}

/// Decodes the voting file `name`.
///
/// # Errors
/// Returns an error if its header is damaged or belongs to another file.
pub fn contents(name: FileName, bytes: &[u8]) -> Result<Contents, BlockError> {
    let block = |number: usize| bytes.get(number * BLOCK..(number + 1) * BLOCK).unwrap_or_default();
    Header::decode(name, block(0))?;
    let place = |node: NodeId| NodeBlocks {
        heartbeat: found(heartbeat_decoded(name, node, block(heartbeat_at(node)))),
        ballots: [0, 1].map(|slot| found(ballot_decoded(name, node, block(ballot_at(node, slot))))),
    };
    Ok(Contents { nodes: std::array::from_fn(|node| place(NodeId(node as u8))) })
}

fn found<T>(decoded: Result<Option<T>, BlockError>) -> Block<T> {
    match decoded {
        Ok(None) => Block::Empty,
        Ok(Some(content)) => Block::Good(Arc::new(content)),
        Err(_) => Block::Bad,
    }
}

/// Decodes hostile bytes as blocks and as a message, as they are and with a valid checksum, for
/// fuzz tests. Returns how many decoders accepted them.
#[doc(hidden)]
#[must_use]
pub fn voting_any(bytes: &[u8]) -> usize {
    let mut whole = bytes.to_vec();
    whole.resize(BLOCK, 0);
    let (name, node) = block::claimed(&whole);
    let mut mended = whole.clone();
    block::mend(&mut mended);
    let taken = |bytes: &[u8]| {
        usize::from(Header::decode(name, bytes).is_ok_and(|_| true))
            + usize::from(matches!(heartbeat_decoded(name, node, bytes), Ok(Some(_))))
            + usize::from(matches!(ballot_decoded(name, node, bytes), Ok(Some(_))))
    };
    let blocks: usize = [bytes, &whole, &mended].into_iter().map(taken).sum();
    blocks + usize::from(message_decoded(bytes).is_ok())
}

#[cfg(test)]
mod tests;
