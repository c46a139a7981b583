//! The messages between nodes of a mirrored group. Numbers are little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 write, 2 read, 3 dirty units, 4 clean a unit, 5 done, 6 bytes, 7 units, 8 refused, 9 failed, 10 hold, 11 held, 12 release |
//! | 1 | 1 | disk |
//! | 2 | 1 | of a read: 1 if the block is in doubt |
//! | 3 | 1 | zero |
//! | 4 | 4 | epoch of the sender |
//! | 8 | 8 | number of the request or hold |
//! | 16 | 8 | version of the map |
//! | 24 | 4 | chunk |
//! | 28 | 4 | offset in the chunk, or unit |
//! | 32 | 4 | bytes to read |
//! | 36 | 4 | zero |
//! | 40 | | bytes, units of 4 bytes, or the reason of a failure |

use bytes::Bytes;
use plexus_base::{
    Epoch,
    wire::{self, DecodeError, Fault, Writer, Zeros, require},
};

use super::{
    map::{ChunkId, DiskNumber, MAX_DISKS, UNIT_BYTES},
    protocol::{DiskAnswer, DiskOp, DiskRequest, MirrorMessage},
};
use crate::ALIGN;

wire::numbered! {
    enum Kind as "kind of a message of disks" {
        Write = 1,
        Read = 2,
        Dirty = 3,
        Clean = 4,
        Done = 5,
        Bytes = 6,
        Units = 7,
        Refused = 8,
        Failed = 9,
        Hold = 10,
        Held = 11,
        Release = 12,
    }
}

wire::layout! {
    struct Head: 40 {
        kind: Kind, disk: DiskNumber, in_doubt: bool, zero: Zeros<1>, epoch: Epoch, id: u64, version: u64, chunk: ChunkId,
        offset: u32, length: u32, unused: Zeros<4>
    }
}

/// The most bytes of the reason of a failure.
const REASON_MAX: usize = 1024;

/// Encodes a message.
pub(super) fn encode(epoch: Epoch, message: &MirrorMessage<Bytes>) -> Vec<u8> {
    let head = |kind, id| Head {
        kind,
        disk: DiskNumber(0),
        in_doubt: false,
        zero: Zeros,
        epoch,
        id,
        version: 0,
        chunk: ChunkId(0),
        offset: 0,
        length: 0,
        unused: Zeros,
    };
    let (head, body): (Head, &[u8]) = match message {
        MirrorMessage::Request(DiskRequest { id, version, disk, chunk, op }) => {
            let request = |kind| Head { disk: *disk, version: *version, chunk: *chunk, ..head(kind, *id) };
            match op {
                DiskOp::Write { offset, data } => (Head { offset: *offset, ..request(Kind::Write) }, data),
                DiskOp::Read { offset, length, in_doubt } => {
                    let (offset, length, in_doubt) = (*offset, *length, *in_doubt);
                    (Head { offset, length, in_doubt, ..request(Kind::Read) }, &[])
                }
                DiskOp::Dirty => (request(Kind::Dirty), &[]),
                DiskOp::Clean { unit } => (Head { offset: *unit, ..request(Kind::Clean) }, &[]),
            }
        }
        MirrorMessage::Answer(id, DiskAnswer::Done) => (head(Kind::Done, *id), &[]),
        MirrorMessage::Answer(id, DiskAnswer::Read(data)) => (head(Kind::Bytes, *id), data),
        MirrorMessage::Answer(id, DiskAnswer::Dirty(units)) => {
            let mut writer = Writer::with(&head(Kind::Units, *id), 4 * units.len());
            units.iter().for_each(|unit| {
                writer.put(unit);
            });
            return writer.finish();
        }
        MirrorMessage::Answer(id, DiskAnswer::Refused) => (head(Kind::Refused, *id), &[]),
        MirrorMessage::Answer(id, DiskAnswer::Failed(why)) => {
            // A character that is cut off is replaced by the receiver.
            (head(Kind::Failed, *id), &why.as_bytes()[..why.len().min(REASON_MAX)])
        }
        MirrorMessage::Hold { id, version, chunk, unit } => {
            (Head { version: *version, chunk: *chunk, offset: *unit, ..head(Kind::Hold, *id) }, &[])
        }
        MirrorMessage::Held(id) => (head(Kind::Held, *id), &[]),
        MirrorMessage::Release(id) => (head(Kind::Release, *id), &[]),
    };
    let mut writer = Writer::with(&head, body.len());
    writer.bytes(body);
    writer.finish()
}

/// Decodes a message of a node.
///
/// # Errors
/// The bytes are no message, or a request crosses a unit.
pub(super) fn decode(bytes: &[u8]) -> Result<(Epoch, MirrorMessage<Bytes>), DecodeError> {
    wire::decode("message of disks", bytes, |reader| {
        let Head { kind, disk, in_doubt, epoch, id, version, chunk, offset, length, .. } = reader.take()?;
        require(disk.index() < MAX_DISKS, "disk")?;
        let request = |op| Ok(MirrorMessage::Request(DiskRequest { id, version, disk, chunk, op }));
        let within = |length: usize| {
            let is_within = length > 0 && (offset % UNIT_BYTES) as usize + length <= UNIT_BYTES as usize;
            let is_aligned = (offset as usize).is_multiple_of(ALIGN) && length.is_multiple_of(ALIGN);
            require(is_within && is_aligned, "range of a unit")
        };
        let answer = |answer| Ok(MirrorMessage::Answer(id, answer));
        let message: Result<_, Fault> = match kind {
            Kind::Write => {
                let data = reader.rest();
                within(data.len())?;
                request(DiskOp::Write { offset, data: Bytes::copy_from_slice(data) })
            }
            Kind::Read => {
                within(length as usize)?;
                request(DiskOp::Read { offset, length, in_doubt })
            }
            Kind::Dirty => request(DiskOp::Dirty),
            Kind::Clean => request(DiskOp::Clean { unit: offset }),
            Kind::Done => answer(DiskAnswer::Done),
            Kind::Bytes => {
                let data = reader.rest();
                require(data.len() <= UNIT_BYTES as usize, "length")?;
                answer(DiskAnswer::Read(Bytes::copy_from_slice(data)))
            }
            Kind::Units => {
                let mut units = Vec::new();
                while !reader.is_empty() {
                    units.push(reader.take()?);
                }
                answer(DiskAnswer::Dirty(units))
            }
            Kind::Refused => answer(DiskAnswer::Refused),
            Kind::Failed => {
                let why = reader.rest();
                require(why.len() <= REASON_MAX, "length of a reason")?;
                answer(DiskAnswer::Failed(String::from_utf8_lossy(why).into_owned()))
            }
            Kind::Hold => Ok(MirrorMessage::Hold { id, version, chunk, unit: offset }),
            Kind::Held => Ok(MirrorMessage::Held(id)),
            Kind::Release => Ok(MirrorMessage::Release(id)),
        };
        Ok((epoch, message?))
    })
}

/// Reads a message from any bytes for a fuzz target.
#[doc(hidden)]
#[must_use]
pub fn mirror_message_any(bytes: &[u8]) -> bool {
    decode(bytes).is_ok_and(|(epoch, message)| decode(&encode(epoch, &message)) == Ok((epoch, message)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages() -> Vec<MirrorMessage<Bytes>> {
        let request = |op| {
            let (disk, chunk) = (DiskNumber(3), ChunkId(70_000));
            MirrorMessage::Request(DiskRequest { id: 9, version: 17, disk, chunk, op })
        };
        let data = Bytes::from_static(&[7; ALIGN]);
        vec![
            request(DiskOp::Write { offset: 3 * UNIT_BYTES - ALIGN as u32, data: data.clone() }),
            request(DiskOp::Read { offset: 4096, length: 8192, in_doubt: true }),
            request(DiskOp::Dirty),
            request(DiskOp::Clean { unit: 63 }),
            MirrorMessage::Answer(9, DiskAnswer::Done),
            MirrorMessage::Answer(9, DiskAnswer::Read(data)),
            MirrorMessage::Answer(9, DiskAnswer::Dirty(vec![0, 5, 63])),
            MirrorMessage::Answer(9, DiskAnswer::Refused),
            MirrorMessage::Answer(9, DiskAnswer::Failed("no medium".into())),
            MirrorMessage::Hold { id: 4, version: 17, chunk: ChunkId(1), unit: 6 },
            MirrorMessage::Held(4),
            MirrorMessage::Release(4),
        ]
    }

    #[test]
    fn a_message_arrives_as_it_was_sent() {
        for message in messages() {
            assert_eq!(decode(&encode(Epoch(5), &message)), Ok((Epoch(5), message)));
        }
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let good: Vec<_> = messages().iter().map(|message| encode(Epoch(5), message)).collect();
        plexus_sim::hostile(&good, |bytes| {
            let _ = mirror_message_any(bytes);
        });
        // Writes that leave their unit, or a part of a sector.
        for (offset, bytes) in [(UNIT_BYTES - ALIGN as u32, 2 * ALIGN), (8, ALIGN), (0, 16)] {
            let op = DiskOp::Write { offset, data: vec![1; bytes].into() };
            let (disk, chunk) = (DiskNumber(0), ChunkId(0));
            let bad = MirrorMessage::Request(DiskRequest { id: 1, version: 1, disk, chunk, op });
            assert!(decode(&encode(Epoch(1), &bad)).is_err());
        }
    }
}
