//! Copies into and out of memory that other threads read meanwhile, a word at a time.
//!
//! Guarantees: every word of eight bytes at a multiple of eight changes at once, also one of which
//! only some bytes are written, and is read at once. Words change in ascending order, each visible
//! only after those before it. Between words nothing holds: a reader of several may see some old
//! and some new ones.
//!
//! This module does not know what a window is, nor which threads read.

use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::WORD;

/// Copies `bytes` to `target`.
///
/// # Safety
/// Every word that holds a byte of the target is mapped, and no reference leads to it.
pub(super) unsafe fn write(target: *mut u8, bytes: &[u8]) {
    let (head, rest) = bytes.split_at(bytes.len().min(before_word(target.addr())));
    let (words, tail) = rest.as_chunks::<WORD>();
    // SAFETY: head, words and tail are one behind the other the bytes that the caller vouches for,
    // and behind the head the target is aligned, if anything is left.
    unsafe {
        write_part(target, head);
        let mut at = target.add(head.len());
        for word in words {
            AtomicU64::from_ptr(at.cast()).store(u64::from_ne_bytes(*word), Release);
            at = at.add(WORD);
        }
        write_part(at, tail);
    }
}

/// Fills `into` from `source`.
///
/// # Safety
/// As [`write()`].
pub(super) unsafe fn read(source: *const u8, into: &mut [u8]) {
    let (head, rest) = into.split_at_mut(into.len().min(before_word(source.addr())));
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    // SAFETY: as in `write`.
    unsafe {
        read_part(source, head);
        let mut at = source.add(head.len());
        for word in words {
            *word = AtomicU64::from_ptr(at.cast_mut().cast()).load(Acquire).to_ne_bytes();
            at = at.add(WORD);
        }
        read_part(at, tail);
    }
}

/// The bytes from `address` to the next word.
fn before_word(address: usize) -> usize {
    address.wrapping_neg() % WORD
}

/// Changes some bytes of one word and keeps the others, even if other threads change those
/// meanwhile.
///
/// # Safety
/// As [`write()`].
unsafe fn write_part(target: *mut u8, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let begins = target.addr() % WORD;
    let (mut mask, mut new) = ([0; WORD], [0; WORD]);
    mask[begins..begins + bytes.len()].fill(0xff);
    new[begins..begins + bytes.len()].copy_from_slice(bytes);
    let (mask, new) = (u64::from_ne_bytes(mask), u64::from_ne_bytes(new));
    // SAFETY: the word that holds these bytes, aligned, and mapped as the caller says.
    let word = unsafe { AtomicU64::from_ptr(target.sub(begins).cast()) };
    let mut old = word.load(Relaxed);
    while let Err(found) = word.compare_exchange_weak(old, old & !mask | new, Release, Relaxed) {
        old = found;
    }
}

/// Reads some bytes of one word.
///
/// # Safety
/// As [`write()`].
unsafe fn read_part(source: *const u8, into: &mut [u8]) {
    if into.is_empty() {
        return;
    }
    let begins = source.addr() % WORD;
    // SAFETY: the word that holds these bytes, aligned, and mapped as the caller says.
    let word = unsafe { AtomicU64::from_ptr(source.sub(begins).cast_mut().cast()) };
    into.copy_from_slice(&word.load(Acquire).to_ne_bytes()[begins..begins + into.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_offset_and_length_is_copied_exactly() {
        for (begins, len) in (0..16).flat_map(|begins| (0..40).map(move |len| (begins, len))) {
            let mut memory = [u64::from_ne_bytes([0xee; WORD]); 8];
            let start = memory.as_mut_ptr().cast::<u8>();
            let bytes: Vec<u8> = (1..=len as u8).collect();
            let (mut all, mut back) = ([0; 64], vec![0; len]);
            // SAFETY: all of it lies in `memory`, which is used through this pointer alone.
            unsafe {
                write(start.add(begins), &bytes);
                read(start, &mut all);
                read(start.add(begins), &mut back);
            }
            assert_eq!(back, bytes, "{len} at {begins}");
            assert_eq!(all[begins..begins + len], bytes, "{len} at {begins}");
            assert!(all[..begins].iter().chain(&all[begins + len..]).all(|byte| *byte == 0xee));
        }
    }
}
