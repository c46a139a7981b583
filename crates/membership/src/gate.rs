//! Which view a message belongs to, and what becomes of one that does not belong to this one.
//!
//! Members open a view at different moments, so messages of a newer view arrive before this node has opened
//! it: [`EpochGate`] parks them until then. Messages of an older view are handed back as [`Admission::Older`];
//! most protocols drop them. What is parked is bounded for each sender; more than that is a fault.
//!
//! Most protocols park with [`Latest`]. One that uses some messages of older views, or knows which of those that
//! it parks it will not need, has a [`Parking`] of its own.

use plexus_base::Epoch;

/// What to do with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission<M> {
    /// Handle it: it is of this view.
    Current(M),
    /// Refuse it, or judge it by another rule: it is of an older view.
    Older(M),
    /// Nothing now: [`EpochGate::enter`] hands it out.
    Parked,
}

/// Keeps messages of views to come.
pub trait Parking {
    /// What senders are told apart by.
    type Sender: Copy;
    /// What they send.
    type Message;

    /// Keeps a message that `from` sent in the view `epoch`.
    ///
    /// # Errors
    /// The sender has sent more of views to come than members send.
    fn park(&mut self, from: Self::Sender, epoch: Epoch, message: Self::Message) -> Result<(), &'static str>;

    /// Takes out, in order, what is to be judged again now that this node is in the view `epoch`.
    fn take(&mut self, epoch: Epoch) -> Vec<(Self::Sender, Self::Message)>;
}

/// The gate of one protocol.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EpochGate<P> {
    epoch: Epoch,
    parked: P,
}

impl<P: Parking> EpochGate<P> {
    /// A gate before the first view.
    #[must_use]
    pub const fn new(parking: P) -> Self {
        Self { epoch: Epoch(0), parked: parking }
    }

    /// What is parked.
    #[must_use]
    pub const fn parked(&self) -> &P {
        &self.parked
    }

    /// Judges a message that `from` sent in the view `epoch`, and parks it if this node has yet to open that.
    ///
    /// # Errors
    /// The sender has sent more of views to come than members send.
    #[inline]
    pub fn admit(
        &mut self,
        from: P::Sender,
        epoch: Epoch,
        message: P::Message,
    ) -> Result<Admission<P::Message>, &'static str> {
        // Nothing is of this view before the first.
        if epoch > self.epoch || self.epoch == Epoch(0) {
            return self.parked.park(from, epoch, message).map(|()| Admission::Parked);
        }
        Ok(if epoch == self.epoch { Admission::Current(message) } else { Admission::Older(message) })
    }

    /// Enters a view; the parked messages that are to be admitted again now, in the order in which they came.
    ///
    /// # Panics
    /// When the view is not newer than the last.
    pub fn enter(&mut self, epoch: Epoch) -> Vec<(P::Sender, P::Message)> {
        assert!(epoch > self.epoch, "{epoch:?} after {:?}", self.epoch);
        self.epoch = epoch;
        self.parked.take(epoch)
    }
}

/// Keeps of each sender the messages of the latest view that it has spoken in, up to a number: a sender that speaks
/// in a view has left those before.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Latest<S, M> {
    most: usize,
    parked: Vec<(S, Epoch, M)>,
}

impl<S, M> Latest<S, M> {
    /// Keeps at most so many messages of each sender.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self { most, parked: Vec::new() }
    }
}

impl<S: Copy + Eq, M> Parking for Latest<S, M> {
    type Sender = S;
    type Message = M;

    fn park(&mut self, from: S, epoch: Epoch, message: M) -> Result<(), &'static str> {
        let newest = self.parked.iter().filter(|(sender, ..)| *sender == from).map(|(_, parked, _)| *parked);
        // It came on another lane than what came before.
        if newest.max().is_some_and(|newest| newest > epoch) {
            return Ok(());
        }
        self.parked.retain(|(sender, parked, _)| *sender != from || *parked == epoch);
        if self.parked.iter().filter(|(sender, ..)| *sender == from).count() >= self.most {
            return Err("more messages of a view to come than members send");
        }
        self.parked.push((from, epoch, message));
        Ok(())
    }

    fn take(&mut self, epoch: Epoch) -> Vec<(S, M)> {
        let ripe = self.parked.extract_if(.., |(_, parked, _)| *parked <= epoch);
        ripe.filter(|(_, parked, _)| *parked == epoch).map(|(from, _, message)| (from, message)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Gate = EpochGate<Latest<char, u8>>;

    fn gate(most: usize) -> Gate {
        EpochGate::new(Latest::new(most))
    }

    /// Admits messages of sender, epoch and number; what came of each.
    fn admitted(gate: &mut Gate, messages: &[(char, u32, u8)]) -> Vec<Admission<u8>> {
        let all = messages.iter();
        all.map(|(from, epoch, number)| gate.admit(*from, Epoch(*epoch), *number).expect("room")).collect()
    }

    #[test]
    fn older_messages_are_told_apart_and_newer_ones_wait_for_their_view() {
        let mut gate = gate(8);
        let early = admitted(&mut gate, &[('a', 1, 1), ('b', 2, 2), ('a', 1, 3)]);
        assert_eq!(early, [Admission::Parked; 3], "nothing is of this view before the first");
        assert_eq!(gate.enter(Epoch(1)), [('a', 1), ('a', 3)]);
        assert_eq!(admitted(&mut gate, &[('a', 1, 4)]), [Admission::Current(4)]);
        assert_eq!(gate.enter(Epoch(2)), [('b', 2)]);
        assert_eq!(admitted(&mut gate, &[('a', 1, 5)]), [Admission::Older(5)]);
        assert_eq!(gate.enter(Epoch(3)), []);
    }

    #[test]
    fn what_a_sender_has_left_behind_is_dropped() {
        let mut gate = gate(8);
        admitted(&mut gate, &[('a', 2, 1), ('b', 2, 2), ('a', 3, 3), ('a', 2, 4)]);
        assert_eq!(gate.enter(Epoch(2)), [('b', 2)]);
        assert_eq!(gate.enter(Epoch(3)), [('a', 3)]);
        admitted(&mut gate, &[('b', 4, 5)]);
        assert_eq!(gate.enter(Epoch(5)), [], "of a view that was missed");
    }

    #[test]
    fn more_than_the_bound_is_a_fault_of_that_sender_alone() {
        let mut gate = gate(2);
        admitted(&mut gate, &[('a', 2, 1), ('a', 2, 2), ('b', 2, 3)]);
        assert!(gate.admit('a', Epoch(2), 4).is_err());
        assert_eq!(gate.admit('b', Epoch(2), 6), Ok(Admission::Parked));
        assert_eq!(gate.admit('a', Epoch(3), 7), Ok(Admission::Parked), "it has left the view before");
    }
}
