//! The messages between shards, and their layout on the wire.
//!
//! All messages have one fixed layout of [`Message::LEN`] bytes, little endian. Unused fields are
//! zero and the decoder checks that. So a message has exactly one encoding, and hostile bytes give
//! an error, never a panic.
//!
//! ```text
//! at  size  field
//!  0     1  tag
//!  1     1  mode or ask
//!  2     1  node (Forward: the requester)
//!  3     1  flags: bit 0 owed, bit 1 behind (Reported: recorded), bit 2 held (Reported: present), bit 3 blocks, bits 4-5 source, bits 6-7 why
//!  4     4  epoch
//!  8     8  block (Lost: the first)
//! 16     4  slot (Place, Lost: the partition)
//! 20     4  generation (Place, Doubt: the epoch of opening; Reported: of the record)
//! 24     4  id (Place: the epoch that is gone)
//! 28     4  seq
//! 32     8  version (Lost: the last block)
//! ```
//!
//! Messages from tag 10 on belong to a change of view, and are about no block unless one is named.

use plexus_base::{
    BlockId, Epoch, NodeId, Partition,
    wire::{self, DecodeError, Fault, Fixed, bits, require},
};

use super::{Ask, Mode, Slot};

/// The class of a message, which decides its credits. A request may lead to forwards and replies, a
/// forward to replies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A request to a master.
    Request,
    /// A master's order to a holder. All orders from one node to another arrive in the order sent;
    /// [`MessageBody::Evicted`] is one for that reason.
    Forward,
    /// An answer.
    Reply,
}

/// One message about one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message {
    /// The sender's view.
    pub epoch: Epoch,
    /// The block that the message is about.
    pub block: BlockId,
    /// The content.
    pub body: MessageBody,
}

/// The value of a member's knowledge of losses before a view; a greater value replaces a lesser
/// one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Witness {
    /// Losses may be missing: the member joined a cluster whose earlier members are gone, and its
    /// own record is older.
    None,
    /// The member misses no later loss, and its record holds the state as of this view.
    Recorded(Epoch),
    /// All masters of a view were open to it.
    Present,
}

/// The frame that a waiting node wants its data in, and the name of its request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Target {
    /// The requester's frame.
    pub slot: Slot,
    /// The generation that the requester announced for the frame.
    pub generation: u32,
    /// The requester's number for the request.
    pub id: u32,
}

/// The place of a granted block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The block arrived in the frame, ahead of this message.
    Data,
    /// The requester has it.
    Keep,
    /// The block is on disk, in this version (0: any).
    Disk {
        /// The version that must be found there.
        version: u64,
    },
}

/// The content of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageBody {
    /// Requester to master: give me the block.
    Request {
        /// The way the requester wants it.
        ask: Ask,
        /// The mode that the requester holds now.
        have: Mode,
        /// The frame of the requester.
        target: Target,
    },
    /// Master to holder: give the block to `requester`.
    Forward {
        /// X: give it away. S: give a copy and keep no more than S. Cr: give a copy.
        ask: Ask,
        /// The node that gets it.
        requester: NodeId,
        /// The frame of the requester.
        target: Target,
        /// The number of the conversion.
        seq: u32,
        /// The debt that the master collected from invalidated copies.
        owed: bool,
    },
    /// Master to holder of S: give the copy up.
    Invalidate {
        /// The number of the conversion.
        seq: u32,
    },
    /// Holder to master: the copy is gone.
    Invalidated {
        /// The number of the conversion.
        seq: u32,
        /// The holder owed the write-back; the node that gets X owes it now.
        owed: bool,
    },
    /// Holder or master to requester: the block is yours in this mode.
    Grant {
        /// The granted access.
        ask: Ask,
        /// The request that this answers.
        target: Target,
        /// The number of the conversion.
        seq: u32,
        /// The place of the block.
        source: Source,
        /// True if the requester owes the write-back from now on.
        owed: bool,
        /// True if the disk may be older than the copy, whichever node owes the write-back.
        behind: bool,
    },
    /// Requester to master: the conversion is over, the next may start.
    Done {
        /// The number of the conversion.
        seq: u32,
        /// True if the block is held now: not after a consistent read or a failed read of the disk.
        held: bool,
    },
    /// Holder to master: I no longer keep the block.
    Evict {
        /// The mode that it was held in.
        mode: Mode,
        /// The version that was held. If no other node holds the block, the disk has this version.
        version: u64,
    },
    /// Master to holder: no more orders come for this block.
    Evicted,
    /// Master to requester: the request is refused.
    Refused {
        /// The request that this answers.
        target: Target,
        /// The block's latest version may have been lost with a node; otherwise the node does not
        /// master the block.
        lost: bool,
    },
    /// Member to member: everything that I sent in earlier views on this lane is ahead of this.
    Mark {
        /// True on the lane for blocks; otherwise among the forwards.
        blocks: bool,
    },
    /// Member to master: I hold the block.
    Held {
        /// The mode.
        mode: Mode,
        /// True if the write-back is owed here.
        owed: bool,
        /// True if the disk may be older than the copy, whichever node owes the write-back.
        behind: bool,
    },
    /// Member to master: my knowledge of the masters that opened a partition.
    Place {
        /// The partition.
        partition: Partition,
        /// The last view in which I opened it as its master; 0: none.
        opened: Epoch,
        /// The last view in which a node that is gone may have opened it; 0: none.
        orphaned: Epoch,
    },
    /// Former master of the block to its master: the latest version may be with a node that is
    /// gone.
    Doubt {
        /// The view in which I opened the block's partition.
        opened: Epoch,
    },
    /// Master to member: blocks are lost, from this message's block to `last`, those of one
    /// partition.
    Lost {
        /// The partition.
        partition: Partition,
        /// The last block.
        last: BlockId,
    },
    /// Member to master: the report is complete.
    Reported {
        /// The value of the member as a witness of losses before this view.
        witness: Witness,
    },
    /// Master to holder: you owe the write-back of the block.
    Owe,
    /// Master to member: the blocks of my partitions named since are lost, and no others.
    Published,
    /// Member to master: what was published is on record.
    Kept,
    /// Giver of a debt to master: have the block written, unless the disk has the version already.
    Ensure {
        /// The version that the giver had.
        version: u64,
    },
    /// Master to the node that owes the write-back: write the block and tell `requester`.
    Save {
        /// The node that gave the debt away.
        requester: NodeId,
        /// The version of its request.
        version: u64,
    },
    /// Answer to [`Ensure`](Self::Ensure).
    Saved {
        /// The version of the request, which the disk has or is beyond; 0: it could not be written.
        version: u64,
    },
    /// Member to master: I gave the debt of the block away, and do not know that it was written.
    HandedOver {
        /// The version that I had.
        version: u64,
    },
    /// Master to the member that closes redo streams: of my blocks the disk has everything that the
    /// streams of nodes that are gone contain.
    Recovered,
    /// Master to member: requests are welcome.
    Opened,
    /// Receiver to sender: a step of items of a report or a publication was taken; send more.
    More,
    /// Member to master: accept the lost blocks as they are on disk.
    Accept,
    /// Member to member, behind all blocks that it gave away: I hold and grant nothing any more,
    /// and am about to leave.
    Leaving,
    /// Answer to a leaving member: noted, and all your blocks have arrived.
    Noted,
}

impl MessageBody {
    /// Returns whether it is an item of a report or a publication; their number under way is
    /// limited.
    pub(super) fn is_item(&self) -> bool {
        matches!(
            self,
            Self::Held { .. }
                | Self::Place { .. }
                | Self::Doubt { .. }
                | Self::Lost { .. }
                | Self::Reported { .. }
                | Self::Owe
                | Self::HandedOver { .. }
                | Self::Published
        )
    }

    /// Returns whether it is about its message's block, and not about a partition or the view.
    pub(super) fn has_block(&self) -> bool {
        !matches!(
            self,
            Self::Mark { .. }
                | Self::Place { .. }
                | Self::Lost { .. }
                | Self::Reported { .. }
                | Self::Published
                | Self::Kept
                | Self::Opened
                | Self::Recovered
                | Self::More
                | Self::Accept
                | Self::Leaving
                | Self::Noted
        )
    }

    /// Returns the class of the message, which decides its credits.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Request { .. } | Self::Evict { .. } | Self::Ensure { .. } | Self::Accept => Kind::Request,
            Self::Forward { .. }
            | Self::Invalidate { .. }
            | Self::Evicted
            | Self::Save { .. }
            | Self::Mark { blocks: false }
            | Self::Opened => Kind::Forward,
            Self::Invalidated { .. }
            | Self::Grant { .. }
            | Self::Done { .. }
            | Self::Refused { .. }
            | Self::Mark { blocks: true }
            | Self::Leaving
            | Self::Kept
            | Self::Saved { .. }
            | Self::Recovered
            | Self::More
            | Self::Noted => Kind::Reply,
            item => {
                debug_assert!(item.is_item());
                Kind::Forward
            }
        }
    }
}

wire::numbered! {
    impl Ask as "ask" { S, X, Cr }
    impl Mode as "mode" { N, S, X }
}

wire::layout! {
    #[derive(Default)]
    struct Wire: 40 {
        tag: u8, mode: u8, node: u8, flags: u8, epoch: u32, block: u64, slot: u32, generation: u32, id: u32, seq: u32, version: u64
    }
}

const OWED: u8 = 1;
const BEHIND: u8 = 2;
const HELD: u8 = 4;
const BLOCKS: u8 = 8;
const SOURCE_SHIFT: u8 = 4;
const LOST: u8 = 0x40;
const NOT_MASTER: u8 = 0x80;

impl Message {
    /// The bytes of every message.
    pub const LEN: usize = Wire::LEN;

    /// Encodes the message.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        wire::encode(&self.wire())
    }

    fn wire(&self) -> Wire {
        let base = Wire { epoch: self.epoch.0, block: self.block.0, ..Wire::default() };
        let aimed = |target: Target| Wire {
            slot: target.slot.0,
            generation: target.generation,
            id: target.id,
            ..base
        };
        match self.body {
            MessageBody::Request { ask, have, target } => {
                Wire { tag: 1, mode: ask as u8, node: have as u8, ..aimed(target) }
            }
            MessageBody::Forward { ask, requester, target, seq, owed } => Wire {
                tag: 2,
                mode: ask as u8,
                node: requester.0,
                flags: bits([(owed, OWED)]),
                seq,
                ..aimed(target)
            },
            MessageBody::Invalidate { seq } => Wire { tag: 3, seq, ..base },
            MessageBody::Invalidated { seq, owed } => {
                Wire { tag: 4, flags: bits([(owed, OWED)]), seq, ..base }
            }
            MessageBody::Grant { ask, target, seq, source, owed, behind } => {
                let (number, version) = match source {
                    Source::Data => (0, 0),
                    Source::Keep => (1, 0),
                    Source::Disk { version } => (2, version),
                };
                Wire {
                    tag: 5,
                    mode: ask as u8,
                    flags: bits([(owed, OWED), (behind, BEHIND)]) | number << SOURCE_SHIFT,
                    seq,
                    version,
                    ..aimed(target)
                }
            }
            MessageBody::Done { seq, held } => Wire { tag: 6, flags: bits([(held, HELD)]), seq, ..base },
            MessageBody::Evict { mode, version } => Wire { tag: 7, mode: mode as u8, version, ..base },
            MessageBody::Evicted => Wire { tag: 8, ..base },
            MessageBody::Refused { target, lost } => {
                Wire { tag: 9, flags: if lost { LOST } else { NOT_MASTER }, ..aimed(target) }
            }
            MessageBody::Mark { blocks } => Wire { tag: 10, flags: bits([(blocks, BLOCKS)]), ..base },
            MessageBody::Held { mode, owed, behind } => {
                Wire { tag: 11, mode: mode as u8, flags: bits([(owed, OWED), (behind, BEHIND)]), ..base }
            }
            MessageBody::Place { partition, opened, orphaned } => {
                Wire { tag: 12, slot: u32::from(partition.0), generation: opened.0, id: orphaned.0, ..base }
            }
            MessageBody::Doubt { opened } => Wire { tag: 13, generation: opened.0, ..base },
            MessageBody::Lost { partition, last } => {
                Wire { tag: 14, slot: u32::from(partition.0), version: last.0, ..base }
            }
            MessageBody::Reported { witness } => {
                let (flags, epoch) = match witness {
                    Witness::None => (0, Epoch(0)),
                    Witness::Recorded(epoch) => (BEHIND, epoch),
                    Witness::Present => (HELD, Epoch(0)),
                };
                Wire { tag: 15, flags, generation: epoch.0, ..base }
            }
            MessageBody::Owe => Wire { tag: 16, ..base },
            MessageBody::Published => Wire { tag: 17, ..base },
            MessageBody::Kept => Wire { tag: 18, ..base },
            MessageBody::Opened => Wire { tag: 19, ..base },
            MessageBody::More => Wire { tag: 20, ..base },
            MessageBody::Accept => Wire { tag: 21, ..base },
            MessageBody::Leaving => Wire { tag: 22, ..base },
            MessageBody::Noted => Wire { tag: 23, ..base },
            MessageBody::Ensure { version } => Wire { tag: 24, version, ..base },
            MessageBody::Save { requester, version } => Wire { tag: 25, node: requester.0, version, ..base },
            MessageBody::Saved { version } => Wire { tag: 26, version, ..base },
            MessageBody::HandedOver { version } => Wire { tag: 27, version, ..base },
            MessageBody::Recovered => Wire { tag: 28, ..base },
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The bytes are not the encoding of any message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("cache message", bytes, |reader| {
            let wire: Wire = reader.take()?;
            let message = Self { epoch: Epoch(wire.epoch), block: BlockId(wire.block), body: body(&wire)? };
            // Unused fields must be as the encoder leaves them.
            require(message.wire() == wire, "unused field")?;
            Ok(message)
        })
    }
}

#[inline]
fn body(wire: &Wire) -> Result<MessageBody, Fault> {
    let (seq, owed) = (wire.seq, wire.flags & OWED != 0);
    let ask = || Ask::from_raw(wire.mode);
    let target = Target { slot: Slot(wire.slot), generation: wire.generation, id: wire.id };
    Ok(match wire.tag {
        1 => MessageBody::Request { ask: ask()?, have: Mode::from_raw(wire.node)?, target },
        2 => {
            let requester = NodeId::from_raw(wire.node)?;
            MessageBody::Forward { ask: ask()?, requester, target, seq, owed }
        }
        3 => MessageBody::Invalidate { seq },
        4 => MessageBody::Invalidated { seq, owed },
        5 => {
            let source = match wire.flags >> SOURCE_SHIFT {
                0 => Source::Data,
                1 => Source::Keep,
                2 => Source::Disk { version: wire.version },
                _ => return Err(Fault::Field("source")),
            };
            let behind = wire.flags & BEHIND != 0;
            MessageBody::Grant { ask: ask()?, target, seq, source, owed, behind }
        }
        6 => MessageBody::Done { seq, held: wire.flags & HELD != 0 },
        7 => MessageBody::Evict { mode: Mode::from_raw(wire.mode)?, version: wire.version },
        8 => MessageBody::Evicted,
        9 => MessageBody::Refused { target, lost: wire.flags == LOST },
        10 => MessageBody::Mark { blocks: wire.flags & BLOCKS != 0 },
        11 => MessageBody::Held { mode: Mode::from_raw(wire.mode)?, owed, behind: wire.flags & BEHIND != 0 },
        12 => MessageBody::Place {
            partition: partition(wire.slot)?,
            opened: Epoch(wire.generation),
            orphaned: Epoch(wire.id),
        },
        13 => MessageBody::Doubt { opened: Epoch(wire.generation) },
        14 => MessageBody::Lost { partition: partition(wire.slot)?, last: BlockId(wire.version) },
        15 => {
            let witness = match wire.flags {
                HELD => Witness::Present,
                BEHIND => Witness::Recorded(Epoch(wire.generation)),
                _ => Witness::None,
            };
            MessageBody::Reported { witness }
        }
        16 => MessageBody::Owe,
        17 => MessageBody::Published,
        18 => MessageBody::Kept,
        19 => MessageBody::Opened,
        20 => MessageBody::More,
        21 => MessageBody::Accept,
        22 => MessageBody::Leaving,
        23 => MessageBody::Noted,
        24 => MessageBody::Ensure { version: wire.version },
        25 => MessageBody::Save { requester: NodeId::from_raw(wire.node)?, version: wire.version },
        26 => MessageBody::Saved { version: wire.version },
        27 => MessageBody::HandedOver { version: wire.version },
        28 => MessageBody::Recovered,
        _ => return Err(Fault::Field("tag")),
    })
}

fn partition(number: u32) -> Result<Partition, Fault> {
    require(number < u32::from(Partition::COUNT), "partition")?;
    Ok(Partition(number as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_shape() -> Vec<Message> {
        let target = Target { slot: Slot(7), generation: 9, id: 0x0102_0304 };
        let mut bodies = vec![
            MessageBody::Evicted,
            MessageBody::Invalidate { seq: 3 },
            MessageBody::Refused { target, lost: false },
            MessageBody::Refused { target, lost: true },
            MessageBody::Place { partition: Partition(4095), opened: Epoch(3), orphaned: Epoch(u32::MAX) },
            MessageBody::Doubt { opened: Epoch(2) },
            MessageBody::Lost { partition: Partition(1), last: BlockId(u64::MAX) },
            MessageBody::Owe,
            MessageBody::Published,
            MessageBody::Kept,
            MessageBody::Opened,
            MessageBody::More,
            MessageBody::Accept,
            MessageBody::Leaving,
            MessageBody::Noted,
            MessageBody::Ensure { version: 7 },
            MessageBody::Save { requester: NodeId(3), version: u64::MAX },
            MessageBody::Saved { version: 8 },
            MessageBody::HandedOver { version: 9 },
            MessageBody::Recovered,
        ];
        for on in [false, true] {
            bodies.push(MessageBody::Invalidated { seq: 4, owed: on });
            bodies.push(MessageBody::Done { seq: u32::MAX, held: on });
            bodies.push(MessageBody::Mark { blocks: on });
            let recorded = Witness::Recorded(Epoch(u32::from(on)));
            bodies.push(MessageBody::Reported { witness: if on { Witness::Present } else { Witness::None } });
            bodies.push(MessageBody::Reported { witness: recorded });
            bodies.push(MessageBody::Held { mode: Mode::X, owed: on, behind: !on });
            for ask in [Ask::S, Ask::X, Ask::Cr] {
                bodies.push(MessageBody::Request { ask, have: if on { Mode::S } else { Mode::N }, target });
                bodies.push(MessageBody::Forward { ask, requester: NodeId(15), target, seq: 8, owed: on });
                for source in [Source::Data, Source::Keep, Source::Disk { version: u64::MAX }] {
                    bodies.push(MessageBody::Grant { ask, target, seq: 5, source, owed: on, behind: !on });
                }
            }
            bodies.push(MessageBody::Evict { mode: if on { Mode::X } else { Mode::S }, version: 77 });
        }
        bodies.into_iter().map(|body| Message { epoch: Epoch(3), block: BlockId(u64::MAX), body }).collect()
    }

    #[test]
    fn encoded_messages_are_decoded_and_no_other_bytes() {
        let encoded = every_shape().into_iter().map(|message| {
            assert_eq!(Message::decode(&message.encode()), Ok(message));
            message.encode().to_vec()
        });
        let read = |bytes: &[u8]| Some(Message::decode(bytes).ok()?.encode().to_vec());
        plexus_sim::one_reading(&encoded.collect::<Vec<_>>(), read);
    }

    #[test]
    fn the_bytes_stay_as_they_are() {
        let bytes = every_shape().iter().flat_map(Message::encode).collect::<Vec<_>>();
        assert_eq!((bytes.len(), plexus_base::crc32c(&bytes)), (2560, 587_550_663));
    }
}
