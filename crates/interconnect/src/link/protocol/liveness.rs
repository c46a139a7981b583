//! Whether a rail still carries: judged by what the kernel heard, not by how fast the peer's program answers.
//!
//! Whoever drives a link looks at each rail every quarter of [`Pace::probe`], every whole one while the link is not used. Something is sent at least every probe interval, so a
//! live path acknowledges it; what counts is the time from the first thing sent after the last sign of incarnation. Time in which
//! this node was not scheduled does not count against a rail: the kernel went on listening, and is asked first.
//!
//! A rail is given up when it is silent and another one is not: then there is something to gain. When none of them hears anything
//! the peer's host is the likelier cause, and its rails are kept for [`Pace::alone`].
//!
//! A lane that is not answered while the other is may only wait behind that one in a queue of the path, so it is given far
//! more time than a path on which nothing is heard; and the prompt one only from when the bulk has passed, there and back, that
//! may have been on the path before it.

use plexus_base::Nanos;
use plexus_fabric::{Flow, LANES, Lane};

/// How often to probe and how long to wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Something is sent on each rail this often while the link is in use.
    pub probe: Nanos,
    /// A silent rail is given up after this long even if no other is better.
    pub alone: Nanos,
    /// A rail that was lost and is back is used again after so long.
    pub trust: Nanos,
}

impl Default for Pace {
    fn default() -> Self {
        Self { probe: Nanos::from_ms(20), alone: Nanos::from_ms(1000), trust: Nanos::from_ms(1000) }
    }
}

impl Pace {
    /// How often [`super::LinkCore::tick`] wants to be called while the link is used.
    #[must_use]
    pub fn tick(&self) -> Nanos {
        Nanos(self.probe.0 / 4)
    }
}

/// A link that nobody used for so many probe intervals probes this many times less often.
const IDLE_AFTER: u64 = 50;
const IDLE_SLOWER: u64 = 10;

/// Long frames may stand still this many probe intervals while short ones pass.
const STALLED_AFTER: u64 = 25;

/// A lane may go without an acknowledgement of the peer's system for so many probe intervals, and a few round trips, while
/// the other is answered: longer than a packet that was lost takes to be sent again (200 ms after a round trip on Linux) and
/// then to be acknowledged.
const SWALLOWED_AFTER: u64 = 12;

/// A lane is believed to wait behind bulk for so many times as long as it may go unanswered: bulk that trickles in is no queue.
const LONGEST_QUEUE: u64 = 4;

/// What the system knows of a rail's path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Signs {
    /// How long ago the peer's host was last heard, on whichever lane; 0 while it owes no answer on any, `None` where the
    /// system does not say.
    pub silent: Option<Nanos>,
    /// The same of one lane, where each has a connection of its own; `None` while no answer is owed there.
    pub lane_silent: [Option<Nanos>; LANES],
    /// Smoothed round trip.
    pub rtt: Nanos,
    /// The longest of the lanes'.
    pub longest_rtt: Nanos,
    /// Of what is long.
    pub bulk: Flow,
}

/// Why a rail is to be given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sick {
    /// Nothing was heard, or nothing of what is prompt.
    Silent,
    /// Only short frames pass.
    Stalled,
}

/// Counters of a rail at one look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Seen {
    pub(super) sent: u64,
    pub(super) received: u64,
    /// Frames, and bytes where the system says.
    pub(super) bulk_acknowledged: (u64, u64),
    pub(super) bulk_under_way: u64,
    pub(super) bulk_received: u64,
    /// The most frames of bulk that the peer may have under way.
    pub(super) bulk_due: u64,
}

#[derive(Debug)]
pub(super) struct Liveness {
    heard: Nanos,
    /// When the first thing after `heard` was sent, as far as looks tell.
    asked: Option<Nanos>,
    probed: Nanos,
    /// When messages last went either way.
    used: Nanos,
    /// Since when long frames under way stand still, and the frames received when the bulk has passed that may be before
    /// their acknowledgement.
    stuck: Option<(Nanos, u64)>,
    /// Since when each lane alone is not answered by the peer's system, as far as looks tell.
    unanswered: [Option<Nanos>; LANES],
    /// Of when the prompt lane was first found unanswered: the bulk that may be before it and its answers, as bytes acknowledged
    /// and frames received when that has passed, and the time.
    behind: (u64, u64, Nanos),
    /// Nothing but notes passed for long.
    idle: bool,
    /// When the peer's program last said something.
    said: Nanos,
    /// How long the path, and one lane alone, may say nothing.
    timeout: (Nanos, Nanos),
    last: Seen,
    /// Sent or received since `used` that was only a note.
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
            said: now,
            timeout: (Nanos(0), Nanos(0)),
            last: Seen::default(),
            notes: 0,
        }
    }

    /// A note was sent or received: no sign that the link is used.
    #[inline]
    pub(super) fn note(&mut self) {
        self.notes += 1;
    }

    /// A regular look; whether to probe.
    pub(super) fn look(&mut self, pace: Pace, now: Nanos, seen: Seen, signs: Signs) -> bool {
        let last = std::mem::replace(&mut self.last, seen);
        // With the looks before and after, a quarter each while the link is used, one and a half make two.
        let silence = (pace.probe.0 * 3 / 2).max(4 * signs.rtt.0);
        let lane_silence = SWALLOWED_AFTER * pace.probe.0 + 4 * signs.rtt.max(signs.longest_rtt).0;
        self.timeout = (Nanos(silence), Nanos(lane_silence));
        if let Some(silent) = signs.silent {
            self.heard = self.heard.max(Nanos(now.0.saturating_sub(silent.0)));
        }
        if seen.received != last.received {
            self.said = now;
            // Where the system says more, one lane that brings something does not hide that the other is dead.
            if signs.silent.is_none() {
                self.heard = now;
            }
        }
        if self.asked.is_some_and(|asked| self.heard >= asked) {
            self.asked = None;
        }
        // While nothing is heard at all, nothing is known of one lane. Heard long ago is no sign of anything when nothing was
        // sent since.
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
        // What the peer's system has acknowledged got through: its program has yet to take it.
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

    /// Whether nothing but a rare probe is due.
    pub(super) fn is_idle(&self) -> bool {
        self.idle
    }

    /// Since when it owes a sign of incarnation, if half of its time for that has passed.
    pub(super) fn suspected(&self, now: Nanos) -> Option<Nanos> {
        self.asked.filter(|asked| now.since(*asked).0 >= self.timeout.0.0 / 2)
    }

    /// Whether to ask for a sign of incarnation at once, which must be newer than `than`: neither was there one nor is it asked for already.
    pub(super) fn ask(&mut self, now: Nanos, than: Nanos) -> bool {
        let ask = self.heard < than && self.asked.is_none();
        if ask {
            (self.asked, self.probed) = (Some(now), now);
        }
        ask
    }

    /// When it was last heard.
    pub(super) fn heard(&self) -> Nanos {
        self.heard
    }

    /// Whether to give it up, `others` having been heard last at that time.
    pub(super) fn sick(&self, pace: Pace, now: Nanos, others: Option<Nanos>) -> Option<Sick> {
        let (silence, lane_silence) = self.timeout;
        if let Some(asked) = self.asked {
            let waited = now.since(asked);
            let is_better = others.is_some_and(|heard| heard >= asked);
            if waited >= silence && (is_better || waited >= pace.alone) {
                return Some(Sick::Silent);
            }
        }
        let limit = if others.is_some() { lane_silence.0 } else { 4 * lane_silence.0 };
        for (lane, since) in Lane::ALL.into_iter().zip(self.unanswered) {
            if since.is_some_and(|since| now.since(since).0 >= limit) {
                return Some(if lane == Lane::Prompt { Sick::Silent } else { Sick::Stalled });
            }
        }
        // The peer's program lives and answers what is short: it would have told of long frames too.
        if let Some((stuck, _)) = self.stuck {
            let limit = STALLED_AFTER * pace.probe.0;
            let limit = if others.is_some() { limit } else { 4 * limit };
            if now.since(stuck).0 >= limit && self.said.since(stuck).0 >= limit / 2 {
                return Some(Sick::Stalled);
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

    /// Looks every 10 ms until it is sick or 5 s have passed; when it was found sick. `silent`: what the system says.
    fn run(
        others: impl Fn(u64) -> Option<Nanos>,
        silent: impl Fn(u64) -> Option<Nanos>,
    ) -> Option<(u64, Sick)> {
        let mut liveness = Liveness::new(at(0));
        let mut seen = Seen::default();
        for ms in (10..5000).step_by(10) {
            seen.sent += 1;
            liveness.look(PACE, at(ms), seen, Signs { silent: silent(ms), ..Signs::default() });
            if let Some(sick) = liveness.sick(PACE, at(ms), others(ms)) {
                return Some((ms, sick));
            }
        }
        None
    }

    #[test]
    fn a_path_that_acknowledges_lives_however_slow_the_program() {
        assert_eq!(run(|ms| Some(at(ms)), |_| Some(Nanos::from_ms(4))), None);
    }

    #[test]
    fn silence_is_found_within_three_probes_if_another_path_is_better() {
        let since_500 = |ms: u64| Some(Nanos::from_ms(ms.saturating_sub(500)));
        let (found, sick) = run(|ms| Some(at(ms)), since_500).unwrap();
        assert!(sick == Sick::Silent && found <= 500 + 50, "{found}");
        let (found, sick) = run(|_| None, since_500).unwrap();
        assert!(
            sick == Sick::Silent && (1400..1600).contains(&found),
            "alone it is given more time: {found}"
        );
        let (found, _) = run(|ms| Some(at(ms.min(490))), since_500).unwrap();
        assert!(found > 1400, "the others are silent too: {found}");
    }

    #[test]
    fn long_frames_that_stand_still_while_short_ones_pass_are_a_stall() {
        let mut liveness = Liveness::new(at(0));
        let mut seen = Seen { bulk_under_way: 3, bulk_acknowledged: (7, 0), ..Seen::default() };
        let found = (10..5000).step_by(10).find(|ms| {
            (seen.sent, seen.received) = (seen.sent + 1, seen.received + 1);
            liveness.look(PACE, at(*ms), seen, Signs::default());
            liveness.sick(PACE, at(*ms), Some(at(*ms))) == Some(Sick::Stalled)
        });
        assert!(found.is_some_and(|ms| (500..600).contains(&ms)), "{found:?}");
    }

    /// What the system says when one lane was heard so long ago, the other just now.
    fn lane_silent(lane: Lane, ms: u64) -> Signs {
        let mut signs = Signs { silent: Some(Nanos(0)), ..Signs::default() };
        signs.lane_silent[lane.index()] = Some(Nanos::from_ms(ms));
        signs
    }

    /// How long after frames of a lane were first on their way, unheard since, the rail is given up; the system last heard
    /// an acknowledgement of some so long before.
    fn given_up_after(lane: Lane, idle_ms: u64, rtt: Nanos, others: bool) -> Option<(u64, Sick)> {
        let mut liveness = Liveness::new(at(0));
        (0..3000).step_by(10).find_map(|ms| {
            let signs = Signs { longest_rtt: rtt, ..lane_silent(lane, idle_ms + ms) };
            liveness.look(PACE, at(ms), Seen::default(), signs);
            Some((ms, liveness.sick(PACE, at(ms), others.then_some(at(ms)))?))
        })
    }

    fn stalled_after(idle_ms: u64, rtt: Nanos, others: bool) -> Option<u64> {
        let (after, sick) = given_up_after(Lane::Bulk, idle_ms, rtt, others)?;
        (sick == Sick::Stalled).then_some(after)
    }

    #[test]
    fn long_packets_that_are_swallowed_are_a_stall_and_one_that_is_lost_is_not() {
        assert_eq!(
            stalled_after(10, Nanos(0), true),
            Some(240),
            "one that is lost is sent again after 200 ms"
        );
        assert_eq!(stalled_after(10, Nanos(0), false), Some(960), "there is nothing to go to");
        assert_eq!(
            stalled_after(10, Nanos::from_ms(50), true),
            Some(440),
            "a long queue: the repetition waits too"
        );
        assert_eq!(stalled_after(60_000, Nanos(0), true), Some(240), "nothing was sent for a minute");
    }

    #[test]
    fn acknowledgements_now_and_then_are_no_stall() {
        let mut liveness = Liveness::new(at(0));
        for ms in (0..5000).step_by(10) {
            let signs = lane_silent(Lane::Bulk, 1 + ms % 220);
            liveness.look(PACE, at(ms), Seen::default(), signs);
            assert_eq!(liveness.sick(PACE, at(ms), Some(at(ms))), None);
        }
    }

    /// Bulk had filled a queue of the path faster than round trips were learned: the prompt lane was behind it for 100 ms.
    #[test]
    fn a_prompt_lane_that_waits_behind_bulk_is_no_silence_and_a_dead_one_is() {
        assert_eq!(given_up_after(Lane::Prompt, 10, Nanos(0), true), Some((240, Sick::Silent)));
        let mut liveness = Liveness::new(at(0));
        let mut seen = Seen::default();
        for ms in (0..5000).step_by(10) {
            seen.sent += 1;
            liveness.look(PACE, at(ms), seen, lane_silent(Lane::Prompt, ms % 200));
            assert_eq!(liveness.sick(PACE, at(ms), Some(at(ms))), None, "{ms}");
        }
    }

    /// An outage of a second in which the peer's host said nothing on either lane, then on the prompt one first: a packet that
    /// was lost was sent again there sooner.
    #[test]
    fn an_outage_of_the_only_path_is_not_counted_against_one_lane() {
        let mut liveness = Liveness::new(at(0));
        let mut seen = Seen::default();
        for ms in (0..1500).step_by(10) {
            seen.sent += 1;
            let mut signs = lane_silent(Lane::Bulk, ms);
            if ms < 900 {
                signs.silent = Some(Nanos::from_ms(ms));
                signs.lane_silent[Lane::Prompt.index()] = signs.silent;
            }
            liveness.look(PACE, at(ms), seen, signs);
            assert_eq!(liveness.sick(PACE, at(ms), None), None, "{ms}");
        }
    }

    /// Its program stood still for a third of a second, spoke, and stood still again before it had taken what was long.
    #[test]
    fn long_frames_that_are_with_the_peers_system_have_not_stalled() {
        let mut liveness = Liveness::new(at(0));
        let mut seen = Seen { bulk_under_way: 3, bulk_acknowledged: (7, 90_000), ..Seen::default() };
        let bulk = Flow { acknowledged: 90_000, ..Flow::default() };
        let signs = Signs { silent: Some(Nanos(0)), bulk, ..Signs::default() };
        for ms in (10..5000).step_by(10) {
            seen.received += 1;
            liveness.look(PACE, at(ms), seen, signs);
            assert_eq!(liveness.sick(PACE, at(ms), Some(at(ms))), None, "{ms}");
        }
    }

    /// A slow path was full of the peer's bulk: what was sent there, and its acknowledgement, waited behind that. A frame comes with
    /// each look, and so many may have been on the path before.
    #[test]
    fn what_waits_behind_the_peers_bulk_is_missed_when_that_has_come_or_only_trickles() {
        let found = |bulk_due: u64, prompt: fn(u64) -> Nanos| {
            let mut seen = Seen { bulk_under_way: 1, bulk_due, ..Seen::default() };
            let mut liveness = Liveness::new(at(0));
            (0..5000).step_by(10).find_map(|ms| {
                (seen.sent, seen.received) = (seen.sent + 1, seen.received + 1);
                seen.bulk_received += 1;
                let lane_silent = [Some(prompt(ms)), Some(Nanos(0))];
                let bulk = Flow { on_path: 4096, ..Flow::default() };
                let signs = Signs { silent: Some(Nanos(0)), lane_silent, bulk, ..Signs::default() };
                liveness.look(PACE, at(ms), seen, signs);
                Some((ms, liveness.sick(PACE, at(ms), Some(at(ms)))?))
            })
        };
        assert_eq!(found(50, Nanos::from_ms), Some((500 + 240, Sick::Silent)), "unanswered from 10 ms on");
        assert_eq!(found(50, |_| Nanos(0)), Some((490 + 500, Sick::Stalled)), "from the first look on");
        assert_eq!(found(384, Nanos::from_ms), Some((960 + 240, Sick::Silent)), "no queue takes so long");
    }

    #[test]
    fn a_peer_whose_program_stands_still_has_not_stalled() {
        let mut liveness = Liveness::new(at(0));
        let seen = Seen { bulk_under_way: 3, bulk_acknowledged: (7, 0), ..Seen::default() };
        for ms in (10..5000).step_by(10) {
            liveness.look(PACE, at(ms), seen, Signs { silent: Some(Nanos(0)), ..Signs::default() });
            assert_eq!(liveness.sick(PACE, at(ms), Some(at(ms))), None);
        }
    }

    #[test]
    fn an_idle_link_probes_less() {
        let mut liveness = Liveness::new(at(0));
        let mut probes = 0;
        let mut seen = Seen::default();
        for ms in (10..=10_000).step_by(10) {
            if liveness.look(PACE, at(ms), seen, Signs { silent: Some(Nanos(0)), ..Signs::default() }) {
                liveness.note();
                (probes, seen.sent) = (probes + 1, seen.sent + 1);
            }
        }
        assert!((80..130).contains(&probes), "50 in the first second, then 5 in each: {probes}");
    }
}
