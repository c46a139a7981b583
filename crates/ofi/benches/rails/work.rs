//! The work measured over a pair of rails. The receiver always reads all of the payload.

use std::{hint::black_box, sync::atomic::Ordering::Acquire};

use plexus_fabric::{Frame, Lane, Put, SendError, Window};

use crate::{
    duet::{all_rounds, duet, lapped, timed},
    pairs::{End, WHOLE, WHOLE_LEN},
};

/// The header that a link puts in front of each message.
const HEAD: [u8; 16] = [0x5a; 16];
pub(crate) const BLOCK: usize = 16 << 10;
/// The blocks that are written in turn: 1 MiB, so the other core last read each one a while ago.
pub(crate) const BLOCKS: usize = 64;

fn receive(end: &mut End, mut deliver: impl FnMut(Frame<'_>)) {
    while end.rail.poll(16, &mut |_, frame| deliver(frame)).expect("a living rail") == 0 {}
}

fn send(end: &mut End, body: &[u8]) {
    end.rail.send(Lane::Prompt, &HEAD, body).expect("room");
    end.rail.flush().expect("a living rail");
}

fn read<const LEN: usize>(frame: Frame<'_>) {
    let (mut head, mut body) = ([0; 16], [0; LEN]);
    frame.copy(0, &mut head);
    frame.copy(16, &mut body);
    black_box((head, body));
}

/// The blocks to put.
pub(crate) fn source() -> Vec<[u8; BLOCK]> {
    (0..8).map(|block| [block; BLOCK]).collect()
}

/// Reads all `len` bytes of a window, in whole words, which no thread writes meanwhile.
pub(crate) fn sum(window: &Window, offset: usize, len: usize) {
    assert!(offset + len <= window.len() && offset.is_multiple_of(8));
    // SAFETY: inside the window, and the writer waits for the answer.
    let words = unsafe {
        let start = window.ptr().add(offset).cast::<u64>();
        std::slice::from_raw_parts(start.as_ptr(), len / 8)
    };
    black_box(words.iter().fold(0, |sum: u64, word| sum.wrapping_add(*word)));
}

/// The time of one way of a message with a link header.
pub(crate) fn message<const LEN: usize>(there: usize, (mut a, mut b): (End, End), rounds: u64) -> f64 {
    let pong = move || {
        for _ in 0..all_rounds(rounds) {
            receive(&mut b, read::<LEN>);
            send(&mut b, &[1; LEN]);
        }
    };
    let ping = || {
        timed(rounds, |round| {
            let mut body = [2; LEN];
            body[0] = round as u8;
            send(&mut a, black_box(&body));
            receive(&mut a, read::<LEN>);
        })
    };
    duet(there, pong, ping) / 2.0
}

/// The time for each of a stream of 8-byte messages in batches of 16.
pub(crate) fn stream(there: usize, (mut a, mut b): (End, End)) -> f64 {
    const LAPS: [usize; 2] = [5_000, 40_000];
    let pong = move || {
        for messages in LAPS {
            let mut came = 0;
            while came < messages {
                came += b.rail.poll(64, &mut |_, frame| read::<8>(frame)).expect("a living rail");
            }
            send(&mut b, &[0; 8]);
        }
    };
    let ping = || {
        lapped(LAPS, |messages| {
            for number in 0..messages as u64 {
                while a.rail.send(Lane::Prompt, &HEAD, &number.to_le_bytes()) == Err(SendError::Full) {
                    a.rail.flush().expect("a living rail");
                }
                if number % 16 == 15 {
                    a.rail.flush().expect("a living rail");
                }
            }
            a.rail.flush().expect("a living rail");
            receive(&mut a, read::<8>);
        })
    };
    duet(there, pong, ping)
}

/// The time of a block put, read by the receiver, and answered with a small message.
pub(crate) fn put(there: usize, (mut a, mut b): (End, End), rounds: u64) -> f64 {
    let pong = move || {
        for round in 0..all_rounds(rounds) as usize {
            receive(&mut b, read::<24>);
            sum(b.window(WHOLE), round % BLOCKS * BLOCK, BLOCK);
            send(&mut b, &[1; 8]);
        }
    };
    let source = source();
    let ping = || {
        timed(rounds, |round| {
            let block = round as usize % BLOCKS;
            let data = &source[block % source.len()];
            let put = Put { window: WHOLE, offset: (block * BLOCK) as u64, generation: 0, data };
            a.rail.put(Lane::Prompt, put, &HEAD, &[3; 24]).expect("room");
            a.rail.flush().expect("a living rail");
            receive(&mut a, read::<8>);
        })
    };
    duet(there, pong, ping)
}

/// The time for each of a stream of puts of `len` bytes. A place is written again only when its
/// reader has reported that it was read.
pub(crate) fn flow(there: usize, (mut a, mut b): (End, End), len: usize) -> f64 {
    const BYTES: usize = 64 << 20;
    let (places, laps) = (WHOLE_LEN / len, [BYTES / 8 / len, BYTES / len]);
    // Often enough that the writer never runs dry.
    let every = (places / 4).max(1);
    let all = laps[0] + laps[1];
    let pong = move || {
        let windows = b.windows.clone();
        let window = windows.find(WHOLE).expect("every end has it");
        let mut came = 0;
        while came < all {
            let before = came;
            let mut deliver = |_, frame: Frame<'_>| {
                read::<24>(frame);
                sum(window, came % places * len, len);
                came += 1;
            };
            b.rail.poll(64, &mut deliver).expect("a living rail");
            for seen in (before + 1..=came).filter(|seen| seen.is_multiple_of(every)) {
                send(&mut b, &(seen as u64).to_le_bytes());
            }
        }
    };
    let source = vec![7; len];
    let (mut sent, mut seen) = (0, 0);
    let ping = || {
        lapped(laps, |puts| {
            // Flushes what is in the way of more puts, and takes the reports of the reader.
            let go_on = |a: &mut End, seen: &mut usize| {
                a.rail.flush().expect("a living rail");
                let mut received = |_, frame: Frame<'_>| *seen = body_number(&frame);
                a.rail.poll(16, &mut received).expect("a living rail");
            };
            for _ in 0..puts {
                while sent - seen >= places {
                    go_on(&mut a, &mut seen);
                }
                let put =
                    Put { window: WHOLE, offset: (sent % places * len) as u64, generation: 0, data: &source };
                while a.rail.put(Lane::Bulk, put, &HEAD, &[3; 24]) == Err(SendError::Full) {
                    go_on(&mut a, &mut seen);
                }
                sent += 1;
            }
            while seen < sent {
                go_on(&mut a, &mut seen);
            }
        })
    };
    duet(there, pong, ping)
}

/// The number behind the head of a frame.
fn body_number(frame: &Frame<'_>) -> usize {
    let mut number = [0; 8];
    frame.copy(HEAD.len(), &mut number);
    u64::from_le_bytes(number) as usize
}

/// The time of one way of eight bytes written into the peer's window, which both sides poll.
pub(crate) fn write(there: usize, (mut a, mut b): (End, End), rounds: u64) -> f64 {
    let write_word = |end: &mut End, number: u64| {
        let put = Put { window: WHOLE, offset: 0, generation: 0, data: &number.to_le_bytes() };
        end.rail.write(Lane::Prompt, put).expect("room");
        end.rail.flush().expect("a living rail");
    };
    let wait_word = |end: &End, number: u64| {
        let word = end.window(WHOLE).word(0).expect("a word");
        while word.load(Acquire) != number {}
    };
    let pong = move || {
        for number in 1..=all_rounds(rounds) {
            wait_word(&b, number);
            write_word(&mut b, number);
        }
    };
    let ping = || {
        timed(rounds, |round| {
            write_word(&mut a, round + 1);
            wait_word(&a, round + 1);
        })
    };
    duet(there, pong, ping) / 2.0
}
