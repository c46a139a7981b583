//! The flows of sent messages: from one port of this program to one port of another.

use std::collections::VecDeque;

use super::ClientCore;
use crate::{
    Address, Error,
    completions::{Completion, Operation},
    error::why,
    wire::{FlowWindow, Head, Status, Use, Verb, limits},
};

/// The messages from one own port to one other port.
#[derive(Default)]
pub(super) struct Flow {
    /// The number of the flow; 0 before it begins and after it ends.
    id: u64,
    window: FlowWindow,
    /// For each message on its way, the sender to complete, if it was posted.
    posted: VecDeque<Option<Sender>>,
    /// How many messages were lost, and why.
    lost: Option<(usize, Status)>,
}

/// The posted operation that is complete when its message was taken.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) queue: u64,
    pub(crate) endpoint: u32,
    pub(crate) cookie: u64,
}

pub(super) type FlowKey = (Use, u32, Address);

/// Above this number, flows without messages on their way are ended.
const MANY_FLOWS: usize = limits::MAX_FLOWS / 2;

impl ClientCore {
    /// Sends a message if its flow has room. Returns true if it was sent. An earlier loss is
    /// reported first.
    pub(crate) fn try_send(
        &mut self,
        usage: Use,
        own: u32,
        to: Address,
        bytes: &[u8],
        sender: Option<Sender>,
    ) -> Result<bool, Error> {
        if let Some(why) = &self.ended {
            return Err(Error::NodeLost(why.clone()));
        }
        let key = (usage, own, to);
        if self.flows.len() >= MANY_FLOWS && !self.flows.contains_key(&key) {
            self.end_idle_flows()?;
        }
        let worker = self.worker(to.port);
        let next = self.last + 1;
        let flow = self.flows.entry(key).or_default();
        if let Some((lost, status)) = flow.lost.take() {
            return Err(Error::Undelivered { to, lost, why: why(status) });
        }
        if !flow.window.has_room(bytes.len()) {
            return Ok(false);
        }
        if flow.id == 0 {
            self.last = next;
            flow.id = next;
            self.flow_keys.insert(next, key);
        }
        let value = flow.window.send(bytes.len());
        flow.posted.push_back(sender);
        let head = Head {
            node: to.node,
            port: own,
            other: to.port,
            id: flow.id,
            value,
            ..Head::new(Verb::Send, usage)
        };
        self.send(worker, head, bytes);
        Ok(true)
    }

    fn end_idle_flows(&mut self) -> Result<(), Error> {
        let idle = |flow: &Flow| flow.window.under_way() == 0 && flow.lost.is_none();
        let keys: Vec<FlowKey> =
            self.flows.iter().filter(|(_, flow)| idle(flow)).map(|(key, _)| *key).collect();
        if keys.is_empty() {
            return Err(Error::Busy("destination ports with messages on their way"));
        }
        keys.into_iter().for_each(|key| self.end_flow(key));
        Ok(())
    }

    /// Returns true if every message from a port was taken. Reports the first loss among them.
    pub(crate) fn is_settled(&mut self, usage: Use, own: u32) -> Result<bool, Error> {
        let mut settled = true;
        for ((of, port, to), flow) in &mut self.flows {
            if (*of, *port) != (usage, own) {
                continue;
            }
            if let Some((lost, status)) = flow.lost.take() {
                return Err(Error::Undelivered { to: *to, lost, why: why(status) });
            }
            settled &= flow.window.under_way() == 0;
        }
        Ok(settled)
    }

    /// Handles the acknowledgement of messages of a flow.
    pub(super) fn credit(&mut self, head: Head) {
        let Some(key) = self.flow_keys.get(&head.id).copied() else { return };
        let Some(flow) = self.flows.get_mut(&key) else { return };
        if !flow.window.taken(head.value) {
            return;
        }
        let idle = flow.window.under_way() == 0;
        let taken: Vec<_> = flow.posted.drain(..head.value as usize).flatten().collect();
        for sender in taken {
            self.complete_send(sender, key.2, None);
        }
        self.send_posted(key.0, key.1);
        if idle {
            self.send_stuck();
        }
    }

    /// Handles the end of a flow, with all messages that were on their way in it.
    pub(super) fn refused(&mut self, head: Head) {
        let Some(key) = self.flow_keys.remove(&head.id) else { return };
        let Some(flow) = self.flows.get_mut(&key) else { return };
        let posted: Vec<_> = flow.posted.drain(..).collect();
        let mut lost = 0;
        let mut errors = Vec::new();
        for sender in posted {
            match sender {
                Some(sender) => errors.push(sender),
                None => lost += 1,
            }
        }
        *flow = Flow { lost: (lost > 0).then_some((lost, head.status)), ..Flow::default() };
        if lost == 0 {
            self.flows.remove(&key);
        }
        for sender in errors {
            self.complete_send(sender, key.2, Some(head.status));
        }
        self.send_posted(key.0, key.1);
        self.send_stuck();
    }

    fn complete_send(&mut self, sender: Sender, to: Address, status: Option<Status>) {
        let result = match status {
            None => Ok(()),
            Some(status) => Err(Error::Undelivered { to, lost: 1, why: why(status) }),
        };
        let completion = Completion {
            cookie: sender.cookie,
            endpoint: sender.endpoint,
            operation: Operation::Send,
            result,
            value: 0,
            bytes: Vec::new(),
            from: None,
        };
        self.complete(sender.queue, completion);
    }

    /// Ends a flow with all messages on their way in it, without completions.
    pub(super) fn end_flow(&mut self, key: FlowKey) {
        let Some(flow) = self.flows.remove(&key) else { return };
        for sender in flow.posted.into_iter().flatten() {
            self.unreserve(sender.queue, 1);
        }
        if flow.id != 0 {
            self.flow_keys.remove(&flow.id);
            let worker = self.worker(key.2.port);
            self.send(worker, Head { id: flow.id, ..Head::new(Verb::End, key.0) }, &[]);
        }
    }
}
