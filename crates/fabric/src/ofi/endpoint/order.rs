//! Messages that have arrived, in the order in which they were sent: a long one may be complete after a short one that was
//! sent later. Knows nothing of buffers and providers, and no more messages than the peer has credit for.

use std::collections::VecDeque;

use super::WINDOW;
use crate::ofi::wire::Message;

/// A message that has arrived.
pub(in crate::ofi) struct Arrival {
    /// The buffer that it lies in.
    pub(super) slot: usize,
    pub(in crate::ofi) message: Message,
}

/// See the module.
pub(super) struct InOrder {
    /// From number `next` on.
    arrived: VecDeque<Option<Arrival>>,
    next: u32,
    /// How many the peer says it has sent in all.
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
            return Err("a message that came before");
        }
        *place = Some(arrival);
        Ok(())
    }

    /// The peer sends no message with this number, and none after it.
    pub(super) fn end_at(&mut self, number: u32) {
        self.end = Some(number);
    }

    /// The message whose turn it is, if it is here.
    pub(super) fn next(&mut self) -> Option<Arrival> {
        let arrival = self.arrived.front_mut()?.take()?;
        self.arrived.pop_front();
        self.next = self.next.wrapping_add(1);
        Some(arrival)
    }

    /// Whether the message is here whose turn it is.
    pub(super) fn has_next(&self) -> bool {
        self.arrived.front().is_some_and(Option::is_some)
    }

    /// Whether all was handed over that the peer has ever sent.
    pub(super) fn has_ended(&self) -> bool {
        self.end == Some(self.next)
    }

    /// Hands over nothing of what is here.
    pub(super) fn forget(&mut self) {
        self.arrived.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ofi::wire::Kind;

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
        // Around where numbers begin again.
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
    fn what_the_peer_must_not_send_is_found_out() {
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
