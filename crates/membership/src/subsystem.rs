//! What runs on the workers of a node: a [`Subsystem`] has a part on each worker that it uses, which speaks to
//! its counterparts on other nodes and serves threads of its own node.
//!
//! | what comes | what is called |
//! |---|---|
//! | a view of the members is open | [`Subsystem::view`] |
//! | a message on one of its [channels](Subsystem::CHANNELS) | [`Subsystem::message`] |
//! | a task of a thread of this node, by its [`WorkerPort`] | [`Subsystem::task`] |
//! | the reply to a call that it made with [`Net::call`], or none because the peer is lost | [`Subsystem::reply`], [`Subsystem::call_failed`] |
//! | a link | [`Subsystem::peer_up`], [`Subsystem::peer_lost`] |
//!
//! What every subsystem needs exists once: [`EpochGate`](crate::gate::EpochGate) for messages of other views,
//! [`Net::send_to_member`] for what is said before there is a link, [`Net::fault`] for a peer that sent what no
//! member sends, [`Reply`](plexus_interconnect::Reply) for a thread that waits for an answer.

use std::time::{Duration, Instant};

use plexus_base::{NodeId, WorkerId};
use plexus_interconnect::{Channel, Message, Net, Reply, Signal};

use crate::{partitions::Members, protocol::LossHistory};

/// One worker's part of a subsystem. All calls come one at a time from the thread that drives the worker; none may block.
pub trait Subsystem: Send + Sized + 'static {
    /// What it is called in logs.
    const NAME: &'static str;

    /// The channels whose messages are for it; no other subsystem has one of them.
    const CHANNELS: &'static [Channel];

    /// What threads of the node hand in.
    type Task: Send + 'static;

    /// A view is open, newer than the last: a node that is not in it has stopped, and no link leads to it any more. `before` is
    /// what membership knows of the time before this node was a member.
    fn view(&mut self, net: &mut Net, view: &Members, before: LossHistory) {
        let _ = (net, view, before);
    }

    /// A message on one of its channels has arrived.
    fn message(&mut self, net: &mut Net, message: Message<'_>);

    /// A thread of the node has handed this in.
    fn task(&mut self, net: &mut Net, task: Self::Task);

    /// The reply to its call with this `token`.
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        let _ = (net, from, token, payload);
    }

    /// The reply to its call with this `token` will never come: the peer is lost.
    fn call_failed(&mut self, net: &mut Net, peer: NodeId, token: u64) {
        let _ = (net, peer, token);
    }

    /// The link to `peer` is up.
    fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }

    /// The link to `peer` is gone for good. A view says whether the others go on without it.
    fn peer_lost(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }

    /// True once it has taken up the last view, so that it serves.
    fn is_ready(&self) -> bool {
        true
    }

    /// The others go on without this node: what is held here is worth nothing from now on, and nothing is granted.
    fn stop(&mut self) {}
}

/// How threads of a node reach a subsystem on its workers.
pub trait WorkerPort<S: Subsystem>: Send + Sync {
    /// Hands a task in and sees to it that it is handled; does not wait for that.
    fn submit(&self, worker: WorkerId, task: S::Task);

    /// Hands a task in without waiting or driving anything, so that a handler of another worker may; dropped where there is no room.
    fn offer(&self, worker: WorkerId, task: S::Task);

    /// Has `act` done by the calling thread on the worker, now. False: another thread drives the worker, or the subsystem has
    /// ended, and nothing was done.
    fn visit(&self, worker: WorkerId, act: &mut dyn FnMut(&mut S, &mut Net)) -> bool;

    /// Looks after the worker if no other thread does and something waits for it: for threads that get by without it.
    fn attend(&self, worker: WorkerId);

    /// Hands in a task, if there is one, and waits for the signal, driving the worker meanwhile. The signal is the calling thread's.
    fn wait(&self, worker: WorkerId, task: Option<S::Task>, signal: &Signal);
}

/// Has a worker enter a view before its subsystems do: what is still to be said to members of the view before that are not in this one,
/// in the same incarnation, is dropped.
pub fn enter(net: &mut Net, before: Option<&Members>, view: &Members) {
    let stays = |node| {
        view.incarnation(node).is_some_and(|incarnation| {
            before.and_then(|before| before.incarnation(node)) == Some(incarnation)
        })
    };
    net.enter(view.epoch, stays);
}

/// A set of channels, as bits.
#[must_use]
pub const fn set_of(channels: &[Channel]) -> u64 {
    match channels {
        [] => 0,
        [first, rest @ ..] => set_of(rest) | 1 << *first as u32,
    }
}

/// Asserts that no two of the sets have a channel in common, at compile time where it is called there.
///
/// # Panics
/// When two have.
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

/// Hands a task to each worker and waits for their answers for no longer than `limit`; those that came.
pub fn ask_each<S: Subsystem, T>(
    port: &dyn WorkerPort<S>,
    workers: u8,
    limit: Duration,
    task: impl Fn(Reply<T>) -> S::Task,
) -> Vec<T> {
    let end = Instant::now() + limit;
    let ask = |worker| {
        let (reply, told) = Reply::channel();
        port.submit(WorkerId(worker), task(reply));
        told
    };
    let told: Vec<_> = (0..workers).map(ask).collect();
    told.iter()
        .filter_map(|told| told.recv_timeout(end.saturating_duration_since(Instant::now())).ok())
        .collect()
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
