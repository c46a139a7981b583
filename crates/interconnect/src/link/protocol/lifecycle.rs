//! The lifecycle of rails: which are up, which carry which frames, how the end of one is settled
//! with the peer, and which must end.

use plexus_base::Nanos;
use plexus_fabric::{Flow, LANES, Lane};

use super::{
    FORGIVEN_AFTER, LinkCore, MOST_ANSWERED, MOST_CLOSING, MOST_DOUBLED, RailClosed, RailFailure, SLOTS,
    Signs, Violation,
    liveness::RailCounters,
    order,
    rail::{AS_FAST, Closing, Kept, Numbered, RailCore, Rank, SentContent},
};
use crate::{KINDS, RailState, Reason};

impl<F> LinkCore<F> {
    /// Adds a connected rail. Returns false if it must be destroyed at once, since the peer has
    /// closed this generation already. The slot must be [lost](LinkCore::rail_lost) before another
    /// generation takes it.
    ///
    /// # Panics
    /// The slot is taken or does not exist.
    pub fn rail_up(&mut self, slot: u8, generation: u32, rank: Rank, now: Nanos) -> bool {
        let history = &mut self.histories[usize::from(slot)];
        if generation <= history.burned {
            return false;
        }
        assert!(self.rails[usize::from(slot)].is_none(), "the slot of the rail is taken");
        history.burned = generation;
        history.up_at = now;
        let wait = match history.losses {
            0 => Nanos(0),
            losses => Nanos(self.pace.trust.0 << (losses - 1).min(MOST_DOUBLED)),
        };
        self.rails[usize::from(slot)] = Some(RailCore::new(generation, rank, now, now + wait));
        self.open.iter_mut().for_each(|open| *open |= 1 << slot);
        self.choose(now);
        true
    }

    /// The generation of a slot's rail that is up here.
    #[must_use]
    pub fn up(&self, slot: u8) -> Option<u32> {
        Some(self.rail(slot)?.generation)
    }

    /// Chooses which rails carry which frames, after any rail has changed.
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

    /// Records that a rail is dead and this end of it destroyed, so that nothing in flight on it
    /// can arrive any more.
    ///
    /// # Panics
    /// The rail retains nothing: only the peer's death ends such a rail, and with it the link.
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
        self.closed.push_back(RailClosed { slot, generation, received, had: true });
        // Two rails that die together may each carry the notice of the other's death, and must not
        // wait for each other. So each notice is sent again at once, at the risk of sending it
        // twice.
        for notice in rail.notices() {
            if !self.closed.contains(&notice) {
                self.closed.push_back(notice);
            }
        }
        self.closing.push(Closing::new(slot, rail));
        self.choose(now);
    }

    /// Records that the peer has destroyed its end of a rail; a repeated notice changes nothing.
    /// This end must be destroyed (and [lost](LinkCore::rail_lost)) already.
    ///
    /// # Errors
    /// The peer broke the protocol.
    pub fn peer_closed(&mut self, closed: RailClosed) -> Result<(), Violation> {
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
            // The rail was up there and never here: nothing was sent on it, and nothing will be.
            history.burned = history.burned.max(closed.generation);
            self.closed.push_back(RailClosed { received: [0; LANES], had: false, ..closed });
            return Ok(());
        };
        let missing = self.closing.swap_remove(index).missing(closed.received)?;
        for kind in 0..KINDS {
            // A peer that used these credits and reports that it never got them would get them
            // returned again.
            let lost = missing.iter().flatten().map(|kept| u32::from(kept.credits[kind])).sum::<u32>();
            let owed = lost + u32::from(self.owed[kind]);
            if owed + u32::from(self.unhandled[kind]) > u32::from(self.limits.credits[kind]) {
                return Err(Violation::Credits);
            }
            self.owed[kind] = owed as u8;
        }
        for (again, missing) in self.again.iter_mut().zip(missing) {
            for Kept { content, .. } in missing {
                match content {
                    SentContent::Frame(numbered) => {
                        // The frames that another rail left behind may be younger.
                        let before = |other: &Numbered<F>| {
                            other.channel == numbered.channel
                                && order::is_before(numbered.sequence, other.sequence)
                        };
                        let at = again.iter().position(before).unwrap_or(again.len());
                        again.insert(at, numbered);
                        self.queued += 1;
                    }
                    // These were sent again when the rail was lost.
                    SentContent::Closed(_) | SentContent::Note => {}
                }
            }
        }
        Ok(())
    }

    /// Returns true if too many rails wait to be closed by the peer: it connects and never reports
    /// what it received.
    #[must_use]
    pub fn is_overrun(&self) -> bool {
        self.closing.len() > MOST_CLOSING || self.closed.len() > 2 * MOST_CLOSING
    }

    /// Checks the rails: probes quiet ones, and returns a rail that must be given up, if there is
    /// one. The caller destroys it, reports it by [`LinkCore::rail_lost`], and calls again. `signs`
    /// returns the system's view of a slot's path.
    pub fn tick(&mut self, now: Nanos, signs: &mut dyn FnMut(u8) -> Signs) -> Option<(u8, RailFailure)> {
        let pace = self.pace;
        let bulk_due = self.limits.credits.iter().map(|credits| u64::from(*credits)).sum();
        let mut flows = [Flow::default(); SLOTS];
        for slot in 0..SLOTS as u8 {
            let Some(rail) = &mut self.rails[usize::from(slot)] else { continue };
            if !rail.rank.retains {
                continue;
            }
            let signs = signs(slot);
            let bulk = &rail.streams[Lane::Bulk.index()];
            let seen = RailCounters {
                sent: rail.streams.iter().map(|stream| stream.sent).sum(),
                received: rail.streams.iter().map(|stream| stream.received).sum(),
                bulk_acknowledged: (bulk.acknowledged, signs.bulk.acknowledged),
                bulk_under_way: bulk.in_flight(),
                bulk_received: bulk.received,
                bulk_due,
            };
            if rail.liveness.look(pace, now, seen, signs) {
                self.note_due |= 1 << slot;
            }
            flows[usize::from(slot)] = signs.bulk;
        }
        self.choose(now);
        self.compare(now, &flows);
        // A suspected rail is compared with the others: they are probed now, lest their answer come
        // one check later.
        let suspected = |rail: &RailCore<F>| rail.liveness.suspected(now);
        if let Some(asked) = self.rails.iter().flatten().filter_map(suspected).max() {
            for (slot, rail) in self.rails.iter_mut().enumerate() {
                if let Some(rail) = rail
                    && rail.rank.retains
                    && rail.liveness.ask(now, asked)
                {
                    self.note_due |= 1 << slot;
                }
            }
        }
        let heard = |slot: usize| {
            let rail = self.rails[slot].as_ref()?;
            Some(if rail.rank.retains { rail.liveness.heard() } else { now })
        };
        (0..SLOTS).find_map(|slot| {
            let rail = self.rails[slot].as_ref().filter(|rail| rail.rank.retains)?;
            let others = (0..SLOTS).filter(|other| *other != slot).filter_map(heard).max();
            Some((slot as u8, rail.liveness.failure(pace, now, others)?))
        })
    }

    /// Learns the speeds of the rails that share bulk.
    fn compare(&mut self, now: Nanos, flows: &[Flow; SLOTS]) {
        let bulk = self.bulk;
        let busy = |(slot, flow): &(usize, &Flow)| bulk & 1 << slot != 0 && flow.on_path > 0;
        let speed = |slot: usize| self.rails[slot].as_ref().and_then(|rail| rail.speed.rate());
        let others = flows.iter().enumerate().filter(busy).filter_map(|(slot, _)| speed(slot)).max();
        for (rail, flow) in self.rails.iter_mut().zip(flows) {
            let Some(rail) = rail else { continue };
            rail.speed.look(now, *flow, others);
        }
        let fastest = self.rails.iter().flatten().filter_map(|rail| rail.speed.rate()).max();
        for rail in self.rails.iter_mut().flatten() {
            let times =
                fastest.zip(rail.speed.rate()).map(|(fastest, rate)| fastest.saturating_mul(AS_FAST) / rate);
            rail.slowness = times.unwrap_or(AS_FAST);
        }
    }

    /// The time until the next call of [`LinkCore::tick`]; `None`: no rail needs one.
    #[must_use]
    pub fn next_tick(&self) -> Option<Nanos> {
        let mut rails = self.rails.iter().flatten().filter(|rail| rail.rank.retains).peekable();
        rails.peek()?;
        let idle = rails.all(|rail| rail.liveness.is_idle());
        Some(if idle { self.pace.probe } else { self.pace.tick() })
    }

    /// The state of a slot's rail, and its reason.
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

    /// The losses of a slot's rail, and the frames that it carried again because another was lost.
    #[must_use]
    pub fn failures(&self, slot: u8) -> (u64, u64) {
        let history = &self.histories[usize::from(slot)];
        (history.failures, history.resent)
    }

    /// Returns true if a slot's rail carries messages now.
    #[must_use]
    #[inline]
    pub fn is_active(&self, slot: u8) -> bool {
        self.bulk & 1 << slot != 0
    }
}
