//! Broken or hostile peers: over shared memory, over TCP, and at set-up.

use std::{
    io::Write,
    os::fd::{AsFd, OwnedFd},
};

use plexus_fabric::{
    Lane, Lost, PeerBell, PeerWindow, Put, SetupError, Window, WindowId, WindowSpan,
    shm::{RxRings, TxRings},
};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::{
    pairs::{DIVIDED, End, GRANULE, Kind, Own, WHOLE, pair, seals, sent_bytes, sockets, tcp_end},
    wordwise::{self, PLACES, content},
};

/// The next `len` bytes of a sequence that looks random and is the same in every run.
fn noise(random: &mut u64, len: usize, byte: impl Fn(u64) -> u8) -> Vec<u8> {
    let next = || {
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        byte(*random)
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// A pair over shared memory, and the memory of the rings that the first end reads.
fn pair_and_rings() -> (End, End, OwnedFd) {
    let (a, b) = (Own::new(), Own::new());
    let (fds_a, fds_b) = (a.fds(), b.fds());
    let rings = a.rx.fd().try_clone_to_owned().unwrap();
    (a.shm(fds_b), b.shm(fds_a), rings)
}

/// The offset of the first ring, behind the page of control words.
const FIRST_LINE: u64 = 4096;

#[test]
fn a_broken_header_word_ends_the_rail_after_what_came_before() {
    // Header words: without a mark, with both marks, too long, a skip where there is room, and with
    // a put's length beside a mark that is not a frame's.
    let put = 9 << 34;
    for word in
        [1u64, 16_000, u64::MAX, 1 << 32 | 60_000, 3 << 32, 2 << 32, put, put | 2 << 32, put | 3 << 32]
    {
        let (mut a, mut b, rings) = pair_and_rings();
        b.rail.send(Lane::Prompt, b"one line", b"").unwrap();
        rustix::io::pwrite(&rings, &word.to_ne_bytes(), FIRST_LINE + 64).unwrap();
        let (frames, lost) = a.take_all();
        assert_eq!(frames, [(Lane::Prompt, b"one line".to_vec())]);
        assert!(matches!(lost, Lost::Corrupt(_)), "{word:#x}: {lost:?}");
        assert!(!a.rail.pending());
    }
}

#[test]
fn random_bytes_in_a_ring_do_no_harm() {
    let mut random = 1u64;
    for _ in 0..60 {
        let (mut a, _b, rings) = pair_and_rings();
        let mut noise = noise(&mut random, 64 << 10, |random| (random >> 56) as u8 & (random >> 48) as u8);
        // Some begin with a valid header, so that the noise behind it is reached.
        noise[..8].copy_from_slice(&(1u64 << 32 | random >> 52).to_ne_bytes());
        rustix::io::pwrite(&rings, &noise, FIRST_LINE).unwrap();
        let mut frames = 0;
        while a
            .rail
            .poll(16, &mut |_, frame| frames += u32::from(frame.len() <= plexus_fabric::MAX_FRAME))
            .is_ok()
        {
            assert!(frames <= 1024, "a ring of 1024 lines has no more frames");
            if !a.rail.pending() {
                break;
            }
        }
    }
}

#[test]
fn an_invalid_position_ends_the_rail() {
    let (a, mut b, rings) = pair_and_rings();
    rustix::io::pwrite(&rings, &u64::MAX.to_ne_bytes(), 0).unwrap();
    while b.rail.send(Lane::Prompt, &[0; 56], &[]).is_ok() {}
    assert!(matches!(b.rail.poll(1, &mut |_, _| {}), Err(Lost::Corrupt(_))));
    drop(a);
}

#[test]
fn a_put_under_a_wrong_generation_ends_a_tcp_rail() {
    let wrong = [(false, 0), (false, 1), (true, 3), (true, 2)];
    for (kind, (expect, generation)) in
        [Kind::Tcp, Kind::SealedTcp].into_iter().flat_map(|kind| wrong.map(|wrong| (kind, wrong)))
    {
        let (mut a, mut b) = pair(kind);
        if expect {
            b.window(DIVIDED).set_generation(0, 1);
        }
        a.rail.send(Lane::Bulk, b"before", b"").unwrap();
        let put = Put { window: DIVIDED, offset: 0, generation, data: &[0xff; GRANULE] };
        a.rail.put(Lane::Bulk, put, b"late", b"").unwrap();
        a.rail.flush().unwrap();
        let (frames, lost) = b.take_all();
        assert_eq!(frames, [(Lane::Bulk, b"before".to_vec())]);
        assert!(matches!(lost, Lost::Corrupt(_)), "{lost:?}");
        let mut granule = [1; GRANULE];
        b.window(DIVIDED).read(0, &mut granule);
        assert_eq!(granule, [0; GRANULE], "nothing of the put was written");
    }
}

#[test]
fn random_bytes_end_a_tcp_rail() {
    let mut random = 7u64;
    for round in 0..200 {
        let (mut end, mut streams) = tcp_end(None);
        let noise = noise(&mut random, 1 + round * 37, |random| (random >> 56) as u8);
        streams.rotate_left(round % 2);
        let [mut one, other] = streams;
        one.write_all(&noise).unwrap();
        drop((one, other));
        let (frames, lost) = end.take_all();
        assert!(frames.is_empty());
        assert!(
            matches!(lost, Lost::Corrupt(_)) || noise.len() < 16 && matches!(lost, Lost::Closed(_)),
            "{lost:?}"
        );
    }
}

#[test]
fn a_good_stream_with_one_flipped_byte_ends_a_tcp_rail() {
    // The long data are sealed in pieces.
    for (sealed, len, step) in [(false, 500, 7), (true, 500, 7), (true, 150_000, 7_001)] {
        let keys = || sealed.then(seals).unzip();
        let wire = sent_bytes(keys().0, |rail| {
            for number in 0..3u8 {
                let data = vec![number; len];
                let put = Put { window: WHOLE, offset: 100, generation: 0, data: &data };
                rail.put(Lane::Bulk, put, &[number; 16], &[number; 50]).unwrap();
            }
        });
        assert_eq!(wire.len() % 3, 0);

        for at in (0..wire.len()).step_by(step) {
            let (mut end, [prompt, mut stream]) = tcp_end(keys().1);
            let mut bytes = wire.clone();
            bytes[at] ^= 0x10;
            // A rail that has ended does not take all of it.
            let writer = std::thread::spawn(move || drop(stream.write_all(&bytes)));
            let (frames, lost) = end.take_all();
            drop((end, prompt));
            writer.join().unwrap();
            let whole = wire.len() / 3;
            assert_eq!(frames.len(), at / whole, "all before byte {at}, none after");
            assert!(matches!(lost, Lost::Corrupt(_) | Lost::Closed(_)), "{lost:?}");
        }
    }
}

#[test]
fn a_rail_in_clear_and_a_sealed_one_refuse_each_other() {
    for sealed_sends in [false, true] {
        let (prompt, bulk) = (sockets(), sockets());
        let (ours, theirs) = seals();
        let (send, receive) = if sealed_sends { (Some(ours), None) } else { (None, Some(theirs)) };
        let mut a = Own::new().tcp([prompt.0, bulk.0], send);
        let mut b = Own::new().tcp([prompt.1, bulk.1], receive);
        a.rail.send(Lane::Prompt, b"hello", b"").unwrap();
        a.rail.flush().unwrap();
        let (frames, lost) = b.take_all();
        assert!(frames.is_empty());
        assert!(matches!(lost, Lost::Corrupt(why) if why.contains("clear")), "{lost:?}");
    }
}

/// A memory file of some length with some seals.
fn memory(len: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}

#[test]
fn memory_that_is_not_sealed_or_too_small_is_refused() {
    let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW;
    let good = RxRings::create().unwrap();
    let len = rustix::fs::fstat(good.fd()).unwrap().st_size as u64;
    assert!(TxRings::map(good.fd()).is_ok());
    assert!(TxRings::map(memory(len, all).as_fd()).is_ok());
    for (len, seals) in
        [(len, SealFlags::GROW), (len, SealFlags::SEAL | SealFlags::GROW), (len, SealFlags::empty())]
    {
        assert!(matches!(TxRings::map(memory(len, seals).as_fd()), Err(SetupError::NotSealed { .. })));
    }
    for len in [0, 4096, len - 1, len + 1] {
        assert!(matches!(TxRings::map(memory(len, all).as_fd()), Err(SetupError::WrongSize { .. })));
    }
    let span = WindowSpan { id: WindowId(0), len: 1 << 20, granule: 4096, wordwise: false };
    let error = PeerWindow::map(memory(1 << 19, all).as_fd(), span).unwrap_err();
    assert!(error.to_string().contains("524288") && error.to_string().contains("1048576"), "{error}");
    let (_pipe, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
    assert!(PeerBell::map(memory(64, all).as_fd(), write).is_err());
}

#[test]
fn too_little_memory_is_an_error_with_sizes() {
    let error = Window::create(WindowId(0), 1 << 45, 0).unwrap_err().to_string();
    assert!(
        error.contains("35184372088832 bytes (32.0 TiB)") && error.contains("make it smaller"),
        "{error}"
    );
}

const LIMITED: &str = "PLEXUS_TEST_LIMITED";

/// Runs only in a process of its own, since the limit holds for the whole process.
#[test]
fn limited_process() {
    if std::env::var_os(LIMITED).is_none() {
        return;
    }
    let limit = rustix::process::Rlimit { current: Some(1 << 20), maximum: Some(1 << 20) };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    assert!(Window::create(WindowId(0), 1 << 20, 0).is_ok());
    let error = Window::create(WindowId(0), 2 << 20, 0).unwrap_err().to_string();
    assert!(
        error.contains("2097152 bytes") && error.contains("1048576 bytes") && error.contains("ulimit -f"),
        "{error}"
    );
}

#[test]
fn a_limit_on_file_sizes_is_an_error_and_no_signal() {
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "hostile::limited_process"])
        .env(LIMITED, "1")
        .stdout(std::process::Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn nothing_of_a_put_is_seen_before_all_of_it_is_verified() {
    for (sealed, (offset, len)) in
        [false, true].into_iter().flat_map(|sealed| PLACES.map(|place| (sealed, place)))
    {
        let data = vec![0xaa; len];
        let keys = || sealed.then(seals).unzip();
        let wire = sent_bytes(keys().0, |rail| {
            rail.put(Lane::Bulk, wordwise::put(offset, &data), b"frame", &[]).unwrap()
        });
        let (mut end, [_prompt, mut stream]) = tcp_end(keys().1);
        let (most, last) = wire.split_at(wire.len() - 1);
        for piece in most.chunks(1 + most.len() / 5) {
            stream.write_all(piece).unwrap();
            for _ in 0..4 {
                end.poll(1, |_, _| panic!("an incomplete frame was delivered"));
            }
            assert!(content(&end).iter().all(|byte| *byte == 0), "{len} bytes at {offset}");
        }
        stream.write_all(last).unwrap();
        end.take(1);
        assert!(content(&end)[offset as usize..][..len] == data);

        let (mut end, [_prompt, mut stream]) = tcp_end(keys().1);
        stream.write_all(most).unwrap();
        stream.write_all(&[last[0] ^ 1]).unwrap();
        let (frames, lost) = end.take_all();
        assert!(frames.is_empty() && matches!(lost, Lost::Corrupt(_)), "{lost:?}");
        assert!(content(&end).iter().all(|byte| *byte == 0), "{len} bytes at {offset}");
    }
}
