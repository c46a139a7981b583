//! The blocks of a mirrored group. Block `b` is at byte `b * block size` of the chunks of blocks,
//! one behind the other.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use plexus_base::BlockId;

use super::{
    Mirror,
    map::{ChunkId, DiskNumber},
    protocol::DiskRefusal,
    service::ChunkWrite,
};
use crate::{Buffer, DiskError, Page, Shape, Version};

/// A copy of a block as it was read.
pub struct BlockCopy {
    /// The disk; `None` in a group that is not mirrored.
    pub disk: Option<DiskNumber>,
    /// The version of the map at which the copies of its chunk changed last.
    pub version: u64,
    /// The bytes.
    pub bytes: Buffer,
}

/// The blocks of a group.
pub(crate) struct MirrorBlocks {
    mirror: Arc<Mirror>,
    block_bytes: usize,
    /// Known when there is a map; it never changes.
    chunk_bytes: OnceLock<u64>,
}

impl MirrorBlocks {
    pub(crate) fn new(shape: &Shape, mirror: Arc<Mirror>) -> Self {
        Self { mirror, block_bytes: shape.block_size.bytes(), chunk_bytes: OnceLock::new() }
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    pub(crate) fn mirror(&self) -> &Arc<Mirror> {
        &self.mirror
    }

    /// Returns the chunk of a block and its offset there.
    fn place(&self, block: BlockId) -> Result<(ChunkId, u32), DiskError> {
        let chunk_bytes = match self.chunk_bytes.get() {
            Some(bytes) => *bytes,
            None => {
                let bytes = self.mirror.wait_for_map()?.chunk_bytes();
                *self.chunk_bytes.get_or_init(|| bytes)
            }
        };
        Ok(self.place_in(block, chunk_bytes))
    }

    fn place_in(&self, block: BlockId, chunk_bytes: u64) -> (ChunkId, u32) {
        let byte = block.0 * self.block_bytes as u64;
        (ChunkId((byte / chunk_bytes) as u32), (byte % chunk_bytes) as u32)
    }

    /// Begins to read the nearest copy of a block; as [`Mirror::begin_read`]. Returns false, and
    /// does nothing, as long as the node has no map.
    pub(crate) fn begin_read<F>(&self, block: BlockId, done: impl FnOnce() -> F) -> bool
    where
        F: FnOnce(Result<Bytes, DiskRefusal>) + Send + 'static,
    {
        let Some(chunk_bytes) = self.chunk_bytes.get() else { return false };
        let (chunk, offset) = self.place_in(block, *chunk_bytes);
        self.mirror.begin_read(chunk, (offset, self.block_bytes as u32), done());
        true
    }

    pub(crate) fn read(&self, block: BlockId, into: &mut [u8]) -> Result<(), DiskError> {
        let (chunk, offset) = self.place(block)?;
        let (bytes, _) = self.mirror.read(chunk, offset, self.block_bytes as u32, None, None)?;
        into.copy_from_slice(&bytes);
        Ok(())
    }

    /// Reads a block and verifies it. If its nearest copy is not sound, or was never written, all
    /// are compared: the newest sound one replaces the others.
    pub(crate) fn read_verified(&self, block: BlockId, into: &mut [u8]) -> Result<Version, DiskError> {
        let is_read = self.read(block, into);
        let nearest = is_read.as_ref().ok().map(|()| Page::of(&*into).verify(block));
        if let Some(Ok(version)) = nearest
            && version > Version(0)
        {
            return Ok(version);
        }
        let version = |copy: &BlockCopy| Page::of(&copy.bytes[..self.block_bytes]).verify(block).ok();
        loop {
            let copies = self.read_copies(block, false)?;
            let newest = copies.iter().max_by_key(|copy| version(copy));
            let Some((newest, version)) = newest.and_then(|copy| Some((copy, version(copy)?))) else {
                is_read?;
                let page = Page::of(&*into).verify(block).err();
                let (path, offset) = ("mirrored disk group".into(), block.0 * self.block_bytes as u64);
                return match page {
                    Some(page) => Err(DiskError::Page { path, offset, page }),
                    None => Err(DiskRefusal::NoChunk.into()),
                };
            };
            into.copy_from_slice(&newest.bytes[..self.block_bytes]);
            let differs = |copy: &&BlockCopy| copy.bytes[..self.block_bytes] != *into;
            let bad: Vec<_> = copies.iter().filter(differs).filter_map(|copy| copy.disk).collect();
            if bad.is_empty() {
                return Ok(version);
            }
            tracing::warn!(
                "{block}: the copy on {bad:?} is bad, and is replaced by {version:?} of another one"
            );
            if self.write_differing(block, into, &copies)? {
                self.mirror.note_repaired(&bad);
                return Ok(version);
            }
        }
    }

    /// Reads all current copies of a block in doubt. Its unit is noted for the stale ones.
    pub(crate) fn read_in_doubt(&self, block: BlockId) -> Result<Vec<BlockCopy>, DiskError> {
        self.read_copies(block, true)
    }

    fn read_copies(&self, block: BlockId, in_doubt: bool) -> Result<Vec<BlockCopy>, DiskError> {
        let (chunk, offset) = self.place(block)?;
        loop {
            let map = self.mirror.wait_for_map()?;
            let version = map.changed(chunk);
            let read = |disk: DiskNumber| {
                let length = self.block_bytes as u32;
                let mut bytes = Buffer::zeroed(self.block_bytes);
                match self.mirror.read(chunk, offset, length, Some(disk), in_doubt.then_some(version)) {
                    Ok((read, _)) => bytes[..self.block_bytes].copy_from_slice(&read),
                    // It is replaced as a copy that is not sound.
                    Err(DiskRefusal::Failed { .. }) => bytes.fill(0xEE),
                    Err(why) => return Err(why),
                }
                Ok(BlockCopy { disk: Some(disk), version, bytes })
            };
            let copies = map.current_copies(chunk).map(|copy| read(copy.disk));
            match copies.collect::<Result<Vec<_>, DiskRefusal>>() {
                Ok(copies) => return Ok(copies),
                // A copy has become current meanwhile, or stale.
                Err(DiskRefusal::NotReadable(_) | DiskRefusal::Changed) => {}
                Err(why) => return Err(why.into()),
            }
        }
    }

    /// Writes a block to those of its current copies whose bytes differ, and to those on syncing
    /// disks. Returns false if it has other copies by now: then all must be read again.
    pub(crate) fn write_differing(
        &self,
        block: BlockId,
        from: &[u8],
        copies: &[BlockCopy],
    ) -> Result<bool, DiskError> {
        let Some(version) = copies.first().map(|copy| copy.version) else { return Ok(false) };
        let differing = copies.iter().filter(|copy| copy.bytes[..from.len()] != *from);
        let only = Some((version, differing.filter_map(|copy| copy.disk).collect()));
        let (chunk, offset) = self.place(block)?;
        let data = Bytes::copy_from_slice(from);
        match self.mirror.write(vec![ChunkWrite { chunk, offset, data, only, under: None }]) {
            Ok(()) => Ok(true),
            Err(DiskRefusal::Changed) => Ok(false),
            Err(why) => Err(why.into()),
        }
    }

    /// Writes blocks to all live copies.
    pub(crate) fn write(&self, blocks: &[(BlockId, &[u8])]) -> Result<(), DiskError> {
        let writes = blocks.iter().map(|(block, bytes)| {
            let (chunk, offset) = self.place(*block)?;
            let data = Bytes::copy_from_slice(bytes);
            Ok(ChunkWrite { chunk, offset, data, only: None, under: None })
        });
        Ok(self.mirror.write(writes.collect::<Result<_, DiskError>>()?)?)
    }
}
