//! A window seen from a program on the same host that only looks, and written by its owner.
//!
//! Nobody stops a peer from writing meanwhile, so bytes are copied out and words are read whole; never lent.

use std::sync::atomic::{AtomicU64, Ordering::Acquire};

use super::{PeerWindow, Window};

impl Window {
    /// Copies `bytes` into the window at `offset`; false, and nothing copied, where that is not inside. An aligned word
    /// of eight bytes is written whole.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> bool {
        if !inside(self.span.len, offset, bytes.len()) {
            return false;
        }
        // SAFETY: checked above; nobody has a reference into the memory, and `bytes` are ours.
        unsafe { write(self.memory.start().as_ptr().add(offset as usize), bytes) };
        true
    }
}

impl PeerWindow {
    /// Copies from the window; false, and nothing copied, where that is not inside.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        if !inside(self.span.len, offset, into.len()) {
            return false;
        }
        // SAFETY: checked above; `into` is ours alone. Bytes that others write meanwhile are arbitrary, not undefined.
        unsafe {
            let from = self.memory.start().as_ptr().add(offset as usize);
            std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len());
        }
        true
    }

    /// The little-endian word at `offset`, a multiple of 8; what its writer wrote before it is visible then.
    #[must_use]
    #[inline]
    pub fn load(&self, offset: u64) -> Option<u64> {
        if !inside(self.span.len, offset, 8) || !offset.is_multiple_of(8) {
            return None;
        }
        // SAFETY: checked above: inside the mapping and aligned, and it lives as long as `self`.
        let word = unsafe { AtomicU64::from_ptr(self.memory.start().as_ptr().add(offset as usize).cast()) };
        Some(u64::from_le(word.load(Acquire)))
    }
}

fn inside(window: u64, offset: u64, len: usize) -> bool {
    offset.checked_add(len as u64).is_some_and(|end| end <= window)
}

/// # Safety
/// `target` and the bytes behind it are mapped, and no reference leads to them.
unsafe fn write(target: *mut u8, bytes: &[u8]) {
    match <[u8; 8]>::try_from(bytes) {
        Ok(word) if target.addr().is_multiple_of(8) => {
            // SAFETY: aligned, and mapped as the caller says.
            let place = unsafe { AtomicU64::from_ptr(target.cast()) };
            place.store(u64::from_ne_bytes(word), std::sync::atomic::Ordering::Release);
        }
        // SAFETY: as the caller says.
        _ => unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WindowId;

    #[test]
    fn what_the_owner_writes_is_what_a_program_sees_and_nothing_lies_outside() {
        let window = Window::create(WindowId(0), 4096, 0).unwrap();
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
