//! The pure core of a link: what may be sent now, what must be kept, what is sent again.
//!
//! A link is a pair of [`LinkCore`]s, one at each node, over one rail at a time. The core knows frames only as
//! values of `F`; whoever drives it (the link's driver, or the simulator) brings them to a rail.
//!
//! **Contract.** To send: ask [`LinkCore::ready`]; if so, offer the frame with [`LinkCore::stamp`]'s credits to
//! the rail and, when the rail took it, call [`LinkCore::sent`]; otherwise [`LinkCore::queue`] it. After every batch
//! call [`LinkCore::pump`]. For every frame that arrives call [`LinkCore::receive`] with the stamp it carried, and
//! [`LinkCore::consume`] once it has been handled. Frames for which `receive` returns an error end the rail.
//!
//! **What holds.** Frames of one (kind, lane) are delivered once each, in the order offered. At most
//! [`Limits::credits`] frames of a kind are sent and not yet handled; a peer that exceeds this is cut off. No call
//! blocks and nothing depends on the size of the rail's ring: two slots are enough.
//!
//! **Rails that lose.** Where rails can be lost while the peer lives (`retains`), a sent frame stays until the
//! peer's note acknowledges it. When a rail is lost, first the receiver destroys its end ([`LinkCore::rail_lost`]); on the
//! next rail both tell what they received ([`LinkCore::received`]) and hand the other's answer to
//! [`LinkCore::resume`]: what lies above it is sent again, with the credits that it carried the first time, so
//! that credits too are returned exactly once.

use std::collections::VecDeque;

use plexus_fabric::{LANES, Lane};

use crate::{KINDS, Kind};

/// Credits of a link, the same at both ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// How many frames of each kind may be under way and unhandled, 1 to 255.
    pub credits: [u8; KINDS],
}

impl Default for Limits {
    /// A request is at most passed on once and answered once, so forwards and replies get as many.
    fn default() -> Self {
        Self { credits: [128; KINDS] }
    }
}

/// What a frame carries for the link itself: handled frames of each kind that it reports to the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct Stamp {
    /// Credits returned.
    pub credits: [u8; KINDS],
}

/// A peer that does not keep to the protocol; its rail must be destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Violation {
    /// More frames of a kind than it had credits for.
    #[error("the peer sent more than it has credits for")]
    Flood,
    /// Returned credits that were never used.
    #[error("the peer returned credits that it never got")]
    Credits,
    /// Acknowledged frames that were never sent, or took back an acknowledgement.
    #[error("the peer acknowledged what was not sent")]
    Acknowledged,
}

/// The rail has no room; what a driver answers to [`LinkCore::pump`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoom;

/// What [`LinkCore::pump`] asks to be sent.
#[derive(Debug)]
pub enum Outgoing<'a, F> {
    /// A frame that was queued or must be sent again.
    Frame(&'a F),
    /// A note: how many frames were received on each lane.
    Note([u64; LANES]),
}

enum Kept<F> {
    Frame(F),
    Note([u64; LANES]),
}

struct LaneState<F> {
    sent: u64,
    /// The next frame to bring to the rail; behind `sent` while frames are sent again.
    cursor: u64,
    acknowledged: u64,
    received: u64,
    /// How much of `received` the peer has been told.
    noted: u64,
    kept: VecDeque<(Stamp, Kept<F>)>,
}

/// One end of a link. See the [module](self) for the contract.
pub struct LinkCore<F> {
    limits: Limits,
    retains: bool,
    up: bool,
    credits: [u8; KINDS],
    /// Handled and not yet returned.
    owed: [u8; KINDS],
    /// Received and not yet handled.
    unhandled: [u8; KINDS],
    lanes: [LaneState<F>; LANES],
    outbox: [[VecDeque<F>; LANES]; KINDS],
    queued: usize,
}

/// Frames of a lane received without telling the peer, on a rail that retains: what the peer keeps in memory.
const NOTE_EVERY: u64 = 32;

impl<F> LinkCore<F> {
    /// A link whose rail is up and which has carried nothing. `retains`: rails can be lost while the peer lives.
    #[must_use]
    pub fn new(limits: Limits, retains: bool) -> Self {
        assert!(limits.credits.iter().all(|credits| *credits > 0), "a kind without credits never moves");
        let lane = || LaneState {
            sent: 0,
            cursor: 0,
            acknowledged: 0,
            received: 0,
            noted: 0,
            kept: VecDeque::new(),
        };
        Self {
            limits,
            retains,
            up: true,
            credits: limits.credits,
            owed: [0; KINDS],
            unhandled: [0; KINDS],
            lanes: [lane(), lane()],
            outbox: Default::default(),
            queued: 0,
        }
    }

    /// Whether a frame may go to the rail at once, before anything that waits.
    #[must_use]
    #[inline]
    pub fn ready(&self, kind: Kind, lane: Lane) -> bool {
        let state = &self.lanes[lane.index()];
        self.up
            && self.credits[kind as usize] > 0
            && state.cursor == state.sent
            && (self.queued == 0 || self.outbox[kind as usize][lane.index()].is_empty())
    }

    /// The stamp for the next frame.
    #[must_use]
    #[inline]
    pub fn stamp(&self) -> Stamp {
        Stamp { credits: self.owed }
    }

    /// The rail took a frame that carried `stamp`. `keep` makes the copy that is kept where rails can be lost.
    #[inline]
    pub fn sent(&mut self, kind: Kind, lane: Lane, stamp: Stamp, keep: impl FnOnce() -> F) {
        debug_assert!(self.ready(kind, lane), "sent without asking");
        self.credits[kind as usize] -= 1;
        self.advance(lane, stamp, || Kept::Frame(keep()));
    }

    #[inline]
    fn advance(&mut self, lane: Lane, stamp: Stamp, keep: impl FnOnce() -> Kept<F>) {
        for (owed, returned) in self.owed.iter_mut().zip(stamp.credits) {
            *owed -= returned;
        }
        let state = &mut self.lanes[lane.index()];
        state.sent += 1;
        state.cursor += 1;
        if self.retains {
            state.kept.push_back((stamp, keep()));
        }
    }

    /// Keeps a frame until credits and room are there.
    pub fn queue(&mut self, kind: Kind, lane: Lane, frame: F) {
        self.outbox[kind as usize][lane.index()].push_back(frame);
        self.queued += 1;
    }

    /// Frames that wait for credits or room.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Whether [`LinkCore::pump`] would offer something to the rail.
    #[must_use]
    #[inline]
    pub fn wants_pump(&self) -> bool {
        self.up && (self.queued > 0 || self.note_due() || self.lanes.iter().any(|l| l.cursor < l.sent))
    }

    fn note_due(&self) -> bool {
        (0..KINDS).any(|kind| u16::from(self.owed[kind]) * 2 >= u16::from(self.limits.credits[kind]))
            || (self.retains && self.lanes.iter().any(|lane| lane.received - lane.noted >= NOTE_EVERY))
    }

    /// Brings to the rail what waits: first what is sent again, then a note if one is due, then what was queued.
    ///
    /// `send` is called with the lane, the stamp, and what to send, until it answers [`NoRoom`] for a lane.
    pub fn pump(&mut self, send: &mut dyn FnMut(Lane, Stamp, Outgoing<'_, F>) -> Result<(), NoRoom>) {
        if !self.wants_pump() {
            return;
        }
        let mut room = [true; LANES];
        for lane in Lane::ALL {
            let state = &mut self.lanes[lane.index()];
            while state.cursor < state.sent {
                let (stamp, kept) = &state.kept[(state.cursor - state.acknowledged) as usize];
                let outgoing = match kept {
                    Kept::Frame(frame) => Outgoing::Frame(frame),
                    Kept::Note(received) => Outgoing::Note(*received),
                };
                if send(lane, *stamp, outgoing).is_err() {
                    room[lane.index()] = false;
                    break;
                }
                state.cursor += 1;
            }
        }
        if room[Lane::Prompt.index()] && self.note_due() {
            let (stamp, received) = (self.stamp(), self.received());
            if send(Lane::Prompt, stamp, Outgoing::Note(received)).is_ok() {
                self.advance(Lane::Prompt, stamp, || Kept::Note(received));
                for lane in &mut self.lanes {
                    lane.noted = lane.received;
                }
            } else {
                room[Lane::Prompt.index()] = false;
            }
        }
        // Replies first: they end things and free what others wait for.
        for kind in Kind::ALL.into_iter().rev() {
            for lane in Lane::ALL {
                while room[lane.index()] && self.credits[kind as usize] > 0 {
                    let Some(frame) = self.outbox[kind as usize][lane.index()].pop_front() else { break };
                    let stamp = self.stamp();
                    if send(lane, stamp, Outgoing::Frame(&frame)).is_err() {
                        room[lane.index()] = false;
                        self.outbox[kind as usize][lane.index()].push_front(frame);
                        break;
                    }
                    self.queued -= 1;
                    self.credits[kind as usize] -= 1;
                    self.advance(lane, stamp, || Kept::Frame(frame));
                }
            }
        }
    }

    /// A frame arrived; `kind` is `None` for a note.
    ///
    /// # Errors
    /// The peer broke the protocol.
    #[inline]
    pub fn receive(&mut self, kind: Option<Kind>, lane: Lane, stamp: Stamp) -> Result<(), Violation> {
        for kind in 0..KINDS {
            let credits = u16::from(self.credits[kind]) + u16::from(stamp.credits[kind]);
            if credits > u16::from(self.limits.credits[kind]) {
                return Err(Violation::Credits);
            }
            self.credits[kind] = credits as u8;
        }
        if let Some(kind) = kind {
            let unhandled = &mut self.unhandled[kind as usize];
            if u16::from(*unhandled) + u16::from(self.owed[kind as usize])
                >= u16::from(self.limits.credits[kind as usize])
            {
                return Err(Violation::Flood);
            }
            *unhandled += 1;
        }
        self.lanes[lane.index()].received += 1;
        Ok(())
    }

    /// A received frame of `kind` has been handled: its credit goes back with the next frame.
    #[inline]
    pub fn consume(&mut self, kind: Kind) {
        self.unhandled[kind as usize] -= 1;
        self.owed[kind as usize] += 1;
    }

    /// A note arrived that says how much the peer has received.
    ///
    /// # Errors
    /// The peer broke the protocol.
    pub fn noted(&mut self, received: [u64; LANES]) -> Result<(), Violation> {
        for (lane, received) in self.lanes.iter_mut().zip(received) {
            // A note is itself sent again after a failover, and then may be older than the resumption was.
            if received > lane.sent {
                return Err(Violation::Acknowledged);
            }
            lane.acknowledge(received);
        }
        Ok(())
    }

    /// How many frames were received on each lane.
    #[must_use]
    pub fn received(&self) -> [u64; LANES] {
        [self.lanes[0].received, self.lanes[1].received]
    }

    /// The rail is dead and this end of it destroyed: nothing that was under way on it can arrive any more.
    ///
    /// # Panics
    /// When the link does not retain: then only the peer's death ends a rail.
    pub fn rail_lost(&mut self) {
        assert!(self.retains, "a link that keeps nothing cannot lose its rail");
        self.up = false;
    }

    /// A new rail is up, and the peer says on it how much it had received.
    ///
    /// # Errors
    /// The peer broke the protocol.
    pub fn resume(&mut self, peer_received: [u64; LANES]) -> Result<(), Violation> {
        for (lane, received) in self.lanes.iter_mut().zip(peer_received) {
            if received > lane.sent || received < lane.acknowledged {
                return Err(Violation::Acknowledged);
            }
            lane.acknowledge(received);
            lane.cursor = received;
            lane.noted = lane.received;
        }
        self.up = true;
        Ok(())
    }
}

impl<F> LaneState<F> {
    fn acknowledge(&mut self, received: u64) {
        while self.acknowledged < received {
            self.kept.pop_front();
            self.acknowledged += 1;
        }
        self.cursor = self.cursor.max(self.acknowledged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn core(credits: u8, retains: bool) -> LinkCore<u32> {
        LinkCore::new(Limits { credits: [credits; KINDS] }, retains)
    }

    #[test]
    fn credits_run_out_and_come_back() {
        let mut sender = core(2, false);
        let mut receiver = core(2, false);
        for _ in 0..2 {
            assert!(sender.ready(Kind::Request, Lane::Prompt));
            let stamp = sender.stamp();
            sender.sent(Kind::Request, Lane::Prompt, stamp, || 0);
            receiver.receive(Some(Kind::Request), Lane::Prompt, stamp).unwrap();
        }
        assert!(!sender.ready(Kind::Request, Lane::Prompt), "no credits");
        assert!(sender.ready(Kind::Reply, Lane::Prompt), "a kind of its own");
        assert_eq!(
            receiver.receive(Some(Kind::Request), Lane::Prompt, Stamp::default()),
            Err(Violation::Flood),
            "a peer that sends without credits is cut off"
        );
        receiver.consume(Kind::Request);
        let mut notes = 0;
        receiver.pump(&mut |lane, stamp, outgoing| {
            assert!(matches!(outgoing, Outgoing::Note(_)));
            sender.receive(None, lane, stamp).unwrap();
            notes += 1;
            Ok(())
        });
        assert_eq!(notes, 1);
        assert!(sender.ready(Kind::Request, Lane::Prompt));
    }

    #[test]
    fn what_was_not_received_is_sent_again_and_nothing_else() {
        let mut sender = core(100, true);
        for frame in 0..10 {
            let stamp = sender.stamp();
            sender.sent(Kind::Request, Lane::Bulk, stamp, || frame);
        }
        sender.rail_lost();
        assert!(!sender.ready(Kind::Request, Lane::Bulk));
        sender.queue(Kind::Request, Lane::Bulk, 10);
        sender.resume([0, 7]).unwrap();
        let mut again = Vec::new();
        sender.pump(&mut |_, _, outgoing| {
            if let Outgoing::Frame(frame) = outgoing {
                again.push(*frame);
            }
            Ok(())
        });
        assert_eq!(again, [7, 8, 9, 10]);
        assert_eq!(sender.resume([0, 12]), Err(Violation::Acknowledged), "never sent");
        assert_eq!(sender.resume([0, 6]), Err(Violation::Acknowledged), "taken back");
    }

    #[test]
    fn credits_that_were_never_used_are_a_violation() {
        let mut link = core(4, false);
        let stamp = Stamp { credits: [1, 0, 0] };
        assert_eq!(link.receive(None, Lane::Prompt, stamp), Err(Violation::Credits));
    }
}
