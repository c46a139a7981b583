//! The state of an attachment: pending operations, ports with received messages, flows, windows and
//! completions.
//!
//! One thread at a time uses it (see [`crate::shared`]). It never waits and reads no clock.

mod flows;
mod locks;

use std::collections::{HashMap, VecDeque};

use plexus_base::NodeId;

use crate::{
    Address, Error,
    completions::{Completion, Completions, Operation},
    endpoint::EndpointState,
    wire::{Head, Letters, Pipe, Status, Use, Verb, limits},
};
pub(crate) use flows::Sender;
use flows::{Flow, FlowKey};
use locks::Locks;
pub(crate) use locks::{EventTarget, answer};

/// A message or request that has arrived for a port.
pub(crate) struct Arrived {
    pub(crate) from: Address,
    pub(crate) bytes: Vec<u8>,
    /// The flow of the message, or the number of the call.
    pub(crate) id: u64,
}

/// The result of an operation.
pub(crate) struct Finished {
    pub(crate) status: Status,
    pub(crate) port: u32,
    pub(crate) value: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The state of a pending operation.
enum OperationState {
    /// A caller will take the result.
    Pending,
    /// The result has arrived.
    Finished(Finished),
    /// The result becomes a completion.
    Posted { queue: u64, endpoint: u32, operation: Operation, cookie: u64 },
    /// The result is dropped when it arrives.
    Abandoned,
}

/// The state of a window that changes after it is opened.
#[derive(Default)]
pub(crate) struct WindowState {
    /// The reason why the window is gone.
    pub(crate) gone: Option<Status>,
    /// The node was asked to announce the next change and has not done so yet.
    pub(crate) watched: bool,
}

/// Messages of one flow that the program has taken.
struct Taken {
    usage: Use,
    port: u32,
    node: NodeId,
    flow: u64,
    count: u64,
    bytes: usize,
}

/// While a flow has more messages waiting here, its sender is told only after a quarter of its
/// window was taken.
const TAKEN_MESSAGES: u64 = limits::FLOW_MESSAGES as u64 / 4;
const TAKEN_BYTES: usize = limits::FLOW_BYTES / 4;

pub(crate) struct ClientCore {
    pipes: Vec<Pipe>,
    letters: Letters,
    /// The tick of the coarse clock in which a thread looked at the node last.
    pub(crate) tick: (i64, i64),
    /// A thread sleeps until the node wakes it.
    pub(crate) sleeper: bool,
    /// A thread waits for the descriptor, outside of any call.
    pub(crate) outside: bool,
    /// The descriptor was signalled and has not been armed since.
    pub(crate) outside_signalled: bool,
    /// The number of threads that sleep until a message is filed.
    pub(crate) waiters: usize,
    /// The reason why the attachment has ended.
    pub(crate) ended: Option<String>,
    last: u64,
    waiting: HashMap<u64, (Option<Limited>, OperationState)>,
    under_way: Vec<[usize; 3]>,
    ports: HashMap<(Use, u32), VecDeque<Arrived>>,
    flows: HashMap<FlowKey, Flow>,
    flow_keys: HashMap<u64, FlowKey>,
    /// `taken` counts messages that the program may still use; `due` counts those that it has
    /// finished, which their senders are not outside_signalled of yet.
    taken: Vec<Taken>,
    due: Vec<Taken>,
    pub(crate) windows: HashMap<(usize, u32), WindowState>,
    pub(crate) locks: Locks,
    pub(crate) endpoints: HashMap<u32, EndpointState>,
    /// Endpoints with messages to send that wait for a free flow.
    pub(crate) stuck: Vec<u32>,
    pub(crate) queues: HashMap<u64, Completions>,
}

/// The limit that an operation counts against: calls, window accesses or lock requests.
#[derive(Clone, Copy)]
pub(crate) enum Limited {
    Call = 0,
    Access = 1,
    Lock = 2,
}

impl ClientCore {
    pub(crate) fn new(pipes: Vec<Pipe>) -> Self {
        Self {
            letters: Letters::default(),
            tick: (0, 0),
            sleeper: false,
            outside: false,
            outside_signalled: false,
            waiters: 0,
            ended: None,
            last: 0,
            waiting: HashMap::new(),
            under_way: vec![[0; 3]; pipes.len()],
            ports: HashMap::new(),
            flows: HashMap::new(),
            flow_keys: HashMap::new(),
            taken: Vec::new(),
            due: Vec::new(),
            windows: HashMap::new(),
            locks: Locks::default(),
            endpoints: HashMap::new(),
            stuck: Vec::new(),
            queues: HashMap::new(),
            pipes,
        }
    }

    /// Returns the worker of a port or of the hash of a name.
    pub(crate) fn worker(&self, number: u32) -> usize {
        number as usize % self.pipes.len()
    }

    /// Returns a number that was not used before.
    pub(crate) fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Sends a message to a worker.
    #[inline]
    pub(crate) fn send(&mut self, worker: usize, head: Head, payload: &[u8]) {
        self.pipes[worker].send(head, payload);
    }

    /// Sends a request that is answered. Returns its number, which contains the worker and names
    /// the result.
    pub(crate) fn ask(&mut self, worker: usize, head: Head, payload: &[u8]) -> u64 {
        self.request_as(None, worker, head, payload)
    }

    fn request_as(&mut self, limited: Option<Limited>, worker: usize, head: Head, payload: &[u8]) -> u64 {
        let id = self.number(worker);
        self.waiting.insert(id, (limited, OperationState::Pending));
        self.send(worker, Head { id, ..head }, payload);
        id
    }

    fn number(&mut self, worker: usize) -> u64 {
        self.next() << 8 | worker as u64
    }

    /// Sends a request like [`ClientCore::ask`] if the limit on pending operations allows it.
    pub(crate) fn request_limited(
        &mut self,
        limited: Limited,
        worker: usize,
        head: Head,
        payload: &[u8],
    ) -> Result<u64, Error> {
        self.enter(limited, worker)?;
        Ok(self.request_as(Some(limited), worker, head, payload))
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
        if let Err(busy) = self.reserve(sender.queue) {
            self.under_way[worker][Limited::Access as usize] -= 1;
            return Err(busy);
        }
        let id = self.number(worker);
        let Sender { queue, endpoint, cookie } = sender;
        let posted = OperationState::Posted { queue, endpoint, operation, cookie };
        self.waiting.insert(id, (Some(Limited::Access), posted));
        self.send(worker, Head { id, ..head }, payload);
        Ok(())
    }

    fn enter(&mut self, limited: Limited, worker: usize) -> Result<(), Error> {
        let (most, what) = match limited {
            Limited::Call => (limits::MAX_CALLS, "pending calls"),
            Limited::Access => (limits::MAX_ACCESSES, "pending window accesses"),
            Limited::Lock => (limits::MAX_LOCKS, "pending lock requests"),
        };
        let under_way = &mut self.under_way[worker][limited as usize];
        if *under_way >= most {
            return Err(Error::Busy(what));
        }
        *under_way += 1;
        Ok(())
    }

    /// Returns the result of an operation, if it has arrived.
    pub(crate) fn take_finished(&mut self, id: u64) -> Option<Finished> {
        if !matches!(self.waiting.get(&id)?.1, OperationState::Finished(_)) {
            return None;
        }
        match self.waiting.remove(&id)?.1 {
            OperationState::Finished(finished) => Some(finished),
            _ => None,
        }
    }

    /// Drops the result of an operation, now or when it arrives.
    pub(crate) fn abandon(&mut self, id: u64) {
        match self.waiting.get_mut(&id) {
            Some((_, OperationState::Finished(_))) | None => drop(self.waiting.remove(&id)),
            Some((_, waiting)) => *waiting = OperationState::Abandoned,
        }
    }

    /// Cancels a call; no answer will arrive.
    pub(crate) fn cancel(&mut self, id: u64) {
        if let Some((Some(limited), OperationState::Pending)) = self.waiting.remove(&id) {
            let worker = (id & 0xff) as usize;
            self.under_way[worker][limited as usize] -= 1;
            self.send(worker, Head { id, ..Head::new(Verb::Cancel, Use::Calls) }, &[]);
        }
    }

    /// Receives from all rings. Returns how many frames arrived.
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

    /// Starts a call of the program, which has now finished with the messages taken before. If the
    /// port has more of them waiting, several are acknowledged together.
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

    /// Sends queued messages, and after them the acknowledgements of taken messages.
    pub(crate) fn flush(&mut self) {
        self.send_acknowledgements();
        for pipe in &mut self.pipes {
            // The next poll reports a lost rail.
            let _ = pipe.flush();
        }
    }

    /// Returns true if so many bytes wait for room in a ring that callers must wait. This bounds
    /// the memory that the queue takes.
    pub(crate) fn is_full(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.queued() > limits::FLOW_BYTES)
    }

    /// Returns true if a message waits for room in a ring.
    pub(crate) fn is_blocked(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.queued() > 0)
    }

    fn send_acknowledgements(&mut self) {
        while let Some(Taken { usage, port, node, flow: id, count: value, .. }) = self.due.pop() {
            let worker = self.worker(port);
            self.send(worker, Head { port, node, id, value, ..Head::new(Verb::Taken, usage) }, &[]);
        }
    }

    pub(crate) fn pending(&mut self) -> bool {
        self.pipes.iter_mut().any(Pipe::pending)
    }

    /// Returns true if a message or event waits for the program.
    pub(crate) fn has_events(&self) -> bool {
        self.ports.values().any(|queue| !queue.is_empty())
            || self.locks.has_events()
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
            Verb::Taken => self.credit(head),
            Verb::Refused => self.refused(head),
            Verb::Cancel => self.call_cancelled(head),
            Verb::Changed => {
                if let Some(window) = self.windows.get_mut(&(worker, head.port)) {
                    window.watched = false;
                }
            }
            Verb::Gone => {
                if let Some(window) = self.windows.get_mut(&(worker, head.port)) {
                    window.gone = Some(head.status);
                }
            }
            Verb::Wanted => self.lock_wanted(worker, &head),
            Verb::Lost => self.locks_lost(),
            // Programs never get the other messages. The node is trusted not to send them.
            _ => {}
        }
    }

    fn finish(&mut self, head: Head, payload: &[u8]) {
        let worker = (head.id & 0xff) as usize;
        if head.usage == Use::Locks {
            self.lock_answered(worker, &head, payload);
        }
        let Some((limited, waiting)) = self.waiting.get_mut(&head.id) else { return };
        if let Some(limited) = limited {
            self.under_way[worker][*limited as usize] -= 1;
        }
        let Head { status, port, value, .. } = head;
        if !matches!(head.usage, Use::Windows | Use::Locks) && port != 0 && status == Status::Ok {
            // Messages may follow at once.
            self.ports.entry((head.usage, port)).or_default();
        }
        match waiting {
            OperationState::Pending => {
                *waiting =
                    OperationState::Finished(Finished { status, port, value, bytes: payload.to_vec() });
            }
            OperationState::Posted { queue, endpoint, operation, cookie } => {
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
            OperationState::Abandoned => drop(self.waiting.remove(&head.id)),
            OperationState::Finished(_) => {}
        }
    }

    /// Handles a call whose caller stopped waiting. If the program has not taken it yet, it is
    /// answered here.
    fn call_cancelled(&mut self, head: Head) {
        let Some(calls) = self.ports.get_mut(&(Use::Calls, head.port)) else { return };
        let before = calls.len();
        calls.retain(|call| call.id != head.id);
        if calls.len() < before {
            let answer =
                Head { id: head.id, status: Status::PortClosed, ..Head::new(Verb::Answer, Use::Calls) };
            self.send(self.worker(head.port), answer, &[]);
        }
    }

    /// Reserves room in `queue` for the completion of a posted operation.
    pub(crate) fn reserve(&mut self, queue: u64) -> Result<(), Error> {
        self.queues.get_mut(&queue).map_or(Ok(()), Completions::reserve)
    }

    /// Releases the room of `count` completions that will never come.
    pub(crate) fn unreserve(&mut self, queue: u64, count: usize) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.unreserve(count);
        }
    }

    pub(crate) fn complete(&mut self, queue: u64, completion: Completion) {
        // If the queue is gone, its completions are dropped.
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.push(completion);
        }
    }

    /// Gives a port back, and drops all messages from it that are not on their way yet.
    pub(crate) fn close_port(&mut self, usage: Use, port: u32) {
        self.ports.remove(&(usage, port));
        self.begin();
        self.send_acknowledgements();
        let worker = self.worker(port);
        self.send(worker, Head { port, ..Head::new(Verb::Unbind, usage) }, &[]);
        let keys: Vec<FlowKey> =
            self.flows.keys().filter(|(of, own, _)| (*of, *own) == (usage, port)).copied().collect();
        keys.into_iter().for_each(|key| self.end_flow(key));
        self.send_stuck();
    }

    /// Takes the next message of a port. It is acknowledged after the program's next call, see
    /// [`ClientCore::begin`].
    pub(crate) fn take(&mut self, usage: Use, port: u32) -> Option<Arrived> {
        let arrived = self.ports.get_mut(&(usage, port))?.pop_front()?;
        if usage != Use::Calls {
            self.count_taken(usage, port, &arrived);
        }
        Some(arrived)
    }

    /// Takes all messages that arrived for a port.
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
}

/// Converts the status of a window access to a result.
pub(crate) fn window_result(status: Status) -> Result<(), Error> {
    match status {
        Status::Ok => Ok(()),
        Status::OutOfRange => Err(Error::OutOfRange),
        Status::Busy => Err(Error::Busy("windows of a program, or accesses to that node")),
        _ => Err(Error::NoWindow),
    }
}
