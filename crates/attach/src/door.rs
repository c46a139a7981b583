//! The socket at which programs attach, `run/NAME.attach`.
//!
//! Only programs of the node's own user are let in, which is known before anything of theirs is read. A handshake has a
//! thread of its own and a time limit, so who connects and says nothing keeps nobody else waiting; how many there are at a
//! time is limited with the programs.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use plexus_base::NodeId;
use plexus_client::wire::{
    ClientId, bind_for_owner,
    hello::{self, GO, Refusal, Welcome},
    limits::MAX_CLIENTS,
    receive_packet, send_packet,
};
use plexus_fabric::{
    Bell, Event, PeerBell, ShmRail, Window,
    shm::{PeerProcess, RxRings, ShmParts, TxRings},
};
use plexus_interconnect::Listening;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
    process::getuid,
};

use super::{Attached, Seat};

/// How long the door waits where the system gives it no descriptor for the next program.
const RETRY: Duration = Duration::from_millis(50);

/// How long a program may take to say what it must.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// What a program is told, and what it is given.
pub struct Offer {
    /// This node.
    pub me: NodeId,
    /// How many nodes the cluster has by now.
    pub nodes: Box<dyn Fn() -> u8 + Send + Sync>,
    /// The memory that windows are parts of.
    pub arena: Arc<Window>,
    /// The bell of each worker.
    pub bells: Vec<Arc<Bell>>,
    /// Lets a program wake a worker by an event of its own.
    pub listen: Box<dyn Fn(u8, Event) -> io::Result<Listening> + Send + Sync>,
    /// Hands a worker a program.
    pub hand: Box<dyn Fn(u8, Attached) + Send + Sync>,
}

/// Lets programs in until dropped.
pub struct Door {
    path: PathBuf,
    room: Arc<Room>,
    acceptor: Option<JoinHandle<()>>,
}

struct Room {
    offer: Offer,
    taken: Arc<AtomicUsize>,
    last: AtomicU32,
    inside: Mutex<Vec<Inside>>,
    /// Makes the acceptor look at the two around it.
    look: OwnedFd,
    closed: AtomicBool,
}

/// A program that is attached. It ends with its process, or with its end of the socket if that comes first: children of
/// the process may hold that longer.
struct Inside {
    process: OwnedFd,
    socket: OwnedFd,
    gone: Arc<AtomicBool>,
}

impl Door {
    /// Opens at `path`. The caller has the node's lock, so a socket that is there is a dead node's.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path, offer: Offer) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind_for_owner(path, |path| Ok(rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?))?;
        rustix::net::listen(&listener, 64)?;
        let room = Arc::new(Room {
            offer,
            taken: Arc::default(),
            last: AtomicU32::new(0),
            inside: Mutex::default(),
            look: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            closed: AtomicBool::new(false),
        });
        let seen = Arc::clone(&room);
        let acceptor =
            thread::Builder::new().name("plexus-attach".into()).spawn(move || accept(&listener, &seen))?;
        Ok(Self { path: path.into(), room, acceptor: Some(acceptor) })
    }
}

impl Door {
    /// Programs that are attached, or about to be.
    pub fn programs(&self) -> usize {
        self.room.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        {
            let _handing_over = self.room.inside.lock().unwrap_or_else(PoisonError::into_inner);
            self.room.closed.store(true, Ordering::Release);
        }
        self.room.wake();
        // It cannot fail in a way that leaves something to do.
        let _ = std::fs::remove_file(&self.path);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// Lets in who comes, and notices who ends.
fn accept(listener: &OwnedFd, room: &Arc<Room>) {
    let mut inside: Vec<Inside> = Vec::new();
    while !room.closed.load(Ordering::Acquire) {
        inside.append(&mut room.inside.lock().unwrap_or_else(PoisonError::into_inner));
        let mut events = vec![PollFd::new(listener, PollFlags::IN), PollFd::new(&room.look, PollFlags::IN)];
        for program in &inside {
            // It says nothing over the socket any more: to be readable is its end.
            events.extend([&program.process, &program.socket].map(|fd| PollFd::new(fd, PollFlags::IN)));
        }
        if poll(&mut events, None).is_err() {
            continue; // Interrupted; nothing else can happen to these.
        }
        let happened: Vec<bool> = events.iter().map(|event| !event.revents().is_empty()).collect();
        drop(events);
        let mut ended = happened[2..].chunks(2).map(|signs| signs.contains(&true));
        inside.retain(|program| match ended.next() {
            Some(true) => {
                program.gone.store(true, Ordering::Release);
                for bell in &room.offer.bells {
                    bell.ring();
                }
                false
            }
            _ => true,
        });
        if happened[1] {
            // A counter that is zero already is looked at like any other.
            let _ = rustix::io::read(&room.look, &mut [0; 8]);
        }
        if happened[0] {
            meet(listener, room);
        }
    }
}

/// Takes the next program in line and talks to it on a thread of its own.
fn meet(listener: &OwnedFd, room: &Arc<Room>) {
    let socket = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
        Ok(socket) => socket,
        Err(error) => return not_accepted(error),
    };
    if room.taken.fetch_add(1, Ordering::AcqRel) >= MAX_CLIENTS {
        room.taken.fetch_sub(1, Ordering::AcqRel);
        // Who does not read this sees the socket closed.
        let _ = send_packet(socket.as_fd(), &Welcome::encode(&Err(Refusal::Full)), &[]);
        return;
    }
    let seat = Seat { socket, taken: Arc::clone(&room.taken) };
    let room = Arc::clone(room);
    // Without a thread the socket is closed, which the program reports.
    let _ = thread::Builder::new().name("plexus-attaching".into()).spawn(move || {
        if let Err(why) = room.let_in(seat) {
            tracing::debug!("a program was not let in: {why}");
        }
    });
}

/// The program is gone again, or there are no descriptors: then looking again at once would only burn a core.
fn not_accepted(error: rustix::io::Errno) {
    if error != rustix::io::Errno::WOULDBLOCK {
        tracing::warn!(%error, "a program could not be let in");
        thread::sleep(RETRY);
    }
}

impl Room {
    fn wake(&self) {
        // The only way to fail is a counter that is full: then the acceptor will look.
        let _ = rustix::io::write(&self.look, &1u64.to_ne_bytes());
    }

    fn let_in(&self, seat: Seat) -> io::Result<()> {
        let socket = seat.socket.try_clone()?;
        let process = PeerProcess::of(socket.as_fd())?;
        if process.uid != getuid().as_raw() {
            return Err(refused(format!("it runs as user {}", process.uid)));
        }
        for side in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
            sockopt::set_socket_timeout(&socket, side, Some(HANDSHAKE))?;
        }
        let (packet, _) = receive_packet(socket.as_fd())?;
        if let Err(refusal) = hello::verify_hello(&packet) {
            send_packet(socket.as_fd(), &Welcome::encode(&Err(refusal)), &[])?;
            return Err(refused(refusal.to_string()));
        }
        let given = self.welcome(&socket)?;
        let (packet, descriptors) = receive_packet(socket.as_fd())?;
        let gone = Arc::new(AtomicBool::new(false));
        let rails = match descriptors.split_last() {
            Some((notice, rings)) if packet == [GO] && rings.len() == given.rings.len() => {
                rails(given.rings, rings, notice, &given.event, &gone)?
            }
            _ => return Err(refused("it does not pass what it must".into())),
        };
        send_packet(socket.as_fd(), &[GO], &[])?;
        let seat = Arc::new(seat);
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: who is handed over now is ended with all others when the node ends.
        if self.closed.load(Ordering::Acquire) {
            return Err(refused("this node is ending".into()));
        }
        inside.push(Inside { process: process.pidfd, socket, gone });
        for (worker, (rail, bell)) in rails.into_iter().zip(given.bells).enumerate() {
            let attached = Attached { id: given.client, rail: Box::new(rail), seat: Arc::clone(&seat), bell };
            (self.offer.hand)(worker as u8, attached);
        }
        drop(inside);
        self.wake();
        Ok(())
    }

    /// Tells the program what it must know, and passes what it maps, and what it rings and is woken by.
    fn welcome(&self, socket: &OwnedFd) -> io::Result<Given> {
        let client = ClientId(self.last.fetch_add(1, Ordering::Relaxed));
        let workers = self.offer.bells.len();
        let rings: Vec<RxRings> =
            (0..workers).map(|_| RxRings::create()).collect::<Result<_, _>>().map_err(setup)?;
        let rung: Vec<Event> = (0..workers).map(|_| Event::create()).collect::<Result<_, _>>()?;
        let event = Event::create()?;
        let welcome = Welcome {
            node: self.offer.me,
            nodes: (self.offer.nodes)(),
            workers: workers as u8,
            client,
            arena: self.offer.arena.len() as u64,
        };
        // Programs only look at it: what they change, they ask for.
        let arena = self.offer.arena.fd_to_read()?;
        let watch = event.watch_fd()?;
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![arena.as_fd(), watch.as_fd()];
        for ((rings, bell), rung) in rings.iter().zip(&self.offer.bells).zip(&rung) {
            descriptors.extend([rings.fd(), bell.notice().fd(), rung.as_fd()]);
        }
        send_packet(socket.as_fd(), &Welcome::encode(&Ok(welcome)), &descriptors)?;
        let listen = |(worker, event)| (self.offer.listen)(worker as u8, event);
        let bells = rung.into_iter().enumerate().map(listen).collect::<io::Result<_>>()?;
        Ok(Given { client, rings, bells, event: Arc::new(event) })
    }
}

/// What a program was given.
struct Given {
    client: ClientId,
    rings: Vec<RxRings>,
    /// By what it wakes each worker.
    bells: Vec<Listening>,
    /// By what all workers wake it.
    event: Arc<Event>,
}

/// A rail for each worker: over our rings and those that the program passed, all with its one notice.
fn rails(
    rings: Vec<RxRings>,
    theirs: &[OwnedFd],
    notice: &OwnedFd,
    event: &Arc<Event>,
    gone: &Arc<AtomicBool>,
) -> io::Result<Vec<ShmRail>> {
    let mut rails = Vec::new();
    for (rx, tx) in rings.into_iter().zip(theirs) {
        let tx = TxRings::map(tx.as_fd()).map_err(setup)?;
        let bell = PeerBell::read(notice.as_fd(), Arc::clone(event)).map_err(setup)?;
        rails.push(ShmRail::new(ShmParts { tx, rx, bell, windows: Arc::new([]), gone: Arc::clone(gone) }));
    }
    Ok(rails)
}

fn setup(error: plexus_fabric::SetupError) -> io::Error {
    io::Error::other(error.to_string())
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}
