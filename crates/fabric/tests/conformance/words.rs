//! Access to memory without messages, over a pair of any kind: writes, gets, words, and a peer that
//! comes back.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    thread,
};

use plexus_fabric::{Access, Lane, Put, SendError, WindowId};

use crate::pairs::{
    DIVIDED, End, GRANULE, GRANULES, Kind, Own, Sleeper, WHOLE, WHOLE_LEN, number, pair, pair_of,
};

fn put(offset: u64, data: &[u8]) -> Put<'_> {
    Put { window: WHOLE, offset, generation: 0, data }
}

fn word(end: &End, offset: u64) -> u64 {
    end.window(WHOLE).word(offset).unwrap().load(Acquire)
}

fn write(end: &mut End, lane: Lane, offset: u64, data: &[u8]) {
    while let Err(error) = end.rail.write(lane, put(offset, data)) {
        assert_eq!(error, SendError::Full);
        end.rail.flush().unwrap();
    }
}

/// Receives everything in flight, which must not be a frame.
fn no_frame(end: &mut End) {
    end.poll(8, |_, _| panic!("no frame was sent"));
}

pub(crate) fn a_write_lands_and_announces_nothing(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    for (round, len) in
        [1usize, 7, 8, 9, 63, 64, 4096, 70_000, 1 << 20].into_iter().cycle().take(90).enumerate()
    {
        let data: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8 | 1).collect();
        let offset = round as u64 * 13;
        write(&mut a, Lane::ALL[round % 2], offset, &data);
        let mut landed = vec![0; len];
        while landed != data {
            a.rail.flush().unwrap();
            no_frame(&mut b);
            b.window(WHOLE).read(offset as usize, &mut landed);
        }
    }
    assert_eq!(b.rail.poll(8, &mut |_, _| {}), Ok(0));
}

pub(crate) fn a_frame_arrives_after_earlier_writes(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let mut came = 0u64;
    for round in 1..=3000u64 {
        let lane = Lane::ALL[round as usize % 2];
        let words = 1 + round % 5;
        for at in 0..words {
            write(&mut a, lane, at * 8, &round.to_le_bytes());
        }
        a.rail.send(lane, &round.to_le_bytes(), &[]).unwrap();
        a.rail.flush().unwrap();
        while came < round {
            let window = std::sync::Arc::clone(&b.windows);
            b.poll(4, |_, frame| {
                came = number(&frame);
                let window = window.find(WHOLE).unwrap();
                (0..words).for_each(|at| assert_eq!(window.word(at * 8).unwrap().load(Acquire), round));
            });
        }
    }
}

pub(crate) fn a_word_is_seen_whole(kind: Kind) {
    const LAST: u64 = 100_000;
    let twice = |half: u64| half << 32 | half;
    let (mut a, mut b) = pair(kind);
    let seen_all = Arc::new(AtomicBool::new(false));
    let seen_by_reader = Arc::clone(&seen_all);
    let writer = thread::spawn(move || {
        for half in 1..=LAST {
            write(&mut a, Lane::Prompt, 4088, &twice(half).to_le_bytes());
            if half % 16 == 0 {
                a.rail.flush().unwrap();
            }
        }
        // The last writes may wait for room at the reader.
        while !seen_by_reader.load(Acquire) {
            a.rail.flush().unwrap();
            thread::yield_now();
        }
    });
    let mut last = 0;
    while last < LAST {
        no_frame(&mut b);
        let seen = word(&b, 4088);
        assert!(seen >> 32 == seen & 0xffff_ffff, "half of a word: {seen:x}");
        assert!(seen & 0xffff_ffff >= last, "older than what was seen before");
        last = seen & 0xffff_ffff;
    }
    seen_all.store(true, Release);
    writer.join().unwrap();
}

pub(crate) fn a_write_into_a_granule_needs_its_generation_unless_memory_is_mapped(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    b.window(DIVIDED).set_generation(1, 3);
    let expected = Put { window: DIVIDED, offset: GRANULE as u64, generation: 3, data: &[9; 8] };
    a.rail.write(Lane::Bulk, expected).unwrap();
    a.rail.send(Lane::Bulk, &7u64.to_le_bytes(), &[]).unwrap();
    a.rail.flush().unwrap();
    b.take(1);
    assert_eq!(b.window(DIVIDED).word(GRANULE as u64).unwrap().load(Acquire), u64::from_le_bytes([9; 8]));
    if kind.is_mapped() {
        return;
    }
    b.window(DIVIDED).set_generation(1, 4);
    a.rail.write(Lane::Bulk, Put { data: &[1; 8], ..expected }).unwrap();
    a.rail.flush().unwrap();
    b.take_all();
    assert_eq!(b.window(DIVIDED).word(GRANULE as u64).unwrap().load(Acquire), u64::from_le_bytes([9; 8]));
}

pub(crate) fn access_outside_a_window_is_refused_and_changes_nothing(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let all = (GRANULES * GRANULE) as u64;
    let outside = |window, offset, data| Put { window, offset, generation: 1, data };
    for put in [
        outside(DIVIDED, all, &[1u8; 8][..]),
        outside(DIVIDED, GRANULE as u64 - 4, &[1; 8]),
        outside(WHOLE, WHOLE_LEN as u64 - 7, &[1; 8]),
        outside(WHOLE, u64::MAX - 7, &[1; 8]),
        outside(WindowId(3), 0, &[1]),
    ] {
        assert_eq!(a.rail.write(Lane::Prompt, put), Err(SendError::TooLarge), "{put:?}");
    }
    for (window, offset) in
        [(WHOLE, 4), (WHOLE, WHOLE_LEN as u64), (WHOLE, u64::MAX - 7), (DIVIDED, all), (WindowId(7), 0)]
    {
        for access in [
            Access::FetchAdd { window, offset, add: 1 },
            Access::CompareSwap { window, offset, expected: 0, new: 1 },
        ] {
            let done = a.rail.direct(access);
            assert_eq!(done, kind.is_mapped().then_some(Err(SendError::TooLarge)), "{window:?} {offset}");
        }
    }
    let mut into = [0; 9];
    let past_the_end = Access::Get { window: WHOLE, offset: WHOLE_LEN as u64 - 8, into: &mut into };
    assert_eq!(a.rail.direct(past_the_end), kind.is_mapped().then_some(Err(SendError::TooLarge)));
    a.rail.send(Lane::Prompt, &3u64.to_le_bytes(), &[]).unwrap();
    a.rail.flush().unwrap();
    assert_eq!(b.take(1).len(), 1, "the rail still works");
    assert_eq!((word(&b, 0), word(&b, WHOLE_LEN as u64 - 8)), (0, 0));
}

/// Executes an access as a link does: directly where the rail can, else by the owner.
fn access(end: &mut End, owner: &End, access: Access<'_>) -> u64 {
    let by_owner = match &access {
        Access::Get { .. } => None,
        Access::FetchAdd { window, offset, add } => Some((*window, *offset, *add, None)),
        Access::CompareSwap { window, offset, expected, new } => {
            Some((*window, *offset, *new, Some(*expected)))
        }
    };
    match (end.rail.direct(access), by_owner) {
        (Some(done), _) => done.unwrap(),
        (None, Some((window, offset, add, None))) => owner.window(window).fetch_add(offset, add).unwrap(),
        (None, Some((window, offset, new, Some(expected)))) => {
            owner.window(window).compare_swap(offset, expected, new).unwrap()
        }
        (None, None) => 0,
    }
}

pub(crate) fn words_are_added_to_and_swapped(kind: Kind) {
    let (mut a, b) = pair(kind);
    let add = |add| Access::FetchAdd { window: WHOLE, offset: 64, add };
    let swap = |expected, new| Access::CompareSwap { window: WHOLE, offset: 64, expected, new };
    assert_eq!(access(&mut a, &b, add(5)), 0);
    assert_eq!(access(&mut a, &b, add(u64::MAX)), 5);
    assert_eq!(access(&mut a, &b, swap(5, 9)), 4);
    assert_eq!(access(&mut a, &b, swap(4, 9)), 4);
    assert_eq!(word(&b, 64), 9);
    assert_eq!((word(&b, 56), word(&b, 72)), (0, 0), "the neighbouring words are unchanged");
}

pub(crate) fn a_get_returns_the_bytes_of_the_window(kind: Kind) {
    let (mut a, b) = pair(kind);
    for (offset, len) in [(0usize, 8usize), (8, 8), (3, 8), (100, 1), (4096, 70_000), (WHOLE_LEN - 5, 5)] {
        let data: Vec<u8> = (0..len).map(|at| (at + offset) as u8 | 1).collect();
        let mut own = vec![0; len];
        for (at, byte) in data.iter().enumerate() {
            // Words of the owner, byte by byte: a get has no other way in.
            let place = (offset + at) as u64;
            let shift = place % 8 * 8;
            let cell = b.window(WHOLE).word(place - place % 8).unwrap();
            let cleared = cell.load(Acquire) & !(0xff << shift);
            cell.store(cleared | u64::from(*byte) << shift, std::sync::atomic::Ordering::Release);
        }
        b.window(WHOLE).read(offset, &mut own);
        assert_eq!(own, data);
        let mut into = vec![0; len];
        match a.rail.direct(Access::Get { window: WHOLE, offset: offset as u64, into: &mut into }) {
            Some(done) => assert_eq!((done, into), (Ok(0), data)),
            None => assert!(!kind.is_mapped()),
        }
    }
}

pub(crate) fn adding_from_both_sides_loses_nothing(kind: Kind) {
    const EACH: u64 = 50_000;
    let (mut a, b) = pair(kind);
    let window = b.window(WHOLE);
    let far = thread::scope(|scope| {
        let near = scope.spawn(|| (0..EACH).filter(|_| window.fetch_add(128, 1).is_some()).count());
        let far = (0..EACH)
            .filter(|_| a.rail.direct(Access::FetchAdd { window: WHOLE, offset: 128, add: 1 }).is_some())
            .count();
        near.join().unwrap();
        far as u64
    });
    assert_eq!(far, if kind.is_mapped() { EACH } else { 0 });
    assert_eq!(word(&b, 128), EACH + far);
}

/// Copies each change of the first word to the peer's, asleep in between, up to `last`.
fn answer_words(end: &mut End, last: u64) {
    let sleeper = Sleeper::new(end);
    for round in 1..=last {
        wait_word(end, &sleeper, round);
        write(end, Lane::Prompt, 0, &round.to_le_bytes());
        end.rail.flush().unwrap();
    }
}

/// Waits until the first word is `value`; returns how often it slept.
fn wait_word(end: &mut End, sleeper: &Sleeper, value: u64) -> u32 {
    let mut slept = 0;
    loop {
        no_frame(end);
        if word(end, 0) == value {
            return slept;
        }
        slept += u32::from(sleeper.sleep_unless(end, |end| word(end, 0) == value));
    }
}

pub(crate) fn a_sleeper_is_woken_by_a_written_word(kind: Kind) {
    const ROUNDS: u64 = 10_000;
    let (mut a, mut b) = pair(kind);
    let answering = thread::spawn(move || {
        answer_words(&mut b, ROUNDS);
        b
    });
    let sleeper = Sleeper::new(&a);
    let mut slept = 0;
    for round in 1..=ROUNDS {
        write(&mut a, Lane::Prompt, 0, &round.to_le_bytes());
        a.rail.flush().unwrap();
        // Sometimes look for a while first, so that the write meets every step of going to sleep.
        (0..round % 50).for_each(|_| no_frame(&mut a));
        slept += wait_word(&mut a, &sleeper, round);
    }
    answering.join().unwrap();
    assert!(slept > 0 || !kind.sleeps(), "never asleep: nothing was shown");
}

pub(crate) fn a_peer_that_comes_back_finds_the_windows_over_a_new_rail(kind: Kind) {
    let survivor = Own::new();
    let (bell, windows) = (survivor.bell.clone(), survivor.windows.clone());
    let (mut a, mut b) = pair_of(kind, Own::new(), survivor);
    for incarnation in 1..6u64 {
        write(&mut a, Lane::Bulk, incarnation * 8, &incarnation.to_le_bytes());
        a.rail.send(Lane::Bulk, &incarnation.to_le_bytes(), &[]).unwrap();
        a.rail.flush().unwrap();
        assert_eq!(b.take(1), [(Lane::Bulk, incarnation.to_le_bytes().to_vec())]);
        (1..=incarnation).for_each(|incarnation| {
            assert_eq!(
                word(&b, incarnation * 8),
                incarnation,
                "the words of earlier incarnations are still there"
            )
        });
        assert!(b.offer(Lane::Prompt, &incarnation.to_le_bytes(), &[]));
        b.rail.flush().unwrap();
        assert_eq!(a.take(1).len(), 1);

        drop(a);
        b.take_all();
        let mut old = b.rail;
        (a, b) = pair_of(kind, Own::new(), Own::with(bell.clone(), windows.clone()));
        assert_eq!(old.write(Lane::Bulk, put(0, &[1; 8])), Err(SendError::Lost));
        let late = Access::FetchAdd { window: WHOLE, offset: 0, add: 1 };
        assert_eq!(old.direct(late), kind.is_mapped().then_some(Err(SendError::Lost)));
    }
}
