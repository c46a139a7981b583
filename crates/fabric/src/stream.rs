//! Copying a block to where another core will use it next.
//!
//! An ordinary copy first takes each target line away from the cache that used it last, one round trip between
//! cores for every 64 bytes, and then has the user take it back the same way. Streaming stores (Intel SDM vol. 1,
//! 10.4.6.2) write whole lines without reading them first and leave them in no cache, from where the other core's
//! prefetcher fetches them well. Measured here for 16 KiB that are passed to and fro, all of it read: 1.7
//! instead of 2.3 microseconds between cores that are near each other, 1.8 instead of 8.6 between ones that are far.
#![allow(unsafe_code, reason = "streaming stores are intrinsics over raw memory")]

use std::ptr::copy_nonoverlapping;

/// Shorter copies go through the cache: fetching them from memory would take the reader longer than the
/// stores save. The smallest block is as long.
pub(crate) const STREAM_FROM: usize = 4096;

/// Copies `len` bytes; when this returns, whatever this thread writes next is seen after them.
///
/// # Safety
/// As [`copy_nonoverlapping`].
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller's.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if len >= STREAM_FROM {
            return streaming(from, to, len);
        }
        copy_nonoverlapping(from, to, len);
    }
}

/// See [`copy`]; `len` is at least a line.
#[cfg(target_arch = "x86_64")]
unsafe fn streaming(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const LINE: usize = 64;
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head, lines and tail cover exactly `0..len`, and every streamed line is aligned; the instructions
    // belong to every x86-64 processor.
    unsafe {
        copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let words = [0, 1, 2, 3].map(|word| _mm_loadu_si128(source.add(word)));
            words.into_iter().enumerate().for_each(|(word, value)| _mm_stream_si128(target.add(word), value));
        }
        copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
        // Streaming stores are ordered with nothing else, so a header written next could be seen before them.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_and_nothing_beside_it() {
        let source: Vec<u8> = (0..3 * STREAM_FROM).map(|byte| byte as u8 | 1).collect();
        for len in
            [0, 1, 63, STREAM_FROM - 1, STREAM_FROM, STREAM_FROM + 1, STREAM_FROM + 77, 2 * STREAM_FROM]
        {
            for shift in 0..70 {
                let mut target = vec![0; 3 * STREAM_FROM];
                // SAFETY: both ranges lie inside their vectors.
                unsafe { copy(source.as_ptr().add(shift / 3), target.as_mut_ptr().add(shift), len) };
                assert_eq!(
                    target[shift..shift + len],
                    source[shift / 3..shift / 3 + len],
                    "{len} at {shift}"
                );
                assert!(target[..shift].iter().chain(&target[shift + len..]).all(|byte| *byte == 0));
            }
        }
    }
}
