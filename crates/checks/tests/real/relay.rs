//! Rails over TCP through a relay that disturbs them.

use std::{
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_checks::relay::{Direction, Relay};
use plexus_fabric::{
    LANES, Lane, Lost, Put, Rail, SendError, TcpRail, Window, WindowId, Windows,
    tcp::{KEY_LEN, Seal, TcpParts},
};

const WINDOW: WindowId = WindowId(3);
const LEN: usize = 100_000;

/// Creates a pair of rails whose first end calls the relay.
fn pair(seed: u64, sealed: bool) -> (TcpRail, TcpRail, Relay) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let relay = Relay::start(listener.local_addr().unwrap(), seed).unwrap();
    let [prompt, bulk] = [(); LANES].map(|()| {
        let caller = TcpStream::connect(relay.address()).unwrap();
        (caller, listener.accept().unwrap().0)
    });
    let rail = |streams, send: u8, receive: u8| {
        let window = Arc::new(Window::create(WINDOW, LEN, 0).unwrap());
        let peer_windows = vec![window.span()];
        let windows = Arc::new(Windows::new([window]));
        let seals = || [(); LANES].map(|()| Seal::new([send; KEY_LEN], [receive; KEY_LEN]));
        TcpRail::new(TcpParts { streams, windows, peer_windows, seals: sealed.then(seals) }).unwrap()
    };
    (rail([prompt.0, bulk.0], 1, 2), rail([prompt.1, bulk.1], 2, 1), relay)
}

/// The longest wait; a test fails after it.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Polls until there is a result.
#[track_caller]
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < TIMEOUT, "in vain");
    }
}

/// Returns the reason why a rail is lost.
#[track_caller]
fn why_lost(rail: &mut TcpRail) -> Lost {
    until(|| rail.poll(1, &mut |_, _| panic!("no further message was expected")).err())
}

/// Sends frames, with puts among them, until the other end has lost the rail. Returns the number of
/// frames that arrived, all unchanged, and the reason of the loss.
fn until_lost(from: &mut TcpRail, to: &mut TcpRail, mut before: impl FnMut(u64)) -> (u64, Lost) {
    let data = vec![5; LEN];
    let (mut sent, mut came) = (0u64, 0u64);
    until(|| {
        before(came);
        let text = sent.to_le_bytes();
        let put = Put { window: WINDOW, offset: 0, generation: 0, data: &data[..sent as usize * 977 % LEN] };
        let result = match sent % 4 {
            0 => from.put(Lane::Bulk, put, &text, &[7; 40]),
            _ => from.send(Lane::Bulk, &text, &[7; 40]),
        };
        match result {
            Ok(()) => sent += 1,
            Err(SendError::Full | SendError::Lost) => {}
            Err(error) => panic!("{error}"),
        }
        let _ = from.flush();
        let poll = to.poll(16, &mut |_, frame| {
            let mut bytes = [0; 48];
            assert_eq!(frame.len(), 48);
            frame.copy(0, &mut bytes);
            assert_eq!((&bytes[..8], &bytes[8..]), (&came.to_le_bytes()[..], &[7; 40][..]));
            came += 1;
        });
        poll.err().map(|lost| (came, lost))
    })
}

#[test]
fn a_flipped_bit_ends_a_rail_as_corrupt_and_nothing_wrong_is_delivered() {
    let _alone = crate::alone();
    for sealed in [false, true] {
        for seed in 0..40 {
            let (mut a, mut b, relay) = pair(seed, sealed);
            let mut flipped = false;
            let (came, lost) = until_lost(&mut a, &mut b, |came| {
                if came >= seed && !flipped {
                    relay.flip(Direction::There);
                    flipped = true;
                }
            });
            assert!(matches!(lost, Lost::Corrupt(_)), "sealed {sealed}, seed {seed}: {lost:?}");
            assert!(came >= seed);
        }
    }
}

#[test]
fn reset_ends_both_sides() {
    let _alone = crate::alone();
    let (mut a, mut b, relay) = pair(1, true);
    let mut reset = false;
    let (came, lost) = until_lost(&mut a, &mut b, |came| {
        if came >= 20 && !reset {
            relay.reset();
            reset = true;
        }
    });
    assert!(came >= 20 && matches!(lost, Lost::Closed(_)), "{lost:?}");
    let lost = why_lost(&mut a);
    assert!(matches!(lost, Lost::Closed(_)), "{lost:?}");
}

#[test]
fn bytes_swallowed_in_one_direction_still_pass_in_the_other() {
    let _alone = crate::alone();
    let (mut a, mut b, relay) = pair(1, false);
    relay.swallow(Direction::There, true);
    a.send(Lane::Prompt, b"lost", b"").unwrap();
    a.flush().unwrap();
    until(|| (relay.taken(Direction::There) > 0).then_some(()));
    b.send(Lane::Prompt, b"arrives", b"").unwrap();
    b.flush().unwrap();
    until(|| (a.poll(1, &mut |_, frame| assert_eq!(frame.len(), 7)).unwrap() > 0).then_some(()));
    assert_eq!(b.poll(1, &mut |_, _| panic!("it was swallowed")), Ok(0));
    // After a gap no bytes are taken for the next frame.
    relay.swallow(Direction::There, false);
    a.send(Lane::Prompt, b"behind the gap", b"").unwrap();
    a.flush().unwrap();
    assert_eq!(why_lost(&mut b), Lost::Corrupt("a frame out of sequence"));
}

#[test]
fn delayed_bytes_arrive_in_order_and_the_end_of_a_connection_is_passed_on() {
    let _alone = crate::alone();
    let (mut a, mut b, relay) = pair(1, true);
    let delay = Duration::from_millis(20);
    relay.delay(Direction::There, delay);
    let start = Instant::now();
    for number in 0..200u64 {
        a.send(Lane::Bulk, &number.to_le_bytes(), &[1; 3000]).unwrap();
    }
    until(|| {
        a.flush().unwrap();
        (a.health().unsent == 0).then_some(())
    });
    let mut came = 0u64;
    until(|| {
        b.poll(16, &mut |_, frame| {
            let mut number = [0; 8];
            frame.copy(0, &mut number);
            assert_eq!(number, came.to_le_bytes());
            assert!(start.elapsed() >= delay, "it cannot be here yet");
            came += 1;
        })
        .unwrap();
        (came == 200).then_some(())
    });
    drop(a);
    assert_eq!(why_lost(&mut b), Lost::Closed("the peer closed the connection".into()));
}
