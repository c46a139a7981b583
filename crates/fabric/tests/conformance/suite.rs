//! The properties of frames and puts, each over a pair of any kind.

use std::thread;

use plexus_fabric::{Lane, Lost, MAX_FRAME, Put, SendError, WindowId};

use crate::pairs::{DIVIDED, End, GRANULE, GRANULES, Kind, Sleeper, WHOLE, WHOLE_LEN, bytes, number, pair};

/// A recognizable frame: its number, then bytes that follow from it.
fn frame(number: u64, len: usize) -> Vec<u8> {
    let mut frame = number.to_le_bytes().to_vec();
    frame.extend((8..len.max(8)).map(|at| (at as u64).wrapping_mul(31).wrapping_add(number) as u8));
    frame
}

/// Lengths that look random and are the same in every run.
fn some_len(number: u64) -> usize {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    match mixed % 16 {
        0 => mixed as usize % (MAX_FRAME - 7) + 8,
        _ => mixed as usize % 120 + 8,
    }
}

pub(crate) fn a_rail_reports_its_kind(kind: Kind) {
    let (a, _b) = pair(kind);
    assert_eq!(a.rail.kind(), kind.rail());
}

pub(crate) fn frames_of_a_lane_arrive_in_order(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let (mut sent, mut came) = ([0u64; 2], [0u64; 2]);
    const EACH: u64 = 20_000;
    while came != [EACH; 2] {
        for lane in Lane::ALL {
            for _ in 0..20 {
                let number = sent[lane.index()];
                let frame = frame(number, some_len(number));
                if number == EACH || !a.offer(lane, &frame[..8], &frame[8..]) {
                    break;
                }
                sent[lane.index()] += 1;
            }
        }
        a.rail.flush().unwrap();
        let deliver = &mut |lane: Lane, got: plexus_fabric::Frame<'_>| {
            let expected = came[lane.index()];
            assert_eq!(bytes(&got), frame(expected, some_len(expected)));
            came[lane.index()] += 1;
        };
        b.poll(30, deliver);
    }
}

pub(crate) fn two_threads_at_full_speed_lose_and_mix_up_nothing(kind: Kind) {
    const EACH: u64 = 60_000;
    let (mut a, mut b) = pair(kind);
    let receiver = thread::spawn(move || {
        let mut came = [0u64; 2];
        while came != [EACH; 2] {
            b.poll(64, |lane, got| {
                let expected = came[lane.index()];
                assert_eq!(bytes(&got), frame(expected, some_len(expected)));
                came[lane.index()] += 1;
            });
            if came[0] % 512 == 0 {
                thread::yield_now();
            }
        }
        b
    });
    let mut sent = [0u64; 2];
    while sent != [EACH; 2] {
        for lane in Lane::ALL {
            let number = sent[lane.index()];
            let made = frame(number, some_len(number));
            let cut = number as usize % 9;
            if number < EACH && a.offer(lane, &made[..cut], &made[cut..]) {
                sent[lane.index()] += 1;
            }
        }
        if sent[0].is_multiple_of(8) {
            a.rail.flush().unwrap();
        }
    }
    while !receiver.is_finished() {
        a.rail.flush().unwrap();
        thread::yield_now();
    }
    receiver.join().unwrap();
}

pub(crate) fn frames_of_every_size_arrive_whole(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let edges = [4096, 8192, MAX_FRAME].into_iter().flat_map(|edge| edge - 64..=edge);
    for len in (0..700).chain((700..MAX_FRAME).step_by(509)).chain(edges) {
        for lane in Lane::ALL {
            let sent = &frame(7, len)[..len];
            let cut = len.min(16) * (len % 3) / 2;
            a.rail.send(lane, &sent[..cut.min(len)], &sent[cut.min(len)..]).unwrap();
            a.rail.flush().unwrap();
            assert_eq!(b.take_from(&mut a, 1), [(lane, sent.to_vec())]);
        }
    }
}

pub(crate) fn a_frame_that_is_too_long_is_refused_and_does_no_harm(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let long = vec![1; MAX_FRAME];
    assert_eq!(a.rail.send(Lane::Bulk, &[1], &long), Err(SendError::TooLarge));
    let put = Put { window: WHOLE, offset: 0, generation: 0, data: &[1] };
    assert_eq!(a.rail.put(Lane::Bulk, put, &[1], &long), Err(SendError::TooLarge));
    a.rail.send(Lane::Bulk, &[], &long).unwrap();
    a.rail.flush().unwrap();
    assert_eq!(b.take_from(&mut a, 1), [(Lane::Bulk, long)]);
    assert!(!b.rail.pending() || b.rail.poll(1, &mut |_, _| panic!("one frame was sent")).is_ok());
}

pub(crate) fn a_full_rail_refuses_then_resumes_and_loses_nothing(kind: Kind) {
    for (lane, len) in [(Lane::Prompt, 8), (Lane::Prompt, 64), (Lane::Bulk, MAX_FRAME)] {
        let (mut a, mut b) = pair(kind);
        let (mut sent, mut came, mut refused) = (0u64, 0u64, 0);
        while refused < 20 {
            let made = frame(sent, len);
            if a.offer(lane, &made[..8], &made[8..]) {
                sent += 1;
                continue;
            }
            refused += 1;
            let before = came;
            while came < before + 5 {
                b.poll(5, |_, got| {
                    assert_eq!(number(&got), came);
                    came += 1;
                });
                a.rail.flush().unwrap();
            }
        }
        while came < sent {
            a.rail.flush().unwrap();
            b.poll(1000, |_, got| {
                assert_eq!(bytes(&got), frame(came, len));
                came += 1;
            });
        }
        assert!(a.offer(lane, &[], &frame(0, len)), "an empty rail has room");
    }
}

pub(crate) fn a_poll_keeps_to_its_limit(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    for lane in Lane::ALL {
        for at in 0..10 {
            a.rail.send(lane, &frame(at, 8), &[]).unwrap();
        }
    }
    a.rail.flush().unwrap();
    let mut came = [0; 2];
    while came != [10, 10] {
        let mut now = [0; 2];
        let count = b.poll(3, |lane, _| now[lane.index()] += 1);
        assert!(now[0] <= 3 && now[1] <= 3 && count == now[0] + now[1]);
        came = [came[0] + now[0], came[1] + now[1]];
        assert!(came == [10, 10] || b.rail.pending(), "a sleeper would miss what the limit left behind");
    }
}

pub(crate) fn the_data_of_a_put_arrive_before_its_frame(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    for round in 0..2000usize {
        let lane = Lane::ALL[round % 2];
        let granule = round * 7 % GRANULES;
        let len = if round % 3 == 0 { GRANULE } else { round * 13 % GRANULE };
        let data = frame(round as u64, len);
        let offset = (GRANULE - data.len()) * (round % 2);
        let generation = round as u32 * 2 + 1;
        b.window(DIVIDED).set_generation(granule, generation);
        let place = granule * GRANULE + offset;
        let put = Put { window: DIVIDED, offset: place as u64, generation, data: &data };
        a.rail.put(lane, put, &(round as u64).to_le_bytes(), &[1; 40]).unwrap();
        a.rail.flush().unwrap();
        let came = b.take_from(&mut a, 1);
        assert_eq!(came[0].0, lane);
        assert_eq!(came[0].1[..8], (round as u64).to_le_bytes());
        let mut landed = vec![0; data.len()];
        b.window(DIVIDED).read(place, &mut landed);
        assert_eq!(landed, data, "round {round}");
        b.window(DIVIDED).set_generation(granule, generation + 1);
    }
}

pub(crate) fn puts_and_frames_keep_their_order(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let generations: Vec<u32> = (0..GRANULES as u32).map(|granule| granule * 2 + 1).collect();
    for (granule, generation) in generations.iter().enumerate() {
        b.window(DIVIDED).set_generation(granule, *generation);
    }
    let mut sent = 0u64;
    let mut came = 0u64;
    while came < 6000 {
        while sent < 6000 && sent - came < GRANULES as u64 {
            let number = sent.to_le_bytes();
            let granule = sent as usize % GRANULES;
            let data = [sent as u8; GRANULE];
            let put = Put {
                window: DIVIDED,
                offset: (granule * GRANULE) as u64,
                generation: generations[granule],
                data: &data,
            };
            let result = match sent % 3 {
                0 => a.rail.send(Lane::Bulk, &number, &[0; 3000]),
                _ => a.rail.put(Lane::Bulk, put, &number, &[]),
            };
            match result {
                Ok(()) => sent += 1,
                Err(SendError::Full) => break,
                Err(error) => panic!("{error}"),
            }
        }
        a.rail.flush().unwrap();
        let window = std::sync::Arc::clone(&b.windows);
        b.poll(8, |_, got| {
            assert_eq!(number(&got), came);
            if !came.is_multiple_of(3) {
                let mut landed = vec![0; GRANULE];
                window.find(DIVIDED).unwrap().read(came as usize % GRANULES * GRANULE, &mut landed);
                assert!(landed.iter().all(|byte| *byte == came as u8));
            }
            came += 1;
        });
    }
}

pub(crate) fn a_put_without_granules_may_be_large(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let data: Vec<u8> = (0..WHOLE_LEN as u32).map(|at| (at >> 8) as u8 ^ at as u8).collect();
    for round in 0..3 {
        let put = Put { window: WHOLE, offset: round, generation: 0, data: &data[round as usize..] };
        a.rail.put(Lane::Bulk, put, b"large", &[]).unwrap();
        let mut came = 0;
        while came == 0 {
            a.rail.flush().unwrap();
            came = b.poll(1, |_, got| assert_eq!(bytes(&got), b"large"));
        }
        let mut landed = vec![0; WHOLE_LEN - round as usize];
        b.window(WHOLE).read(round as usize, &mut landed);
        assert!(landed == data[round as usize..]);
    }
}

pub(crate) fn a_put_outside_its_window_is_refused_by_the_sender(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    let put = |window, offset, data| Put { window, offset, generation: 1, data };
    let all = (GRANULES * GRANULE) as u64;
    let outside = [
        put(DIVIDED, all, &[1][..]),
        put(DIVIDED, all - 1, &[1; 2]),
        put(DIVIDED, u64::MAX, &[1; 2]),
        put(DIVIDED, GRANULE as u64 - 1, &[1; 2]),
        put(WHOLE, WHOLE_LEN as u64, &[1]),
        put(WindowId(3), 0, &[1]),
        put(WindowId(u16::MAX), 0, &[1]),
    ];
    for put in outside {
        assert_eq!(a.rail.put(Lane::Prompt, put, b"head", b"body"), Err(SendError::TooLarge), "{put:?}");
    }
    a.rail.send(Lane::Prompt, b"still", b"alive").unwrap();
    a.rail.flush().unwrap();
    assert_eq!(b.take(1), [(Lane::Prompt, b"stillalive".to_vec())]);
}

/// Returns each frame until the peer ends the rail, asleep whenever there is nothing to do.
fn echo(mut end: End) {
    let sleeper = Sleeper::new(&end);
    loop {
        let mut came = Vec::new();
        match end.rail.poll(16, &mut |lane, frame| came.push((lane, bytes(&frame)))) {
            Ok(0) => {
                sleeper.sleep(&mut end);
            }
            Ok(_) => {
                for (lane, frame) in came {
                    assert!(end.offer(lane, &frame, &[]));
                }
                end.rail.flush().unwrap();
            }
            Err(lost) => {
                assert!(matches!(lost, Lost::Closed(_)), "{lost:?}");
                return;
            }
        }
    }
}

pub(crate) fn no_wake_up_is_lost_between_two_sleepers(kind: Kind) {
    let (mut a, b) = pair(kind);
    let echo = thread::spawn(|| echo(b));
    let sleeper = Sleeper::new(&a);
    let mut slept = 0;
    for round in 0..20_000u64 {
        let batch = 1 + round % 3;
        for part in 0..batch {
            assert!(a.offer(Lane::ALL[(round + part) as usize % 2], &round.to_le_bytes(), &[]));
        }
        a.rail.flush().unwrap();
        let mut came = 0;
        while came < batch {
            // Sometimes poll for a while, so that the other side is met at every step of going to
            // sleep.
            for _ in 0..round % 50 {
                came += a.poll(4, |_, frame| assert_eq!(number(&frame), round)) as u64;
            }
            if came < batch {
                slept += u32::from(sleeper.sleep(&mut a));
                came += a.poll(4, |_, frame| assert_eq!(number(&frame), round)) as u64;
            }
        }
        assert_eq!(came, batch);
    }
    assert!(slept > 0 || !kind.sleeps(), "never asleep: nothing was shown");
    drop(a);
    echo.join().unwrap();
}

pub(crate) fn a_sender_asleep_on_a_full_rail_is_woken(kind: Kind) {
    const FRAMES: u64 = 30_000;
    let (mut a, mut b) = pair(kind);
    let sender = thread::spawn(move || {
        let sleeper = Sleeper::new(&a);
        let mut full = 0;
        for sent in 0..FRAMES {
            while !a.offer(Lane::Bulk, &sent.to_le_bytes(), &[0; 4000]) {
                full += 1;
                a.rail.flush().unwrap();
                sleeper.sleep(&mut a);
                a.poll(1, |_, _| panic!("the receiver sends no frame yet"));
            }
        }
        // The last frames may wait in a queue: stay until they are sent.
        a.rail.flush().unwrap();
        while a.poll(1, |_, frame| assert_eq!(number(&frame), FRAMES)) == 0 {
            sleeper.sleep(&mut a);
            a.rail.flush().unwrap();
        }
        full
    });
    let sleeper = Sleeper::new(&b);
    let mut came = 0;
    while came < FRAMES {
        let count = b.poll(3, |_, frame| {
            assert_eq!(number(&frame), came);
            came += 1;
        });
        if count == 0 {
            sleeper.sleep(&mut b);
        }
    }
    assert!(b.offer(Lane::Prompt, &FRAMES.to_le_bytes(), &[]));
    b.rail.flush().unwrap();
    assert!(sender.join().unwrap() > 0, "never full: nothing was shown");
}

pub(crate) fn frames_before_the_end_are_delivered(kind: Kind) {
    let (mut a, mut b) = pair(kind);
    for at in 0..100 {
        for lane in Lane::ALL {
            a.rail.send(lane, &frame(at, 300), &[]).unwrap();
        }
    }
    a.rail.flush().unwrap();
    drop(a);
    let (frames, lost) = b.take_all();
    for lane in Lane::ALL {
        let of_lane: Vec<_> =
            frames.iter().filter(|(l, _)| *l == lane).map(|(_, bytes)| bytes.clone()).collect();
        assert_eq!(of_lane, (0..100).map(|at| frame(at, 300)).collect::<Vec<_>>());
    }
    assert!(matches!(lost, Lost::Closed(_)), "{lost:?}");
}

pub(crate) fn a_lost_rail_refuses(kind: Kind) {
    let (a, mut b) = pair(kind);
    drop(a);
    let (_, lost) = b.take_all();
    assert_eq!(b.rail.send(Lane::Prompt, b"head", b"body"), Err(SendError::Lost));
    let put = Put { window: WHOLE, offset: 0, generation: 0, data: b"data" };
    assert_eq!(b.rail.put(Lane::Bulk, put, b"head", b"body"), Err(SendError::Lost));
    assert_eq!(b.rail.flush(), Err(lost.clone()));
    assert_eq!(b.rail.poll(1, &mut |_, _| {}), Err(lost), "for ever");
    assert!(!b.rail.pending(), "it has said so, nothing more will come");
}
