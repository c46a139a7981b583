//! The rail over TCP: two connections, one for each lane, so that small frames never queue behind
//! bulk.
//!
//! A put is received straight into its window, or written there when it is verified if the window
//! is [wordwise](WindowSpan::wordwise). Every frame has a sequence number and a checksum, and every
//! put a checksum over its data; the first mismatch ends the rail. Sends never block: bytes that a
//! socket does not take wait in a queue of bounded size. The layout on the wire is in `wire.rs`.
//!
//! The connections are authenticated before they become a rail; this module still verifies all
//! bytes. With a [`Seal`] for each connection, an attacker on the network can neither read nor
//! change anything.

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
use inbox::{Inbox, StreamEnd};
use outbox::{Broken, FrameBody, Outbox};
use wire::PutToSend;

#[doc(hidden)]
pub use wire::{decode_any, decode_any_sealed};

pub use path::{clamp, segment_len};
pub use seal::{KEY_LEN, Seal};

/// The bytes of bulk sent at once while nothing is urgent: one call for many frames.
const CALM_CHUNK: usize = 256 << 10;

/// The parts of which a rail over TCP is built.
pub struct TcpParts {
    /// A connection for each lane, by [`Lane::index`]; both ends must agree on the order.
    pub streams: [TcpStream; LANES],
    /// The windows of this side, which the peer puts into.
    pub windows: Arc<Windows>,
    /// The peer's windows, as it announced them.
    pub peer_windows: Vec<WindowSpan>,
    /// The keys of each stream, by [`Lane::index`], which the peer has with directions swapped.
    /// `None`: in clear, with checksums.
    ///
    /// Sealed data of more than a word are decrypted in the window unless that is
    /// [wordwise](WindowSpan::wordwise). A thread that reads the window before the frame behind
    /// them, or reads a write that has no frame, may see ciphertext.
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
    /// The number of polls since the last one that looked at the bulk stream.
    bulk_skipped: u32,
    /// True if bulk must go in short chunks.
    urgent: bool,
    /// The reason why nothing more can be sent or a stream has ended; arrived frames are still to
    /// be delivered.
    ending: Option<String>,
    lost: Option<Lost>,
    /// True once [`Rail::poll`] has returned why the rail is lost.
    loss_reported: bool,
}

impl TcpRail {
    /// Builds a rail over two connections. They are made non-blocking, send at once, and end by
    /// themselves when the other host is gone.
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
            loss_reported: false,
        })
    }

    /// Looks at the streams once; returns the number of frames. A reason that ends the rail is left
    /// in `ending` or `lost`.
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
                Err(StreamEnd::Ended(why)) => self.ending = self.ending.take().or(Some(why)),
                Err(StreamEnd::Corrupt(what)) => {
                    self.lost = Some(Lost::Corrupt(what));
                    break;
                }
            }
        }
        delivered
    }

    fn load(&mut self, lane: Lane, head: &[u8], body: &[u8], load: PutToSend<'_>) -> Result<(), SendError> {
        let len = load.put.data.len() as u64;
        let span = self.peer_windows.iter().find(|span| span.id == load.put.window);
        if len > u64::from(u32::MAX) || !span.is_some_and(|span| span.holds(load.put.offset, len)) {
            return Err(SendError::TooLarge);
        }
        self.take(lane, head, FrameBody::Borrowed(body), Some(&load))
    }

    fn take(
        &mut self,
        lane: Lane,
        head: &[u8],
        body: FrameBody<'_>,
        load: Option<&PutToSend<'_>>,
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
                // After an error the caller sends the frame elsewhere at once, where it must not
                // meet this one.
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
        self.take(lane, head, FrameBody::Borrowed(body), None)
    }

    fn chunk(&self) -> usize {
        if self.urgent { CHUNK } else { CALM_CHUNK }
    }

    fn hurry(&mut self, urgent: bool) {
        self.urgent = urgent;
    }

    fn send_shared(&mut self, lane: Lane, head: &[u8], body: &Bytes) -> Result<(), SendError> {
        self.take(lane, head, FrameBody::Shared(body), None)
    }

    fn put(&mut self, lane: Lane, put: Put<'_>, head: &[u8], body: &[u8]) -> Result<(), SendError> {
        self.load(lane, head, body, PutToSend { put, announced: true })
    }

    fn write(&mut self, lane: Lane, put: Put<'_>) -> Result<(), SendError> {
        self.load(lane, &[], &[], PutToSend { put, announced: false })
    }

    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost> {
        let mut delivered = 0;
        if self.lost.is_none() && limit > 0 {
            let ending = self.ending.is_some();
            delivered = self.receive(limit, deliver);
            if delivered == 0 && self.lost.is_none() && self.ending.is_some() {
                // The end of one stream may have been seen just after the other was read. The
                // peer's last frames in the other stream arrived before it.
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
                self.loss_reported = true;
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
            return !self.loss_reported;
        }
        self.inboxes.iter().any(Inbox::may_have_more) || self.outboxes.iter().any(Outbox::can_send)
    }

    fn health(&mut self) -> Health {
        let unsent = self.outboxes.iter().map(|outbox| outbox.queued() as u64).sum();
        let mut health = Health { unsent, encrypted: self.encrypted, ..Health::default() };
        let mut heard = None;
        for (lane, stream) in Lane::ALL.into_iter().zip(&self.streams) {
            // Data that the kernel does not give are unknown; an ended connection is noticed
            // elsewhere.
            let Ok(path) = path::look(stream) else { continue };
            health.mtu = if health.mtu == 0 { path.mtu } else { health.mtu.min(path.mtu) };
            health.rtt = if health.rtt.0 == 0 { path.rtt } else { health.rtt.min(path.rtt) };
            health.longest_rtt = health.longest_rtt.max(path.rtt);
            // Each lane can be cut off alone, by a port filter or a path that drops long packets.
            health.lane_silent[lane.index()] = path.owes.then_some(path.heard);
            heard = Some(heard.map_or(path.heard, |heard: Nanos| heard.min(path.heard)));
            health.segments += path.segments;
            health.retransmits += path.retransmits;
            if lane == Lane::Bulk {
                health.bulk = path.flow;
            }
            // A probe is then answered when it arrives, and not only when the other end has
            // something to send.
            let _ = path::acknowledge_at_once(stream);
        }
        // An answer on one lane shows that the path lives: the other lane may wait behind it in a
        // queue.
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

    /// A regression: the end of the bulk stream was seen between a read of the prompt one and the
    /// arrival of the last frame there, which was lost. Many threads try many times, so that some
    /// are interrupted at that point.
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
