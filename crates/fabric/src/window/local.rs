//! A window seen from a program on the same host that only looks, and written by its owner.
//!
//! Nobody stops a peer from writing meanwhile, so bytes are copied out and words are read whole; never lent.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::atomic::Ordering::Acquire,
};

use super::{Window, WindowSpan, is_word, word, words};
use crate::memory::{Memory, SetupError, to_read};

/// A window of another process of this host, mapped to be read: nothing here can write to it.
#[derive(Debug)]
pub struct SeenWindow {
    span: WindowSpan,
    memory: Memory,
}

impl Window {
    /// The memory file, to hand to those who are only to read it.
    ///
    /// # Errors
    /// The system's.
    pub fn fd_to_read(&self) -> io::Result<OwnedFd> {
        to_read(self.fd())
    }

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

impl SeenWindow {
    /// Maps a window after its size and seals were found to be as announced.
    ///
    /// # Errors
    /// They are not, or the system refuses.
    pub fn map(fd: BorrowedFd<'_>, span: WindowSpan) -> Result<Self, SetupError> {
        Ok(Self { span, memory: Memory::map_to_read("window", fd, span.len)? })
    }

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
    use std::os::fd::AsFd;

    use super::*;
    use crate::WindowId;

    #[test]
    fn what_the_owner_writes_is_what_a_program_sees_and_nothing_lies_outside() {
        for wordwise in [false, true] {
            let window = Window::create(WindowId(0), 4096, 0).unwrap();
            let window = if wordwise { window.wordwise() } else { window };
            let fd = window.fd_to_read().unwrap();
            assert!(super::super::PeerWindow::map(fd.as_fd(), window.span()).is_err(), "it can only be read");
            assert!(rustix::io::write(&fd, b"x").is_err());
            let seen = SeenWindow::map(fd.as_fd(), window.span()).unwrap();
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
