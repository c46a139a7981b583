//! One link: the pure core, its rails, and its counters.
//!
//! The driver adds to [`protocol::LinkCore`] only the parts that need bytes: headers, copies of
//! frames that cannot be sent at once or must be kept, messages longer than a frame, accesses to
//! windows. It never blocks, and over memory with room it never allocates.
//!
//! A link begins with its first rail. It ends when its peer's process has ended, when the peer says
//! goodbye, or when it had no rail for [`Settings::timeout`]. Rails come and go meanwhile; the code
//! above the link does not notice.

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
    arrive::{ArrivalContext, Arrivals},
    attached::{AttachedRail, rank},
    budget::BulkBudget,
    kept::{OwnedFrame, SpareMemory},
    protocol::{Limits, LinkCore, Pace, RailFailure, Signs},
};
use crate::{CHANNELS, ChannelCounters, Kind, Reason, inbox::Inbox, message::Header};

pub(crate) use self::{access::Request, attached::NewRail};
pub use attached::LinkInfo;

/// The longest message in bytes; a message longer than a frame goes in fragments.
pub const MAX_MESSAGE: usize = 16 << 20;

/// The frames of replies that may wait before an access is executed: 1 MiB of the longest.
const ANSWERS: usize = 64;

/// The memory for an answer that is kept.
const ANSWER_KEPT: usize = 1 << 20;

/// The frames taken from each lane before other links get their turn.
const POLL_FRAMES: usize = 32;

/// Rails that carry nothing now are polled once in this many polls.
const STANDBY_POLLS: u32 = 64;

/// The counters of the channels of one link; any thread may read them.
pub type LinkCounters = [ChannelCounters; CHANNELS];

/// The settings of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The time for which a link may be without a rail.
    pub timeout: Duration,
    /// The interval between two probes of each rail while the link is in use.
    pub probe: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(1), probe: Duration::from_millis(20) }
    }
}

/// An event of a link's rails.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Event {
    /// A rail was lost; it can be connected again, with another generation.
    RailDown { slot: u8, generation: u32, why: Lost },
}

pub(crate) struct Link {
    pub(crate) peer: NodeId,
    info: LinkInfo,
    windows: Arc<Windows>,
    rails: Vec<AttachedRail>,
    core: LinkCore<OwnedFrame>,
    spare: SpareMemory,
    arrivals: Arrivals,
    /// The bulk that may go in this turn.
    budget: BulkBudget,
    /// True if the amount of bulk at once depends on urgent traffic; not so over memory.
    paced: bool,
    answer: Vec<u8>,
    timeout: Nanos,
    /// The time since which there is no rail, and the reason for which the last one was lost.
    down: Option<(Nanos, Lost)>,
    ticked: Nanos,
    polls: u32,
    /// True if the last poll looked at every rail.
    looked_everywhere: bool,
    /// True if the next poll must look at every rail.
    must_look: bool,
    /// The accesses by message without an answer; direct ones must not overtake them.
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
            spare: SpareMemory::default(),
            arrivals: Arrivals::default(),
            budget: BulkBudget::default(),
            paced: false,
            answer: Vec::new(),
            timeout: nanos(settings.timeout),
            down: None,
            ticked: clock::now(),
            polls: 0,
            looked_everywhere: true,
            must_look: false,
            asked: 0,
            events: Vec::new(),
            lost: None,
        }
    }

    /// The incarnation of the peer.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.info.incarnation
    }

    /// Adds a rail. It replaces a rail in the same slot, which its peer has given up.
    pub(crate) fn attach(&mut self, new: NewRail) {
        if let Some(index) = self.rails.iter().position(|attached| attached.slot == new.slot) {
            if self.rails[index].generation >= new.generation {
                return;
            }
            self.give_up(index, Lost::Closed("the peer connected the rail again".into()));
        }
        if self.lost.is_some() {
            return;
        }
        let kind = new.rail.kind();
        if !self.core.rail_up(new.slot, new.generation, rank(kind), clock::now()) {
            let why = Lost::Closed("the peer has closed the rail meanwhile".into());
            return self.events.push(Event::RailDown { slot: new.slot, generation: new.generation, why });
        }
        let NewRail { slot, generation, rail, health, .. } = new;
        let retains = rank(kind).retains;
        self.rails.push(AttachedRail {
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

    /// Returns true if [`Link::events`] is not empty, or the link is lost.
    #[inline]
    pub(crate) fn has_events(&self) -> bool {
        self.lost.is_some() || !self.events.is_empty()
    }

    /// Takes the events of rails since the last call.
    pub(crate) fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// The frames that wait for credits, room or a rail.
    pub(crate) fn queued(&self) -> usize {
        self.core.queued()
    }

    /// Takes arrived frames into `inbox`. Their messages are handled later, see [`Link::handled`].
    #[inline]
    pub(crate) fn poll(&mut self, inbox: &mut Inbox) {
        let all = self.rails.len() == 1 || self.look_everywhere();
        let mut index = 0;
        let mut bulk = 0;
        while index < self.rails.len() {
            let Self { rails, core, arrivals, info, peer, .. } = self;
            let AttachedRail { slot, rail, bytes_in, .. } = &mut rails[index];
            index += 1;
            if !all && !core.is_active(*slot) {
                continue;
            }
            let mut violation = None;
            let mut context = ArrivalContext { peer: *peer, core, counters: &info.counters, inbox };
            let polled = rail.poll(POLL_FRAMES, &mut |lane, frame| {
                if violation.is_none() {
                    *bytes_in += frame.len() as u64 + u64::from(frame.put_len());
                    bulk += if lane == Lane::Bulk { frame.len() } else { 0 };
                    violation = arrivals.frame(&mut context, *slot, lane, &frame).err();
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

    /// Records urgent traffic, which bulk must not delay.
    #[inline]
    fn hurry(&mut self) {
        if self.budget.hurry() {
            self.pace_bulk();
        }
    }

    /// Tells the rails whether there is urgent traffic, and reads how much bulk goes at once then.
    #[cold]
    fn pace_bulk(&mut self) {
        let urgent = self.budget.is_urgent();
        self.rails.iter_mut().for_each(|attached| attached.rail.hurry(urgent));
        self.budget.set_chunk(self.rails.iter().map(|attached| attached.rail.chunk()).max());
    }

    /// Returns true if this poll also looks at rails that carry nothing.
    fn look_everywhere(&mut self) -> bool {
        self.polls = self.polls.wrapping_add(1);
        self.looked_everywhere =
            std::mem::take(&mut self.must_look) || self.polls.is_multiple_of(STANDBY_POLLS);
        self.looked_everywhere
    }

    /// Closes the rails that the peer has closed, and sends again the frames that it did not get.
    #[cold]
    fn settle(&mut self) {
        while let Some(closed) = self.arrivals.closed.pop_front() {
            if self.core.up(closed.slot) == Some(closed.generation)
                && let Some(index) = self.rails.iter().position(|attached| attached.slot == closed.slot)
            {
                self.give_up(index, Lost::Closed("the peer has given up the rail".into()));
            }
            if self.core.peer_closed(closed).is_err() {
                return self.fail(Lost::Corrupt("a notice of an impossible rail"));
            }
            if self.core.is_overrun() {
                return self.fail(Lost::Corrupt("too many notices of rails without reading the answers"));
            }
        }
    }

    /// Executes the accesses that the peer has requested, as long as the answers do not pile up. An
    /// access that is not executed keeps its credit.
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

    /// Records that a message of `kind` has been handled. (The fragments before its last frame
    /// counted when they came.)
    #[inline]
    pub(crate) fn handled(&mut self, kind: Kind) {
        self.core.consume(kind);
    }

    /// Sends the waiting frames, and makes sure that the peer sees all frames sent.
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
            // A socket that took only a part may take the rest now, even if nothing was sent since.
            let wanted = std::mem::take(&mut attached.unflushed) || attached.retains;
            match if wanted { attached.rail.flush() } else { Ok(()) } {
                Ok(()) => index += 1,
                Err(lost) => self.give_up(index, lost),
            }
        }
    }

    /// Destroys this end of a rail that is dead or given up. Frames in flight on it are settled
    /// with the peer over the other rails. The loss of a rail that keeps nothing ends the link.
    #[cold]
    fn give_up(&mut self, index: usize, why: Lost) {
        let AttachedRail { slot, generation, mut rail, retains, .. } = self.rails.swap_remove(index);
        rail.abandon();
        drop(rail);
        if !retains {
            return self.fail(why);
        }
        let now = clock::now();
        tracing::info!(peer = %self.peer, slot, generation, "rail lost: {why}");
        self.core.rail_lost(slot, Reason::of(&why), now);
        if self.core.is_overrun() {
            self.fail(Lost::Corrupt("the peer never reports what it received on closed rails"));
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

    /// The time until [`Link::tick`] is due, if it is.
    pub(crate) fn next_tick(&self) -> Option<Nanos> {
        if self.lost.is_some() {
            None
        } else if self.rails.is_empty() {
            Some(self.core.pace().probe)
        } else {
            self.core.next_tick()
        }
    }

    /// Does the work due by `now`: probes rails, gives up dead ones, ends the link when its timeout
    /// is over.
    pub(crate) fn tick(&mut self, now: Nanos) {
        // Other links of the worker may want ticks more often.
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
                    RailFailure::Silent => Lost::Silent,
                    RailFailure::Stalled => Lost::Stalled,
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

    /// Tells the peer that the link ends here, if any rail still can.
    pub(crate) fn goodbye(&mut self) {
        self.flush();
        for attached in &mut self.rails {
            let _ = attached.rail.send(Lane::Prompt, &Header::goodbye().encode(), &[]);
            let _ = attached.rail.flush();
        }
    }

    /// Returns true if a turn would do work that no bell announces.
    pub(crate) fn pending(&mut self) -> bool {
        if self.has_events() {
            return true;
        }
        if self.rails.len() > 1 && !self.looked_everywhere {
            self.must_look = true;
            return true;
        }
        if self.budget.held_back() {
            return true;
        }
        let answers = !self.arrivals.accesses.is_empty() && self.core.waiting(Kind::Reply) < ANSWERS;
        answers || self.rails.iter_mut().any(|attached| attached.rail.pending())
    }

    /// The reason why the link is gone, if it is.
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
