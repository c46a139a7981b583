//! Connected pairs of rails, and the helpers that every test uses.

use std::{
    io::Read,
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, atomic::AtomicBool},
};

use plexus_fabric::{
    Bell, Frame, LANES, Lane, Lost, PeerBell, PeerWindow, Rail, RailKind, SendError, Window, WindowId,
    WindowSpan, Windows,
    shm::{RxRings, ShmParts, ShmRail, TxRings},
    tcp::{KEY_LEN, Seal, TcpParts, TcpRail},
};
use rustix::{event::epoll, time::Timespec};

/// A window of granules.
pub(crate) const DIVIDED: WindowId = WindowId(0);
pub(crate) const GRANULE: usize = 16 << 10;
pub(crate) const GRANULES: usize = 16;
/// A window without granules.
pub(crate) const WHOLE: WindowId = WindowId(1);
pub(crate) const WHOLE_LEN: usize = 4 << 20;
/// A wordwise window, which is read while puts arrive.
pub(crate) const WORDWISE: WindowId = WindowId(2);
pub(crate) const WORDWISE_LEN: usize = 128 << 10;

/// The number of descriptors that a peer gets.
pub(crate) const FDS: usize = 6;

/// The rail of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Shm,
    Tcp,
    SealedTcp,
}

impl Kind {
    pub(crate) fn rail(self) -> RailKind {
        match self {
            Self::Shm => RailKind::Shm,
            Self::Tcp | Self::SealedTcp => RailKind::Tcp,
        }
    }

    /// Returns true if a worker can sleep until something arrives.
    pub(crate) fn sleeps(self) -> bool {
        true
    }

    /// Returns true if the windows of the peer are mapped into this process.
    pub(crate) fn is_mapped(self) -> bool {
        self == Self::Shm
    }
}

/// One end of a pair, with the bell and windows of its worker.
pub(crate) struct End {
    pub(crate) rail: Box<dyn Rail>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) windows: Arc<Windows>,
    pub(crate) gone: Arc<AtomicBool>,
}

/// The parts of an end before it knows its peer.
pub(crate) struct Own {
    pub(crate) rx: RxRings,
    pub(crate) bell: Arc<Bell>,
    pub(crate) windows: Arc<Windows>,
}

impl Own {
    pub(crate) fn new() -> Self {
        let windows = [
            Window::create(DIVIDED, GRANULES * GRANULE, GRANULE as u32),
            Window::create(WHOLE, WHOLE_LEN, 0),
            Window::create(WORDWISE, WORDWISE_LEN, 0).map(Window::wordwise),
        ];
        let windows = Windows::new(windows.map(|window| Arc::new(window.unwrap())));
        Self::with(Arc::new(Bell::create().unwrap()), Arc::new(windows))
    }

    /// The parts of an end for a worker that has its bell and windows already.
    pub(crate) fn with(bell: Arc<Bell>, windows: Arc<Windows>) -> Self {
        Self { rx: RxRings::create().unwrap(), bell, windows }
    }

    /// The descriptors to hand to the peer: rings, page and event of the bell, windows.
    pub(crate) fn fds(&self) -> [OwnedFd; FDS] {
        let [divided, whole, words] = [DIVIDED, WHOLE, WORDWISE].map(|id| self.windows.find(id).unwrap());
        [self.rx.fd(), self.bell.page_fd(), self.bell.fd(), divided.fd(), whole.fd(), words.fd()]
            .map(|fd| fd.try_clone_to_owned().unwrap())
    }

    pub(crate) fn shm(self, peer: [OwnedFd; FDS]) -> End {
        let [rings, page, event, windows @ ..] = peer;
        let map = |(fd, span): (&OwnedFd, _)| PeerWindow::map(fd.as_fd(), span).unwrap();
        let gone = Arc::new(AtomicBool::new(false));
        let rail = ShmRail::new(ShmParts {
            tx: TxRings::map(rings.as_fd()).unwrap(),
            rx: self.rx,
            bell: PeerBell::map(page.as_fd(), event).unwrap(),
            windows: windows.iter().zip(spans()).map(map).collect(),
            gone: Arc::clone(&gone),
        });
        End { rail: Box::new(rail), bell: self.bell, windows: self.windows, gone }
    }

    pub(crate) fn tcp(self, streams: [TcpStream; LANES], seals: Option<[Seal; LANES]>) -> End {
        let windows = Arc::clone(&self.windows);
        let rail =
            TcpRail::new(TcpParts { streams, windows, peer_windows: spans().to_vec(), seals }).unwrap();
        let gone = Arc::new(AtomicBool::new(false));
        End { rail: Box::new(rail), bell: self.bell, windows: self.windows, gone }
    }
}

fn spans() -> [WindowSpan; 3] {
    let span = |id, len, granule| WindowSpan { id, len: len as u64, granule, wordwise: id == WORDWISE };
    [
        span(DIVIDED, GRANULES * GRANULE, GRANULE as u32),
        span(WHOLE, WHOLE_LEN, 0),
        span(WORDWISE, WORDWISE_LEN, 0),
    ]
}

/// Two connected sockets.
pub(crate) fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// An end over TCP whose peer is the test itself, which holds the other ends of both streams.
pub(crate) fn tcp_end(seals: Option<[Seal; LANES]>) -> (End, [TcpStream; LANES]) {
    let (prompt, bulk) = (sockets(), sockets());
    (Own::new().tcp([prompt.0, bulk.0], seals), [prompt.1, bulk.1])
}

/// The bytes that an end over TCP sends in its bulk stream, when it makes these `puts`.
pub(crate) fn sent_bytes(seals: Option<[Seal; LANES]>, puts: impl FnOnce(&mut dyn Rail)) -> Vec<u8> {
    let (mut sender, [_prompt, mut bulk]) = tcp_end(seals);
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        bulk.read_to_end(&mut bytes).unwrap();
        bytes
    });
    puts(&mut *sender.rail);
    while sender.rail.health().unsent > 0 {
        sender.rail.flush().unwrap();
    }
    drop(sender);
    reader.join().unwrap()
}

/// A connected pair.
pub(crate) fn pair(kind: Kind) -> (End, End) {
    pair_of(kind, Own::new(), Own::new())
}

/// A pair built from these two ends.
pub(crate) fn pair_of(kind: Kind, a: Own, b: Own) -> (End, End) {
    match kind {
        Kind::Shm => {
            let (fds_a, fds_b) = (a.fds(), b.fds());
            (a.shm(fds_b), b.shm(fds_a))
        }
        Kind::Tcp | Kind::SealedTcp => {
            let (prompt, bulk) = (sockets(), sockets());
            let (seals_a, seals_b) = (kind == Kind::SealedTcp).then(seals).unzip();
            (a.tcp([prompt.0, bulk.0], seals_a), b.tcp([prompt.1, bulk.1], seals_b))
        }
    }
}

/// The keys for both ends.
pub(crate) fn seals() -> ([Seal; LANES], [Seal; LANES]) {
    let keys = |lane: Lane, end: u8| [end * 10 + lane.index() as u8; KEY_LEN];
    (
        Lane::ALL.map(|lane| Seal::new(keys(lane, 1), keys(lane, 2))),
        Lane::ALL.map(|lane| Seal::new(keys(lane, 2), keys(lane, 1))),
    )
}

/// The bytes of a frame.
pub(crate) fn bytes(frame: &Frame<'_>) -> Vec<u8> {
    let mut bytes = vec![0; frame.len()];
    frame.copy(0, &mut bytes);
    bytes
}

/// The number at the front of a frame.
pub(crate) fn number(frame: &Frame<'_>) -> u64 {
    let mut number = [0; 8];
    frame.copy(0, &mut number);
    u64::from_le_bytes(number)
}

impl End {
    pub(crate) fn window(&self, id: WindowId) -> &Window {
        self.windows.find(id).unwrap()
    }

    /// Sends if there is room; returns true if there was.
    pub(crate) fn offer(&mut self, lane: Lane, head: &[u8], body: &[u8]) -> bool {
        match self.rail.send(lane, head, body) {
            Ok(()) => true,
            Err(SendError::Full) => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Polls once; returns the number of frames.
    pub(crate) fn poll(&mut self, limit: usize, mut deliver: impl FnMut(Lane, Frame<'_>)) -> usize {
        self.rail.poll(limit, &mut deliver).unwrap()
    }

    /// Polls until `count` frames have come.
    pub(crate) fn take(&mut self, count: usize) -> Vec<(Lane, Vec<u8>)> {
        self.take_while(count, || ())
    }

    /// As [`take`](Self::take), while `peer`, the sender, goes on flushing.
    pub(crate) fn take_from(&mut self, peer: &mut Self, count: usize) -> Vec<(Lane, Vec<u8>)> {
        self.take_while(count, || peer.rail.flush().unwrap())
    }

    fn take_while(&mut self, count: usize, mut meanwhile: impl FnMut()) -> Vec<(Lane, Vec<u8>)> {
        let mut frames = Vec::new();
        while frames.len() < count {
            meanwhile();
            self.poll(64, |lane, frame| frames.push((lane, bytes(&frame))));
        }
        frames
    }

    /// Polls until the rail is lost; returns the frames before that, and the reason.
    pub(crate) fn take_all(&mut self) -> (Vec<(Lane, Vec<u8>)>, Lost) {
        let mut frames = Vec::new();
        loop {
            if let Err(lost) = self.rail.poll(7, &mut |lane, frame| frames.push((lane, bytes(&frame)))) {
                return (frames, lost);
            }
        }
    }
}

/// The epoll set in which a worker sleeps.
pub(crate) struct Sleeper {
    epoll: OwnedFd,
}

impl Sleeper {
    pub(crate) fn new(end: &End) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        epoll::add(&epoll, end.bell.fd(), epoll::EventData::new_u64(0), epoll::EventFlags::IN).unwrap();
        end.rail.register(epoll.as_fd(), 1).unwrap();
        Self { epoll }
    }

    /// Sleeps as a worker does, if there is nothing to do; returns true if it slept. A wake-up that
    /// takes more than a minute is a lost one.
    pub(crate) fn sleep(&self, end: &mut End) -> bool {
        self.sleep_unless(end, |_| false)
    }

    /// As [`sleep`](Self::sleep), for a sleeper that also looks at something else.
    pub(crate) fn sleep_unless(&self, end: &mut End, ready: impl FnOnce(&End) -> bool) -> bool {
        end.bell.arm();
        let idle = !end.rail.pending() && !ready(end);
        if idle {
            let mut events = Vec::with_capacity(8);
            let timeout = Timespec { tv_sec: 60, tv_nsec: 0 };
            epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&timeout)).unwrap();
            assert!(!events.is_empty(), "a wake-up was lost");
        }
        end.bell.disarm();
        end.bell.drain();
        idle
    }
}
