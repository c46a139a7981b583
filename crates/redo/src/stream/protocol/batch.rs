//! A batch: whole groups of records that are written at once. It begins at a page, never crosses
//! the end of a segment, and is padded with zeros to whole pages. Little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, `PLXR` |
//! | 4 | 2 | format, 2 |
//! | 6 | 1 | node |
//! | 7 | 1 | zero |
//! | 8 | 8 | incarnation |
//! | 16 | 8 | LSN of the batch |
//! | 24 | 8 | clock: the highest commit number that the node has drawn |
//! | 32 | 4 | length of head, footer and records |
//! | 36 | 4 | entries of the footer; 0: too many blocks, or the first batch of the stream |
//! | 40 | 4 | checksum of the batch before, 0: the first of the stream |
//! | 44 | 8 | LSN from which on the footer counts: it has the blocks of all batches between it and this one |
//! | 52 | 8 | zero |
//! | 60 | 4 | CRC-32C of the whole pages with this field zero |
//! | 64 | 16 each | footer of what is before, by block: block (8), last version (8) |
//! | | | the records, group by group |
//!
//! The footer at the start of a segment is that of the segment before. Any other footer is that of
//! the batch before: where one batch is damaged, the next one names the blocks that lack records.
//!
//! The position, the incarnation and the checksum of the batch before make a batch that was left
//! from an earlier use of the place, or that follows a missing one, invalid.

use plexus_base::{
    BlockId, Incarnation, NodeId,
    wire::{self, DecodeError, Fault, Fixed, Reader, Writer, Zeros, require, require_magic, require_version},
};
use plexus_disks::Version;

use super::{
    Group, Lsn, Record, footer,
    geometry::{BATCH_HEAD, FOOTER_ENTRY, whole_pages},
};

const MAGIC: [u8; 4] = *b"PLXR";
/// That of the header: a batch of another format is no batch, and would look like the end.
const FORMAT: u16 = super::header::FORMAT as u16;
const CRC_AT: usize = 60;
const WHAT: &str = "batch of a redo stream";

wire::layout! {
    struct HeadLayout: 64 {
        magic: [u8; 4], format: u16, node: NodeId, zero: Zeros<1>, incarnation: Incarnation, lsn: Lsn, clock: u64,
        length: u32, footer: u32, previous: u32, since: Lsn, zeros: Zeros<8>, checksum: u32
    }
}

const _: () = assert!(HeadLayout::LEN as u64 == BATCH_HEAD);

/// The identity of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchHead {
    /// The node that wrote the batch.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The position of the batch.
    pub lsn: Lsn,
    /// The highest commit number that the node had drawn.
    pub clock: u64,
    /// The entries of the footer.
    pub footer: u32,
    /// The checksum of the batch before.
    pub previous: u32,
    /// The position from which on the footer counts.
    pub since: Lsn,
}

/// A batch whose bytes were checked completely.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Batch {
    head: BatchHead,
    /// The length without padding.
    length: usize,
    checksum: u32,
    bytes: Vec<u8>,
}

/// A batch that takes no more groups, without its head, checksum and padding. Its writer has no
/// need of them, except for the checksum.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnsealedBatch {
    pub(super) head: BatchHead,
    /// Starts with room for the head.
    pub(super) content: Vec<u8>,
}

impl UnsealedBatch {
    /// Returns the length on the device.
    #[must_use]
    pub fn length(&self) -> usize {
        whole_pages(self.content.len() as u64) as usize
    }

    pub(super) fn end(&self) -> Lsn {
        self.head.lsn.after(self.length() as u64)
    }

    pub(super) fn records(&self) -> impl Iterator<Item = (Lsn, Record<'_>, bool)> {
        records(self.head.lsn, self.head.footer, &self.content)
    }

    /// Writes all of the batch into `bytes`, which have its length, and returns its checksum.
    ///
    /// # Panics
    /// If `bytes` have another length.
    pub fn seal(&self, bytes: &mut [u8]) -> u32 {
        let BatchHead { node, incarnation, lsn, clock, footer, previous, since } = self.head;
        let length = self.content.len();
        let layout = HeadLayout {
            magic: MAGIC,
            format: FORMAT,
            node,
            zero: Zeros,
            incarnation,
            lsn,
            clock,
            length: length as u32,
            footer,
            previous,
            since,
            zeros: Zeros,
            checksum: 0,
        };
        assert_eq!(bytes.len(), self.length(), "the bytes of a batch");
        bytes[..length].copy_from_slice(&self.content);
        bytes[length..].fill(0);
        bytes[..HeadLayout::LEN].copy_from_slice(&wire::encode::<_, { HeadLayout::LEN }>(&layout));
        wire::seal(bytes, CRC_AT);
        stored_checksum(bytes)
    }
}

/// Returns the bytes in front of the footer and the records, which [`UnsealedBatch::seal`] fills.
pub(super) fn begin() -> Writer {
    let mut writer = Writer::default();
    writer.fill(HeadLayout::LEN);
    writer
}

impl Batch {
    /// Reads the head at the start of `bytes`, and returns it with the bytes of the batch, padding
    /// included. Nothing behind the head is checked.
    ///
    /// # Errors
    /// The bytes do not begin with a head.
    pub fn peek(bytes: &[u8]) -> Result<(BatchHead, u64), DecodeError> {
        let (head, layout) = head(&mut Reader::new(bytes)).map_err(|fault| fault.of(WHAT))?;
        Ok((head, whole_pages(u64::from(layout.length))))
    }

    /// Checks the bytes of a batch with its padding: checksum, footer, and that all groups are
    /// complete.
    ///
    /// # Errors
    /// The bytes are not exactly one batch.
    pub fn decode(bytes: Vec<u8>) -> Result<Self, DecodeError> {
        let checked = check(&bytes).map_err(|fault| fault.of(WHAT));
        checked.map(|(head, length)| Self { head, length, checksum: stored_checksum(&bytes), bytes })
    }

    /// Returns the identity of the batch.
    #[must_use]
    pub fn head(&self) -> &BatchHead {
        &self.head
    }

    /// Returns the position behind the batch.
    #[must_use]
    pub fn end(&self) -> Lsn {
        self.head.lsn.after(self.bytes.len() as u64)
    }

    /// Returns the checksum, which the next batch repeats.
    #[must_use]
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// Returns the bytes on the device.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Iterates over the footer: the blocks of what is before with their last versions.
    pub fn footer(&self) -> impl Iterator<Item = (BlockId, Version)> {
        let mut reader = self.reader();
        (0..self.head.footer).map_while(move |_| footer::take(&mut reader).ok())
    }

    /// Iterates over the records. The position of a record is that of its end. The flag is true for
    /// the last record of its group.
    pub fn records(&self) -> impl Iterator<Item = (Lsn, Record<'_>, bool)> {
        records(self.head.lsn, self.head.footer, &self.bytes[..self.length])
    }

    /// Returns a reader of what is behind the head.
    fn reader(&self) -> Reader<'_> {
        Reader::new(&self.bytes[HeadLayout::LEN..self.length])
    }
}

/// Iterates over the records of a batch that may not be sealed yet, as [`Batch::records`].
pub(super) fn records(
    lsn: Lsn,
    footer: u32,
    bytes: &[u8],
) -> impl Iterator<Item = (Lsn, Record<'_>, bool)> + use<'_> {
    let mut reader = Reader::new(&bytes[HeadLayout::LEN + footer as usize * FOOTER_ENTRY as usize..]);
    let end = lsn.after(bytes.len() as u64);
    // The bytes were checked or made here: the iteration ends with them.
    std::iter::from_fn(move || {
        let (record, goes_on) = Record::take(&mut reader).ok()?;
        let left = reader.clone().rest().len() as u64;
        Some((Lsn(end.0 - left), record, !goes_on))
    })
}

fn head(reader: &mut Reader<'_>) -> Result<(BatchHead, HeadLayout), Fault> {
    let layout: HeadLayout = reader.take()?;
    require_magic(layout.magic, MAGIC)?;
    require_version(layout.format, FORMAT)?;
    let HeadLayout { node, incarnation, lsn, clock, length, footer, previous, since, .. } = layout;
    require(lsn.is_valid(), "position")?;
    require(length as usize >= HeadLayout::LEN, "length")?;
    Ok((BatchHead { node, incarnation, lsn, clock, footer, previous, since }, layout))
}

fn check(bytes: &[u8]) -> Result<(BatchHead, usize), Fault> {
    let (head, layout) = head(&mut Reader::new(bytes))?;
    wire::verify(bytes, CRC_AT)?;
    let length = layout.length as usize;
    require(whole_pages(length as u64) == bytes.len() as u64, "length")?;
    require(bytes[length..].iter().all(|byte| *byte == 0), "padding")?;
    let mut reader = Reader::new(&bytes[HeadLayout::LEN..length]);
    reader.list::<_, Vec<_>>(head.footer, footer::take)?;
    let mut goes_on = false;
    while !reader.is_empty() {
        goes_on = Record::take(&mut reader)?.1;
    }
    require(!goes_on, "end of a group")?;
    Ok((head, length))
}

fn stored_checksum(bytes: &[u8]) -> u32 {
    let mut checksum = [0; 4];
    checksum.copy_from_slice(&bytes[CRC_AT..CRC_AT + 4]);
    u32::from_le_bytes(checksum)
}

/// Decodes any bytes as a batch for a fuzz target: as they are, and padded with a corrected
/// checksum. Returns how many decode.
#[doc(hidden)]
#[must_use]
pub fn batch_any(bytes: &[u8]) -> usize {
    let mut mended = bytes.to_vec();
    mended.resize(whole_pages(bytes.len().max(1) as u64) as usize, 0);
    wire::seal(&mut mended, CRC_AT);
    let read = |bytes: &[u8]| {
        let _ = Batch::peek(bytes);
        let _ = Group::of_carried(BlockId(7), Version(1), bytes);
        let Ok(batch) = Batch::decode(bytes.to_vec()) else { return false };
        assert!(batch.records().last().is_none_or(|(end, _, is_last)| is_last && end <= batch.end()));
        let unsealed = UnsealedBatch { head: batch.head, content: bytes[..batch.length].to_vec() };
        let mut sealed = vec![0; unsealed.length()];
        assert_eq!((unsealed.seal(&mut sealed), &sealed[..]), (batch.checksum, bytes), "one encoding");
        true
    };
    usize::from(read(bytes)) + usize::from(read(&mended))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::protocol::{Geometry, PAGE, footer::TouchedBlocks};

    const HEAD: BatchHead = BatchHead {
        node: NodeId(2),
        incarnation: Incarnation(5),
        lsn: Lsn(3 * PAGE),
        clock: 6,
        footer: 2,
        previous: 99,
        since: Lsn(2 * PAGE),
    };

    fn sealed(head: BatchHead, content: Vec<u8>) -> Vec<u8> {
        let batch = UnsealedBatch { head, content };
        let mut bytes = vec![7; batch.length()];
        batch.seal(&mut bytes);
        bytes
    }

    fn batch() -> Batch {
        let mut touched = TouchedBlocks::default();
        let geometry = Geometry::new(4 * PAGE, 2).unwrap();
        for (block, version) in [(4, 1), (3, 7), (4, 9)] {
            touched.note(geometry, BlockId(block), Version(version));
        }
        let mut writer = begin();
        assert_eq!(touched.put(&mut writer), 2);
        for block in [7, 8] {
            let mut group = Group::default();
            group.push(&Record::image(BlockId(block), Version(1), &[block as u8; 600]));
            group.push(&Record::change(BlockId(block), Version(1), Version(2), b"change"));
            writer.bytes(group.bytes());
        }
        Batch::decode(sealed(HEAD, writer.finish())).unwrap()
    }

    #[test]
    fn a_batch_is_read_as_it_was_made_and_nothing_else_passes() {
        let batch = batch();
        assert_eq!(batch.end(), Lsn(4 * PAGE));
        assert_eq!(Batch::decode(batch.bytes.clone()), Ok(batch.clone()));
        assert_eq!(Batch::peek(&batch.bytes[..64]), Ok((HEAD, PAGE)));
        assert!(batch.footer().eq([(BlockId(3), Version(7)), (BlockId(4), Version(9))]));
        let records: Vec<_> =
            batch.records().map(|(lsn, record, is_last)| (lsn.0, record.block.0, is_last)).collect();
        let start = 3 * PAGE + 64 + 32;
        let ends = [632, 670, 670 + 632, 1340].map(|end| start + end);
        assert_eq!(
            records,
            [(ends[0], 7, false), (ends[1], 7, true), (ends[2], 8, false), (ends[3], 8, true)]
        );
        for byte in 0..batch.bytes.len() {
            let mut bad = batch.bytes.clone();
            bad[byte] ^= 0x10;
            assert!(Batch::decode(bad).is_err(), "byte {byte}");
        }
        assert!(Batch::decode(batch.bytes[..64].to_vec()).is_err());
    }

    #[test]
    fn half_a_group_is_refused() {
        let mut group = Group::default();
        group.push(&Record::change(BlockId(1), Version(1), Version(2), b"a"));
        let half = group.bytes().len();
        group.push(&Record::change(BlockId(2), Version(1), Version(2), b"b"));
        let mut writer = begin();
        writer.bytes(&group.bytes()[..half]);
        let bytes = sealed(BatchHead { footer: 0, ..HEAD }, writer.finish());
        let error = Batch::decode(bytes).unwrap_err();
        assert_eq!(error.fault, Fault::Field("end of a group"));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let good = batch().bytes;
        assert_eq!(batch_any(&good), 2);
        let mut taken = 0;
        plexus_sim::hostile(&[good], |bytes| taken += batch_any(bytes));
        assert!(taken > 100, "what is lawful after its checksum was made right is looked at too: {taken}");
    }
}
