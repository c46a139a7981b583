//! The sending half of one stream: gathers outgoing frames and keeps the bytes that the socket did
//! not take.
//!
//! Guarantees: a frame is taken whole or not at all; the caller's bytes are not needed after the
//! call, unless it shares them; memory is bounded. Small frames and long shared ones wait for the
//! flush, so that a batch of them is one system call. Other long frames go out at once, straight
//! from the caller's memory, with everything that waits in front of them.

use std::{io::IoSlice, net::TcpStream};

use bytes::Bytes;
use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags},
};

use super::{
    queue::Queue,
    seal::Sealer,
    wire::{self, PutToSend},
};
use crate::{Lane, SendError};

/// The bytes that may wait for the socket, by lane. Prompt: a batch of small frames. Bulk: a few
/// dozen of the longest frames; the link keeps the rest anyway.
const MOST_QUEUED: [usize; 2] = [512 << 10, 1 << 20];

/// The length up to which frames wait for the flush: copying them costs far less than a system
/// call.
const SMALL: usize = 4 << 10;

/// The waiting bytes, borrowed or shared, that are sent without waiting for the flush.
const ENOUGH: usize = 32 << 10;
const ENOUGH_SHARED: usize = 256 << 10;

/// The pieces that one system call takes.
const SLICES: usize = 40;

/// The pieces of a frame: headers, body, data of a put.
const PARTS: usize = 4;

pub(super) struct Outbox {
    lane: Lane,
    sequence: u32,
    sealer: Option<Sealer>,
    queue: Queue,
    /// True if the socket took less than it was offered; it will announce when it takes more.
    blocked: bool,
    /// The bytes that the socket has taken so far.
    sent: u64,
}

/// The error of a socket that takes nothing more.
pub(super) struct Broken {
    pub(super) errno: Errno,
    /// True if the socket had taken a part of the frame to be sent: the peer may still receive all
    /// of it.
    pub(super) begun: bool,
}

/// The body of a frame.
#[derive(Clone, Copy)]
pub(super) enum FrameBody<'a> {
    Borrowed(&'a [u8]),
    Shared(&'a Bytes),
}

impl<'a> FrameBody<'a> {
    fn bytes(self) -> &'a [u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Shared(bytes) => bytes,
        }
    }

    pub(super) fn len(self) -> usize {
        self.bytes().len()
    }
}

impl Outbox {
    pub(super) fn new(lane: Lane, sealer: Option<Sealer>) -> Self {
        Self { lane, sequence: 0, sealer, queue: Queue::default(), blocked: false, sent: 0 }
    }

    /// The bytes that wait for the socket.
    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns true if a flush might send something.
    pub(super) fn can_send(&self) -> bool {
        self.queued() > 0 && !self.blocked
    }

    /// Takes one frame, no longer than [`crate::MAX_FRAME`].
    pub(super) fn send(
        &mut self,
        socket: &TcpStream,
        head: &[u8],
        body: FrameBody<'_>,
        load: Option<&PutToSend<'_>>,
    ) -> Result<Result<(), SendError>, Broken> {
        let before = self.sent + self.queued() as u64;
        self.gather(socket, head, body, load).map_err(|errno| Broken { errno, begun: self.sent > before })
    }

    fn gather(
        &mut self,
        socket: &TcpStream,
        head: &[u8],
        body: FrameBody<'_>,
        load: Option<&PutToSend<'_>>,
    ) -> Result<Result<(), SendError>, Errno> {
        let data = load.map_or(&[][..], |load| load.put.data);
        let total = wire::total_len(head.len() + body.len(), load, self.sealer.is_some());
        // A put longer than the whole queue may go when nothing waits in front of it.
        let most = MOST_QUEUED[self.lane.index()];
        if self.queued() > 0 && self.queued() + total > most {
            self.flush(socket)?;
            if self.queued() > 0 && self.queued() + total > most {
                return Ok(Err(SendError::Full));
            }
        }
        let sequence = self.sequence;
        self.sequence = sequence.wrapping_add(1);
        if let Some(sealer) = &mut self.sealer {
            let lane = self.lane;
            self.queue.write(|queue| wire::seal(sealer, lane, sequence, head, body.bytes(), load, queue));
            self.pieces(socket, data)?;
            return match body {
                FrameBody::Borrowed(_) => self.go(socket, total > SMALL, ENOUGH),
                FrameBody::Shared(_) => self.go(socket, false, ENOUGH_SHARED),
            };
        }
        let header = wire::encode(self.lane, sequence, head, body.bytes(), load);
        if let (FrameBody::Shared(shared), true) = (body, total > SMALL && data.is_empty()) {
            self.queue.write(|queue| [header.bytes(), head].into_iter().for_each(|part| queue.extend(part)));
            self.queue.share(shared);
            return self.go(socket, false, ENOUGH_SHARED);
        }
        let parts = [header.bytes(), head, body.bytes(), data];
        let mut taken = 0;
        if total > SMALL && !self.blocked {
            let waiting = self.queued();
            let all = self.offer(socket, parts)?;
            self.queue.sent(all.min(waiting));
            taken = all.saturating_sub(waiting);
        }
        if taken < total {
            self.queue.write(|queue| {
                for part in parts {
                    let skipped = taken.min(part.len());
                    taken -= skipped;
                    queue.extend_from_slice(&part[skipped..]);
                }
            });
        }
        self.go(socket, false, ENOUGH)
    }

    /// Flushes the queue after a frame was added, if `now` is set or there is `enough` to flush.
    fn go(&mut self, socket: &TcpStream, now: bool, enough: usize) -> Result<Result<(), SendError>, Errno> {
        if (now || self.queued() >= enough) && !self.blocked {
            self.flush(socket)?;
        }
        Ok(Ok(()))
    }

    /// Seals the data of a put behind its frame, and flushes when there is enough.
    fn pieces(&mut self, socket: &TcpStream, data: &[u8]) -> Result<(), Errno> {
        let mut pieces = data.chunks(wire::PIECE);
        loop {
            if self.queued() >= ENOUGH && !self.blocked {
                self.flush(socket)?;
            }
            let (Some(sealer), Some(piece)) = (&mut self.sealer, pieces.next()) else { return Ok(()) };
            self.queue.write(|queue| wire::seal_piece(sealer, piece, queue));
        }
    }

    /// Sends the queue, as far as the socket takes it.
    pub(super) fn flush(&mut self, socket: &TcpStream) -> Result<(), Errno> {
        while self.queued() > 0 {
            let taken = self.offer(socket, [&[]; PARTS])?;
            self.queue.sent(taken);
            if self.blocked {
                break;
            }
        }
        Ok(())
    }

    /// Offers the queue and then `parts` to the socket; returns the number of bytes that it took.
    /// If the queue has more pieces than a call takes, the parts are not offered.
    fn offer(&mut self, socket: &TcpStream, parts: [&[u8]; PARTS]) -> Result<usize, Errno> {
        let mut slices = [IoSlice::new(&[]); SLICES];
        let (mut count, mut offered) = self.queue.slices(&mut slices[..SLICES - PARTS]);
        if offered == self.queue.len() {
            for part in parts.into_iter().filter(|part| !part.is_empty()) {
                slices[count] = IoSlice::new(part);
                (count, offered) = (count + 1, offered + part.len());
            }
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let taken = loop {
            match rustix::net::sendmsg(socket, &slices[..count], &mut SendAncillaryBuffer::default(), flags) {
                Ok(taken) => break taken,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break 0,
                Err(errno) => return Err(errno),
            }
        };
        self.blocked = taken < offered;
        self.sent += taken as u64;
        Ok(taken)
    }
}
