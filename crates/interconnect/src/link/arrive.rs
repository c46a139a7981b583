//! The incoming side of a link: frames are checked, ordered, joined to messages, and filed in the
//! inbox.

use std::collections::VecDeque;

use plexus_base::{
    NodeId,
    wire::{self, Fixed, Reader, Zeros},
};
use plexus_fabric::{Frame, LANES, Lane};

use super::{
    LinkCounters, MAX_MESSAGE, OwnedFrame,
    access::{REQUEST, Request},
    protocol::{LinkCore, Order, RailClosed, Turn, Violation},
};
use crate::{
    CHANNELS, Class, KINDS,
    inbox::Inbox,
    message::{Form, FrameContent, HEADER, Head, Header},
};

wire::layout! {
    /// A peer's notice that it has destroyed its end of a rail; `had` tells whether it ever had the
    /// rail.
    struct ClosedWire: 24 { slot: u8, had: bool, zero: Zeros<2>, generation: u32, received: [u64; LANES] }
}

const CLOSED: usize = ClosedWire::LEN;

/// The bytes of a note behind the header: a count for each lane.
const NOTE: usize = 8 * LANES;

pub(super) fn encode_closed(closed: RailClosed) -> [u8; CLOSED] {
    let RailClosed { slot, generation, received, had } = closed;
    wire::encode(&ClosedWire { slot, had, zero: Zeros, generation, received })
}

pub(super) fn encode_note(received: [u64; LANES]) -> [u8; NOTE] {
    wire::encode(&received)
}

/// A frame that waits for others of its channel.
pub(super) struct HeldFrame {
    head: Head,
    body: Box<[u8]>,
    /// The bytes of the put in front of it.
    put: u32,
}

/// The frames that have arrived and were not handed over.
#[derive(Default)]
pub(super) struct Arrivals {
    order: Order<HeldFrame>,
    assembling: [[Vec<u8>; KINDS]; CHANNELS],
    /// The rails that the peer has closed, handled after the poll.
    pub(super) closed: VecDeque<RailClosed>,
    /// The accesses to be executed after the poll.
    pub(super) accesses: VecDeque<(Head, Request)>,
    /// True if something urgent came.
    pub(super) urgent: bool,
    /// True if the peer ends the link.
    pub(super) goodbye: bool,
}

/// The parts of the link with which arrivals are filed.
pub(super) struct ArrivalContext<'a> {
    pub(super) peer: NodeId,
    pub(super) core: &'a mut LinkCore<OwnedFrame>,
    pub(super) counters: &'a LinkCounters,
    pub(super) inbox: &'a mut Inbox,
}

impl Arrivals {
    /// Checks one frame and files the frames whose turn it is.
    #[inline]
    pub(super) fn frame(
        &mut self,
        context: &mut ArrivalContext<'_>,
        slot: u8,
        lane: Lane,
        frame: &Frame<'_>,
    ) -> Result<(), &'static str> {
        if frame.len() < HEADER {
            return Err("a frame shorter than its header");
        }
        let mut header = [0; HEADER];
        frame.copy(0, &mut header);
        let header = Header::decode(&header).map_err(|_| "a frame shorter than its header")?;
        let Form::Channel(head) = header.form().ok_or("a header of an unknown form")? else {
            return self.control(context, slot, lane, &header, frame);
        };
        if head.channel.lane() != lane && head.channel.class() != Class::Normal {
            return Err("a message on the wrong lane");
        }
        self.urgent |= lane == Lane::Prompt;
        let stamp = header.stamp();
        context.core.receive(slot, lane, Some(head.kind), stamp.credits).map_err(describe)?;
        match self.order.arrive(head.channel, stamp.sequence).map_err(describe)? {
            Turn::Ahead => {
                let mut body = vec![0; frame.len() - HEADER].into_boxed_slice();
                frame.copy(HEADER, &mut body);
                self.order.hold(head.channel, stamp.sequence, HeldFrame { head, body, put: frame.put_len() });
                Ok(())
            }
            Turn::Now => {
                self.file(context, head, frame, HEADER, frame.put_len())?;
                while let Some(held) = self.order.following(head.channel) {
                    self.file(context, held.head, &Frame::of(&held.body), 0, held.put)?;
                }
                Ok(())
            }
        }
    }

    #[cold]
    fn control(
        &mut self,
        context: &mut ArrivalContext<'_>,
        slot: u8,
        lane: Lane,
        header: &Header,
        frame: &Frame<'_>,
    ) -> Result<(), &'static str> {
        context.core.receive(slot, lane, None, header.stamp().credits).map_err(describe)?;
        let body = frame.len() - HEADER;
        match header.form() {
            Some(Form::Note) if body == NOTE => {
                let mut bytes = [0; NOTE];
                frame.copy(HEADER, &mut bytes);
                let received = wire::decode("note", &bytes, Reader::take);
                context.core.noted(slot, received.map_err(|_| "a malformed note")?).map_err(describe)
            }
            Some(Form::Closed) if body == CLOSED => {
                let mut bytes = [0; CLOSED];
                frame.copy(HEADER, &mut bytes);
                let closed = wire::decode("notice of a closed rail", &bytes, Reader::take);
                let closed: ClosedWire = closed.map_err(|_| "malformed notice of a closed rail")?;
                let ClosedWire { slot, had, generation, received, .. } = closed;
                self.closed.push_back(RailClosed { slot, generation, received, had });
                Ok(())
            }
            Some(Form::Goodbye) if body == 0 => {
                self.goodbye = true;
                Ok(())
            }
            _ => Err("a note of the wrong length"),
        }
    }

    /// Files a frame of a channel whose turn it is, behind a put of `put` bytes; its body begins at
    /// `at`.
    #[inline]
    fn file(
        &mut self,
        context: &mut ArrivalContext<'_>,
        head: Head,
        frame: &Frame<'_>,
        at: usize,
        put: u32,
    ) -> Result<(), &'static str> {
        let ArrivalContext { core, counters, inbox, peer } = context;
        let (peer, kind, counters) = (*peer, head.kind, &counters[head.channel.index()]);
        let (body, put) = (frame.len() - at, put as usize);
        let whole = &mut self.assembling[head.channel.index()][kind as usize];
        match head.what {
            FrameContent::Message if whole.is_empty() => {
                inbox.push(peer, head, frame, at);
                counters.received(kind, body + put);
            }
            FrameContent::Message | FrameContent::Part => {
                if whole.len() + body > MAX_MESSAGE {
                    return Err("a message longer than the maximum");
                }
                if whole.capacity() == 0 {
                    *whole = inbox.spare();
                }
                frame.append(at, whole);
                if head.what == FrameContent::Part {
                    core.consume(kind);
                } else {
                    counters.received(kind, whole.len());
                    inbox.push_whole(peer, head, std::mem::take(whole));
                }
            }
            FrameContent::Written => {
                counters.received(kind, body + put);
                core.consume(kind);
            }
            FrameContent::Access => {
                let mut bytes = [0; REQUEST];
                if body != REQUEST {
                    return Err("an access of the wrong length");
                }
                frame.copy(at, &mut bytes);
                let request = Request::decode(&bytes).map_err(|_| "a malformed access to a window")?;
                counters.received(kind, body);
                self.accesses.push_back((head, request));
            }
        }
        Ok(())
    }
}

fn describe(violation: Violation) -> &'static str {
    match violation {
        Violation::Flood => "more frames than credits",
        Violation::Credits => "a return of credits that were not used",
        Violation::Acknowledged => "an acknowledgement of frames that were not sent",
        Violation::Sequence => "a repeated frame, or one out of order",
        Violation::Slot => "a notice of an impossible rail",
    }
}
