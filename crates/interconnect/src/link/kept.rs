//! Frames that could not be sent at once, or are kept until they have arrived, in reused memory.
//!
//! A sender that is faster than its peer keeps thousands of long fragments a second. If each came
//! from the allocator, that would return memory to the system and fault it in again. So a link
//! keeps some memory itself.

use std::sync::Arc;

use bytes::Bytes;
use crossbeam_queue::ArrayQueue;
use plexus_fabric::{Put, WindowId};

use crate::message::Header;

/// The length below which memory is not worth keeping.
const SHORT: usize = 4 << 10;

/// The pieces of memory that a link keeps: 8 MiB of the longest fragments.
const PIECES: usize = 512;

/// The length above which memory (of puts) goes back to the allocator.
const LONGEST: usize = 64 << 10;

/// The spare memory of a link.
#[derive(Clone)]
pub(super) struct SpareMemory(Arc<ArrayQueue<Vec<u8>>>);

impl Default for SpareMemory {
    fn default() -> Self {
        Self(Arc::new(ArrayQueue::new(PIECES)))
    }
}

impl SpareMemory {
    /// Copies `bytes` into spare memory.
    pub(super) fn copy(&self, bytes: &[u8]) -> Bytes {
        if bytes.len() <= SHORT || bytes.len() > LONGEST {
            return Bytes::copy_from_slice(bytes);
        }
        let mut copy = self.0.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        Bytes::from_owner(Piece { bytes: copy, spare: self.clone() })
    }
}

/// A piece of memory that returns to the spare memory when it is dropped.
struct Piece {
    bytes: Vec<u8>,
    spare: SpareMemory,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // A full queue has enough; the memory goes back to the allocator.
        let _ = self.spare.0.push(std::mem::take(&mut self.bytes));
    }
}

/// The body of a frame, as its sender has it.
#[derive(Clone, Copy)]
pub(super) struct FrameBody<'a> {
    pub(super) bytes: &'a [u8],
    /// The shared bytes that contain them, if the sender keeps those unchanged.
    pub(super) shared: Option<&'a Bytes>,
}

impl<'a> FrameBody<'a> {
    /// A body whose bytes the sender may reuse after the call.
    pub(super) fn borrowed(bytes: &'a [u8]) -> Self {
        Self { bytes, shared: None }
    }

    /// Keeps the bytes as long as needed; copies them only if they are not shared.
    pub(super) fn keep(self, spare: &SpareMemory) -> Bytes {
        match self.shared {
            Some(all) => all.slice_ref(self.bytes),
            None => spare.copy(self.bytes),
        }
    }

    /// Returns true if a copy of the bytes is worth avoiding.
    pub(super) fn is_long(self) -> bool {
        self.bytes.len() > SHORT
    }
}

/// A frame, with the put in front of it.
pub(super) struct OwnedFrame {
    pub(super) header: Header,
    pub(super) body: Bytes,
    put: Option<OwnedPut>,
}

struct OwnedPut {
    window: WindowId,
    offset: u64,
    generation: u32,
    data: Bytes,
}

impl OwnedFrame {
    pub(super) fn of(spare: &SpareMemory, header: Header, put: Option<Put<'_>>, body: FrameBody<'_>) -> Self {
        let put = put.map(|put| OwnedPut {
            window: put.window,
            offset: put.offset,
            generation: put.generation,
            data: spare.copy(put.data),
        });
        Self { header, body: body.keep(spare), put }
    }

    pub(super) fn put(&self) -> Option<Put<'_>> {
        let OwnedPut { window, offset, generation, data } = self.put.as_ref()?;
        Some(Put { window: *window, offset: *offset, generation: *generation, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_bytes_are_not_copied() {
        let (spare, all) = (SpareMemory::default(), Bytes::from(vec![7; 40_000]));
        let kept = FrameBody { bytes: &all[10_000..30_000], shared: Some(&all) }.keep(&spare);
        assert_eq!((kept.as_ptr(), kept.len()), (all[10_000..].as_ptr(), 20_000));
    }

    #[test]
    fn memory_of_long_fragments_is_reused_and_bounded() {
        let spare = SpareMemory::default();
        let keep =
            |bytes: usize| OwnedFrame::of(&spare, Header::note(), None, FrameBody::borrowed(&vec![7; bytes]));
        let kept = keep(10_000);
        let place = kept.body.as_ptr();
        assert_eq!(kept.body, [7; 10_000][..]);
        drop(kept);
        assert_eq!(keep(9_000).body.as_ptr(), place);
        drop([keep(10), keep(LONGEST + 1)]);
        assert_eq!(spare.0.len(), 1, "only long fragments, no very long ones, are kept");
        drop((0..2 * PIECES).map(|_| keep(5_000)).collect::<Vec<_>>());
        assert_eq!(spare.0.len(), PIECES);
    }
}
