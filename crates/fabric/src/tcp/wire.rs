//! What a TCP rail puts on the wire, and the pure decoder of it.
//!
//! Little endian; one stream for each lane:
//!
//! ```text
//! 0   u32  length of the frame in bytes, at most MAX_FRAME
//! 4   u8   version, 1
//! 5   u8   flags: 1 = a put follows; 3 = a put that no frame announces (then the frame has no bytes)
//! 6   u8   lane, as its index
//! 7   u8   0
//! 8   u32  sequence: 0 for the first frame of the stream, then one more for each
//! 12  u32  CRC-32C over bytes 0..12, the put fields if there are any, and the frame
//!          -- with flags 1 and 3:
//! 16  u64  offset in the window
//! 24  u32  length of the data in bytes
//! 28  u32  CRC-32C over the data
//! 32  u32  generation
//! 36  u16  window
//! 38  u16  0
//!          -- then the frame, then the data of the put
//! ```
//!
//! The frame stands before the data so that all that decides where the data go is verified before the first
//! of them is read. The decoder takes any bytes: it returns what is wrong with them, never panics, and never
//! believes a length that it has not checked. It knows no socket and no window.

use std::ops::Range;

use plexus_base::{crc32c, crc32c_append};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{Lane, MAX_FRAME, Put, WindowId};

const VERSION: u8 = 1;
const FLAG_PUT: u8 = 1;
const FLAG_WRITE: u8 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Base {
    len: U32,
    version: u8,
    flags: u8,
    lane: u8,
    zero: u8,
    sequence: U32,
    crc: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PutFields {
    offset: U64,
    len: U32,
    crc: U32,
    generation: U32,
    window: U16,
    zero: U16,
}

const BASE_LEN: usize = size_of::<Base>();
const PUT_LEN: usize = size_of::<PutFields>();
/// Bytes of `Base` that its own checksum covers.
const COVERED: usize = 12;

/// Longest header.
pub(super) const MAX_HEADER: usize = BASE_LEN + PUT_LEN;

const _: () = assert!(BASE_LEN == 16 && PUT_LEN == 24);

/// Where the data of a put go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Target {
    pub(super) window: WindowId,
    pub(super) offset: u64,
    pub(super) len: u32,
    pub(super) generation: u32,
    /// Of the data.
    pub(super) crc: u32,
    /// Whether a frame is delivered when they are in place.
    pub(super) announced: bool,
}

/// A put to send.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) put: Put<'a>,
    /// Whether a frame is delivered behind it; else that frame has no bytes.
    pub(super) announced: bool,
}

/// What stands at the front of some bytes.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Decoded {
    /// Not all of it is there; so many bytes are needed before more can be said.
    Needs(usize),
    /// A verified frame; with a target, its data follow the frame.
    Frame { frame: Range<usize>, target: Option<Target> },
}

/// A header, ready to send.
pub(super) struct Header {
    bytes: [u8; MAX_HEADER],
    len: usize,
}

impl Header {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// How long the header of a frame is.
pub(super) fn header_len(put: bool) -> usize {
    if put { MAX_HEADER } else { BASE_LEN }
}

/// The header for the frame `head` + `body`, which the caller has found to be no longer than [`MAX_FRAME`],
/// and `load`, whose data are no longer than a `u32` says.
pub(super) fn encode(lane: Lane, sequence: u32, head: &[u8], body: &[u8], load: Option<&Load<'_>>) -> Header {
    let mut base = Base {
        len: U32::new((head.len() + body.len()) as u32),
        version: VERSION,
        flags: load.map_or(0, |load| if load.announced { FLAG_PUT } else { FLAG_PUT | FLAG_WRITE }),
        lane: lane.index() as u8,
        zero: 0,
        sequence: U32::new(sequence),
        crc: U32::new(0),
    };
    let mut header = Header { bytes: [0; MAX_HEADER], len: header_len(load.is_some()) };
    let mut crc = crc32c(&base.as_bytes()[..COVERED]);
    if let Some(Load { put, .. }) = load {
        let fields = PutFields {
            offset: U64::new(put.offset),
            len: U32::new(put.data.len() as u32),
            crc: U32::new(crc32c(put.data)),
            generation: U32::new(put.generation),
            window: U16::new(put.window.0),
            zero: U16::new(0),
        };
        header.bytes[BASE_LEN..].copy_from_slice(fields.as_bytes());
        crc = crc32c_append(crc, fields.as_bytes());
    }
    base.crc = U32::new(crc32c_append(crc32c_append(crc, head), body));
    header.bytes[..BASE_LEN].copy_from_slice(base.as_bytes());
    header
}

/// Looks at the front of `bytes`, which arrived on the stream of `lane`, for the frame with number `sequence`.
///
/// # Errors
/// What is wrong: no peer of ours sent this.
pub(super) fn decode(bytes: &[u8], lane: Lane, sequence: u32) -> Result<Decoded, &'static str> {
    let Ok((base, rest)) = Base::ref_from_prefix(bytes) else { return Ok(Decoded::Needs(BASE_LEN)) };
    if base.version != VERSION {
        return Err("a header of another version or of no rail at all");
    }
    let len = base.len.get() as usize;
    let announced = match base.flags {
        0 | FLAG_PUT => true,
        flags if flags == FLAG_PUT | FLAG_WRITE && len == 0 => false,
        _ => return Err("a header that cannot be"),
    };
    if len > MAX_FRAME || base.zero != 0 {
        return Err("a header that cannot be");
    }
    if usize::from(base.lane) != lane.index() {
        return Err("a frame on the stream of the other lane");
    }
    if base.sequence.get() != sequence {
        return Err("a frame out of sequence");
    }
    let start = header_len(base.flags & FLAG_PUT != 0);
    let Some(frame) = bytes.get(start..start + len) else { return Ok(Decoded::Needs(start + len)) };
    let covered = crc32c_append(crc32c(&bytes[..COVERED]), &bytes[BASE_LEN..start]);
    if crc32c_append(covered, frame) != base.crc.get() {
        return Err("a frame whose checksum does not match");
    }
    let target = if start == BASE_LEN {
        None
    } else {
        let Ok((put, _)) = PutFields::ref_from_prefix(rest) else { return Err("a header that cannot be") };
        Some(Target {
            window: WindowId(put.window.get()),
            offset: put.offset.get(),
            len: put.len.get(),
            generation: put.generation.get(),
            crc: put.crc.get(),
            announced,
        })
    };
    Ok(Decoded::Frame { frame: start..start + len, target })
}

/// Runs the decoder over any bytes as a stream, as a fuzz target would; how many frames it found.
#[doc(hidden)]
#[must_use]
pub fn decode_any(mut bytes: &[u8]) -> usize {
    let mut frames = 0;
    while let Ok(Decoded::Frame { frame, target }) = decode(bytes, Lane::Prompt, frames as u32) {
        assert!(frame.end <= bytes.len() && frame.len() <= MAX_FRAME);
        let data = target.map_or(0, |target| target.len as usize);
        bytes = bytes.get(frame.end.saturating_add(data)..).unwrap_or_default();
        frames += 1;
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn next(&mut self) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = self.0;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        }

        fn below(&mut self, bound: usize) -> usize {
            (self.next() % bound as u64) as usize
        }
    }

    fn put(data: &[u8]) -> Load<'_> {
        Load { put: Put { window: WindowId(7), offset: 1 << 40, generation: 11, data }, announced: true }
    }

    fn stream(frames: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for sequence in 0..frames {
            let (head, body) = (vec![1; 16], vec![sequence as u8; sequence as usize * 7 % 300]);
            let put = (sequence % 3 == 0).then(|| put(&[9; 100]));
            bytes.extend_from_slice(encode(Lane::Prompt, sequence, &head, &body, put.as_ref()).bytes());
            bytes.extend_from_slice(&head);
            bytes.extend_from_slice(&body);
            bytes.extend_from_slice(put.map_or(&[], |load| load.put.data));
        }
        bytes
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let header = encode(Lane::Bulk, 5, b"head", b"body!", Some(&put(b"data")));
        let bytes = [header.bytes(), b"headbody!data"].concat();
        let Ok(Decoded::Frame { frame, target: Some(target) }) = decode(&bytes, Lane::Bulk, 5) else {
            panic!()
        };
        assert_eq!(&bytes[frame.clone()], b"headbody!");
        assert_eq!(&bytes[frame.end..], b"data");
        let Target { window, offset, len, generation, crc, announced } = target;
        assert_eq!((window, offset, len, generation, announced), (WindowId(7), 1 << 40, 4, 11, true));
        assert_eq!(crc, crc32c(b"data"));
        assert!(decode(&bytes, Lane::Prompt, 5).is_err() && decode(&bytes, Lane::Bulk, 6).is_err());
    }

    #[test]
    fn a_write_is_a_put_that_nothing_announces() {
        let load = Load { announced: false, ..put(b"data") };
        let header = encode(Lane::Bulk, 5, b"", b"", Some(&load));
        let Ok(Decoded::Frame { frame, target: Some(target) }) = decode(header.bytes(), Lane::Bulk, 5) else {
            panic!()
        };
        assert!(frame.is_empty() && target.len == 4 && !target.announced);
        let with_a_frame = encode(Lane::Bulk, 5, b"head", b"", Some(&load));
        let bytes = [with_a_frame.bytes(), b"head"].concat();
        assert_eq!(decode(&bytes, Lane::Bulk, 5), Err("a header that cannot be"));
    }

    #[test]
    fn a_part_of_a_frame_says_what_is_missing() {
        let header = encode(Lane::Prompt, 0, b"head", b"body", None);
        let bytes = [header.bytes(), b"headbody"].concat();
        for cut in 0..bytes.len() {
            let Ok(Decoded::Needs(needed)) = decode(&bytes[..cut], Lane::Prompt, 0) else { panic!("{cut}") };
            assert!(needed > cut && needed <= bytes.len());
        }
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        let header = encode(Lane::Prompt, 0, b"head", b"body", Some(&put(b"")));
        let bytes = [header.bytes(), b"headbody"].concat();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(decode(&flipped, Lane::Prompt, 0), Ok(Decoded::Frame { .. })), "bit {bit}");
        }
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let (mut random, good) = (Random(1), stream(40));
        assert_eq!(decode_any(&good), 40);
        for _ in 0..20_000 {
            let mut bytes = match random.below(3) {
                0 => (0..random.below(200)).map(|_| random.next() as u8).collect(),
                _ => good.clone(),
            };
            for _ in 0..random.below(4) {
                match random.below(3) {
                    0 => bytes.truncate(random.below(bytes.len() + 1)),
                    1 if !bytes.is_empty() => {
                        let at = random.below(bytes.len());
                        bytes[at] = random.next() as u8;
                    }
                    _ => {
                        let at = random.below(bytes.len() + 1);
                        bytes.insert(at, random.next() as u8);
                    }
                }
            }
            assert!(decode_any(&bytes) <= 40);
        }
    }
}
