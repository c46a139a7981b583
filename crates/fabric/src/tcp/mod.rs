//! The rail over TCP: two connections, one for each lane, so that small frames never queue behind bulk.
//!
//! A put is received straight into its window, one into a [wordwise](WindowSpan::wordwise) window when it is verified. Every frame has a sequence number and a checksum, every put
//! one over its data; the first byte that does not fit ends the rail. Sends never block: what a socket does
//! not take waits in a queue of bounded size. The layout on the wire is in `wire.rs`.
//!
//! The connections are authenticated before they become a rail; this module trusts the bytes no more for it. With
//! a [`Seal`] for each of them nothing that a stranger reads or changes on the way is worth anything to him.

mod inbox;
mod outbox;
mod path;
mod queue;
mod seal;
mod wire;

use std::{
    io,
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

use bytes::Bytes;
use plexus_base::Nanos;
use rustix::event::epoll;

use crate::{
    Frame, Health, LANES, Lane, Lost, MAX_FRAME, Put, Rail, RailKind, SendError, WindowSpan, Windows,
    rail::{CHUNK, MOST_SKIPPED},
};
use inbox::{Inbox, Stop};
use outbox::{Body, Broken, Outbox};
use wire::Load;

#[doc(hidden)]
pub use wire::{decode_any, decode_any_sealed};

pub use path::{clamp, segment_len};
pub use seal::{KEY_LEN, Seal};

/// Bytes of bulk that go at once while nothing is urgent: one call for many frames.
const CALM_CHUNK: usize = 256 << 10;

/// What a rail over TCP is built from.
pub struct TcpParts {
    /// A connection for each lane, by [`Lane::index`]; both ends must agree which is which.
    pub streams: [TcpStream; LANES],
    /// Our windows, which the peer puts into.
    pub windows: Arc<Windows>,
    /// The peer's windows, as it announced them.
    pub peer_windows: Vec<WindowSpan>,
    /// Keys for each stream, by [`Lane::index`], as the peer has them the other way round; `None`: in clear, with checksums.
    /// Sealed data of more than a word are opened in the window unless that is [wordwise](WindowSpan::wordwise): who looks
    /// there before the frame behind them, or at a write that has none, may see what only the two ends understand.
    pub seals: Option<[Seal; LANES]>,
}

/// A rail over TCP. See the [module documentation](self).
pub struct TcpRail {
    streams: [TcpStream; LANES],
    inboxes: [Inbox; LANES],
    outboxes: [Outbox; LANES],
    windows: Arc<Windows>,
    peer_windows: Vec<WindowSpan>,
    encrypted: bool,
    /// Polls since the last one that looked at the bulk stream.
    bulk_skipped: u32,
    /// Bulk is to go in short chunks.
    urgent: bool,
    /// Why nothing more can be sent or a stream has ended; what has arrived is still to be delivered.
    ending: Option<String>,
    lost: Option<Lost>,
    /// Whether [`Rail::poll`] has said why it is lost.
    said: bool,
}

impl TcpRail {
    /// A rail over two connections, which are made non-blocking, told to send at once, and to end by themselves when the
    /// other host is gone.
    ///
    /// # Errors
    /// A connection refuses these settings.
    pub fn new(parts: TcpParts) -> io::Result<Self> {
        let TcpParts { streams, windows, peer_windows, seals } = parts;
        for stream in &streams {
            path::prepare(stream)?;
        }
        let encrypted = seals.is_some();
        let [prompt, bulk] = Lane::ALL.map(|lane| {
            let keys = seals.as_ref().map(|seals| seals[lane.index()].split(lane));
            let (sealer, opener) = keys.unzip();
            (Inbox::new(lane, opener), Outbox::new(lane, sealer))
        });
        Ok(Self {
            streams,
            inboxes: [prompt.0, bulk.0],
            outboxes: [prompt.1, bulk.1],
            windows,
            peer_windows,
            encrypted,
            bulk_skipped: 0,
            urgent: false,
            ending: None,
            lost: None,
            said: false,
        })
    }

    /// One look at the streams; how many frames came. What ends the rail is left in `ending` or `lost`.
    fn receive(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> usize {
        let mut delivered = 0;
        let chunk = self.chunk();
        for lane in Lane::ALL {
            let inbox = &mut self.inboxes[lane.index()];
            if lane == Lane::Bulk && delivered > 0 && self.bulk_skipped < MOST_SKIPPED {
                self.bulk_skipped += 1;
                inbox.skipped();
                break;
            }
            let stream = &self.streams[lane.index()];
            let to_the_end = self.ending.is_some();
            let most = match lane {
                Lane::Prompt => usize::MAX,
                Lane::Bulk => chunk,
            };
            let (count, result) =
                inbox.poll(stream, &self.windows, limit, most, to_the_end, |frame| deliver(lane, frame));
            delivered += count;
            if lane == Lane::Bulk {
                self.bulk_skipped = 0;
            }
            match result {
                Ok(()) => {}
                // The other stream may still hold something.
                Err(Stop::Ended(why)) => self.ending = self.ending.take().or(Some(why)),
                Err(Stop::Corrupt(what)) => {
                    self.lost = Some(Lost::Corrupt(what));
                    break;
                }
            }
        }
        delivered
    }

    fn load(&mut self, lane: Lane, head: &[u8], body: &[u8], load: Load<'_>) -> Result<(), SendError> {
        let len = load.put.data.len() as u64;
        let span = self.peer_windows.iter().find(|span| span.id == load.put.window);
        if len > u64::from(u32::MAX) || !span.is_some_and(|span| span.holds(load.put.offset, len)) {
            return Err(SendError::TooLarge);
        }
        self.take(lane, head, Body::Borrowed(body), Some(&load))
    }

    fn take(
        &mut self,
        lane: Lane,
        head: &[u8],
        body: Body<'_>,
        load: Option<&Load<'_>>,
    ) -> Result<(), SendError> {
        if head.len() + body.len() > MAX_FRAME {
            return Err(SendError::TooLarge);
        }
        if self.ending.is_some() || self.lost.is_some() {
            return Err(SendError::Lost);
        }
        let stream = &self.streams[lane.index()];
        self.outboxes[lane.index()].send(stream, head, body, load).unwrap_or_else(
            |Broken { errno, begun }| {
                self.ending = Some(io::Error::from(errno).to_string());
                // Who hears of an error sends the frame elsewhere at once, where it must not meet this one.
                if begun { Ok(()) } else { Err(SendError::Lost) }
            },
        )
    }
}

impl Rail for TcpRail {
    fn kind(&self) -> RailKind {
        RailKind::Tcp
    }

    fn send(&mut self, lane: Lane, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        self.take(lane, head, Body::Borrowed(body), None)
    }

    fn chunk(&self) -> usize {
        if self.urgent { CHUNK } else { CALM_CHUNK }
    }

    fn hurry(&mut self, urgent: bool) {
        self.urgent = urgent;
    }

    fn send_shared(&mut self, lane: Lane, head: &[u8], body: &Bytes) -> Result<(), SendError> {
        self.take(lane, head, Body::Shared(body), None)
    }

    fn put(&mut self, lane: Lane, put: Put<'_>, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        self.load(lane, head, body, Load { put, announced: true })
    }

    fn write(&mut self, lane: Lane, put: Put<'_>) -> Result<(), SendError> {
        self.load(lane, &[], &[], Load { put, announced: false })
    }

    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost> {
        let mut delivered = 0;
        if self.lost.is_none() && limit > 0 {
            let ending = self.ending.is_some();
            delivered = self.receive(limit, deliver);
            if delivered == 0 && self.lost.is_none() && self.ending.is_some() {
                // The end of one stream may have come in sight just after the other was looked at, with the
                // peer's last frames in it: those arrived before.
                if !ending {
                    delivered = self.receive(limit, deliver);
                }
                if delivered == 0 && self.lost.is_none() {
                    self.lost = self.ending.clone().map(Lost::Closed);
                }
            }
        }
        match &self.lost {
            Some(lost) if delivered == 0 => {
                self.said = true;
                Err(lost.clone())
            }
            _ => Ok(delivered),
        }
    }

    fn flush(&mut self) -> Result<(), Lost> {
        if let Some(lost) = &self.lost {
            return Err(lost.clone());
        }
        if self.ending.is_none() {
            for (outbox, stream) in self.outboxes.iter_mut().zip(&self.streams) {
                if let Err(errno) = outbox.flush(stream) {
                    self.ending = Some(io::Error::from(errno).to_string());
                }
            }
        }
        Ok(())
    }

    fn pending(&mut self) -> bool {
        if self.ending.is_some() || self.lost.is_some() {
            return !self.said;
        }
        self.inboxes.iter().any(Inbox::may_have_more) || self.outboxes.iter().any(Outbox::can_send)
    }

    fn health(&mut self) -> Health {
        let unsent = self.outboxes.iter().map(|outbox| outbox.queued() as u64).sum();
        let mut health = Health { unsent, encrypted: self.encrypted, ..Health::default() };
        let mut heard = None;
        for (lane, stream) in Lane::ALL.into_iter().zip(&self.streams) {
            // What the kernel refuses to tell is not known; a connection that has ended says so elsewhere.
            let Ok(path) = path::look(stream) else { continue };
            health.mtu = if health.mtu == 0 { path.mtu } else { health.mtu.min(path.mtu) };
            health.rtt = if health.rtt.0 == 0 { path.rtt } else { health.rtt.min(path.rtt) };
            health.longest_rtt = health.longest_rtt.max(path.rtt);
            // Either may be cut off alone: by what filters ports, or what swallows long packets.
            health.lane_silent[lane.index()] = path.owes.then_some(path.heard);
            heard = Some(heard.map_or(path.heard, |heard: Nanos| heard.min(path.heard)));
            health.segments += path.segments;
            health.retransmits += path.retransmits;
            if lane == Lane::Bulk {
                health.bulk = path.flow;
            }
            // So that a probe is answered when it arrives and not when the other end has something to say.
            let _ = path::acknowledge_at_once(stream);
        }
        // What is heard on one lane shows that the path lives: the other may wait behind it in a queue.
        let owes = health.lane_silent.iter().any(Option::is_some);
        health.silent = if owes { heard } else { Some(Nanos(0)) };
        health
    }

    fn register(&self, epoll: BorrowedFd<'_>, token: u64) -> io::Result<()> {
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        for stream in &self.streams {
            epoll::add(epoll, stream.as_fd(), epoll::EventData::new_u64(token), flags)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpRail, TcpRail) {
        let sockets = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (one, listener.accept().unwrap().0)
        };
        let (prompt, bulk) = (sockets(), sockets());
        let rail = |streams| {
            TcpRail::new(TcpParts { streams, windows: Arc::default(), peer_windows: Vec::new(), seals: None })
                .unwrap()
        };
        (rail([prompt.0, bulk.0]), rail([prompt.1, bulk.1]))
    }

    /// The end of the bulk stream came in sight between a look at the prompt one and the arrival of the last
    /// frame there, which was lost. Many tries by many threads, so that some are interrupted just there.
    #[test]
    fn the_last_frame_before_the_end_is_not_cut_off() {
        let tries = || {
            for _ in 0..25 {
                let (mut a, mut b) = pair();
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        a.send(Lane::Prompt, b"last", b"").unwrap();
                        a.flush().unwrap();
                    });
                    let mut frames = 0;
                    while b.poll(1, &mut |_, _| frames += 1).is_ok() {}
                    assert_eq!(frames, 1);
                });
            }
        };
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(tries))));
    }
}
