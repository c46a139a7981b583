//! What goes out over a link: messages cut into frames, puts, accesses, each to the rail that the core names, or aside.
//!
//! Over memory with room nothing is allocated, and what the peer's processor need not do is done here. What finds no room or
//! credit is kept, copied only if its sender does not share it.

use bytes::Bytes;
use plexus_base::Epoch;
use plexus_fabric::{Access, Lane, Lost, MAX_FRAME, MAX_WORDWISE, Put, Rail, RailKind, SendError};

use super::{
    Link, MAX_MESSAGE, Request, arrive,
    attached::{Attached, at},
    kept::{Body, Owned},
    protocol::{NoRoom, Outgoing, Span, Waybill},
};
use crate::{
    Channel, Class, Kind,
    message::{HEADER, Head, Header, What},
};

/// Longest fragment.
const MAX_BODY: usize = MAX_FRAME - HEADER;

/// Fragments of a long message that are copied aside before the rails are offered what waits.
const REFILL: usize = 4;

/// Longer puts are cut where several rails may share the bulk and what is sent is kept.
const STRIPE: usize = 64 << 10;

const _: () = assert!(STRIPE >= MAX_WORDWISE, "a cut through a word would show");

impl Link {
    /// Sends a message, or queues it while credits or room are missing.
    #[inline]
    pub(crate) fn send(&mut self, epoch: Epoch, channel: Channel, kind: Kind, tag: u32, payload: &[u8]) {
        self.message(epoch, channel, kind, tag, payload, None);
    }

    /// Sends a message whose bytes need not be copied to be kept.
    pub(crate) fn send_shared(
        &mut self,
        epoch: Epoch,
        channel: Channel,
        kind: Kind,
        tag: u32,
        payload: &Bytes,
    ) {
        self.message(epoch, channel, kind, tag, payload, Some(payload));
    }

    #[inline]
    fn message(
        &mut self,
        epoch: Epoch,
        channel: Channel,
        kind: Kind,
        tag: u32,
        payload: &[u8],
        shared: Option<&Bytes>,
    ) {
        assert!(payload.len() <= MAX_MESSAGE, "a message of {} bytes", payload.len());
        self.info.counters[channel.index()].sent(kind, payload.len());
        let head = Head { what: What::Message, kind, channel, epoch, tag };
        let lane = lane(channel, payload.len());
        let mut rest = payload;
        while rest.len() > MAX_BODY {
            let (fragment, behind) = rest.split_at(MAX_BODY);
            self.frame(Head { what: What::Part, ..head }, lane, None, Body { bytes: fragment, shared });
            rest = behind;
            // While we copy what finds no room, the peer makes some: it must not run dry meanwhile.
            if shared.is_none()
                && self.core.queued() > 0
                && (payload.len() - rest.len()).is_multiple_of(REFILL * MAX_BODY)
            {
                self.pump();
            }
        }
        self.frame(head, lane, None, Body { bytes: rest, shared });
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
        self.info.counters[channel.index()].sent(kind, payload.len() + put.data.len());
        let head = Head { what: What::Message, kind, channel, epoch, tag };
        let lane = lane(channel, put.data.len());
        let put = self.stripes(head, lane, put);
        self.frame(head, lane, Some(put), Body::borrowed(payload));
    }

    /// Puts bytes into a window of the peer and tells nobody.
    #[inline]
    pub(crate) fn write(&mut self, epoch: Epoch, channel: Channel, put: Put<'_>) {
        let kind = Kind::Request;
        self.info.counters[channel.index()].sent(kind, put.data.len());
        // Over memory it needs no credit and no frame, once nothing of its lane waits in front of it.
        let head = written(epoch, channel, Kind::Request);
        let lane = lane(channel, put.data.len());
        if let Some(memory) = self.memory() {
            return match memory.write(lane, put) {
                Ok(()) => {}
                Err(SendError::TooLarge) => self.fail(misplaced_put()),
                Err(SendError::Full | SendError::Lost) => {
                    self.frame(head, lane, Some(put), Body::borrowed(&[]));
                }
            };
        }
        let put = self.stripes(head, lane, put);
        self.frame(head, lane, Some(put), Body::borrowed(&[]));
    }

    /// The rail of a peer whose memory is mapped here, if what is done over it at once overtakes nothing that was sent before.
    fn memory(&mut self) -> Option<&mut dyn Rail> {
        let clear = self.asked == 0 && self.core.queued() == 0;
        match &mut self.rails[..] {
            [only] if clear && only.rail.kind() == RailKind::Shm => {
                only.unflushed = true;
                Some(&mut *only.rail)
            }
            _ => None,
        }
    }

    /// Sends all of a long put but its last piece, where several rails may share the bulk; that piece. One that is kept in
    /// pieces needs no new memory for each.
    fn stripes<'a>(&mut self, head: Head, lane: Lane, mut put: Put<'a>) -> Put<'a> {
        if self.rails.iter().any(|attached| attached.retains) && lane == Lane::Bulk {
            while put.data.len() > STRIPE {
                let (piece, rest) = put.data.split_at(STRIPE);
                let head = written(head.epoch, head.channel, head.kind);
                self.frame(head, lane, Some(Put { data: piece, ..put }), Body::borrowed(&[]));
                put = Put { offset: put.offset + STRIPE as u64, data: rest, ..put };
            }
        }
        put
    }

    /// Asks the peer for an access to one of its windows; a reply with this tag brings what was there.
    pub(crate) fn access(&mut self, epoch: Epoch, channel: Channel, tag: u32, request: Request) {
        let bytes = request.encode();
        self.info.counters[channel.index()].sent(Kind::Request, bytes.len());
        self.asked += 1;
        let head = Head { what: What::Access, kind: Kind::Request, channel, epoch, tag };
        self.frame(head, channel.lane(), None, Body::borrowed(&bytes));
    }

    /// An access by message was answered.
    pub(crate) fn access_answered(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// Executes an access with this processor, where the peer's memory is mapped; whether that was done. What was there is
    /// left in `answer`: empty where the peer's window has no such place, or it is longer than any message.
    pub(crate) fn direct(&mut self, request: Request, answer: &mut Vec<u8>) -> bool {
        let Some(memory) = self.memory() else { return false };
        answer.clear();
        let word = match request {
            Request::Get { len, .. } if len as usize > MAX_MESSAGE => return true,
            Request::Get { window, offset, len } => {
                answer.resize(len as usize, 0);
                match memory.direct(Access::Get { window, offset, into: answer }) {
                    Some(Ok(_)) => {}
                    Some(Err(_)) => answer.clear(),
                    None => return false,
                }
                return true;
            }
            Request::FetchAdd { window, offset, add } => {
                memory.direct(Access::FetchAdd { window, offset, add })
            }
            Request::CompareSwap { window, offset, expected, new } => {
                memory.direct(Access::CompareSwap { window, offset, expected, new })
            }
        };
        match word {
            Some(Ok(word)) => answer.extend(word.to_le_bytes()),
            Some(Err(_)) => {}
            None => return false,
        }
        true
    }

    #[inline]
    fn frame(&mut self, head: Head, lane: Lane, put: Option<Put<'_>>, body: Body<'_>) {
        if lane == Lane::Prompt && self.paced {
            self.hurry();
        }
        let span = put.map(|put| Span {
            window: put.window.0,
            from: put.offset,
            to: put.offset.saturating_add(put.data.len() as u64),
        });
        let bill = Waybill { channel: head.channel, kind: head.kind, lane, span };
        let header = Header::of(&head);
        let spare = &self.spare;
        let owned = || Owned::of(spare, header, put, body);
        // What need not be copied to wait does so: what is urgent has its turn between two chunks.
        let held_back = lane == Lane::Bulk && body.shared.is_some() && !self.budget.allows();
        let route = if held_back { None } else { self.core.route(&bill) };
        let Some(attached) = route.and_then(|slot| at(&mut self.rails, slot)) else {
            return self.core.queue(bill, owned());
        };
        let (stamp, slot) = (self.core.stamp(head.channel), attached.slot);
        let header = header.stamped(stamp);
        let bytes = body.bytes.len() + put.map_or(0, |put| put.data.len());
        let (sent, owned) = if attached.retains && body.is_long() && put.is_none() {
            // It is kept anyway: what the rail does not pass on at once it can take from there.
            let owned = owned();
            (offer_shared(attached, lane, header, &owned.body), Some(owned))
        } else {
            (offer(attached, lane, header, put, body.bytes), None)
        };
        let keep = || owned.unwrap_or_else(|| Owned::of(spare, header, put, body));
        match sent {
            Ok(()) => {
                self.core.sent(slot, &bill, stamp, keep);
                self.budget.spend(lane, bytes);
            }
            Err(SendError::Full | SendError::Lost) => self.core.queue(bill, keep()),
            Err(SendError::TooLarge) => self.fail(misplaced_put()),
        }
    }

    pub(super) fn pump(&mut self) {
        let Self { core, rails, budget, .. } = self;
        let mut misplaced = false;
        core.pump(&mut |slot, lane, stamp, outgoing| {
            let attached = at(rails, slot).ok_or(NoRoom)?;
            if lane == Lane::Bulk && !budget.allows() {
                return Err(NoRoom);
            }
            let sent = match outgoing {
                Outgoing::Frame(_, owned) => {
                    let header = owned.header.stamped(stamp);
                    let put = owned.put();
                    let bytes = owned.body.len() + put.map_or(0, |put| put.data.len());
                    let sent = match put {
                        None => offer_shared(attached, lane, header, &owned.body),
                        put => offer(attached, lane, header, put, &owned.body),
                    };
                    sent.inspect(|()| budget.spend(lane, bytes))
                }
                Outgoing::Note(received) => {
                    let body = arrive::encode_note(received);
                    offer(attached, lane, Header::note().stamped(stamp), None, &body)
                }
                Outgoing::Closed(closed) => {
                    let body = arrive::encode_closed(closed);
                    offer(attached, lane, Header::closed().stamped(stamp), None, &body)
                }
            };
            sent.map_err(|error| {
                misplaced |= error == SendError::TooLarge;
                NoRoom
            })
        });
        if misplaced {
            self.fail(misplaced_put());
        }
    }
}

/// A put that no rail takes: to leave it out would be to deliver the message behind it without its data.
#[cold]
fn misplaced_put() -> Lost {
    Lost::Closed("a put was to go where the peer has no window".into())
}

fn written(epoch: Epoch, channel: Channel, kind: Kind) -> Head {
    Head { what: What::Written, kind, channel, epoch, tag: 0 }
}

/// The lane for so many bytes: what is long on a normal channel must not stand in front of what is urgent.
#[inline]
fn lane(channel: Channel, bytes: usize) -> Lane {
    if bytes > MAX_BODY && channel.class() == Class::Normal { Lane::Bulk } else { channel.lane() }
}

#[inline]
fn offer(
    attached: &mut Attached,
    lane: Lane,
    header: Header,
    put: Option<Put<'_>>,
    body: &[u8],
) -> Result<(), SendError> {
    match put {
        None => attached.rail.send(lane, &header.encode(), body)?,
        Some(put) => attached.rail.put(lane, put, &header.encode(), body)?,
    }
    attached.unflushed = true;
    attached.bytes_out += (HEADER + body.len() + put.map_or(0, |put| put.data.len())) as u64;
    Ok(())
}

#[inline]
fn offer_shared(attached: &mut Attached, lane: Lane, header: Header, body: &Bytes) -> Result<(), SendError> {
    attached.rail.send_shared(lane, &header.encode(), body)?;
    attached.unflushed = true;
    attached.bytes_out += (HEADER + body.len()) as u64;
    Ok(())
}
