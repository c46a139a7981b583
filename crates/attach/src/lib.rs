//! The node's side of client programs: it serves what `plexus-client` connects to.
//!
//! [`AttachServer`] accepts programs at a local socket and gives every worker a rail to each.
//! [`Programs`] is one worker's part of the service. In the worker's turn it takes the messages of
//! programs. From the worker's links it takes messages of other nodes about ports and windows. It
//! gives both to the `protocol` and carries out what the protocol decides.
//!
//! To its node a program is one more peer, over rings of shared memory. A program may write
//! anything into its rings: the worst result is that the node disconnects it. It can only read the
//! memory of windows. The node notices the end of a program at once, through its process and its
//! socket, and releases everything that the program had.
//!
//! Programs are not trusted with doorbells either. A program reads whether a worker sleeps from
//! memory that only the node can write. It wakes a worker by an event descriptor that no other
//! program has and that the node neither reads nor writes. A worker wakes a program by a descriptor
//! on which the program can only wait (`fabric/src/bell.rs`, `event.rs`). So a program cannot keep
//! a worker asleep, make it wait in a system call, or take a wake-up of another program. A program
//! that rings without end makes a worker look once for each ring. A look is bounded, because
//! [`Programs::turn`] takes a limited number of frames of each program, so all others get their
//! share.
//!
//! Some attacks are not prevented. The window memory is passed read-only, but the node's user owns
//! it: a program of that user could open it again through `/proc` and write. The same holds for the
//! words in which workers say that they sleep. Programs of that user could also stop the node by a
//! signal. A program that puts many watchers on its own descriptor makes each wake-up of it more
//! expensive for the worker, up to the program's limit of open files.

mod door;
mod protocol;
mod usage;

use std::{
    collections::BTreeMap,
    ops::Range,
    os::fd::OwnedFd,
    sync::{Arc, atomic::AtomicUsize},
};

use plexus_base::{NodeId, clock};
use plexus_client::wire::{ClientId, Head, Letters, Pipe, Use, limits, lock::FOREVER};
use plexus_fabric::{Lost, MAX_WORDWISE, Put, Rail, Window, WindowId};
use plexus_interconnect::{Channel, Listening, Message, Net};
use plexus_locks::{
    LockService,
    protocol::{Event, WaitLimit},
};

use plexus_membership::subsystem::{Neighbours, Subsystem};

pub use door::{AttachOffer, AttachServer};
use protocol::{ProgramCore, ProgramDriver, ProgramMessage, WorkerPlace, kind};
pub use usage::ProgramUsage;

/// The window of every node that contains the windows of programs.
pub const ARENA: WindowId = WindowId(0x101);

const _: () = assert!(limits::MAX_MESSAGE <= MAX_WORDWISE, "an access must fit into one put");

/// A program, as one worker receives it from the [`AttachServer`].
pub struct AttachedProgram {
    /// The program's number.
    pub id: ClientId,
    /// The rings to the program.
    pub rail: Box<dyn Rail>,
    /// The program's seat, with the socket that closes when the program is disconnected.
    pub seat: Arc<Seat>,
    /// The event by which the program wakes the worker.
    pub bell: Listening,
}

/// One of the limited places for programs; free again when every worker has dropped it.
pub struct Seat {
    socket: OwnedFd,
    taken: Arc<AtomicUsize>,
}

impl Seat {
    /// Closes the socket, which tells the program that it is disconnected.
    fn end(&self) {
        // Fails if the program has closed it already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
    }
}

/// A worker's part of the service for programs.
pub struct Programs {
    core: ProgramCore,
    state: WorkerState,
    letters: Letters,
    usage: Arc<ProgramUsage>,
}

/// The state of a worker that the protocol acts on, without the links.
struct WorkerState {
    arena: Arc<Window>,
    programs: BTreeMap<ClientId, ProgramConnection>,
    /// Messages of this node to itself.
    own: Vec<(Head, Vec<u8>)>,
    /// Requests of programs to the lock manager.
    lock_requests: Vec<Event>,
    /// The buffer in which a message to another node is built.
    message: Vec<u8>,
}

/// The worker's connection to an attached program.
struct ProgramConnection {
    pipe: Pipe,
    seat: Arc<Seat>,
    _bell: Listening,
}

impl Drop for ProgramConnection {
    fn drop(&mut self) {
        self.seat.end();
    }
}

/// The [`ProgramDriver`] of the protocol: the worker's state and its links.
struct DriverWorld<'a> {
    state: &'a mut WorkerState,
    net: &'a mut Net,
}

/// Returns the channel for messages of a use; `None` for locks, which have a protocol of their own.
fn channel(usage: Use) -> Option<Channel> {
    match usage {
        Use::Datagrams => Some(Channel::Datagrams),
        Use::Calls => Some(Channel::Services),
        Use::Endpoints => Some(Channel::Application1),
        Use::Windows => Some(Channel::Application2),
        Use::Locks => None,
    }
}

impl ProgramDriver for DriverWorld<'_> {
    fn tell(&mut self, program: ClientId, head: Head, payload: &[u8]) {
        if let Some(connection) = self.state.programs.get_mut(&program) {
            connection.pipe.send(head, payload);
        }
    }

    fn send(&mut self, to: NodeId, head: Head, payload: &[u8]) -> bool {
        if to == self.net.me() {
            self.state.own.push((head, payload.to_vec()));
            return true;
        }
        let Some(channel) = channel(head.usage) else { return false };
        let message = &mut self.state.message;
        message.clear();
        message.extend_from_slice(&head.encode(payload.len()));
        message.extend_from_slice(payload);
        self.net.send(to, channel, kind(head.verb), 0, message).is_ok()
    }

    fn is_choked(&self, to: NodeId) -> bool {
        self.net.backlog(to) > limits::MAX_BACKLOG
    }

    fn copy(&mut self, to: NodeId, at: u64, bytes: &[u8], head: Head) -> bool {
        let put = Put { window: ARENA, offset: at, generation: 0, data: bytes };
        let Some(channel) = channel(head.usage) else { return false };
        self.net.put(to, channel, kind(head.verb), 0, put, &head.encode(0)).is_ok()
    }

    fn read(&self, at: u64, into: &mut [u8]) {
        self.state.arena.read(at as usize, into);
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        assert!(self.state.arena.write(at, bytes), "the protocol wrote outside its share of the arena");
    }

    fn lock(&mut self, event: Event) {
        self.state.lock_requests.push(event);
    }

    fn timeout(&self, timeout_ns: u64) -> WaitLimit {
        WaitLimit::of((timeout_ns != FOREVER).then_some(timeout_ns), clock::now)
    }
}

impl Subsystem for Programs {
    const NAME: &'static str = "programs";
    const CHANNELS: &'static [Channel] =
        &[Channel::Datagrams, Channel::Services, Channel::Application1, Channel::Application2];
    const HAS_TURN: bool = true;
    type Task = AttachedProgram;

    /// Messages to programs are flushed in the next turn.
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        let decoded = message.payload.split_first_chunk().map(|(head, rest)| (Head::decode(head), rest));
        match decoded {
            Some((Ok((head, len)), payload))
                if len == payload.len() && channel(head.usage) == Some(message.channel) =>
            {
                let mut world = DriverWorld { state: &mut self.state, net };
                self.core.node(&mut world, message.from, head, payload);
                self.handle_own_messages(net);
            }
            _ => {
                tracing::error!(from = %message.from, "dropped a malformed message about programs")
            }
        }
    }

    /// Starts to serve a program.
    fn task(&mut self, _: &mut Net, attached: AttachedProgram) {
        let AttachedProgram { id, rail, seat, bell } = attached;
        self.state.programs.insert(id, ProgramConnection { pipe: Pipe::new(rail), seat, _bell: bell });
        self.core.attach(id);
    }

    fn peer_lost(&mut self, net: &mut Net, peer: NodeId) {
        self.core.peer_gone(&mut DriverWorld { state: &mut self.state, net }, peer);
        self.handle_own_messages(net);
    }

    /// Handles messages of programs and notices of the lock manager; returns how many.
    #[inline]
    fn turn(&mut self, net: &mut Net, others: &mut dyn Neighbours) -> usize {
        let Some(locks) = others.get::<LockService>() else { return 0 };
        if self.state.programs.is_empty() && self.state.lock_requests.is_empty() && !locks.pending() {
            return 0;
        }
        let mut done = 0;
        let mut after = None;
        while let Some(program) = self.state.programs.range(next(after)).next().map(|(id, _)| *id) {
            after = Some(program);
            done += self.serve(net, program);
        }
        if done > 0 {
            self.handle_own_messages(net);
        }
        done += usize::from(self.core.turn(&mut DriverWorld { state: &mut self.state, net }));
        done += self.lock(net, locks);
        self.flush(net);
        done
    }

    fn pending(&mut self) -> bool {
        self.core.pending()
            || !self.state.lock_requests.is_empty()
            || self.state.programs.values_mut().any(|connection| connection.pipe.pending())
    }
}

impl Programs {
    /// Creates the part of `worker`, without programs. The workers of a node share `arena` and each
    /// uses its own part. `usage` receives the counts of what programs have of this worker.
    pub fn new(me: NodeId, worker: u8, workers: u8, arena: Arc<Window>, usage: Arc<ProgramUsage>) -> Self {
        let share = share(arena.len() as u64, worker, workers);
        Self {
            core: ProgramCore::new(WorkerPlace { me, worker, workers }, share),
            state: WorkerState {
                arena,
                programs: BTreeMap::new(),
                own: Vec::new(),
                lock_requests: Vec::new(),
                message: Vec::new(),
            },
            letters: Letters::default(),
            usage,
        }
    }

    /// Passes requests to the lock manager and takes its notices; returns how many of both.
    fn lock(&mut self, net: &mut Net, locks: &mut LockService) -> usize {
        let mut done = self.state.lock_requests.len();
        for request in self.state.lock_requests.drain(..) {
            locks.program(net, request);
        }
        for notice in locks.take_notices() {
            self.core.lock_notice(&mut DriverWorld { state: &mut self.state, net }, notice);
            done += 1;
        }
        if done > 0 {
            self.note_usage();
        }
        done
    }

    fn serve(&mut self, net: &mut Net, program: ClientId) -> usize {
        let Some(connection) = self.state.programs.get_mut(&program) else { return 0 };
        let mut letters = std::mem::take(&mut self.letters);
        let polled = connection.pipe.poll(&mut letters);
        let mut wrong = None;
        for index in 0..letters.len() {
            let (head, payload) = letters.at(index);
            let mut world = DriverWorld { state: &mut self.state, net };
            let message = ProgramMessage { from: program, head, payload };
            if let Err(violation) = self.core.program(&mut world, message) {
                wrong = Some(Lost::Corrupt(violation.0));
                break;
            }
        }
        letters.clear();
        self.letters = letters;
        let (frames, lost) = polled.map_or_else(|lost| (1, Some(lost)), |frames| (frames, None));
        if let Some(lost) = wrong.or(lost) {
            self.end(net, program, &lost);
        }
        frames
    }

    /// Handles this node's messages to itself, and the ones that follow from them. Runs last
    /// wherever the possessions of programs may have changed.
    fn handle_own_messages(&mut self, net: &mut Net) {
        let me = net.me();
        while !self.state.own.is_empty() {
            for (head, payload) in std::mem::take(&mut self.state.own) {
                self.core.node(&mut DriverWorld { state: &mut self.state, net }, me, head, &payload);
            }
        }
        self.note_usage();
    }

    fn note_usage(&self) {
        let (ports, windows, bytes) = self.core.usage();
        self.usage.note(ports, windows, bytes, self.core.locks());
    }

    /// Wakes programs that have something to read; disconnects those whose queue is too long.
    fn flush(&mut self, net: &mut Net) {
        let mut lost = Vec::new();
        for (program, ProgramConnection { pipe, .. }) in &mut self.state.programs {
            let flushed = pipe.flush();
            if pipe.queued() > limits::MAX_QUEUED {
                lost.push((*program, Lost::Corrupt("it does not read its messages")));
            } else if let Err(why) = flushed {
                // If no poll has reported this yet, the next one delivers what came before.
                tracing::trace!(program = program.0, "{why}");
            }
        }
        for (program, why) in lost {
            self.end(net, program, &why);
        }
    }

    #[cold]
    fn end(&mut self, net: &mut Net, program: ClientId, why: &Lost) {
        match why {
            Lost::Corrupt(_) | Lost::Malformed(_) => {
                tracing::warn!(program = program.0, "program disconnected: {why}")
            }
            _ => tracing::debug!(program = program.0, "program ended: {why}"),
        }
        self.state.programs.remove(&program);
        self.core.forget(&mut DriverWorld { state: &mut self.state, net }, program);
        self.handle_own_messages(net);
    }
}

/// Returns the range of all programs after `after`.
fn next(after: Option<ClientId>) -> impl std::ops::RangeBounds<ClientId> {
    use std::ops::Bound::{Excluded, Unbounded};
    (after.map_or(Unbounded, Excluded), Unbounded)
}

/// Returns the part of the arena that belongs to a worker.
fn share(len: u64, worker: u8, workers: u8) -> Range<u64> {
    let part = len / u64::from(workers);
    part * u64::from(worker)..part * u64::from(worker + 1)
}
