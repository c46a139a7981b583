//! Tests of a ring in ordinary memory, both ends in one thread.

use std::sync::atomic::Ordering::Relaxed;

use super::*;

/// A ring in ordinary memory, both ends in one thread.
struct TestRing {
    lines: Box<[[u64; 8]]>,
    _control: Box<[AtomicU64; 2]>,
    place: RingMemory,
    writer: Writer,
    reader: Reader,
}

impl TestRing {
    fn new(lines: u64) -> Self {
        // A line is 64-aligned here only by chance; the tests need just 8.
        let mut memory = vec![[0u64; 8]; lines as usize].into_boxed_slice();
        let control = Box::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let place = RingMemory {
            data: NonNull::from(&mut memory[0]).cast(),
            lines,
            read: NonNull::from(&control[0]),
            starved: NonNull::from(&control[1]),
        };
        Self {
            lines: memory,
            _control: control,
            place,
            writer: Writer::new(place),
            reader: Reader::new(place),
        }
    }

    fn send(&mut self, frame: &[u8]) -> bool {
        let cut = frame.len() / 3;
        let Some(room) = self.writer.room(frame.len()).unwrap() else { return false };
        self.writer.publish(&room, &frame[..cut], &frame[cut..], 0);
        true
    }

    fn receive(&mut self, limit: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        while frames.len() < limit {
            let before = frames.len();
            let (count, result) = self.reader.poll(limit - before, usize::MAX, |frame| {
                let mut bytes = vec![0; frame.len()];
                frame.copy(0, &mut bytes);
                frames.push(bytes);
            });
            result.unwrap();
            assert_eq!(before + count, frames.len());
            if count == 0 {
                break;
            }
        }
        frames
    }

    fn poke(&mut self, header: u64) -> Result<(), Broken> {
        self.lines[0][0] = header;
        self.reader.poll(4, usize::MAX, |_| {}).1
    }
}

#[test]
fn every_length_arrives_whole_at_every_position() {
    let mut ring = TestRing::new(1024);
    let mut random = 1u64;
    for round in 0..60_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let most = if round % 64 == 0 { MAX_FRAME + 1 } else { 200 };
        let len = (random >> 33) as usize % most;
        let frame: Vec<u8> = (0..len).map(|at| (at as u64 ^ random >> 20) as u8 | 1).collect();
        assert!(ring.send(&frame));
        assert_eq!(ring.receive(8), [frame]);
    }
}

#[test]
fn a_full_ring_refuses_and_loses_nothing() {
    for len in [0, 1, 56, 57, 120, 4000, MAX_FRAME] {
        let mut ring = TestRing::new(1024);
        let (mut sent, mut received) = (0u8, 0u8);
        for _ in 0..500 {
            while ring.send(&vec![sent; len]) {
                sent = sent.wrapping_add(1);
            }
            assert!(!ring.writer.may_have_room());
            for frame in ring.receive(3 + usize::from(sent % 40)) {
                assert_eq!(frame, vec![received; len]);
                received = received.wrapping_add(1);
            }
        }
        ring.receive(usize::MAX);
        assert!(ring.send(&vec![0; len]), "an empty ring takes a frame of {len} bytes wherever it stands");
    }
}

#[test]
fn a_second_frame_is_polled_once_frames_come_without_a_wait() {
    let mut ring = TestRing::new(1024);
    let poll = |ring: &mut TestRing| ring.reader.poll(8, usize::MAX, |_| {}).0;
    (0..20).for_each(|_| assert!(ring.send(&[1])));
    assert_eq!([(); 5].map(|()| poll(&mut ring)), [1, 1, 8, 8, 2]);
    assert_eq!(poll(&mut ring), 0);
    (0..2).for_each(|_| assert!(ring.send(&[1])));
    assert_eq!([(); 3].map(|()| poll(&mut ring)), [1, 1, 0]);
}

#[test]
fn a_poll_stops_after_its_byte_limit() {
    let mut ring = TestRing::new(1024);
    (0..9).for_each(|_| assert!(ring.send(&[1; 100])));
    ring.receive(2);
    let poll = |ring: &mut TestRing, most| ring.reader.poll(8, most, |_| {}).0;
    assert_eq!([poll(&mut ring, 1), poll(&mut ring, 250), poll(&mut ring, usize::MAX)], [1, 3, 3]);
}

#[test]
fn a_writer_without_room_is_woken_once_there_is_some() {
    let mut ring = TestRing::new(1024);
    while ring.send(&[1; 56]) {}
    assert!(!ring.reader.wakes_starved(), "nothing read yet");
    ring.receive(16);
    assert!(!ring.reader.wakes_starved(), "too little room yet");
    ring.receive(512);
    assert!(ring.reader.wakes_starved() && !ring.reader.wakes_starved(), "once");
    assert!(ring.writer.may_have_room() && ring.send(&[1; 56]) && !ring.writer.may_have_room());
}

#[test]
fn invalid_headers_are_detected() {
    let headers = [1, FRAME | (MAX_FRAME as u64 + 1), FRAME | 0xffff_ffff, SKIP, SKIP | 1, 3 << 32, u64::MAX];
    for header in headers {
        assert!(TestRing::new(1024).poke(header).is_err(), "{header:#x}");
    }
    // A frame longer than what is left before the end.
    let mut ring = TestRing::new(1024);
    ring.reader = Reader::at(ring.place, 1023);
    ring.lines[1023][0] = FRAME | 57;
    assert!(ring.reader.poll(1, usize::MAX, |_| {}).1.is_err());
}

#[test]
fn invalid_reader_positions_are_detected() {
    for position in [u64::MAX, 100_000] {
        let mut ring = TestRing::new(1024);
        while ring.send(&[1; 56]) {}
        ring.place.read().store(position, Relaxed);
        assert!(ring.writer.room(56).is_err());
    }
}

#[test]
fn any_memory_of_a_peer_does_no_harm() {
    let mut ring = TestRing::new(1024);
    for len in [0, 8, 56, 57, 300, MAX_FRAME, 1] {
        assert!(ring.send(&vec![7; len]));
    }
    let lines = ring.lines.as_flattened().iter().take(3000).copied();
    let good = |control: [u64; 3]| -> Vec<u8> {
        control.into_iter().chain(lines.clone()).flat_map(u64::to_le_bytes).collect()
    };
    let good = [good([0; 3]), good([64, 65, 1 << 30])];
    assert_eq!(good.each_ref().map(|bytes| ring_any(bytes)), [7, 7]);
    plexus_sim::hostile(&good, |bytes| assert!(ring_any(bytes) <= 1024 + 16));
}
