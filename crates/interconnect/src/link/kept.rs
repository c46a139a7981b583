//! Frames that could not be sent at once, or are kept until they have arrived, in memory that is used again.
//!
//! A sender that is faster than its peer keeps thousands of long fragments a second. Taken from the allocator and given back each
//! time they make it return memory to the system and fault it in again; so a link keeps some itself.

use std::sync::Arc;

use bytes::Bytes;
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

/// Some memory that goes back to where it came from.
struct Piece {
    bytes: Vec<u8>,
    spare: Spare,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // When it is full there is enough.
        let _ = self.spare.0.push(std::mem::take(&mut self.bytes));
    }
}

/// The body of a frame, as its sender has it.
#[derive(Clone, Copy)]
pub(super) struct Body<'a> {
    pub(super) bytes: &'a [u8],
    /// What they are a part of, if their sender keeps them as they are.
    pub(super) shared: Option<&'a Bytes>,
}

impl<'a> Body<'a> {
    /// Bytes that are the sender's own again when it has handed them in.
    pub(super) fn borrowed(bytes: &'a [u8]) -> Self {
        Self { bytes, shared: None }
    }

    /// The same for as long as is needed: a copy only where they are not shared.
    pub(super) fn keep(self, spare: &Spare) -> Bytes {
        match self.shared {
            Some(all) => all.slice_ref(self.bytes),
            None => spare.copy(self.bytes),
        }
    }

    /// Whether copying them is worth avoiding.
    pub(super) fn is_long(self) -> bool {
        self.bytes.len() > SHORT
    }
}

/// A frame, with the put in front of it.
pub(super) struct Owned {
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

impl Owned {
    pub(super) fn of(spare: &Spare, header: Header, put: Option<Put<'_>>, body: Body<'_>) -> Self {
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
    fn what_is_shared_is_not_copied() {
        let (spare, all) = (Spare::default(), Bytes::from(vec![7; 40_000]));
        let kept = Body { bytes: &all[10_000..30_000], shared: Some(&all) }.keep(&spare);
        assert_eq!((kept.as_ptr(), kept.len()), (all[10_000..].as_ptr(), 20_000));
    }

    #[test]
    fn memory_of_long_fragments_is_used_again_and_bounded() {
        let spare = Spare::default();
        let keep = |bytes: usize| Owned::of(&spare, Header::note(), None, Body::borrowed(&vec![7; bytes]));
        let kept = keep(10_000);
        let place = kept.body.as_ptr();
        assert_eq!(kept.body, [7; 10_000][..]);
        drop(kept);
        assert_eq!(keep(9_000).body.as_ptr(), place);
        drop([keep(10), keep(LONGEST + 1)]);
        assert_eq!(spare.0.len(), 1, "neither short nor very long ones");
        drop((0..2 * PIECES).map(|_| keep(5_000)).collect::<Vec<_>>());
        assert_eq!(spare.0.len(), PIECES);
    }
}
