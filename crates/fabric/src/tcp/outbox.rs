//! The sending half of one stream: gathers what goes out, keeps what the socket did not take.
//!
//! Guarantees: a frame is taken whole or not at all; the bytes of the caller are not needed after the call;
//! memory is bounded. Small frames wait for the flush, so that a batch of them is one system call; large ones
//! go out at once, straight from where they are, with whatever waits in front of them.

use std::{io::IoSlice, net::TcpStream};

use rustix::{
    io::Errno,
    net::{SendAncillaryBuffer, SendFlags},
};

use super::{
    seal::Sealer,
    wire::{self, Load},
};
use crate::{Lane, SendError};

/// Bytes that may wait for the socket, by lane. Prompt: more than the credits of all channels allow to be
/// under way. Bulk:
/// 512 blocks of 16 KiB, some milliseconds of a fast network.
const MOST_QUEUED: [usize; 2] = [512 << 10, 8 << 20];

/// Frames up to this many bytes wait for the flush: copying them costs less than a system call by far.
const SMALL: usize = 4 << 10;

/// So much is sent without waiting for the flush.
const ENOUGH: usize = 32 << 10;

/// Memory kept when a queue has emptied.
const KEPT: usize = 256 << 10;

pub(super) struct Outbox {
    lane: Lane,
    sequence: u32,
    sealer: Option<Sealer>,
    queue: Vec<u8>,
    /// How much of the queue the socket has taken.
    taken: usize,
    /// The socket took less than it was offered; it will say when it takes more.
    blocked: bool,
    /// Bytes that the socket has taken ever.
    sent: u64,
}

/// The socket takes nothing more.
pub(super) struct Broken {
    pub(super) errno: Errno,
    /// Whether it had taken something of the frame that was to be sent: then the peer may yet receive all of that.
    pub(super) begun: bool,
}

impl Outbox {
    pub(super) fn new(lane: Lane, sealer: Option<Sealer>) -> Self {
        Self {
            lane,
            sequence: 0,
            sealer,
            queue: Vec::with_capacity(2 * ENOUGH),
            taken: 0,
            blocked: false,
            sent: 0,
        }
    }

    /// Bytes that wait for the socket.
    pub(super) fn queued(&self) -> usize {
        self.queue.len() - self.taken
    }

    /// Whether a flush might send something.
    pub(super) fn can_send(&self) -> bool {
        self.queued() > 0 && !self.blocked
    }

    /// Takes one frame, no longer than [`crate::MAX_FRAME`].
    pub(super) fn send(
        &mut self,
        socket: &TcpStream,
        head: &[u8],
        body: &[u8],
        load: Option<&Load<'_>>,
    ) -> Result<Result<(), SendError>, Broken> {
        let before = self.sent + self.queued() as u64;
        self.gather(socket, head, body, load).map_err(|errno| Broken { errno, begun: self.sent > before })
    }

    fn gather(
        &mut self,
        socket: &TcpStream,
        head: &[u8],
        body: &[u8],
        load: Option<&Load<'_>>,
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
            wire::seal(sealer, self.lane, sequence, head, body, load, &mut self.queue);
            self.pieces(socket, data)?;
            if total > SMALL && !self.blocked {
                self.flush(socket)?;
            }
            return Ok(Ok(()));
        }
        let header = wire::encode(self.lane, sequence, head, body, load);
        let parts = [header.bytes(), head, body, data];
        if total <= SMALL || self.blocked {
            parts.iter().for_each(|part| self.queue.extend_from_slice(part));
            if self.queued() >= ENOUGH && !self.blocked {
                self.flush(socket)?;
            }
            return Ok(Ok(()));
        }
        let waiting = self.queued();
        let mut taken = self.offer(socket, parts)?;
        if taken >= waiting {
            self.queue.clear();
            self.taken = 0;
            taken -= waiting;
        } else {
            self.taken += taken;
            taken = 0;
        }
        for part in parts {
            let skipped = taken.min(part.len());
            taken -= skipped;
            self.queue.extend_from_slice(&part[skipped..]);
        }
        Ok(Ok(()))
    }

    /// Seals the data of a put behind its frame, and whatever is enough goes out.
    fn pieces(&mut self, socket: &TcpStream, data: &[u8]) -> Result<(), Errno> {
        let mut pieces = data.chunks(wire::PIECE);
        loop {
            if self.queued() >= ENOUGH && !self.blocked {
                self.flush(socket)?;
            }
            match (&mut self.sealer, pieces.next()) {
                (Some(sealer), Some(piece)) => wire::seal_piece(sealer, piece, &mut self.queue),
                _ => return Ok(()),
            }
        }
    }

    /// Sends what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self, socket: &TcpStream) -> Result<(), Errno> {
        if self.queued() == 0 {
            return Ok(());
        }
        self.taken += self.offer(socket, [&[]; 4])?;
        if self.queued() == 0 {
            self.queue.clear();
            self.queue.shrink_to(KEPT);
            self.taken = 0;
        } else if self.taken >= KEPT && self.taken >= self.queued() {
            self.queue.drain(..self.taken);
            self.taken = 0;
        }
        Ok(())
    }

    /// Offers the queue and then `parts` to the socket; how many bytes it took.
    fn offer(&mut self, socket: &TcpStream, parts: [&[u8]; 4]) -> Result<usize, Errno> {
        let [a, b, c, d] = parts;
        let all = [&self.queue[self.taken..], a, b, c, d];
        let offered: usize = all.iter().map(|part| part.len()).sum();
        let slices = all.map(IoSlice::new);
        let first = usize::from(all[0].is_empty());
        let last = all.iter().rposition(|part| !part.is_empty()).unwrap_or(0);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let taken = loop {
            match rustix::net::sendmsg(
                socket,
                &slices[first..=last],
                &mut SendAncillaryBuffer::default(),
                flags,
            ) {
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
