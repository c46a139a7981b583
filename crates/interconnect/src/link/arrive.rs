//! What comes in over the rails of a link: checked, brought into order, put together, and filed in the inbox.

use std::collections::VecDeque;

use plexus_base::{
    NodeId,
    wire::{self, Fixed, Reader, Zeros},
};
use plexus_fabric::{Frame, LANES, Lane};

use super::{
    LinkCounters, MAX_MESSAGE, Owned,
    access::{REQUEST, Request},
    protocol::{Closed, LinkCore, Order, Turn, Violation},
};
use crate::{
    CHANNELS, Class, KINDS,
    inbox::Inbox,
    message::{Form, HEADER, Head, Header, What},
};

wire::layout! {
    /// What a peer says when it has destroyed its end of a rail, behind the header; whether it ever had it.
    struct ClosedWire: 24 { slot: u8, had: bool, zero: Zeros<2>, generation: u32, received: [u64; LANES] }
}

const CLOSED: usize = ClosedWire::LEN;

/// Bytes of a note behind the header: a count for each lane.
const NOTE: usize = 8 * LANES;

pub(super) fn encode_closed(closed: Closed) -> [u8; CLOSED] {
    let Closed { slot, generation, received, had } = closed;
    wire::encode(&ClosedWire { slot, had, zero: Zeros, generation, received })
}

pub(super) fn encode_note(received: [u64; LANES]) -> [u8; NOTE] {
    wire::encode(&received)
}

/// A frame that waits for others of its channel.
pub(super) struct Held {
    head: Head,
    body: Box<[u8]>,
    /// Bytes of the put in front of it.
    put: u32,
}

/// What has arrived and was not handed over.
#[derive(Default)]
pub(super) struct Arrivals {
    order: Order<Held>,
    assembling: [[Vec<u8>; KINDS]; CHANNELS],
    /// Rails that the peer has closed, to be looked at after the poll.
    pub(super) closed: VecDeque<Closed>,
    /// Accesses to be executed after the poll.
    pub(super) accesses: VecDeque<(Head, Request)>,
    /// Something urgent came.
    pub(super) urgent: bool,
    /// The peer ends the link.
    pub(super) goodbye: bool,
}

/// What arrivals are filed with, all of it the link's.
pub(super) struct Desk<'a> {
    pub(super) peer: NodeId,
    pub(super) core: &'a mut LinkCore<Owned>,
    pub(super) counters: &'a LinkCounters,
    pub(super) inbox: &'a mut Inbox,
}

impl Arrivals {
    /// Checks one frame and files what has its turn.
    #[inline]
    pub(super) fn frame(
        &mut self,
        desk: &mut Desk<'_>,
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
        let Form::Channel(head) = header.form().ok_or("a header of no known form")? else {
            return self.control(desk, slot, lane, &header, frame);
        };
        if head.channel.lane() != lane && head.channel.class() != Class::Normal {
            return Err("a message on the wrong lane");
        }
        self.urgent |= lane == Lane::Prompt;
        let stamp = header.stamp();
        desk.core.receive(slot, lane, Some(head.kind), stamp.credits).map_err(said)?;
        match self.order.arrive(head.channel, stamp.sequence).map_err(said)? {
            Turn::Ahead => {
                let mut body = vec![0; frame.len() - HEADER].into_boxed_slice();
                frame.copy(HEADER, &mut body);
                self.order.hold(head.channel, stamp.sequence, Held { head, body, put: frame.put_len() });
                Ok(())
            }
            Turn::Now => {
                self.file(desk, head, frame, HEADER, frame.put_len())?;
                while let Some(held) = self.order.following(head.channel) {
                    self.file(desk, held.head, &Frame::of(&held.body), 0, held.put)?;
                }
                Ok(())
            }
        }
    }

    #[cold]
    fn control(
        &mut self,
        desk: &mut Desk<'_>,
        slot: u8,
        lane: Lane,
        header: &Header,
        frame: &Frame<'_>,
    ) -> Result<(), &'static str> {
        desk.core.receive(slot, lane, None, header.stamp().credits).map_err(said)?;
        let body = frame.len() - HEADER;
        match header.form() {
            Some(Form::Note) if body == NOTE => {
                let mut bytes = [0; NOTE];
                frame.copy(HEADER, &mut bytes);
                let received = wire::decode("note", &bytes, Reader::take);
                desk.core.noted(slot, received.map_err(|_| "a malformed note")?).map_err(said)
            }
            Some(Form::Closed) if body == CLOSED => {
                let mut bytes = [0; CLOSED];
                frame.copy(HEADER, &mut bytes);
                let closed = wire::decode("news of a closed rail", &bytes, Reader::take);
                let closed: ClosedWire = closed.map_err(|_| "malformed news of a closed rail")?;
                let ClosedWire { slot, had, generation, received, .. } = closed;
                self.closed.push_back(Closed { slot, generation, received, had });
                Ok(())
            }
            Some(Form::Goodbye) if body == 0 => {
                self.goodbye = true;
                Ok(())
            }
            _ => Err("a note of the wrong length"),
        }
    }

    /// Files a frame of a channel whose turn it is, behind a put of `put` bytes; its body begins at `at`.
    #[inline]
    fn file(
        &mut self,
        desk: &mut Desk<'_>,
        head: Head,
        frame: &Frame<'_>,
        at: usize,
        put: u32,
    ) -> Result<(), &'static str> {
        let Desk { core, counters, inbox, peer } = desk;
        let (peer, kind, counters) = (*peer, head.kind, &counters[head.channel.index()]);
        let (body, put) = (frame.len() - at, put as usize);
        let whole = &mut self.assembling[head.channel.index()][kind as usize];
        match head.what {
            What::Message if whole.is_empty() => {
                inbox.push(peer, head, frame, at);
                counters.received(kind, body + put);
            }
            What::Message | What::Part => {
                if whole.len() + body > MAX_MESSAGE {
                    return Err("a message longer than any");
                }
                if whole.capacity() == 0 {
                    *whole = inbox.spare();
                }
                frame.append(at, whole);
                if head.what == What::Part {
                    core.consume(kind);
                } else {
                    counters.received(kind, whole.len());
                    inbox.push_whole(peer, head, std::mem::take(whole));
                }
            }
            What::Written => {
                counters.received(kind, body + put);
                core.consume(kind);
            }
            What::Access => {
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

fn said(violation: Violation) -> &'static str {
    match violation {
        Violation::Flood => "more frames than it has credits for",
        Violation::Credits => "credits that it never got",
        Violation::Acknowledged => "an acknowledgement of what was not sent",
        Violation::Sequence => "a frame twice, or out of all order",
        Violation::Slot => "news of a rail that cannot be",
    }
}
