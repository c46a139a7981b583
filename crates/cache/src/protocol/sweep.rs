//! Checkpoints, and the sweep over all frames of a hand-back: a window of frames at a time.

use std::collections::VecDeque;

use super::{
    Action, Shard, ShardDriver, Slot,
    frame::{Leave, Order, Usage},
};

/// The frames that a checkpoint or hand-back has under way at once. They are enough to keep a disk
/// busy, and few enough that a session rarely wants one of them next.
const WINDOW: u32 = 32;

#[derive(Clone, Hash, Debug)]
struct Checkpoint {
    /// Blocks without a redo record below this position are left out.
    below: u64,
    outstanding: u32,
    failed: u32,
}

#[derive(Clone, Hash, Debug)]
struct HandBack {
    cursor: usize,
    answered: bool,
}

/// The progress of all sweeps.
#[derive(Clone, Hash, Debug, Default)]
pub(super) struct Sweeps {
    checkpoint: Option<Checkpoint>,
    /// The number of checkpoints begun.
    begun: u32,
    /// The checkpoints that were asked for while one was running.
    checkpoints_waiting: VecDeque<u64>,
    hand_back: Option<HandBack>,
    /// The frames whose block is to leave.
    leaving: u32,
}

impl Sweeps {
    pub(super) fn hands_back(&self) -> bool {
        self.hand_back.is_some()
    }
}

impl Shard {
    pub(super) fn begin_checkpoint(&mut self, below: u64) {
        if self.sweeps.checkpoint.is_some() {
            self.sweeps.checkpoints_waiting.push_back(below);
        } else {
            self.sweeps.begun = self.sweeps.begun.wrapping_add(1);
            self.sweeps.checkpoint = Some(Checkpoint { below, outstanding: 0, failed: 0 });
        }
    }

    pub(super) fn begin_hand_back(&mut self) {
        self.sweeps.hand_back = Some(HandBack { cursor: 0, answered: false });
        self.frames.iter_mut().for_each(|frame| frame.stuck = false);
    }

    /// Notes the end of an [`Order::Save`].
    pub(super) fn saved(&mut self, ok: bool) {
        let checkpoint = self.sweeps.checkpoint.as_mut().expect("a checkpoint gave the order");
        checkpoint.outstanding -= 1;
        checkpoint.failed += u32::from(!ok);
    }

    /// Decides that the block leaves.
    pub(super) fn choose(&mut self, slot: usize) {
        assert!(self.frames[slot].may_leave());
        self.frames[slot].leave = Leave::Chosen;
        self.sweeps.leaving += 1;
    }

    /// Notes that the frame is not leaving any longer.
    pub(super) fn unchoose(&mut self, slot: usize) {
        if self.frames[slot].leave != Leave::No {
            self.frames[slot].leave = Leave::No;
            self.sweeps.leaving -= 1;
        }
    }

    /// Returns whether hand-back passed over this frame while it was busy, and can take it now.
    pub(super) fn wants_to_leave(&self, slot: usize) -> bool {
        self.sweeps.hand_back.as_ref().is_some_and(|sweep| slot < sweep.cursor)
            && !self.frames[slot].stuck
            && self.frames[slot].may_leave()
    }

    /// Starts on the next frames. Returns whether anything was done.
    pub(super) fn sweep(&mut self, io: &mut impl ShardDriver) -> bool {
        self.sweep_checkpoint(io) || self.sweep_hand_back(io)
    }

    fn sweep_checkpoint(&mut self, io: &mut impl ShardDriver) -> bool {
        let Some(checkpoint) = &mut self.sweeps.checkpoint else { return false };
        if checkpoint.outstanding == WINDOW {
            return false;
        }
        // Each block once: it may be changed again before the checkpoint is over.
        let (frames, begun) = (&mut self.frames, self.sweeps.begun);
        let is_wanted =
            |slot: Slot| frames[slot.index()].is_held() && frames[slot.index()].checkpoint != begun;
        let oldest = io.oldest_owed(is_wanted).filter(|(_, first)| *first < checkpoint.below);
        if let Some((slot, _)) = oldest {
            checkpoint.outstanding += 1;
            let frame = &mut frames[slot.index()];
            frame.checkpoint = begun;
            self.orders.push_back(&mut frame.orders, Order::Save);
            self.settle(slot.index(), io);
            return true;
        }
        if checkpoint.outstanding > 0 {
            return false;
        }
        io.push(Action::CheckpointDone { failed: checkpoint.failed });
        self.sweeps.checkpoint = None;
        if let Some(below) = self.sweeps.checkpoints_waiting.pop_front() {
            self.begin_checkpoint(below);
        }
        true
    }

    fn sweep_hand_back(&mut self, io: &mut impl ShardDriver) -> bool {
        let leaving = self.sweeps.leaving;
        let Some(sweep) = self.sweeps.hand_back.as_mut().filter(|sweep| !sweep.answered) else {
            return false;
        };
        while sweep.cursor < self.frames.len() {
            if leaving >= WINDOW {
                return false;
            }
            let slot = sweep.cursor;
            sweep.cursor += 1;
            if self.frames[slot].may_leave() && self.frames[slot].waiters.is_empty() {
                self.choose(slot);
                self.settle(slot, io);
                return true;
            }
        }
        let over = |frame: &super::Frame| frame.usage == Usage::Free || frame.stuck && frame.may_leave();
        if leaving > 0
            || !self.frames.iter().all(|frame| over(frame) && frame.waiters.is_empty())
            || !self.queues.iter().all(|queue| queue.is_empty())
        {
            return false;
        }
        sweep.answered = true;
        let kept = self.frames.iter().filter(|frame| frame.usage != Usage::Free).count() as u32;
        io.push(Action::HandedBack { kept });
        true
    }
}
