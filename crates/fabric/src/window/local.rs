//! A window seen from a program on the same host that only looks, and written by its owner.
//!
//! Nobody stops a peer from writing meanwhile, so bytes are copied out and words are read whole; never lent.

use std::sync::atomic::Ordering::Acquire;

use super::{PeerWindow, Window, is_word, word, words};

impl Window {
    /// Copies `bytes` into the window at `offset`; false, and nothing copied, where that is not inside. An aligned word
    /// of eight bytes is written whole, and so is every word where the window is [wordwise](crate::WindowSpan::wordwise).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        if !self.span.contains(offset, bytes.len() as u64) {
            return false;
        }
        // SAFETY: checked above, and a mapping has whole pages; nobody has a reference into the memory, and `bytes` are
        // ours.
        unsafe {
            let target = self.memory.start().as_ptr().add(offset as usize);
            if self.span.wordwise || is_word(offset, bytes.len() as u64) {
                words::write(target, bytes);
            } else {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len());
            }
        }
        true
    }
}

impl PeerWindow {
    /// Copies from the window, every word of it at once; false, and nothing copied, where that is not inside.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        if !self.span.contains(offset, into.len() as u64) {
            return false;
        }
        // SAFETY: checked above, and a mapping has whole pages; `into` is ours alone. Bytes that others write meanwhile are
        // arbitrary, not undefined.
        unsafe { words::read(self.memory.start().as_ptr().add(offset as usize), into) };
        true
    }

    /// The little-endian word at `offset`, a multiple of 8; what its writer wrote before it is visible then.
    #[must_use]
    #[inline]
    pub fn load(&self, offset: u64) -> Option<u64> {
        Some(word(self.span, &self.memory, offset)?.load(Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WindowId;

    #[test]
    fn what_the_owner_writes_is_what_a_program_sees_and_nothing_lies_outside() {
        for wordwise in [false, true] {
            let window = Window::create(WindowId(0), 4096, 0).unwrap();
            let window = if wordwise { window.wordwise() } else { window };
            let seen = PeerWindow::map(window.fd(), window.span()).unwrap();
            assert!(window.write(8, &7u64.to_le_bytes()) && window.write(4090, b"abcdef"));
            assert_eq!(seen.load(8), Some(7));
            let mut end = [0; 6];
            assert!(seen.read(4090, &mut end) && &end == b"abcdef");
            assert!(!window.write(4091, b"abcdef") && !window.write(u64::MAX, b"ab"));
            assert!(!seen.read(4091, &mut end) && !seen.read(u64::MAX, &mut end));
            assert_eq!((seen.load(4), seen.load(4096), seen.load(u64::MAX - 7)), (None, None, None));
        }
    }
}
