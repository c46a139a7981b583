//! The lives of rails: which are up, which carry what, how one's end is settled with the peer, and which must end.

use plexus_base::Nanos;
use plexus_fabric::{Flow, LANES, Lane};

use super::{
    Closed, FORGIVEN_AFTER, LinkCore, MOST_ANSWERED, MOST_CLOSING, MOST_DOUBLED, SLOTS, Sick, Signs,
    Violation,
    liveness::Seen,
    order,
    rail::{AS_FAST, Closing, Kept, Numbered, RailCore, Rank, What},
};
use crate::{KINDS, RailState, Reason};

impl<F> LinkCore<F> {
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
        self.open.iter_mut().for_each(|open| *open |= 1 << slot);
        self.choose(now);
        true
    }

    /// The generation of a slot's rail that is up here.
    #[must_use]
    pub fn up(&self, slot: u8) -> Option<u32> {
        Some(self.rail(slot)?.generation)
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
        let bulk_due = self.limits.credits.iter().map(|credits| u64::from(*credits)).sum();
        let mut flows = [Flow::default(); SLOTS];
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
                bulk_acknowledged: (bulk.acknowledged, signs.bulk.acknowledged),
                bulk_under_way: bulk.under_way(),
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
        // What is suspected to be dead is compared with the others: they are asked, lest the answer come a look later.
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
            Some((slot as u8, rail.liveness.sick(pace, now, others)?))
        })
    }

    /// Learns how fast the rails are that share bulk.
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

    /// How long until the next call of [`LinkCore::tick`]; none: no rail wants any.
    #[must_use]
    pub fn next_tick(&self) -> Option<Nanos> {
        let mut rails = self.rails.iter().flatten().filter(|rail| rail.rank.retains).peekable();
        rails.peek()?;
        let idle = rails.all(|rail| rail.liveness.is_idle());
        Some(if idle { self.pace.probe } else { self.pace.tick() })
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
