//! Memory of windows that have ended. Programs that read it in place may not know of the end yet,
//! so it is reused only when the last of them has closed its view or is gone.

use std::collections::BTreeSet;

use super::{super::ClientId, Windows};

/// A program, and its number for the window that it reads.
pub(super) type Reader = (ClientId, u32);

/// A part of the arena that programs still read.
pub(super) struct Ended {
    at: u64,
    len: u64,
    readers: BTreeSet<Reader>,
}

impl Windows {
    /// Gives a part of the arena back as soon as no program reads it any more.
    pub(super) fn give(&mut self, at: u64, len: u64, readers: BTreeSet<Reader>) {
        if readers.is_empty() {
            self.arena.give(at, len);
        } else {
            self.ended.push(Ended { at, len, readers });
        }
    }

    /// Ends a program's reading through a view.
    pub(super) fn let_go(&mut self, reader: Reader) {
        let Self { ended, arena, .. } = self;
        ended.retain_mut(|part| {
            if part.readers.remove(&reader) && part.readers.is_empty() {
                arena.give(part.at, part.len);
            }
            !part.readers.is_empty()
        });
    }
}
