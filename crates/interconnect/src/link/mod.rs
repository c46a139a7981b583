//! One link: the pure core, the rail it runs over, and what is counted.
//!
//! The driver adds to [`protocol::LinkCore`] only what needs bytes: headers, copies of what cannot be sent at once,
//! messages longer than a frame. It never blocks and, while the rail has room, never allocates.

pub mod protocol;

use std::sync::Arc;

use plexus_base::{Epoch, Nanos, NodeId};
use plexus_fabric::{LANES, Lane, Lost, MAX_FRAME, Put, Rail, RailKind, SendError, WindowId};
use zerocopy::{FromBytes, IntoBytes};

use self::protocol::{Limits, LinkCore, NoRoom, Outgoing, Stamp};
use crate::{
    CHANNELS, Channel, ChannelCounters, KINDS, Kind,
    inbox::{Head, Inbox},
    message::{Form, HEADER, Header},
};

/// Longest message in bytes; longer than a frame goes in fragments.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Longest fragment.
const MAX_BODY: usize = MAX_FRAME - HEADER;

/// Frames taken from each lane before other links get their turn.
const POLL_FRAMES: usize = 32;

/// What the channels of one link counted; readable by any thread.
pub type LinkCounters = [ChannelCounters; CHANNELS];

/// A frame that could not be sent at once.
struct Owned {
    header: Header,
    body: Box<[u8]>,
    put: Option<OwnedPut>,
}

struct OwnedPut {
    window: WindowId,
    offset: u64,
    generation: u32,
    data: Box<[u8]>,
}

impl OwnedPut {
    fn of(put: Put<'_>) -> Self {
        Self { window: put.window, offset: put.offset, generation: put.generation, data: put.data.into() }
    }

    fn borrow(&self) -> Put<'_> {
        Put { window: self.window, offset: self.offset, generation: self.generation, data: &self.data }
    }
}

pub(crate) struct Link {
    pub(crate) peer: NodeId,
    rail: Box<dyn Rail>,
    core: LinkCore<Owned>,
    counters: Arc<LinkCounters>,
    assembling: [[Vec<u8>; KINDS]; CHANNELS],
    lost: Option<Lost>,
}

impl Link {
    /// A link over `rail`, which lives as long as the peer does.
    pub(crate) fn new(peer: NodeId, rail: Box<dyn Rail>, counters: Arc<LinkCounters>) -> Self {
        Self {
            peer,
            rail,
            core: LinkCore::new(Limits::default(), false),
            counters,
            assembling: Default::default(),
            lost: None,
        }
    }

    pub(crate) fn rail(&self) -> &dyn Rail {
        &*self.rail
    }

    pub(crate) fn rail_kind(&self) -> RailKind {
        self.rail.kind()
    }

    /// Sends a message, or queues it while credits or room are missing.
    #[inline]
    pub(crate) fn send(&mut self, epoch: Epoch, channel: Channel, kind: Kind, tag: u32, payload: &[u8]) {
        assert!(payload.len() <= MAX_MESSAGE, "a message of {} bytes", payload.len());
        self.counters[channel.index()].sent(kind, payload.len());
        let mut rest = payload;
        while rest.len() > MAX_BODY {
            let (fragment, behind) = rest.split_at(MAX_BODY);
            self.frame(
                Header::message(kind, true, channel, epoch, tag),
                kind,
                channel.lane(),
                None,
                fragment,
            );
            rest = behind;
        }
        self.frame(Header::message(kind, false, channel, epoch, tag), kind, channel.lane(), None, rest);
    }

    /// Puts bytes into a window of the peer and sends a message behind them.
    #[inline]
    pub(crate) fn put(
        &mut self,
        epoch: Epoch,
        channel: Channel,
        kind: Kind,
        tag: u32,
        put: Put<'_>,
        payload: &[u8],
    ) {
        assert!(payload.len() <= MAX_BODY, "the message behind a put is one frame");
        self.counters[channel.index()].sent(kind, payload.len() + put.data.len());
        let header = Header::message(kind, false, channel, epoch, tag);
        self.frame(header, kind, channel.lane(), Some(put), payload);
    }

    #[inline]
    fn frame(&mut self, header: Header, kind: Kind, lane: Lane, put: Option<Put<'_>>, body: &[u8]) {
        let owned = || Owned { header, body: body.into(), put: put.map(OwnedPut::of) };
        if !self.core.ready(kind, lane) {
            return self.core.queue(kind, lane, owned());
        }
        let stamp = self.core.stamp();
        match offer(&mut *self.rail, lane, stamp, header, put, body) {
            Ok(()) => self.core.sent(kind, lane, stamp, owned),
            Err(SendError::Full | SendError::Lost) => self.core.queue(kind, lane, owned()),
            Err(SendError::TooLarge) => self.fail(Lost::Corrupt("asked for a put outside its window")),
        }
    }

    /// Takes what has arrived into `inbox`. Messages are handled later, see [`Link::handled`].
    #[inline]
    pub(crate) fn poll(&mut self, inbox: &mut Inbox) {
        let Self { rail, core, assembling, counters, peer, .. } = self;
        let mut violation = None;
        let polled = rail.poll(POLL_FRAMES, &mut |lane, frame| {
            if violation.is_none() {
                violation = arrive(core, assembling, counters, *peer, inbox, lane, &frame).err();
            }
        });
        if let Some(what) = violation {
            self.fail(Lost::Corrupt(what));
        } else if let Err(lost) = polled {
            self.fail(lost);
        }
    }

    /// A message of `kind` has been handled. (The fragments before its last frame were as they came.)
    #[inline]
    pub(crate) fn handled(&mut self, kind: Kind) {
        self.core.consume(kind);
    }

    /// Sends what waits, and makes sure that the peer sees what was sent.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.core.wants_pump() && self.lost.is_none() {
            let rail = &mut self.rail;
            self.core.pump(&mut |lane, stamp, outgoing| {
                let sent = match outgoing {
                    Outgoing::Frame(owned) => {
                        let put = owned.put.as_ref().map(OwnedPut::borrow);
                        offer(&mut **rail, lane, stamp, owned.header, put, &owned.body)
                    }
                    Outgoing::Note(received) => {
                        let body = received.map(u64::to_le_bytes);
                        offer(&mut **rail, lane, stamp, Header::note(), None, body.as_bytes())
                    }
                };
                sent.map_err(|_| NoRoom)
            });
        }
        // Also when nothing was sent since: a socket that took only a part may take the rest now.
        if let Err(lost) = self.rail.flush() {
            self.fail(lost);
        }
    }

    /// Whether [`Link::poll`] or [`Link::flush`] would get something done that no bell announces.
    pub(crate) fn pending(&mut self) -> bool {
        self.lost.is_none() && self.rail.pending()
    }

    /// Whether [`Link::tick`] is to be called every 20 ms.
    pub(crate) fn wants_ticks(&self) -> bool {
        false
    }

    /// Does what is due by `now`.
    pub(crate) fn tick(&mut self, now: Nanos) {
        let _ = now;
    }

    /// Why the rail is dead, if it is.
    pub(crate) fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    pub(crate) fn fail(&mut self, lost: Lost) {
        self.lost.get_or_insert(lost);
    }
}

#[inline]
fn offer(
    rail: &mut dyn Rail,
    lane: Lane,
    stamp: Stamp,
    mut header: Header,
    put: Option<Put<'_>>,
    body: &[u8],
) -> Result<(), SendError> {
    header.credits = stamp.credits;
    match put {
        None => rail.send(lane, header.as_bytes(), body),
        Some(put) => rail.put(lane, put, header.as_bytes(), body),
    }
}

/// Checks one frame and files it: a whole message or the end of one goes to the inbox.
#[inline]
fn arrive(
    core: &mut LinkCore<Owned>,
    assembling: &mut [[Vec<u8>; KINDS]; CHANNELS],
    counters: &LinkCounters,
    peer: NodeId,
    inbox: &mut Inbox,
    lane: Lane,
    frame: &plexus_fabric::Frame<'_>,
) -> Result<(), &'static str> {
    if frame.len() < HEADER {
        return Err("a frame shorter than its header");
    }
    let mut header = [0; HEADER];
    frame.copy(0, &mut header);
    let header = Header::read_from_bytes(&header).map_err(|_| "a frame shorter than its header")?;
    let stamp = Stamp { credits: header.credits };
    let body = frame.len() - HEADER;
    match header.form().ok_or("a header of no known form")? {
        Form::Note => {
            let mut received = [[0; 8]; LANES];
            if body != size_of_val(&received) {
                return Err("a note of the wrong length");
            }
            frame.copy(HEADER, received.as_mut_bytes());
            core.receive(None, lane, stamp).map_err(|_| "a note against the rules")?;
            core.noted(received.map(u64::from_le_bytes)).map_err(|_| "a note of what was not sent")
        }
        Form::Message { kind, more, channel, epoch, tag } => {
            if channel.lane() != lane {
                return Err("a message on the wrong lane");
            }
            core.receive(Some(kind), lane, stamp).map_err(|_| "more frames than it has credits for")?;
            let head = Head { from: peer, channel, kind, epoch, tag };
            let whole = &mut assembling[channel.index()][kind as usize];
            if !more && whole.is_empty() {
                let payload = inbox.push(head, body);
                frame.copy(HEADER, payload);
                counters[channel.index()].received(kind, body);
                return Ok(());
            }
            let start = whole.len();
            if start + body > MAX_MESSAGE {
                return Err("a message longer than any");
            }
            whole.resize(start + body, 0);
            frame.copy(HEADER, &mut whole[start..]);
            if more {
                core.consume(kind);
            } else {
                counters[channel.index()].received(kind, whole.len());
                inbox.push_whole(head, whole);
            }
            Ok(())
        }
    }
}
