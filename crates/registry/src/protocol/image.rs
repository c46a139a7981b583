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
//! Every format begins with these first 40 bytes, so that an image of a newer program is recognized
//! and left alone. The same contents have only one image: entries in another order, or a byte too
//! many, count as damage.

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{
    Incarnation, MAX_NODES, NodeId,
    wire::{self, Fault, Fixed, Reader, Writer, require, require_magic},
};

use super::{
    ClusterName, Contents, Entry, Key, Origin,
    contents::size,
    entries::Entries,
    limits::{GENERATION_MAX, KEYS_MAX, TOTAL_MAX, VALUE_MAX},
};

const FORMAT: u32 = 1;
const CRC_AT: usize = 12;
const HEADER: usize = Header::LEN;
const DONE: usize = DoneLayout::LEN;

/// The bytes in front of an entry's key.
pub(super) const ENTRY: usize = EntryLayout::LEN;

/// The bytes of the longest image; a reader needs no more of a file.
pub const IMAGE_MAX: usize = HEADER + MAX_NODES * DONE + TOTAL_MAX;

/// The kind of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One of the two copies.
    Copy,
    /// A backup, which is never taken for a copy.
    Backup,
}

impl Kind {
    /// True if the image has the magic bytes of this kind.
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

/// The reason why bytes are not the expected image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// The bytes are damaged or cut off.
    #[error("is damaged: {0}")]
    Damaged(#[from] Fault),
    /// The image is whole and has another format.
    #[error("has format {0}, which this program does not read; use the version of plexus that wrote it")]
    Format(u32),
    /// The image is whole and belongs to another cluster.
    #[error("belongs to cluster {0}; correct the path, or remove the file if it is not needed")]
    Foreign(ClusterName),
}

wire::newtypes!(ClusterName(u128));

wire::layout! {
    struct Header: 64 {
        magic: [u8; 8], format: u32, crc: u32, cluster: ClusterName, generation: u64, bytes: u64, keys: u32, done: u32, zero: [u8; 8]
    }
    struct DoneLayout: 25 { incarnation: Incarnation, number: u64, generation: u64, node: NodeId }
    struct EntryLayout: 13 { version: u64, value: u32, key: u8 }
}

/// Returns the image of `contents`.
pub fn encode(kind: Kind, contents: &Contents) -> Vec<u8> {
    let len = HEADER + contents.done.len() * DONE + contents.bytes;
    let header = Header {
        magic: kind.magic(),
        format: FORMAT,
        crc: 0,
        cluster: contents.cluster,
        generation: contents.generation,
        bytes: len as u64,
        keys: contents.entries.len() as u32,
        done: contents.done.len() as u32,
        zero: [0; 8],
    };
    let mut writer = Writer::with(&header, len - HEADER);
    for (&node, &(Origin { incarnation, number, .. }, generation)) in &contents.done {
        writer.put(&DoneLayout { incarnation, number, generation, node });
    }
    for (key, Entry { version, value }) in contents.entries.iter() {
        let key = key.as_str().as_bytes();
        writer.put(&EntryLayout { version: *version, value: value.len() as u32, key: key.len() as u8 });
        writer.bytes(key).bytes(value);
    }
    let mut image = writer.finish();
    assert_eq!(image.len(), len, "bytes are counted as they are written");
    wire::seal(&mut image, CRC_AT);
    image
}

/// Decodes an image of the registry of `cluster`.
///
/// # Errors
/// The bytes are not such an image.
pub fn decode(kind: Kind, cluster: ClusterName, image: &[u8]) -> Result<Contents, ImageError> {
    let mut reader = Reader::new(image);
    let header: Header = reader.take()?;
    require_magic(header.magic, kind.magic())?;
    wire::verify(image, CRC_AT)?;
    // The checksum is right: these bytes were written on purpose.
    if header.format != FORMAT {
        return Err(ImageError::Format(header.format));
    }
    if header.cluster != cluster {
        return Err(ImageError::Foreign(header.cluster));
    }
    let Header { generation, keys, done, .. } = header;
    require(header.bytes == image.len() as u64 && header.zero == [0; 8], "head")?;
    let fits = generation <= GENERATION_MAX && keys as usize <= KEYS_MAX && done as usize <= MAX_NODES;
    require(fits, "count")?;
    let mut contents = Contents { generation, ..Contents::new(cluster) };
    for _ in 0..done {
        take_done(&mut reader, generation, &mut contents.done)?;
    }
    for _ in 0..keys {
        contents.bytes += take_entry(&mut reader, generation, &mut contents.entries)?;
    }
    require(reader.is_empty() && contents.bytes <= TOTAL_MAX, "length")?;
    Ok(contents)
}

fn take_done(
    reader: &mut Reader<'_>,
    newest: u64,
    done: &mut BTreeMap<NodeId, (Origin, u64)>,
) -> Result<(), Fault> {
    let DoneLayout { incarnation, number, generation, node } = reader.take()?;
    let ordered = done.last_key_value().is_none_or(|(last, _)| *last < node);
    require(ordered && generation <= newest, "last command")?;
    done.insert(node, (Origin { node, incarnation, number }, generation));
    Ok(())
}

fn take_entry(reader: &mut Reader<'_>, newest: u64, entries: &mut Entries) -> Result<usize, Fault> {
    let EntryLayout { version, value, key } = reader.take()?;
    let (key, value) = (take_key(reader, key)?, value as usize);
    let ordered = entries.last().is_none_or(|last| *last < key);
    require(ordered && version != 0 && version <= newest && value <= VALUE_MAX, "entry")?;
    let value = reader.bytes(value)?;
    let bytes = size(&key, value);
    entries.insert(key, Entry { version, value: Arc::from(value) });
    Ok(bytes)
}

/// Reads a key of `len` bytes.
pub(super) fn take_key(reader: &mut Reader<'_>, len: u8) -> Result<Key, Fault> {
    let key = std::str::from_utf8(reader.bytes(len)?).ok().and_then(|text| Key::new(text).ok());
    key.ok_or(Fault::Field("key"))
}

/// Corrects the length, cluster and checksum of a damaged image.
pub(super) fn mend(image: &mut [u8]) {
    let len = image.len() as u64;
    if let Ok(header) = Reader::new(image).take::<Header>() {
        let header = Header { bytes: len, cluster: ClusterName(1), ..header };
        image[..HEADER].copy_from_slice(&wire::encode::<_, HEADER>(&header));
        wire::seal(image, CRC_AT);
    }
}

/// Decodes any bytes as a copy and as a backup, like a fuzz target: as they are, and with length,
/// cluster and checksum corrected. Returns how many were accepted. Accepted images are encoded
/// again to the same bytes.
#[doc(hidden)]
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
    fn an_image_is_decoded_as_written_and_nothing_else_passes() {
        for kind in [Kind::Copy, Kind::Backup] {
            let image = encode(kind, &contents());
            assert_eq!(decode(kind, CLUSTER, &image), Ok(contents()));
            for byte in 0..image.len() {
                let mut bad = image.clone();
                bad[byte] ^= 0x10;
                assert!(matches!(decode(kind, CLUSTER, &bad), Err(ImageError::Damaged(_))), "byte {byte}");
                assert!(
                    matches!(decode(kind, CLUSTER, &image[..byte]), Err(ImageError::Damaged(_))),
                    "{byte} bytes"
                );
            }
            let other = if kind == Kind::Copy { Kind::Backup } else { Kind::Copy };
            assert!(decode(other, CLUSTER, &image).is_err());
            assert_eq!(decode(kind, ClusterName(2), &image), Err(ImageError::Foreign(CLUSTER)));
        }
    }

    #[test]
    fn another_format_is_recognized_whatever_follows() {
        for format in [0, 2] {
            let mut image = encode(Kind::Copy, &contents());
            image[8] = format;
            image.extend_from_slice(b"what is to come");
            wire::seal(&mut image, CRC_AT);
            assert_eq!(decode(Kind::Copy, CLUSTER, &image), Err(ImageError::Format(format.into())));
        }
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
