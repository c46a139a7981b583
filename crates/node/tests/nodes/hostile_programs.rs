//! Programs that break the protocol, over the socket and in the rings: the node disconnects them,
//! and serves all others as before.

use std::{
    fs::File,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
};

use crate::cluster::{
    Cluster,
    program::{Program, assert_cut_off, attach, connect},
};
use plexus_client::wire::{
    HEAD, Head, Letters, Pipe, Status, Use, Verb,
    hello::{self, GO, Refusal, Welcome},
    limits, receive_packet, send_packet,
};
use plexus_fabric::{Lane, Notice, PeerBell, Rail, RailKind, shm::RxRings};
use plexus_sim::Random;
use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::{FallocateFlags, MemfdFlags, OFlags, memfd_create},
    time::Timespec,
};

#[test]
fn program_with_a_wrong_handshake_is_refused() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let path = cluster.socket(0);
    let mut random = Random::new(0x5eed);
    for round in 0..100_usize {
        let socket = connect(&path);
        let mut packet = hello::hello().to_vec();
        match round % 4 {
            0 => packet = (0..random.between(1, 127)).map(|_| random.bits() as u8).collect(),
            1 => packet.truncate(round % packet.len()),
            2 => packet[round % 32] ^= 1 << (round % 8),
            _ => packet.resize(33 + 7 * round, 0),
        }
        send_packet(socket.as_fd(), &packet, &[]).unwrap();
        // A packet over the size limit is not answered.
        if packet.len() > 128 {
            assert_cut_off(socket.as_fd(), "longer than any packet");
            continue;
        }
        let (answer, passed) = receive_packet(socket.as_fd()).unwrap();
        assert_eq!((Welcome::decode(&answer), passed.len()), (Err(Refusal::NotUnderstood), 0), "{packet:?}");
        assert_cut_off(socket.as_fd(), "a greeting that is none");
    }
    let pipe = || rustix::pipe::pipe().unwrap().0;
    let memory = |len: u64| {
        let memory = File::from(memfd_create("hostile", MemfdFlags::CLOEXEC).unwrap());
        memory.set_len(len).unwrap();
        OwnedFd::from(memory)
    };
    // It has the right size, but its creator can shorten it under its reader.
    let unsealed = || {
        memory(
            File::from(RxRings::create().unwrap().fd().try_clone_to_owned().unwrap())
                .metadata()
                .unwrap()
                .len(),
        )
    };
    let rings = || RxRings::create().unwrap().fd().try_clone_to_owned().unwrap();
    let notice = Notice::create().unwrap();
    let page = || notice.fd().try_clone_to_owned().unwrap();
    let wrong: Vec<(&str, Vec<OwnedFd>)> = vec![
        ("nothing", vec![]),
        ("too few", vec![rings(), page()]),
        ("too many", vec![rings(), rings(), page(), page()]),
        ("pipes", vec![pipe(), pipe(), pipe()]),
        ("short rings", vec![rings(), memory(4096), page()]),
        ("no memory in the rings", vec![memory(0), rings(), page()]),
        ("rings that may become shorter", vec![unsealed(), rings(), page()]),
        ("a notice that is none", vec![rings(), rings(), pipe()]),
        ("a notice that may become shorter", vec![rings(), rings(), memory(4096)]),
    ];
    for (what, descriptors) in &wrong {
        let socket = connect(&path);
        send_packet(socket.as_fd(), &hello::hello(), &[]).unwrap();
        assert!(Welcome::decode(&receive_packet(socket.as_fd()).unwrap().0).is_ok());
        let pass: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        send_packet(socket.as_fd(), &[GO], &pass).unwrap();
        assert_cut_off(socket.as_fd(), what);
    }
    cluster.assert_alive();
}

#[test]
fn program_that_sends_malformed_frames_is_disconnected() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let good = Head { id: 1, port: 2, ..Head::new(Verb::Bind, Use::Datagrams) };
    let with = |at: usize, byte: u8| {
        let mut bytes = good.encode(0);
        bytes[at] = byte;
        bytes.to_vec()
    };
    let cases: Vec<(&str, Lane, Vec<u8>)> = vec![
        ("shorter than a head", Lane::Prompt, vec![1, 2, 3]),
        ("no verb", Lane::Prompt, with(0, 200)),
        ("no use", Lane::Prompt, with(1, 9)),
        ("no status", Lane::Prompt, with(2, 99)),
        ("no node", Lane::Prompt, with(3, 255)),
        ("longer than any message", Lane::Prompt, with(14, 0xff)),
        ("shorter than it says", Lane::Prompt, good.encode(40).to_vec()),
        ("longer than it says", Lane::Prompt, [&good.encode(1)[..], &[0; 9]].concat()),
        ("the other lane", Lane::Bulk, good.encode(0).to_vec()),
        ("a node's verb", Lane::Prompt, Head::new(Verb::Joined, Use::Windows).encode(0).to_vec()),
        ("ports of windows", Lane::Prompt, Head::new(Verb::Bind, Use::Windows).encode(0).to_vec()),
    ];
    for (what, lane, frame) in cases {
        for worker in 0..2 {
            let mut program = attach(&cluster.socket(0));
            program.rails[worker].send(lane, &frame, &[]).unwrap();
            program.rails[worker].flush().unwrap();
            assert_cut_off(program.socket.as_fd(), what);
        }
    }
    cluster.assert_alive();
}

#[test]
fn node_survives_any_content_of_the_rings() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let (mut random, mut cut_off) = (Random::new(0xfeed), 0);
    for round in 0..60 {
        let mut program = attach(&cluster.socket(0));
        let worker = round % 2;
        // A valid start of a message, so that the ring has more than random bytes.
        let _ = program.rails[worker].send(Lane::Prompt, &Head::new(Verb::Bind, Use::Calls).encode(0), &[]);
        let len = program.rings[worker].metadata().unwrap().len();
        for _ in 0..=random.bits() % 64 {
            let bytes: Vec<u8> = (0..=random.bits() % 200).map(|_| random.bits() as u8).collect();
            // Often near the start, where the words are that announce content.
            let reach = if random.bits().is_multiple_of(2) { 1024 } else { len - 200 };
            program.rings[worker].write_all_at(&bytes, random.bits() % reach).unwrap();
        }
        let _ = program.rails[worker].flush();
        // Both workers of the node have served others since.
        cluster.assert_alive();
        let mut ended = [PollFd::new(&program.socket, PollFlags::IN)];
        cut_off += poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    }
    assert!(cut_off > 5, "{cut_off}");
}

/// Writes to an event descriptor until it is full, and leaves it in blocking mode.
fn fill(event: &OwnedFd) {
    rustix::fs::fcntl_setfl(event, OFlags::NONBLOCK).unwrap();
    // Empties it first, whatever was in it; then one write fills it.
    let _ = rustix::io::read(event, &mut [0; 8]);
    while rustix::io::write(event, &(u64::MAX - 1).to_ne_bytes()).is_ok() {}
    while rustix::io::write(event, &1u64.to_ne_bytes()).is_ok() {}
    rustix::fs::fcntl_setfl(event, OFlags::empty()).unwrap();
}

/// Abuses the doorbells in all ways that their descriptors allow.
fn spoil(program: &Program) {
    program.rung.iter().for_each(fill);
    rustix::fs::fcntl_setfl(&program.ear, OFlags::empty()).unwrap();
    for notice in &program.notices {
        let path = format!("/proc/self/fd/{}", notice.as_raw_fd());
        let again = OwnedFd::from(File::options().read(true).write(true).open(path).unwrap());
        for fd in [notice, &again] {
            let zeros = rustix::io::pwrite(fd, &[0; 4096], 0);
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let holed = rustix::fs::fallocate(fd, hole, 0, 4096);
            assert!(zeros.is_err() && holed.is_err() && rustix::fs::ftruncate(fd, 0).is_err());
            // It opens the bell for writing.
            assert!(PeerBell::map(fd.as_fd(), program.rung[0].try_clone().unwrap()).is_err());
        }
    }
}

#[test]
fn program_that_abuses_bells_does_not_block_wakeups_of_others() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let mut program = attach(&cluster.socket(0));
    spoil(&program);
    for round in 0..20 {
        // It pretends to sleep, and the workers wake it by the descriptor that it has spoiled.
        program.notice.arm();
        for (worker, rail) in program.rails.iter_mut().enumerate() {
            let head = Head { id: round, port: 2 + worker as u32, ..Head::new(Verb::Bind, Use::Calls) };
            rail.send(Lane::Prompt, &head.encode(0), &[]).unwrap();
            // It has taken its own wake-up of the worker; another thread wakes the worker.
            assert!(rail.pending());
        }
        cluster.assert_alive();
        let mut answered = 0;
        for rail in &mut program.rails {
            rail.poll(8, &mut |_, _| answered += 1).unwrap();
        }
        assert_eq!(answered, 2, "what it said was heard with the rest");
    }
    // A blocking read would wait for itself.
    program.rung.iter().for_each(|rung| rustix::fs::fcntl_setfl(rung, OFlags::NONBLOCK).unwrap());
    // After its end, with its descriptors still open elsewhere, it wakes no thread and gets no
    // wake-up.
    let (rung, ear) = (program.rung, program.ear);
    drop((program.socket, program.rails));
    while cluster.programs(0).attached > 0 {
        std::thread::yield_now();
    }
    rung.iter().for_each(fill);
    cluster.assert_alive();
    drop(ear);
}

#[test]
fn program_that_does_not_read_is_disconnected() {
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let mut program = attach(&cluster.socket(0));
    let mut pipe = Pipe::new(Box::new(program.rails.remove(0)));
    let window = |verb, id, value| Head { id, value, port: 1, ..Head::new(verb, Use::Windows) };
    pipe.send(window(Verb::Create, 1, limits::MAX_MESSAGE as u64), b"w");
    let mut letters = Letters::default();
    while letters.is_empty() {
        pipe.flush().unwrap();
        pipe.poll(&mut letters).unwrap();
    }
    assert_eq!(letters.at(0).0.status, Status::Ok);
    let ended = |socket: &OwnedFd| {
        let mut ended = [PollFd::new(socket, PollFlags::IN)];
        poll(&mut ended, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    };
    let mut asked = 0;
    while !ended(&program.socket) {
        if pipe.queued() < HEAD {
            pipe.send(window(Verb::Get, 2, 0), &(limits::MAX_MESSAGE as u64).to_le_bytes());
            asked += 1;
        }
        let _ = pipe.flush();
        assert!(asked * limits::MAX_MESSAGE < 2 * limits::MAX_QUEUED, "it is let do what it likes");
    }
    assert!(asked * limits::MAX_MESSAGE > limits::MAX_QUEUED);
    assert_cut_off(program.socket.as_fd(), "it does not read");
    cluster.assert_alive();
}
