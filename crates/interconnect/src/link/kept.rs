//! Frames that could not be sent at once, or are kept until they have arrived, in memory that is used again.
//!
//! A sender that is faster than its peer keeps thousands of long fragments a second. Taken from the allocator and given back each
//! time they make it return memory to the system and fault it in again; so a link keeps some itself.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use plexus_fabric::{Put, WindowId};

use crate::message::Header;

/// Shorter bytes are not worth keeping memory for.
const SHORT: usize = 4 << 10;

/// Pieces of memory that a link keeps: 8 MiB of the longest fragments.
const PIECES: usize = 512;

/// Longer ones (puts) go back to the allocator.
const LONGEST: usize = 64 << 10;

/// The spare memory of a link.
#[derive(Clone)]
pub(super) struct Spare(Arc<ArrayQueue<Vec<u8>>>);

impl Default for Spare {
    fn default() -> Self {
        Self(Arc::new(ArrayQueue::new(PIECES)))
    }
}

impl Spare {
    /// A copy of `bytes`.
    fn copy(&self, bytes: &[u8]) -> Bytes {
        if bytes.len() <= SHORT || bytes.len() > LONGEST {
            return Bytes { bytes: bytes.to_vec(), spare: None };
        }
        let mut copy = self.0.pop().unwrap_or_default();
        copy.clear();
        copy.extend_from_slice(bytes);
        Bytes { bytes: copy, spare: Some(self.clone()) }
    }
}

/// Some bytes, whose memory goes back to where it came from.
struct Bytes {
    bytes: Vec<u8>,
    spare: Option<Spare>,
}

impl Drop for Bytes {
    fn drop(&mut self) {
        if let Some(spare) = &self.spare {
            // When it is full there is enough.
            let _ = spare.0.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// A frame, with the put in front of it.
pub(super) struct Owned {
    pub(super) header: Header,
    body: Bytes,
    put: Option<OwnedPut>,
}

struct OwnedPut {
    window: WindowId,
    offset: u64,
    generation: u32,
    data: Bytes,
}

impl Owned {
    pub(super) fn of(spare: &Spare, header: Header, put: Option<Put<'_>>, body: &[u8]) -> Self {
        let put = put.map(|put| OwnedPut {
            window: put.window,
            offset: put.offset,
            generation: put.generation,
            data: spare.copy(put.data),
        });
        Self { header, body: spare.copy(body), put }
    }

    pub(super) fn body(&self) -> &[u8] {
        &self.body.bytes
    }

    pub(super) fn put(&self) -> Option<Put<'_>> {
        let OwnedPut { window, offset, generation, data } = self.put.as_ref()?;
        Some(Put { window: *window, offset: *offset, generation: *generation, data: &data.bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_long_fragments_is_used_again_and_bounded() {
        let spare = Spare::default();
        let keep = |bytes: usize| Owned::of(&spare, Header::note(), None, &vec![7; bytes]);
        let kept = keep(10_000);
        let place = kept.body().as_ptr();
        assert_eq!(kept.body(), [7; 10_000]);
        drop(kept);
        assert_eq!(keep(9_000).body().as_ptr(), place);
        drop([keep(10), keep(LONGEST + 1)]);
        assert_eq!(spare.0.len(), 1, "neither short nor very long ones");
        drop((0..2 * PIECES).map(|_| keep(5_000)).collect::<Vec<_>>());
        assert_eq!(spare.0.len(), PIECES);
    }
}
