//! The receiving half of one stream: reads the socket, hands over frames, lands puts in their windows.
//!
//! Guarantees: the data of a put are read by the kernel straight to their place (those that came along with
//! its header excepted, which are copied there), only after the header was verified and the window accepts
//! them, and the frame follows only after their checksum matched. Sealed data are opened where they landed, each piece
//! when its tag is there: until the frame behind them is delivered nobody takes them for anything. Where somebody may
//! (one word of any window, all of a wordwise one) they are kept aside, and written when they are verified. Memory is
//! fixed: one buffer that holds the longest frame with its header, one for what is kept aside.
#![allow(unsafe_code, reason = "receives into windows")]

use std::{io::IoSliceMut, net::TcpStream};

use plexus_base::crc32c_append;
use rustix::{io::Errno, net::RecvFlags};

use super::{
    seal::{Opener, TAG_LEN},
    wire::{self, Decoded},
};
use crate::{Frame, Lane, MAX_FRAME, MAX_WORDWISE, Window, Windows, put_fields::Target, window::is_word};

/// Several of the longest frames, or a thousand small ones, for one system call.
const BUFFER_LEN: usize = 64 << 10;

/// What is read behind the data of a put and while puts are what arrives: the next header and frame, and
/// little of the next data, which would have to be copied.
const BEHIND_PUT: usize = 512;

const _: () = assert!(BUFFER_LEN >= 2 * wire::MAX_RECORD && BEHIND_PUT >= TAG_LEN);

/// Why a stream has nothing more to give.
pub(super) enum Stop {
    /// The connection has ended.
    Ended(String),
    /// No peer of ours sent this.
    Corrupt(&'static str),
}

/// A put on its way in.
struct Landing {
    target: Target,
    /// Whether a frame is delivered behind it.
    announced: bool,
    /// How many of its bytes are in place.
    done: usize,
    /// Over those, unless the stream is sealed.
    crc: u32,
    /// How many of them are opened, if the stream is sealed.
    opened: usize,
    /// Whether they wait aside until all of them are verified.
    aside: bool,
}

impl Landing {
    /// The beginning of a put to `target`, which lies in `window`.
    fn new(target: Target, announced: bool, window: &Window) -> Self {
        let aside = window.span().wordwise || is_word(target.offset, u64::from(target.len));
        Self { target, announced, done: 0, crc: 0, opened: 0, aside }
    }

    /// Where the bytes `from..to` of the put belong.
    fn place<'a>(&self, window: &'a Window, aside: &'a mut [u8], from: usize, to: usize) -> &'a mut [u8] {
        assert!(to <= self.target.len as usize);
        if self.aside {
            return &mut aside[from..to];
        }
        // SAFETY: `admit` has found the whole target inside the window, which is mapped as long as the table
        // holds it. No thread of ours reads or writes a granule while it expects a put; in a window without
        // granules that is not wordwise, bytes under a put are arbitrary to whoever looks, and this slice is only handed
        // to the kernel and summed or opened.
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
    /// What has arrived and was not handed over: `buffer[start..end]`.
    start: usize,
    end: usize,
    landing: Option<Landing>,
    /// Its data, where they wait aside.
    aside: Box<[u8]>,
    /// The frame that follows the put on its way in.
    held: Vec<u8>,
    /// Puts without a frame that this poll has brought: they count for its limit, or it would never end.
    quiet: usize,
    /// Bytes that this poll has brought.
    moved: usize,
    /// Most bytes to read at once, see [`BEHIND_PUT`].
    chunk: usize,
    /// The socket had less than was asked for, so it will announce what comes.
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
            quiet: 0,
            moved: 0,
            chunk: BUFFER_LEN,
            drained: false,
        }
    }

    /// Whether a poll might hand something over that the socket will not announce.
    pub(super) fn may_have_more(&self) -> bool {
        !self.drained
    }

    /// The socket was not looked at though it may have announced something.
    pub(super) fn skipped(&mut self) {
        self.drained = false;
    }

    /// Hands over up to `limit` frames, at least 1, and none after `most` bytes; how many, and whether and why there will be no more. With
    /// `to_the_end` it asks the socket until that has nothing left.
    pub(super) fn poll(
        &mut self,
        socket: &TcpStream,
        windows: &Windows,
        limit: usize,
        most: usize,
        to_the_end: bool,
        mut deliver: impl FnMut(Frame<'_>),
    ) -> (usize, Result<(), Stop>) {
        let mut delivered = 0;
        // One look at the socket at least; after that it is only asked again when it gave all that was asked
        // for.
        let mut dry = false;
        (self.quiet, self.moved) = (0, 0);
        while delivered + self.quiet < limit && self.moved < most {
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
        // There may be whole frames in the buffer, which nobody would announce.
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
    ) -> Result<Option<usize>, Stop> {
        let arrived = &mut self.buffer[self.start..self.end];
        let decoded = wire::decode(arrived, self.lane, self.sequence, self.opener.as_mut());
        match decoded.map_err(Stop::Corrupt)? {
            Decoded::Frame { frame, end, target: None, .. } => {
                self.start += end;
                self.moved += end;
                self.sequence = self.sequence.wrapping_add(1);
                self.chunk = BUFFER_LEN;
                deliver(Frame::of(&arrived[frame]));
                Ok(Some(1))
            }
            Decoded::Frame { frame, end, target: Some(target), announced } => {
                let window = admit(windows, &target).map_err(Stop::Corrupt)?;
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

    /// Reads more into the buffer, which does not hold the `needed` bytes yet; `None` when the socket is dry.
    fn fill(&mut self, socket: &TcpStream, needed: usize, dry: &mut bool) -> Result<Option<usize>, Stop> {
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
        let read = note(read, asked, dry, &mut self.drained, within)?;
        self.end += read;
        Ok((read > 0).then_some(0))
    }

    /// The next step of the put on its way in; `None` when the socket is dry.
    fn land(
        &mut self,
        socket: &TcpStream,
        windows: &Windows,
        dry: &mut bool,
        deliver: &mut impl FnMut(Frame<'_>),
    ) -> Result<Option<usize>, Stop> {
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

    /// Brings more of its data to their place, those before `upto`.
    fn bring(
        &mut self,
        socket: &TcpStream,
        windows: &Windows,
        upto: usize,
        dry: &mut bool,
    ) -> Result<Option<usize>, Stop> {
        let Some(landing) = &mut self.landing else { return Ok(Some(0)) };
        // Again before every write: the owner may have given up waiting.
        let window = admit(windows, &landing.target).map_err(Stop::Corrupt)?;
        let (done, rest) = (landing.done, upto - landing.done);
        let place = landing.place(window, &mut self.aside, done, upto);
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
            if note(read, asked, dry, &mut self.drained, true)? == 0 {
                return Ok(None);
            }
            landed
        };
        if self.opener.is_none() {
            let place = landing.place(window, &mut self.aside, done, done + landed);
            landing.crc = crc32c_append(landing.crc, place);
        }
        landing.done += landed;
        self.moved += landed;
        Ok(Some(0))
    }

    /// Opens the piece of its data that ends at `upto` and is all there, once its tag is.
    fn open(
        &mut self,
        socket: &TcpStream,
        windows: &Windows,
        upto: usize,
        dry: &mut bool,
    ) -> Result<Option<usize>, Stop> {
        let Some(tag) = self.buffer[self.start..self.end].first_chunk::<TAG_LEN>() else {
            return self.fill(socket, TAG_LEN, dry);
        };
        if let (Some(opener), Some(landing)) = (&mut self.opener, &mut self.landing) {
            let window = admit(windows, &landing.target).map_err(Stop::Corrupt)?;
            let piece = landing.place(window, &mut self.aside, landing.opened, upto);
            if !opener.open(&[], piece, *tag) {
                return Err(Stop::Corrupt("data of a put that the peer did not seal"));
            }
            landing.opened = upto;
        }
        self.start += TAG_LEN;
        Ok(Some(0))
    }

    /// All of its data are in place: they are verified, written if they waited aside, its frame handed over.
    fn settle(
        &mut self,
        windows: &Windows,
        deliver: &mut impl FnMut(Frame<'_>),
    ) -> Result<Option<usize>, Stop> {
        let Some(landing) = self.landing.take() else { return Ok(Some(0)) };
        let target = landing.target;
        if self.opener.is_none() && landing.crc != target.crc {
            return Err(Stop::Corrupt("data of a put whose checksum does not match"));
        }
        if landing.aside {
            let window = admit(windows, &target).map_err(Stop::Corrupt)?;
            window.write(target.offset, &self.aside[..target.len as usize]);
        }
        if !landing.announced {
            self.quiet += 1;
            return Ok(Some(0));
        }
        deliver(Frame::of(&self.held).behind(target.len));
        Ok(Some(1))
    }
}

/// The window that takes this put.
fn admit<'a>(windows: &'a Windows, target: &Target) -> Result<&'a Window, &'static str> {
    let window = windows.find(target.window).ok_or("a put into a window that does not exist")?;
    if !window.span().holds(target.offset, u64::from(target.len)) {
        return Err("a put outside its window");
    }
    if !window.accepts(target.offset, u64::from(target.len), target.generation) {
        return Err("a put that is not expected");
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

/// What a read says about the socket; how many bytes came (0: none now). `within` a frame, an end is an
/// accident.
fn note(
    read: Result<usize, Errno>,
    asked: usize,
    dry: &mut bool,
    drained: &mut bool,
    within: bool,
) -> Result<usize, Stop> {
    match read {
        Ok(0) if within => Err(Stop::Ended("the peer closed it in the middle of a frame".into())),
        Ok(0) => Err(Stop::Ended("the peer closed it".into())),
        Ok(read) => {
            // Less than asked for empties a stream socket; but the end of the stream may have come in the same event,
            // which edge-triggered epoll(7) does not announce again: only a read that finds nothing is the last.
            *dry = read < asked;
            *drained = false;
            Ok(read)
        }
        Err(Errno::AGAIN) => {
            (*dry, *drained) = (true, true);
            Ok(0)
        }
        Err(errno) => Err(Stop::Ended(std::io::Error::from(errno).to_string())),
    }
}
