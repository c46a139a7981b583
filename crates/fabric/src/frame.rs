//! A received frame, still where it arrived.

use std::{marker::PhantomData, ptr::NonNull};

/// A frame in a ring or a receive buffer, readable until the delivery callback returns.
///
/// The memory may be shared with the peer, who may be hostile or mistaken and write to it meanwhile: so a
/// frame is never seen as a slice, only copied out, and what was copied is what gets checked and used.
pub struct Frame<'a> {
    start: NonNull<u8>,
    len: usize,
    buffer: PhantomData<&'a [u8]>,
}

impl<'a> Frame<'a> {
    /// A frame in ordinary memory.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { start: NonNull::from(bytes).cast(), len: bytes.len(), buffer: PhantomData }
    }

    /// A frame in memory that others may write to.
    ///
    /// # Safety
    /// `start..start + len` stays mapped and readable for `'a`.
    #[allow(unsafe_code, reason = "shared memory has no safe view")]
    pub(crate) unsafe fn shared(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, buffer: PhantomData }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes from `at` on into all of `into`.
    ///
    /// # Panics
    /// When the frame is shorter: compare with [`Frame::len`] first.
    #[allow(unsafe_code, reason = "shared memory has no safe view")]
    #[inline]
    pub fn copy(&self, at: usize, into: &mut [u8]) {
        assert!(at <= self.len && into.len() <= self.len - at, "read past the end of a frame");
        // SAFETY: the range was checked against `len`, which the constructor vouches for; `into` is ours
        // alone. A peer that writes meanwhile makes the bytes arbitrary, which they are to the caller anyway.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(at), into.as_mut_ptr(), into.len()) }
    }
}
