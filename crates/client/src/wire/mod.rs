//! The protocol between a program and its node, and between nodes on behalf of programs. A message
//! is a head of 32 bytes, little endian, and the payload that the head announces.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | verb (see [`Verb`]) |
//! | 1 | 1 | use: datagrams 0, calls 1, endpoints 2, windows 3, locks 4 |
//! | 2 | 1 | status: 0, or what went wrong (see [`Status`]) |
//! | 3 | 1 | node at the other end |
//! | 4 | 4 | port of the program's own, or window, or lock |
//! | 8 | 4 | port at the other end |
//! | 12 | 4 | length of the payload, at most 65,536 |
//! | 16 | 8 | id: names an operation, a flow, a call |
//! | 24 | 8 | value: a sequence number, an offset, a count, a result |
//!
//! Between a program and its node the bytes travel in frames of a rail over shared memory, see
//! [`Pipe`]. The [`hello`] agrees on the version of all this. Between nodes they are messages of a
//! link.
//!
//! The decoder takes hostile bytes. The receiver checks what the fields mean for the verb.

mod flow;
pub mod hello;
pub mod limits;
pub mod lock;
mod pipe;
mod socket;

pub use flow::FlowWindow;
pub use pipe::{Letters, Pipe};
pub use socket::{ShortPath, bind_for_owner, receive_packet, send_packet};

use plexus_base::{
    NodeId,
    wire::{self, DecodeError, Fixed, require},
};

/// The length of a head in bytes.
pub const HEAD: usize = Layout::LEN;

/// The maximum length of a payload: a message, or a piece of a window.
pub const MAX_PAYLOAD: usize = limits::MAX_MESSAGE;

/// The number of a program at its node; one incarnation of a node never uses it twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u32);

wire::newtypes!(ClientId(u32));

wire::numbered! {
    /// The purpose of a port; each purpose has its own ports.
    pub enum Use as "use" {
        /// The port is for reliable datagrams.
        Datagrams = 0,
        /// The port is for calls.
        Calls = 1,
        /// The port is for endpoints.
        Endpoints = 2,
        /// The message is about windows, which have names instead of ports.
        Windows = 3,
        /// The message is about locks, which have names as well. Nodes do not use this among
        /// themselves.
        Locks = 4,
    }
}

wire::numbered! {
    /// The outcome of an operation.
    pub enum Status as "status" {
        /// The operation succeeded.
        Ok = 0,
        /// The node is gone, or never existed.
        NodeGone = 1,
        /// No program has the port, or its owner has closed it or ended.
        PortClosed = 2,
        /// The port or name is taken.
        InUse = 3,
        /// A limit is reached.
        Busy = 4,
        /// The node's arena has not enough memory left.
        NoRoom = 5,
        /// There is no such window, or it is gone.
        NoWindow = 6,
        /// The access is outside the window, or not aligned to a whole word.
        OutOfRange = 7,
        /// A lock is not granted; the value is the reason ([`plexus_base::locks::LockRefusal`]).
        NotLocked = 8,
        /// The cluster has stopped and grants no locks.
        Stopped = 9,
    }
}

wire::numbered! {
    /// The kind of a message. P: from a program to its node; N: from a node to its program; M:
    /// between nodes.
    pub enum Verb as "verb" {
        /// P: takes `port` (0: any) for `use`. Answered by [`Verb::Done`].
        Bind = 1,
        /// P: gives `port` back.
        Unbind = 2,
        /// P, N: `id` has ended with `status`; `value` and the payload are its result. M: the same
        /// for windows.
        Done = 3,
        /// P, M: a message in flow `id` with sequence number `value`.
        Send = 4,
        /// N: a message from `other` of `node`, in flow `id`.
        Deliver = 5,
        /// P: the program with `port` took `value` messages of flow `id` from `node`. M, N: `value`
        /// messages of flow `id` were taken.
        Taken = 6,
        /// M, N: flow `id` has ended, with all messages on their way in it.
        Refused = 7,
        /// P, M: the sender will not use flow `id` again.
        End = 8,
        /// P, M: calls `other` of `node`.
        Call = 9,
        /// N: a call of `port`; `id` names the call in the answer.
        Request = 10,
        /// P: the answer to call `id`. M: the same, or the reason why there is none.
        Answer = 11,
        /// P, M: the caller of `id` has stopped waiting. N: the same; the call must still be
        /// answered, with any answer. P, for locks: cancels the request for lock `port`, which is
        /// still answered.
        Cancel = 12,
        /// P: creates a window of `value` bytes; the payload is its name. Its number is `port` from
        /// now on.
        Create = 16,
        /// P, M: opens a window of `node`; the payload is its name. Its number is `port` from now
        /// on.
        Open = 17,
        /// P: requests a copy of window `port` in this node's arena.
        Map = 18,
        /// P: gives window `port` back. From its creator, this ends the window.
        Close = 19,
        /// P: requests one [`Verb::Changed`] when window `port` changes.
        Watch = 20,
        /// N: window `port` has changed.
        Changed = 21,
        /// N, M: window `port` is gone.
        Gone = 22,
        /// P, M: writes the payload at `value`.
        Put = 24,
        /// P, M: reads at `value`; the payload is the length, in eight bytes.
        Get = 25,
        /// P, M: adds the eight bytes to the word at `value`.
        Add = 26,
        /// P, M: replaces the word at `value` if it equals the first eight bytes; the other eight
        /// are its new value.
        Swap = 27,
        /// M: the sender wants a copy of window `port` kept at `value` of its arena.
        Join = 28,
        /// M: the sender's copy is complete, or has failed.
        Joined = 29,
        /// M: the sender no longer keeps a copy.
        Leave = 30,
        /// M: the sender will not write to the receiver's copy again.
        Left = 31,
        /// M: a piece of the receiver's copy was written.
        Copied = 32,
        /// M: change `id` has arrived in the sender's copy.
        Landed = 33,
        /// P: requests a lock, which is `port` from now on; the payload is a [`lock`] request.
        /// Answered by [`Verb::Done`].
        Lock = 40,
        /// P: requests another mode for lock `port`. Answered by [`Verb::Done`].
        Convert = 41,
        /// P: releases lock `port`; the payload is written into the value block. Answered by
        /// [`Verb::Done`] if `id` is not 0, and then when the master of the lock has the value.
        Unlock = 42,
        /// N: other requests wait for lock `port`, the first of them for mode `value`. Sent once
        /// for each grant.
        Wanted = 43,
        /// N: the locks of the program protect nothing from now on.
        Lost = 44,
    }
}

wire::layout! {
    struct Layout: 32 {
        verb: Verb, usage: Use, status: Status, node: NodeId, port: u32, other: u32, len: u32, id: u64, value: u64
    }
}

/// The head of a message. Fields that a verb does not use are zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the table of the module describes the fields")]
pub struct Head {
    pub verb: Verb,
    pub usage: Use,
    pub status: Status,
    pub node: NodeId,
    pub port: u32,
    pub other: u32,
    pub id: u64,
    pub value: u64,
}

impl Head {
    /// Returns a head with only a verb and a use.
    #[must_use]
    pub fn new(verb: Verb, usage: Use) -> Self {
        Self { verb, usage, status: Status::Ok, node: NodeId(0), port: 0, other: 0, id: 0, value: 0 }
    }

    /// Returns the head that ends operation `id`.
    #[must_use]
    pub fn done(usage: Use, id: u64, status: Status) -> Self {
        Self { id, status, ..Self::new(Verb::Done, usage) }
    }

    /// Encodes the head, which announces `len` bytes of payload.
    #[must_use]
    #[inline]
    pub fn encode(&self, len: usize) -> [u8; HEAD] {
        debug_assert!(len <= MAX_PAYLOAD, "{len} bytes behind a head");
        let Self { verb, usage, status, node, port, other, id, value } = *self;
        wire::encode(&Layout { verb, usage, status, node, port, other, len: len as u32, id, value })
    }

    /// Decodes a head. Returns it and the length of its payload.
    ///
    /// # Errors
    /// The head is malformed.
    #[inline]
    pub fn decode(bytes: &[u8; HEAD]) -> Result<(Self, usize), DecodeError> {
        wire::decode("head of a program's message", bytes, |reader| {
            let Layout { verb, usage, status, node, port, other, len, id, value } = reader.take()?;
            require(len as usize <= MAX_PAYLOAD, "length of the payload")?;
            Ok((Self { verb, usage, status, node, port, other, id, value }, len as usize))
        })
    }
}

/// Spreads a number over all bits, the same way on every node. It chooses the worker of a name.
#[must_use]
pub fn hash(name: &[u8]) -> u32 {
    plexus_base::crc32c(name)
}

/// Decodes arbitrary bytes as a hello, an answer, a head and frames. It is the body of a fuzz
/// target.
#[doc(hidden)]
pub fn any(bytes: &[u8]) {
    let _ = hello::verify_hello(bytes);
    let _ = hello::Welcome::decode(bytes);
    if let Some(first) = bytes.first_chunk()
        && let Ok((head, len)) = Head::decode(first)
    {
        assert_eq!(head.encode(len), *first, "a head encodes to the bytes that it was decoded from");
    }
    lock::any(bytes);
    pipe::any(bytes);
}

#[cfg(test)]
mod tests {
    use plexus_sim::Random;

    use super::*;

    #[test]
    fn a_head_is_decoded_to_what_was_encoded() {
        let head = Head {
            status: Status::Busy,
            node: NodeId(3),
            port: 0x0102_0304,
            other: 5,
            id: u64::MAX - 1,
            value: 1 << 40,
            ..Head::new(Verb::Deliver, Use::Endpoints)
        };
        let bytes = head.encode(77);
        assert_eq!(bytes[..8], [5, 2, 4, 3, 4, 3, 2, 1], "the layout is that of the table");
        assert_eq!(Head::decode(&bytes), Ok((head, 77)));
    }

    #[test]
    fn any_bytes_are_a_head_that_encodes_to_them_or_an_error() {
        let mut random = Random::new(1);
        let mut good = 0;
        for round in 0..200_000_u32 {
            let mut bytes = [0; HEAD].map(|_: u8| random.bits() as u8);
            if round % 2 == 0 {
                // Nearly valid bytes reach both ends of the decoder.
                (bytes[0], bytes[1], bytes[2], bytes[3]) =
                    (bytes[0] % 48, bytes[1] % 6, bytes[2] % 12, bytes[3] % 20);
                (bytes[14], bytes[15]) = (0, 0);
            }
            any(&bytes);
            good += u32::from(Head::decode(&bytes).is_ok());
        }
        assert!(good > 1000, "{good}");
    }
}
