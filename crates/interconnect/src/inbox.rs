//! Messages that have arrived and wait to be handled, in one reused buffer.
//!
//! A handler may send on the rail that delivered to it, so delivery and handling are two steps. The
//! copy between them also takes the bytes out of the peer's reach.

use plexus_base::NodeId;
use plexus_fabric::Frame;

use crate::{Message, message::Head, spares::Spares};

/// The bytes of the buffer that are kept between messages.
const KEPT: usize = 4 << 20;

#[derive(Clone, Copy)]
enum PayloadPlace {
    /// The payload is in the buffer.
    Here { start: usize, len: usize },
    /// The payload was assembled elsewhere; the index of its buffer.
    Whole(usize),
}

#[derive(Clone, Copy)]
struct Entry {
    from: NodeId,
    head: Head,
    place: PayloadPlace,
}

/// The arrived messages of one worker, in order.
#[derive(Default)]
pub(crate) struct Inbox {
    bytes: Vec<u8>,
    wholes: Vec<Vec<u8>>,
    /// The memory of long messages that were handled.
    spares: Spares,
    entries: Vec<Entry>,
}

impl Inbox {
    /// Adds the message that a frame carries from `at` on.
    #[inline]
    pub(crate) fn push(&mut self, from: NodeId, head: Head, frame: &Frame<'_>, at: usize) {
        let start = self.bytes.len();
        frame.append(at, &mut self.bytes);
        self.entries.push(Entry {
            from,
            head,
            place: PayloadPlace::Here { start, len: self.bytes.len() - start },
        });
    }

    /// Adds a message that was assembled elsewhere.
    pub(crate) fn push_whole(&mut self, from: NodeId, head: Head, whole: Vec<u8>) {
        self.entries.push(Entry { from, head, place: PayloadPlace::Whole(self.wholes.len()) });
        self.wholes.push(whole);
    }

    /// Returns an empty buffer to assemble a long message in.
    pub(crate) fn spare(&mut self) -> Vec<u8> {
        self.spares.take()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the sender of the message and its header.
    #[inline]
    pub(crate) fn head(&self, index: usize) -> (NodeId, Head) {
        let Entry { from, head, .. } = self.entries[index];
        (from, head)
    }

    #[inline]
    pub(crate) fn message(&self, index: usize) -> Message<'_> {
        let Entry { from, head, place } = self.entries[index];
        let Head { channel, kind, epoch, tag, .. } = head;
        let payload = match place {
            PayloadPlace::Here { start, len } => &self.bytes[start..start + len],
            PayloadPlace::Whole(index) => &self.wholes[index],
        };
        Message { from, channel, kind, epoch, tag, payload }
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        if self.bytes.capacity() > KEPT {
            self.bytes = Vec::new();
        }
        if !self.wholes.is_empty() {
            self.recycle();
        }
    }

    #[cold]
    fn recycle(&mut self) {
        self.wholes.drain(..).for_each(|whole| self.spares.give(whole));
    }
}
