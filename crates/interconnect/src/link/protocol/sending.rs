//! The sending side: rails, credits, classes, the order of puts, and the queues.

use std::collections::VecDeque;

use plexus_fabric::{LANES, Lane};

use super::{
    CLASSES, LinkCore, MOST_UNACKNOWLEDGED, Outgoing, SLOTS, Send, Stamp, Waiting, Waybill, order,
    rail::{Numbered, SentContent},
};
use crate::{Channel, Class, KINDS, Kind};

/// The frames of bulk that go to a new rail before the peer has acknowledged any; each acknowledged
/// one allows one more. A returned rail may be far slower than the others, and its frames hold up
/// the order of their channel.
const UNTRIED: u64 = 4;

impl<F> LinkCore<F> {
    /// The credits of a kind that a class leaves to those above it.
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

    /// The rail on which a frame may go at once, before all waiting frames; `None`: it must be
    /// queued.
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

    /// Returns true if no frame to be sent again must go before this one.
    #[inline]
    fn may_overtake_none(&self, bill: &Waybill) -> bool {
        match bill.span {
            None => self.again[bill.lane.index()].is_empty(),
            Some(_) => self.again.iter().all(VecDeque::is_empty),
        }
    }

    /// The rail with room on which a frame goes; `None`: none now. A put follows the puts that must
    /// land before it, and waits while their rail is in doubt.
    #[inline]
    fn place(&self, best: u8, bill: &Waybill, room: [u8; LANES]) -> Option<u8> {
        let usable = room[bill.lane.index()] & self.open[bill.lane.index()];
        let Some(span) = &bill.span else { return self.free_place(best, bill.lane, usable) };
        // Where nothing is kept, bytes land when they are sent; on one lane of one rail they land
        // in order.
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

    /// The rail for bulk: of the best rails the one on which a frame arrives first; rails without
    /// an acknowledgement come last. `None` if that rail is not `usable`. A rail of unknown speed
    /// counts as the fastest, and is not waited for. All frames count as equally long.
    #[inline]
    fn bulk_rail(&self, usable: u8) -> Option<u8> {
        if self.bulk.count_ones() < 2 {
            let slots = self.bulk & usable;
            return (slots != 0).then(|| slots.trailing_zeros() as u8);
        }
        let load = |slot: u8| {
            let rail = self.rail(slot).filter(|_| self.bulk & 1 << slot != 0)?;
            let is_usable = usable & 1 << slot != 0;
            if !is_usable && rail.speed.rate().is_none() {
                return None;
            }
            let bulk = &rail.streams[Lane::Bulk.index()];
            let through = (bulk.in_flight() + 1).saturating_mul(rail.slowness);
            Some((bulk.in_flight() >= UNTRIED + bulk.acknowledged, through, slot, is_usable))
        };
        let (_, _, slot, is_usable) = (0..SLOTS as u8).filter_map(load).min()?;
        is_usable.then_some(slot)
    }

    /// The stamp for the next frame of a channel.
    #[must_use]
    #[inline]
    pub fn stamp(&self, channel: Channel) -> Stamp {
        Stamp { credits: self.owed, sequence: self.next[channel.index()] }
    }

    /// Records that the rail took a frame with `stamp`. `keep` makes the copy that is kept if the
    /// rail can be lost.
    #[inline]
    pub fn sent(&mut self, slot: u8, bill: &Waybill, stamp: Stamp, keep: impl FnOnce() -> F) {
        let Waybill { channel, kind, lane, span } = *bill;
        debug_assert_eq!(stamp, self.stamp(channel), "sent with another stamp than the next");
        self.credits[kind as usize] -= 1;
        self.next[channel.index()] = order::after(stamp.sequence);
        self.went(slot, lane, stamp.credits, || {
            SentContent::Frame(Numbered { channel, sequence: stamp.sequence, span, frame: keep() })
        });
    }

    #[inline]
    fn went(&mut self, slot: u8, lane: Lane, credits: [u8; KINDS], keep: impl FnOnce() -> SentContent<F>) {
        for (owed, returned) in self.owed.iter_mut().zip(credits) {
            *owed -= returned;
        }
        if let Some(rail) = &mut self.rails[usize::from(slot)] {
            rail.sent(lane, credits, keep);
            if rail.rank.retains && rail.streams[lane.index()].in_flight() >= MOST_UNACKNOWLEDGED {
                self.open[lane.index()] &= !(1 << slot);
            }
        }
    }

    /// Keeps a frame until there are credits and room.
    pub fn queue(&mut self, bill: Waybill, frame: F) {
        let class = bill.channel.class() as usize;
        self.outbox[bill.kind as usize][class].push_back(Waiting { bill, frame });
        self.queued += 1;
    }

    /// Returns true if [`LinkCore::pump`] would offer something to a rail.
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

    /// Offers the waiting frames to the rails: first notices of dead rails, then frames to be sent
    /// again, then notes that are due, then queued frames. `send` answers [`NoRoom`](super::NoRoom)
    /// for a rail and lane that takes nothing more now.
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
        // Replies come first: they end conversations and free resources that others wait for.
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
            self.went(best, Lane::Prompt, stamp.credits, || SentContent::Closed(closed));
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
            self.went(slot, lane, stamp.credits, || SentContent::Frame(numbered));
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
            rail.reported();
            rail.liveness.note();
            self.went(slot, Lane::Prompt, stamp.credits, || SentContent::Note);
        }
        // A rail that has gone needs no notes.
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
}
