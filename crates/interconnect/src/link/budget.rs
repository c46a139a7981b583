//! How much bulk a link moves in one turn of its worker.
//!
//! Copying takes the processor's time, and what is urgent waits for it whatever lane it has: so bulk goes a chunk at a time, and
//! every link is looked at in between. A turn in which bulk came leaves its own share to the next one, so that a turn takes the time
//! of one chunk, not of one each way.

use plexus_fabric::Lane;

#[derive(Default)]
pub(super) struct Budget {
    /// Bytes in one turn: [`plexus_fabric::Rail::chunk`].
    chunk: usize,
    /// Bytes that may still go in this turn.
    left: usize,
    /// The last turn sent nothing, since bulk came.
    deferred: bool,
    /// Something was there to be sent and had to wait.
    held_back: bool,
    /// Turns for which traffic still counts as urgent.
    urgent: u32,
}

/// So many turns after the last urgent message, bulk goes in long chunks again.
const CALM: u32 = 1000;

impl Budget {
    /// So much goes in one turn from now on; `None`: over no rail.
    pub(super) fn goes_at_once(&mut self, chunk: Option<usize>) {
        self.chunk = chunk.unwrap_or_default();
    }

    /// A turn begins, and has brought so many bytes of bulk.
    #[inline]
    pub(super) fn renew(&mut self, came: usize) {
        self.held_back = false;
        self.deferred = came * 2 >= self.chunk && !self.deferred;
        self.left = if self.deferred { 0 } else { self.chunk };
    }

    /// An urgent message came or goes; whether that is news.
    #[inline]
    pub(super) fn hurry(&mut self) -> bool {
        std::mem::replace(&mut self.urgent, CALM) == 0
    }

    /// Another turn begins; whether it is the first one after a long time without anything urgent.
    #[inline]
    pub(super) fn calms(&mut self) -> bool {
        self.urgent > 0 && {
            self.urgent -= 1;
            self.urgent == 0
        }
    }

    /// Whether there was something urgent lately.
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent > 0
    }

    /// Whether bulk may go; remembers that some was there.
    #[inline]
    pub(super) fn allows(&mut self) -> bool {
        self.held_back |= self.left == 0;
        self.left > 0
    }

    /// So many bytes went. The last frame may be longer than what was left.
    #[inline]
    pub(super) fn spend(&mut self, lane: Lane, bytes: usize) {
        if lane == Lane::Bulk {
            self.left = self.left.saturating_sub(bytes.max(1));
        }
    }

    /// Whether something waits for the next turn alone.
    pub(super) fn held_back(&self) -> bool {
        self.held_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 16 << 10;

    #[test]
    fn a_turn_moves_one_chunk_and_the_next_one_is_never_far() {
        let mut budget = Budget::default();
        assert!(!budget.allows() && budget.held_back(), "before the first turn");
        budget.goes_at_once(Some(CHUNK));
        budget.renew(0);
        assert!(!budget.held_back() && budget.allows());
        budget.spend(Lane::Prompt, CHUNK);
        budget.spend(Lane::Bulk, CHUNK - 1);
        assert!(budget.allows(), "a byte is left");
        budget.spend(Lane::Bulk, CHUNK);
        assert!(!budget.allows() && budget.held_back());
        assert!(!budget.is_urgent() && budget.hurry() && !budget.hurry() && budget.is_urgent());
        let mut calm = Vec::new();
        for _ in 0..2 * CALM {
            if budget.calms() {
                calm.push(budget.is_urgent());
            }
        }
        assert_eq!(calm, [false], "it is told once, when it is so");
        let sends: Vec<bool> = (0..4)
            .map(|_| {
                budget.renew(CHUNK);
                budget.allows()
            })
            .collect();
        assert_eq!(sends, [false, true, false, true], "under bulk both ways, every other turn");
    }
}
