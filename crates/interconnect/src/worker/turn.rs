//! One turn of a worker: it polls every link, handles arrivals and pushes out sent messages.

use std::{
    collections::BTreeMap,
    sync::atomic::Ordering::{Acquire, Relaxed},
};

use plexus_base::{Incarnation, NodeId, clock};
use plexus_fabric::{Lost, RailKind};

use super::{Control, SHORTEST_TICK, Shared};
use crate::{
    LinkEvent, LinkInfo, Message, Net, Service,
    calls::ReplyMatch,
    inbox::Inbox,
    link::{self, Link, NewRail},
    net::FinishedAccess,
    sync::lock,
};

/// The tasks handled before the links get their turn.
const TASKS_PER_TURN: usize = 64;

/// The state that the token protects: one thread uses it at a time.
pub(super) struct WorkerCore<S> {
    pub(super) service: S,
    pub(super) net: Net,
    inbox: Inbox,
    /// The last incarnation of each peer whose link is gone for good.
    gone: BTreeMap<NodeId, Incarnation>,
    /// True if a rail has descriptors, which announce arrivals even to threads that poll.
    pub(super) sockets: bool,
    /// True if the last driver left the worker's seat to the next one.
    pub(super) seat_left: bool,
    /// Visits while the worker was lent: every few of them attend it.
    pub(super) visits: u32,
}

impl<S: Service> WorkerCore<S> {
    pub(super) fn new(service: S, net: Net) -> Self {
        Self {
            service,
            net,
            inbox: Inbox::default(),
            gone: BTreeMap::new(),
            sockets: false,
            seat_left: false,
            visits: 0,
        }
    }

    /// Looks at everything once. Returns how many messages and tasks were handled.
    #[inline]
    pub(super) fn turn(&mut self, shared: &Shared<S>) -> usize {
        let mut done = self.take_controls(shared);
        let Self { service, net, inbox, .. } = self;
        for peer in net.links.present().iter() {
            let Some(link) = net.links.get_mut(peer) else { continue };
            link.poll(inbox);
            if inbox.len() > 0 {
                done += inbox.len();
                for index in 0..inbox.len() {
                    let (from, head) = inbox.head(index);
                    let kind = head.kind;
                    match net.take_reply(from, &head) {
                        ReplyMatch::Call(token) => {
                            let Message { channel, payload, .. } = inbox.message(index);
                            service.reply(net, from, channel, token, payload);
                        }
                        ReplyMatch::None => service.message(net, inbox.message(index)),
                        ReplyMatch::Late => {}
                    }
                    if let Some(link) = net.links.get_mut(peer) {
                        link.handled(kind);
                    }
                }
                inbox.clear();
            }
        }
        // A look is two loads, an attempt to pop is a fence.
        if !shared.tasks.is_empty() {
            for _ in 0..TASKS_PER_TURN {
                let Some(task) = shared.tasks.pop() else { break };
                service.task(net, task);
                done += 1;
            }
        }
        done += service.turn(net);
        if net.has_done() {
            done += self.hand_over();
        }
        if shared.tick_due.load(Relaxed) {
            self.tick(shared);
        }
        self.net.pushed_out();
        for peer in self.net.links.present().iter() {
            let Some(link) = self.net.links.get_mut(peer) else { continue };
            link.flush();
            if link.has_events() {
                self.link_changed(peer, shared);
                done += 1;
            }
        }
        done
    }

    /// Handles the queued tasks, and nothing else.
    pub(super) fn do_tasks(&mut self, shared: &Shared<S>) {
        while let Some(task) = shared.tasks.pop() {
            self.service.task(&mut self.net, task);
        }
    }

    /// Returns whether a turn would find more to do than to push out sent messages.
    pub(super) fn has_work(&mut self) -> bool {
        self.net.has_done() || self.service.pending()
    }

    /// Pushes out the sent messages if any of them may not wait for the next turn; with `all`, none
    /// may. Returns whether a turn would find more to do.
    #[inline]
    pub(super) fn flush(&mut self, all: bool) -> bool {
        let mut more = self.has_work();
        if !self.net.has_sent(all) {
            return more;
        }
        self.net.pushed_out();
        for peer in self.net.links.present().iter() {
            let Some(link) = self.net.links.get_mut(peer) else { continue };
            link.flush();
            // Only a thread that leaves the worker has room and the next turn announced.
            more |= link.has_events() || link.queued() > 0;
        }
        more
    }

    /// Delivers the answers of accesses that this processor has executed itself.
    fn hand_over(&mut self) -> usize {
        let done = self.net.take_done();
        let count = done.len();
        for FinishedAccess { peer, channel, token, answer } in done {
            self.service.reply(&mut self.net, peer, channel, token, &answer);
            self.net.recycle(answer);
        }
        count
    }

    /// Handles changes of the link to a peer and of its rails.
    #[cold]
    fn link_changed(&mut self, peer: NodeId, shared: &Shared<S>) {
        let Some(link) = self.net.links.get_mut(peer) else { return };
        let (worker, incarnation) = (shared.id, link.incarnation());
        for link::Event::RailDown { slot, generation, why } in link.events() {
            (shared.events)(LinkEvent::RailDown { peer, incarnation, worker, slot, generation, why });
        }
        if link.lost().is_some() {
            self.lose(peer, shared);
        }
        self.note_ticks(shared);
    }

    /// Tells the links the time.
    #[cold]
    fn tick(&mut self, shared: &Shared<S>) {
        shared.tick_due.store(false, Relaxed);
        let now = clock::now();
        self.net.links.iter_mut().filter(|link| link.next_tick().is_some()).for_each(|link| link.tick(now));
        self.note_ticks(shared);
    }

    /// Records how soon any link wants to know the time again.
    fn note_ticks(&self, shared: &Shared<S>) {
        let wanted = self.net.links.iter().filter_map(|link| link.next_tick()).min();
        let wanted = wanted.map_or(u64::MAX, |after| after.max(SHORTEST_TICK).0);
        if shared.tick_every.swap(wanted, Relaxed) > wanted {
            // The background thread may sleep for longer.
            shared.watch.nudge();
        }
    }

    /// Attaches and drops links as asked. Returns how many there were.
    #[inline]
    pub(super) fn take_controls(&mut self, shared: &Shared<S>) -> usize {
        if shared.controlled.load(Relaxed) { self.obey(shared) } else { 0 }
    }

    #[cold]
    fn obey(&mut self, shared: &Shared<S>) -> usize {
        shared.controlled.store(false, Relaxed);
        let controls = std::mem::take(&mut lock(&shared.controls).waiting);
        let done = controls.len();
        for control in controls {
            match control {
                Control::Rail(info, rail) => self.attach(shared, info, rail),
                Control::Drop(peer, incarnation) => {
                    if self.net.links.get(peer).is_some_and(|link| link.incarnation() == incarnation) {
                        self.lose(peer, shared);
                    }
                    // A rail that is still on its way to that incarnation comes too late.
                    self.gone.insert(peer, incarnation);
                }
            }
        }
        self.note_ticks(shared);
        done
    }

    fn attach(&mut self, shared: &Shared<S>, info: LinkInfo, new: NewRail) {
        let (peer, incarnation) = (info.peer, info.incarnation);
        if self.gone.get(&peer) == Some(&incarnation) {
            return;
        }
        if self.net.links.get(peer).is_some_and(|link| link.incarnation() != incarnation) {
            self.lose(peer, shared);
        }
        self.sockets |= new.rail.kind() != RailKind::Shm;
        if let Err(error) = new.rail.register(shared.watch.arrivals(), u64::from(peer.0)) {
            let why = Lost::Closed(format!("its events cannot be waited for: {error}"));
            let (worker, slot, generation) = (shared.id, new.slot, new.generation);
            return (shared.events)(LinkEvent::RailDown { peer, incarnation, worker, slot, generation, why });
        }
        let first = self.net.links.get(peer).is_none();
        let make = || Link::new(info, shared.links, shared.windows.clone());
        let link = self.net.links.get_or_insert(peer, make);
        link.attach(new);
        if first {
            self.net.link_up(peer, incarnation);
            (shared.events)(LinkEvent::Up { peer, worker: shared.id });
            self.service.peer_up(&mut self.net, peer);
        }
    }

    #[cold]
    fn lose(&mut self, peer: NodeId, shared: &Shared<S>) {
        let Some(mut link) = self.net.links.remove(peer) else { return };
        link.goodbye();
        let incarnation = link.incarnation();
        let why = link.lost().cloned().unwrap_or_else(|| Lost::Closed("given up here".into()));
        drop(link);
        self.gone.insert(peer, incarnation);
        (shared.events)(LinkEvent::Gone { peer, incarnation, worker: shared.id, why: why.clone() });
        for (channel, token) in self.net.fail_calls(peer) {
            self.service.call_failed(&mut self.net, peer, channel, token);
        }
        self.service.peer_gone(&mut self.net, peer, &why);
    }

    /// Returns whether a turn would find work. It is called after the bell was armed.
    pub(super) fn pending(&mut self, shared: &Shared<S>) -> bool {
        !shared.tasks.is_empty()
            || shared.controlled.load(Acquire)
            || shared.tick_due.load(Relaxed)
            || self.service.pending()
            || self.net.has_done()
            || self.net.links.iter_mut().any(|link| link.pending())
    }
}
