//! Calls: a request to a port, and its answer or the reason why there is none.
//!
//! A call counts at its server until the server has answered it, even if its caller has cancelled
//! it, because the request may lie in this node's memory until then. A server that is told of a
//! cancelled call that it has not taken yet answers at once.

use std::collections::BTreeMap;

use super::{
    Checked, ClientId, Head, NodeId, ProgramCore, ProgramDriver, ProgramMessage, Status, Use, Verb,
    Violation, limits,
};

/// The calls that this node's programs made, and the calls that they must answer.
#[derive(Default)]
pub(super) struct Calls {
    made: BTreeMap<u64, MadeCall>,
    waiting: BTreeMap<u64, Waiting>,
    /// The calls that programs must answer, by caller.
    by_caller: BTreeMap<(NodeId, u64), u64>,
    last: u64,
}

#[cfg(test)]
impl Calls {
    pub(super) fn is_empty(&self) -> bool {
        self.made.is_empty() && self.waiting.is_empty() && self.by_caller.is_empty()
    }
}

struct MadeCall {
    program: ClientId,
    /// The program's number of the call.
    id: u64,
    node: NodeId,
    port: u32,
}

/// A call that a program of this node must answer.
pub(super) struct Waiting {
    program: ClientId,
    port: u32,
    /// The caller's node and its number of the call; `None` once the call is cancelled.
    caller: Option<(NodeId, u64)>,
    /// The length of the request in bytes.
    len: usize,
}

impl ProgramCore {
    /// Handles a call that a program makes.
    pub(super) fn call(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head, payload } = message;
        if world.is_choked(head.node) {
            world.tell(from, Head::done(Use::Calls, head.id, Status::Busy), &[]);
            return Ok(());
        }
        self.calls.last += 1;
        let number = self.calls.last;
        let program = self.mine(from)?;
        if program.calls.len() >= limits::MAX_CALLS {
            return Err(Violation("more calls than it may make at a time"));
        }
        if program.calls.insert(head.id, number).is_some() {
            return Err(Violation("two calls of one number"));
        }
        self.calls
            .made
            .insert(number, MadeCall { program: from, id: head.id, node: head.node, port: head.other });
        let call =
            Head { id: number, other: head.other, port: head.port, ..Head::new(Verb::Call, Use::Calls) };
        if !world.send(head.node, call, payload) {
            self.end_call(world, number, Status::NodeGone, &[]);
        }
        Ok(())
    }

    /// Handles a call to a port of this worker.
    pub(super) fn called(
        &mut self,
        world: &mut impl ProgramDriver,
        from: NodeId,
        head: Head,
        payload: &[u8],
    ) {
        let refuse = |world: &mut _, status| {
            let refusal = Head { status, id: head.id, ..Head::new(Verb::Answer, Use::Calls) };
            ProgramDriver::send(world, from, refusal, &[]);
        };
        let Some(port) = self.ports.get_mut(&(Use::Calls, head.other)) else {
            return refuse(world, Status::PortClosed);
        };
        let Some(program) = self.programs.get_mut(&port.program) else { return };
        let len = payload.len();
        if program.waiting >= limits::MAX_WAITING || program.waiting_bytes + len > limits::WAITING_BYTES {
            return refuse(world, Status::Busy);
        }
        program.waiting += 1;
        program.waiting_bytes += len;
        self.calls.last += 1;
        let number = self.calls.last;
        port.waiting.insert(number);
        let caller = Some((from, head.id));
        self.calls.waiting.insert(number, Waiting { program: port.program, port: head.other, caller, len });
        self.calls.by_caller.insert((from, head.id), number);
        let request = Head {
            id: number,
            node: from,
            port: head.other,
            other: head.port,
            ..Head::new(Verb::Request, Use::Calls)
        };
        world.tell(port.program, request, payload);
    }

    /// Handles the answer of a program; the answer to a cancelled call goes no further.
    pub(super) fn answer(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head, payload } = message;
        match self.calls.waiting.get(&head.id) {
            None => return Ok(()),
            Some(waiting) if waiting.program != from => {
                return Err(Violation("an answer to a call of another program"));
            }
            Some(_) => {}
        }
        if let Some((node, id)) = self.take_waiting(head.id) {
            let answer = Head { id, status: head.status, ..Head::new(Verb::Answer, Use::Calls) };
            world.send(node, answer, payload);
        }
        Ok(())
    }

    /// Handles the answer to a call that a program of this node made.
    pub(super) fn answered(
        &mut self,
        world: &mut impl ProgramDriver,
        from: NodeId,
        head: Head,
        payload: &[u8],
    ) {
        if self.calls.made.get(&head.id).is_some_and(|made| made.node == from) {
            self.end_call(world, head.id, head.status, payload);
        }
    }

    /// Handles the cancellation of a call by its caller.
    pub(super) fn cancelled(&mut self, world: &mut impl ProgramDriver, from: NodeId, head: Head) {
        let Some(number) = self.calls.by_caller.remove(&(from, head.id)) else { return };
        if let Some(waiting) = self.calls.waiting.get_mut(&number) {
            waiting.caller = None;
            let cancel = Head { id: number, port: waiting.port, ..Head::new(Verb::Cancel, Use::Calls) };
            world.tell(waiting.program, cancel, &[]);
        }
    }

    /// Cancels a call that a program of this node made.
    pub(super) fn cancel_call(&mut self, world: &mut impl ProgramDriver, number: u64) {
        if let Some(made) = self.calls.made.remove(&number) {
            let cancel = Head { id: number, other: made.port, ..Head::new(Verb::Cancel, Use::Calls) };
            world.send(made.node, cancel, &[]);
        }
    }

    /// Ends a call at its server and sends its caller a status instead of an answer.
    pub(super) fn refuse_call(&mut self, world: &mut impl ProgramDriver, number: u64, status: Status) {
        if let Some((node, id)) = self.take_waiting(number) {
            world.send(node, Head { status, id, ..Head::new(Verb::Answer, Use::Calls) }, &[]);
        }
    }

    /// Ends a call at its server; returns its caller unless it has cancelled.
    fn take_waiting(&mut self, number: u64) -> Option<(NodeId, u64)> {
        let waiting = self.calls.waiting.remove(&number)?;
        if let Some(port) = self.ports.get_mut(&(Use::Calls, waiting.port)) {
            port.waiting.remove(&number);
        }
        if let Some(program) = self.programs.get_mut(&waiting.program) {
            program.waiting -= 1;
            program.waiting_bytes -= waiting.len;
        }
        let caller = waiting.caller?;
        self.calls.by_caller.remove(&caller);
        Some(caller)
    }

    fn end_call(&mut self, world: &mut impl ProgramDriver, number: u64, status: Status, payload: &[u8]) {
        let Some(made) = self.calls.made.remove(&number) else { return };
        if let Some(program) = self.programs.get_mut(&made.program) {
            program.calls.remove(&made.id);
        }
        world.tell(made.program, Head::done(Use::Calls, made.id, status), payload);
    }

    pub(super) fn calls_gone(&mut self, world: &mut impl ProgramDriver, peer: NodeId) {
        let made: Vec<u64> =
            self.calls.made.iter().filter(|(_, made)| made.node == peer).map(|(number, _)| *number).collect();
        for number in made {
            self.end_call(world, number, Status::NodeGone, &[]);
        }
        let waiting: Vec<u64> =
            self.calls.by_caller.range((peer, 0)..=(peer, u64::MAX)).map(|((_, id), _)| *id).collect();
        for id in waiting {
            self.cancelled(world, peer, Head { id, ..Head::new(Verb::Cancel, Use::Calls) });
        }
    }
}
