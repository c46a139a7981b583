//! A datagram between the memberships of two nodes. What stands in front of the body is clear and sealed with it (AES-256-GCM):
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, `PLXM` |
//! | 4 | 1 | format, 1 |
//! | 5 | 1 | kind: 1 hello, 2 report, 3 piece of an ask, 4 piece of an answer, 5 what is missing of an answer |
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

use plexus_base::{Incarnation, MAX_NODES, NodeId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

/// Most bytes of a datagram: fits every Ethernet, tunnels included.
pub(in crate::runtime) const LIMIT: usize = 1400;

pub(super) const HEAD: usize = 64;
pub(super) const TAG: usize = 16;

/// Bytes of a datagram beside its body.
pub const SEAL: usize = HEAD + TAG;

/// Most bytes of a body.
pub(in crate::runtime) const MOST: usize = LIMIT - SEAL;

const MAGIC: [u8; 4] = *b"PLXM";
const FORMAT: u8 = 1;

/// One start of a node's membership.
pub(super) type Session = [u8; 16];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::runtime) enum Kind {
    Hello = 1,
    Report = 2,
    Ask = 3,
    Answer = 4,
    Missing = 5,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 4],
    format: u8,
    kind: u8,
    from: u8,
    to: u8,
    key: U64,
    session: Session,
    echo: Session,
    incarnation: U64,
    counter: U64,
}

const _: () = assert!(size_of::<Layout>() == HEAD);

/// What stands in front of the body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) from: NodeId,
    pub(super) to: NodeId,
    pub(super) key: u64,
    pub(super) session: Session,
    pub(super) echo: Session,
    pub(super) incarnation: Incarnation,
    pub(super) counter: u64,
}

impl Head {
    pub(super) fn encode(&self) -> [u8; HEAD] {
        zerocopy::transmute!(Layout {
            magic: MAGIC,
            format: FORMAT,
            kind: self.kind as u8,
            from: self.from.0,
            to: self.to.0,
            key: U64::new(self.key),
            session: self.session,
            echo: self.echo,
            incarnation: U64::new(self.incarnation.0),
            counter: U64::new(self.counter),
        })
    }

    /// The head, and the sealed body behind it, of what can be a datagram.
    pub(super) fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (layout, sealed) = Layout::ref_from_prefix(bytes).ok()?;
        let kind = match layout.kind {
            1 => Kind::Hello,
            2 => Kind::Report,
            3 => Kind::Ask,
            4 => Kind::Answer,
            5 => Kind::Missing,
            _ => return None,
        };
        let sound = layout.magic == MAGIC
            && layout.format == FORMAT
            && usize::from(layout.from) < MAX_NODES
            && layout.incarnation.get() > 0
            && (TAG..=TAG + MOST).contains(&sealed.len());
        let head = Self {
            kind,
            from: NodeId(layout.from),
            to: NodeId(layout.to),
            key: layout.key.get(),
            session: layout.session,
            echo: layout.echo,
            incarnation: Incarnation(layout.incarnation.get()),
            counter: layout.counter.get(),
        };
        sound.then_some((head, sealed))
    }
}

/// Reads a head from any bytes, as a fuzz target would; whether it is one.
pub(in crate::runtime) fn head_any(bytes: &[u8]) -> bool {
    Head::decode(bytes).is_some_and(|(head, sealed)| [&head.encode()[..], sealed].concat() == bytes)
}

#[cfg(test)]
mod tests {
    use plexus_sim::hostile;

    use super::*;

    #[test]
    fn what_was_laid_out_comes_back_and_nothing_else() {
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
        assert_eq!(Head::decode(&bytes), None);
        bytes.extend([8; TAG]);
        assert_eq!(Head::decode(&bytes), Some((head, &[8; TAG][..])));
        for (at, value) in [(0, b'x'), (4, 2), (5, 0), (5, 6), (6, 16), (48, 0)] {
            let mut bad = bytes.clone();
            bad[at] = value;
            assert_eq!(Head::decode(&bad), None, "byte {at}");
        }
        let mut long = bytes.clone();
        long.resize(LIMIT + 1, 0);
        assert_eq!(Head::decode(&long), None);
        hostile(&[bytes], |bytes| {
            if let Some((head, sealed)) = Head::decode(bytes) {
                assert_eq!((&head.encode()[..], sealed), bytes.split_at(HEAD));
            }
        });
    }
}
