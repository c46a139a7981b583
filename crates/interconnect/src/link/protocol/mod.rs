//! The pure core of a link: what may be sent now and on which rail, what must be kept, what is sent again.
//!
//! A link is a pair of [`LinkCore`]s, one at each node, over some rails at once. The core knows frames only as values of `F`;
//! whoever drives it (the link's driver, or the simulator) brings them to the rails.
//!
//! **Contract.** A rail that was connected is announced with [`LinkCore::rail_up`]. To send: ask [`LinkCore::route`]; offer the
//! frame to that rail with [`LinkCore::stamp`]'s credits and number and, when the rail took it, call [`LinkCore::sent`];
//! otherwise [`LinkCore::queue`] it. After every batch call [`LinkCore::pump`]. For every frame that arrives call
//! [`LinkCore::receive`], hand it over when [`Order`] says that it is its turn, and call [`LinkCore::consume`] once it has been
//! handled. Call [`LinkCore::tick`] after every [`LinkCore::next_tick`]. What returns an error ends the link.
//!
//! **What holds.** Frames of one (kind, channel) are delivered once each, in the order offered, whatever happens to rails. At
//! most [`Limits::credits`] frames of a kind are sent and not yet handled; a peer that exceeds this is cut off. No call blocks
//! and nothing depends on the size of a rail's ring: two slots are enough. Of two puts of a channel to the same bytes the later
//! one lands later. Bulk leaves some credits of each kind to what is normal, and that some to what is urgent.
//!
//! **Which rail.** The best is the one of the lowest class that is trusted; everything prompt goes there. Rails of the best one's
//! class share bulk: each frame goes to the one where it will be through first, by what is under way there and how fast that goes
//! (`speed.rs`), so that each carries what it can and a slow one does not hold up the order. A rail that was lost and is back is
//! trusted after a while, longer each time ([`LinkCore::rail_up`]).
//!
//! **A rail that dies.** What was sent on a rail that can be lost while the peer lives stays here until the peer's note
//! acknowledges it. An end that finds a rail dead first destroys its end of it, so that nothing under way on it can arrive any
//! more ([`LinkCore::rail_lost`]), and then says on another rail how much it had received on it ([`Closed`]). The other end
//! destroys its end too, if it has not yet, and answers in kind ([`LinkCore::peer_closed`]). Each then sends again, on the rails that
//! are left, exactly what the other did not get, each frame with its old number; what the rest of the channel sent meanwhile waits
//! at the receiver ([`Order`]). So a put that was under way never lands after it was sent again. Credits that were under way return
//! to whoever sent them. A rail is known by its slot and generation; a generation whose death one end has seen is burned: the other
//! end never takes it up.

mod liveness;
mod lives;
mod order;
mod rail;
mod sending;
mod speed;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use plexus_base::Nanos;
use plexus_fabric::{LANES, Lane};

pub use liveness::{Pace, Sick, Signs};
pub use order::{Order, Turn};
pub use rail::{Rank, Span};

use self::rail::{Closing, Numbered, RailCore};
use crate::{CHANNELS, Channel, KINDS, Kind, Reason};

/// Rails that a pair of nodes can have.
pub const SLOTS: usize = 8;

const _: () = assert!(SLOTS <= u8::BITS as usize, "a set of slots is a byte");

/// Credits of a link, the same at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// How many frames of each kind may be under way and unhandled, 1 to 255.
    pub credits: [u8; KINDS],
}

impl Default for Limits {
    /// A request is at most passed on once and answered once, so forwards and replies get as many.
    fn default() -> Self {
        Self { credits: [128; KINDS] }
    }
}

/// What a frame carries for the link itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Stamp {
    /// Handled frames of each kind that it reports to the peer.
    pub credits: [u8; KINDS],
    /// Its number within its channel; 0 for what belongs to no channel.
    pub sequence: u32,
}

/// An end of a rail is destroyed, and how much had arrived on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Closed {
    /// Which rail.
    pub slot: u8,
    /// Which incarnation of it.
    pub generation: u32,
    /// Frames received on each lane.
    pub received: [u64; LANES],
    /// Whether this end ever had it; where not, this answers the other end's news.
    pub had: bool,
}

/// A peer that does not keep to the protocol; the link with it must end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// More frames of a kind than it had credits for.
    #[error("the peer sent more than it has credits for")]
    Flood,
    /// Returned credits that were never used.
    #[error("the peer returned credits that it never got")]
    Credits,
    /// Acknowledged frames that were never sent, or took back an acknowledgement.
    #[error("the peer acknowledged what was not sent")]
    Acknowledged,
    /// A frame that was here before, or whose number cannot be.
    #[error("the peer sent a frame twice or out of all order")]
    Sequence,
    /// Spoke of a rail that cannot be.
    #[error("the peer spoke of a rail that cannot be")]
    Slot,
}

/// The rail has no room; what a driver answers to [`LinkCore::pump`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// What [`LinkCore::pump`] asks to be sent.
#[derive(Debug)]
pub enum Outgoing<'a, F> {
    /// A frame of this channel that was queued or must be sent again.
    Frame(Channel, &'a F),
    /// How many frames were received on each lane of the rail that this goes out on.
    Note([u64; LANES]),
    /// An end of another rail is destroyed.
    Closed(Closed),
}

/// How `pump` sends: the rail's slot, the lane, the stamp, and what.
pub type Send<'a, F> = dyn FnMut(u8, Lane, Stamp, Outgoing<'_, F>) -> Result<(), NoRoom> + 'a;

/// One end of a link. See the [module](self) for the contract.
pub struct LinkCore<F> {
    limits: Limits,
    pace: Pace,
    credits: [u8; KINDS],
    /// Handled and not yet returned.
    owed: [u8; KINDS],
    /// Received and not yet handled.
    unhandled: [u8; KINDS],
    /// Numbers of the next frame of each channel.
    next: [u32; CHANNELS],
    rails: [Option<RailCore<F>>; SLOTS],
    /// The slot that prompt frames use.
    best: Option<u8>,
    /// The slots that share bulk, one bit each.
    bulk: u8,
    /// By lane: the slots whose rail may take more, since not too much of it is without acknowledgement.
    open: [u8; LANES],
    histories: [History; SLOTS],
    closing: Vec<Closing<F>>,
    /// To be said to the peer.
    closed: VecDeque<Closed>,
    /// To be sent again.
    again: [VecDeque<Numbered<F>>; LANES],
    outbox: [[VecDeque<Waiting<F>>; CLASSES]; KINDS],
    queued: usize,
    note_due: u8,
}

/// Classes of channels.
const CLASSES: usize = 3;

/// A frame on its way to a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waybill {
    /// The channel that it belongs to, in the order of which it is delivered.
    pub channel: Channel,
    /// What it is to its conversation.
    pub kind: Kind,
    /// The lane that it takes: the channel's, or bulk for what is long on a normal one.
    pub lane: Lane,
    /// What it changes on its arrival.
    pub span: Option<Span>,
}

struct Waiting<F> {
    bill: Waybill,
    frame: F,
}

/// What is remembered of a slot over the lives of its rail.
#[derive(Clone, Debug, Default)]
struct History {
    /// The highest generation that was up here or closed there.
    burned: u32,
    /// Losses since it last stayed up for long.
    losses: u32,
    up_at: Nanos,
    failures: u64,
    resent: u64,
    why: Option<Reason>,
    /// Generations whose end the peer has told, the last ones.
    answered: VecDeque<u32>,
}

/// Frames received without telling the peer, on a rail that retains: what the peer keeps in memory.
const NOTE_EVERY: u64 = 32;

/// The same where several rails share bulk: who sends it chooses by what is under way.
const NOTE_SHARED_EVERY: u64 = 8;

/// A rail that is back is trusted after [`Pace::trust`], doubled for every loss in a row, so many times at most.
const MOST_DOUBLED: u32 = 6;

/// A rail that stayed up for so many times [`Pace::trust`] is as good as new.
const FORGIVEN_AFTER: u64 = 60;

/// Generations of a slot of which it is remembered that the peer told their end: it tells one twice only while that is news.
const MOST_ANSWERED: usize = 128;

/// Frames of a lane that may be without acknowledgement; more wait. The peer gets no further without saying what it got: credits may
/// come back over other rails while the network swallows that.
const MOST_UNACKNOWLEDGED: u64 = 4096;

/// What the link itself has to say waits for nothing, lest both ends wait to hear of the other; where even that comes to so much,
/// the peer hears it and does not acknowledge it.
const MOST_KEPT: u64 = 2 * MOST_UNACKNOWLEDGED;

/// Rails that may be closed here and not yet there.
const MOST_CLOSING: usize = 64;

impl<F> LinkCore<F> {
    /// A link without rails.
    #[must_use]
    pub fn new(limits: Limits, pace: Pace) -> Self {
        assert!(limits.credits.iter().all(|credits| *credits > 0), "a kind without credits never moves");
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

    /// How often it probes, and how long it waits.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Frames of a kind that wait for credits or room.
    #[must_use]
    pub fn waiting(&self, kind: Kind) -> usize {
        self.outbox[kind as usize].iter().map(VecDeque::len).sum()
    }

    /// Frames that wait for credits, room, or a rail.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// What is still to be brought about: frames that wait, that are not known to have arrived, or whose fate on a lost rail the
    /// peer has yet to tell. Notes do not count.
    #[must_use]
    pub fn unsettled(&self) -> usize {
        let kept: usize = self.rails.iter().flatten().map(RailCore::unsettled).sum();
        self.queued + self.closed.len() + self.closing.len() + kept
    }

    /// A frame arrived on a rail; `kind` is `None` for what belongs to no channel.
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
        if rail.rank.retains && rail.streams.iter().any(|stream| stream.under_way() > MOST_KEPT) {
            return Err(Violation::Acknowledged);
        }
        if kind.is_none() {
            rail.liveness.note();
        } else if rail.rank.retains
            && rail.untold() >= if self.bulk.count_ones() > 1 { NOTE_SHARED_EVERY } else { NOTE_EVERY }
        {
            self.note_due |= 1 << slot;
        }
        Ok(())
    }

    /// A received frame of `kind` has been handled: its credit goes back with the next frame.
    #[inline]
    pub fn consume(&mut self, kind: Kind) {
        self.unhandled[kind as usize] -= 1;
        self.owed[kind as usize] += 1;
    }

    /// A note arrived that says how much the peer has received on this rail.
    ///
    /// # Errors
    /// The peer broke the protocol.
    pub fn noted(&mut self, slot: u8, received: [u64; LANES]) -> Result<(), Violation> {
        let rail = self.rails[usize::from(slot)].as_mut().ok_or(Violation::Slot)?;
        rail.acknowledged(received)?;
        for (open, stream) in self.open.iter_mut().zip(&rail.streams) {
            if stream.under_way() < MOST_UNACKNOWLEDGED {
                *open |= 1 << slot;
            }
        }
        Ok(())
    }
}
