//! Windows that threads read while puts arrive: each word is the old or the new one.

use std::{
    array::from_fn,
    sync::{
        Arc, Barrier,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    thread,
};

use plexus_fabric::{Lane, MAX_WORDWISE, Put, SendError, Windows};

use crate::pairs::{End, Kind, WORDWISE, WORDWISE_LEN, bytes, pair};

pub(crate) fn put(offset: u64, data: &[u8]) -> Put<'_> {
    Put { window: WORDWISE, offset, generation: 0, data }
}

/// The targets of puts that share no word: whole words, parts of some, many, and as many as
/// allowed.
pub(crate) const PLACES: [(u64, usize); 7] =
    [(0, 64), (132, 12), (259, 10), (514, 5), (1029, 4000), (8192, 16_384), (40_003, MAX_WORDWISE)];

/// Reads every word of all `places` until `over`: the part of a word that a put covers must come
/// from one put.
fn look(windows: &Windows, places: &[(u64, usize)], over: &AtomicBool) {
    let window = windows.find(WORDWISE).unwrap();
    while !over.load(Acquire) {
        for (offset, len) in places.iter().copied() {
            let end = offset + len as u64;
            for at in (offset / 8 * 8..end).step_by(8) {
                let word = window.word(at).unwrap().load(Acquire).to_le_bytes();
                let covered = |byte: &usize| (offset..end).contains(&(at + *byte as u64));
                let first = word[(0..8).find(covered).unwrap()];
                let expected: [u8; 8] = from_fn(|byte| if covered(&byte) { first } else { 0 });
                assert_eq!(word, expected, "at {at}, of a put of {len} bytes at {offset}");
            }
        }
    }
}

pub(crate) fn every_word_under_a_put_is_seen_whole(kind: Kind) {
    put_and_look(kind, &PLACES, 400);
}

/// Over shared memory a put takes less than a microsecond, so it takes many to meet one.
pub(crate) fn every_word_under_the_same_put_again_and_again_is_seen_whole(kind: Kind) {
    put_and_look(kind, &[(1029, 300)], if kind.is_mapped() { 5_000_000 } else { 30_000 });
}

fn put_and_look(kind: Kind, places: &[(u64, usize)], rounds: usize) {
    let (mut a, mut b) = pair(kind);
    let (over, both) = (AtomicBool::new(false), Barrier::new(2));
    let windows = Arc::clone(&b.windows);
    thread::scope(|scope| {
        let looker = scope.spawn(|| {
            both.wait();
            look(&windows, places, &over);
        });
        scope.spawn(|| {
            let data: Vec<Vec<u8>> = (0..=u8::MAX).map(|byte| vec![byte; MAX_WORDWISE]).collect();
            both.wait();
            for round in 1..=rounds {
                for (offset, len) in places.iter().copied() {
                    let data = &data[round % data.len()][..len];
                    while let Err(error) = a.rail.write(Lane::Bulk, put(offset, data)) {
                        assert_eq!(error, SendError::Full);
                        if over.load(Acquire) {
                            return;
                        }
                        a.rail.flush().unwrap();
                    }
                }
            }
            let mut said = false;
            while !over.load(Acquire) {
                said = said || a.offer(Lane::Bulk, b"over", &[]);
                a.rail.flush().unwrap();
                thread::yield_now();
            }
        });
        while !looker.is_finished() && b.poll(1, |_, _| ()) == 0 {}
        over.store(true, Release);
        looker.join().unwrap();
    });
}

pub(crate) fn a_put_is_in_place_and_counted_when_its_frame_arrives(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let mut expected = vec![0; WORDWISE_LEN];
    for round in 0..200usize {
        let (offset, len) = PLACES[round % PLACES.len()];
        let offset = offset as usize + round;
        let data: Vec<u8> = (0..len).map(|at| (at * 7 + round) as u8).collect();
        expected[offset..offset + len].copy_from_slice(&data);
        let (lane, body) = (Lane::ALL[round % 2], vec![round as u8; round * 50]);
        while let Err(error) = a.rail.put(lane, put(offset as u64, &data), &[], &body) {
            assert_eq!(error, SendError::Full);
            a.rail.flush().unwrap();
        }
        let mut came = 0;
        while came == 0 {
            a.rail.flush().unwrap();
            let window = b.windows.find(WORDWISE).unwrap();
            let mut landed = vec![0; WORDWISE_LEN];
            let mut deliver = |_, frame: plexus_fabric::Frame<'_>| {
                window.read(0, &mut landed);
                assert!(landed == expected, "round {round}");
                assert_eq!((bytes(&frame), frame.put_len() as usize), (body.clone(), len));
            };
            came = b.rail.poll(8, &mut deliver).unwrap();
        }
        assert_eq!(came, 1);
    }
}

pub(crate) fn a_put_longer_than_a_wordwise_window_takes_is_refused(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let data = vec![1; MAX_WORDWISE + 1];
    assert_eq!(a.rail.put(Lane::Bulk, put(0, &data), b"frame", &[]), Err(SendError::TooLarge));
    assert_eq!(a.rail.write(Lane::Bulk, put(0, &data)), Err(SendError::TooLarge));
    a.rail.send(Lane::Bulk, b"alive", &[]).unwrap();
    a.rail.flush().unwrap();
    assert_eq!(b.take(1), [(Lane::Bulk, b"alive".to_vec())]);
    assert!(content(&b) == vec![0; WORDWISE_LEN]);
}

pub(crate) fn content(end: &End) -> Vec<u8> {
    let mut content = vec![0; WORDWISE_LEN];
    end.window(WORDWISE).read(0, &mut content);
    content
}
