//! Programs that are attached to this node: what `plexus-client` talks to.
//!
//! [`Door`] lets them in, over a local socket, and hands every worker a rail to them. [`Programs`] is a worker's part
//! of the service: it takes what programs say in the worker's turn and what other nodes say about ports and windows from
//! its links, gives both to the `protocol` and does what that decides.
//!
//! A program is to its node like one more peer, over rings of shared memory. It may do what it likes with them: whatever
//! the rings hold, the worst that happens is that it is cut off. The memory of windows it can only read. Its end, in whatever way,
//! is noticed at once through its process and its socket, and everything that it had is released.
//!
//! Nor is it trusted with bells. Whether a worker sleeps it reads where only the node can write; it wakes a worker by an event descriptor
//! that no other program has and that the node neither reads nor writes; it is woken by one that it can only hear
//! (`fabric/src/bell.rs`, `event.rs`). So it cannot keep a worker asleep, nor make it wait in a system call, nor take a wake-up of
//! somebody else. Who rings without end has a worker look once for each ring, as it has with each thing that it says: a look
//! is bounded ([`Programs::turn`] takes so many frames of each program), and all others have their part of it.
//!
//! What is not refused: the window memory is handed out to be read, but it has the node's user as its owner, so a program of that
//! user could open it once more through `/proc` and write; the same goes for the words by which workers say that they sleep. That
//! user's programs could as well stop the node by a signal. And who hangs very many watchers on its own descriptor makes each wake-up of
//! it dearer for the worker, up to its limit of open files.

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

pub use door::{Door, Offer};
use protocol::{Core, Place, World, kind};
pub use usage::Usage;

/// The window of every node that windows of programs are parts of.
pub const ARENA: WindowId = WindowId(0x101);

const _: () = assert!(limits::MAX_MESSAGE <= MAX_WORDWISE, "an access is put into copies at once");

/// A program, to one worker.
pub struct Attached {
    /// Its number.
    pub id: ClientId,
    /// The rings to it.
    pub rail: Box<dyn Rail>,
    /// Its place among those that a node takes, and the socket that ends when it is cut off.
    pub seat: Arc<Seat>,
    /// By what it wakes the worker.
    pub bell: Listening,
}

/// One of the places for programs; free again when every worker has let go of it.
pub struct Seat {
    socket: OwnedFd,
    taken: Arc<AtomicUsize>,
}

impl Seat {
    /// Ends the attachment for the program to see.
    fn end(&self) {
        // It may have ended it already.
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
    core: Core,
    outside: Outside,
    letters: Letters,
    usage: Arc<Usage>,
}

/// What the protocol acts on, but for the links.
struct Outside {
    arena: Arc<Window>,
    programs: BTreeMap<ClientId, Guest>,
    /// What this node says to itself.
    own: Vec<(Head, Vec<u8>)>,
    /// What programs want of the lock manager.
    lock_requests: Vec<Event>,
    /// A message to another node, while it is put together.
    message: Vec<u8>,
}

/// A program, and what it has of this worker until it is let go.
struct Guest {
    pipe: Pipe,
    seat: Arc<Seat>,
    _bell: Listening,
}

/// All of it.
struct Acting<'a> {
    outside: &'a mut Outside,
    net: &'a mut Net,
}

/// The channel that a use's messages travel on. Of locks nodes speak otherwise.
fn channel(usage: Use) -> Option<Channel> {
    match usage {
        Use::Datagrams => Some(Channel::Datagrams),
        Use::Calls => Some(Channel::Services),
        Use::Endpoints => Some(Channel::Application1),
        Use::Windows => Some(Channel::Application2),
        Use::Locks => None,
    }
}

impl World for Acting<'_> {
    fn tell(&mut self, program: ClientId, head: Head, payload: &[u8]) {
        if let Some(guest) = self.outside.programs.get_mut(&program) {
            guest.pipe.send(head, payload);
        }
    }

    fn send(&mut self, to: NodeId, head: Head, payload: &[u8]) -> bool {
        if to == self.net.me() {
            self.outside.own.push((head, payload.to_vec()));
            return true;
        }
        let Some(channel) = channel(head.usage) else { return false };
        let message = &mut self.outside.message;
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
        self.outside.arena.read(at as usize, into);
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        assert!(self.outside.arena.write(at, bytes), "the protocol wrote outside its share of the arena");
    }

    fn lock(&mut self, event: Event) {
        self.outside.lock_requests.push(event);
    }

    fn timeout(&self, timeout_ns: u64) -> WaitLimit {
        WaitLimit::of((timeout_ns != FOREVER).then_some(timeout_ns), clock::now)
    }
}

impl Programs {
    /// None yet. Workers of a node share its arena, each has its own part; what programs have of this one is noted in `usage`.
    pub fn new(me: NodeId, worker: u8, workers: u8, arena: Arc<Window>, usage: Arc<Usage>) -> Self {
        let share = share(arena.len() as u64, worker, workers);
        Self {
            core: Core::new(Place { me, worker, workers }, share),
            outside: Outside {
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

    /// The channels whose messages are for programs.
    pub const CHANNELS: &'static [Channel] =
        &[Channel::Datagrams, Channel::Services, Channel::Application1, Channel::Application2];

    /// Serves one more program.
    pub fn attach(&mut self, attached: Attached) {
        let Attached { id, rail, seat, bell } = attached;
        self.outside.programs.insert(id, Guest { pipe: Pipe::new(rail), seat, _bell: bell });
        self.core.attach(id);
    }

    /// Another node says something. What programs are told of it is flushed in the turn.
    pub fn message(&mut self, net: &mut Net, message: Message<'_>) {
        let decoded = message.payload.split_first_chunk().map(|(head, rest)| (Head::decode(head), rest));
        match decoded {
            Some((Ok((head, len)), payload))
                if len == payload.len() && channel(head.usage) == Some(message.channel) =>
            {
                let mut world = Acting { outside: &mut self.outside, net };
                self.core.node(&mut world, message.from, head, payload);
                self.talk_to_self(net);
            }
            _ => {
                tracing::error!(from = %message.from, "a message about programs that means nothing: dropped")
            }
        }
    }

    /// A peer is gone.
    pub fn peer_gone(&mut self, net: &mut Net, peer: NodeId) {
        self.core.peer_gone(&mut Acting { outside: &mut self.outside, net }, peer);
        self.talk_to_self(net);
    }

    /// Takes what programs say, and what the lock manager says to them; how much that was.
    #[inline]
    pub fn turn(&mut self, net: &mut Net, locks: &mut LockService) -> usize {
        if self.outside.programs.is_empty() && self.outside.lock_requests.is_empty() && !locks.has_notices() {
            return 0;
        }
        let mut done = 0;
        let mut after = None;
        while let Some(program) = self.outside.programs.range(next(after)).next().map(|(id, _)| *id) {
            after = Some(program);
            done += self.serve(net, program);
        }
        if done > 0 {
            self.talk_to_self(net);
        }
        done += usize::from(self.core.turn(&mut Acting { outside: &mut self.outside, net }));
        done += self.lock(net, locks);
        self.flush(net);
        done
    }

    /// What programs want of the lock manager, and what it says to them; how much that was.
    fn lock(&mut self, net: &mut Net, locks: &mut LockService) -> usize {
        let mut done = self.outside.lock_requests.len();
        for request in self.outside.lock_requests.drain(..) {
            locks.program(net, request);
        }
        for news in locks.take_notices() {
            self.core.lock_news(&mut Acting { outside: &mut self.outside, net }, news);
            done += 1;
        }
        if done > 0 {
            self.note_usage();
        }
        done
    }

    fn serve(&mut self, net: &mut Net, program: ClientId) -> usize {
        let Some(guest) = self.outside.programs.get_mut(&program) else { return 0 };
        let mut letters = std::mem::take(&mut self.letters);
        let polled = guest.pipe.poll(&mut letters);
        let mut wrong = None;
        for index in 0..letters.len() {
            let (head, payload) = letters.at(index);
            let mut world = Acting { outside: &mut self.outside, net };
            if let Err(violation) = self.core.program(&mut world, program, head, payload) {
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

    /// Handles what this node said to itself, and what it says to that: the last step of whatever may have changed what programs have.
    fn talk_to_self(&mut self, net: &mut Net) {
        let me = net.me();
        while !self.outside.own.is_empty() {
            for (head, payload) in std::mem::take(&mut self.outside.own) {
                self.core.node(&mut Acting { outside: &mut self.outside, net }, me, head, &payload);
            }
        }
        self.note_usage();
    }

    fn note_usage(&self) {
        let (ports, windows, bytes) = self.core.usage();
        self.usage.note(ports, windows, bytes, self.core.locks());
    }

    /// Wakes programs that have something to read, and cuts off those that do not read.
    fn flush(&mut self, net: &mut Net) {
        let mut lost = Vec::new();
        for (program, Guest { pipe, .. }) in &mut self.outside.programs {
            let flushed = pipe.flush();
            if pipe.queued() > limits::MAX_QUEUED {
                lost.push((*program, Lost::Corrupt("it does not read what it asked for")));
            } else if let Err(why) = flushed {
                // Unless it was said already by a poll, the next one will deliver what came before.
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
            Lost::Corrupt(_) | Lost::Malformed(_) => tracing::warn!(program = program.0, "cut off: {why}"),
            _ => tracing::debug!(program = program.0, "has ended: {why}"),
        }
        if let Some(guest) = self.outside.programs.remove(&program) {
            guest.seat.end();
        }
        self.core.forget(&mut Acting { outside: &mut self.outside, net }, program);
        self.talk_to_self(net);
    }

    /// Whether a turn might get something done.
    pub fn pending(&mut self) -> bool {
        self.core.pending()
            || !self.outside.lock_requests.is_empty()
            || self.outside.programs.values_mut().any(|guest| guest.pipe.pending())
    }

    /// Ends every attachment: the node ends.
    pub fn close(&mut self) {
        for guest in std::mem::take(&mut self.outside.programs).into_values() {
            guest.seat.end();
        }
    }
}

/// All after `program`.
fn next(after: Option<ClientId>) -> impl std::ops::RangeBounds<ClientId> {
    use std::ops::Bound::{Excluded, Unbounded};
    (after.map_or(Unbounded, Excluded), Unbounded)
}

/// The part of the arena that belongs to a worker.
fn share(len: u64, worker: u8, workers: u8) -> Range<u64> {
    let part = len / u64::from(workers);
    part * u64::from(worker)..part * u64::from(worker + 1)
}
