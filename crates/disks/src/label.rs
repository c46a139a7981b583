//! The label of a disk: which group, which place in it, what shape. On disk, little endian, twice (at byte 0
//! and at byte 4096 of the file), 4096 bytes each:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 8 | magic, `PLEXDISK` |
//! | 8 | 4 | format, 1 |
//! | 12 | 4 | CRC-32C of the 4096 bytes with this field zero |
//! | 16 | 16 | group id |
//! | 32 | 4 | number of this disk, from 0 |
//! | 36 | 4 | disks in the group |
//! | 40 | 4 | block size in bytes |
//! | 44 | 4 | stripe unit in bytes |
//! | 48 | 8 | blocks in the group |
//! | 56 | 4040 | zero |

use std::{fmt, io};

use plexus_base::wire::{self, DecodeError, Fault, Writer, require_magic, require_version};

/// Bytes of one copy of a label.
pub(crate) const LABEL: usize = 4096;

/// Copies of the label at the start of each disk.
pub(crate) const COPIES: usize = 2;

const MAGIC: [u8; 8] = *b"PLEXDISK";
const FORMAT: u32 = 1;

wire::newtypes!(GroupId(u128));

wire::layout! {
    struct Front: 16 { magic: [u8; 8], format: u32, crc: u32 }
    impl Label: 40 { group: GroupId, disk: u32, disks: u32, block_size: u32, unit: u32, blocks: u64 }
}

/// Where the checksum stands.
const CRC: usize = 12;

/// Names a disk group; random, made once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupId(pub u128);

impl GroupId {
    /// A new, random name.
    ///
    /// # Errors
    /// The system gives no random bytes.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self(u128::from_le_bytes(bytes)))
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// How long a block is: 4, 8 or 16 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockSize(u32);

impl BlockSize {
    /// The sizes there are, in KiB.
    pub const KIB: [u32; 3] = [4, 8, 16];

    /// From KiB, if there is such a size.
    #[must_use]
    pub fn from_kib(kib: u32) -> Option<Self> {
        Self::KIB.contains(&kib).then_some(Self(kib * 1024))
    }

    /// In bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0 as usize
    }
}

/// What a disk group is like, apart from where its disks are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The group.
    pub id: GroupId,
    /// How long its blocks are.
    pub block_size: BlockSize,
    /// How many blocks it has, at least 1.
    pub blocks: u64,
}

/// What a label says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    pub(crate) group: GroupId,
    pub(crate) disk: u32,
    pub(crate) disks: u32,
    pub(crate) block_size: u32,
    pub(crate) unit: u32,
    pub(crate) blocks: u64,
}

impl Label {
    /// The label's bytes on disk, into `out` (of [`LABEL`] bytes).
    pub(crate) fn encode(&self, out: &mut [u8]) {
        let mut writer = Writer::with(&Front { magic: MAGIC, format: FORMAT, crc: 0 }, LABEL);
        writer.put(self).fill(LABEL);
        out.copy_from_slice(&writer.finish());
        wire::seal(out, CRC);
    }

    /// What one copy says, or what is wrong with it.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("label of a disk", bytes, |reader| {
            if bytes.len() != LABEL {
                return Err(Fault::CutOff);
            }
            let Front { magic, format, .. } = reader.take()?;
            require_magic(magic, MAGIC)?;
            wire::verify(bytes, CRC)?;
            require_version(format, FORMAT)?;
            let label = reader.take()?;
            // What a checksum vouches for and nobody reads may be what is to come.
            reader.rest();
            Ok(label)
        })
    }
}

/// Reads a label from any bytes, as a fuzz target would: as they are, and with the checksum made right, as somebody who means harm
/// would. How many were taken for a label.
#[doc(hidden)]
#[must_use]
pub fn label_any(bytes: &[u8]) -> usize {
    let mut whole = bytes.to_vec();
    whole.resize(LABEL, 0);
    let mut mended = whole.clone();
    wire::seal(&mut mended, CRC);
    [bytes, &whole, &mended].into_iter().filter(|bytes| Label::decode(bytes).is_ok()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_bytes_do_no_harm() {
        let label =
            Label { group: GroupId(5), disk: 1, disks: 2, block_size: 4096, unit: 1 << 20, blocks: 1000 };
        let mut good = vec![0; LABEL];
        label.encode(&mut good);
        assert_eq!(label_any(&good), 3);
        plexus_sim::hostile(&[good], |bytes| assert!(label_any(bytes) <= 3));
    }

    #[test]
    fn a_label_says_what_was_written_and_nothing_else_passes() {
        let label =
            Label { group: GroupId(5), disk: 1, disks: 2, block_size: 4096, unit: 1 << 20, blocks: 1000 };
        let mut bytes = vec![0; LABEL];
        label.encode(&mut bytes);
        assert_eq!(Label::decode(&bytes), Ok(label));
        for byte in 0..LABEL {
            let mut bad = bytes.clone();
            bad[byte] ^= 0x10;
            assert!(Label::decode(&bad).is_err(), "byte {byte}");
        }
        assert!(Label::decode(&bytes[..100]).is_err());
    }
}
