//! Records, and groups of them that are replayed completely or not at all. Little endian:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 change, 2 image |
//! | 1 | 1 | bit 0: carried; bit 1: the next record belongs to the same group |
//! | 2 | 2 | zero |
//! | 4 | 4 | length of the bytes behind the head |
//! | 8 | 8 | block |
//! | 16 | 8 | version before; of an image the version that it shows |
//! | 24 | 8 | version after; of an image the same |
//! | 32 | | the bytes: of a change a patch of the user bytes, of an image the whole page, or only the header if the user bytes are zero |
//!
//! The number of a kind is never used again. An unknown kind is a decode error: a program that does
//! not know a record cannot replay the block.

use plexus_base::{
    BlockId,
    wire::{self, DecodeError, Fault, Fixed, Reader, Zeros, require},
};
use plexus_disks::Version;

wire::numbered! {
    /// The kind of a record.
    pub enum RecordKind as "kind of record" {
        /// Leads a block from one version to the next.
        Change = 1,
        /// Shows the whole block at a version.
        Image = 2,
    }
}

wire::layout! {
    struct RecordHead: 32 {
        kind: RecordKind, flags: u8, zero: Zeros<2>, length: u32, block: BlockId, before: Version, after: Version
    }
}

/// The bytes in front of those of a record.
const RECORD_HEAD: usize = RecordHead::LEN;

const CARRIED: u8 = 1;
const GOES_ON: u8 = 2;

/// The offset of the flags in a record.
const FLAGS_AT: usize = 1;

/// A change or an image of one block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record<'a> {
    /// The kind.
    pub kind: RecordKind,
    /// True if the record was first in the stream of another node and came with the block.
    pub is_carried: bool,
    /// The block.
    pub block: BlockId,
    /// The only version to which a change applies; the version of an image.
    pub before: Version,
    /// The version of the block afterwards.
    pub after: Version,
    /// The change as an encoded patch, or the page.
    pub bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// Makes the record of a change, which must lead to a later version.
    #[must_use]
    pub fn change(block: BlockId, before: Version, after: Version, bytes: &'a [u8]) -> Self {
        assert!(before < after, "{block}: a change leads to a later version");
        Self { kind: RecordKind::Change, is_carried: false, block, before, after, bytes }
    }

    /// Makes the image of a block at a version.
    #[must_use]
    pub fn image(block: BlockId, version: Version, bytes: &'a [u8]) -> Self {
        Self { kind: RecordKind::Image, is_carried: false, block, before: version, after: version, bytes }
    }

    /// Takes the next record, and returns true with it if its group goes on behind it.
    pub(super) fn take(reader: &mut Reader<'a>) -> Result<(Self, bool), Fault> {
        let RecordHead { kind, flags, length, block, before, after, .. } = reader.take()?;
        require(flags & !(CARRIED | GOES_ON) == 0, "flags of a record")?;
        let is_possible = match kind {
            RecordKind::Change => before < after,
            RecordKind::Image => before == after,
        };
        require(is_possible, "versions of a record")?;
        let bytes = reader.bytes(length as usize)?;
        let is_carried = flags & CARRIED != 0;
        Ok((Self { kind, is_carried, block, before, after, bytes }, flags & GOES_ON != 0))
    }
}

/// Records that are replayed completely or not at all, in the order of their making.
#[derive(Clone, Default, Debug)]
pub struct Group {
    bytes: Vec<u8>,
    /// The start of the last record.
    last: usize,
    blocks: Vec<(BlockId, Version)>,
    image_bytes: u64,
    clock: u64,
}

impl Group {
    /// Adds a record behind the others.
    pub fn push(&mut self, record: &Record<'_>) -> &mut Self {
        let Record { kind, is_carried, block, before, after, bytes } = *record;
        if let Some(flags) = self.bytes.get_mut(self.last + FLAGS_AT) {
            *flags |= GOES_ON;
        }
        self.last = self.bytes.len();
        let flags = wire::bits([(is_carried, CARRIED)]);
        let head = RecordHead { kind, flags, zero: Zeros, length: bytes.len() as u32, block, before, after };
        self.bytes.extend_from_slice(&wire::encode::<_, RECORD_HEAD>(&head));
        self.bytes.extend_from_slice(bytes);
        if kind == RecordKind::Image {
            self.image_bytes += (self.bytes.len() - self.last) as u64;
        }
        self.blocks.push((block, after));
        self
    }

    /// Decodes the records of `block` that came with it from another node, without those that lead
    /// to a version up to `known`.
    ///
    /// # Errors
    /// The bytes are not carried changes of the block.
    pub fn of_carried(block: BlockId, known: Version, bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("carried redo", bytes, |reader| {
            let mut group = Self::default();
            while !reader.is_empty() {
                let (record, _) = Record::take(reader)?;
                let fits = record.is_carried && record.kind == RecordKind::Change && record.block == block;
                require(fits, "record")?;
                if record.after > known {
                    group.push(&record);
                }
            }
            Ok(group)
        })
    }

    /// Returns true if there is no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the encoded records, to travel with their block.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Raises the clock of the group: the highest commit number that its maker has drawn.
    pub fn raise_clock(&mut self, clock: u64) -> &mut Self {
        self.clock = self.clock.max(clock);
        self
    }

    /// Returns the encoded records.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the block of each record and its version afterwards.
    pub(super) fn blocks(&self) -> &[(BlockId, Version)] {
        &self.blocks
    }

    /// Returns the bytes of the images among the records.
    pub(super) fn image_bytes(&self) -> u64 {
        self.image_bytes
    }

    pub(super) fn clock(&self) -> u64 {
        self.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_read_as_it_was_made() {
        let image = Record::image(BlockId(7), Version(0), &[5; 100]);
        let change = Record::change(BlockId(7), Version(0), Version(1), b"ab");
        let carried = Record { is_carried: true, ..Record::change(BlockId(9), Version(4), Version(6), b"") };
        let mut group = Group::default();
        group.push(&image).push(&change).push(&carried).raise_clock(8).raise_clock(3);
        assert_eq!((group.clock(), group.bytes().len()), (8, 3 * RECORD_HEAD + 102));
        let mut reader = Reader::new(group.bytes());
        let mut next = || Record::take(&mut reader);
        assert_eq!([next(), next(), next()], [Ok((image, true)), Ok((change, true)), Ok((carried, false))]);
        assert_eq!(next(), Err(Fault::CutOff));
    }

    #[test]
    fn only_carried_changes_of_the_block_are_taken() {
        let carried = |block, before| Record {
            is_carried: true,
            ..Record::change(BlockId(block), Version(before), Version(before + 1), b"a")
        };
        let taken = |records: &[Record<'_>], known| {
            let mut group = Group::default();
            records.iter().for_each(|record| _ = group.push(record));
            let taken = Group::of_carried(BlockId(7), Version(known), &group.into_bytes());
            taken.map(|group| group.blocks().iter().map(|(_, after)| after.0).collect::<Vec<_>>())
        };
        let both = [carried(7, 1), carried(7, 4)];
        assert_eq!(taken(&both, 0), Ok(vec![2, 5]));
        assert_eq!(taken(&both, 2), Ok(vec![5]));
        assert_eq!(taken(&both, 5), Ok(vec![]));
        let own = Record { is_carried: false, ..carried(7, 1) };
        let image = Record { is_carried: true, ..Record::image(BlockId(7), Version(1), b"page") };
        for wrong in [carried(8, 1), own, image] {
            assert!(taken(&[carried(7, 1), wrong], 9).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn impossible_records_are_refused() {
        let mut group = Group::default();
        let bytes = group.push(&Record::change(BlockId(7), Version(1), Version(2), b"abc")).bytes();
        for (at, value, field) in [
            (0, 0, "kind of record"),
            (0, 3, "kind of record"),
            (1, 4, "flags"),
            (16, 2, "versions"),
            (2, 1, "unused"),
        ] {
            let mut bad = bytes.to_vec();
            bad[at] = value;
            let fault = Record::take(&mut Reader::new(&bad)).unwrap_err().to_string();
            assert!(fault.contains(field), "{fault}");
        }
        assert_eq!(Record::take(&mut Reader::new(&bytes[..34])), Err(Fault::CutOff));
    }
}
