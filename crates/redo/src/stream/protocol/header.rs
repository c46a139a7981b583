//! The header of a stream. The stream has two, at bytes 0 and 4096 of the device, which are written
//! in turn: header `n` is at place `n % 2`, and the sound one with the higher number is in force. A
//! torn write thus leaves the one before. Each has 4096 bytes, little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 8 | magic, `PLEXREDO` |
//! | 8 | 4 | format, 2 |
//! | 12 | 4 | CRC-32C of the 4096 bytes with this field zero |
//! | 16 | 16 | the cluster's random name |
//! | 32 | 8 | number of the header: one more than of the one before |
//! | 40 | 8 | incarnation that writes the stream; 0: none yet |
//! | 48 | 8 | LSN at which this incarnation begins: batches of others end there |
//! | 56 | 8 | checkpoint LSN: the start of a durable batch; what is below is not needed |
//! | 64 | 8 | LSN below which every byte of the device was written when the header was |
//! | 72 | 8 | bytes of a segment |
//! | 80 | 4 | segments |
//! | 84 | 1 | node |
//! | 85 | 1 | 1 if the stream is closed: no block needs its records |
//! | 86 | 4010 | zero |

use plexus_base::{
    Incarnation, NodeId,
    wire::{self, DecodeError, Fault, Writer, require, require_magic, require_version},
};

use super::{Geometry, Lsn, PAGE};

/// The bytes of a header.
const HEADER: usize = PAGE as usize;

/// The bytes of both headers.
pub const HEADERS: usize = 2 * HEADER;

const MAGIC: [u8; 8] = *b"PLEXREDO";
pub(super) const FORMAT: u32 = 2;
const CRC_AT: usize = 12;

wire::layout! {
    struct Front: 16 { magic: [u8; 8], format: u32, crc: u32 }
    impl StreamHeader: 70 {
        cluster: u128, number: u64, incarnation: Incarnation, begin: Lsn, checkpoint: Lsn, zeroed: Lsn,
        geometry: Geometry, node: NodeId, is_closed: bool
    }
}

/// The state of a stream that outlives its writer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamHeader {
    /// The cluster's random name.
    pub cluster: u128,
    /// The node that writes the stream.
    pub node: NodeId,
    /// The last incarnation of the node that opened the stream for writing.
    pub incarnation: Incarnation,
    /// The position at which this incarnation begins. Batches of earlier ones end there.
    pub begin: Lsn,
    /// The position from which records are needed.
    pub checkpoint: Lsn,
    /// The position below which every byte of the device was written at least once.
    pub zeroed: Lsn,
    /// True if no record is needed.
    pub is_closed: bool,
    /// The segments.
    pub geometry: Geometry,
    /// One more than in the header before.
    pub number: u64,
}

impl StreamHeader {
    /// Returns the header of a new stream, which no incarnation has opened yet.
    #[must_use]
    pub fn new(cluster: u128, node: NodeId, geometry: Geometry) -> Self {
        Self {
            cluster,
            node,
            incarnation: Incarnation(0),
            begin: Lsn::FIRST,
            checkpoint: Lsn::FIRST,
            zeroed: geometry.first_zeros(),
            is_closed: true,
            geometry,
            number: 0,
        }
    }

    /// Returns the place of the header on the device.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.number % 2 * PAGE
    }

    /// Returns the bytes of the header.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with(&Front { magic: MAGIC, format: FORMAT, crc: 0 }, HEADER);
        writer.put(self);
        writer.fill(HEADER);
        let mut bytes = writer.finish();
        wire::seal(&mut bytes, CRC_AT);
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("header of a redo stream", bytes, |reader| {
            if bytes.len() != HEADER {
                return Err(Fault::CutOff);
            }
            let Front { magic, format, .. } = reader.take()?;
            require_magic(magic, MAGIC)?;
            wire::verify(bytes, CRC_AT)?;
            require_version(format, FORMAT)?;
            let header: Self = reader.take()?;
            require(header.geometry.is_possible(), "segments")?;
            require(header.begin.is_valid() && header.checkpoint.is_valid(), "position")?;
            require(header.number < u64::MAX, "number")?;
            require(reader.rest().iter().all(|byte| *byte == 0), "unused field")?;
            Ok(header)
        })
    }
}

/// Returns the header in force from the bytes of both.
///
/// # Errors
/// Neither is sound, or one has another version: then the newer program must read them.
pub fn newest(headers: &[u8]) -> Result<StreamHeader, DecodeError> {
    let (first, second) = headers.split_at(headers.len().min(HEADER));
    match (StreamHeader::decode(first), StreamHeader::decode(second)) {
        (Ok(first), Ok(second)) => Ok(if first.number > second.number { first } else { second }),
        (Err(error @ DecodeError { fault: Fault::Version { .. }, .. }), _)
        | (_, Err(error @ DecodeError { fault: Fault::Version { .. }, .. })) => Err(error),
        (Ok(header), Err(_)) | (Err(_), Ok(header)) => Ok(header),
        (Err(error), Err(_)) => Err(error),
    }
}

/// Decodes any bytes as a header for a fuzz target: as they are, and with a corrected checksum.
/// Returns how many decode.
#[doc(hidden)]
#[must_use]
pub fn header_any(bytes: &[u8]) -> usize {
    let mut mended = bytes.to_vec();
    mended.resize(HEADER, 0);
    wire::seal(&mut mended, CRC_AT);
    let read = |bytes: &[u8]| {
        StreamHeader::decode(bytes).is_ok_and(|header| {
            assert_eq!(header.encode(), bytes, "one encoding of a header");
            true
        })
    };
    usize::from(read(bytes)) + usize::from(read(&mended)) + usize::from(newest(bytes).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(number: u64) -> StreamHeader {
        let new = StreamHeader::new(7, NodeId(3), Geometry::new(1 << 20, 4).unwrap());
        StreamHeader { incarnation: Incarnation(9), checkpoint: Lsn(8192), is_closed: false, number, ..new }
    }

    #[test]
    fn the_sound_header_with_the_higher_number_is_in_force() {
        let [old, new] = [header(4), header(5)].map(|header| header.encode());
        let both = |first: &[u8], second: &[u8]| newest(&[first, second].concat());
        assert_eq!(both(&old, &new), Ok(header(5)));
        assert_eq!(both(&new, &old), Ok(header(5)));
        let mut torn = new.clone();
        torn[60] ^= 1;
        assert_eq!(both(&old, &torn), Ok(header(4)));
        assert_eq!(both(&[0; HEADER], &new), Ok(header(5)));
        assert!(both(&torn, &torn).is_err_and(|error| error.fault == Fault::Checksum));
        assert!(newest(&old[..100]).is_err() && newest(&[]).is_err());
    }

    #[test]
    fn a_header_of_another_version_is_not_passed_over() {
        let mut newer = header(5).encode();
        newer[8] = 3;
        wire::seal(&mut newer, CRC_AT);
        for headers in [[header(4).encode(), newer.clone()].concat(), [newer, header(4).encode()].concat()] {
            let error = newest(&headers).unwrap_err().to_string();
            assert!(error.contains("it has version 3, this program reads version 2"), "{error}");
        }
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let good = header(5).encode();
        assert_eq!(header_any(&good), 3);
        plexus_sim::hostile(&[good], |bytes| assert!(header_any(bytes) <= 3));
    }
}
