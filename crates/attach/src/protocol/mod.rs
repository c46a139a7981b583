//! What a node does for its programs, on one of its workers: ports, flows, calls, windows and locks. Pure: messages of programs
//! and of other nodes in, the same out through [`World`].
//!
//! A port belongs to worker `port % workers`, a window or lock to the worker that its name hashes to, on every node the same one;
//! a program has a rail to each worker and uses the one that the port or window belongs to. So everything about one port is
//! known to one worker, and what travels between two nodes stays on one link, in order.
//!
//! Requests lead to forwards (what is written to the copies of a window) and replies, forwards to replies, replies to
//! nothing: see [`kind`]. Messages of one kind and use between two nodes arrive in the order sent, on whatever lane; where an order
//! matters, both messages have one kind.
//!
//! What belongs to a program goes with it: [`Core::forget`]. A program that breaks the rules is named in the error
//! and its driver forgets it; what a peer sends is trusted to be well-meant but not to be in time: what names something
//! that is gone is left alone.

mod arena;
mod calls;
mod flows;
mod locks;
mod windows;

use std::collections::{BTreeMap, BTreeSet};

use plexus_base::NodeId;
use plexus_client::wire::{ClientId, FlowWindow, Head, Status, Use, Verb, limits};
use plexus_interconnect::Kind;
use plexus_locks::protocol::{Event, WaitLimit};

use calls::Calls;
use flows::{Flows, Senders};
use locks::{Lock, Locks};
use windows::{View, Windows};

/// What the driver does for the protocol.
pub(crate) trait World {
    /// Tells a program something.
    fn tell(&mut self, program: ClientId, head: Head, payload: &[u8]);
    /// Sends to a node, this one too; false where there is no link.
    fn send(&mut self, to: NodeId, head: Head, payload: &[u8]) -> bool;
    /// Whether so much waits for a node already that nothing new may be begun with it.
    fn is_choked(&self, to: NodeId) -> bool;
    /// Writes into the arena of another node and sends `head` behind it; false where there is no link.
    fn copy(&mut self, to: NodeId, at: u64, bytes: &[u8], head: Head) -> bool;
    /// Reads this node's arena.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Writes this node's arena.
    fn write(&mut self, at: u64, bytes: &[u8]);
    /// Hands the lock manager something of a program.
    fn lock(&mut self, event: Event);
    /// How long who asks now waits.
    fn timeout(&self, timeout_ns: u64) -> WaitLimit;
}

/// A program did what no library of ours does: it is to be cut off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Violation(pub(crate) &'static str);

/// What a message between nodes is to the conversation that it belongs to.
pub(crate) fn kind(verb: Verb) -> Kind {
    match verb {
        Verb::Joined | Verb::Left | Verb::Copied | Verb::Gone => Kind::Forward,
        Verb::Done | Verb::Taken | Verb::Refused | Verb::Answer | Verb::Landed => Kind::Reply,
        _ => Kind::Request,
    }
}

/// See the module.
pub(crate) struct Core {
    place: Place,
    programs: BTreeMap<ClientId, Program>,
    ports: BTreeMap<(Use, u32), Port>,
    flows: Flows,
    calls: Calls,
    windows: Windows,
    locks: Locks,
    last_port: u32,
}

/// Where this is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// This node.
    pub(crate) me: NodeId,
    /// This worker.
    pub(crate) worker: u8,
    /// How many workers nodes have.
    pub(crate) workers: u8,
}

impl Place {
    fn owns(&self, number: u32) -> bool {
        number % u32::from(self.workers) == u32::from(self.worker)
    }
}

/// What belongs to one program.
#[derive(Default)]
struct Program {
    ports: BTreeSet<(Use, u32)>,
    /// Its flows: its own number for each, to the node's.
    flows: BTreeMap<u64, u64>,
    /// The same for its calls.
    calls: BTreeMap<u64, u64>,
    views: BTreeMap<u32, View>,
    /// By its own numbers.
    locks: BTreeMap<u32, Lock>,
    accesses: usize,
    /// Flows into its ports.
    senders: usize,
    /// Calls that it has not answered, and the bytes of their requests.
    waiting: usize,
    waiting_bytes: usize,
}

/// A port that a program has.
struct Port {
    program: ClientId,
    senders: Senders,
    /// Calls that wait for the program's answer.
    waiting: BTreeSet<u64>,
}

/// Ports below this are chosen by programs, those from here on by the node.
const FIRST_OWN: u32 = 1 << 31;

impl Core {
    /// Nothing yet. `arena` is this worker's share of the node's.
    pub(crate) fn new(place: Place, arena: std::ops::Range<u64>) -> Self {
        Self {
            place,
            programs: BTreeMap::new(),
            ports: BTreeMap::new(),
            flows: Flows::default(),
            calls: Calls::default(),
            windows: Windows::new(arena),
            locks: Locks::default(),
            last_port: FIRST_OWN,
        }
    }

    /// Locks that programs have and wait for.
    pub(crate) fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Ports of programs, windows and copies that are here, and the bytes that these take.
    pub(crate) fn usage(&self) -> (usize, usize, u64) {
        let (windows, bytes) = self.windows.here();
        (self.ports.len(), windows, bytes)
    }

    /// A program has attached.
    pub(crate) fn attach(&mut self, program: ClientId) {
        self.programs.insert(program, Program::default());
    }

    /// A program has ended, or is cut off: everything of it is released.
    pub(crate) fn forget(&mut self, world: &mut impl World, program: ClientId) {
        let Some(gone) = self.programs.remove(&program) else { return };
        for (usage, port) in gone.ports {
            self.close_port(world, usage, port);
        }
        for flow in gone.flows.into_values() {
            self.end_flow(world, flow);
        }
        for call in gone.calls.into_values() {
            self.cancel_call(world, call);
        }
        self.release(world, gone.locks);
        self.forget_accesses(program);
        for view in gone.views.into_values() {
            self.drop_view(world, program, view);
        }
    }

    /// A program says something.
    ///
    /// # Errors
    /// It must not say this; it is to be forgotten.
    pub(crate) fn program(
        &mut self,
        world: &mut impl World,
        from: ClientId,
        head: Head,
        payload: &[u8],
    ) -> Result<(), Violation> {
        match head.verb {
            Verb::Bind => self.bind(world, from, head),
            Verb::Unbind => {
                if self.mine(from)?.ports.remove(&(head.usage, head.port)) {
                    self.close_port(world, head.usage, head.port);
                }
                Ok(())
            }
            Verb::Send => self.send(world, from, head, payload),
            Verb::Taken => self.take(world, from, head),
            Verb::End => {
                if let Some(flow) = self.mine(from)?.flows.remove(&head.id) {
                    self.end_flow(world, flow);
                }
                Ok(())
            }
            Verb::Call => self.call(world, from, head, payload),
            Verb::Answer => self.answer(world, from, head, payload),
            Verb::Cancel if head.usage == Use::Locks => self.cancel_lock(world, from, head),
            Verb::Cancel => {
                if let Some(call) = self.mine(from)?.calls.remove(&head.id) {
                    self.cancel_call(world, call);
                }
                Ok(())
            }
            Verb::Create => self.create(world, from, head, payload),
            Verb::Open => self.open(world, from, head, payload),
            Verb::Map => self.map(world, from, head),
            Verb::Close => {
                if let Some(view) = self.mine(from)?.views.remove(&head.port) {
                    self.drop_view(world, from, view);
                }
                Ok(())
            }
            Verb::Watch => self.watch(world, from, head),
            Verb::Put | Verb::Get | Verb::Add | Verb::Swap => self.access(world, from, head, payload),
            Verb::Lock => self.lock(world, from, head, payload),
            Verb::Convert => self.convert(world, from, head, payload),
            Verb::Unlock => self.unlock(world, from, head, payload),
            _ => Err(Violation("a verb that only nodes use")),
        }
    }

    /// Another node, or this one, says something.
    pub(crate) fn node(&mut self, world: &mut impl World, from: NodeId, head: Head, payload: &[u8]) {
        match head.verb {
            Verb::Send => self.receive(world, from, head, payload),
            Verb::Taken => self.credit(world, from, head),
            Verb::Refused => self.refused(world, from, head),
            Verb::End => self.ended(from, head),
            Verb::Call => self.called(world, from, head, payload),
            Verb::Answer => self.answered(world, from, head, payload),
            Verb::Cancel => self.cancelled(world, from, head),
            Verb::Open => self.find(world, from, head, payload),
            Verb::Put | Verb::Get | Verb::Add | Verb::Swap => self.execute(world, from, head, payload),
            Verb::Done => self.finished(world, from, head, payload),
            Verb::Join => self.join(world, from, head),
            Verb::Joined => self.joined(world, from, head),
            Verb::Leave => self.leave(world, from, head),
            Verb::Left => self.left(world, from, head),
            Verb::Copied => self.copied(world, from, head),
            Verb::Landed => self.landed(world, from, head),
            Verb::Gone => self.window_gone(world, from, head),
            // Said to and by programs only.
            _ => {}
        }
    }

    /// Does a step of what takes long; whether there was something.
    pub(crate) fn turn(&mut self, world: &mut impl World) -> bool {
        self.clear(world)
    }

    /// Whether there is something for [`Core::turn`].
    pub(crate) fn pending(&self) -> bool {
        self.is_clearing()
    }

    /// The link to a node is gone, and all that was said over it has been handled.
    pub(crate) fn peer_gone(&mut self, world: &mut impl World, peer: NodeId) {
        self.flows_gone(world, peer);
        self.calls_gone(world, peer);
        self.windows_gone(world, peer);
    }

    fn mine(&mut self, program: ClientId) -> Result<&mut Program, Violation> {
        self.programs.get_mut(&program).ok_or(Violation("it is not attached"))
    }

    fn bind(&mut self, world: &mut impl World, from: ClientId, head: Head) -> Result<(), Violation> {
        if matches!(head.usage, Use::Windows | Use::Locks) {
            return Err(Violation("windows and locks have no ports"));
        }
        if head.port >= FIRST_OWN || head.port != 0 && !self.place.owns(head.port) {
            return Err(Violation("a port of another worker"));
        }
        let has = self.mine(from)?.ports.len();
        let port = if head.port == 0 { self.free_port(head.usage) } else { head.port };
        let status = if self.ports.contains_key(&(head.usage, port)) {
            Status::InUse
        } else if has >= limits::MAX_PORTS {
            Status::Busy
        } else {
            Status::Ok
        };
        if status == Status::Ok {
            let empty = Port { program: from, senders: Senders::new(), waiting: BTreeSet::new() };
            self.ports.insert((head.usage, port), empty);
            self.mine(from)?.ports.insert((head.usage, port));
        }
        world.tell(from, Head { port, ..Head::done(head.usage, head.id, status) }, &[]);
        Ok(())
    }

    /// A port of this worker that nobody has.
    fn free_port(&mut self, usage: Use) -> u32 {
        loop {
            self.last_port = self.last_port.wrapping_add(1).max(FIRST_OWN);
            if self.place.owns(self.last_port) && !self.ports.contains_key(&(usage, self.last_port)) {
                return self.last_port;
            }
        }
    }

    fn close_port(&mut self, world: &mut impl World, usage: Use, port: u32) {
        let Some(closed) = self.ports.remove(&(usage, port)) else { return };
        if let Some(program) = self.programs.get_mut(&closed.program) {
            program.senders -= closed.senders.len();
        }
        for (node, flow) in closed.senders.into_keys() {
            let head = Head { status: Status::PortClosed, id: flow, ..Head::new(Verb::Refused, usage) };
            world.send(node, head, &[]);
        }
        for call in closed.waiting {
            self.refuse_call(world, call, Status::PortClosed);
        }
    }
}

#[cfg(test)]
mod tests;
