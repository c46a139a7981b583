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
//!  3     1  flags: bit 0 owed, bit 1 behind, bit 2 held or (with a slot) takes redo, bit 3 blocks,
//!          bits 4-5 source, bits 6-7 why
//!  4     4  epoch
//!  8     8  block
//! 16     4  slot
//! 20     4  generation
//! 24     4  id
//! 28     4  seq
//! 32     8  version
//! ```
//!
//! Messages from tag 10 on belong to a change of view, and are about no block unless one is named.

use plexus_base::{
    BlockId, Epoch, NodeId,
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The sender's view.
    pub epoch: Epoch,
    /// The block that the message is about.
    pub block: BlockId,
    /// The content.
    pub body: MessageBody,
}

/// The frame that a waiting node wants its data in, and the name of its request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The requester's frame.
    pub slot: Slot,
    /// The generation that the requester announced for the frame.
    pub generation: u32,
    /// The requester's number for the request.
    pub id: u32,
    /// True if the requester has reserved room for records that travel with the block.
    pub takes_redo: bool,
}

/// The place of a granted block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
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
        /// The block's redo is incomplete or damaged; otherwise the node does not master the block.
        unrecovered: bool,
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
    /// Member to master: the report is complete.
    Reported,
    /// Master to holder: you owe the write-back of the block.
    Owe,
    /// Master to holder: these were all debts that you owe from now on.
    DebtsNamed,
    /// Answer to [`DebtsNamed`](Self::DebtsNamed): they are taken.
    DebtsTaken,
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
    /// Receiver to sender: a step of items was taken; send more.
    More,
    /// Member to member, behind all blocks that it gave away: I hold and grant nothing any more,
    /// and am about to leave.
    Leaving,
    /// Answer to a leaving member: noted, and all your blocks have arrived.
    Noted,
}

impl MessageBody {
    /// Returns whether it is an item of a report or of the debts that a master names; their number
    /// under way is limited.
    pub(super) fn is_item(&self) -> bool {
        matches!(
            self,
            Self::Held { .. } | Self::Reported | Self::Owe | Self::HandedOver { .. } | Self::DebtsNamed
        )
    }

    /// Returns whether it is about its message's block, and not about the view.
    pub(super) fn has_block(&self) -> bool {
        !matches!(
            self,
            Self::Mark { .. }
                | Self::Reported
                | Self::DebtsNamed
                | Self::DebtsTaken
                | Self::Opened
                | Self::Recovered
                | Self::More
                | Self::Leaving
                | Self::Noted
        )
    }

    /// Returns the class of the message, which decides its credits.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Request { .. } | Self::Evict { .. } | Self::Ensure { .. } => Kind::Request,
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
            | Self::DebtsTaken
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

const WHAT: &str = "cache message";

const OWED: u8 = 1;
const BEHIND: u8 = 2;
const HELD: u8 = 4;
const TAKES_REDO: u8 = 4;
const BLOCKS: u8 = 8;
const SOURCE_SHIFT: u8 = 4;
const UNRECOVERED: u8 = 0x40;
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
            flags: bits([(target.takes_redo, TAKES_REDO)]),
            ..base
        };
        match self.body {
            MessageBody::Request { ask, have, target } => {
                Wire { tag: 1, mode: ask as u8, node: have as u8, ..aimed(target) }
            }
            MessageBody::Forward { ask, requester, target, seq, owed } => {
                let aimed = aimed(target);
                let flags = aimed.flags | bits([(owed, OWED)]);
                Wire { tag: 2, mode: ask as u8, node: requester.0, flags, seq, ..aimed }
            }
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
                let aimed = aimed(target);
                let flags = aimed.flags | bits([(owed, OWED), (behind, BEHIND)]) | number << SOURCE_SHIFT;
                Wire { tag: 5, mode: ask as u8, flags, seq, version, ..aimed }
            }
            MessageBody::Done { seq, held } => Wire { tag: 6, flags: bits([(held, HELD)]), seq, ..base },
            MessageBody::Evict { mode, version } => Wire { tag: 7, mode: mode as u8, version, ..base },
            MessageBody::Evicted => Wire { tag: 8, ..base },
            MessageBody::Refused { target, unrecovered } => {
                let aimed = aimed(target);
                let why = if unrecovered { UNRECOVERED } else { NOT_MASTER };
                Wire { tag: 9, flags: aimed.flags | why, ..aimed }
            }
            MessageBody::Mark { blocks } => Wire { tag: 10, flags: bits([(blocks, BLOCKS)]), ..base },
            MessageBody::Held { mode, owed, behind } => {
                Wire { tag: 11, mode: mode as u8, flags: bits([(owed, OWED), (behind, BEHIND)]), ..base }
            }
            MessageBody::Reported => Wire { tag: 12, ..base },
            MessageBody::Owe => Wire { tag: 13, ..base },
            MessageBody::DebtsNamed => Wire { tag: 14, ..base },
            MessageBody::DebtsTaken => Wire { tag: 15, ..base },
            MessageBody::Opened => Wire { tag: 16, ..base },
            MessageBody::More => Wire { tag: 17, ..base },
            MessageBody::Leaving => Wire { tag: 18, ..base },
            MessageBody::Noted => Wire { tag: 19, ..base },
            MessageBody::Ensure { version } => Wire { tag: 20, version, ..base },
            MessageBody::Save { requester, version } => Wire { tag: 21, node: requester.0, version, ..base },
            MessageBody::Saved { version } => Wire { tag: 22, version, ..base },
            MessageBody::HandedOver { version } => Wire { tag: 23, version, ..base },
            MessageBody::Recovered => Wire { tag: 24, ..base },
        }
    }

    /// Decodes a message that came with a block, and the records behind it.
    ///
    /// # Errors
    /// The bytes do not begin with the encoding of a message, or it is none with which records
    /// come.
    pub fn decode_with_redo(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (head, records) = bytes.split_at(bytes.len().min(Self::LEN));
        let message = Self::decode(head)?;
        let brings = matches!(message.body, MessageBody::Grant { ask: Ask::X, source: Source::Data, .. });
        require(brings || records.is_empty(), "length").map_err(|fault| fault.of(WHAT))?;
        Ok((message, records))
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The bytes are not the encoding of any message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode(WHAT, bytes, |reader| {
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
    let ask = || Ask::from_raw(wire.mode).and_then(|ask| require(ask != Ask::New, "mode").map(|()| ask));
    let takes_redo = wire.flags & TAKES_REDO != 0;
    let target = Target { slot: Slot(wire.slot), generation: wire.generation, id: wire.id, takes_redo };
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
        9 => MessageBody::Refused { target, unrecovered: wire.flags & UNRECOVERED != 0 },
        10 => MessageBody::Mark { blocks: wire.flags & BLOCKS != 0 },
        11 => MessageBody::Held { mode: Mode::from_raw(wire.mode)?, owed, behind: wire.flags & BEHIND != 0 },
        12 => MessageBody::Reported,
        13 => MessageBody::Owe,
        14 => MessageBody::DebtsNamed,
        15 => MessageBody::DebtsTaken,
        16 => MessageBody::Opened,
        17 => MessageBody::More,
        18 => MessageBody::Leaving,
        19 => MessageBody::Noted,
        20 => MessageBody::Ensure { version: wire.version },
        21 => MessageBody::Save { requester: NodeId::from_raw(wire.node)?, version: wire.version },
        22 => MessageBody::Saved { version: wire.version },
        23 => MessageBody::HandedOver { version: wire.version },
        24 => MessageBody::Recovered,
        _ => return Err(Fault::Field("tag")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every_shape() -> Vec<Message> {
        let target = Target { slot: Slot(7), generation: 9, id: 0x0102_0304, takes_redo: true };
        let mut bodies = vec![
            MessageBody::Evicted,
            MessageBody::Invalidate { seq: 3 },
            MessageBody::Refused { target, unrecovered: false },
            MessageBody::Refused { target, unrecovered: true },
            MessageBody::Owe,
            MessageBody::Reported,
            MessageBody::DebtsNamed,
            MessageBody::DebtsTaken,
            MessageBody::Opened,
            MessageBody::More,
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
    fn redo_is_only_behind_a_grant_of_x_with_its_block() {
        for message in every_shape() {
            let bytes = [&message.encode()[..], b"records"].concat();
            let grants = matches!(message.body, MessageBody::Grant { ask: Ask::X, source: Source::Data, .. });
            let decoded = Message::decode_with_redo(&bytes);
            assert_eq!(decoded.ok(), grants.then_some((message, &b"records"[..])));
            assert_eq!(Message::decode_with_redo(&bytes[..Message::LEN]), Ok((message, &b""[..])));
            assert!(Message::decode_with_redo(&bytes[..Message::LEN - 1]).is_err());
        }
    }

    #[test]
    fn the_bytes_stay_as_they_are() {
        let bytes = every_shape().iter().flat_map(Message::encode).collect::<Vec<_>>();
        assert_eq!((bytes.len(), plexus_base::crc32c(&bytes)), (2280, 3_695_804_264));
    }
}
