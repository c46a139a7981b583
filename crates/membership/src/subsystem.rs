//! The interface of a [`Subsystem`]: a protocol with a part on each worker that it uses, which
//! talks to its counterparts on other nodes and serves threads of its own node.
//!
//! | event | method |
//! |---|---|
//! | a view of the members is open | [`Subsystem::view`] |
//! | a message on one of its [channels](Subsystem::CHANNELS) | [`Subsystem::message`] |
//! | a task of a thread of this node, by its [`WorkerPort`] | [`Subsystem::task`] |
//! | the reply to a call that it made with [`Net::call`], or none because the peer is lost | [`Subsystem::reply`], [`Subsystem::call_failed`] |
//! | a link | [`Subsystem::peer_up`], [`Subsystem::peer_lost`] |
//! | a turn of the worker | [`Subsystem::turn`]; before the worker sleeps: [`Subsystem::pending`] |
//!
//! Shared parts: [`EpochGate`](crate::gate::EpochGate) for messages of other views,
//! [`Net::send_to_member`] for messages before there is a link, [`Net::fault`] for a protocol
//! violation, [`Reply`] for a task or a thread that waits for an answer.

use std::{
    any::{Any, TypeId},
    time::Duration,
};

use plexus_base::{NodeId, WorkerId, clock};
use plexus_interconnect::{Channel, Message, Net, Reply};

use crate::partitions::Members;

/// The part of a subsystem on one worker. The thread that drives the worker makes all calls, one at
/// a time; none may block.
pub trait Subsystem: Send + Sized + 'static {
    /// The name of the subsystem in logs.
    const NAME: &'static str;

    /// The channels of the subsystem; each channel belongs to one subsystem.
    const CHANNELS: &'static [Channel];

    /// True if it has a [`Subsystem::turn`]. The worker passes over the others.
    const HAS_TURN: bool = false;

    /// A task that a thread of the node gives to the subsystem.
    type Task: Send + 'static;

    /// Handles a view, newer than the last, that is open. A node outside of it has stopped, and no
    /// link leads to it any more.
    fn view(&mut self, net: &mut Net, view: &Members) {
        let _ = (net, view);
    }

    /// Handles a message on one of its channels.
    fn message(&mut self, net: &mut Net, message: Message<'_>);

    /// Handles a task of a thread of the node.
    fn task(&mut self, net: &mut Net, task: Self::Task);

    /// Handles the reply to its call with this `token`.
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        let _ = (net, from, token, payload);
    }

    /// Handles the failure of its call with this `token`: the peer is lost and will not reply.
    fn call_failed(&mut self, net: &mut Net, peer: NodeId, token: u64) {
        let _ = (net, peer, token);
    }

    /// Notes that the link to `peer` is up.
    fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }

    /// Notes that the link to `peer` is gone for good. A view decides whether the others go on
    /// without the peer.
    fn peer_lost(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }

    /// Does the work that no message, task or reply announces, in every turn of the worker; returns
    /// how much was done. `others` are the other subsystems of the worker. Called only with
    /// [`Subsystem::HAS_TURN`].
    #[inline]
    fn turn(&mut self, net: &mut Net, others: &mut dyn Neighbours) -> usize {
        let _ = (net, others);
        0
    }

    /// Returns true if [`Subsystem::turn`] has work now that nothing will announce, so that the
    /// worker must not sleep.
    #[inline]
    fn pending(&mut self) -> bool {
        false
    }

    /// True once it has taken up the last view, so that it serves.
    fn is_ready(&self) -> bool {
        true
    }

    /// Stops granting: the others go on without this node, and everything held here is void from
    /// now on.
    fn stop(&mut self) {}
}

/// The other subsystems of a worker, for one that works with another on the same worker.
pub trait Neighbours {
    /// Returns the part whose type has this identifier.
    fn find(&mut self, of: TypeId) -> Option<&mut dyn Any>;
}

impl dyn Neighbours + '_ {
    /// Returns the part of `S`; `None` if this worker runs none.
    pub fn get<S: Subsystem>(&mut self) -> Option<&mut S> {
        self.find(TypeId::of::<S>())?.downcast_mut()
    }
}

/// The way from threads of a node to a subsystem on its workers.
pub trait WorkerPort<S: Subsystem>: Send + Sync {
    /// Submits a task, which will be handled; does not wait for that.
    fn submit(&self, worker: WorkerId, task: S::Task);

    /// Submits a request of a task of the calling thread; see
    /// [`Worker::request`](plexus_interconnect::Worker::request).
    fn request(&self, worker: WorkerId, task: S::Task) {
        self.submit(worker, task);
    }

    /// Notes that a task of the calling thread waits for an answer of the worker, which has its
    /// request already: the thread drives the worker while all its tasks wait.
    fn expect_answer(&self, worker: WorkerId) {
        let _ = worker;
    }

    /// Submits a task without waiting or driving a worker, so a handler of another worker may call
    /// it. The task is dropped if the queue is full.
    fn offer(&self, worker: WorkerId, task: S::Task);

    /// Runs `act` on the worker now, in the calling thread. False means that it did not run,
    /// because another thread drives the worker or the subsystem has ended.
    fn visit(&self, worker: WorkerId, act: &mut dyn FnMut(&mut S, &mut Net)) -> bool;

    /// Drives the worker if no other thread does and it has work, for threads that do not need an
    /// answer.
    fn attend(&self, worker: WorkerId);
}

/// Moves a worker into a view, before its subsystems. Drops queued messages to incarnations that
/// are not in the new view.
pub fn enter(net: &mut Net, before: Option<&Members>, view: &Members) {
    let stays = |node| {
        view.incarnation(node).is_some_and(|incarnation| {
            before.and_then(|before| before.incarnation(node)) == Some(incarnation)
        })
    };
    net.enter(view.epoch, stays);
}

/// Returns a set of channels, as bits.
#[must_use]
pub const fn set_of(channels: &[Channel]) -> u64 {
    match channels {
        [] => 0,
        [first, rest @ ..] => set_of(rest) | 1 << *first as u32,
    }
}

/// Asserts that no two of the sets share a channel; at compile time in a const context.
///
/// # Panics
/// Two sets share a channel.
pub const fn assert_disjoint(sets: &[u64]) {
    if let [first, rest @ ..] = sets {
        let mut at = 0;
        while at < rest.len() {
            assert!(*first & rest[at] == 0, "two subsystems have the same channel");
            at += 1;
        }
        assert_disjoint(rest);
    }
}

/// Submits a task to each worker and returns the answers that came within `limit`.
pub fn ask_each<S: Subsystem, T>(
    port: &dyn WorkerPort<S>,
    workers: u8,
    limit: Duration,
    task: impl Fn(Reply<T>) -> S::Task,
) -> Vec<T> {
    let end = clock::now() + limit;
    let ask = |worker| {
        let (reply, answer) = Reply::new();
        port.submit(WorkerId(worker), task(reply));
        answer
    };
    let answers: Vec<_> = (0..workers).map(ask).collect();
    let left = || end.since(clock::now()).into();
    answers.into_iter().filter_map(|answer| answer.wait_for(left()).ok().flatten()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_channels_are_accepted() {
        let cache = set_of(&[Channel::CacheRequests, Channel::CacheBlocks]);
        assert_disjoint(&[set_of(&[Channel::Locks]), set_of(&[]), cache]);
        assert_eq!(Channel::ALL.into_iter().filter(|channel| cache >> *channel as u32 & 1 != 0).count(), 2);
    }

    #[test]
    #[should_panic(expected = "two subsystems have the same channel")]
    fn a_channel_that_two_claim_is_refused() {
        assert_disjoint(&[0, set_of(&[Channel::Locks]), set_of(&[Channel::Store, Channel::Locks])]);
    }
}
