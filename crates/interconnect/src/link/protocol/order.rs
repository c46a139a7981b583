//! The receiving side of order: frames of a channel are handed over in the order in which they were first sent, whatever rails
//! they came on and however often one of those was lost.
//!
//! Each frame carries the number of its channel's frames before it, modulo 2^24. Over one rail every frame is the next one and
//! nothing is stored. Frames that are ahead wait here; credits bound how many.

use std::collections::BTreeMap;

use super::Violation;
use crate::{CHANNELS, Channel};

/// Numbers of a channel's frames go round after this many.
const ROUND: u32 = 1 << 24;

/// A frame that is further ahead than this was never sent: all credits of all kinds and some.
const MOST_AHEAD: u32 = 1024;

/// The number after `sequence`.
#[inline]
pub(super) fn after(sequence: u32) -> u32 {
    (sequence + 1) % ROUND
}

/// Whether of two numbers that are not far apart this is the earlier.
pub(super) fn is_before(sequence: u32, other: u32) -> bool {
    sequence != other && other.wrapping_sub(sequence) % ROUND < ROUND / 2
}

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The next one: hand it over, then ask [`Order::following`] until there is nothing.
    Now,
    /// Others of its channel come first: [`Order::hold`] it.
    Ahead,
}

/// What arrived of each channel. `H` is a frame as its driver keeps it.
#[derive(Debug)]
pub struct Order<H> {
    next: [u32; CHANNELS],
    ahead: BTreeMap<(u8, u32), H>,
}

impl<H> Default for Order<H> {
    fn default() -> Self {
        Self { next: [0; CHANNELS], ahead: BTreeMap::new() }
    }
}

impl<H> Order<H> {
    /// A frame of `channel` with this number has arrived.
    ///
    /// # Errors
    /// It was here before, or cannot have been sent.
    #[inline]
    pub fn arrive(&mut self, channel: Channel, sequence: u32) -> Result<Turn, Violation> {
        let next = &mut self.next[channel.index()];
        if sequence == *next {
            *next = after(sequence);
            return Ok(Turn::Now);
        }
        let distance = sequence.wrapping_sub(*next) % ROUND;
        if distance > MOST_AHEAD || self.ahead.contains_key(&(channel as u8, sequence)) {
            return Err(Violation::Sequence);
        }
        Ok(Turn::Ahead)
    }

    /// Keeps a frame until it is its turn.
    pub fn hold(&mut self, channel: Channel, sequence: u32, frame: H) {
        self.ahead.insert((channel as u8, sequence), frame);
    }

    /// A frame of `channel` whose turn has come, if one waited for that.
    #[inline]
    pub fn following(&mut self, channel: Channel) -> Option<H> {
        if self.ahead.is_empty() {
            return None;
        }
        let next = &mut self.next[channel.index()];
        let frame = self.ahead.remove(&(channel as u8, *next))?;
        *next = after(*next);
        Some(frame)
    }

    /// Frames that wait for their turn.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ahead.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_handed_over_in_the_order_sent() {
        let mut order = Order::default();
        let channel = Channel::Files;
        assert_eq!(order.arrive(channel, 1), Ok(Turn::Ahead));
        order.hold(channel, 1, 'b');
        assert_eq!(order.arrive(channel, 1), Err(Violation::Sequence), "it is here already");
        assert_eq!(order.arrive(Channel::Disks, 0), Ok(Turn::Now), "another channel does not wait");
        assert_eq!(order.arrive(channel, 2), Ok(Turn::Ahead));
        order.hold(channel, 2, 'c');
        assert_eq!(order.following(channel), None);
        assert_eq!(order.arrive(channel, 0), Ok(Turn::Now));
        assert_eq!([order.following(channel), order.following(channel)], [Some('b'), Some('c')]);
        assert_eq!((order.following(channel), order.waiting()), (None, 0));
        assert_eq!(order.arrive(channel, 2), Err(Violation::Sequence), "it was here before");
    }

    #[test]
    fn numbers_go_round() {
        let mut order = Order::<char>::default();
        order.next[Channel::Files.index()] = ROUND - 1;
        assert_eq!(order.arrive(Channel::Files, 0), Ok(Turn::Ahead));
        order.hold(Channel::Files, 0, 'b');
        assert_eq!(order.arrive(Channel::Files, ROUND - 1), Ok(Turn::Now));
        assert_eq!(order.following(Channel::Files), Some('b'));
        assert_eq!(order.arrive(Channel::Files, 1), Ok(Turn::Now));
    }
}
