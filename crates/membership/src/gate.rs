//! The gate for messages of other views.
//!
//! Members open a view at different moments, so messages of a newer view arrive before this node
//! has opened it: [`EpochGate`] parks them until then. Messages of an older view are handed back as
//! [`Admission::Older`]; most protocols drop them. The number of parked messages is bounded for
//! each sender; more is a fault.
//!
//! Most protocols park with [`Latest`]. A protocol that uses some messages of older views, or knows
//! which parked messages it will not need, has a [`Parking`] of its own.

use std::cmp::Ordering;

use plexus_base::Epoch;

/// The decision about a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission<M> {
    /// The message is of this view: handle it.
    Current(M),
    /// The message is of an older view: drop it, or judge it by another rule.
    Older(M),
    /// The message is of a newer view: [`EpochGate::enter`] returns it later.
    Parked,
}

/// A store for messages of newer views.
pub trait Parking {
    /// The identity of a sender.
    type Sender: Copy;
    /// The type of the parked messages.
    type Message;

    /// Keeps a message that `from` sent in the view `epoch`.
    ///
    /// # Errors
    /// The sender has sent more messages of newer views than a correct member sends.
    fn park(&mut self, from: Self::Sender, epoch: Epoch, message: Self::Message) -> Result<(), &'static str>;

    /// Removes and returns, in order, the messages to admit again now that this node is in the view
    /// `epoch`.
    fn take(&mut self, epoch: Epoch) -> Vec<(Self::Sender, Self::Message)>;
}

/// The gate of one protocol.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct EpochGate<P> {
    /// The view that this node is in; `None` before the first.
    epoch: Option<Epoch>,
    parked: P,
}

impl<P: Parking> EpochGate<P> {
    /// Creates a gate before the first view.
    #[must_use]
    pub const fn new(parking: P) -> Self {
        Self { epoch: None, parked: parking }
    }

    /// Returns the store of parked messages.
    #[must_use]
    pub const fn parked(&self) -> &P {
        &self.parked
    }

    /// Judges a message that `from` sent in the view `epoch`, and parks it if that view is not open
    /// here yet.
    ///
    /// # Errors
    /// The sender has sent more messages of newer views than a correct member sends.
    #[inline]
    pub fn admit(
        &mut self,
        from: P::Sender,
        epoch: Epoch,
        message: P::Message,
    ) -> Result<Admission<P::Message>, &'static str> {
        match Some(epoch).cmp(&self.epoch) {
            Ordering::Less => Ok(Admission::Older(message)),
            Ordering::Equal => Ok(Admission::Current(message)),
            Ordering::Greater => self.parked.park(from, epoch, message).map(|()| Admission::Parked),
        }
    }

    /// Enters a view and returns the parked messages to admit again, in their order of arrival.
    ///
    /// # Panics
    /// The view is not newer than the last.
    pub fn enter(&mut self, epoch: Epoch) -> Vec<(P::Sender, P::Message)> {
        assert!(Some(epoch) > self.epoch, "{epoch:?} after {:?}", self.epoch);
        self.epoch = Some(epoch);
        self.parked.take(epoch)
    }
}

/// A parking that keeps only the messages of each sender's latest view, up to a limit. A sender of
/// a view has left the earlier views.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Latest<S, M> {
    most: usize,
    parked: Vec<(S, Epoch, M)>,
}

impl<S, M> Latest<S, M> {
    /// Creates a parking of at most `most` messages for each sender.
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
        // The message came on another lane than the newer ones.
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

    /// Admits messages of sender, epoch and number; returns the decision on each.
    fn admitted(gate: &mut Gate, messages: &[(char, u32, u8)]) -> Vec<Admission<u8>> {
        let all = messages.iter();
        all.map(|(from, epoch, number)| gate.admit(*from, Epoch(*epoch), *number).expect("room")).collect()
    }

    #[test]
    fn older_messages_are_recognized_and_newer_ones_wait_for_their_view() {
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
    fn messages_of_views_that_a_sender_has_left_are_dropped() {
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
