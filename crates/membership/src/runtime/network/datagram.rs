//! A datagram between the memberships of two nodes. The head is clear text and authenticated with
//! the sealed body (AES-256-GCM):
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, `PLXM` |
//! | 4 | 1 | format, 3 |
//! | 5 | 1 | kind: 1 hello, 2 report, 3 piece of a turn request, 4 piece of an answer, 5 pieces missing of an answer |
//! | 6 | 1 | the node that sends it |
//! | 7 | 1 | the node that it is for |
//! | 8 | 8 | name of the cluster's key that it is sealed under |
//! | 16 | 16 | session of the sender: random, chosen when it started |
//! | 32 | 16 | session of the receiver that the sender has learned of; zeros: none |
//! | 48 | 8 | incarnation of the sender |
//! | 56 | 8 | counter: one more in each datagram of the session to this node |
//! | 64 | | the body, sealed: nothing in a hello, a report, or a piece; then the tag (16) |
//!
//! The nonce of a datagram is the receiver (1), zeros (3) and the counter (8).

use plexus_base::{
    Incarnation, NodeId,
    wire::{self, DecodeError, require, require_magic, require_version},
};

/// The most bytes of a datagram. With the heads of IP and UDP it fits the least length that IPv6
/// demands of each path, 1280 bytes, so tunnels and private networks pass it, too. Nothing else
/// notices a path that drops longer packets without a word.
pub(in crate::runtime) const LIMIT: usize = 1200;

// The heads of IPv6 and UDP.
const _: () = assert!(LIMIT + 40 + 8 <= 1280);

pub(super) const HEAD: usize = 64;
pub(super) const TAG: usize = 16;

/// The bytes of a datagram besides its body.
pub const SEAL: usize = HEAD + TAG;

/// The most bytes of a body.
pub(in crate::runtime) const MOST: usize = LIMIT - SEAL;

const MAGIC: [u8; 4] = *b"PLXM";
const FORMAT: u8 = 3;

/// The random identifier of one start of a node's membership.
pub(super) type SessionId = [u8; 16];

wire::numbered! {
    pub(in crate::runtime) enum Kind as "kind" {
        Hello = 1,
        Report = 2,
        TurnRequest = 3,
        Answer = 4,
        Missing = 5,
    }
}

/// The head of a datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) key: u64,
    pub(super) session: SessionId,
    pub(super) echo: SessionId,
    pub(super) incarnation: Incarnation,
    pub(super) counter: u64,
}

wire::layout! {
    impl Head: 59 {
        kind: Kind, from: NodeId, to: NodeId, key: u64, session: SessionId, echo: SessionId, incarnation: Incarnation, counter: u64
    }
    struct Front: 64 { magic: [u8; 4], format: u8, head: Head }
}

impl Head {
    pub(super) fn encode(&self) -> [u8; HEAD] {
        wire::encode(&Front { magic: MAGIC, format: FORMAT, head: *self })
    }

    /// Decodes a datagram into its head and sealed body.
    pub(super) fn decode(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        wire::decode("datagram of a membership", bytes, |reader| {
            let Front { magic, format, head } = reader.take()?;
            require_magic(magic, MAGIC)?;
            require_version(format, FORMAT)?;
            require(head.incarnation.0 > 0, "incarnation")?;
            let sealed = reader.rest();
            require((TAG..=TAG + MOST).contains(&sealed.len()), "length")?;
            Ok((head, sealed))
        })
    }
}

/// Returns true if hostile bytes decode as a head, for fuzz tests.
pub(in crate::runtime) fn head_any(bytes: &[u8]) -> bool {
    Head::decode(bytes).is_ok_and(|(head, sealed)| [&head.encode()[..], sealed].concat() == bytes)
}

#[cfg(test)]
mod tests {
    use plexus_sim::hostile;

    use super::*;

    #[test]
    fn an_encoded_head_is_decoded_and_other_bytes_are_refused() {
        let head = Head {
            kind: Kind::Answer,
            from: NodeId(3),
            to: NodeId(1),
            key: 7,
            session: [1; 16],
            echo: [2; 16],
            incarnation: Incarnation(9),
            counter: 5,
        };
        let mut bytes = head.encode().to_vec();
        assert!(Head::decode(&bytes).is_err());
        bytes.extend([8; TAG]);
        assert_eq!(Head::decode(&bytes), Ok((head, &[8; TAG][..])));
        for (at, value) in [(0, b'x'), (4, 1), (5, 0), (5, 6), (6, 16), (48, 0)] {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert!(Head::decode(&bad).is_err(), "byte {at}");
        }
        let mut long = bytes.clone();
        long.resize(LIMIT + 1, 0);
        assert!(Head::decode(&long).is_err());
        hostile(&[bytes], |bytes| {
            if let Ok((head, sealed)) = Head::decode(bytes) {
                assert_eq!((&head.encode()[..], sealed), bytes.split_at(HEAD));
            }
        });
    }
}
