//! The label of a disk: its identity, its group, its number in it, the shape of the group, and when
//! the group was opened. It is on disk twice, at byte 0 and at byte 4096 of the file. Each copy has
//! 4096 bytes, little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 8 | magic, `PLEXDISK` |
//! | 8 | 4 | format, 2 |
//! | 12 | 4 | CRC-32C of the 4096 bytes with this field zero |
//! | 16 | 16 | the cluster's random name |
//! | 32 | 16 | group id |
//! | 48 | 16 | the disk's random name |
//! | 64 | 4 | number of this disk, from 0 |
//! | 68 | 4 | disks in the group |
//! | 72 | 4 | block size in bytes |
//! | 76 | 4 | stripe unit in bytes |
//! | 80 | 8 | blocks in the group |
//! | 88 | 8 | number of the last opening or closing of the group; 0: none yet |
//! | 96 | 8 | number of the one before |
//! | 104 | 3992 | zero |

use std::{fmt, io};

use plexus_base::wire::{self, DecodeError, Fault, Writer, require_magic, require_version};

/// The bytes of one copy of a label.
pub(crate) const LABEL: usize = 4096;

/// The copies of the label at the start of each disk.
pub(crate) const COPIES: usize = 2;

const MAGIC: [u8; 8] = *b"PLEXDISK";
/// The format of the labels that this program reads and writes.
pub(crate) const FORMAT: u32 = 2;

wire::newtypes!(GroupId(u128));

wire::layout! {
    struct Front: 16 { magic: [u8; 8], format: u32, crc: u32 }
    impl Label: 88 {
        cluster: u128, group: GroupId, id: u128, disk: u32, disks: u32, block_size: u32, unit: u32, blocks: u64,
        last: u64, before: u64
    }
}

/// The offset of the checksum.
const CRC: usize = 12;

/// The random identifier of a disk group, made once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupId(pub u128);

impl GroupId {
    /// Makes a random identifier.
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

/// The length of a block: 4, 8 or 16 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BlockSize(u32);

impl BlockSize {
    /// The possible sizes, in KiB.
    pub const KIB: [u32; 3] = [4, 8, 16];

    /// Returns the block size of `kib` KiB, if it is a possible one.
    #[must_use]
    pub fn from_kib(kib: u32) -> Option<Self> {
        Self::KIB.contains(&kib).then_some(Self(kib * 1024))
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(self) -> usize {
        self.0 as usize
    }
}

/// The identity and dimensions of a disk group, without the paths of its disks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The identifier of the group.
    pub id: GroupId,
    /// The length of its blocks.
    pub block_size: BlockSize,
    /// The number of its blocks, at least 1.
    pub blocks: u64,
}

/// The decoded content of a label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Label {
    /// The only group of a cluster has its name.
    pub(crate) cluster: u128,
    pub(crate) group: GroupId,
    pub(crate) id: u128,
    pub(crate) disk: u32,
    pub(crate) disks: u32,
    pub(crate) block_size: u32,
    pub(crate) unit: u32,
    pub(crate) blocks: u64,
    pub(crate) last: u64,
    pub(crate) before: u64,
}

impl Label {
    /// Writes the label's bytes on disk into `out` (of [`LABEL`] bytes).
    pub(crate) fn encode(&self, out: &mut [u8]) {
        let mut writer = Writer::with(&Front { magic: MAGIC, format: FORMAT, crc: 0 }, LABEL);
        writer.put(self).fill(LABEL);
        out.copy_from_slice(&writer.finish());
        wire::seal(out, CRC);
    }

    /// Decodes one copy of a label.
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
            // Later versions may use these bytes, which the checksum covers.
            reader.rest();
            Ok(label)
        })
    }
}

/// Reads a label from any bytes for a fuzz target: as they are, and with a corrected checksum as an
/// attacker would send it. Returns how many of the two decode.
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

    fn label() -> Label {
        Label {
            cluster: 5,
            group: GroupId(5),
            id: 9,
            disk: 1,
            disks: 2,
            block_size: 4096,
            unit: 1 << 20,
            blocks: 1000,
            last: 8,
            before: 7,
        }
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let label = label();
        let mut good = vec![0; LABEL];
        label.encode(&mut good);
        assert_eq!(label_any(&good), 3);
        plexus_sim::hostile(&[good], |bytes| assert!(label_any(bytes) <= 3));
    }

    #[test]
    fn a_label_says_what_was_written_and_nothing_else_passes() {
        let label = label();
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
