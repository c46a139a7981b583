//! The layout of the window that remote accesses of a measurement use.
//!
//! | offset | what |
//! |---|---|
//! | 0 | the messages of all streams |
//! | [`LONGEST`] | the answers; both directions may be measured at once |
//! | 2 [`LONGEST`] + 64 s | the word that announces the writes of stream s |
//! | + 4096 | the word that announces its answers, or the number of messages received |
//! | + 16,384 | the counter of each stream of each trial |
//!
//! Each announcing word has a cache line of its own. It holds the trial above the number, so that
//! late writes of another trial announce nothing.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use plexus_fabric::Window;

use super::{
    LONGEST, Op, STREAMS, Trial, WINDOW_BYTES,
    payload::{self, Payload},
};

/// The bytes of a word.
pub(super) const WORD: u32 = 8;

/// The distance between two announcing words.
const LINE: u64 = 64;

const ANSWERED: u64 = LONGEST as u64;
const DATA: u64 = 2 * LONGEST as u64;
const ANSWERS: u64 = DATA + STREAMS as u64 * LINE;
const COUNTERS: u64 = DATA + (16 << 10);

/// The number of trials that words can tell apart.
const TRIALS: u64 = 64;

/// The bits of a message's number in an announcing word; the trial is above them.
const NUMBER_BITS: u32 = 58;

const _: () = assert!(ANSWERS + STREAMS as u64 * LINE <= COUNTERS);
const _: () = assert!(COUNTERS + TRIALS * STREAMS as u64 * WORD as u64 <= WINDOW_BYTES as u64);
const _: () = assert!(TRIALS << NUMBER_BITS == 0 && (TRIALS - 1) << NUMBER_BITS != 0);

/// The two announcing words of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Announced {
    /// Announces written messages.
    Data,
    /// Announces answers.
    Answer,
}

/// Returns the offset of that word.
#[inline]
pub(super) fn word(which: Announced, stream: u32) -> u64 {
    let start = match which {
        Announced::Data => DATA,
        Announced::Answer => ANSWERS,
    };
    start + u64::from(stream) * LINE
}

/// Returns the content of that word.
#[inline]
pub(super) fn announcement(trial: u32, number: u64) -> [u8; WORD as usize] {
    (u64::from(trial) << NUMBER_BITS | number).to_le_bytes()
}

/// Returns the number that the word in this side's window announces for `trial`; 0 if none.
#[inline]
pub(super) fn announced(window: &Window, which: Announced, stream: u32, trial: u32) -> u64 {
    let seen = window.word(word(which, stream)).map_or(0, |word| word.load(Acquire));
    if seen >> NUMBER_BITS == u64::from(trial) { seen & ((1 << NUMBER_BITS) - 1) } else { 0 }
}

/// Returns the offset of the word that a stream of a trial adds to.
#[inline]
pub(super) fn counter(stream: u32, trial: u32) -> u64 {
    COUNTERS + (u64::from(trial) * u64::from(STREAMS) + u64::from(stream)) * u64::from(WORD)
}

/// Returns the offset of the answer to message `number` in the sender's window.
#[inline]
pub(super) fn answer(trial: &Trial, stream: u32, number: u64) -> u64 {
    ANSWERED + trial.place(stream, number)
}

/// Fills this side's window for the trial. Fetched bytes differ from place to place.
pub(super) fn prepare(window: &Window, trial: &Trial, number: u32, payload: &Payload) {
    let clear = |offset: u64| {
        if let Some(word) = window.word(offset) {
            word.store(0, Relaxed);
        }
    };
    match trial.op {
        Op::Send | Op::Put | Op::Datagram => {}
        Op::Write => (0..trial.streams).for_each(|stream| {
            clear(word(Announced::Data, stream));
            clear(word(Announced::Answer, stream));
        }),
        Op::Atomic => (0..trial.streams).for_each(|stream| clear(counter(stream, number))),
        Op::Get => {
            let places = u64::from(trial.streams) * u64::from(trial.depth);
            for place in 0..places.min(trial.places()) {
                let offset = place * u64::from(trial.bytes);
                window.write(offset, payload.of(offset));
            }
        }
    }
}

/// Checks all bytes at `place` before the word that announces a message of `trial`, and returns
/// their checksum.
#[inline]
pub(super) fn look(window: &Window, trial: &Trial, place: u64) -> u64 {
    payload::look_at(window, place as usize, (trial.bytes - WORD) as usize)
}

#[cfg(test)]
mod tests {
    use plexus_fabric::WindowId;

    use super::*;
    use crate::perf::Test;

    #[test]
    fn announcements_of_another_trial_or_stream_are_none() {
        let window = Window::create(WindowId(1), WINDOW_BYTES, 0).unwrap();
        for which in [Announced::Data, Announced::Answer] {
            for stream in [0, 63] {
                assert_eq!(announced(&window, which, stream, 63), 0);
                assert!(window.write(word(which, stream), &announcement(63, 77)));
                assert_eq!(announced(&window, which, stream, 63), 77);
                assert_eq!(announced(&window, which, stream, 62), 0);
            }
        }
        assert_eq!(announced(&window, Announced::Data, 1, 63), 0);
        let trial = Trial { streams: 64, ..Trial::new(Test::Latency, Op::Write, 8) };
        prepare(&window, &trial, 63, &trial.payload(63));
        assert_eq!(announced(&window, Announced::Answer, 63, 63), 0);
    }

    #[test]
    fn what_is_fetched_is_there_before_and_what_is_added_to_is_zero() {
        let window = Window::create(WindowId(1), WINDOW_BYTES, 0).unwrap();
        let trial = Trial { streams: 2, ..Trial::new(Test::Bandwidth, Op::Get, 100) };
        let payload = trial.payload(1);
        prepare(&window, &trial, 1, &payload);
        for place in [trial.place(0, 1), trial.place(1, 15)] {
            assert_eq!(payload::look_at(&window, place as usize, 100), payload.look_of(place));
        }
        let trial = Trial { streams: 64, ..Trial::new(Test::Latency, Op::Atomic, 8) };
        assert_eq!(window.fetch_add(counter(63, 63), 5), Some(0));
        prepare(&window, &trial, 63, &trial.payload(63));
        assert_eq!(window.fetch_add(counter(63, 63), 1), Some(0));
    }
}
