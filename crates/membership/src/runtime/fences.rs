//! Fences: attempts to prove that removed incarnations have ended, until there is a proof or none
//! is needed any more.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use plexus_base::{Incarnation, Nanos, NodeId};

use super::{
    AwaitedProof, FencingProof, clock, driver::Driver, inbox::Input, notifier::ObserverNotice,
    status::FencingState,
};
use crate::protocol::Event;

/// The pause after an attempt that has failed, if a proof is required.
const RETRY: Nanos = Nanos::from_ms(5000);

/// The interval at which the same failure is logged again.
const LOG_EVERY: Nanos = Nanos::from_ms(60_000);

/// The attempts to prove the end of one incarnation.
pub(super) struct Fence {
    node: NodeId,
    incarnation: Incarnation,
    since: Nanos,
    /// The time of the next attempt; `None` during one.
    next: Option<Nanos>,
    /// Set when the proof is not needed any more, which ends an attempt under way.
    is_over: Arc<AtomicBool>,
    /// The reason why the last attempt failed, and when it was logged.
    problem: Option<(String, Nanos)>,
}

impl Drop for Fence {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

impl Driver {
    /// Begins to prove the end of a removed incarnation.
    pub(super) fn fence(&mut self, node: NodeId, incarnation: Incarnation) {
        self.history.fencing(node, incarnation);
        let now = clock::now();
        // A leaving node announces that it has stopped; its announcement may be lost.
        let leaves = self.leavers[node.index()] == incarnation;
        let is_required = self.member.awaited().any(|awaited| awaited == (node, incarnation));
        let after = match (leaves, self.member.opened()) {
            (true, _) => self.wait,
            // In a cold start the node may be starting: it proves its own end.
            (false, None) if is_required => self.wait_as_new,
            _ => Nanos(0),
        };
        let (next, is_over) = (Some(now + after), Arc::default());
        self.fences.push(Fence { node, incarnation, since: now, next, is_over, problem: None });
        if after == Nanos(0) {
            self.attempt(self.fences.len() - 1);
        }
    }

    fn attempt(&mut self, fence: usize) {
        let fence = &mut self.fences[fence];
        fence.next = None;
        let (node, incarnation, is_over) = (fence.node, fence.incarnation, Arc::clone(&fence.is_over));
        let (observer, inbox) = (Arc::clone(&self.parts.observer), Arc::clone(&self.parts.inbox));
        let run = move || {
            let proof = observer.fence(node, incarnation, &is_over);
            inbox.post(Input::Fenced(node, incarnation, proof));
        };
        let thread = thread::Builder::new().name(format!("plexus-fence-{}", node.0));
        if let Err(error) = thread.spawn(run) {
            let why = format!("no thread can be started: {error}");
            self.parts.inbox.post(Input::Fenced(node, incarnation, Err(why)));
        }
    }

    /// Begins the further attempts that are due, if a proof is required.
    pub(super) fn retry_fences(&mut self) {
        let now = clock::now();
        for at in 0..self.fences.len() {
            let fence = &mut self.fences[at];
            if fence.next.is_some_and(|next| next <= now) {
                fence.next = Some(now + RETRY);
                let of = (fence.node, fence.incarnation);
                if self.member.awaited().any(|awaited| awaited == of) {
                    self.attempt(at);
                }
            }
        }
    }

    /// Returns the time of the next attempt.
    pub(super) fn next_fence(&self) -> Option<Nanos> {
        self.fences.iter().filter_map(|fence| fence.next).min()
    }

    /// Handles the end of an attempt. Returns the event of a proof.
    pub(super) fn fenced(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        result: Result<FencingProof, String>,
    ) -> Option<Event> {
        let why = match result {
            Ok(proof) => {
                self.history.ended(node, incarnation, FencingState::Proved(proof));
                return Some(Event::Dead(node, incarnation));
            }
            Err(why) => why,
        };
        let is_required = self.member.awaited().any(|awaited| awaited == (node, incarnation));
        let fence =
            self.fences.iter_mut().find(|fence| (fence.node, fence.incarnation) == (node, incarnation))?;
        let (name, now) = (self.parts.observer.name(node), clock::now());
        // Another node may require the proof later.
        fence.next = Some(now + RETRY);
        if fence.problem.as_ref().is_some_and(|(last, at)| *last == why && now.since(*at) < LOG_EVERY) {
            return None;
        }
        fence.problem = Some((why.clone(), now));
        let then = match is_required {
            true => format!(
                "no view opens until it is proved, because it has a fence command; it is tried again every {RETRY}; \
                 if {name} is certainly off or cut off from its disks: `plexus node fenced {name}`"
            ),
            false => "its lease is waited for".into(),
        };
        self.notify(ObserverNotice::Warning(format!(
            "{name}: the end of its incarnation {} is not proved: {why}; {then}",
            incarnation.0
        )));
        None
    }

    /// Ends the attempts for incarnations of a node that have stopped.
    pub(super) fn end_fences(&mut self, node: NodeId, incarnation: Incarnation) {
        self.fences.retain(|fence| fence.node != node || fence.incarnation > incarnation);
    }

    /// Returns the proofs without which no view opens.
    pub(super) fn awaited_proofs(&self, now: Nanos) -> Vec<AwaitedProof> {
        let awaited = self.member.awaited().map(|(node, incarnation)| {
            let fence =
                self.fences.iter().find(|fence| (fence.node, fence.incarnation) == (node, incarnation));
            AwaitedProof {
                node: node.0,
                incarnation: incarnation.0,
                for_ms: fence.map_or(0, |fence| now.since(fence.since).0 / 1_000_000),
                heard_ms: self.network.heard_of(node, incarnation).map(|at| now.since(at).0 / 1_000_000),
                problem: fence.and_then(|fence| Some(fence.problem.as_ref()?.0.clone())),
            }
        });
        awaited.collect()
    }
}
