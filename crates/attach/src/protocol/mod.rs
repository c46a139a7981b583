//! The protocol of ports, flows, calls, windows and locks on one worker of a node. It is pure:
//! messages of programs and of other nodes come in, messages go out through [`ProgramDriver`].
//!
//! A port belongs to worker `port % workers`, a window or lock to the worker that its name hashes
//! to; both rules hold on every node. A program has a rail to each worker and uses the one that the
//! port or window belongs to. So one worker knows everything about a port, and messages about it
//! between two nodes stay on one link, in order.
//!
//! Requests lead to forwards (writes to the copies of a window) and replies; forwards lead to
//! replies; replies lead to nothing (see [`kind`]). Messages of one kind and use between two nodes
//! arrive in the order sent, on any lane. Where an order matters, both messages have one kind.
//!
//! Everything that belongs to a program is released with it ([`ProgramCore::forget`]). A program
//! that breaks the rules is reported by a [`Violation`], and its driver forgets it. Peers are
//! trusted to be correct but not to be in time: a message about something that is gone is ignored.

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

/// The operations of the driver that the protocol uses.
pub(crate) trait ProgramDriver {
    /// Sends a message to a program.
    fn tell(&mut self, program: ClientId, head: Head, payload: &[u8]);
    /// Sends a message to a node, also to this one; returns false if there is no link.
    fn send(&mut self, to: NodeId, head: Head, payload: &[u8]) -> bool;
    /// Returns true if the backlog to a node is so long that nothing new may be started with it.
    fn is_choked(&self, to: NodeId) -> bool;
    /// Writes into the arena of another node and sends `head` after it; false if there is no link.
    fn copy(&mut self, to: NodeId, at: u64, bytes: &[u8], head: Head) -> bool;
    /// Reads this node's arena.
    fn read(&self, at: u64, into: &mut [u8]);
    /// Writes this node's arena.
    fn write(&mut self, at: u64, bytes: &[u8]);
    /// Passes a program's request to the lock manager.
    fn lock(&mut self, event: Event);
    /// Returns the end of a wait that starts now.
    fn timeout(&self, timeout_ns: u64) -> WaitLimit;
}

/// A program broke the protocol in a way that our client library cannot; it is disconnected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Violation(pub(crate) &'static str);

/// Returns the kind that a message between nodes has in its conversation.
pub(crate) fn kind(verb: Verb) -> Kind {
    match verb {
        Verb::Joined | Verb::Left | Verb::Copied | Verb::Gone => Kind::Forward,
        Verb::Done | Verb::Taken | Verb::Refused | Verb::Answer | Verb::Landed => Kind::Reply,
        _ => Kind::Request,
    }
}

/// The result of handling a message of a program.
type Checked = Result<(), Violation>;

/// A message of a program.
#[derive(Clone, Copy)]
pub(crate) struct ProgramMessage<'a> {
    pub(crate) from: ClientId,
    pub(crate) head: Head,
    pub(crate) payload: &'a [u8],
}

/// The protocol core of one worker.
pub(crate) struct ProgramCore {
    place: WorkerPlace,
    programs: BTreeMap<ClientId, Program>,
    ports: BTreeMap<(Use, u32), ProgramPort>,
    flows: Flows,
    calls: Calls,
    windows: Windows,
    locks: Locks,
    last_port: u32,
}

/// The position of a worker in the cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WorkerPlace {
    /// The number of this node.
    pub(crate) me: NodeId,
    /// The number of this worker.
    pub(crate) worker: u8,
    /// The number of workers of every node.
    pub(crate) workers: u8,
}

impl WorkerPlace {
    fn owns(&self, number: u32) -> bool {
        number % u32::from(self.workers) == u32::from(self.worker)
    }
}

/// The ports, flows, calls and other resources of one program.
#[derive(Default)]
struct Program {
    ports: BTreeSet<(Use, u32)>,
    /// The program's number of each of its flows, with the node's number.
    flows: BTreeMap<u64, u64>,
    /// The program's number of each of its calls, with the node's number.
    calls: BTreeMap<u64, u64>,
    views: BTreeMap<u32, View>,
    /// The program's locks, by its own numbers.
    locks: BTreeMap<u32, Lock>,
    accesses: usize,
    /// The number of flows into its ports.
    senders: usize,
    /// The number of calls that it has not answered, and the bytes of their requests.
    waiting: usize,
    waiting_bytes: usize,
}

/// A port of a program.
struct ProgramPort {
    program: ClientId,
    senders: Senders,
    /// The calls that wait for the program's answer.
    waiting: BTreeSet<u64>,
}

/// The first port number that the node chooses itself; programs choose those below.
const FIRST_OWN: u32 = 1 << 31;

impl ProgramCore {
    /// Creates a core without programs. `arena` is this worker's part of the node's arena.
    pub(crate) fn new(place: WorkerPlace, arena: std::ops::Range<u64>) -> Self {
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

    /// Returns the number of locks that programs have or wait for.
    pub(crate) fn locks(&self) -> usize {
        self.locks.len()
    }

    /// Returns the number of ports, the number of windows and copies, and the bytes that these
    /// take.
    pub(crate) fn usage(&self) -> (usize, usize, u64) {
        let (windows, bytes) = self.windows.here();
        (self.ports.len(), windows, bytes)
    }

    /// Starts to serve a program.
    pub(crate) fn attach(&mut self, program: ClientId) {
        self.programs.insert(program, Program::default());
    }

    /// Releases everything of a program that has ended or is disconnected.
    pub(crate) fn forget(&mut self, world: &mut impl ProgramDriver, program: ClientId) {
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

    /// Handles a message of a program.
    ///
    /// # Errors
    /// A [`Violation`] if the message breaks the protocol; the driver must forget the program.
    pub(crate) fn program(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head, .. } = message;
        match head.verb {
            Verb::Bind => self.bind(world, from, head),
            Verb::Unbind => {
                if self.mine(from)?.ports.remove(&(head.usage, head.port)) {
                    self.close_port(world, head.usage, head.port);
                }
                Ok(())
            }
            Verb::Send => self.send(world, message),
            Verb::Taken => self.take(world, from, head),
            Verb::End => {
                if let Some(flow) = self.mine(from)?.flows.remove(&head.id) {
                    self.end_flow(world, flow);
                }
                Ok(())
            }
            Verb::Call => self.call(world, message),
            Verb::Answer => self.answer(world, message),
            Verb::Cancel if head.usage == Use::Locks => self.cancel_lock(world, from, head),
            Verb::Cancel => {
                if let Some(call) = self.mine(from)?.calls.remove(&head.id) {
                    self.cancel_call(world, call);
                }
                Ok(())
            }
            Verb::Create => self.create(world, message),
            Verb::Open => self.open(world, message),
            Verb::Map => self.map(world, from, head),
            Verb::Close => {
                if let Some(view) = self.mine(from)?.views.remove(&head.port) {
                    self.drop_view(world, from, view);
                }
                Ok(())
            }
            Verb::Watch => self.watch(world, from, head),
            Verb::Put | Verb::Get | Verb::Add | Verb::Swap => self.access(world, message),
            Verb::Lock => self.lock(world, message),
            Verb::Convert => self.convert(world, message),
            Verb::Unlock => self.unlock(world, message),
            _ => Err(Violation("a verb that only nodes use")),
        }
    }

    /// Handles a message of another node or of this one.
    pub(crate) fn node(&mut self, world: &mut impl ProgramDriver, from: NodeId, head: Head, payload: &[u8]) {
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
            // Verbs between programs and their node.
            _ => {}
        }
    }

    /// Does one step of long work; returns true if there was any.
    pub(crate) fn turn(&mut self, world: &mut impl ProgramDriver) -> bool {
        self.clear(world)
    }

    /// Returns true if there is work for [`ProgramCore::turn`].
    pub(crate) fn pending(&self) -> bool {
        self.is_clearing()
    }

    /// Handles the loss of the link to a node, after all messages that came over it.
    pub(crate) fn peer_gone(&mut self, world: &mut impl ProgramDriver, peer: NodeId) {
        self.flows_gone(world, peer);
        self.calls_gone(world, peer);
        self.windows_gone(world, peer);
    }

    fn mine(&mut self, program: ClientId) -> Result<&mut Program, Violation> {
        self.programs.get_mut(&program).ok_or(Violation("the program is not attached"))
    }

    fn bind(&mut self, world: &mut impl ProgramDriver, from: ClientId, head: Head) -> Checked {
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
            let empty = ProgramPort { program: from, senders: Senders::new(), waiting: BTreeSet::new() };
            self.ports.insert((head.usage, port), empty);
            self.mine(from)?.ports.insert((head.usage, port));
        }
        world.tell(from, Head { port, ..Head::done(head.usage, head.id, status) }, &[]);
        Ok(())
    }

    /// Returns a port number of this worker that is not in use.
    fn free_port(&mut self, usage: Use) -> u32 {
        loop {
            self.last_port = self.last_port.wrapping_add(1).max(FIRST_OWN);
            if self.place.owns(self.last_port) && !self.ports.contains_key(&(usage, self.last_port)) {
                return self.last_port;
            }
        }
    }

    fn close_port(&mut self, world: &mut impl ProgramDriver, usage: Use, port: u32) {
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
