//! The bytes of a redo stream: chunks of a mirrored group, one behind the other.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;

use super::{
    Mirror,
    map::{ChunkId, DiskNumber, UNIT_BYTES},
    protocol::DiskRefusal,
    service::ChunkWrite,
};
use crate::{Device, DiskError};

/// A redo stream on chunks.
pub struct MirrorStream {
    mirror: Arc<Mirror>,
    name: String,
    chunks: Vec<ChunkId>,
    chunk_bytes: u64,
    length: u64,
    /// The place among the copies of each chunk that is read if it is current; `None`: the nearest.
    copy: Option<usize>,
    /// The writes that the next sync makes.
    pending: Mutex<Pending>,
    /// Held by a sync: one that finds its writes taken must not end before the other one.
    syncing: Mutex<()>,
}

#[derive(Default)]
struct Pending {
    writes: Vec<ChunkWrite>,
    has_failed: bool,
}

impl MirrorStream {
    /// Opens the stream of this name; `None` if the group has none. With `copy`, that one of the
    /// copies of each chunk is read if it is current.
    ///
    /// # Errors
    /// The node ends.
    pub fn open(mirror: &Arc<Mirror>, name: &str, copy: Option<usize>) -> Result<Option<Self>, DiskError> {
        let map = mirror.wait_for_map()?;
        let Some(chunks) = map.stream(name) else { return Ok(None) };
        let chunk_bytes = map.chunk_bytes();
        let length = chunks.len() as u64 * chunk_bytes;
        let (mirror, name) = (mirror.clone(), name.to_owned());
        let (pending, syncing) = Default::default();
        Ok(Some(Self { mirror, name, chunks, chunk_bytes, length, copy, pending, syncing }))
    }

    #[cfg(test)]
    pub(super) fn has_pending(&self) -> bool {
        !self.pending.lock().unwrap_or_else(PoisonError::into_inner).writes.is_empty()
    }

    /// Returns the parts of a range that are each in one unit: chunk, offset there, place in the
    /// range, bytes.
    fn parts(&self, offset: u64, length: usize) -> Result<Vec<(ChunkId, u32, usize, usize)>, DiskError> {
        if offset + length as u64 > self.length {
            let path = PathBuf::from(&self.name);
            return Err(DiskError::Truncated { path, found: self.length, expected: offset + length as u64 });
        }
        let (mut parts, mut done) = (Vec::new(), 0);
        while done < length {
            let at = offset + done as u64;
            let within = (at % self.chunk_bytes) as u32;
            let bytes = ((UNIT_BYTES - within % UNIT_BYTES) as usize).min(length - done);
            parts.push((self.chunks[(at / self.chunk_bytes) as usize], within, done, bytes));
            done += bytes;
        }
        Ok(parts)
    }

    /// Returns the disk that is to be read, if its copy is current.
    fn preferred(&self, chunk: ChunkId) -> Option<DiskNumber> {
        let map = self.mirror.map()?;
        let disk = map.copies(chunk)?.get(self.copy?)?.disk;
        map.current_copies(chunk).any(|copy| copy.disk == disk).then_some(disk)
    }
}

impl Device for MirrorStream {
    fn length(&self) -> u64 {
        self.length
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        self.sync()?;
        for (chunk, within, start, bytes) in self.parts(offset, into.len())? {
            let preferred = self.preferred(chunk);
            let read = self.mirror.read(chunk, within, bytes as u32, preferred, None);
            let read = match read {
                Err(DiskRefusal::NotReadable(_) | DiskRefusal::Failed { .. }) if preferred.is_some() => {
                    self.mirror.read(chunk, within, bytes as u32, None, None)
                }
                read => read,
            };
            into[start..start + bytes].copy_from_slice(&read?.0);
        }
        Ok(())
    }

    /// Keeps the bytes until the next sync, which sends them to all copies at once.
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DiskError> {
        let parts = self.parts(offset, from.len())?;
        let write = |(chunk, offset, start, bytes): (ChunkId, u32, usize, usize)| {
            let data = Bytes::copy_from_slice(&from[start..start + bytes]);
            ChunkWrite { chunk, offset, data, only: None, under: None }
        };
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.writes.extend(parts.into_iter().map(write));
        Ok(())
    }

    fn sync(&self) -> Result<(), DiskError> {
        let _one = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        let writes = {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            if pending.has_failed {
                let why = "an earlier attempt failed, so what was written is in doubt".into();
                return Err(DiskError::NotDurable { why });
            }
            std::mem::take(&mut pending.writes)
        };
        if writes.is_empty() {
            return Ok(());
        }
        self.mirror.write(writes).map_err(|why| {
            self.pending.lock().unwrap_or_else(PoisonError::into_inner).has_failed = true;
            why.into()
        })
    }
}
