//! Backpressure: the limit of messages on their way in a flow. The program and its node each keep
//! one [`FlowWindow`] per flow and apply the same rule. So the node notices at once if a program
//! exceeds the limit.

use std::collections::VecDeque;

use super::limits::{FLOW_BYTES, FLOW_MESSAGES};

/// The messages of one flow that were sent and that the receiver has not taken yet.
#[derive(Clone, Debug, Default)]
pub struct FlowWindow {
    under_way: VecDeque<u32>,
    bytes: usize,
    sent: u64,
}

impl FlowWindow {
    /// Returns true if a message of `len` bytes may be sent now.
    #[must_use]
    #[inline]
    pub fn has_room(&self, len: usize) -> bool {
        self.under_way.is_empty()
            || self.under_way.len() < FLOW_MESSAGES && self.bytes.saturating_add(len) <= FLOW_BYTES
    }

    /// Counts a sent message of `len` bytes and returns its sequence number.
    pub fn send(&mut self, len: usize) -> u64 {
        self.under_way.push_back(len as u32);
        self.bytes += len;
        self.sent += 1;
        self.sent - 1
    }

    /// Counts the next `count` messages as taken. Returns false if fewer are on their way.
    #[must_use]
    pub fn taken(&mut self, count: u64) -> bool {
        if count > self.under_way.len() as u64 {
            return false;
        }
        self.bytes -= self.under_way.drain(..count as usize).map(|len| len as usize).sum::<usize>();
        true
    }

    /// Returns the number of messages on their way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Returns the sequence number of the next message.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::limits::MAX_MESSAGE;

    #[test]
    fn a_flow_takes_so_many_messages_and_bytes_and_no_more() {
        let mut flow = FlowWindow::default();
        for expected in 0..FLOW_MESSAGES as u64 {
            assert!(flow.has_room(8));
            assert_eq!(flow.send(8), expected);
        }
        assert!(!flow.has_room(0));
        assert!(!flow.taken(FLOW_MESSAGES as u64 + 1) && flow.taken(1));
        assert!(flow.has_room(0) && flow.has_room(MAX_MESSAGE));
        assert!(flow.taken(FLOW_MESSAGES as u64 - 1) && flow.under_way() == 0);
        let longest = FLOW_BYTES / MAX_MESSAGE;
        for _ in 0..longest {
            flow.send(MAX_MESSAGE);
        }
        assert!(!flow.has_room(1) && flow.has_room(0));
        assert!(flow.taken(1) && flow.has_room(MAX_MESSAGE));
        assert_eq!(flow.next(), (FLOW_MESSAGES + longest) as u64);
    }
}
