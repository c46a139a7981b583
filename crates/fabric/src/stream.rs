//! Copies of a block to where another core uses it next.
//!
//! An ordinary copy first takes each target line away from the cache that used it last, which costs
//! one round trip between cores for every 64 bytes. The reader then takes each line back the same
//! way. Streaming stores (Intel SDM vol. 1, 10.4.6.2) write whole lines without reading them first
//! and leave them in no cache; the other core's prefetcher fetches them well from memory.
//!
//! Which copy is faster depends on the machine. 16 KiB passed to another core and back, all of it
//! read, took 1.8 instead of 8.6 microseconds with streaming stores on one machine, and 1.7 instead
//! of 0.6 on another. So each process that copies to others [measures](prepare) both once.
#![allow(unsafe_code, reason = "streaming stores are intrinsics over raw memory")]

use std::{
    ptr::copy_nonoverlapping,
    sync::{
        Once,
        atomic::{
            AtomicBool, AtomicU64,
            Ordering::{Acquire, Relaxed, Release},
        },
    },
    thread,
    time::{Duration, Instant},
};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The length from which streaming stores may be used: that of the smallest block. For shorter
/// copies the reader would lose more by fetching from memory than the stores save.
const STREAM_FROM: usize = 4096;

/// True if streaming stores are faster on this machine.
static STREAMS: AtomicBool = AtomicBool::new(false);

/// Copies `len` bytes. Other threads see every later write of this thread after them.
///
/// # Safety
/// As [`copy_nonoverlapping`].
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: as the caller's.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if len >= STREAM_FROM && STREAMS.load(Relaxed) {
            return streaming(from, to, len);
        }
        copy_nonoverlapping(from, to, len);
    }
}

/// Copies with streaming stores, see [`copy`]; `len` is at least a line.
#[cfg(target_arch = "x86_64")]
unsafe fn streaming(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: head, lines and tail cover exactly `0..len`, and every streamed line is aligned; the
    // instructions belong to every x86-64 processor.
    unsafe {
        copy_nonoverlapping(from, to, head);
        for line in 0..lines {
            let at = head + line * LINE;
            let (source, target) = (from.add(at).cast::<__m128i>(), to.add(at).cast::<__m128i>());
            let words = [0, 1, 2, 3].map(|word| _mm_loadu_si128(source.add(word)));
            words.into_iter().enumerate().for_each(|(word, value)| _mm_stream_si128(target.add(word), value));
        }
        copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
        // Streaming stores have no order with other stores: without the fence a header written next
        // could be seen first.
        _mm_sfence();
    }
}

/// Measures once which copy is faster between two cores of this process. It takes about a
/// millisecond, at most [`TIMEOUT`]. If the measurement fails, copies go through the cache.
pub(crate) fn prepare() {
    static MEASURED: Once = Once::new();
    #[cfg(target_arch = "x86_64")]
    MEASURED.call_once(|| {
        let found = CopyBenchmark::new().measure();
        tracing::debug!(?found, "measured a block to another core and back, through the cache and streamed");
        if let Some([cached, streamed]) = found {
            STREAMS.store(streamed < cached, Relaxed);
        }
    });
}

/// The longest time of a measurement; a busy machine may not run both threads within it.
const TIMEOUT: Duration = Duration::from_millis(10);
/// The measured rounds of each kind of copy, and the rounds before them that do not count.
const ROUNDS: usize = 41;
const WARM_UP: usize = 10;

const LINE: usize = 64;
const BLOCK: usize = 16 << 10;
const BLOCKS: usize = 8;

#[repr(align(64))]
#[derive(Default)]
struct Line([AtomicU64; LINE / 8]);

/// The memory through which two threads pass blocks back and forth.
struct CopyBenchmark {
    blocks: Box<[Line]>,
    there: Line,
    back: Line,
    until: Instant,
}

impl CopyBenchmark {
    fn new() -> Self {
        let lines = (0..BLOCKS * BLOCK / LINE).map(|_| Line::default()).collect();
        Self { blocks: lines, there: Line::default(), back: Line::default(), until: Instant::now() + TIMEOUT }
    }

    /// The median times for a block to the other core and an answer back: through the cache and
    /// streamed.
    #[cfg(target_arch = "x86_64")]
    fn measure(&self) -> Option<[Duration; 2]> {
        let cores = sched_getaffinity(None).ok()?;
        let mut allowed = (0..CpuSet::MAX_CPU).filter(|core| cores.is_set(*core));
        // Cores with neighbouring numbers often share a cache, so the two ends of the list are
        // used.
        let (first, last) = (allowed.next()?, allowed.next_back()?);
        thread::scope(|scope| {
            scope.spawn(move || pin(last).and_then(|()| self.answer()));
            scope.spawn(move || pin(first).and_then(|()| self.ask())).join().ok()?
        })
    }

    #[cfg(target_arch = "x86_64")]
    fn ask(&self) -> Option<[Duration; 2]> {
        let source = vec![1u8; BLOCK];
        let mut taken = [const { Vec::new() }; 2];
        for round in 0..2 * (WARM_UP + ROUNDS) {
            let (block, way) = (self.block(round).as_ptr().cast::<u8>().cast_mut(), round % 2);
            let began = Instant::now();
            // SAFETY: atomics that live as long as `self`; the other thread looks at them when it
            // has heard of them.
            unsafe {
                match way {
                    0 => copy_nonoverlapping(source.as_ptr(), block, BLOCK),
                    _ => streaming(source.as_ptr(), block, BLOCK),
                }
            }
            self.there.0[0].store(round as u64 + 1, Release);
            self.wait_for(&self.back, round)?;
            if round >= 2 * WARM_UP {
                taken[way].push(began.elapsed());
            }
        }
        Some(taken.map(|mut taken| *taken.select_nth_unstable(ROUNDS / 2).1))
    }

    fn answer(&self) -> Option<()> {
        for round in 0..2 * (WARM_UP + ROUNDS) {
            self.wait_for(&self.there, round)?;
            let read = self.block(round).iter().flat_map(|line| &line.0);
            let sum = read.fold(0, |sum: u64, word| sum.wrapping_add(word.load(Relaxed)));
            self.back.0[1].store(sum, Relaxed);
            self.back.0[0].store(round as u64 + 1, Release);
        }
        Some(())
    }

    fn block(&self, round: usize) -> &[Line] {
        let lines = BLOCK / LINE;
        &self.blocks[round % BLOCKS * lines..][..lines]
    }

    /// Waits for the word of a round.
    fn wait_for(&self, line: &Line, round: usize) -> Option<()> {
        for spin in 1u32.. {
            if line.0[0].load(Acquire) > round as u64 {
                return Some(());
            }
            if spin.is_multiple_of(1024) && Instant::now() > self.until {
                return None;
            }
            std::hint::spin_loop();
        }
        None
    }
}

fn pin(core: usize) -> Option<()> {
    let mut set = CpuSet::new();
    set.set(core);
    sched_setaffinity(None, &set).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn every_length_and_alignment_is_copied_exactly() {
        let source: Vec<u8> = (0..3 * STREAM_FROM).map(|byte| byte as u8 | 1).collect();
        for len in [64, 127, STREAM_FROM - 1, STREAM_FROM, STREAM_FROM + 77, 2 * STREAM_FROM] {
            for shift in 0..70 {
                let mut target = vec![0; 3 * STREAM_FROM];
                // SAFETY: both ranges lie inside their vectors.
                unsafe { streaming(source.as_ptr().add(shift / 3), target.as_mut_ptr().add(shift), len) };
                assert_eq!(
                    target[shift..shift + len],
                    source[shift / 3..shift / 3 + len],
                    "{len} at {shift}"
                );
                assert!(target[..shift].iter().chain(&target[shift + len..]).all(|byte| *byte == 0));
            }
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_measurement_ends_in_time_and_keeps_the_affinity() {
        let cores = sched_getaffinity(None).unwrap();
        let benchmark = CopyBenchmark::new();
        if let Some(found) = benchmark.measure() {
            assert!(found.iter().all(|taken| !taken.is_zero() && *taken < TIMEOUT), "{found:?}");
            let sum = (BLOCK as u64 / 8).wrapping_mul(0x0101_0101_0101_0101);
            assert_eq!(benchmark.back.0[1].load(Relaxed), sum);
        }
        assert_eq!(sched_getaffinity(None).unwrap(), cores);
    }
}
