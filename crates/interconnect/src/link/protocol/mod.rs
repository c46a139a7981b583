//! The pure core of a link: the frames that may be sent now and their rails, the frames to keep,
//! and those to send again.
//!
//! A link is a pair of [`LinkCore`]s, one at each node, over several rails at once. The core knows
//! frames only as values of `F`; its driver (that of the link, or the simulator) sends them over
//! the rails.
//!
//! **Contract.** A connected rail is announced with [`LinkCore::rail_up`]. To send a frame, the
//! driver calls [`LinkCore::route`] and offers the frame to that rail with [`LinkCore::stamp`]'s
//! credits and number. If the rail took it, the driver calls [`LinkCore::sent`], otherwise
//! [`LinkCore::queue`]. After every batch it calls [`LinkCore::pump`]. For every arriving frame it
//! calls [`LinkCore::receive`], hands the frame over when [`Order`] permits, and calls
//! [`LinkCore::consume`] once it has been handled. It calls [`LinkCore::tick`] after every
//! [`LinkCore::next_tick`]. Any returned error ends the link.
//!
//! **Invariants.** Frames of one (kind, channel) are delivered once each, in the order offered,
//! whatever happens to rails. At most [`Limits::credits`] frames of a kind are sent and not yet
//! handled; a peer that exceeds this is cut off. No call blocks, and nothing depends on the size of
//! a rail's ring: two slots are enough. Of two puts of a channel to the same bytes the later one
//! lands later. Bulk leaves some credits of each kind to normal traffic, and normal traffic some to
//! urgent traffic.
//!
//! **Choice of the rail.** The best rail is the trusted one of the lowest class; all prompt frames
//! go there. Rails of the best one's class share bulk. Each frame goes to the rail where it will
//! arrive first, by the frames in flight there and its speed (`speed.rs`). So each rail carries
//! what it can, and a slow one does not delay the order. A rail that was lost and is back is
//! trusted after a while, longer each time ([`LinkCore::rail_up`]).
//!
//! **Loss of a rail.** Frames sent on a rail that can be lost while the peer lives stay here until
//! the peer's note acknowledges them. An end that finds a rail dead first destroys its end, so that
//! nothing in flight on it can arrive any more ([`LinkCore::rail_lost`]). It then reports on
//! another rail how much it had received on the lost one ([`RailClosed`]). The other end destroys
//! its end too, if it has not yet, and answers in kind ([`LinkCore::peer_closed`]).
//!
//! Each end then sends again, on the other rails, exactly the frames that the other did not get,
//! each with its old number. Later frames of the channel wait at the receiver ([`Order`]). So a put
//! that was in flight never lands after it was sent again. Credits in flight return to their
//! sender. A rail is identified by its slot and generation. A generation whose death one end has
//! seen is burned: the other end never takes it up.

mod lifecycle;
mod liveness;
mod order;
mod rail;
mod sending;
mod speed;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use plexus_base::Nanos;
use plexus_fabric::{LANES, Lane};

pub use liveness::{Pace, RailFailure, Signs};
pub use order::{Order, Turn};
pub use rail::{Rank, Span};

use self::rail::{Closing, Numbered, RailCore};
use crate::{CHANNELS, Channel, KINDS, Kind, Reason};

/// The maximum number of rails of a pair of nodes.
pub const SLOTS: usize = 8;

const _: () = assert!(SLOTS <= u8::BITS as usize, "a set of slots must fit into a byte");

/// The credits of a link, the same at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The frames of each kind that may be in flight and unhandled, 1 to 255.
    pub credits: [u8; KINDS],
}

impl Default for Limits {
    /// A request is passed on at most once and answered once, so forwards and replies get as many
    /// credits.
    fn default() -> Self {
        Self { credits: [128; KINDS] }
    }
}

/// The fields of a frame that belong to the link itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Stamp {
    /// The handled frames of each kind that it reports to the peer.
    pub credits: [u8; KINDS],
    /// The number of the frame within its channel; 0 for a frame without a channel.
    pub sequence: u32,
}

/// The notice that an end of a rail is destroyed, with the frames that had arrived on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct RailClosed {
    /// The slot of the rail.
    pub slot: u8,
    /// The generation of the rail.
    pub generation: u32,
    /// The frames received on each lane.
    pub received: [u64; LANES],
    /// True if this end ever had the rail; if not, this answers the other end's notice.
    pub had: bool,
}

/// A violation of the protocol by the peer; the link must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// More frames of a kind than credits.
    #[error("the peer sent more than it has credits for")]
    Flood,
    /// The return of credits that were never used.
    #[error("the peer returned credits that were never used")]
    Credits,
    /// The acknowledgement of frames that were never sent, or a smaller one than before.
    #[error("the peer acknowledged frames that were not sent")]
    Acknowledged,
    /// A repeated frame, or one with an impossible number.
    #[error("the peer repeated a frame or sent one out of order")]
    Sequence,
    /// A notice of an impossible rail.
    #[error("the peer sent a notice of an impossible rail")]
    Slot,
}

/// The rail has no room: the answer of a driver to [`LinkCore::pump`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// A frame that [`LinkCore::pump`] sends.
#[derive(Debug)]
pub enum Outgoing<'a, F> {
    /// A frame of this channel that was queued or must be sent again.
    Frame(Channel, &'a F),
    /// The numbers of frames received on each lane of the rail that carries this note.
    Note([u64; LANES]),
    /// The notice that an end of another rail is destroyed.
    Closed(RailClosed),
}

/// The function with which `pump` sends: the rail's slot, the lane, the stamp, and the frame.
pub type Send<'a, F> = dyn FnMut(u8, Lane, Stamp, Outgoing<'_, F>) -> Result<(), NoRoom> + 'a;

/// One end of a link. See the [module](self) for the contract.
pub struct LinkCore<F> {
    limits: Limits,
    pace: Pace,
    credits: [u8; KINDS],
    /// The frames that were handled and whose credit is not yet returned.
    owed: [u8; KINDS],
    /// The frames that were received and not yet handled.
    unhandled: [u8; KINDS],
    /// The number of the next frame of each channel.
    next: [u32; CHANNELS],
    rails: [Option<RailCore<F>>; SLOTS],
    /// The slot that prompt frames use.
    best: Option<u8>,
    /// The slots that share bulk, one bit each.
    bulk: u8,
    /// By lane: the slots whose rail may take more, as not too much of it is unacknowledged.
    open: [u8; LANES],
    histories: [History; SLOTS],
    closing: Vec<Closing<F>>,
    /// The notices to send to the peer.
    closed: VecDeque<RailClosed>,
    /// The frames to send again.
    again: [VecDeque<Numbered<F>>; LANES],
    outbox: [[VecDeque<Waiting<F>>; CLASSES]; KINDS],
    queued: usize,
    note_due: u8,
}

/// The number of classes of channels.
const CLASSES: usize = 3;

/// The routing information of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waybill {
    /// The channel in whose order it is delivered.
    pub channel: Channel,
    /// The kind: request, forward or reply.
    pub kind: Kind,
    /// The lane: that of the channel, or bulk for a long message on a normal channel.
    pub lane: Lane,
    /// The bytes that it changes on its arrival.
    pub span: Option<Span>,
}

struct Waiting<F> {
    bill: Waybill,
    frame: F,
}

/// The memory of a slot over several generations of its rail.
#[derive(Clone, Debug, Default)]
struct History {
    /// The highest generation that was up here or closed by the peer.
    burned: u32,
    /// The losses since the rail last stayed up for long.
    losses: u32,
    up_at: Nanos,
    failures: u64,
    resent: u64,
    why: Option<Reason>,
    /// The last generations whose end the peer has reported.
    answered: VecDeque<u32>,
}

/// The frames received before a note, on a rail that retains: the peer keeps them in memory until
/// then.
const NOTE_EVERY: u64 = 32;

/// The same where several rails share bulk: the sender chooses a rail by the frames in flight.
const NOTE_SHARED_EVERY: u64 = 8;

/// The maximum doublings of [`Pace::trust`], the time after which a returned rail is trusted; each
/// loss in a row doubles it.
const MOST_DOUBLED: u32 = 6;

/// A rail that stayed up for so many times [`Pace::trust`] is as good as new.
const FORGIVEN_AFTER: u64 = 60;

/// The generations of a slot whose reported end is remembered. The peer reports an end twice only
/// while the first notice may be lost.
const MOST_ANSWERED: usize = 128;

/// The frames of a lane that may be unacknowledged; more wait. So the peer must acknowledge to get
/// further, even if credits come back over other rails while the network drops the notes.
const MOST_UNACKNOWLEDGED: u64 = 4096;

/// The limit for the link's own frames, which do not wait for acknowledgements, lest both ends wait
/// for each other. A peer that reaches it receives and does not acknowledge.
const MOST_KEPT: u64 = 2 * MOST_UNACKNOWLEDGED;

/// The rails that may be closed here and not yet by the peer.
const MOST_CLOSING: usize = 64;

impl<F> LinkCore<F> {
    /// A link without rails.
    #[must_use]
    pub fn new(limits: Limits, pace: Pace) -> Self {
        assert!(limits.credits.iter().all(|credits| *credits > 0), "every kind needs credits");
        Self {
            limits,
            pace,
            credits: limits.credits,
            owed: [0; KINDS],
            unhandled: [0; KINDS],
            next: [0; CHANNELS],
            rails: Default::default(),
            best: None,
            bulk: 0,
            open: [0; LANES],
            histories: Default::default(),
            closing: Vec::new(),
            closed: VecDeque::new(),
            again: Default::default(),
            outbox: Default::default(),
            queued: 0,
            note_due: 0,
        }
    }

    fn rail(&self, slot: u8) -> Option<&RailCore<F>> {
        self.rails.get(usize::from(slot))?.as_ref()
    }

    /// The intervals of probes and the timeouts.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// The frames of a kind that wait for credits or room.
    #[must_use]
    pub fn waiting(&self, kind: Kind) -> usize {
        self.outbox[kind as usize].iter().map(VecDeque::len).sum()
    }

    /// The frames that wait for credits, room, or a rail.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// The frames that wait, are not known to have arrived, or await the peer's report of a lost
    /// rail. Notes do not count.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        let kept: usize = self.rails.iter().flatten().map(RailCore::unsettled).sum();
        self.queued + self.closed.len() + self.closing.len() + kept
    }

    /// Records a frame that arrived on a rail; `kind` is `None` for one without a channel.
    ///
    /// # Errors
    /// The peer broke the protocol.
    #[inline]
    pub fn receive(
        &mut self,
        slot: u8,
        lane: Lane,
        kind: Option<Kind>,
        credits: [u8; KINDS],
    ) -> Result<(), Violation> {
        for kind in 0..KINDS {
            let credits = u16::from(self.credits[kind]) + u16::from(credits[kind]);
            if credits > u16::from(self.limits.credits[kind]) {
                return Err(Violation::Credits);
            }
            self.credits[kind] = credits as u8;
        }
        if let Some(kind) = kind {
            let unhandled = &mut self.unhandled[kind as usize];
            if u16::from(*unhandled) + u16::from(self.owed[kind as usize])
                >= u16::from(self.limits.credits[kind as usize])
            {
                return Err(Violation::Flood);
            }
            *unhandled += 1;
        }
        let rail = self.rails[usize::from(slot)].as_mut().ok_or(Violation::Slot)?;
        rail.streams[lane.index()].received += 1;
        if rail.rank.retains && rail.streams.iter().any(|stream| stream.in_flight() > MOST_KEPT) {
            return Err(Violation::Acknowledged);
        }
        if kind.is_none() {
            rail.liveness.note();
        } else if rail.rank.retains
            && rail.unreported() >= if self.bulk.count_ones() > 1 { NOTE_SHARED_EVERY } else { NOTE_EVERY }
        {
            self.note_due |= 1 << slot;
        }
        Ok(())
    }

    /// Records that a received frame of `kind` has been handled: its credit goes back with the next
    /// frame.
    #[inline]
    pub fn consume(&mut self, kind: Kind) {
        self.unhandled[kind as usize] -= 1;
        self.owed[kind as usize] += 1;
    }

    /// Records a note with the numbers of frames that the peer has received on this rail.
    ///
    /// # Errors
    /// The peer broke the protocol.
    pub fn noted(&mut self, slot: u8, received: [u64; LANES]) -> Result<(), Violation> {
        let rail = self.rails[usize::from(slot)].as_mut().ok_or(Violation::Slot)?;
        rail.acknowledged(received)?;
        for (open, stream) in self.open.iter_mut().zip(&rail.streams) {
            if stream.in_flight() < MOST_UNACKNOWLEDGED {
                *open |= 1 << slot;
            }
        }
        Ok(())
    }
}
