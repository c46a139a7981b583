//! The receiving side of order: frames of a channel are handed over in the order in which they were
//! first sent, whatever rails they came on and however often a rail was lost.
//!
//! Each frame carries the number of its channel's frames before it, modulo 2^24. Over one rail
//! every frame is the next one and nothing is stored. Frames that are ahead wait here; credits
//! bound their number.

use std::collections::BTreeMap;

use super::Violation;
use crate::{CHANNELS, Channel};

/// The modulus of the numbers of a channel's frames.
const ROUND: u32 = 1 << 24;

/// The largest distance of a frame that is ahead: more than all credits of all kinds.
const MOST_AHEAD: u32 = 1024;

/// The number after `sequence`.
#[inline]
pub(super) fn after(sequence: u32) -> u32 {
    (sequence + 1) % ROUND
}

/// Returns true if `sequence` is the earlier of two numbers that are not far apart.
pub(super) fn is_before(sequence: u32, other: u32) -> bool {
    sequence != other && other.wrapping_sub(sequence) % ROUND < ROUND / 2
}

/// The turn of an arrived frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// It is the next one: hand it over, then call [`Order::following`] until there is none.
    Now,
    /// Others of its channel come first: [`Order::hold`] it.
    Ahead,
}

/// The order of the arrived frames of each channel. `H` is a frame as its driver keeps it.
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
    /// Records a frame of `channel` with this number.
    ///
    /// # Errors
    /// It is a repeated frame, or one that cannot have been sent.
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

    /// Keeps a frame until its turn.
    pub fn hold(&mut self, channel: Channel, sequence: u32, frame: H) {
        self.ahead.insert((channel as u8, sequence), frame);
    }

    /// Takes a waiting frame of `channel` whose turn has come.
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

    /// The frames that wait for their turn.
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
        assert_eq!(order.arrive(channel, 1), Err(Violation::Sequence), "it has arrived already");
        assert_eq!(order.arrive(Channel::Disks, 0), Ok(Turn::Now), "another channel does not wait");
        assert_eq!(order.arrive(channel, 2), Ok(Turn::Ahead));
        order.hold(channel, 2, 'c');
        assert_eq!(order.following(channel), None);
        assert_eq!(order.arrive(channel, 0), Ok(Turn::Now));
        assert_eq!([order.following(channel), order.following(channel)], [Some('b'), Some('c')]);
        assert_eq!((order.following(channel), order.waiting()), (None, 0));
        assert_eq!(order.arrive(channel, 2), Err(Violation::Sequence), "it arrived before");
    }

    #[test]
    fn numbers_wrap_around() {
        let mut order = Order::<char>::default();
        order.next[Channel::Files.index()] = ROUND - 1;
        assert_eq!(order.arrive(Channel::Files, 0), Ok(Turn::Ahead));
        order.hold(Channel::Files, 0, 'b');
        assert_eq!(order.arrive(Channel::Files, ROUND - 1), Ok(Turn::Now));
        assert_eq!(order.following(Channel::Files), Some('b'));
        assert_eq!(order.arrive(Channel::Files, 1), Ok(Turn::Now));
    }
}
