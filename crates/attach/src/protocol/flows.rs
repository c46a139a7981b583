//! Flows: the messages from one program to one port, in order and without loss while both ends
//! live.
//!
//! The program numbers its flows, and the messages of each. The first message creates the flow at
//! the sender and, when it arrives, at the receiver. A message of an unknown flow that is not its
//! first belongs to a flow that was refused, and is dropped. The program learns from
//! [`Verb::Refused`] how much of what it sent was not taken. So a port that is closed and taken by
//! another program never sees the rest of a conversation without its beginning.

use std::collections::{BTreeMap, btree_map::Entry};

use super::{
    Checked, ClientId, FlowWindow, Head, NodeId, ProgramCore, ProgramDriver, ProgramMessage, ProgramPort,
    Status, Use, Verb, Violation, limits,
};

/// The flows that this node's programs send.
#[derive(Default)]
pub(super) struct Flows {
    open: BTreeMap<u64, Flow>,
    last: u64,
}

#[cfg(test)]
impl Flows {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

/// One flow, at its sender.
pub(super) struct Flow {
    program: ClientId,
    /// The program's number of the flow.
    id: u64,
    usage: Use,
    node: NodeId,
    port: u32,
    other: u32,
    window: FlowWindow,
}

/// The flows into a port, by sending node and its number of the flow, with their progress.
pub(super) type Senders = BTreeMap<(NodeId, u64), Arrived>;

/// The progress of a flow at its receiver.
#[derive(Default)]
pub(super) struct Arrived {
    next: u64,
    taken: u64,
    /// True once the sender has ended the flow; it is forgotten when all messages were taken.
    ended: bool,
}

impl ProgramCore {
    /// Handles a message that a program sends.
    pub(super) fn send(&mut self, world: &mut impl ProgramDriver, message: ProgramMessage<'_>) -> Checked {
        let ProgramMessage { from, head, payload } = message;
        if !matches!(head.usage, Use::Datagrams | Use::Endpoints) {
            return Err(Violation("a message for a use that takes none"));
        }
        let flows = &self.mine(from)?.flows;
        let number = match (flows.get(&head.id), head.value) {
            (Some(number), _) => *number,
            // The flow was refused; the program will learn that.
            (None, 1..) => return Ok(()),
            (None, 0) if flows.len() >= limits::MAX_FLOWS => {
                return Err(Violation("more flows than it may have"));
            }
            (None, 0) if world.is_choked(head.node) => {
                let refused =
                    Head { status: Status::Busy, id: head.id, ..Head::new(Verb::Refused, head.usage) };
                world.tell(from, refused, &[]);
                return Ok(());
            }
            (None, 0) => {
                self.flows.last += 1;
                let number = self.flows.last;
                let Head { usage, node, port, other, id, .. } = head;
                let flow =
                    Flow { program: from, id, usage, node, port, other, window: FlowWindow::default() };
                self.flows.open.insert(number, flow);
                self.mine(from)?.flows.insert(head.id, number);
                number
            }
        };
        let Some(flow) = self.flows.open.get_mut(&number) else { return Err(Violation("an unknown flow")) };
        if (flow.usage, flow.node, flow.other, flow.window.next())
            != (head.usage, head.node, head.other, head.value)
        {
            return Err(Violation("a message that does not belong to its flow"));
        }
        if !flow.window.has_room(payload.len()) {
            return Err(Violation("more messages than its flow has credits for"));
        }
        flow.window.send(payload.len());
        let (to, port) = (flow.node, flow.port);
        if !world.send(to, Head { id: number, port, node: NodeId(0), ..head }, payload) {
            self.fail_flow(world, number, Status::NodeGone);
        }
        Ok(())
    }

    /// Handles a message that has arrived for a port.
    pub(super) fn receive(
        &mut self,
        world: &mut impl ProgramDriver,
        from: NodeId,
        head: Head,
        payload: &[u8],
    ) {
        let refuse = |world: &mut _, status| {
            let head = Head { status, id: head.id, ..Head::new(Verb::Refused, head.usage) };
            ProgramDriver::send(world, from, head, &[]);
        };
        let Some(port) = self.ports.get_mut(&(head.usage, head.other)) else {
            return refuse(world, Status::PortClosed);
        };
        let Some(program) = self.programs.get_mut(&port.program) else { return };
        let arrived = match port.senders.entry((from, head.id)) {
            Entry::Occupied(flow) => flow.into_mut(),
            Entry::Vacant(_) if head.value != 0 => return,
            Entry::Vacant(_) if program.senders >= limits::MAX_SENDERS => return refuse(world, Status::Busy),
            Entry::Vacant(place) => {
                program.senders += 1;
                place.insert(Arrived::default())
            }
        };
        if arrived.next != head.value {
            return;
        }
        arrived.next += 1;
        let deliver = Head { verb: Verb::Deliver, node: from, port: head.other, other: head.port, ..head };
        world.tell(port.program, deliver, payload);
    }

    /// Handles a program's report that it has taken messages out of its queue.
    pub(super) fn take(&mut self, world: &mut impl ProgramDriver, from: ClientId, head: Head) -> Checked {
        let Some(port) = self.ports.get_mut(&(head.usage, head.port)) else { return Ok(()) };
        if port.program != from {
            return Err(Violation("messages of another program's port"));
        }
        let Some(arrived) = port.senders.get_mut(&(head.node, head.id)) else { return Ok(()) };
        if head.value > arrived.next - arrived.taken {
            return Err(Violation("more messages taken than have come"));
        }
        arrived.taken += head.value;
        if arrived.ended {
            self.forget_sender(head.usage, head.port, (head.node, head.id));
            return Ok(());
        }
        let taken = Head { id: head.id, value: head.value, ..Head::new(Verb::Taken, head.usage) };
        world.send(head.node, taken, &[]);
        Ok(())
    }

    /// Handles the receiver's report that it has taken messages of a flow.
    pub(super) fn credit(&mut self, world: &mut impl ProgramDriver, from: NodeId, head: Head) {
        let Some(flow) = self.flows.open.get_mut(&head.id).filter(|flow| flow.node == from) else { return };
        if flow.window.taken(head.value) {
            let credit = Head { id: flow.id, value: head.value, ..Head::new(Verb::Taken, flow.usage) };
            world.tell(flow.program, credit, &[]);
        }
    }

    /// Handles the loss or refusal of a flow at its receiver.
    pub(super) fn refused(&mut self, world: &mut impl ProgramDriver, from: NodeId, head: Head) {
        if self.flows.open.get(&head.id).is_some_and(|flow| flow.node == from) {
            self.fail_flow(world, head.id, head.status);
        }
    }

    /// Handles the end of a flow at its sender.
    pub(super) fn ended(&mut self, from: NodeId, head: Head) {
        if let Some(port) = self.ports.get_mut(&(head.usage, head.other))
            && let Some(arrived) = port.senders.get_mut(&(from, head.id))
        {
            arrived.ended = true;
            self.forget_sender(head.usage, head.other, (from, head.id));
        }
    }

    /// Forgets a flow that has ended, unless messages of it still wait in the node's memory.
    fn forget_sender(&mut self, usage: Use, port: u32, flow: (NodeId, u64)) {
        let Some(port) = self.ports.get_mut(&(usage, port)) else { return };
        if port.senders.get(&flow).is_some_and(|arrived| arrived.ended && arrived.taken == arrived.next) {
            port.senders.remove(&flow);
            if let Some(program) = self.programs.get_mut(&port.program) {
                program.senders -= 1;
            }
        }
    }

    fn fail_flow(&mut self, world: &mut impl ProgramDriver, number: u64, status: Status) {
        let Some(flow) = self.flows.open.remove(&number) else { return };
        if let Some(program) = self.programs.get_mut(&flow.program) {
            program.flows.remove(&flow.id);
        }
        world.tell(flow.program, Head { status, id: flow.id, ..Head::new(Verb::Refused, flow.usage) }, &[]);
    }

    /// Ends a flow in which the program will send nothing more.
    pub(super) fn end_flow(&mut self, world: &mut impl ProgramDriver, number: u64) {
        let Some(flow) = self.flows.open.remove(&number) else { return };
        let end = Head { id: number, other: flow.other, ..Head::new(Verb::End, flow.usage) };
        world.send(flow.node, end, &[]);
    }

    pub(super) fn flows_gone(&mut self, world: &mut impl ProgramDriver, peer: NodeId) {
        let numbers: Vec<u64> =
            self.flows.open.iter().filter(|(_, flow)| flow.node == peer).map(|(number, _)| *number).collect();
        for number in numbers {
            self.fail_flow(world, number, Status::NodeGone);
        }
        let flows = |(key, port): (&(Use, u32), &ProgramPort)| {
            let of_peer = port.senders.range((peer, 0)..=(peer, u64::MAX));
            of_peer.map(|(flow, _)| (*key, *flow)).collect::<Vec<_>>()
        };
        for ((usage, port), (_, id)) in self.ports.iter().flat_map(flows).collect::<Vec<_>>() {
            self.ended(peer, Head { other: port, id, ..Head::new(Verb::End, usage) });
        }
    }
}
