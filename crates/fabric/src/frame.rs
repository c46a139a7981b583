//! A received frame that still lies where it arrived.

use std::{marker::PhantomData, ptr::NonNull};

/// A frame in a ring or a receive buffer, readable until the delivery callback returns.
///
/// The peer may share the memory and write to it meanwhile, by mistake or on purpose. So a frame is
/// never lent as a slice but only copied out, and the copy is what the receiver checks and uses.
pub struct Frame<'a> {
    start: NonNull<u8>,
    len: usize,
    put: u32,
    buffer: PhantomData<&'a [u8]>,
}

impl<'a> Frame<'a> {
    /// Wraps a frame in ordinary memory.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        Self { start: NonNull::from(bytes).cast(), len: bytes.len(), put: 0, buffer: PhantomData }
    }

    /// Wraps a frame in memory that others may write to.
    ///
    /// # Safety
    /// `start..start + len` stays mapped and readable for `'a`.
    #[allow(unsafe_code, reason = "shared memory has no safe view")]
    pub(crate) unsafe fn shared(start: NonNull<u8>, len: usize) -> Self {
        Self { start, len, put: 0, buffer: PhantomData }
    }

    /// The same frame, with the length of the put in front of it.
    #[must_use]
    pub fn with_put_len(self, put: u32) -> Self {
        Self { put, ..self }
    }

    /// The length in bytes of the put in front of the frame, as the peer states it: only good for
    /// statistics.
    #[must_use]
    pub fn put_len(&self) -> u32 {
        self.put
    }

    /// The length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the frame has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the bytes from `at` on into all of `into`.
    ///
    /// # Panics
    /// The frame is shorter; compare with [`Frame::len`] first.
    #[allow(unsafe_code, reason = "shared memory has no safe view")]
    #[inline]
    pub fn copy(&self, at: usize, into: &mut [u8]) {
        assert!(at <= self.len && into.len() <= self.len - at, "read past the end of a frame");
        // SAFETY: the range was checked against `len`, which the constructor vouches for; `into` is
        // ours alone. A peer that writes meanwhile makes the bytes arbitrary, which they are to the
        // caller anyway.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().add(at), into.as_mut_ptr(), into.len()) }
    }

    /// Appends the bytes from `at` on to `onto`. The new bytes are written once and not zeroed
    /// before.
    ///
    /// # Panics
    /// `at` lies past the end of the frame; compare with [`Frame::len`] first.
    #[allow(unsafe_code, reason = "shared memory has no safe view")]
    #[inline]
    pub fn append(&self, at: usize, onto: &mut Vec<u8>) {
        assert!(at <= self.len, "read past the end of a frame");
        let (len, end) = (self.len - at, onto.len());
        onto.reserve(len);
        // SAFETY: the range was checked against `len`, which the constructor vouches for; behind
        // `end` there is room for `len` bytes, all of which are written before the length says so.
        unsafe {
            std::ptr::copy_nonoverlapping(self.start.as_ptr().add(at), onto.as_mut_ptr().add(end), len);
            onto.set_len(end + len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appended_bytes_follow_the_earlier_ones() {
        let mut onto = vec![1, 2];
        Frame::of(&[3, 4, 5]).append(1, &mut onto);
        Frame::of(&[6]).append(1, &mut onto);
        assert_eq!(onto, [1, 2, 4, 5]);
    }
}
