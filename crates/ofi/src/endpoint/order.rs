//! Arrived messages in the order in which they were sent: a long one may be complete after a short
//! one that was sent later. This module knows no buffers or providers, and keeps no more messages
//! than the peer has credit for.

use std::collections::VecDeque;

use super::WINDOW;
use crate::wire::Message;

/// A message that has arrived.
pub(crate) struct Arrival {
    /// The buffer that holds it.
    pub(super) slot: usize,
    pub(crate) message: Message,
}

/// The arrived messages that wait for their turn.
pub(super) struct InOrder {
    /// The messages from number `next` on.
    arrived: VecDeque<Option<Arrival>>,
    next: u32,
    /// The number of all messages that the peer has sent, once it is known.
    end: Option<u32>,
}

impl InOrder {
    pub(super) fn new() -> Self {
        Self { arrived: VecDeque::with_capacity(WINDOW as usize), next: 0, end: None }
    }

    /// Keeps a message until its turn.
    ///
    /// # Errors
    /// The peer must not have sent it.
    pub(super) fn place(&mut self, arrival: Arrival) -> Result<(), &'static str> {
        let ahead = arrival.message.sequence.wrapping_sub(self.next) as usize;
        if ahead >= WINDOW as usize {
            return Err("a message out of turn or without credit");
        }
        if self.arrived.len() <= ahead {
            self.arrived.resize_with(ahead + 1, || None);
        }
        let place = &mut self.arrived[ahead];
        if place.is_some() {
            return Err("a repeated message");
        }
        *place = Some(arrival);
        Ok(())
    }

    /// Records that the peer sends no message with this number or a later one.
    pub(super) fn end_at(&mut self, number: u32) {
        self.end = Some(number);
    }

    /// The message whose turn it is, if it has arrived.
    pub(super) fn next(&mut self) -> Option<Arrival> {
        let arrival = self.arrived.front_mut()?.take()?;
        self.arrived.pop_front();
        self.next = self.next.wrapping_add(1);
        Some(arrival)
    }

    /// Returns true if the message whose turn it is has arrived.
    pub(super) fn has_next(&self) -> bool {
        self.arrived.front().is_some_and(Option::is_some)
    }

    /// Returns true if all messages that the peer ever sends were handed over.
    pub(super) fn has_ended(&self) -> bool {
        self.end == Some(self.next)
    }

    /// Discards all arrived messages.
    pub(super) fn forget(&mut self) {
        self.arrived.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Kind;

    fn arrival(sequence: u32) -> Arrival {
        let message = Message {
            kind: Kind::Frame,
            sequence,
            taken: 0,
            silent: false,
            more: false,
            asks: false,
            target: None,
            frame: 0..0,
        };
        Arrival { slot: 0, message }
    }

    #[test]
    fn each_waits_for_its_turn() {
        let mut messages = InOrder::new();
        // The numbers wrap around here.
        messages.next = u32::MAX;
        for sequence in [1, 0] {
            messages.place(arrival(sequence)).unwrap();
            assert!(!messages.has_next() && messages.next().is_none());
        }
        messages.place(arrival(u32::MAX)).unwrap();
        let taken = [(); 4].map(|()| messages.next().map(|arrival| arrival.message.sequence));
        assert_eq!(taken, [Some(u32::MAX), Some(0), Some(1), None]);
    }

    #[test]
    fn impossible_messages_are_detected() {
        let mut messages = InOrder::new();
        messages.place(arrival(1)).unwrap();
        for wrong in [1, WINDOW, u32::MAX] {
            assert!(messages.place(arrival(wrong)).is_err(), "{wrong}");
        }
        messages.place(arrival(WINDOW - 1)).unwrap();
    }

    #[test]
    fn the_end_has_come_when_everything_before_it_was_handed_over() {
        let mut messages = InOrder::new();
        messages.end_at(1);
        assert!(!messages.has_ended());
        messages.place(arrival(0)).unwrap();
        assert!(!messages.has_ended() && messages.next().is_some() && messages.has_ended());
    }
}
