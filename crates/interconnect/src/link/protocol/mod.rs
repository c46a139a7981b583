//! The pure core of a link: what may be sent now and on which rail, what must be kept, what is sent again.
//!
//! A link is a pair of [`LinkCore`]s, one at each node, over some rails at once. The core knows frames only as values of `F`;
//! whoever drives it (the link's driver, or the simulator) brings them to the rails.
//!
//! **Contract.** A rail that was connected is announced with [`LinkCore::rail_up`]. To send: ask [`LinkCore::route`]; offer the
//! frame to that rail with [`LinkCore::stamp`]'s credits and number and, when the rail took it, call [`LinkCore::sent`];
//! otherwise [`LinkCore::queue`] it. After every batch call [`LinkCore::pump`]. For every frame that arrives call
//! [`LinkCore::receive`], hand it over when [`Order`] says that it is its turn, and call [`LinkCore::consume`] once it has been
//! handled. Call [`LinkCore::tick`] every [`Pace::tick`]. What returns an error ends the rail that it came from.
//!
//! **What holds.** Frames of one (kind, channel) are delivered once each, in the order offered, whatever happens to rails. At
//! most [`Limits::credits`] frames of a kind are sent and not yet handled; a peer that exceeds this is cut off. No call blocks
//! and nothing depends on the size of a rail's ring: two slots are enough. Of two puts of a channel to the same bytes the later
//! one lands later. Bulk leaves some credits of each kind to what is normal, and that some to what is urgent.
//!
//! **Which rail.** The best is the one of the lowest class that is trusted; everything prompt goes there. Rails of the best one's
//! class share bulk: each frame goes to the one with the least under way, so that each carries what it can. A rail that was lost and is
//! back is trusted after a while, longer each time ([`LinkCore::rail_up`]).
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
mod order;
mod rail;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use plexus_base::Nanos;
use plexus_fabric::{LANES, Lane};

pub use liveness::{Pace, Sick, Signs};
pub use order::{Order, Turn};
pub use rail::{Rank, Span};

use self::{
    liveness::Seen,
    rail::{Closing, Kept, Numbered, RailCore, What},
};
use crate::{CHANNELS, Channel, Class, KINDS, Kind, RailState, Reason};

/// Rails that a pair of nodes can have.
pub const SLOTS: usize = 8;

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
    /// Which life of it.
    pub generation: u32,
    /// Frames received on each lane.
    pub received: [u64; LANES],
    /// Whether this end ever had it; where not, this answers the other end's news.
    pub had: bool,
}

/// A peer that does not keep to the protocol; the rail that brought this must be destroyed.
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

/// A rail that is back is trusted after [`Pace::trust`], doubled for every loss in a row, so many times at most.
const MOST_DOUBLED: u32 = 6;

/// A rail that stayed up for so many times [`Pace::trust`] is as good as new.
const FORGIVEN_AFTER: u64 = 60;

/// Generations of a slot of which it is remembered that the peer told their end: it tells one twice only while that is news.
const MOST_ANSWERED: usize = 128;

/// Frames of a lane that may be without acknowledgement: all credits of all kinds, and many notes.
const MOST_UNACKNOWLEDGED: u64 = 4096;

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
            histories: Default::default(),
            closing: Vec::new(),
            closed: VecDeque::new(),
            again: Default::default(),
            outbox: Default::default(),
            queued: 0,
            note_due: 0,
        }
    }

    /// A rail was connected. False where it must be destroyed at once: the peer has closed this generation already. The slot
    /// must be [lost](LinkCore::rail_lost) before another generation takes it.
    ///
    /// # Panics
    /// When the slot is taken or there is no such slot.
    pub fn rail_up(&mut self, slot: u8, generation: u32, rank: Rank, now: Nanos) -> bool {
        let history = &mut self.histories[usize::from(slot)];
        if generation <= history.burned {
            return false;
        }
        assert!(self.rails[usize::from(slot)].is_none(), "a rail in a slot that is taken");
        history.burned = generation;
        history.up_at = now;
        let wait = match history.losses {
            0 => Nanos(0),
            losses => Nanos(self.pace.trust.0 << (losses - 1).min(MOST_DOUBLED)),
        };
        self.rails[usize::from(slot)] = Some(RailCore::new(generation, rank, now, now + wait));
        self.choose(now);
        true
    }

    /// The generation of a slot's rail that is up here.
    #[must_use]
    pub fn up(&self, slot: u8) -> Option<u32> {
        Some(self.rail(slot)?.generation)
    }

    /// The highest generation of a slot that was up here, or closed there.
    #[must_use]
    pub fn burned(&self, slot: u8) -> u32 {
        self.histories[usize::from(slot)].burned
    }

    fn rail(&self, slot: u8) -> Option<&RailCore<F>> {
        self.rails.get(usize::from(slot))?.as_ref()
    }

    /// How often it wants to be called.
    #[must_use]
    pub fn pace(&self) -> Pace {
        self.pace
    }

    /// Whether any rail is up.
    #[must_use]
    #[inline]
    pub fn has_rail(&self) -> bool {
        self.best.is_some()
    }

    /// Which rails carry what, after any of them has changed.
    fn choose(&mut self, now: Nanos) {
        let mut worth = [None; SLOTS];
        for (slot, rail) in self.rails.iter().enumerate() {
            worth[slot] = rail.as_ref().map(|rail| (now < rail.trusted_from, rail.rank.class, slot as u8));
        }
        let Some(best) = worth.iter().flatten().min().copied() else {
            (self.best, self.bulk) = (None, 0);
            return;
        };
        let (untrusted, class, slot) = best;
        let equals =
            worth.iter().flatten().filter(|other| !untrusted && (other.0, other.1) == (untrusted, class));
        self.bulk = equals.fold(1 << slot, |bits, (_, _, slot)| bits | 1 << slot);
        self.best = Some(slot);
    }

    /// The rail for bulk among the slots in `usable`: of the best ones that with the least under way.
    #[inline]
    fn bulk_rail(&self, usable: u8) -> Option<u8> {
        let slots = self.bulk & usable;
        if slots.count_ones() < 2 {
            return (slots != 0).then(|| slots.trailing_zeros() as u8);
        }
        let under_way = |slot: &u8| self.rail(*slot).map_or(0, |r| r.streams[Lane::Bulk.index()].under_way());
        (0..SLOTS as u8).filter(|slot| slots & 1 << slot != 0).min_by_key(under_way)
    }

    /// Credits of a kind that a class leaves to those above it.
    #[inline]
    fn reserve(&self, kind: Kind, class: Class) -> u8 {
        let all = self.limits.credits[kind as usize];
        match class {
            Class::Urgent => 0,
            Class::Normal => all / 8,
            Class::Bulk => all / 8 * 3,
        }
    }

    #[inline]
    fn has_credit(&self, bill: &Waybill) -> bool {
        self.credits[bill.kind as usize] > self.reserve(bill.kind, bill.channel.class())
    }

    /// The rail to which a frame may go at once, before anything that waits; none: it must be queued.
    #[must_use]
    #[inline]
    pub fn route(&self, bill: &Waybill) -> Option<u8> {
        if !self.has_credit(bill) {
            return None;
        }
        if self.queued > 0
            && !(self.outbox[bill.kind as usize][bill.channel.class() as usize].is_empty()
                && self.may_overtake_none(bill))
        {
            return None;
        }
        self.place(self.best?, bill, [u8::MAX; LANES])
    }

    /// Whether nothing that is sent again must go before this frame.
    #[inline]
    fn may_overtake_none(&self, bill: &Waybill) -> bool {
        match bill.span {
            None => self.again[bill.lane.index()].is_empty(),
            Some(_) => self.again.iter().all(VecDeque::is_empty),
        }
    }

    /// Where a frame goes of the rails with room; none: nowhere now. A put goes where those are that must land before it, and
    /// waits while that is in doubt.
    #[inline]
    fn place(&self, best: u8, bill: &Waybill, room: [u8; LANES]) -> Option<u8> {
        let usable = room[bill.lane.index()];
        let Some(span) = &bill.span else { return self.free_place(best, bill.lane, usable) };
        // Where nothing is kept, bytes land when they are sent; on one lane of one rail they land in order.
        let lands_at_once = self.rail(best).is_some_and(|rail| !rail.rank.retains);
        let one_stream = bill.channel.class() != Class::Normal
            && self.closing.is_empty()
            && self.rails.iter().flatten().count() == 1;
        if lands_at_once || one_stream {
            return self.free_place(best, bill.lane, usable);
        }
        if self.closing.iter().any(|closing| closing.holds_up(bill.channel, span)) {
            return None;
        }
        let mut bound = None;
        for (slot, rail) in self.rails.iter().enumerate() {
            let Some(rail) = rail else { continue };
            for lane in Lane::ALL {
                if rail.streams[lane.index()].holds_up(bill.channel, span) {
                    if lane != bill.lane || bound.is_some() {
                        return None;
                    }
                    bound = Some(slot as u8);
                }
            }
        }
        match bound {
            Some(slot) => (usable & 1 << slot != 0).then_some(slot),
            None => self.free_place(best, bill.lane, usable),
        }
    }

    #[inline]
    fn free_place(&self, best: u8, lane: Lane, usable: u8) -> Option<u8> {
        match lane {
            Lane::Prompt => (usable & 1 << best != 0).then_some(best),
            Lane::Bulk => self.bulk_rail(usable),
        }
    }

    /// The stamp for the next frame of a channel.
    #[must_use]
    #[inline]
    pub fn stamp(&self, channel: Channel) -> Stamp {
        Stamp { credits: self.owed, sequence: self.next[channel.index()] }
    }

    /// The rail took a frame that carried `stamp`. `keep` makes the copy that is kept where the rail can be lost.
    #[inline]
    pub fn sent(&mut self, slot: u8, bill: &Waybill, stamp: Stamp, keep: impl FnOnce() -> F) {
        let Waybill { channel, kind, lane, span } = *bill;
        debug_assert_eq!(stamp, self.stamp(channel), "sent with another stamp than the next");
        self.credits[kind as usize] -= 1;
        self.next[channel.index()] = order::after(stamp.sequence);
        self.went(slot, lane, stamp.credits, || {
            What::Frame(Numbered { channel, sequence: stamp.sequence, span, frame: keep() })
        });
    }

    #[inline]
    fn went(&mut self, slot: u8, lane: Lane, credits: [u8; KINDS], keep: impl FnOnce() -> What<F>) {
        for (owed, returned) in self.owed.iter_mut().zip(credits) {
            *owed -= returned;
        }
        if let Some(rail) = &mut self.rails[usize::from(slot)] {
            rail.sent(lane, credits, keep);
        }
    }

    /// Keeps a frame until credits and room are there.
    pub fn queue(&mut self, bill: Waybill, frame: F) {
        let class = bill.channel.class() as usize;
        self.outbox[bill.kind as usize][class].push_back(Waiting { bill, frame });
        self.queued += 1;
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

    /// Whether [`LinkCore::pump`] would offer something to a rail.
    #[must_use]
    #[inline]
    pub fn wants_pump(&self) -> bool {
        self.best.is_some()
            && (self.queued > 0 || self.note_due != 0 || self.credits_due() || !self.closed.is_empty())
    }

    #[inline]
    fn credits_due(&self) -> bool {
        (0..KINDS).any(|kind| u16::from(self.owed[kind]) * 2 >= u16::from(self.limits.credits[kind]))
    }

    /// Brings to the rails what waits: first news of dead rails, then what is sent again, then notes that are due, then what was
    /// queued. `send` answers [`NoRoom`] for a rail and lane that takes nothing more now.
    pub fn pump(&mut self, send: &mut Send<'_, F>) {
        if !self.wants_pump() {
            return;
        }
        let Some(best) = self.best else { return };
        let mut room = [u8::MAX; LANES];
        self.pump_closed(best, &mut room, send);
        for lane in Lane::ALL {
            self.pump_again(best, lane, &mut room, send);
        }
        self.pump_notes(best, &mut room, send);
        // Replies first: they end things and free what others wait for.
        for kind in Kind::ALL.into_iter().rev() {
            for class in 0..CLASSES {
                self.pump_outbox(best, kind, class, &mut room, send);
            }
        }
    }

    fn pump_closed(&mut self, best: u8, room: &mut [u8; LANES], send: &mut Send<'_, F>) {
        while let Some(closed) = self.closed.front().copied() {
            let stamp = Stamp { credits: self.owed, sequence: 0 };
            if send(best, Lane::Prompt, stamp, Outgoing::Closed(closed)).is_err() {
                room[Lane::Prompt.index()] &= !(1 << best);
                return;
            }
            self.closed.pop_front();
            self.went(best, Lane::Prompt, stamp.credits, || What::Closed(closed));
        }
    }

    fn pump_again(&mut self, best: u8, lane: Lane, room: &mut [u8; LANES], send: &mut Send<'_, F>) {
        while let Some(numbered) = self.again[lane.index()].pop_front() {
            let Numbered { channel, sequence, span, .. } = numbered;
            let bill = Waybill { channel, kind: Kind::Request, lane, span };
            let slot = self.place(best, &bill, *room);
            let stamp = Stamp { credits: self.owed, sequence };
            let sent = slot.map(|slot| send(slot, lane, stamp, Outgoing::Frame(channel, &numbered.frame)));
            let (Some(slot), Some(Ok(()))) = (slot, sent) else {
                self.again[lane.index()].push_front(numbered);
                let Some(slot) = slot else { return };
                room[lane.index()] &= !(1 << slot);
                continue;
            };
            self.queued -= 1;
            self.histories[usize::from(slot)].resent += 1;
            self.went(slot, lane, stamp.credits, || What::Frame(numbered));
        }
    }

    fn pump_notes(&mut self, best: u8, room: &mut [u8; LANES], send: &mut Send<'_, F>) {
        let mut due = self.note_due;
        if self.credits_due() {
            due |= 1 << best;
        }
        for slot in (0..SLOTS as u8).filter(|slot| due & 1 << slot != 0) {
            let Some(rail) = &mut self.rails[usize::from(slot)] else { continue };
            let (stamp, received) = (Stamp { credits: self.owed, sequence: 0 }, rail.received());
            if send(slot, Lane::Prompt, stamp, Outgoing::Note(received)).is_err() {
                room[Lane::Prompt.index()] &= !(1 << slot);
                continue;
            }
            self.note_due &= !(1 << slot);
            rail.told();
            rail.liveness.note();
            self.went(slot, Lane::Prompt, stamp.credits, || What::Note);
        }
        // A rail that has gone has nothing to be told.
        self.note_due &=
            (0..SLOTS).filter(|slot| self.rails[*slot].is_some()).fold(0, |bits, slot| bits | 1 << slot);
    }

    fn pump_outbox(
        &mut self,
        best: u8,
        kind: Kind,
        class: usize,
        room: &mut [u8; LANES],
        send: &mut Send<'_, F>,
    ) {
        while let Some(waiting) = self.outbox[kind as usize][class].pop_front() {
            let bill = waiting.bill;
            let may = self.has_credit(&bill) && self.may_overtake_none(&bill);
            let slot = if may { self.place(best, &bill, *room) } else { None };
            let stamp = self.stamp(bill.channel);
            let frame = Outgoing::Frame(bill.channel, &waiting.frame);
            let sent = slot.map(|slot| send(slot, bill.lane, stamp, frame));
            let (Some(slot), Some(Ok(()))) = (slot, sent) else {
                self.outbox[kind as usize][class].push_front(waiting);
                let Some(slot) = slot else { return };
                room[bill.lane.index()] &= !(1 << slot);
                continue;
            };
            self.queued -= 1;
            self.sent(slot, &bill, stamp, || waiting.frame);
        }
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
        // Credits come back and acknowledgements do not: what is kept would grow without end.
        if rail.rank.retains && rail.streams.iter().any(|stream| stream.under_way() > MOST_UNACKNOWLEDGED) {
            return Err(Violation::Acknowledged);
        }
        if kind.is_none() {
            rail.liveness.note();
        } else if rail.rank.retains && rail.untold() >= NOTE_EVERY {
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
        self.rails[usize::from(slot)].as_mut().ok_or(Violation::Slot)?.acknowledged(received)
    }

    /// A rail is dead and this end of it destroyed: nothing that was under way on it can arrive any more.
    ///
    /// # Panics
    /// When the rail retains nothing: then only the peer's death ends it, and with it the link.
    pub fn rail_lost(&mut self, slot: u8, why: Reason, now: Nanos) {
        let Some(rail) = self.rails[usize::from(slot)].take() else { return };
        assert!(rail.rank.retains, "a rail that keeps nothing cannot be lost alone");
        let history = &mut self.histories[usize::from(slot)];
        if now.since(history.up_at).0 >= FORGIVEN_AFTER * self.pace.trust.0 {
            history.losses = 0;
        }
        history.losses += 1;
        history.failures += 1;
        history.why = Some(why);
        let (generation, received) = (rail.generation, rail.received());
        self.closed.push_back(Closed { slot, generation, received, had: true });
        // Two rails that die together, each with the news of the other's death on it, must not wait for each other: news is
        // said again at once, at the risk of saying it twice.
        for news in rail.news() {
            if !self.closed.contains(&news) {
                self.closed.push_back(news);
            }
        }
        self.closing.push(Closing::new(slot, rail));
        self.choose(now);
    }

    /// The peer has destroyed its end of a rail; news that came before is no news. This end must be destroyed (and [lost](LinkCore::rail_lost)) already.
    ///
    /// # Errors
    /// The peer broke the protocol.
    pub fn peer_closed(&mut self, closed: Closed) -> Result<(), Violation> {
        let history = self.histories.get_mut(usize::from(closed.slot)).ok_or(Violation::Slot)?;
        let known =
            |closing: &Closing<F>| (closing.slot, closing.generation) == (closed.slot, closed.generation);
        let index = self.closing.iter().position(known);
        if history.answered.contains(&closed.generation) || (index.is_none() && !closed.had) {
            return Ok(());
        }
        history.answered.push_back(closed.generation);
        if history.answered.len() > MOST_ANSWERED {
            history.answered.pop_front();
        }
        let Some(index) = index else {
            // It was up there and never here: nothing was sent on it, and nothing will be.
            history.burned = history.burned.max(closed.generation);
            self.closed.push_back(Closed { received: [0; LANES], had: false, ..closed });
            return Ok(());
        };
        let missing = self.closing.swap_remove(index).missing(closed.received)?;
        for kind in 0..KINDS {
            // A peer that used these credits and says that it never got them would have us return them again.
            let lost = missing.iter().flatten().map(|kept| u32::from(kept.credits[kind])).sum::<u32>();
            let owed = lost + u32::from(self.owed[kind]);
            if owed + u32::from(self.unhandled[kind]) > u32::from(self.limits.credits[kind]) {
                return Err(Violation::Credits);
            }
            self.owed[kind] = owed as u8;
        }
        for (again, missing) in self.again.iter_mut().zip(missing) {
            for Kept { what, .. } in missing {
                match what {
                    What::Frame(numbered) => {
                        // What another rail left behind may be younger.
                        let before = |other: &Numbered<F>| {
                            other.channel == numbered.channel
                                && order::is_before(numbered.sequence, other.sequence)
                        };
                        let at = again.iter().position(before).unwrap_or(again.len());
                        again.insert(at, numbered);
                        self.queued += 1;
                    }
                    // Said again when the rail was lost.
                    What::Closed(_) | What::Note => {}
                }
            }
        }
        Ok(())
    }

    /// Whether too many rails wait to be closed there: a peer that connects and never says what it received.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.closing.len() > MOST_CLOSING || self.closed.len() > 2 * MOST_CLOSING
    }

    /// A regular look at the rails: probes what was quiet, and names a rail that must be given up, if one must. Whoever calls
    /// destroys it, says so by [`LinkCore::rail_lost`], and asks again. `signs` tells what the system knows of a slot's path.
    pub fn tick(&mut self, now: Nanos, signs: &mut dyn FnMut(u8) -> Signs) -> Option<(u8, Sick)> {
        let pace = self.pace;
        let mut rtts = [Nanos(0); SLOTS];
        for slot in 0..SLOTS as u8 {
            let Some(rail) = &mut self.rails[usize::from(slot)] else { continue };
            if !rail.rank.retains {
                continue;
            }
            let signs = signs(slot);
            let bulk = &rail.streams[Lane::Bulk.index()];
            let seen = Seen {
                sent: rail.streams.iter().map(|stream| stream.sent).sum(),
                received: rail.streams.iter().map(|stream| stream.received).sum(),
                bulk_acknowledged: (bulk.acknowledged, signs.bulk_acknowledged),
                bulk_under_way: bulk.under_way(),
            };
            rtts[usize::from(slot)] = signs.rtt;
            if rail.liveness.look(pace, now, seen, signs) {
                self.note_due |= 1 << slot;
            }
        }
        self.choose(now);
        let heard = |slot: usize| {
            let rail = self.rails[slot].as_ref()?;
            Some(if rail.rank.retains { rail.liveness.heard() } else { now })
        };
        (0..SLOTS).find_map(|slot| {
            let rail = self.rails[slot].as_ref().filter(|rail| rail.rank.retains)?;
            let others = (0..SLOTS).filter(|other| *other != slot).filter_map(heard).max();
            Some((slot as u8, rail.liveness.sick(pace, now, rtts[slot], others)?))
        })
    }

    /// Whether any rail wants [`LinkCore::tick`].
    #[must_use]
    pub fn wants_ticks(&self) -> bool {
        self.rails.iter().flatten().any(|rail| rail.rank.retains)
    }

    /// What a slot's rail does, and why.
    #[must_use]
    pub fn state(&self, slot: u8, now: Nanos) -> (RailState, Reason) {
        let why = self.histories[usize::from(slot)].why.unwrap_or(Reason::NotConnected);
        let Some(rail) = self.rail(slot) else { return (RailState::Down, why) };
        if self.best == Some(slot) {
            (RailState::Active, Reason::Best)
        } else if self.bulk & 1 << slot != 0 {
            (RailState::Active, Reason::Striped)
        } else if now < rail.trusted_from {
            (RailState::Standby, Reason::Returning)
        } else {
            (RailState::Standby, Reason::Slower)
        }
    }

    /// How often a slot's rail was lost, and how many frames it carried again because another was.
    #[must_use]
    pub fn failures(&self, slot: u8) -> (u64, u64) {
        let history = &self.histories[usize::from(slot)];
        (history.failures, history.resent)
    }

    /// Whether a slot's rail carries messages now.
    #[must_use]
    #[inline]
    pub fn is_active(&self, slot: u8) -> bool {
        self.bulk & 1 << slot != 0
    }
}
