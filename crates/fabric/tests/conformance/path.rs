//! A TCP rail's view of its path: on loopback, and in a network namespace whose link goes down.
#![allow(unsafe_code, reason = "filters what arrives")]

use std::{
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    time::{Duration, Instant},
};

use plexus_base::Nanos;
use plexus_fabric::{Health, LANES, Lane, Lost, Put, SendError, tcp};
use plexus_namespaces::Namespace;
use rustix::net::{AddressFamily, SocketType};

use crate::pairs::{End, Kind, Own, WHOLE, WHOLE_LEN, pair, sockets};

fn silent(end: &mut End) -> Nanos {
    end.rail.health().silent.expect("the kernel reports it")
}

/// A pair, and the sockets of its second end.
fn pair_with_sockets() -> (End, End, [TcpStream; LANES]) {
    let (prompt, bulk) = (sockets(), sockets());
    let theirs = [&prompt.1, &bulk.1].map(|socket| socket.try_clone().unwrap());
    let (a, b) = (Own::new().tcp([prompt.0, bulk.0], None), Own::new().tcp([prompt.1, bulk.1], None));
    (a, b, theirs)
}

/// Makes the system drop packets that arrive for this socket, as if the path lost them.
fn drop_arrivals(socket: &TcpStream) {
    let code = (libc::BPF_RET | libc::BPF_K) as u16;
    let mut keep_nothing = libc::sock_filter { code, jt: 0, jf: 0, k: 0 };
    let program = libc::sock_fprog { len: 1, filter: &raw mut keep_nothing };
    set(socket, libc::SO_ATTACH_FILTER, &program);
}

fn allow_arrivals(socket: &TcpStream) {
    set(socket, libc::SO_DETACH_FILTER, &0 as &libc::c_int);
}

fn set<T>(socket: &TcpStream, option: libc::c_int, value: &T) {
    let (value, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: the value is borrowed for the call, and so is the program it may point to by our
    // callers.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, option, value, len) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn send_something(end: &mut End) {
    end.rail.send(Lane::Prompt, b"something", b"").unwrap();
    end.rail.flush().unwrap();
}

#[test]
fn a_pair_on_loopback_reports_its_path() {
    for kind in [Kind::Tcp, Kind::SealedTcp] {
        let (mut a, mut b) = pair(kind);
        send_something(&mut a);
        b.take(1);
        let Health {
            mtu,
            rtt,
            longest_rtt,
            silent,
            lane_silent,
            segments,
            retransmits,
            unsent,
            bulk,
            encrypted,
        } = a.rail.health();
        assert!((576..=65_536).contains(&mtu), "{mtu}");
        assert!(rtt > Nanos(0) && rtt < Nanos::from_ms(10_000), "{rtt}");
        assert!(longest_rtt >= rtt, "{longest_rtt}");
        assert!(silent.is_some());
        assert_eq!(lane_silent[Lane::Bulk.index()], None, "nothing was sent on that lane");
        assert_eq!((segments, retransmits, unsent), (1, 0, 0));
        assert!(bulk.acknowledged <= 1, "only the connection's begin was acknowledged on that lane");
        assert_eq!(bulk.on_path, 0, "nothing was sent on that lane");
        assert_eq!(encrypted, kind == Kind::SealedTcp);
    }
    assert_eq!(pair(Kind::Shm).0.rail.health(), Health::default());
}

#[test]
fn waiting_bytes_are_counted() {
    let (mut a, mut b) = pair(Kind::Tcp);
    let mut sent = 0u64;
    while a.offer(Lane::Bulk, &[1; 64], &[2; 8000]) {
        sent += 1;
    }
    assert!(a.rail.health().unsent > 512 << 10);
    while sent > 0 {
        a.rail.flush().unwrap();
        sent -= b.poll(16, |_, _| {}) as u64;
    }
    assert_eq!(a.rail.health().unsent, 0);
}

/// The peer's system takes data as far as it has room though its program reads nothing, and the
/// rest while the program reads.
#[test]
fn progress_is_seen_within_one_long_frame() {
    for kind in [Kind::Tcp, Kind::SealedTcp] {
        let (mut a, mut b) = pair(kind);
        let data = vec![3; WHOLE_LEN];
        let put = Put { window: WHOLE, offset: 0, generation: 0, data: &data };
        a.rail.put(Lane::Bulk, put, b"", b"").unwrap();
        let mut seen = 0;
        while seen <= 1 {
            seen = a.rail.health().bulk.acknowledged;
        }
        assert!(seen < WHOLE_LEN as u64, "{seen}: the peer has no room for so much");
        let mut arrived = 0;
        while arrived == 0 || seen < WHOLE_LEN as u64 {
            a.rail.flush().unwrap();
            arrived += b.poll(1, |_, _| {});
            let now = a.rail.health().bulk.acknowledged;
            assert!(now >= seen, "{now} after {seen}");
            seen = now;
        }
        assert_eq!(arrived, 1);
        assert_eq!(a.rail.health().bulk.on_path, 0, "all of it is there");
    }
}

/// Silence belongs to the path: there is none while nothing is sent, or while either lane's
/// connection is answered. Each lane has its own silence, since it may be cut off alone.
#[test]
fn silence_of_a_lane_grows_while_it_is_not_answered_and_ends_when_it_is() {
    for (silenced, other) in [(Lane::Prompt, Lane::Bulk), (Lane::Bulk, Lane::Prompt)] {
        let (mut a, mut b, sockets) = pair_with_sockets();
        let socket = &sockets[silenced.index()];
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            let Health { silent, lane_silent, .. } = a.rail.health();
            assert_eq!((silent, lane_silent), (Some(Nanos(0)), [None; LANES]), "nothing was sent");
        }
        drop_arrivals(socket);
        a.rail.send(silenced, b"unheard", b"").unwrap();
        let (mut last, mut path_is_alive) = (Nanos(0), false);
        while last < Nanos::from_ms(300) {
            a.rail.send(other, b"heard", b"").unwrap();
            a.rail.flush().unwrap();
            assert_eq!(b.take(1), [(other, b"heard".to_vec())]);
            let health = a.rail.health();
            let now = health.lane_silent[silenced.index()].expect("an answer is owed");
            assert!(now >= last, "{now} after {last}: there was no answer");
            path_is_alive |= health.silent < Some(now);
            last = now;
        }
        assert!(path_is_alive, "the other lane was answered all the time");
        allow_arrivals(socket);
        assert_eq!(b.take(1), [(silenced, b"unheard".to_vec())]);
        while a.rail.health().lane_silent[silenced.index()].is_some() {}
    }
}

/// As the system of a stopped process: it answers each probe that there is no room, and the probes
/// become ever rarer.
#[test]
fn a_peer_that_reads_nothing_is_not_silent() {
    let (mut a, b, sockets) = pair_with_sockets();
    let start = Instant::now();
    // The test takes as long as three of its answers. A look may fall between a probe and its
    // answer; most must not.
    let (mut looks, mut heard) = (0, 0);
    while start.elapsed() < Duration::from_millis(700) || looks < 100 {
        while a.offer(Lane::Prompt, &[1; 64], &[]) {}
        looks += 1;
        heard += u32::from(silent(&mut a) == Nanos(0));
    }
    assert!(heard > looks / 2, "its system lives, and was heard in {heard} of {looks} looks");
    assert!(a.rail.health().unsent > 0);
    drop_arrivals(&sockets[Lane::Prompt.index()]);
    while silent(&mut a) < Nanos::from_ms(300) {}
    drop(b);
}

#[test]
fn silence_grows_while_the_link_is_down_though_data_are_sent() {
    let host = match Namespace::new() {
        Ok(host) => host,
        Err(why) => return println!("skipped: {why}"),
    };
    let link = |state| host.run(&format!("ip link set lo {state}")).unwrap();
    host.inside(|| {
        let (mut a, mut b) = pair(Kind::Tcp);
        send_something(&mut a);
        b.take(1);
        link("down");
        let mut last = silent(&mut a);
        while last < Nanos::from_ms(300) || a.rail.health().retransmits == 0 {
            let now = silent(&mut a);
            assert!(now >= last, "{now} after {last}: there cannot have been an answer");
            last = now;
            // The buffer fills up if the loop is fast.
            let _ = a.rail.send(Lane::Prompt, b"something", b"");
            a.rail.flush().unwrap();
            std::thread::yield_now();
        }
        link("up");
        while silent(&mut a) >= last {}
        assert!(a.rail.health().retransmits > 0);
        Ok(())
    })
    .unwrap();
}

/// After the peer has closed, the system takes the first data and refuses the next. The peer may
/// have received some of the frame, so it was not refused.
#[test]
fn a_partly_sent_frame_is_reported_as_taken() {
    for kind in [Kind::Tcp, Kind::SealedTcp] {
        let (mut a, b) = pair(kind);
        drop(b);
        let data = vec![3; WHOLE_LEN];
        let put = Put { window: WHOLE, offset: 0, generation: 0, data: &data };
        assert_eq!(a.rail.put(Lane::Bulk, put, b"", b""), Ok(()), "{kind:?}");
        while a.rail.put(Lane::Bulk, put, b"", b"") != Err(SendError::Lost) {
            a.rail.flush().unwrap();
        }
        let lost = a.take_all().1;
        assert!(matches!(lost, Lost::Closed(_)), "{lost:?}");
    }
}

/// The connecting end decides for both how long a segment may be.
#[test]
fn a_clamped_connection_sends_short_segments_both_ways() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = |mss: Option<u32>| {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        if let Some(mss) = mss {
            tcp::clamp(&socket, mss).unwrap();
        }
        rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
        let accepted = listener.accept().unwrap().0;
        [socket.as_fd(), accepted.as_fd()].map(|end| tcp::segment_len(end).unwrap())
    };
    // Timestamps take 12 bytes of each.
    assert!(connect(Some(1000)).iter().all(|len| (900..=1000).contains(len)));
    assert!(connect(None).iter().all(|len| *len > 1000));
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    assert!(tcp::clamp(&socket, 10).is_err() && tcp::clamp(&socket, u32::MAX).is_err());
}
