//! The silence of a peer that owes an answer. Reads no clock.

use plexus_base::Nanos;

/// The time for which nothing has come though something was due, to the precision of the looks.
pub(crate) struct PeerSilence {
    /// The signs of the peer that had come at the last look.
    heard: u64,
    since: Nanos,
    under_way: bool,
}

impl PeerSilence {
    /// The state before the peer owes anything.
    pub(crate) fn new(now: Nanos) -> Self {
        Self { heard: 0, since: now, under_way: false }
    }

    /// Updates the silence: `heard` signs have come, and the peer owes an answer while something is
    /// `under_way`.
    pub(crate) fn look(&mut self, now: Nanos, heard: u64, under_way: bool) -> Nanos {
        if self.heard != heard || !self.under_way || !under_way {
            self.since = now;
        }
        (self.heard, self.under_way) = (heard, under_way);
        now.since(self.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_only_while_an_answer_is_owed() {
        let ms = Nanos::from_ms;
        let mut quiet = PeerSilence::new(ms(0));
        assert_eq!(quiet.look(ms(100), 0, false), Nanos(0), "no answer is owed");
        assert_eq!(quiet.look(ms(200), 0, true), Nanos(0), "it was sent since the last look");
        assert_eq!(quiet.look(ms(210), 0, true), ms(10));
        assert_eq!(quiet.look(ms(260), 0, true), ms(60));
        assert_eq!(quiet.look(ms(270), 1, true), Nanos(0), "something came");
        assert_eq!(quiet.look(ms(280), 1, true), ms(10));
        assert_eq!(quiet.look(ms(290), 1, false), Nanos(0), "everything is answered");
    }
}
