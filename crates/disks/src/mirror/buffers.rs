//! Buffers for the reads and writes of a served disk. New memory of a unit costs as much as its I/O
//! on a fast disk, so long buffers are used again.

use std::sync::{Arc, Mutex, PoisonError};

use super::map::UNIT_BYTES;
use crate::Buffer;

/// The length in bytes up to which a buffer is allocated for each request.
const SHORT: usize = 64 << 10;

/// The most buffers that are kept.
const KEPT: usize = 16;

/// The long buffers that are free.
#[derive(Clone, Default)]
pub(super) struct BufferPool(Arc<Mutex<Vec<Buffer>>>);

impl BufferPool {
    /// Returns a buffer of at least `length` bytes, at most a unit. Its contents are arbitrary.
    pub(super) fn take(&self, length: usize) -> PooledBuffer {
        let kept = || self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let buffer = match length <= SHORT {
            true => Buffer::zeroed(length),
            false => kept().unwrap_or_else(|| Buffer::zeroed(UNIT_BYTES as usize)),
        };
        PooledBuffer { buffer, pool: self.clone() }
    }
}

/// A buffer that returns to its pool.
pub(super) struct PooledBuffer {
    pub(super) buffer: Buffer,
    pool: BufferPool,
}

impl AsRef<[u8]> for PooledBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for PooledBuffer {
    fn drop(&mut self) {
        let buffer = std::mem::replace(&mut self.buffer, Buffer::zeroed(0));
        let mut kept = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        if buffer.len() == UNIT_BYTES as usize && kept.len() < KEPT {
            kept.push(buffer);
        }
    }
}
