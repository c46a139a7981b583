//! The blocks that the records of a segment or a batch touch, with their last versions.
//!
//! The list is the *footer* of the segment and stands in front of the next one, in its first batch:
//! there a reader finds it without reading the segment. A segment that touches too many blocks has
//! no footer, and a reader reads its records. The footer of any other batch is in the next one.

use std::collections::BTreeMap;

use plexus_base::{
    BlockId,
    wire::{self, Fault, Fixed, Reader, Writer},
};
use plexus_disks::Version;

use super::geometry::{FOOTER_ENTRY, Geometry};

wire::layout! {
    struct FooterEntry: 16 { block: BlockId, version: Version }
}

const _: () = assert!(FooterEntry::LEN as u64 == FOOTER_ENTRY);

/// The blocks of one segment or batch, as long as they fit into a footer.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct TouchedBlocks {
    blocks: BTreeMap<BlockId, Version>,
    has_too_many: bool,
}

impl TouchedBlocks {
    /// Notes that a record leads a block to this version.
    pub fn note(&mut self, geometry: Geometry, block: BlockId, version: Version) {
        if self.has_too_many {
            return;
        }
        let last = self.blocks.entry(block).or_insert(version);
        *last = version.max(*last);
        if self.blocks.len() > geometry.footer_max() {
            *self = Self { blocks: BTreeMap::new(), has_too_many: true };
        }
    }

    /// Returns the bytes of the entries.
    pub(super) fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * FOOTER_ENTRY
    }

    /// Appends the entries to a batch, and returns how many.
    pub(super) fn put(&self, writer: &mut Writer) -> u32 {
        self.blocks.iter().for_each(|(&block, &version)| {
            writer.put(&FooterEntry { block, version });
        });
        self.blocks.len() as u32
    }
}

/// Takes the next entry of a footer.
pub(super) fn take(reader: &mut Reader<'_>) -> Result<(BlockId, Version), Fault> {
    reader.take().map(|FooterEntry { block, version }| (block, version))
}
