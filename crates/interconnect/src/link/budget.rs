//! The amount of bulk that a link moves in one turn of its worker.
//!
//! Copying takes processor time, for which urgent messages wait whatever their lane. So bulk goes a
//! chunk at a time, and every link is polled in between. A turn in which bulk came leaves its own
//! share to the next turn. So a turn takes the time of one chunk, not of one in each direction.

use plexus_fabric::Lane;

#[derive(Default)]
pub(super) struct BulkBudget {
    /// The bytes in one turn: [`plexus_fabric::Rail::chunk`].
    chunk: usize,
    /// The bytes that may still go in this turn.
    left: usize,
    /// True if the last turn sent nothing, since bulk came.
    deferred: bool,
    /// True if something was there to be sent and had to wait.
    held_back: bool,
    /// The turns for which traffic still counts as urgent.
    urgent: u32,
}

/// The turns after the last urgent message before bulk goes in long chunks again.
const CALM: u32 = 1000;

impl BulkBudget {
    /// Sets the bytes of one turn; `None`: there is no rail.
    pub(super) fn set_chunk(&mut self, chunk: Option<usize>) {
        self.chunk = chunk.unwrap_or_default();
    }

    /// Begins a turn that has brought so many bytes of bulk.
    #[inline]
    pub(super) fn renew(&mut self, came: usize) {
        self.held_back = false;
        self.deferred = came * 2 >= self.chunk && !self.deferred;
        self.left = if self.deferred { 0 } else { self.chunk };
    }

    /// Records that an urgent message came or goes; returns true if there was none lately.
    #[inline]
    pub(super) fn hurry(&mut self) -> bool {
        std::mem::replace(&mut self.urgent, CALM) == 0
    }

    /// Counts a turn; returns true if it is the first after a long time without urgent messages.
    #[inline]
    pub(super) fn calms(&mut self) -> bool {
        self.urgent > 0 && {
            self.urgent -= 1;
            self.urgent == 0
        }
    }

    /// Returns true if there was an urgent message lately.
    pub(super) fn is_urgent(&self) -> bool {
        self.urgent > 0
    }

    /// Returns true if bulk may go; records that some was there.
    #[inline]
    pub(super) fn allows(&mut self) -> bool {
        self.held_back |= self.left == 0;
        self.left > 0
    }

    /// Counts so many bytes as sent. The last frame may be longer than the rest of the budget.
    #[inline]
    pub(super) fn spend(&mut self, lane: Lane, bytes: usize) {
        if lane == Lane::Bulk {
            self.left = self.left.saturating_sub(bytes.max(1));
        }
    }

    /// Returns true if something waits only for the next turn.
    pub(super) fn held_back(&self) -> bool {
        self.held_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: usize = 16 << 10;

    #[test]
    fn a_turn_moves_one_chunk_and_the_next_turn_comes_soon() {
        let mut budget = BulkBudget::default();
        assert!(!budget.allows() && budget.held_back(), "before the first turn");
        budget.set_chunk(Some(CHUNK));
        budget.renew(0);
        assert!(!budget.held_back() && budget.allows());
        budget.spend(Lane::Prompt, CHUNK);
        budget.spend(Lane::Bulk, CHUNK - 1);
        assert!(budget.allows(), "one byte of the budget is left");
        budget.spend(Lane::Bulk, CHUNK);
        assert!(!budget.allows() && budget.held_back());
        assert!(!budget.is_urgent() && budget.hurry() && !budget.hurry() && budget.is_urgent());
        let mut calm = Vec::new();
        for _ in 0..2 * CALM {
            if budget.calms() {
                calm.push(budget.is_urgent());
            }
        }
        assert_eq!(calm, [false], "the end of urgent traffic is reported once");
        let sends: Vec<bool> = (0..4)
            .map(|_| {
                budget.renew(CHUNK);
                budget.allows()
            })
            .collect();
        assert_eq!(sends, [false, true, false, true], "under bulk both ways, every other turn");
    }
}
