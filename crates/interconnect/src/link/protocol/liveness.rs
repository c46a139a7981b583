//! Liveness of a rail, judged by the answers of the peer's kernel, not by the speed of the peer's
//! program.
//!
//! The driver of a link checks each rail every quarter of [`Pace::probe`], and every whole one
//! while the link is not used. Something is sent at least every probe interval, so a live path
//! acknowledges it. The time that counts begins with the first frame sent after the last sign of
//! life. Time in which this node was not scheduled does not count against a rail: the kernel went
//! on listening, and is asked first.
//!
//! A rail is given up when it is silent and another one is not: then there is something to gain.
//! When all rails are silent the peer's host is the likelier cause, and its rails are kept for
//! [`Pace::alone`].
//!
//! A lane that is not answered while the other is may only wait behind that one in a queue of the
//! path. So it gets far more time than a silent path. For the prompt lane that time begins only
//! when the bulk that may have been on the path before it has passed, in both directions.

use plexus_base::Nanos;
use plexus_fabric::{Flow, LANES, Lane};

/// The probe interval and the timeouts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// The interval in which something is sent on each rail while the link is in use.
    pub probe: Nanos,
    /// The time after which a silent rail is given up even if no other is better.
    pub alone: Nanos,
    /// The time after which a rail that was lost and is back is used again.
    pub trust: Nanos,
}

impl Default for Pace {
    fn default() -> Self {
        Self { probe: Nanos::from_ms(20), alone: Nanos::from_ms(1000), trust: Nanos::from_ms(1000) }
    }
}

impl Pace {
    /// The interval of [`super::LinkCore::tick`] while the link is used.
    #[must_use]
    pub fn tick(&self) -> Nanos {
        Nanos(self.probe.0 / 4)
    }
}

/// A link that was not used for so many probe intervals probes this many times less often.
const IDLE_AFTER: u64 = 50;
const IDLE_SLOWER: u64 = 10;

/// The probe intervals for which long frames may stand still while short ones pass.
const STALLED_AFTER: u64 = 25;

/// The probe intervals, beside a few round trips, for which a lane may go without an
/// acknowledgement while the other is answered. That is longer than a lost packet takes to be sent
/// again (200 ms after a round trip on Linux) and to be acknowledged.
const DROPPED_AFTER: u64 = 12;

/// A lane is assumed to wait behind bulk for at most so many times its timeout: bulk that trickles
/// in is no queue.
const LONGEST_QUEUE: u64 = 4;

/// The system's view of a rail's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Signs {
    /// The time since the peer's host was last heard, on any lane; 0 while it owes no answer,
    /// `None` if the system does not report it.
    pub silent: Option<Nanos>,
    /// The same of one lane, if each has a connection of its own; `None` while no answer is owed
    /// there.
    pub lane_silent: [Option<Nanos>; LANES],
    /// The smoothed round-trip time.
    pub rtt: Nanos,
    /// The longest round-trip time of the lanes.
    pub longest_rtt: Nanos,
    /// The flow of long frames.
    pub bulk: Flow,
}

/// The reason to give up a rail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RailFailure {
    /// Nothing was heard, or nothing on the prompt lane.
    Silent,
    /// Only short frames pass.
    Stalled,
}

/// The counters of a rail at one look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct RailCounters {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// The frames of bulk acknowledged, and the bytes where the system reports them.
    pub(super) bulk_acknowledged: (u64, u64),
    pub(super) bulk_under_way: u64,
    pub(super) bulk_received: u64,
    /// The most frames of bulk that the peer may have in flight.
    pub(super) bulk_due: u64,
}

#[derive(Debug)]
pub(super) struct Liveness {
    heard: Nanos,
    /// The time at which the first frame after `heard` was sent, to the precision of the looks.
    asked: Option<Nanos>,
    probed: Nanos,
    /// The time at which messages last went either way.
    used: Nanos,
    /// The time since which long frames in flight stand still, and the count of received frames at
    /// which the bulk has passed that may be before their acknowledgement.
    stuck: Option<(Nanos, u64)>,
    /// The time since which each lane alone is not answered by the peer's system, to the precision
    /// of the looks.
    unanswered: [Option<Nanos>; LANES],
    /// The state when the prompt lane was first found unanswered: the bytes acknowledged and frames
    /// received at which the bulk has passed that may be before it and its answers, and the time.
    behind: (u64, u64, Nanos),
    /// True if only notes passed for long.
    idle: bool,
    /// The time at which the peer's program last sent something.
    program_heard: Nanos,
    /// The timeouts of the path, and of one lane alone.
    timeout: (Nanos, Nanos),
    last: RailCounters,
    /// The notes sent or received since `used`.
    notes: u64,
}

impl Liveness {
    pub(super) fn new(now: Nanos) -> Self {
        Self {
            heard: now,
            asked: None,
            probed: now,
            used: now,
            stuck: None,
            unanswered: [None; LANES],
            behind: (0, 0, now),
            idle: false,
            program_heard: now,
            timeout: (Nanos(0), Nanos(0)),
            last: RailCounters::default(),
            notes: 0,
        }
    }

    /// Counts a note, sent or received, which is no use of the link.
    #[inline]
    pub(super) fn note(&mut self) {
        self.notes += 1;
    }

    /// Takes a regular look; returns true if the rail must be probed.
    pub(super) fn look(&mut self, pace: Pace, now: Nanos, seen: RailCounters, signs: Signs) -> bool {
        let last = std::mem::replace(&mut self.last, seen);
        // With the looks before and after, a quarter each while the link is used, one and a half
        // intervals make two.
        let silence = (pace.probe.0 * 3 / 2).max(4 * signs.rtt.0);
        let lane_silence = DROPPED_AFTER * pace.probe.0 + 4 * signs.rtt.max(signs.longest_rtt).0;
        self.timeout = (Nanos(silence), Nanos(lane_silence));
        if let Some(silent) = signs.silent {
            self.heard = self.heard.max(Nanos(now.0.saturating_sub(silent.0)));
        }
        if seen.received != last.received {
            self.program_heard = now;
            // Where the system reports more, one lane with arrivals must not hide that the other is
            // dead.
            if signs.silent.is_none() {
                self.heard = now;
            }
        }
        if self.asked.is_some_and(|asked| self.heard >= asked) {
            self.asked = None;
        }
        // While nothing is heard at all, nothing is known of one lane. An old answer shows nothing
        // if nothing was sent since.
        let dark = self.asked.is_some_and(|asked| now.since(asked).0 >= silence);
        for (unanswered, silent) in self.unanswered.iter_mut().zip(signs.lane_silent) {
            *unanswered = silent.map(|silent| {
                let heard = Nanos(now.0.saturating_sub(silent.0));
                unanswered.filter(|since| *since > heard && !dark).unwrap_or(now)
            });
        }
        let comes = |until: u64| (last.bulk_received.saturating_add(1)..until).contains(&seen.bulk_received);
        let goes = |until: u64| {
            (last.bulk_acknowledged.1.saturating_add(1)..until).contains(&signs.bulk.acknowledged)
        };
        let all_come = seen.bulk_received + seen.bulk_due;
        if let Some(since) = &mut self.unanswered[Lane::Prompt.index()] {
            let (acknowledged, received, first) = self.behind;
            if *since == now {
                let all_gone = signs.bulk.acknowledged.saturating_add(signs.bulk.on_path);
                self.behind = (all_gone, all_come, now);
            } else if (goes(acknowledged) || comes(received))
                && now.since(first).0 < LONGEST_QUEUE * lane_silence
            {
                *since = now;
            }
        }
        let passed = seen.sent - last.sent + seen.received - last.received;
        if passed > std::mem::take(&mut self.notes) {
            self.used = now;
        }
        // Data that the peer's system has acknowledged got through: its program has yet to take
        // them.
        let is_there = signs.bulk.acknowledged > 0 && signs.lane_silent[Lane::Bulk.index()].is_none();
        if is_there || seen.bulk_under_way == 0 || seen.bulk_acknowledged != last.bulk_acknowledged {
            self.stuck = None;
        } else {
            let (since, received) = self.stuck.get_or_insert((now, all_come));
            if comes(*received) {
                *since = now;
            }
        }
        self.idle = now.since(self.used).0 > IDLE_AFTER * pace.probe.0 && self.asked.is_none();
        let every = if self.idle { IDLE_SLOWER * pace.probe.0 } else { pace.probe.0 };
        let probe = now.since(self.probed).0 >= every;
        if probe {
            self.probed = now;
        }
        if probe || seen.sent != last.sent {
            self.asked.get_or_insert(now);
        }
        probe
    }

    /// Returns true if only a rare probe is due.
    pub(super) fn is_idle(&self) -> bool {
        self.idle
    }

    /// The time since which the rail owes a sign of life, if half of its timeout has passed.
    pub(super) fn suspected(&self, now: Nanos) -> Option<Nanos> {
        self.asked.filter(|asked| now.since(*asked).0 >= self.timeout.0.0 / 2)
    }

    /// Returns true if a sign of life newer than `than` must be requested now: there was none, and
    /// none is requested yet.
    pub(super) fn ask(&mut self, now: Nanos, than: Nanos) -> bool {
        let ask = self.heard < than && self.asked.is_none();
        if ask {
            (self.asked, self.probed) = (Some(now), now);
        }
        ask
    }

    /// The time at which the rail was last heard.
    pub(super) fn heard(&self) -> Nanos {
        self.heard
    }

    /// The reason to give up the rail, if there is one; `others` is the time at which the other
    /// rails were last heard.
    pub(super) fn failure(&self, pace: Pace, now: Nanos, others: Option<Nanos>) -> Option<RailFailure> {
        let (silence, lane_silence) = self.timeout;
        if let Some(asked) = self.asked {
            let waited = now.since(asked);
            let is_better = others.is_some_and(|heard| heard >= asked);
            if waited >= silence && (is_better || waited >= pace.alone) {
                return Some(RailFailure::Silent);
            }
        }
        let limit = if others.is_some() { lane_silence.0 } else { 4 * lane_silence.0 };
        for (lane, since) in Lane::ALL.into_iter().zip(self.unanswered) {
            if since.is_some_and(|since| now.since(since).0 >= limit) {
                return Some(if lane == Lane::Prompt { RailFailure::Silent } else { RailFailure::Stalled });
            }
        }
        // The peer's program lives and answers short frames: it would have acknowledged long frames
        // too.
        if let Some((stuck, _)) = self.stuck {
            let limit = STALLED_AFTER * pace.probe.0;
            let limit = if others.is_some() { limit } else { 4 * limit };
            if now.since(stuck).0 >= limit && self.program_heard.since(stuck).0 >= limit / 2 {
                return Some(RailFailure::Stalled);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace =
        Pace { probe: Nanos::from_ms(20), alone: Nanos::from_ms(1000), trust: Nanos::from_ms(1000) };

    fn at(ms: u64) -> Nanos {
        Nanos::from_ms(1_000 + ms)
    }

    /// Looks every 10 ms until the rail fails or 5 s have passed; returns the time of the failure.
    /// `silent`: the system's view.
    fn run(
        others: impl Fn(u64) -> Option<Nanos>,
        silent: impl Fn(u64) -> Option<Nanos>,
    ) -> Option<(u64, RailFailure)> {
        let mut liveness = Liveness::new(at(0));
        let mut seen = RailCounters::default();
        for ms in (10..5000).step_by(10) {
            seen.sent += 1;
            liveness.look(PACE, at(ms), seen, Signs { silent: silent(ms), ..Signs::default() });
            if let Some(sick) = liveness.failure(PACE, at(ms), others(ms)) {
                return Some((ms, sick));
            }
        }
        None
    }

    #[test]
    fn a_path_that_acknowledges_stays_up_even_with_a_slow_program() {
        assert_eq!(run(|ms| Some(at(ms)), |_| Some(Nanos::from_ms(4))), None);
    }

    #[test]
    fn silence_is_found_within_three_probes_if_another_path_is_better() {
        let since_500 = |ms: u64| Some(Nanos::from_ms(ms.saturating_sub(500)));
        let (found, sick) = run(|ms| Some(at(ms)), since_500).unwrap();
        assert!(sick == RailFailure::Silent && found <= 500 + 50, "{found}");
        let (found, sick) = run(|_| None, since_500).unwrap();
        assert!(
            sick == RailFailure::Silent && (1400..1600).contains(&found),
            "a rail without others gets more time: {found}"
        );
        let (found, _) = run(|ms| Some(at(ms.min(490))), since_500).unwrap();
        assert!(found > 1400, "the others are silent too: {found}");
    }

    #[test]
    fn long_frames_that_stand_still_while_short_ones_pass_are_a_stall() {
        let mut liveness = Liveness::new(at(0));
        let mut seen =
            RailCounters { bulk_under_way: 3, bulk_acknowledged: (7, 0), ..RailCounters::default() };
        let found = (10..5000).step_by(10).find(|ms| {
            (seen.sent, seen.received) = (seen.sent + 1, seen.received + 1);
            liveness.look(PACE, at(*ms), seen, Signs::default());
            liveness.failure(PACE, at(*ms), Some(at(*ms))) == Some(RailFailure::Stalled)
        });
        assert!(found.is_some_and(|ms| (500..600).contains(&ms)), "{found:?}");
    }

    /// The system's view when one lane was last heard so long ago, and the other just now.
    fn lane_silent(lane: Lane, ms: u64) -> Signs {
        let mut signs = Signs { silent: Some(Nanos(0)), ..Signs::default() };
        signs.lane_silent[lane.index()] = Some(Nanos::from_ms(ms));
        signs
    }

    /// The time from the first unanswered frames of a lane until the rail is given up; the system
    /// last heard an acknowledgement so long before.
    fn given_up_after(lane: Lane, idle_ms: u64, rtt: Nanos, others: bool) -> Option<(u64, RailFailure)> {
        let mut liveness = Liveness::new(at(0));
        (0..3000).step_by(10).find_map(|ms| {
            let signs = Signs { longest_rtt: rtt, ..lane_silent(lane, idle_ms + ms) };
            liveness.look(PACE, at(ms), RailCounters::default(), signs);
            Some((ms, liveness.failure(PACE, at(ms), others.then_some(at(ms)))?))
        })
    }

    fn stalled_after(idle_ms: u64, rtt: Nanos, others: bool) -> Option<u64> {
        let (after, sick) = given_up_after(Lane::Bulk, idle_ms, rtt, others)?;
        (sick == RailFailure::Stalled).then_some(after)
    }

    #[test]
    fn dropped_long_packets_are_a_stall_and_one_lost_packet_is_not() {
        assert_eq!(stalled_after(10, Nanos(0), true), Some(240), "a lost packet is sent again after 200 ms");
        assert_eq!(stalled_after(10, Nanos(0), false), Some(960), "there is no other rail");
        assert_eq!(
            stalled_after(10, Nanos::from_ms(50), true),
            Some(440),
            "a long queue: the repetition waits too"
        );
        assert_eq!(stalled_after(60_000, Nanos(0), true), Some(240), "nothing was sent for a minute");
    }

    #[test]
    fn occasional_acknowledgements_are_no_stall() {
        let mut liveness = Liveness::new(at(0));
        for ms in (0..5000).step_by(10) {
            let signs = lane_silent(Lane::Bulk, 1 + ms % 220);
            liveness.look(PACE, at(ms), RailCounters::default(), signs);
            assert_eq!(liveness.failure(PACE, at(ms), Some(at(ms))), None);
        }
    }

    /// Bulk had filled a queue of the path faster than round trips were learned: the prompt lane
    /// was behind it for 100 ms.
    #[test]
    fn a_prompt_lane_that_waits_behind_bulk_is_no_silence_and_a_dead_one_is() {
        assert_eq!(given_up_after(Lane::Prompt, 10, Nanos(0), true), Some((240, RailFailure::Silent)));
        let mut liveness = Liveness::new(at(0));
        let mut seen = RailCounters::default();
        for ms in (0..5000).step_by(10) {
            seen.sent += 1;
            liveness.look(PACE, at(ms), seen, lane_silent(Lane::Prompt, ms % 200));
            assert_eq!(liveness.failure(PACE, at(ms), Some(at(ms))), None, "{ms}");
        }
    }

    /// An outage of a second in which the peer's host answered on neither lane, then on the prompt
    /// one first, where a lost packet was sent again sooner.
    #[test]
    fn an_outage_of_the_only_path_is_not_counted_against_one_lane() {
        let mut liveness = Liveness::new(at(0));
        let mut seen = RailCounters::default();
        for ms in (0..1500).step_by(10) {
            seen.sent += 1;
            let mut signs = lane_silent(Lane::Bulk, ms);
            if ms < 900 {
                signs.silent = Some(Nanos::from_ms(ms));
                signs.lane_silent[Lane::Prompt.index()] = signs.silent;
            }
            liveness.look(PACE, at(ms), seen, signs);
            assert_eq!(liveness.failure(PACE, at(ms), None), None, "{ms}");
        }
    }

    /// The peer's program stood still for a third of a second, answered, and stood still again
    /// before it had taken the long frames.
    #[test]
    fn long_frames_that_are_with_the_peers_system_have_not_stalled() {
        let mut liveness = Liveness::new(at(0));
        let mut seen =
            RailCounters { bulk_under_way: 3, bulk_acknowledged: (7, 90_000), ..RailCounters::default() };
        let bulk = Flow { acknowledged: 90_000, ..Flow::default() };
        let signs = Signs { silent: Some(Nanos(0)), bulk, ..Signs::default() };
        for ms in (10..5000).step_by(10) {
            seen.received += 1;
            liveness.look(PACE, at(ms), seen, signs);
            assert_eq!(liveness.failure(PACE, at(ms), Some(at(ms))), None, "{ms}");
        }
    }

    /// A slow path was full of the peer's bulk: frames sent there and their acknowledgements waited
    /// behind it. A frame comes with each look, and so many may have been on the path before.
    #[test]
    fn a_lane_behind_bulk_fails_when_the_bulk_has_passed_or_only_trickles() {
        let found = |bulk_due: u64, prompt: fn(u64) -> Nanos| {
            let mut seen = RailCounters { bulk_under_way: 1, bulk_due, ..RailCounters::default() };
            let mut liveness = Liveness::new(at(0));
            (0..5000).step_by(10).find_map(|ms| {
                (seen.sent, seen.received) = (seen.sent + 1, seen.received + 1);
                seen.bulk_received += 1;
                let lane_silent = [Some(prompt(ms)), Some(Nanos(0))];
                let bulk = Flow { on_path: 4096, ..Flow::default() };
                let signs = Signs { silent: Some(Nanos(0)), lane_silent, bulk, ..Signs::default() };
                liveness.look(PACE, at(ms), seen, signs);
                Some((ms, liveness.failure(PACE, at(ms), Some(at(ms)))?))
            })
        };
        assert_eq!(
            found(50, Nanos::from_ms),
            Some((500 + 240, RailFailure::Silent)),
            "unanswered from 10 ms on"
        );
        assert_eq!(
            found(50, |_| Nanos(0)),
            Some((490 + 500, RailFailure::Stalled)),
            "from the first look on"
        );
        assert_eq!(
            found(384, Nanos::from_ms),
            Some((960 + 240, RailFailure::Silent)),
            "no queue takes so long"
        );
    }

    #[test]
    fn a_peer_whose_program_stands_still_has_not_stalled() {
        let mut liveness = Liveness::new(at(0));
        let seen = RailCounters { bulk_under_way: 3, bulk_acknowledged: (7, 0), ..RailCounters::default() };
        for ms in (10..5000).step_by(10) {
            liveness.look(PACE, at(ms), seen, Signs { silent: Some(Nanos(0)), ..Signs::default() });
            assert_eq!(liveness.failure(PACE, at(ms), Some(at(ms))), None);
        }
    }

    #[test]
    fn an_idle_link_probes_less() {
        let mut liveness = Liveness::new(at(0));
        let mut probes = 0;
        let mut seen = RailCounters::default();
        for ms in (10..=10_000).step_by(10) {
            if liveness.look(PACE, at(ms), seen, Signs { silent: Some(Nanos(0)), ..Signs::default() }) {
                liveness.note();
                (probes, seen.sent) = (probes + 1, seen.sent + 1);
            }
        }
        assert!((80..130).contains(&probes), "50 in the first second, then 5 in each: {probes}");
    }
}
