//! The limits of the machine without a rail: a cache line from core to core, a copied block, bare
//! sockets.

use std::{
    hint::black_box,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use plexus_fabric::{Window, WindowId};

use crate::{
    duet::{all_rounds, duet, timed},
    pairs,
    work::{BLOCK, BLOCKS, source, sum},
};

#[repr(align(128))]
struct Lines {
    flag: AtomicU64,
    _rest_of_flag: [u64; 7],
    payload: [AtomicU64; 8],
}

impl Lines {
    fn new() -> Self {
        Self { flag: AtomicU64::new(0), _rest_of_flag: [0; 7], payload: Default::default() }
    }

    fn signal(&self, round: u64, with_payload: bool) {
        if with_payload {
            self.payload.iter().for_each(|word| word.store(round, Relaxed));
        }
        self.flag.store(round, Release);
    }

    fn wait_for(&self, round: u64, with_payload: bool) {
        while self.flag.load(Acquire) != round {}
        if with_payload {
            black_box(self.payload.iter().fold(0, |sum: u64, word| sum.wrapping_add(word.load(Relaxed))));
        }
    }
}

/// The time of one way of a cache line between the cores, or of two lines of which one is the flag.
pub(crate) fn bounce(there: usize, two_lines: bool) -> f64 {
    const ROUNDS: u64 = 3_000;
    let (to, back) = (Lines::new(), Lines::new());
    let pong = || {
        for round in 1..=all_rounds(ROUNDS) {
            to.wait_for(round, two_lines);
            back.signal(round, two_lines);
        }
    };
    let ping = || {
        timed(ROUNDS, |round| {
            to.signal(round + 1, two_lines);
            back.wait_for(round + 1, two_lines);
        })
    };
    duet(there, pong, ping) / 2.0
}

/// The time of a block copied with `memcpy`, read by the receiver, and answered, with two bare
/// flags.
pub(crate) fn copy(there: usize, rounds: u64) -> f64 {
    let (to, back) = (Lines::new(), Lines::new());
    let window = Window::create(WindowId(0), BLOCKS * BLOCK, 0).expect("a window");
    let pong = || {
        for round in 1..=all_rounds(rounds) {
            to.wait_for(round, false);
            sum(&window, (round as usize - 1) % BLOCKS * BLOCK, BLOCK);
            back.signal(round, false);
        }
    };
    let source = source();
    let ping = || {
        timed(rounds, |round| {
            let block = round as usize % BLOCKS;
            // SAFETY: inside the window, and the reader waits for the flag.
            unsafe {
                let target = window.ptr().add(block * BLOCK).as_ptr();
                std::ptr::copy_nonoverlapping(
                    black_box(source[block % source.len()].as_ptr()),
                    target,
                    BLOCK,
                );
            }
            to.signal(round + 1, false);
            back.wait_for(round + 1, false);
        })
    };
    duet(there, pong, ping)
}

fn read_all(socket: &mut TcpStream, mut into: &mut [u8]) {
    while !into.is_empty() {
        match socket.read(into) {
            Ok(0) => panic!("the socket was closed"),
            Ok(count) => into = &mut into[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn write_all(socket: &mut TcpStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The time of a round over bare sockets, polled: `to` bytes, then `back` bytes.
pub(crate) fn bare_sockets(there: usize, to: usize, back: usize, rounds: u64) -> f64 {
    let (mut a, mut b) = pairs::sockets();
    for socket in [&a, &b] {
        socket.set_nodelay(true).expect("set a socket up");
        socket.set_nonblocking(true).expect("set a socket up");
    }
    let pong = move || {
        let (mut bytes, answer) = (vec![0; to], vec![1; back]);
        for _ in 0..all_rounds(rounds) {
            read_all(&mut b, &mut bytes);
            black_box(bytes.iter().fold(0u64, |sum, byte| sum.wrapping_add(u64::from(*byte))));
            write_all(&mut b, &answer);
        }
    };
    let ping = || {
        let (bytes, mut answer) = (vec![2; to], vec![0; back]);
        timed(rounds, |_| {
            write_all(&mut a, &bytes);
            read_all(&mut a, &mut answer);
        })
    };
    duet(there, pong, ping)
}
