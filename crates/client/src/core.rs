//! What an attachment knows: operations under way, ports and what has come for them, flows, windows, completions.
//!
//! One thread at a time uses it (see [`crate::shared`]). It waits for nothing and reads no clock.

use std::collections::{HashMap, VecDeque};

use plexus_base::NodeId;

use crate::{
    Address, Error,
    endpoint::{Completion, EndpointState, Operation},
    error::why,
    wire::{FlowWindow, Head, Letters, Pipe, Status, Use, Verb, limits},
};

/// A message or request that has come for a port.
pub(crate) struct Arrived {
    pub(crate) from: Address,
    pub(crate) bytes: Vec<u8>,
    /// Its flow, or the call.
    pub(crate) id: u64,
}

/// The result of an operation.
pub(crate) struct Finished {
    pub(crate) status: Status,
    pub(crate) port: u32,
    pub(crate) value: u64,
    pub(crate) bytes: Vec<u8>,
}

/// An operation under way.
enum Waiting {
    /// Somebody will ask for its result.
    Asked,
    /// It has come.
    Finished(Finished),
    /// Its result is a completion.
    Posted { queue: u64, endpoint: u32, operation: Operation, cookie: u64 },
    /// Nobody wants it any more.
    Abandoned,
}

/// What a program sends to one port from one of its own.
#[derive(Default)]
struct Flow {
    /// 0: not begun, or ended.
    id: u64,
    window: FlowWindow,
    /// For each message under way: whose completion it is.
    posted: VecDeque<Option<Sender>>,
    /// What was not taken, and why.
    lost: Option<(usize, Status)>,
}

/// Who waits for a message to be taken.
#[derive(Clone, Copy)]
pub(crate) struct Sender {
    pub(crate) queue: u64,
    pub(crate) endpoint: u32,
    pub(crate) cookie: u64,
}

type FlowKey = (Use, u32, Address);

/// What is known of a window besides its handle.
#[derive(Default)]
pub(crate) struct WindowState {
    /// Why it is gone.
    pub(crate) gone: Option<Status>,
    /// Changes that the node was asked to tell of.
    pub(crate) changes: u64,
}

/// Messages of one flow that a program has taken.
struct Taken {
    usage: Use,
    port: u32,
    node: NodeId,
    flow: u64,
    count: u64,
    bytes: usize,
}

/// Of a flow whose messages still wait here, so much is taken before its sender is told: a quarter of what may be under way.
const TAKEN_MESSAGES: u64 = limits::FLOW_MESSAGES as u64 / 4;
const TAKEN_BYTES: usize = limits::FLOW_BYTES / 4;

/// Flows beyond these are ended when nothing is under way in them.
const MANY_FLOWS: usize = limits::MAX_FLOWS / 2;

pub(crate) struct Core {
    pipes: Vec<Pipe>,
    letters: Letters,
    /// A thread sleeps on the bell.
    pub(crate) sleeper: bool,
    /// Threads that sleep until something is filed.
    pub(crate) waiters: usize,
    /// Why the attachment has ended.
    pub(crate) ended: Option<String>,
    last: u64,
    waiting: HashMap<u64, (Option<Limited>, Waiting)>,
    under_way: Vec<[usize; 2]>,
    ports: HashMap<(Use, u32), VecDeque<Arrived>>,
    flows: HashMap<FlowKey, Flow>,
    flow_keys: HashMap<u64, FlowKey>,
    /// Messages that the program has, and of those what it has done with and the sender is to be told.
    taken: Vec<Taken>,
    due: Vec<Taken>,
    pub(crate) windows: HashMap<(usize, u32), WindowState>,
    pub(crate) endpoints: HashMap<u32, EndpointState>,
    pub(crate) queues: HashMap<u64, VecDeque<Completion>>,
}

/// An operation's kind of limit: calls, accesses to windows.
#[derive(Clone, Copy)]
pub(crate) enum Limited {
    Call = 0,
    Access = 1,
}

impl Core {
    pub(crate) fn new(pipes: Vec<Pipe>) -> Self {
        Self {
            letters: Letters::default(),
            sleeper: false,
            waiters: 0,
            ended: None,
            last: 0,
            waiting: HashMap::new(),
            under_way: vec![[0; 2]; pipes.len()],
            ports: HashMap::new(),
            flows: HashMap::new(),
            flow_keys: HashMap::new(),
            taken: Vec::new(),
            due: Vec::new(),
            windows: HashMap::new(),
            endpoints: HashMap::new(),
            queues: HashMap::new(),
            pipes,
        }
    }

    /// The worker of a port or of the hash of a name.
    pub(crate) fn worker(&self, number: u32) -> usize {
        number as usize % self.pipes.len()
    }

    /// A number that was not used before.
    pub(crate) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Says something to a worker.
    #[inline]
    pub(crate) fn send(&mut self, worker: usize, head: Head, payload: &[u8]) {
        self.pipes[worker].send(head, payload);
    }

    /// Says something that is answered; the number that its result has. The number says which worker does it.
    pub(crate) fn ask(&mut self, worker: usize, head: Head, payload: &[u8]) -> u64 {
        self.ask_as(None, worker, head, payload)
    }

    fn ask_as(&mut self, limited: Option<Limited>, worker: usize, head: Head, payload: &[u8]) -> u64 {
        let id = self.number(worker);
        self.waiting.insert(id, (limited, Waiting::Asked));
        self.send(worker, Head { id, ..head }, payload);
        id
    }

    fn number(&mut self, worker: usize) -> u64 {
        self.next() << 8 | worker as u64
    }

    /// Like [`Core::ask`], within what a program may have under way.
    pub(crate) fn ask_limited(
        &mut self,
        limited: Limited,
        worker: usize,
        head: Head,
        payload: &[u8],
    ) -> Result<u64, Error> {
        self.enter(limited, worker)?;
        Ok(self.ask_as(Some(limited), worker, head, payload))
    }

    /// Starts an access whose result is a completion.
    pub(crate) fn post(
        &mut self,
        worker: usize,
        head: Head,
        payload: &[u8],
        sender: Sender,
        operation: Operation,
    ) -> Result<(), Error> {
        self.enter(Limited::Access, worker)?;
        let id = self.number(worker);
        let Sender { queue, endpoint, cookie } = sender;
        let posted = Waiting::Posted { queue, endpoint, operation, cookie };
        self.waiting.insert(id, (Some(Limited::Access), posted));
        self.send(worker, Head { id, ..head }, payload);
        Ok(())
    }

    fn enter(&mut self, limited: Limited, worker: usize) -> Result<(), Error> {
        let (most, what) = match limited {
            Limited::Call => (limits::MAX_CALLS, "calls under way"),
            Limited::Access => (limits::MAX_ACCESSES, "accesses to windows under way"),
        };
        let under_way = &mut self.under_way[worker][limited as usize];
        if *under_way >= most {
            return Err(Error::Busy(what));
        }
        *under_way += 1;
        Ok(())
    }

    /// The result of an operation, if it has come.
    pub(crate) fn take_finished(&mut self, id: u64) -> Option<Finished> {
        if !matches!(self.waiting.get(&id)?.1, Waiting::Finished(_)) {
            return None;
        }
        match self.waiting.remove(&id)?.1 {
            Waiting::Finished(finished) => Some(finished),
            _ => None,
        }
    }

    /// Nobody wants the result any more.
    pub(crate) fn abandon(&mut self, id: u64) {
        match self.waiting.get_mut(&id) {
            Some((_, Waiting::Finished(_))) | None => drop(self.waiting.remove(&id)),
            Some((_, waiting)) => *waiting = Waiting::Abandoned,
        }
    }

    /// Nobody waits for the answer to a call any more, and none will come.
    pub(crate) fn cancel(&mut self, id: u64) {
        if let Some((Some(limited), Waiting::Asked)) = self.waiting.remove(&id) {
            let worker = (id & 0xff) as usize;
            self.under_way[worker][limited as usize] -= 1;
            self.send(worker, Head { id, ..Head::new(Verb::Cancel, Use::Calls) }, &[]);
        }
    }

    /// Takes what has come; how much.
    pub(crate) fn turn(&mut self) -> usize {
        let mut done = 0;
        for worker in 0..self.pipes.len() {
            let mut letters = std::mem::take(&mut self.letters);
            match self.pipes[worker].poll(&mut letters) {
                Ok(frames) => done += frames,
                Err(lost) if self.ended.is_none() => {
                    self.ended = Some(lost.to_string());
                    done += 1;
                }
                Err(_) => {}
            }
            for index in 0..letters.len() {
                let (head, payload) = letters.at(index);
                self.file(worker, head, payload);
            }
            letters.clear();
            self.letters = letters;
        }
        done
    }

    /// The program is back: it has done with what it had taken. Where more of the port's messages wait for it, a few are
    /// put together.
    pub(crate) fn begin(&mut self) {
        let mut index = 0;
        while let Some(Taken { usage, port, count, bytes, .. }) = self.taken.get(index) {
            let more = self.ports.get(&(*usage, *port)).is_some_and(|queue| !queue.is_empty());
            if more && *count < TAKEN_MESSAGES && *bytes < TAKEN_BYTES {
                index += 1;
            } else {
                let taken = self.taken.swap_remove(index);
                self.due.push(taken);
            }
        }
    }

    /// Sends what waits, and says what was taken: behind what the program says itself.
    pub(crate) fn flush(&mut self) {
        self.say_taken();
        for pipe in &mut self.pipes {
            // That it is lost is said by the next poll.
            let _ = pipe.flush();
        }
    }

    /// Whether something waits for room in a ring.
    pub(crate) fn is_blocked(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.queued() > 0)
    }

    fn say_taken(&mut self) {
        while let Some(Taken { usage, port, node, flow: id, count: value, .. }) = self.due.pop() {
            let worker = self.worker(port);
            self.send(worker, Head { port, node, id, value, ..Head::new(Verb::Taken, usage) }, &[]);
        }
    }

    pub(crate) fn pending(&mut self) -> bool {
        self.pipes.iter_mut().any(Pipe::pending)
    }

    /// Whether there is something for the program to take.
    pub(crate) fn has_news(&self) -> bool {
        self.ports.values().any(|queue| !queue.is_empty())
            || self.queues.values().any(|queue| !queue.is_empty())
    }

    fn file(&mut self, worker: usize, head: Head, payload: &[u8]) {
        match head.verb {
            Verb::Done => self.finish(head, payload),
            Verb::Deliver | Verb::Request => {
                let from = Address::new(head.node, head.other);
                let arrived = Arrived { from, bytes: payload.to_vec(), id: head.id };
                if head.usage == Use::Endpoints && self.endpoints.contains_key(&head.port) {
                    self.reach(head.port, arrived);
                } else if let Some(queue) = self.ports.get_mut(&(head.usage, head.port)) {
                    queue.push_back(arrived);
                }
            }
            Verb::Taken => {
                let Some(key) = self.flow_keys.get(&head.id).copied() else { return };
                let Some(flow) = self.flows.get_mut(&key) else { return };
                if !flow.window.taken(head.value) {
                    return;
                }
                let taken: Vec<_> = flow.posted.drain(..head.value as usize).flatten().collect();
                for sender in taken {
                    self.complete_send(sender, key.2, None);
                }
                self.send_posted(key);
            }
            Verb::Refused => self.refused(head),
            Verb::Changed => {
                if let Some(window) = self.windows.get_mut(&(worker, head.port)) {
                    window.changes += 1;
                }
            }
            Verb::Gone => {
                if let Some(window) = self.windows.get_mut(&(worker, head.port)) {
                    window.gone = Some(head.status);
                }
            }
            // Not for programs; the node is ours, and would not say it.
            _ => {}
        }
    }

    fn finish(&mut self, head: Head, payload: &[u8]) {
        let worker = (head.id & 0xff) as usize;
        let Some((limited, waiting)) = self.waiting.get_mut(&head.id) else { return };
        if let Some(limited) = limited {
            self.under_way[worker][*limited as usize] -= 1;
        }
        let Head { status, port, value, .. } = head;
        if head.usage != Use::Windows && port != 0 && status == Status::Ok {
            // Messages may follow at once.
            self.ports.entry((head.usage, port)).or_default();
        }
        match waiting {
            Waiting::Asked => {
                *waiting = Waiting::Finished(Finished { status, port, value, bytes: payload.to_vec() });
            }
            Waiting::Posted { queue, endpoint, operation, cookie } => {
                let completion = Completion {
                    cookie: *cookie,
                    endpoint: *endpoint,
                    operation: *operation,
                    result: window_result(status),
                    value,
                    bytes: payload.to_vec(),
                    from: None,
                };
                let queue = *queue;
                self.waiting.remove(&head.id);
                self.complete(queue, completion);
            }
            Waiting::Abandoned => drop(self.waiting.remove(&head.id)),
            Waiting::Finished(_) => {}
        }
    }

    fn refused(&mut self, head: Head) {
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
        self.send_posted(key);
    }

    pub(crate) fn complete(&mut self, queue: u64, completion: Completion) {
        // Nobody looks at the queue any more: its completions are of no use.
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.push_back(completion);
        }
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

    /// Gives a port back, with all that was sent from it and is not under way.
    pub(crate) fn close_port(&mut self, usage: Use, port: u32) {
        self.ports.remove(&(usage, port));
        self.begin();
        self.say_taken();
        let worker = self.worker(port);
        self.send(worker, Head { port, ..Head::new(Verb::Unbind, usage) }, &[]);
        let keys: Vec<FlowKey> =
            self.flows.keys().filter(|(of, own, _)| (*of, *own) == (usage, port)).copied().collect();
        keys.into_iter().for_each(|key| self.end_flow(key));
    }

    fn end_flow(&mut self, key: FlowKey) {
        let Some(flow) = self.flows.remove(&key) else { return };
        if flow.id != 0 {
            self.flow_keys.remove(&flow.id);
            let worker = self.worker(key.2.port);
            self.send(worker, Head { id: flow.id, ..Head::new(Verb::End, key.0) }, &[]);
        }
    }

    /// The next message of a port. It counts as taken when the program comes back, see [`Core::begin`].
    pub(crate) fn take(&mut self, usage: Use, port: u32) -> Option<Arrived> {
        let arrived = self.ports.get_mut(&(usage, port))?.pop_front()?;
        if usage != Use::Calls {
            self.count_taken(usage, port, &arrived);
        }
        Some(arrived)
    }

    /// What has come for a port before somebody looked after it otherwise.
    pub(crate) fn take_all(&mut self, usage: Use, port: u32) -> VecDeque<Arrived> {
        self.ports.get_mut(&(usage, port)).map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn count_taken(&mut self, usage: Use, port: u32, arrived: &Arrived) {
        let (node, flow, len) = (arrived.from.node, arrived.id, arrived.bytes.len());
        let same = |taken: &&mut Taken| {
            (taken.usage, taken.port, taken.node, taken.flow) == (usage, port, node, flow)
        };
        match self.taken.iter_mut().find(same) {
            Some(taken) => {
                taken.count += 1;
                taken.bytes += len;
            }
            None => self.taken.push(Taken { usage, port, node, flow, count: 1, bytes: len }),
        }
    }

    /// Sends a message if its flow has room; whether it had. What was lost before is said first.
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
            return Err(Error::Busy("ports with messages under way to them"));
        }
        keys.into_iter().for_each(|key| self.end_flow(key));
        Ok(())
    }

    /// Whether all that a port sent was taken; the first loss among it is said.
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
}

/// What the end of an access means to who asked for it.
pub(crate) fn window_result(status: Status) -> Result<(), Error> {
    match status {
        Status::Ok => Ok(()),
        Status::OutOfRange => Err(Error::OutOfRange),
        Status::Busy => Err(Error::Busy("windows of a program")),
        _ => Err(Error::NoWindow),
    }
}
