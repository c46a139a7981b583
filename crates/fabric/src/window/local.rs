//! Windows within one host: written by their owner, and mapped for reading by programs.
//!
//! Peers may write at any time, so bytes are copied out and words are read whole; no reference is
//! lent.

use std::{
    io,
    os::fd::{BorrowedFd, OwnedFd},
    sync::atomic::Ordering::Acquire,
};

use super::{Window, WindowSpan, is_word, word, words};
use crate::memory::{Memory, SetupError, to_read};

/// A window of another process of this host, mapped for reading: nothing here can write to it.
#[derive(Debug)]
pub struct SeenWindow {
    span: WindowSpan,
    memory: Memory,
}

impl Window {
    /// The memory file, to hand to programs that may only read it.
    ///
    /// # Errors
    /// A system call fails.
    pub fn fd_to_read(&self) -> io::Result<OwnedFd> {
        to_read(self.fd())
    }

    /// Copies `bytes` into the window at `offset`; returns false, with nothing copied, if that is
    /// not inside. An aligned word of eight bytes is written whole, and so is every word if the
    /// window is [wordwise](crate::WindowSpan::wordwise).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        if !self.span.contains(offset, bytes.len() as u64) {
            return false;
        }
        // SAFETY: checked above, and a mapping has whole pages; there is no reference into the
        // memory, and `bytes` are ours.
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
    /// Maps a window after its size and seals were verified.
    ///
    /// # Errors
    /// They are not as announced, or a system call fails.
    pub fn map(fd: BorrowedFd<'_>, span: WindowSpan) -> Result<Self, SetupError> {
        Ok(Self { span, memory: Memory::map_to_read("window", fd, span.len)? })
    }

    /// Copies from the window, every word at once; returns false, with nothing copied, if the range
    /// is not inside.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        if !self.span.contains(offset, into.len() as u64) {
            return false;
        }
        // SAFETY: checked above, and a mapping has whole pages; `into` is ours alone. Bytes that
        // others write meanwhile are arbitrary, not undefined.
        unsafe { words::read(self.memory.start().as_ptr().add(offset as usize), into) };
        true
    }

    /// The little-endian word at `offset`, a multiple of 8; everything that its writer wrote before
    /// is then visible.
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
    fn programs_see_the_bytes_that_the_owner_writes() {
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
