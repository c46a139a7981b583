//! The speed of bulk on rails that share it, learned from the acknowledgements of the peer's
//! system.
//!
//! While long frames queue on a path, the rate of acknowledgements is the rate of the path. While
//! they do not, it is only a lower bound. If other rails are busy meanwhile, the estimate then
//! grows a little with every look, until so much is sent there that it queues, and it is measured
//! again. So a path that was slow once is tried now and then, and one that is far too slow to help
//! is left alone in between. Of two equal paths neither stays slow just because it was given
//! little.
//!
//! Round trips show that frames queue: they are longer than the shortest by more than half, and by
//! more than their normal variation. Up to twice the shortest there may still be room for more, as
//! much as the excess allows.

use plexus_base::Nanos;
use plexus_fabric::Flow;

/// A measurement over this time replaces the estimate; a shorter one replaces that part of it.
const MEASURED_OVER: Nanos = Nanos::from_ms(80);
/// A look at an idle path raises its estimate by one part in so many.
const IDLE_RAISE: u64 = 32;
/// The least raise, as a part of the fastest rate: a path in an outage seemed to carry nothing.
const LEAST_RAISE: u64 = 4096;
/// The variation of round trips without a queue.
const NOISE: Nanos = Nanos::from_us(200);

/// Returns true if long frames queue on the path.
fn queues(flow: &Flow) -> bool {
    excess(flow) > (flow.least_rtt.0 / 2).max(NOISE.0)
}

/// The excess of the round trip over one without a queue.
fn excess(flow: &Flow) -> u64 {
    flow.rtt.since(flow.least_rtt).0
}

/// The rate that the path may carry, if that may exceed the measured one: the bytes on it take as
/// long to pass as the excess of the round trip.
fn allows(flow: &Flow) -> Option<u64> {
    match excess(flow) {
        excess if excess < NOISE.0 => Some(u64::MAX),
        excess if excess < flow.least_rtt.0 => Some(flow.on_path.saturating_mul(1_000_000_000) / excess),
        _ => None,
    }
}

/// The speed of one rail.
#[derive(Debug, Default)]
pub(super) struct Speed {
    /// The estimate in bytes a second; 0: not known.
    rate: u64,
    /// The time since which it is busy, and the bytes acknowledged then.
    since: Option<(Nanos, u64)>,
}

impl Speed {
    /// Updates the estimate. `others`: the rate of the fastest busy rail among those that share
    /// bulk.
    pub(super) fn look(&mut self, now: Nanos, flow: Flow, others: Option<u64>) {
        let busy = (flow.on_path > 0).then_some((now, flow.acknowledged));
        let measured = match (std::mem::replace(&mut self.since, busy), busy) {
            (Some((since, acknowledged)), Some(_)) => {
                let took = u128::from(now.since(since).0.max(1));
                let bytes = u128::from(flow.acknowledged.saturating_sub(acknowledged));
                Some((bytes * 1_000_000_000 / took, took.min(MEASURED_OVER.0.into())))
            }
            _ => None,
        };
        let rate = u128::from(self.rate);
        let rate = match measured {
            Some((measured, _)) if rate == 0 => measured,
            Some((measured, took)) if measured > rate || queues(&flow) => {
                let over = u128::from(MEASURED_OVER.0);
                ((rate * (over - took) + measured * took) / over).max(1)
            }
            _ => rate,
        };
        self.rate = u64::try_from(rate).unwrap_or(u64::MAX);
        // The round trips of data that arrived long ago say nothing.
        let allowed = if busy.is_some() { allows(&flow) } else { Some(u64::MAX) };
        if let (Some(others), Some(allowed)) = (others, allowed) {
            let more = (self.rate / IDLE_RAISE).max(others / LEAST_RAISE).max(1);
            self.rate = self.rate.max(self.rate.saturating_add(more).min(others).min(allowed));
        }
    }

    /// The estimate in bytes a second, once it is known.
    #[inline]
    pub(super) fn rate(&self) -> Option<u64> {
        (self.rate > 0).then_some(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Nanos = Nanos::from_ms(1);

    /// The flow at a time on a path of so many bytes a millisecond: idle, with few bytes on it, or
    /// with a queue.
    fn flow(ms: u64, per_ms: u64, on_path: u64, queue: bool) -> Flow {
        let rtt = if queue { Nanos(RTT.0 * 3) } else { RTT };
        Flow { acknowledged: ms * per_ms, on_path, rtt, least_rtt: RTT }
    }

    /// Looks every 5 ms for so long, next to a path of that rate.
    fn looks(speed: &mut Speed, for_ms: u64, others: Option<u64>, flow: impl Fn(u64) -> Flow) {
        (5..=for_ms).step_by(5).for_each(|ms| speed.look(Nanos::from_ms(ms), flow(ms), others));
    }

    #[test]
    fn a_path_with_a_queue_is_measured_and_followed() {
        let mut speed = Speed::default();
        assert_eq!(speed.rate(), None);
        looks(&mut speed, 10, None, |ms| flow(ms, 1000, 1, true));
        assert_eq!(speed.rate(), Some(1_000_000));
        looks(&mut speed, 500, None, |ms| flow(ms, 100, 1, true));
        assert!((100_000..103_000).contains(&speed.rate), "{speed:?}");
        looks(&mut speed, 500, None, |ms| flow(ms, 1000, 1, true));
        assert!((970_000..=1_000_000).contains(&speed.rate), "{speed:?}");
    }

    #[test]
    fn a_path_with_a_little_queue_is_believed_to_be_as_fast_as_that_passes() {
        let mut speed = Speed { rate: 1_000_000, since: None };
        looks(&mut speed, 2000, Some(5_000_000), |ms| {
            let rtt = Nanos(RTT.0 * 14 / 10);
            Flow { acknowledged: ms * 500, on_path: 800, rtt, least_rtt: RTT }
        });
        assert_eq!(speed.rate, 2_000_000, "800 bytes in 400 us");
    }

    /// The one of two equal paths that was given less carries less: it must not be taken for the
    /// slower one.
    #[test]
    fn a_path_without_a_queue_is_believed_to_be_faster_up_to_the_others() {
        for on_path in [0, 1] {
            let mut speed = Speed { rate: 1_000_000, since: None };
            looks(&mut speed, 115, Some(5_000_000), |ms| flow(ms, 500, on_path, false));
            assert!((1_900_000..2_100_000).contains(&speed.rate), "twice as fast in 115 ms: {speed:?}");
            looks(&mut speed, 2000, Some(5_000_000), |ms| flow(ms, 500, on_path, false));
            assert_eq!(speed.rate, 5_000_000);
            looks(&mut speed, 2000, None, |ms| flow(ms, 500, on_path, false));
            assert_eq!(speed.rate, 5_000_000, "the estimate stays while the others are idle");
        }
    }

    #[test]
    fn the_rate_without_a_queue_is_a_lower_bound() {
        let mut speed = Speed { rate: 1_000_000, since: None };
        looks(&mut speed, 1000, None, |ms| flow(ms, 2000, 1, false));
        assert!((1_970_000..=2_000_000).contains(&speed.rate), "{speed:?}");
    }

    #[test]
    fn a_pause_of_the_sender_does_not_lower_the_estimate() {
        let mut speed = Speed { rate: 1_000_000, since: None };
        looks(&mut speed, 2000, None, |ms| flow(ms, 1, u64::from(ms % 10 == 0), true));
        assert_eq!(speed.rate(), Some(1_000_000));
    }

    #[test]
    fn a_path_that_carried_nothing_for_long_is_tried_again() {
        let mut speed = Speed { rate: 1, since: None };
        looks(&mut speed, 500, None, |_| flow(0, 0, 1, true));
        assert_eq!(speed.rate(), Some(1));
        looks(&mut speed, 2000, Some(1_000_000_000), |_| flow(0, 0, 0, false));
        assert_eq!(speed.rate(), Some(1_000_000_000));
    }

    #[test]
    fn a_look_that_comes_late_counts_the_time_that_passed() {
        let mut speed = Speed { rate: 1_000_000, since: None };
        for ms in [5, 1005, 2005] {
            speed.look(Nanos::from_ms(ms), flow(ms, 1000, 1, true), None);
        }
        assert_eq!(speed.rate(), Some(1_000_000));
    }
}
