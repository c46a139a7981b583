//! The bytes of a copy, and of a backup: all contents in one piece. On disk, little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 8 | magic: `PLEXREGY` of a copy, `PLEXREGB` of a backup |
//! | 8 | 4 | format, 1 |
//! | 12 | 4 | CRC-32C of the whole with this field zero |
//! | 16 | 16 | the cluster's random name |
//! | 32 | 8 | generation |
//! | 40 | 8 | bytes of the whole |
//! | 48 | 4 | keys |
//! | 52 | 4 | nodes with a last command |
//! | 56 | 8 | zero |
//! | 64 | | for each such node, by number: |
//! | 0 | 8 | incarnation |
//! | 8 | 8 | number of its last command that was done |
//! | 16 | 8 | generation that it made |
//! | 24 | 1 | node |
//! | | | for each key, in the order of their bytes: |
//! | 0 | 8 | version, at most the generation |
//! | 8 | 4 | bytes of the value |
//! | 12 | 1 | bytes of the key |
//! | 13 | | the key, the value |
//!
//! Every format has its first 40 bytes like this, so that what a newer program wrote is known for that and left alone.
//! The same contents have one image only: what is in another order or has a byte too many is damaged.

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Incarnation, MAX_NODES, NodeId, crc32c, crc32c_append};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64, U128},
};

use super::{
    ClusterName, Contents, Entry, Key, Origin,
    contents::size,
    entries::Entries,
    limits::{GENERATION_MAX, KEYS_MAX, TOTAL_MAX, VALUE_MAX},
};

const FORMAT: u32 = 1;
const CRC_AT: usize = 12;
const HEADER: usize = 64;
const DONE: usize = 25;

/// Bytes in front of an entry's key.
pub(super) const ENTRY: usize = 13;

/// Bytes of the longest image: nobody need read more of a file.
pub const IMAGE_MAX: usize = HEADER + MAX_NODES * DONE + TOTAL_MAX;

/// What an image is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One of the two copies.
    Copy,
    /// A backup, which is never taken for a copy.
    Backup,
}

impl Kind {
    /// Whether an image says that it is for this.
    pub(crate) fn is(self, image: &[u8]) -> bool {
        image.starts_with(&self.magic())
    }

    const fn magic(self) -> [u8; 8] {
        match self {
            Self::Copy => *b"PLEXREGY",
            Self::Backup => *b"PLEXREGB",
        }
    }
}

/// Why bytes are not the image that was looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Bad {
    /// Other bytes than were written, or fewer.
    #[error("is damaged: {0}")]
    Damaged(&'static str),
    /// Whole, and of a format to come.
    #[error("has format {0}, which this program does not read; use the newer one that wrote it")]
    Newer(u32),
    /// Whole, and of another cluster.
    #[error("belongs to cluster {0}; correct the path, or remove the file if nobody needs it")]
    Foreign(ClusterName),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    format: U32,
    crc: U32,
    cluster: U128,
    generation: U64,
    bytes: U64,
    keys: U32,
    done: U32,
    zero: [u8; 8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DoneLayout {
    incarnation: U64,
    number: U64,
    generation: U64,
    node: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryLayout {
    version: U64,
    value: U32,
    key: u8,
}

const _: () = assert!(size_of::<Header>() == HEADER && size_of::<DoneLayout>() == DONE);
const _: () = assert!(size_of::<EntryLayout>() == ENTRY && std::mem::offset_of!(Header, crc) == CRC_AT);

/// The image of `contents`.
#[must_use]
pub fn encode(kind: Kind, contents: &Contents) -> Vec<u8> {
    let len = HEADER + contents.done.len() * DONE + contents.bytes;
    let mut image = Vec::with_capacity(len);
    let header = Header {
        magic: kind.magic(),
        format: U32::new(FORMAT),
        crc: U32::ZERO,
        cluster: U128::new(contents.cluster.0),
        generation: U64::new(contents.generation),
        bytes: U64::new(len as u64),
        keys: U32::new(contents.entries.len() as u32),
        done: U32::new(contents.done.len() as u32),
        zero: [0; 8],
    };
    image.extend_from_slice(header.as_bytes());
    for (node, (origin, generation)) in &contents.done {
        let done = DoneLayout {
            incarnation: U64::new(origin.incarnation.0),
            number: U64::new(origin.number),
            generation: U64::new(*generation),
            node: node.0,
        };
        image.extend_from_slice(done.as_bytes());
    }
    for (key, Entry { version, value }) in contents.entries.iter() {
        let entry = EntryLayout {
            version: U64::new(*version),
            value: U32::new(value.len() as u32),
            key: key.as_str().len() as u8,
        };
        image.extend_from_slice(entry.as_bytes());
        image.extend_from_slice(key.as_str().as_bytes());
        image.extend_from_slice(value);
    }
    assert_eq!(image.len(), len, "bytes are counted as they are written");
    let crc = sum(&image);
    image[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    image
}

/// What the image of a registry of `cluster` says.
///
/// # Errors
/// It is none; with the reason.
pub fn decode(kind: Kind, cluster: ClusterName, image: &[u8]) -> Result<Contents, Bad> {
    let (header, mut rest) = Header::ref_from_prefix(image).map_err(|_| Bad::Damaged("it is cut off"))?;
    if header.magic != kind.magic() {
        return Err(Bad::Damaged("it does not begin like one"));
    }
    if header.crc.get() != sum(image) {
        return Err(Bad::Damaged("its checksum is wrong"));
    }
    // From here on somebody wrote these bytes on purpose.
    if header.format.get() > FORMAT {
        return Err(Bad::Newer(header.format.get()));
    }
    if header.cluster.get() != cluster.0 {
        return Err(Bad::Foreign(ClusterName(header.cluster.get())));
    }
    let (generation, keys, done) = (header.generation.get(), header.keys.get(), header.done.get());
    if header.format.get() != FORMAT || header.bytes.get() != image.len() as u64 || header.zero != [0; 8] {
        return Err(Bad::Damaged("its head is not lawful"));
    }
    if generation > GENERATION_MAX || keys as usize > KEYS_MAX || done as usize > MAX_NODES {
        return Err(Bad::Damaged("it counts more than there can be"));
    }
    let mut contents = Contents { generation, ..Contents::new(cluster) };
    for _ in 0..done {
        take_done(&mut rest, generation, &mut contents.done)?;
    }
    for _ in 0..keys {
        contents.bytes += take_entry(&mut rest, generation, &mut contents.entries)?;
    }
    if !rest.is_empty() || contents.bytes > TOTAL_MAX {
        return Err(Bad::Damaged("it is too long"));
    }
    Ok(contents)
}

fn take_done(rest: &mut &[u8], newest: u64, done: &mut BTreeMap<NodeId, (Origin, u64)>) -> Result<(), Bad> {
    let (layout, behind) =
        DoneLayout::ref_from_prefix(rest).map_err(|_| Bad::Damaged("it ends too early"))?;
    *rest = behind;
    let (node, generation) = (NodeId(layout.node), layout.generation.get());
    let ordered = done.last_key_value().is_none_or(|(last, _)| *last < node);
    if !ordered || node.index() >= MAX_NODES || generation > newest {
        return Err(Bad::Damaged("a last command is not lawful"));
    }
    let incarnation = Incarnation(layout.incarnation.get());
    done.insert(node, (Origin { node, incarnation, number: layout.number.get() }, generation));
    Ok(())
}

fn take_entry(rest: &mut &[u8], newest: u64, entries: &mut Entries) -> Result<usize, Bad> {
    let cut = Bad::Damaged("it ends too early");
    let (layout, behind) = EntryLayout::ref_from_prefix(rest).map_err(|_| cut)?;
    let (version, value) = (layout.version.get(), layout.value.get() as usize);
    let (key, behind) = behind.split_at_checked(usize::from(layout.key)).ok_or(cut)?;
    let key = std::str::from_utf8(key).ok().and_then(|text| Key::new(text).ok());
    let key = key.ok_or(Bad::Damaged("a key is not lawful"))?;
    let ordered = entries.last().is_none_or(|last| *last < key);
    if !ordered || version == 0 || version > newest || value > VALUE_MAX {
        return Err(Bad::Damaged("an entry is not lawful"));
    }
    let (value, behind) = behind.split_at_checked(value).ok_or(cut)?;
    *rest = behind;
    let bytes = size(&key, value);
    entries.insert(key, Entry { version, value: Arc::from(value) });
    Ok(bytes)
}

fn sum(image: &[u8]) -> u32 {
    let head = crc32c_append(crc32c(&image[..CRC_AT]), &[0; 4]);
    crc32c_append(head, &image[CRC_AT + 4..])
}

/// Makes length, cluster and checksum right.
pub(super) fn mend(image: &mut [u8]) {
    let len = image.len() as u64;
    if let Ok((header, _)) = Header::mut_from_prefix(image) {
        (header.bytes, header.cluster) = (U64::new(len), U128::new(1));
        let crc = sum(image);
        image[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Reads any bytes as a copy and as a backup, as a fuzz target would: as they are, and with length, cluster and checksum made right,
/// as somebody who means harm would. How many were taken; each of those is written again as it was read.
#[doc(hidden)]
#[must_use]
pub fn image_any(bytes: &[u8]) -> usize {
    let mut mended = bytes.to_vec();
    mend(&mut mended);
    let mut taken = 0;
    for kind in [Kind::Copy, Kind::Backup] {
        for image in [bytes, &mended] {
            if let Ok(contents) = decode(kind, ClusterName(1), image) {
                assert_eq!(encode(kind, &contents), image, "one image for the same contents");
                taken += 1;
            }
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Change;

    const CLUSTER: ClusterName = ClusterName(1);

    fn contents() -> Contents {
        let mut contents = Contents::new(CLUSTER);
        let origin = Origin { node: NodeId(2), incarnation: Incarnation(77), number: 5 };
        for (at, (key, value)) in
            [("nodes/n1/address", "10.0.0.1"), ("a", ""), ("nodes/n2", "x")].iter().enumerate()
        {
            let change = Change::set(Key::new(key).unwrap(), value.as_bytes());
            contents.change(at as u64 * 2 + 1, (at > 0).then_some(origin), &change).unwrap();
        }
        contents
    }

    #[test]
    fn an_image_says_what_was_written_and_nothing_else_passes() {
        for kind in [Kind::Copy, Kind::Backup] {
            let image = encode(kind, &contents());
            assert_eq!(decode(kind, CLUSTER, &image), Ok(contents()));
            for byte in 0..image.len() {
                let mut bad = image.clone();
                bad[byte] ^= 0x10;
                assert!(matches!(decode(kind, CLUSTER, &bad), Err(Bad::Damaged(_))), "byte {byte}");
                assert!(
                    matches!(decode(kind, CLUSTER, &image[..byte]), Err(Bad::Damaged(_))),
                    "{byte} bytes"
                );
            }
            let other = if kind == Kind::Copy { Kind::Backup } else { Kind::Copy };
            assert!(decode(other, CLUSTER, &image).is_err());
            assert_eq!(decode(kind, ClusterName(2), &image), Err(Bad::Foreign(CLUSTER)));
        }
    }

    #[test]
    fn a_newer_format_is_known_for_what_it_is_whatever_follows() {
        let mut image = encode(Kind::Copy, &contents());
        image[8] = 2;
        image.extend_from_slice(b"what is to come");
        let crc = sum(&image);
        image[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(decode(Kind::Copy, CLUSTER, &image), Err(Bad::Newer(2)));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let good = [encode(Kind::Copy, &contents()), encode(Kind::Backup, &Contents::new(CLUSTER))];
        assert!(good.iter().all(|bytes| image_any(bytes) == 2));
        let mut taken = 0;
        plexus_sim::hostile(&good, |bytes| taken += image_any(bytes));
        assert!(taken > 100, "what is lawful after its checksum was made right is looked at too: {taken}");
    }
}
