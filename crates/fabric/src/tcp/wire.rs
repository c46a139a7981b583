//! The wire format of a TCP rail, and its pure decoder.
//!
//! Little endian; one stream for each lane:
//!
//! ```text
//! 0   u32  length of the frame in bytes, at most MAX_FRAME
//! 4   u8   version, 1
//! 5   u8   flags: 1 = a put follows; 3 = a put that no frame announces (then the frame has no bytes);
//!          4 = sealed, with any of these
//! 6   u8   lane, as its index
//! 7   u8   0
//! 8   u32  sequence: 0 for the first frame of the stream, then one more for each
//! 12  u32  CRC-32C over bytes 0..12, the put fields if there are any, and the frame; sealed: 0
//!          -- with flags 1 and 3:
//! 16  u64  offset in the window
//! 24  u32  length of the data in bytes
//! 28  u32  CRC-32C over the data; sealed: 0
//! 32  u32  generation
//! 36  u16  window
//! 38  u16  0
//!          -- then the frame; sealed: a tag of 16 bytes
//!          -- then the data of the put; sealed: in pieces of 64 KiB, the last one shorter, each with a
//!             tag behind it
//! ```
//!
//! The frame stands before the data, so that the fields that decide where the data go are verified
//! before the first data byte is read. The decoder takes any bytes: it returns an error for invalid
//! ones, never panics, and uses no length that it has not checked. It knows no socket and no
//! window.
//!
//! On a sealed stream the first 16 bytes are in clear and covered by the tag. Everything else is
//! sealed (`seal.rs`): the put fields and the frame as one record, each piece of data as one. Both
//! ends agree on sealing before the stream begins; a frame with the other setting is refused.

use std::ops::Range;

use plexus_base::{
    crc32c, crc32c_append,
    wire::{self, Fixed, Reader},
};

use super::seal::{KEY_LEN, Opener, Seal, Sealer, TAG_LEN};
use crate::{
    Lane, MAX_FRAME, Put,
    put_fields::{PUT_LEN, PutTarget},
};

const VERSION: u8 = 1;
const FLAG_PUT: u8 = 1;
const FLAG_WRITE: u8 = 2;
const FLAG_SEALED: u8 = 4;

/// The data under one tag: the sender seals the next piece while this one is in flight.
pub(super) const PIECE: usize = 64 << 10;

wire::layout! {
    struct Base: 16 { len: u32, version: u8, flags: u8, lane: u8, zero: u8, sequence: u32, crc: u32 }
}

const BASE_LEN: usize = Base::LEN;
/// The bytes of `Base` that its own checksum covers.
const COVERED: usize = 12;

const MAX_HEADER: usize = BASE_LEN + PUT_LEN;

/// The maximum number of bytes in front of the data of a put, or of the next frame.
pub(super) const MAX_RECORD: usize = MAX_HEADER + MAX_FRAME + TAG_LEN;

/// A put to send.
#[derive(Clone, Copy)]
pub(super) struct PutToSend<'a> {
    pub(super) put: Put<'a>,
    /// True if a frame is delivered behind the put; else that frame has no bytes.
    pub(super) announced: bool,
}

/// The result of decoding the front of some bytes.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Decoded {
    /// The record is incomplete; so many bytes are needed to go on.
    Needs(usize),
    /// A verified frame, and the offset at which the following bytes begin. With a target, the
    /// put's data follow; when all of them are in place the frame is delivered if it is
    /// `announced`.
    Frame { frame: Range<usize>, end: usize, target: Option<PutTarget>, announced: bool },
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

/// The bytes that a frame of `len` with such a put takes on the wire.
pub(super) fn total_len(len: usize, load: Option<&PutToSend<'_>>, sealed: bool) -> usize {
    let data = load.map_or(0, |load| load.put.data.len());
    let tags = if sealed { 1 + data.div_ceil(PIECE) } else { 0 };
    header_len(load.is_some()) + len + data + tags * TAG_LEN
}

fn header_len(put: bool) -> usize {
    if put { MAX_HEADER } else { BASE_LEN }
}

/// The base of every frame, without its checksum.
fn base(lane: Lane, sequence: u32, len: usize, load: Option<&PutToSend<'_>>, sealed: bool) -> Base {
    let put = load.map_or(0, |load| if load.announced { FLAG_PUT } else { FLAG_PUT | FLAG_WRITE });
    Base {
        len: len as u32,
        version: VERSION,
        flags: put | if sealed { FLAG_SEALED } else { 0 },
        lane: lane.index() as u8,
        zero: 0,
        sequence,
        crc: 0,
    }
}

/// Encodes the header for the frame `head` + `body`, which the caller has checked against
/// [`MAX_FRAME`], and for `load`, whose data fit a `u32` length.
pub(super) fn encode(
    lane: Lane,
    sequence: u32,
    head: &[u8],
    body: &[u8],
    load: Option<&PutToSend<'_>>,
) -> Header {
    let base: [u8; BASE_LEN] = wire::encode(&base(lane, sequence, head.len() + body.len(), load, false));
    let mut header = Header { bytes: [0; MAX_HEADER], len: header_len(load.is_some()) };
    let mut crc = crc32c(&base[..COVERED]);
    if let Some(PutToSend { put, .. }) = load {
        let fields = PutTarget::of(put, crc32c(put.data)).encode();
        header.bytes[BASE_LEN..].copy_from_slice(&fields);
        crc = crc32c_append(crc, &fields);
    }
    crc = crc32c_append(crc32c_append(crc, head), body);
    header.bytes[..COVERED].copy_from_slice(&base[..COVERED]);
    header.bytes[COVERED..BASE_LEN].copy_from_slice(&crc.to_le_bytes());
    header
}

/// As [`encode`], but sealed and with the frame itself, appended to `queue`. The data of the put
/// follow by [`seal_piece`].
pub(super) fn seal(
    sealer: &mut Sealer,
    lane: Lane,
    sequence: u32,
    head: &[u8],
    body: &[u8],
    load: Option<&PutToSend<'_>>,
    queue: &mut Vec<u8>,
) {
    let base: [u8; BASE_LEN] = wire::encode(&base(lane, sequence, head.len() + body.len(), load, true));
    queue.extend_from_slice(&base);
    let start = queue.len();
    if let Some(PutToSend { put, .. }) = load {
        queue.extend_from_slice(&PutTarget::of(put, 0).encode());
    }
    queue.extend_from_slice(head);
    queue.extend_from_slice(body);
    let tag = sealer.seal(&base, &mut queue[start..]);
    queue.extend_from_slice(&tag);
}

/// Seals a piece of the data of a put, no longer than [`PIECE`], and appends it to `queue`.
pub(super) fn seal_piece(sealer: &mut Sealer, piece: &[u8], queue: &mut Vec<u8>) {
    let start = queue.len();
    queue.extend_from_slice(piece);
    let tag = sealer.seal(&[], &mut queue[start..]);
    queue.extend_from_slice(&tag);
}

/// Decodes the front of `bytes`, which arrived on the stream of `lane`, as the frame with number
/// `sequence`. With an opener the stream is sealed; a complete frame is decrypted in place, so it
/// must be decoded only once.
///
/// # Errors
/// The reason why no correct peer sent these bytes.
pub(super) fn decode(
    bytes: &mut [u8],
    lane: Lane,
    sequence: u32,
    opener: Option<&mut Opener>,
) -> Result<Decoded, &'static str> {
    let Ok(base) = Reader::new(bytes).take::<Base>() else { return Ok(Decoded::Needs(BASE_LEN)) };
    if base.version != VERSION {
        return Err("a header of another version or protocol");
    }
    match (base.flags & FLAG_SEALED != 0, opener.is_some()) {
        (true, false) => return Err("a sealed frame on a rail in clear"),
        (false, true) => return Err("a frame in clear on a sealed rail"),
        _ => {}
    }
    let len = base.len as usize;
    let (put, announced) = match base.flags & !FLAG_SEALED {
        0 => (false, true),
        FLAG_PUT => (true, true),
        flags if flags == FLAG_PUT | FLAG_WRITE && len == 0 => (true, false),
        _ => return Err("an invalid header"),
    };
    if len > MAX_FRAME || base.zero != 0 {
        return Err("an invalid header");
    }
    if usize::from(base.lane) != lane.index() {
        return Err("a frame on the stream of the other lane");
    }
    if base.sequence != sequence {
        return Err("a frame out of sequence");
    }
    let start = header_len(put);
    let end = start + len + if opener.is_some() { TAG_LEN } else { 0 };
    let Some(record) = bytes.get_mut(..end) else { return Ok(Decoded::Needs(end)) };
    match opener {
        None => verify(record, base.crc)?,
        Some(opener) => open(record, opener)?,
    }
    let target = if put {
        let target = Reader::new(&record[BASE_LEN..start]).take();
        Some(target.map_err(|_| "an invalid header")?)
    } else {
        None
    };
    Ok(Decoded::Frame { frame: start..start + len, end, target, announced })
}

fn verify(record: &[u8], crc: u32) -> Result<(), &'static str> {
    let (covered, rest) = (&record[..COVERED], &record[BASE_LEN..]);
    let right = crc32c_append(crc32c(covered), rest) == crc;
    right.then_some(()).ok_or("the checksum of a frame does not match")
}

fn open(record: &mut [u8], opener: &mut Opener) -> Result<(), &'static str> {
    let (base, rest) = record.split_at_mut(BASE_LEN);
    let (sealed, tag) = rest.split_last_chunk_mut().ok_or("an invalid header")?;
    opener.open(base, sealed, *tag).then_some(()).ok_or("a frame fails its seal")
}

/// Runs the decoder over any bytes as a stream of either lane, for tests and fuzzing; returns the
/// number of frames.
#[doc(hidden)]
#[must_use]
pub fn decode_any(bytes: &[u8]) -> usize {
    Lane::ALL.into_iter().map(|lane| decode_stream(bytes, lane, None)).sum()
}

/// As [`decode_any`] on a sealed stream: first the bytes as they are, then sealed by a hostile peer
/// that has the key.
#[doc(hidden)]
#[must_use]
pub fn decode_any_sealed(bytes: &[u8]) -> usize {
    Lane::ALL.into_iter().map(|lane| decode_sealed(bytes, lane)).sum()
}

fn decode_sealed(bytes: &[u8], lane: Lane) -> usize {
    let seal = Seal::new([1; KEY_LEN], [2; KEY_LEN]);
    let peer = Seal::new([2; KEY_LEN], [1; KEY_LEN]);
    let frames = decode_stream(bytes, lane, Some(&mut seal.split(lane).1));

    let Some((flags, content)) = bytes.split_first() else { return frames };
    let len = content.len() - if flags & FLAG_PUT == 0 { 0 } else { content.len().min(PUT_LEN) };
    let base = Base { flags: flags | FLAG_SEALED, ..base(lane, 0, len, None, true) };
    let base: [u8; BASE_LEN] = wire::encode(&base);
    let mut record = [&base[..], content].concat();
    let tag = peer.split(lane).0.seal(&base, &mut record[BASE_LEN..]);
    record.extend_from_slice(&tag);
    frames + decode_stream(&record, lane, Some(&mut seal.split(lane).1))
}

fn decode_stream(bytes: &[u8], lane: Lane, mut opener: Option<&mut Opener>) -> usize {
    let (mut bytes, mut frames) = (bytes.to_vec(), 0);
    let mut bytes = &mut bytes[..];
    while let Ok(Decoded::Frame { frame, end, target, .. }) =
        decode(bytes, lane, frames as u32, opener.as_deref_mut())
    {
        assert!(frame.end <= end && end <= bytes.len() && frame.len() <= MAX_FRAME);
        let data = target.map_or(0, |target| target.len as usize);
        bytes = bytes.get_mut(end.saturating_add(data)..).unwrap_or_default();
        frames += 1;
    }
    frames
}

#[cfg(test)]
mod tests;
