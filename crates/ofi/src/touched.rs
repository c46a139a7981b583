//! The bytes of the peer that puts are about to change, so that no put overtakes another on the
//! same bytes.

use std::collections::VecDeque;

use plexus_fabric::Put;

/// The bytes that the put of message `number` changes. Numbers are modulo 2^32.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Touched {
    number: u32,
    window: u16,
    start: u64,
    end: u64,
}

impl Touched {
    pub(crate) fn by(number: u32, put: &Put<'_>) -> Self {
        let end = put.offset + put.data.len() as u64;
        Self { number, window: put.window.0, start: put.offset, end }
    }

    /// Returns true if both change a common byte. A put of no bytes overlaps none.
    fn overlaps(&self, other: &Self) -> bool {
        self.window == other.window && self.start.max(other.start) < self.end.min(other.end)
    }
}

/// The puts that the peer may not have taken yet, in the order sent.
#[derive(Debug, Default)]
pub(crate) struct PutsInFlight(VecDeque<Touched>);

impl PutsInFlight {
    pub(crate) fn push(&mut self, touched: Touched) {
        self.0.push_back(touched);
    }

    /// Records that the peer has taken all messages below `number`.
    pub(crate) fn taken(&mut self, number: u32) {
        while self.0.front().is_some_and(|touched| before(touched.number, number)) {
            self.0.pop_front();
        }
    }

    /// The last message before that of `put` whose bytes it overlaps.
    pub(crate) fn overlapped(&self, put: &Touched) -> Option<u32> {
        let earlier = |other: &&Touched| before(other.number, put.number);
        self.0.iter().rev().filter(earlier).find(|other| other.overlaps(put)).map(|other| other.number)
    }
}

/// Returns true if message `one` stands before `other`.
pub(crate) fn before(one: u32, other: u32) -> bool {
    (one.wrapping_sub(other) as i32) < 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use plexus_fabric::WindowId;

    fn touched(number: u32, window: u16, offset: u64, len: usize) -> Touched {
        let data = vec![0; len];
        Touched::by(number, &Put { window: WindowId(window), offset, generation: 0, data: &data })
    }

    #[test]
    fn a_put_waits_for_the_last_earlier_one_that_it_overlaps() {
        let mut under_way = PutsInFlight::default();
        // The numbers wrap around in this test.
        let first = u32::MAX - 1;
        for (number, offset) in (0..4).map(|at| (first.wrapping_add(at), u64::from(at) * 100)) {
            under_way.push(touched(number, 1, offset, 150));
        }
        let last = first.wrapping_add(9);
        assert_eq!(under_way.overlapped(&touched(last, 1, 120, 10)), Some(first.wrapping_add(1)));
        assert_eq!(under_way.overlapped(&touched(last, 1, 450, 1000)), None, "behind them all");
        assert_eq!(under_way.overlapped(&touched(last, 2, 0, 1000)), None, "another window");
        assert_eq!(under_way.overlapped(&touched(last, 1, 120, 0)), None, "no bytes");
        under_way.push(touched(first.wrapping_add(4), 1, 500, 0));
        assert_eq!(under_way.overlapped(&touched(last, 1, 450, 100)), None, "around no bytes");
        assert_eq!(under_way.overlapped(&touched(first, 1, 0, 1000)), None, "the earliest");
        under_way.taken(first.wrapping_add(3));
        assert_eq!(under_way.overlapped(&touched(last, 1, 120, 10)), None, "taken");
        assert_eq!(under_way.overlapped(&touched(last, 1, 310, 10)), Some(first.wrapping_add(3)));
    }
}
