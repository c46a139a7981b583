//! What a program and its node say to each other, and nodes among themselves on behalf of programs: one head of 32
//! bytes, little endian, then the bytes that it announces.
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 1 | verb (see [`Verb`]) |
//! | 1 | 1 | use: datagrams 0, calls 1, endpoints 2, windows 3, locks 4 |
//! | 2 | 1 | status: 0, or what went wrong (see [`Status`]) |
//! | 3 | 1 | node at the other end |
//! | 4 | 4 | port of the program's own, or window, or lock |
//! | 8 | 4 | port at the other end |
//! | 12 | 4 | length of what follows, at most 65,536 |
//! | 16 | 8 | id: names an operation, a flow, a call |
//! | 24 | 8 | value: a sequence number, an offset, a count, a result |
//!
//! Between a program and its node the bytes travel in frames of a rail over shared memory, see [`Pipe`]; the version of
//! all this is agreed on in the [`hello`]. Between nodes they are messages of a link.
//!
//! The decoder takes hostile bytes; what a verb makes of a head is up to who receives it.

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

/// Bytes of a head.
pub const HEAD: usize = Layout::LEN;

/// Most bytes behind a head: a message, or a piece of a window.
pub const MAX_PAYLOAD: usize = limits::MAX_MESSAGE;

/// A program as its node knows it: never used twice in the incarnation of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId(pub u32);

wire::newtypes!(ClientId(u32));

wire::numbered! {
    /// What ports are used for; each use has ports of its own.
    pub enum Use as "use" {
        /// Reliable datagrams.
        Datagrams = 0,
        /// Calls.
        Calls = 1,
        /// Endpoints.
        Endpoints = 2,
        /// Windows; these have names instead of ports.
        Windows = 3,
        /// Locks; these too, and nodes say nothing about them to each other here.
        Locks = 4,
    }
}

wire::numbered! {
    /// How something ended.
    pub enum Status as "status" {
        /// Well.
        Ok = 0,
        /// The node is gone, or was never there.
        NodeGone = 1,
        /// Nobody has the port, or who had it has closed it or ended.
        PortClosed = 2,
        /// The port or name is taken.
        InUse = 3,
        /// A limit is reached.
        Busy = 4,
        /// There is not that much memory left in the node's arena.
        NoRoom = 5,
        /// There is no such window, or it is gone.
        NoWindow = 6,
        /// Outside the window, or not a whole word of it.
        OutOfRange = 7,
        /// A lock is not granted; the value is the reason ([`plexus_base::locks::Why`]).
        NotLocked = 8,
        /// The cluster grants no locks any more.
        Stopped = 9,
    }
}

wire::numbered! {
    /// What a message is about. P: from a program to its node; N: from a node to its program; M: between nodes.
    pub enum Verb as "verb" {
        /// P: takes `port` (0: any) for `use`. Answered by [`Verb::Done`].
        Bind = 1,
        /// P: gives `port` back.
        Unbind = 2,
        /// P, N: `id` has ended with `status`; `value` and the bytes are its result. M: the same for windows.
        Done = 3,
        /// P, M: a message in flow `id` with sequence number `value`.
        Send = 4,
        /// N: a message from `other` of `node`, in flow `id`.
        Deliver = 5,
        /// P: `value` messages of flow `id` from `node` were taken by the program that has `port`. M, N: of flow `id`.
        Taken = 6,
        /// M, N: flow `id` has ended, with all that was under way in it.
        Refused = 7,
        /// P, M: flow `id` will not be used any more.
        End = 8,
        /// P, M: calls `other` of `node`.
        Call = 9,
        /// N: somebody calls `port`; `id` names the call in the answer.
        Request = 10,
        /// P: the answer to call `id`. M: the same, or why there is none.
        Answer = 11,
        /// P, M: nobody waits for the answer to `id` any more. N: the same; it still is to be answered, with anything.
        /// P, for locks: what is asked for lock `port` is not wanted any more; it is answered all the same.
        Cancel = 12,
        /// P: makes a window of `value` bytes; the bytes are its name. It is `port` from now on.
        Create = 16,
        /// P, M: looks for a window of `node`; the bytes are its name. It is `port` from now on.
        Open = 17,
        /// P: asks for a copy of window `port` in this node's arena.
        Map = 18,
        /// P: gives window `port` back; its creator so ends it.
        Close = 19,
        /// P: asks for one [`Verb::Changed`] when window `port` changes.
        Watch = 20,
        /// N: window `port` has changed.
        Changed = 21,
        /// N, M: window `port` is gone.
        Gone = 22,
        /// P, M: writes the bytes at `value`.
        Put = 24,
        /// P, M: reads at `value`; the bytes are the length, eight of them.
        Get = 25,
        /// P, M: adds the eight bytes to the word at `value`.
        Add = 26,
        /// P, M: the first eight bytes are what the word at `value` must be, the others what it becomes.
        Swap = 27,
        /// M: the sender wants a copy of window `port` kept at `value` of its arena.
        Join = 28,
        /// M: the sender's copy is complete, or cannot be.
        Joined = 29,
        /// M: the sender keeps no copy any more.
        Leave = 30,
        /// M: nothing will be written to the receiver's copy any more.
        Left = 31,
        /// M: a piece of the receiver's copy was written.
        Copied = 32,
        /// M: change `id` has arrived in the sender's copy.
        Landed = 33,
        /// P: asks for a lock, `port` from now on; what follows says of what ([`lock`]). Answered by [`Verb::Done`].
        Lock = 40,
        /// P: asks for lock `port` in another mode. Answered by [`Verb::Done`].
        Convert = 41,
        /// P: gives lock `port` up; what follows is what is to be written into the value block. Answered by [`Verb::Done`] where `id` is not 0.
        Unlock = 42,
        /// N: others wait for lock `port`, the first of them for mode `value`. Once for each grant.
        Wanted = 43,
        /// N: no lock of the program protects anything any more.
        Lost = 44,
    }
}

wire::layout! {
    struct Layout: 32 {
        verb: Verb, usage: Use, status: Status, node: NodeId, port: u32, other: u32, len: u32, id: u64, value: u64
    }
}

/// The head of a message. What a verb does not use is zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "the table of the module says it")]
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
    /// A head with nothing but a verb and a use.
    #[must_use]
    pub fn new(verb: Verb, usage: Use) -> Self {
        Self { verb, usage, status: Status::Ok, node: NodeId(0), port: 0, other: 0, id: 0, value: 0 }
    }

    /// The end of `id`.
    #[must_use]
    pub fn done(usage: Use, id: u64, status: Status) -> Self {
        Self { id, status, ..Self::new(Verb::Done, usage) }
    }

    /// The bytes of the head, which announces `len` more.
    #[must_use]
    #[inline]
    pub fn encode(&self, len: usize) -> [u8; HEAD] {
        debug_assert!(len <= MAX_PAYLOAD, "{len} bytes behind a head");
        let Self { verb, usage, status, node, port, other, id, value } = *self;
        wire::encode(&Layout { verb, usage, status, node, port, other, len: len as u32, id, value })
    }

    /// The head and how many bytes follow.
    ///
    /// # Errors
    /// Nobody sends this; what is wrong with it.
    #[inline]
    pub fn decode(bytes: &[u8; HEAD]) -> Result<(Self, usize), DecodeError> {
        wire::decode("head of a program's message", bytes, |reader| {
            let Layout { verb, usage, status, node, port, other, len, id, value } = reader.take()?;
            require(len as usize <= MAX_PAYLOAD, "length of what follows")?;
            Ok((Self { verb, usage, status, node, port, other, id, value }, len as usize))
        })
    }
}

/// A number spread over all bits, the same on every node: which worker a name belongs to.
#[must_use]
pub fn hash(name: &[u8]) -> u32 {
    plexus_base::crc32c(name)
}

/// What one side may find where the other writes, as a fuzz target would have it: a greeting, an answer, a head, frames.
#[doc(hidden)]
pub fn any(bytes: &[u8]) {
    let _ = hello::verify_hello(bytes);
    let _ = hello::Welcome::decode(bytes);
    if let Some(first) = bytes.first_chunk()
        && let Ok((head, len)) = Head::decode(first)
    {
        assert_eq!(head.encode(len), *first, "a head is encoded to what it was decoded from");
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
                // Near what is right, so that both ends of the decoder are reached.
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
