//! The outgoing side of a link: messages cut into frames, puts and accesses, each sent on the rail
//! that the core names, or queued.
//!
//! Over memory with room nothing is allocated, and this processor does all work that needs no help
//! of the peer's. Frames without room or credit are kept, and copied only if the sender does not
//! share them.

use bytes::Bytes;
use plexus_base::Epoch;
use plexus_fabric::{Access, Lane, Lost, MAX_FRAME, MAX_WORDWISE, Put, Rail, RailKind, SendError};

use super::{
    Link, MAX_MESSAGE, Request, arrive,
    attached::{AttachedRail, at},
    kept::{FrameBody, OwnedFrame},
    protocol::{NoRoom, Outgoing, Span, Waybill},
};
use crate::{
    Channel, Class, Kind,
    message::{FrameContent, HEADER, Head, Header},
};

/// The longest fragment.
const MAX_BODY: usize = MAX_FRAME - HEADER;

/// The fragments of a long message that are copied before the waiting ones are offered to the
/// rails.
const REFILL: usize = 4;

/// The length from which puts are cut where several rails may share the bulk and sent frames are
/// kept.
const STRIPE: usize = 64 << 10;

const _: () = assert!(STRIPE >= MAX_WORDWISE, "a cut must not split a word");

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
        let head = Head { what: FrameContent::Message, kind, channel, epoch, tag };
        let lane = lane(channel, payload.len());
        let mut rest = payload;
        while rest.len() > MAX_BODY {
            let (fragment, behind) = rest.split_at(MAX_BODY);
            self.frame(
                Head { what: FrameContent::Part, ..head },
                lane,
                None,
                FrameBody { bytes: fragment, shared },
            );
            rest = behind;
            // While this side copies fragments without room, the peer makes some: it must not run
            // dry meanwhile.
            if shared.is_none()
                && self.core.queued() > 0
                && (payload.len() - rest.len()).is_multiple_of(REFILL * MAX_BODY)
            {
                self.pump();
            }
        }
        self.frame(head, lane, None, FrameBody { bytes: rest, shared });
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
        let head = Head { what: FrameContent::Message, kind, channel, epoch, tag };
        let lane = lane(channel, put.data.len());
        let put = self.stripes(head, lane, put);
        self.frame(head, lane, Some(put), FrameBody::borrowed(payload));
    }

    /// Puts bytes into a window of the peer without a message.
    #[inline]
    pub(crate) fn write(&mut self, epoch: Epoch, channel: Channel, put: Put<'_>) {
        let kind = Kind::Request;
        self.info.counters[channel.index()].sent(kind, put.data.len());
        // Over memory it needs neither credit nor frame, once nothing of its lane waits in front of
        // it.
        let head = written(epoch, channel, Kind::Request);
        let lane = lane(channel, put.data.len());
        if let Some(memory) = self.memory() {
            return match memory.write(lane, put) {
                Ok(()) => {}
                Err(SendError::TooLarge) => self.fail(misplaced_put()),
                Err(SendError::Full | SendError::Lost) => {
                    self.frame(head, lane, Some(put), FrameBody::borrowed(&[]));
                }
            };
        }
        let put = self.stripes(head, lane, put);
        self.frame(head, lane, Some(put), FrameBody::borrowed(&[]));
    }

    /// The rail of a peer whose memory is mapped here, if an immediate access over it overtakes
    /// nothing that was sent before.
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

    /// Sends all of a long put but its last piece, where several rails may share the bulk; returns
    /// that piece. A piece of a kept put needs no new memory.
    fn stripes<'a>(&mut self, head: Head, lane: Lane, mut put: Put<'a>) -> Put<'a> {
        if self.rails.iter().any(|attached| attached.retains) && lane == Lane::Bulk {
            while put.data.len() > STRIPE {
                let (piece, rest) = put.data.split_at(STRIPE);
                let head = written(head.epoch, head.channel, head.kind);
                self.frame(head, lane, Some(Put { data: piece, ..put }), FrameBody::borrowed(&[]));
                put = Put { offset: put.offset + STRIPE as u64, data: rest, ..put };
            }
        }
        put
    }

    /// Requests an access to one of the peer's windows; a reply with this tag brings the earlier
    /// content.
    pub(crate) fn access(&mut self, epoch: Epoch, channel: Channel, tag: u32, request: Request) {
        let bytes = request.encode();
        self.info.counters[channel.index()].sent(Kind::Request, bytes.len());
        self.asked += 1;
        let head = Head { what: FrameContent::Access, kind: Kind::Request, channel, epoch, tag };
        self.frame(head, channel.lane(), None, FrameBody::borrowed(&bytes));
    }

    /// Records the answer to an access by message.
    pub(crate) fn access_answered(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// Executes an access with this processor, if the peer's memory is mapped; returns true if it
    /// did. The earlier content is left in `answer`: empty if the access lies outside the peer's
    /// window or is longer than any message.
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
    fn frame(&mut self, head: Head, lane: Lane, put: Option<Put<'_>>, body: FrameBody<'_>) {
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
        let owned = || OwnedFrame::of(spare, header, put, body);
        // Frames that need no copy wait: urgent traffic gets its turn between two chunks.
        let held_back = lane == Lane::Bulk && body.shared.is_some() && !self.budget.allows();
        let route = if held_back { None } else { self.core.route(&bill) };
        let Some(attached) = route.and_then(|slot| at(&mut self.rails, slot)) else {
            return self.core.queue(bill, owned());
        };
        let (stamp, slot) = (self.core.stamp(head.channel), attached.slot);
        let header = header.stamped(stamp);
        let bytes = body.bytes.len() + put.map_or(0, |put| put.data.len());
        let (sent, owned) = if attached.retains && body.is_long() && put.is_none() {
            // The frame is kept anyway; the rail can take it from there when it does not pass it on
            // at once.
            let owned = owned();
            (offer_shared(attached, lane, header, &owned.body), Some(owned))
        } else {
            (offer(attached, lane, header, put, body.bytes), None)
        };
        let keep = || owned.unwrap_or_else(|| OwnedFrame::of(spare, header, put, body));
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

/// The reason of a link that must end because no rail takes a put: without it the message behind it
/// would arrive without its data.
#[cold]
fn misplaced_put() -> Lost {
    Lost::Closed("a put outside the windows of the peer".into())
}

fn written(epoch: Epoch, channel: Channel, kind: Kind) -> Head {
    Head { what: FrameContent::Written, kind, channel, epoch, tag: 0 }
}

/// The lane for so many bytes: long messages on a normal channel must not stand in front of urgent
/// ones.
#[inline]
fn lane(channel: Channel, bytes: usize) -> Lane {
    if bytes > MAX_BODY && channel.class() == Class::Normal { Lane::Bulk } else { channel.lane() }
}

#[inline]
fn offer(
    attached: &mut AttachedRail,
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
fn offer_shared(
    attached: &mut AttachedRail,
    lane: Lane,
    header: Header,
    body: &Bytes,
) -> Result<(), SendError> {
    attached.rail.send_shared(lane, &header.encode(), body)?;
    attached.unflushed = true;
    attached.bytes_out += (HEADER + body.len()) as u64;
    Ok(())
}
