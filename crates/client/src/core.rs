//! What an attachment knows: operations under way, ports and what has come for them, flows, windows, completions.
//!
//! One thread at a time uses it (see [`crate::shared`]). It waits for nothing and reads no clock.

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
pub(crate) use locks::{Post, answer};

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

/// What is known of a window besides its handle.
#[derive(Default)]
pub(crate) struct WindowState {
    /// LockRefusal it is gone.
    pub(crate) gone: Option<Status>,
    /// The node was asked to tell of the next change, and has not.
    pub(crate) watched: bool,
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

pub(crate) struct Core {
    pipes: Vec<Pipe>,
    letters: Letters,
    /// Looks at the rings, of all threads.
    pub(crate) looks: u32,
    /// A thread sleeps until the node wakes it.
    pub(crate) sleeper: bool,
    /// Somebody waits outside of calls, for the descriptor.
    pub(crate) outside: bool,
    /// It was told to look, and has not armed the descriptor since.
    pub(crate) told: bool,
    /// Threads that sleep until something is filed.
    pub(crate) waiters: usize,
    /// LockRefusal the attachment has ended.
    pub(crate) ended: Option<String>,
    last: u64,
    waiting: HashMap<u64, (Option<Limited>, Waiting)>,
    under_way: Vec<[usize; 3]>,
    ports: HashMap<(Use, u32), VecDeque<Arrived>>,
    flows: HashMap<FlowKey, Flow>,
    flow_keys: HashMap<u64, FlowKey>,
    /// Messages that the program has, and of those what it has done with and the sender is to be told.
    taken: Vec<Taken>,
    due: Vec<Taken>,
    pub(crate) windows: HashMap<(usize, u32), WindowState>,
    pub(crate) locks: Locks,
    pub(crate) endpoints: HashMap<u32, EndpointState>,
    /// Endpoints that have something to send, but no flow to be had.
    pub(crate) stuck: Vec<u32>,
    pub(crate) queues: HashMap<u64, Completions>,
}

/// An operation's kind of limit: calls, accesses to windows, requests for locks.
#[derive(Clone, Copy)]
pub(crate) enum Limited {
    Call = 0,
    Access = 1,
    Lock = 2,
}

impl Core {
    pub(crate) fn new(pipes: Vec<Pipe>) -> Self {
        Self {
            letters: Letters::default(),
            looks: 0,
            sleeper: false,
            outside: false,
            told: false,
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
        if let Err(busy) = self.owe(sender.queue) {
            self.under_way[worker][Limited::Access as usize] -= 1;
            return Err(busy);
        }
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
            Limited::Lock => (limits::MAX_LOCKS, "requests for locks under way"),
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

    /// Whether so much waits for room in a ring that who can wait must, so that it does not all lie in this program's memory.
    pub(crate) fn is_full(&self) -> bool {
        self.pipes.iter().any(|pipe| pipe.queued() > limits::FLOW_BYTES)
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
            || self.locks.has_news()
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
            Verb::Cancel => self.given_up(head),
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
            // Not for programs; the node is ours, and would not say it.
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

    /// Nobody waits for the answer to a call any more. One that the program has not taken is answered for it.
    fn given_up(&mut self, head: Head) {
        let Some(calls) = self.ports.get_mut(&(Use::Calls, head.port)) else { return };
        let before = calls.len();
        calls.retain(|call| call.id != head.id);
        if calls.len() < before {
            let answer =
                Head { id: head.id, status: Status::PortClosed, ..Head::new(Verb::Answer, Use::Calls) };
            self.send(self.worker(head.port), answer, &[]);
        }
    }

    /// Something is posted whose completion will be in `queue`.
    pub(crate) fn owe(&mut self, queue: u64) -> Result<(), Error> {
        self.queues.get_mut(&queue).map_or(Ok(()), Completions::owe)
    }

    /// So much of what was posted will not complete.
    pub(crate) fn forgive(&mut self, queue: u64, count: usize) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.forgive(count);
        }
    }

    pub(crate) fn complete(&mut self, queue: u64, completion: Completion) {
        // Nobody looks at the queue any more: its completions are of no use.
        if let Some(queue) = self.queues.get_mut(&queue) {
            queue.push(completion);
        }
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
        self.send_stuck();
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
}

/// What the end of an access means to who asked for it.
pub(crate) fn window_result(status: Status) -> Result<(), Error> {
    match status {
        Status::Ok => Ok(()),
        Status::OutOfRange => Err(Error::OutOfRange),
        Status::Busy => Err(Error::Busy("windows of a program, or accesses to that node")),
        _ => Err(Error::NoWindow),
    }
}
