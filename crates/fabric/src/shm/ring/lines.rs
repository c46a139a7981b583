//! Copies with few stores that fill and move cache lines, and prefetch hints. It knows nothing of
//! rings.
#![allow(unsafe_code, reason = "copies between raw addresses; prefetch hints are instructions")]

use std::ptr::{NonNull, copy_nonoverlapping};

/// Copies `len` bytes. A short length takes as few stores as possible, so that a line is filled at
/// once.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`].
#[inline(always)]
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    /// Copies any length between one and two words by two words that may overlap.
    #[inline(always)]
    unsafe fn ends<T: Copy>(from: *const u8, to: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: `len` is at least the size of a `T`, so both ends lie inside.
        unsafe {
            let (a, b) = (from.cast::<T>().read_unaligned(), from.add(last).cast::<T>().read_unaligned());
            to.cast::<T>().write_unaligned(a);
            to.add(last).cast::<T>().write_unaligned(b);
        }
    }
    // SAFETY: each arm covers exactly `0..len`.
    unsafe {
        match len {
            0 => {}
            1 => to.write(from.read()),
            2..4 => ends::<u16>(from, to, len),
            4..8 => ends::<u32>(from, to, len),
            8..16 => ends::<u64>(from, to, len),
            16..=32 => ends::<[u64; 2]>(from, to, len),
            33..=64 => ends::<[u64; 4]>(from, to, len),
            // A ring stays in the caches of both cores. Streaming stores would push it out to
            // memory, and halve the throughput.
            _ => copy_nonoverlapping(from, to, len),
        }
    }
}

/// Requests ownership of a line for this core, without waiting.
#[inline(always)]
pub(super) fn own_soon(line: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it faults on no address and changes no memory. Processors without it ignore
    // it.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags));
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}

/// Requests a line for reading, without waiting.
#[inline(always)]
pub(super) fn fetch_soon(line: NonNull<u8>) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint: it faults on no address and changes no memory.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
