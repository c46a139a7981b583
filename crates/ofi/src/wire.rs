//! The messages of a rail over libfabric, and their pure decoder.
//!
//! Little endian; one message for each frame:
//!
//! ```text
//! 0   u64  session: the number that the receiver gave in its offer
//! 8   u8   version, 1
//! 9   u8   kind: 0 frame, 1 frame behind a put, 2 frame with the data of a put, 3 credit, 4 end
//! 10  u8   lane, as its index
//! 11  u8   flags: 1 = a put without a frame, nothing is delivered; 2 = in a credit: answer with one;
//!          4 = with 1: more of the same put follows
//! 12  u32  sequence: how many frames were sent in this lane before
//! 16  u32  taken: how many frames of this lane the sender has taken off its receive buffers,
//!          modulo 2^32
//! 20  u32  length of the frame in bytes, at most MAX_FRAME; 0 in credit and end
//! 24  u32  CRC-32C over all before, the put fields if there are any, and the frame
//! 28  u32  0
//!          -- kinds 1 and 2:
//! 32  u64  offset in the window
//! 40  u32  length of the data in bytes
//! 44  u32  CRC-32C over the data
//! 48  u32  generation
//! 52  u16  window
//! 54  u16  0
//!          -- then the frame, then with kind 2 the data
//! ```
//!
//! Any host on the network may send to an endpoint. A message without the session of this rail is
//! from an unauthenticated peer or an earlier rail, and is ignored. An invalid message with the
//! session ends the rail. The decoder takes any bytes and uses no length that it has not checked.

use std::ops::Range;

use plexus_base::{
    crc32c, crc32c_append,
    wire::{self, Fixed, Reader, bits},
};
use plexus_fabric::{Lane, MAX_FRAME, Put, PutTarget};

const VERSION: u8 = 1;
const FLAG_SILENT: u8 = 1;
const FLAG_ASKS: u8 = 2;
const FLAG_MORE: u8 = 4;

wire::layout! {
    struct Base: 32 {
        session: u64, version: u8, kind: u8, lane: u8, flags: u8, sequence: u32, taken: u32, len: u32, crc: u32, zeros: u32
    }
}

pub(crate) const BASE_LEN: usize = Base::LEN;
/// The bytes of `Base` that its own checksum covers.
const COVERED: usize = 24;

/// The longest header.
pub(crate) const MAX_HEADER: usize = BASE_LEN + PutTarget::LEN;

/// The longest message.
pub(crate) const MAX_MESSAGE: usize = MAX_HEADER + MAX_FRAME;

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    Frame = 0,
    /// A frame behind a put whose data were written before.
    Behind = 1,
    /// A frame of a put whose data come with it.
    Inline = 2,
    Credit = 3,
    End = 4,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Frame, Self::Behind, Self::Inline, Self::Credit, Self::End];

    fn has_put(self) -> bool {
        matches!(self, Self::Behind | Self::Inline)
    }
}

/// A verified message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    /// True if there is no frame to deliver.
    pub(crate) silent: bool,
    /// True if more of the put follows.
    pub(crate) more: bool,
    /// True if the peer waits for the count of taken frames.
    pub(crate) asks: bool,
    pub(crate) sequence: u32,
    pub(crate) taken: u32,
    /// The range of the frame in the message.
    pub(crate) frame: Range<usize>,
    /// The target of the put, with [`Kind::Behind`] and [`Kind::Inline`]; data that come with the
    /// message stand behind the frame.
    pub(crate) target: Option<PutTarget>,
}

/// The result of decoding some bytes.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Decoded {
    /// The bytes are not from the peer.
    Unauthenticated,
    Message(Message),
}

/// The sender's fields in front of every message of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stamp {
    pub(crate) session: u64,
    pub(crate) lane: Lane,
    pub(crate) sequence: u32,
    pub(crate) taken: u32,
    pub(crate) silent: bool,
    pub(crate) more: bool,
    pub(crate) asks: bool,
}

/// The length of the header of a message.
pub(crate) fn header_len(kind: Kind) -> usize {
    if kind.has_put() { MAX_HEADER } else { BASE_LEN }
}

/// Encodes the header for the frame `head` + `body`, which the caller has checked against
/// [`MAX_FRAME`], and for a put whose data fit a `u32` length. [`header_len`] gives the number of
/// valid bytes.
pub(crate) fn encode(
    stamp: Stamp,
    kind: Kind,
    head: &[u8],
    body: &[u8],
    put: Option<&Put<'_>>,
) -> [u8; MAX_HEADER] {
    debug_assert_eq!(kind.has_put(), put.is_some());
    let Stamp { session, lane, sequence, taken, silent, more, asks } = stamp;
    let base: [u8; BASE_LEN] = wire::encode(&Base {
        session,
        version: VERSION,
        kind: kind as u8,
        lane: lane.index() as u8,
        flags: bits([(silent, FLAG_SILENT), (asks, FLAG_ASKS), (more, FLAG_MORE)]),
        sequence,
        taken,
        len: (head.len() + body.len()) as u32,
        crc: 0,
        zeros: 0,
    });
    let mut header = [0; MAX_HEADER];
    header[..BASE_LEN].copy_from_slice(&base);
    let mut crc = crc32c(&base[..COVERED]);
    if let Some(put) = put {
        let fields = PutTarget::of(put, crc32c(put.data)).encode();
        header[BASE_LEN..].copy_from_slice(&fields);
        crc = crc32c_append(crc, &fields);
    }
    crc = crc32c_append(crc32c_append(crc, head), body);
    header[COVERED..COVERED + 4].copy_from_slice(&crc.to_le_bytes());
    header
}

/// Decodes a whole message that arrived in `lane` of the rail with this session.
///
/// # Errors
/// The message has the session of this rail, but no correct peer sends it; the text is the reason.
pub(crate) fn decode(bytes: &[u8], session: u64, lane: Lane) -> Result<Decoded, &'static str> {
    let mut reader = Reader::new(bytes);
    let Ok(base) = reader.take::<Base>() else { return Ok(Decoded::Unauthenticated) };
    if base.session != session {
        return Ok(Decoded::Unauthenticated);
    }
    if base.version != VERSION {
        return Err("a message of another version");
    }
    let kind = *Kind::ALL.get(usize::from(base.kind)).ok_or("a message of an unknown kind")?;
    if base.lane as usize != lane.index()
        || base.flags > FLAG_SILENT + FLAG_ASKS + FLAG_MORE
        || base.zeros != 0
    {
        return Err("a message with a broken header");
    }
    let mut crc = crc32c(&bytes[..COVERED]);
    let mut target = None;
    if kind.has_put() {
        target = Some(reader.take::<PutTarget>().map_err(|_| "a put that is cut off")?);
        crc = crc32c_append(crc, &bytes[BASE_LEN..MAX_HEADER]);
    }
    let rest = reader.rest();
    let len = base.len as usize;
    let [silent, asks, more] = [FLAG_SILENT, FLAG_ASKS, FLAG_MORE].map(|flag| base.flags & flag != 0);
    if silent && (!kind.has_put() || len > 0) || asks && kind != Kind::Credit || more && !silent {
        return Err("a message with invalid flags");
    }
    if len > MAX_FRAME || len > rest.len() {
        return Err("a frame that is cut off or too long");
    }
    if crc32c_append(crc, &rest[..len]) != base.crc {
        return Err("the checksum of a frame does not match");
    }
    let behind = match (kind, &target) {
        (Kind::Inline, Some(target)) => target.len as usize,
        (Kind::Credit | Kind::End, _) if len > 0 => return Err("a frame in a message of another kind"),
        _ => 0,
    };
    if rest.len() - len != behind {
        return Err("a message with a wrong length");
    }
    let start = header_len(kind);
    Ok(Decoded::Message(Message {
        kind,
        silent,
        more,
        asks,
        sequence: base.sequence,
        taken: base.taken,
        frame: start..start + len,
        target,
    }))
}

/// Decodes any bytes as a message of session 0, for tests and fuzzing.
#[doc(hidden)]
pub fn decode_any(bytes: &[u8]) {
    for lane in Lane::ALL {
        let _ = decode(bytes, 0, lane);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plexus_fabric::WindowId;

    const SESSION: u64 = 0x0123_4567_89ab_cdef;

    fn stamp(lane: Lane) -> Stamp {
        Stamp {
            session: SESSION,
            lane,
            sequence: 7,
            taken: u32::MAX,
            silent: false,
            more: false,
            asks: false,
        }
    }

    fn message(kind: Kind, frame: &[u8], data: &[u8]) -> Vec<u8> {
        let put = Put { window: WindowId(3), offset: 1 << 40, generation: 5, data };
        let (head, body) = frame.split_at(frame.len() / 3);
        let put = kind.has_put().then_some(&put);
        let mut bytes = encode(stamp(Lane::Bulk), kind, head, body, put)[..header_len(kind)].to_vec();
        bytes.extend_from_slice(frame);
        if kind == Kind::Inline {
            bytes.extend_from_slice(data);
        }
        bytes
    }

    fn all() -> Vec<(Kind, Vec<u8>)> {
        let frame = |kind| if matches!(kind, Kind::Credit | Kind::End) { &[][..] } else { &[9; 100] };
        Kind::ALL.map(|kind| (kind, message(kind, frame(kind), &[4; 33]))).into()
    }

    #[test]
    fn encoded_messages_are_decoded() {
        for (kind, bytes) in all() {
            let Ok(Decoded::Message(decoded)) = decode(&bytes, SESSION, Lane::Bulk) else {
                panic!("{kind:?}");
            };
            assert_eq!((decoded.kind, decoded.sequence, decoded.taken), (kind, 7, u32::MAX));
            assert!(bytes[decoded.frame.clone()].iter().all(|byte| *byte == 9));
            assert_eq!(decoded.target.is_some(), kind.has_put());
            if let Some(target) = decoded.target {
                let crc = crc32c(&[4; 33]);
                let expected =
                    PutTarget { window: WindowId(3), offset: 1 << 40, len: 33, generation: 5, crc };
                assert_eq!(target, expected);
            }
        }
    }

    #[test]
    fn messages_of_other_sessions_are_unauthenticated() {
        for (_, bytes) in all() {
            assert_eq!(decode(&bytes, SESSION + 1, Lane::Bulk), Ok(Decoded::Unauthenticated));
            assert_eq!(decode(&bytes[..BASE_LEN - 1], SESSION, Lane::Bulk), Ok(Decoded::Unauthenticated));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_detected() {
        for (kind, bytes) in all() {
            assert!(decode(&bytes, SESSION, Lane::Prompt).is_err(), "another lane");
            for len in BASE_LEN..bytes.len() {
                assert!(decode(&bytes[..len], SESSION, Lane::Bulk).is_err(), "{kind:?} cut at {len}");
            }
            // Inline data have a checksum of their own, which the rail compares when they are in
            // place.
            let covered = bytes.len() - if kind == Kind::Inline { 33 } else { 0 };
            for bit in 0..covered * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                let expected = if bit < 64 { Ok(Decoded::Unauthenticated) } else { Err(()) };
                assert_eq!(
                    decode(&flipped, SESSION, Lane::Bulk).map_err(|_| ()),
                    expected,
                    "{kind:?} bit {bit}"
                );
            }
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(decode(&longer, SESSION, Lane::Bulk).is_err());
        }
    }

    #[test]
    fn random_bytes_with_a_valid_session_do_no_harm() {
        let mut random = 3u64;
        for round in 0..20_000usize {
            let mut bytes = SESSION.to_le_bytes().to_vec();
            bytes.extend([VERSION, round as u8 % 7, 1, 0]);
            bytes.extend((0..round % 150).map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 60) as u8
            }));
            assert!(!matches!(decode(&bytes, SESSION, Lane::Bulk), Ok(Decoded::Message(_))));
        }
    }
}
