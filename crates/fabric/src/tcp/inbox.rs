//! The receiving half of one stream: reads the socket, hands over frames, and writes puts into
//! their windows.
//!
//! Guarantees: the kernel reads the data of a put straight into their window; only data that
//! arrived together with their header are copied there. This happens only after the header was
//! verified and the window accepts the put. The frame follows only after the checksum of the data
//! matched. Sealed data are decrypted in place, each piece when its tag has arrived; until the
//! frame behind them is delivered no thread uses them. Data that a thread may already look at (one
//! word of any window, all of a wordwise one) are kept aside, and written when they are verified.
//! Memory is fixed: one buffer for the longest frame with its header, and one for the data kept
//! aside.
#![allow(unsafe_code, reason = "receives into windows")]

use std::{io::IoSliceMut, net::TcpStream};

use plexus_base::crc32c_append;
use rustix::{io::Errno, net::RecvFlags};

use super::{
    seal::{Opener, TAG_LEN},
    wire::{self, Decoded},
};
use crate::{Frame, Lane, MAX_FRAME, MAX_WORDWISE, Window, Windows, put_fields::PutTarget, window::is_word};

/// The length of the receive buffer: several of the longest frames, or a thousand small ones, for
/// one system call.
const BUFFER_LEN: usize = 64 << 10;

/// The bytes read behind the data of a put while puts arrive: the next header and frame, and little
/// of the next data, which would have to be copied.
const BEHIND_PUT: usize = 512;

const _: () = assert!(BUFFER_LEN >= 2 * wire::MAX_RECORD && BEHIND_PUT >= TAG_LEN);

/// The reason why a stream ended.
pub(super) enum StreamEnd {
    /// The connection has ended.
    Ended(String),
    /// The bytes are not those of a correct peer.
    Corrupt(&'static str),
}

/// A put that is arriving.
struct Landing {
    target: PutTarget,
    /// True if a frame is delivered behind it.
    announced: bool,
    /// The bytes that are in place.
    done: usize,
    /// The checksum over those, unless the stream is sealed.
    crc: u32,
    /// The bytes that are decrypted, if the stream is sealed.
    opened: usize,
    /// True if the data wait aside until all of them are verified.
    aside: bool,
}

impl Landing {
    /// The beginning of a put to `target`, which lies in `window`.
    fn new(target: PutTarget, announced: bool, window: &Window) -> Self {
        let aside = window.span().wordwise || is_word(target.offset, u64::from(target.len));
        Self { target, announced, done: 0, crc: 0, opened: 0, aside }
    }

    /// The memory for the bytes `from..to` of the put.
    fn memory<'a>(&self, window: &'a Window, aside: &'a mut [u8], from: usize, to: usize) -> &'a mut [u8] {
        assert!(to <= self.target.len as usize);
        if self.aside {
            return &mut aside[from..to];
        }
        // SAFETY: `admit` has found the whole target inside the window, which is mapped as long as
        // the table holds it. No thread of ours reads or writes a granule while it expects a put;
        // in a window without granules that is not wordwise, bytes under a put are arbitrary to
        // every reader, and this slice is only handed to the kernel and summed or opened.
        unsafe {
            let start = window.ptr().add(self.target.offset as usize + from);
            std::slice::from_raw_parts_mut(start.as_ptr(), to - from)
        }
    }
}

pub(super) struct Inbox {
    lane: Lane,
    sequence: u32,
    opener: Option<Opener>,
    buffer: Box<[u8]>,
    /// The bytes that arrived and were not handed over: `buffer[start..end]`.
    start: usize,
    end: usize,
    landing: Option<Landing>,
    /// The data of the arriving put, where they wait aside.
    aside: Box<[u8]>,
    /// The frame behind the arriving put.
    held: Vec<u8>,
    /// The puts without a frame in this poll. They count for its limit, which would otherwise not
    /// hold.
    unannounced: usize,
    /// The bytes that this poll has brought.
    moved: usize,
    /// The maximum number of bytes of one read, see [`BEHIND_PUT`].
    chunk: usize,
    /// True if the socket had less than requested, so that it will announce new bytes.
    drained: bool,
}

impl Inbox {
    pub(super) fn new(lane: Lane, opener: Option<Opener>) -> Self {
        Self {
            lane,
            sequence: 0,
            opener,
            buffer: vec![0; BUFFER_LEN].into(),
            start: 0,
            end: 0,
            landing: None,
            aside: vec![0; MAX_WORDWISE].into(),
            held: Vec::with_capacity(MAX_FRAME),
            unannounced: 0,
            moved: 0,
            chunk: BUFFER_LEN,
            drained: false,
        }
    }

    /// Returns true if a poll might hand something over that the socket will not announce.
    pub(super) fn may_have_more(&self) -> bool {
        !self.drained
    }

    /// Records that the socket was not read though it may have announced something.
    pub(super) fn skipped(&mut self) {
        self.drained = false;
    }

    /// Hands over up to `limit` frames, at least 1, and none after `most` bytes. Returns their
    /// number, and the reason if the stream ended. With `to_the_end` it reads until the socket has
    /// nothing left.
    pub(super) fn poll(
        &mut self,
        socket: &TcpStream,
        windows: &Windows,
        limit: usize,
        most: usize,
        to_the_end: bool,
        mut deliver: impl FnMut(Frame<'_>),
    ) -> (usize, Result<(), StreamEnd>) {
        let mut delivered = 0;
        // The socket is read once at least; then only if it gave all the bytes that were requested.
        let mut dry = false;
        (self.unannounced, self.moved) = (0, 0);
        while delivered + self.unannounced < limit && self.moved < most {
            let step = if self.landing.is_some() {
                self.land(socket, windows, &mut dry, &mut deliver)
            } else {
                self.parse(socket, windows, &mut dry, &mut deliver)
            };
            match step {
                Ok(Some(frames)) => {
                    delivered += frames;
                    dry &= !to_the_end;
                }
                Ok(None) => return (delivered, Ok(())),
                Err(stop) => return (delivered, Err(stop)),
            }
        }
        // The socket does not announce whole frames that are left in the buffer.
        self.drained &= self.start == self.end;
        (delivered, Ok(()))
    }

    /// Takes the frame at the front of the buffer, or reads more; `None` when the socket is dry.
    fn parse(
        &mut self,
        socket: &TcpStream,
        windows: &Windows,
        dry: &mut bool,
        deliver: &mut impl FnMut(Frame<'_>),
    ) -> Result<Option<usize>, StreamEnd> {
        let arrived = &mut self.buffer[self.start..self.end];
        let decoded = wire::decode(arrived, self.lane, self.sequence, self.opener.as_mut());
        match decoded.map_err(StreamEnd::Corrupt)? {
            Decoded::Frame { frame, end, target: None, .. } => {
                self.start += end;
                self.moved += end;
                self.sequence = self.sequence.wrapping_add(1);
                self.chunk = BUFFER_LEN;
                deliver(Frame::of(&arrived[frame]));
                Ok(Some(1))
            }
            Decoded::Frame { frame, end, target: Some(target), announced } => {
                let window = admit(windows, &target).map_err(StreamEnd::Corrupt)?;
                self.landing = Some(Landing::new(target, announced, window));
                self.held.clear();
                self.held.extend_from_slice(&arrived[frame]);
                self.start += end;
                self.sequence = self.sequence.wrapping_add(1);
                self.chunk = BEHIND_PUT;
                Ok(Some(0))
            }
            Decoded::Needs(needed) => self.fill(socket, needed, dry),
        }
    }

    /// Reads more into the buffer, which does not hold the `needed` bytes yet; `None` when the
    /// socket is dry.
    fn fill(
        &mut self,
        socket: &TcpStream,
        needed: usize,
        dry: &mut bool,
    ) -> Result<Option<usize>, StreamEnd> {
        if *dry {
            return Ok(None);
        }
        if self.start == self.end || self.start + needed > self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let upto = (self.start + needed).max(self.end + self.chunk).min(self.buffer.len());
        let into = &mut self.buffer[self.end..upto];
        let asked = into.len();
        let read = receive(socket, |socket| {
            rustix::net::recv(socket, &mut *into, RecvFlags::DONTWAIT).map(|(read, _)| read)
        });
        let within = self.start < self.end || self.landing.is_some();
        let read = record_read(read, asked, dry, &mut self.drained, within)?;
        self.end += read;
        Ok((read > 0).then_some(0))
    }

    /// Does the next step of the arriving put; `None` when the socket is dry.
    fn land(
        &mut self,
        socket: &TcpStream,
        windows: &Windows,
        dry: &mut bool,
        deliver: &mut impl FnMut(Frame<'_>),
    ) -> Result<Option<usize>, StreamEnd> {
        let Some(landing) = &self.landing else { return Ok(Some(0)) };
        let (len, sealed) = (landing.target.len as usize, self.opener.is_some());
        // Sealed data come in pieces with a tag behind each.
        let upto = if sealed { len.min(landing.opened + wire::PIECE) } else { len };
        if landing.done < upto {
            self.bring(socket, windows, upto, dry)
        } else if sealed && landing.opened < upto {
            self.open(socket, windows, upto, dry)
        } else {
            self.settle(windows, deliver)
        }
    }

    /// Reads more of the put's data into place, up to `upto`.
    fn bring(
        &mut self,
        socket: &TcpStream,
        windows: &Windows,
        upto: usize,
        dry: &mut bool,
    ) -> Result<Option<usize>, StreamEnd> {
        let Some(landing) = &mut self.landing else { return Ok(Some(0)) };
        // The window is checked before every write: its owner may have withdrawn it meanwhile.
        let window = admit(windows, &landing.target).map_err(StreamEnd::Corrupt)?;
        let (done, rest) = (landing.done, upto - landing.done);
        let place = landing.memory(window, &mut self.aside, done, upto);
        let landed = if self.start < self.end {
            let landed = rest.min(self.end - self.start);
            place[..landed].copy_from_slice(&self.buffer[self.start..self.start + landed]);
            self.start += landed;
            landed
        } else if *dry {
            return Ok(None);
        } else {
            let behind = &mut self.buffer[..BEHIND_PUT];
            let asked = rest + behind.len();
            let read = receive(socket, |socket| {
                rustix::io::readv(socket, &mut [IoSliceMut::new(&mut *place), IoSliceMut::new(&mut *behind)])
            });
            let landed = read.as_ref().map_or(0, |read| rest.min(*read));
            (self.start, self.end) = (0, read.as_ref().map_or(0, |read| read - landed));
            if record_read(read, asked, dry, &mut self.drained, true)? == 0 {
                return Ok(None);
            }
            landed
        };
        if self.opener.is_none() {
            let place = landing.memory(window, &mut self.aside, done, done + landed);
            landing.crc = crc32c_append(landing.crc, place);
        }
        landing.done += landed;
        self.moved += landed;
        Ok(Some(0))
    }

    /// Decrypts the piece of data that ends at `upto`, which is complete, once its tag has arrived.
    fn open(
        &mut self,
        socket: &TcpStream,
        windows: &Windows,
        upto: usize,
        dry: &mut bool,
    ) -> Result<Option<usize>, StreamEnd> {
        let Some(tag) = self.buffer[self.start..self.end].first_chunk::<TAG_LEN>() else {
            return self.fill(socket, TAG_LEN, dry);
        };
        if let (Some(opener), Some(landing)) = (&mut self.opener, &mut self.landing) {
            let window = admit(windows, &landing.target).map_err(StreamEnd::Corrupt)?;
            let piece = landing.memory(window, &mut self.aside, landing.opened, upto);
            if !opener.open(&[], piece, *tag) {
                return Err(StreamEnd::Corrupt("the data of a put fail their seal"));
            }
            landing.opened = upto;
        }
        self.start += TAG_LEN;
        Ok(Some(0))
    }

    /// Verifies the complete data, writes them if they waited aside, and hands over the frame.
    fn settle(
        &mut self,
        windows: &Windows,
        deliver: &mut impl FnMut(Frame<'_>),
    ) -> Result<Option<usize>, StreamEnd> {
        let Some(landing) = self.landing.take() else { return Ok(Some(0)) };
        let target = landing.target;
        if self.opener.is_none() && landing.crc != target.crc {
            return Err(StreamEnd::Corrupt("the checksum of the data of a put does not match"));
        }
        if landing.aside {
            let window = admit(windows, &target).map_err(StreamEnd::Corrupt)?;
            window.write(target.offset, &self.aside[..target.len as usize]);
        }
        if !landing.announced {
            self.unannounced += 1;
            return Ok(Some(0));
        }
        deliver(Frame::of(&self.held).with_put_len(target.len));
        Ok(Some(1))
    }
}

/// The window that accepts this put.
fn admit<'a>(windows: &'a Windows, target: &PutTarget) -> Result<&'a Window, &'static str> {
    let window = windows.find(target.window).ok_or("a put into a window that does not exist")?;
    if !window.span().holds(target.offset, u64::from(target.len)) {
        return Err("a put outside its window");
    }
    if !window.accepts(target.offset, u64::from(target.len), target.generation) {
        return Err("a put with a wrong generation");
    }
    Ok(window)
}

fn receive(
    socket: &TcpStream,
    mut read: impl FnMut(&TcpStream) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    loop {
        match read(socket) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Records the result of a read; returns the number of bytes, 0 if there are none now. The end of
/// the stream `within` a frame is an error.
fn record_read(
    read: Result<usize, Errno>,
    asked: usize,
    dry: &mut bool,
    drained: &mut bool,
    within: bool,
) -> Result<usize, StreamEnd> {
    match read {
        Ok(0) if within => {
            Err(StreamEnd::Ended("the peer closed the connection in the middle of a frame".into()))
        }
        Ok(0) => Err(StreamEnd::Ended("the peer closed the connection".into())),
        Ok(read) => {
            // A short read empties a stream socket. But the end of the stream may have come in the
            // same event, which edge-triggered epoll(7) does not announce again. So only a read
            // that finds nothing is the last.
            *dry = read < asked;
            *drained = false;
            Ok(read)
        }
        Err(Errno::AGAIN) => {
            (*dry, *drained) = (true, true);
            Ok(0)
        }
        Err(errno) => Err(StreamEnd::Ended(std::io::Error::from(errno).to_string())),
    }
}
