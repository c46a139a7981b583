//! One link: the pure core, the rails it runs over, and what is counted.
//!
//! The driver adds to [`protocol::LinkCore`] only what needs bytes: headers, copies of what cannot be sent at once or must be
//! kept, messages longer than a frame, accesses to windows. It never blocks and, over memory with room, never allocates.
//!
//! A link begins with its first rail and ends when its peer's process has ended, when the peer says goodbye, or when it had no
//! rail for as long as [`Settings::timeout`]. Rails come and go meanwhile; nobody above notices.

mod access;
mod arrive;
mod attached;
mod budget;
#[cfg(test)]
pub(crate) mod fake;
mod kept;
mod outgoing;
pub mod protocol;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use plexus_base::{Incarnation, Nanos, NodeId, clock};
use plexus_fabric::{Health, Lane, Lost, Windows};

use self::{
    arrive::{Arrivals, Desk},
    attached::{Attached, rank},
    budget::Budget,
    kept::{Owned, Spare},
    protocol::{Limits, LinkCore, Pace, Sick, Signs},
};
use crate::{CHANNELS, ChannelCounters, Kind, Reason, inbox::Inbox, message::Header};

pub(crate) use self::{access::Request, attached::NewRail};
pub use attached::LinkInfo;

/// Longest message in bytes; longer than a frame goes in fragments.
pub const MAX_MESSAGE: usize = 16 << 20;

/// Frames of replies that may wait before an access is executed: 1 MiB of the longest.
const ANSWERS: usize = 64;

/// Memory for an answer that is kept.
const ANSWER_KEPT: usize = 1 << 20;

/// Frames taken from each lane before other links get their turn.
const POLL_FRAMES: usize = 32;

/// Rails that carry nothing now are looked at in one of so many polls.
const STANDBY_POLLS: u32 = 64;

/// What the channels of one link counted; readable by any thread.
pub type LinkCounters = [ChannelCounters; CHANNELS];

/// How links behave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// How long a link may be without a rail.
    pub timeout: Duration,
    /// How often each rail is probed while the link is in use.
    pub probe: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(1), probe: Duration::from_millis(20) }
    }
}

/// What happens to the rails of a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A rail was lost; it can be connected again, with another generation.
    RailDown { slot: u8, generation: u32, why: Lost },
}

pub(crate) struct Link {
    pub(crate) peer: NodeId,
    info: LinkInfo,
    windows: Arc<Windows>,
    rails: Vec<Attached>,
    core: LinkCore<Owned>,
    spare: Spare,
    arrivals: Arrivals,
    /// For bulk in this turn.
    budget: Budget,
    /// How much goes at once depends on whether something is urgent: not so over memory.
    paced: bool,
    answer: Vec<u8>,
    timeout: Nanos,
    /// Since when there is no rail, and why the last one went.
    down: Option<(Nanos, Lost)>,
    ticked: Nanos,
    polls: u32,
    /// The last poll looked at every rail.
    looked: bool,
    /// The next one must.
    must_look: bool,
    /// Accesses by message that have no answer yet: others must not be executed past them.
    asked: u32,
    events: Vec<Event>,
    lost: Option<Lost>,
}

impl Link {
    /// A link to `info`'s peer, without rails yet, whose accesses reach `windows`.
    pub(crate) fn new(info: LinkInfo, settings: Settings, windows: Arc<Windows>) -> Self {
        let nanos = |duration: Duration| Nanos(duration.as_nanos() as u64);
        let pace = Pace { probe: nanos(settings.probe), alone: nanos(settings.timeout), ..Pace::default() };
        Self {
            peer: info.peer,
            info,
            windows,
            rails: Vec::new(),
            core: LinkCore::new(Limits::default(), pace),
            spare: Spare::default(),
            arrivals: Arrivals::default(),
            budget: Budget::default(),
            paced: false,
            answer: Vec::new(),
            timeout: nanos(settings.timeout),
            down: None,
            ticked: clock::now(),
            polls: 0,
            looked: true,
            must_look: false,
            asked: 0,
            events: Vec::new(),
            lost: None,
        }
    }

    /// The incarnation of the peer that it leads to.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.info.incarnation
    }

    /// Adds a rail. One that takes a slot in use replaces what is there: its peer has given that up.
    pub(crate) fn attach(&mut self, new: NewRail) {
        if let Some(index) = self.rails.iter().position(|attached| attached.slot == new.slot) {
            if self.rails[index].generation >= new.generation {
                return;
            }
            self.give_up(index, Lost::Closed("the peer connected it again".into()));
        }
        if self.lost.is_some() {
            return;
        }
        let kind = new.rail.kind();
        if !self.core.rail_up(new.slot, new.generation, rank(kind), clock::now()) {
            let why = Lost::Closed("the peer has closed it meanwhile".into());
            return self.events.push(Event::RailDown { slot: new.slot, generation: new.generation, why });
        }
        let NewRail { slot, generation, rail, health, .. } = new;
        let retains = rank(kind).retains;
        self.rails.push(Attached {
            slot,
            generation,
            rail,
            retains,
            unflushed: false,
            health,
            bytes_out: 0,
            bytes_in: 0,
        });
        self.paced |= retains;
        self.pace_bulk();
        self.down = None;
        self.refresh();
    }

    /// Whether there is something in [`Link::events`], or it is lost.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.lost.is_some() || !self.events.is_empty()
    }

    /// What happened to rails since it was asked last.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Frames that wait for credits, room or a rail.
    pub(crate) fn queued(&self) -> usize {
        self.core.queued()
    }

    /// Takes what has arrived into `inbox`. Messages are handled later, see [`Link::handled`].
    #[inline]
    pub(crate) fn poll(&mut self, inbox: &mut Inbox) {
        let all = self.rails.len() == 1 || self.look_everywhere();
        let mut index = 0;
        let mut bulk = 0;
        while index < self.rails.len() {
            let Self { rails, core, arrivals, info, peer, .. } = self;
            let Attached { slot, rail, bytes_in, .. } = &mut rails[index];
            index += 1;
            if !all && !core.is_active(*slot) {
                continue;
            }
            let mut violation = None;
            let mut desk = Desk { peer: *peer, core, counters: &info.counters, inbox };
            let polled = rail.poll(POLL_FRAMES, &mut |lane, frame| {
                if violation.is_none() {
                    *bytes_in += frame.len() as u64 + u64::from(frame.put_len());
                    bulk += if lane == Lane::Bulk { frame.len() } else { 0 };
                    violation = arrivals.frame(&mut desk, *slot, lane, &frame).err();
                }
            });
            if let Some(what) = violation {
                self.fail(Lost::Corrupt(what));
            } else if let Err(lost) = polled {
                index -= 1;
                self.give_up(index, lost);
            }
        }
        if self.paced {
            if std::mem::take(&mut self.arrivals.urgent) {
                self.hurry();
            }
            if self.budget.calms() {
                self.pace_bulk();
            }
        }
        self.budget.renew(bulk);
        if !self.arrivals.closed.is_empty() {
            self.settle();
        }
        if !self.arrivals.accesses.is_empty() {
            self.execute();
        }
    }

    /// What is urgent is on its way: bulk is not to stand in front of it.
    #[inline]
    fn hurry(&mut self) {
        if self.budget.hurry() {
            self.pace_bulk();
        }
    }

    /// Tells the rails whether there is something urgent, and asks how much bulk goes at once then.
    #[cold]
    fn pace_bulk(&mut self) {
        let urgent = self.budget.is_urgent();
        self.rails.iter_mut().for_each(|attached| attached.rail.hurry(urgent));
        self.budget.goes_at_once(self.rails.iter().map(|attached| attached.rail.chunk()).max());
    }

    /// Whether this poll looks at rails that carry nothing, too.
    fn look_everywhere(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.looked = std::mem::take(&mut self.must_look) || self.polls.is_multiple_of(STANDBY_POLLS);
        self.looked
    }

    /// Rails that the peer has given up are given up here too, and what it did not get is sent again.
    #[cold]
    fn settle(&mut self) {
        while let Some(closed) = self.arrivals.closed.pop_front() {
            if self.core.up(closed.slot) == Some(closed.generation)
                && let Some(index) = self.rails.iter().position(|attached| attached.slot == closed.slot)
            {
                self.give_up(index, Lost::Closed("the peer has given it up".into()));
            }
            if self.core.peer_closed(closed).is_err() {
                return self.fail(Lost::Corrupt("news of a rail that cannot be"));
            }
            if self.core.is_overrun() {
                return self.fail(Lost::Corrupt("news of more rails than it reads the answers to"));
            }
        }
    }

    /// Executes accesses that the peer has asked for, as long as their answers do not pile up: what is not executed keeps its
    /// credit.
    fn execute(&mut self) {
        while self.core.waiting(Kind::Reply) < ANSWERS
            && let Some((head, request)) = self.arrivals.accesses.pop_front()
        {
            let mut answer = std::mem::take(&mut self.answer);
            request.execute(&self.windows, &mut answer);
            self.core.consume(head.kind);
            self.send(head.epoch, head.channel, Kind::Reply, head.tag, &answer);
            self.answer = answer;
        }
        self.answer.shrink_to(ANSWER_KEPT);
    }

    /// A message of `kind` has been handled. (The fragments before its last frame were as they came.)
    #[inline]
    pub(crate) fn handled(&mut self, kind: Kind) {
        self.core.consume(kind);
    }

    /// Sends what waits, and makes sure that the peer sees what was sent.
    #[inline]
    pub(crate) fn flush(&mut self) {
        if self.core.wants_pump() && self.lost.is_none() {
            self.pump();
        }
        if !self.arrivals.accesses.is_empty() && self.lost.is_none() {
            self.execute();
        }
        let mut index = 0;
        while index < self.rails.len() {
            let attached = &mut self.rails[index];
            // A socket that took only a part may take the rest now, also when nothing was sent since.
            let wanted = std::mem::take(&mut attached.unflushed) || attached.retains;
            match if wanted { attached.rail.flush() } else { Ok(()) } {
                Ok(()) => index += 1,
                Err(lost) => self.give_up(index, lost),
            }
        }
    }

    /// A rail is dead or is given up: destroys this end of it. What was under way on it is settled with the peer over the
    /// others. The rail that keeps nothing ends the link.
    #[cold]
    fn give_up(&mut self, index: usize, why: Lost) {
        let Attached { slot, generation, mut rail, retains, .. } = self.rails.swap_remove(index);
        rail.abandon();
        drop(rail);
        if !retains {
            return self.fail(why);
        }
        let now = clock::now();
        tracing::info!(peer = %self.peer, slot, generation, "rail lost: {why}");
        self.core.rail_lost(slot, Reason::of(&why), now);
        if self.core.is_overrun() {
            self.fail(Lost::Corrupt("it never says what it received on rails that are closed"));
        }
        if self.rails.is_empty() {
            self.down = Some((now, why.clone()));
            if self.arrivals.goodbye {
                self.fail(Lost::Closed("the peer ended the link".into()));
            }
        }
        self.must_look = true;
        self.events.push(Event::RailDown { slot, generation, why });
        self.refresh();
    }

    fn refresh(&mut self) {
        self.info.refresh(&self.core, &mut self.rails, clock::now());
    }

    /// How long until [`Link::tick`] is to be called, if it is.
    pub(crate) fn next_tick(&self) -> Option<Nanos> {
        if self.lost.is_some() {
            None
        } else if self.rails.is_empty() {
            Some(self.core.pace().probe)
        } else {
            self.core.next_tick()
        }
    }

    /// Does what is due by `now`: probes rails, gives up those that are dead, ends the link when its timeout does.
    pub(crate) fn tick(&mut self, now: Nanos) {
        // Other links of the worker may want it more often.
        let is_due = |every: Nanos| now.since(self.ticked).0 >= every.0 / 4 * 3;
        if !self.next_tick().is_some_and(is_due) {
            return;
        }
        self.ticked = now;
        loop {
            let rails = &mut self.rails;
            let sick = self.core.tick(now, &mut |slot| {
                let Some(attached) = attached::at(rails, slot) else { return Signs::default() };
                attached.health = attached.rail.health();
                let Health { silent, lane_silent, rtt, longest_rtt, bulk, .. } = attached.health;
                Signs { silent, lane_silent, rtt, longest_rtt, bulk }
            });
            let Some((slot, sick)) = sick else { break };
            let Some(index) = self.rails.iter().position(|attached| attached.slot == slot) else { break };
            self.give_up(
                index,
                match sick {
                    Sick::Silent => Lost::Silent,
                    Sick::Stalled => Lost::Stalled,
                },
            );
        }
        if let Some((since, why)) = &self.down
            && now.since(*since) >= self.timeout
        {
            let why = why.clone();
            self.fail(why);
        }
        self.must_look = true;
        self.refresh();
    }

    /// Tells the peer that the link ends here, as far as that can be told.
    pub(crate) fn goodbye(&mut self) {
        self.flush();
        for attached in &mut self.rails {
            let _ = attached.rail.send(Lane::Prompt, &Header::goodbye().encode(), &[]);
            let _ = attached.rail.flush();
        }
    }

    /// Whether a turn would get something done that no bell announces.
    pub(crate) fn pending(&mut self) -> bool {
        if self.has_news() {
            return true;
        }
        if self.rails.len() > 1 && !self.looked {
            self.must_look = true;
            return true;
        }
        if self.budget.held_back() {
            return true;
        }
        let answers = !self.arrivals.accesses.is_empty() && self.core.waiting(Kind::Reply) < ANSWERS;
        answers || self.rails.iter_mut().any(|attached| attached.rail.pending())
    }

    /// Why the link is gone, if it is.
    pub(crate) fn lost(&self) -> Option<&Lost> {
        self.lost.as_ref()
    }

    pub(crate) fn fail(&mut self, lost: Lost) {
        if self.lost.is_none() {
            self.info.gone(Reason::of(&lost));
            self.lost = Some(lost);
        }
    }
}
