//! Messages that have arrived and wait to be handled, in one reused buffer.
//!
//! A handler may send on the very rail that delivered to it, so delivery and handling are two steps; the copy
//! between them is also what takes the bytes out of the peer's reach.

use plexus_base::NodeId;

use crate::{Message, message::Head};

#[derive(Clone, Copy)]
struct Entry {
    from: NodeId,
    head: Head,
    start: usize,
    len: usize,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

impl Inbox {
    /// Adds a message and returns where its `len` bytes are to be written.
    #[inline]
    pub(crate) fn push(&mut self, from: NodeId, head: Head, len: usize) -> &mut [u8] {
        let start = self.bytes.len();
        self.bytes.resize(start + len, 0);
        self.entries.push(Entry { from, head, start, len });
        &mut self.bytes[start..]
    }

    /// Adds a message that was put together elsewhere, and empties `whole`.
    pub(crate) fn push_whole(&mut self, from: NodeId, head: Head, whole: &mut Vec<u8>) {
        self.push(from, head, whole.len()).copy_from_slice(whole);
        // What was once a long message must not hold its memory for ever.
        if whole.capacity() > 1 << 20 {
            *whole = Vec::new();
        }
        whole.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn message(&self, index: usize) -> Message<'_> {
        let Entry { from, head, start, len } = self.entries[index];
        let Head { channel, kind, epoch, tag, .. } = head;
        Message { from, channel, kind, epoch, tag, payload: &self.bytes[start..start + len] }
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        if self.bytes.capacity() > 4 << 20 {
            self.bytes = Vec::new();
        }
    }
}
