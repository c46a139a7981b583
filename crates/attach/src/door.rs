//! The socket at which programs attach, `run/NAME.attach`.
//!
//! Only programs of the node's own user are accepted; the server checks that before it reads
//! anything from them. Each handshake has a thread of its own and a time limit, so a silent program
//! delays no other. Handshakes under way count towards the limit of programs.

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

use plexus_base::{NodeId, WorkerId, threads};
use plexus_client::wire::{
    ClientId, bind_for_owner,
    hello::{self, GO, Refusal, Welcome},
    limits::MAX_CLIENTS,
    receive_packet, send_packet,
};
use plexus_fabric::{
    Bell, Event, PeerBell, SetupError, ShmRail, Window,
    shm::{PeerProcess, RxRings, ShmParts, TxRings},
};
use plexus_interconnect::Listening;
use plexus_membership::subsystem::WorkerPort;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, eventfd, poll},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
    process::getuid,
};

use super::{AttachedProgram, Programs, Seat};

/// The pause after the system had no descriptor for the next program.
const RETRY: Duration = Duration::from_millis(50);

/// How often that is tried for a program. It waits longer for an answer than all of this takes.
const TRIES: u32 = 40;

/// The longest that each message of a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(2);

/// The data that the server gives to programs, and its ways to give programs to the workers.
pub struct AttachOffer {
    /// The number of this node.
    pub me: NodeId,
    /// Returns the number that presently follows the highest one of a node.
    pub nodes: Box<dyn Fn() -> u8 + Send + Sync>,
    /// The memory that contains all windows.
    pub arena: Arc<Window>,
    /// The page with the end of the node's lease.
    pub lease: OwnedFd,
    /// The doorbell of each worker.
    pub bells: Vec<Arc<Bell>>,
    /// Lets a program wake a worker by an event of the program's own.
    pub listen: Box<dyn Fn(u8, Event) -> io::Result<Listening> + Send + Sync>,
    /// The way to the workers, each of which gets every program.
    pub port: Arc<dyn WorkerPort<Programs>>,
}

/// The server at which programs attach; it accepts them until it is dropped.
pub struct AttachServer {
    path: PathBuf,
    state: Arc<ServerState>,
    acceptor: Option<JoinHandle<()>>,
}

struct ServerState {
    offer: AttachOffer,
    taken: Arc<AtomicUsize>,
    last: AtomicU32,
    inside: Mutex<Vec<AcceptedProgram>>,
    /// Makes the acceptor look at `inside` and `closed`.
    look: OwnedFd,
    closed: AtomicBool,
}

/// An attached program. It ends with its process or with its end of the socket, whichever is first:
/// children of the process may hold the socket longer.
struct AcceptedProgram {
    process: OwnedFd,
    socket: OwnedFd,
    gone: Arc<AtomicBool>,
}

impl AttachServer {
    /// Opens the socket at `path`. The caller holds the node's lock, so a socket that exists there
    /// belongs to a node that has ended.
    ///
    /// # Errors
    /// The system cannot create or bind the socket, or start the thread.
    pub fn open(path: &Path, offer: AttachOffer) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind_for_owner(path, |path| Ok(rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?))?;
        rustix::net::listen(&listener, 64)?;
        let state = Arc::new(ServerState {
            offer,
            taken: Arc::default(),
            last: AtomicU32::new(0),
            inside: Mutex::default(),
            look: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            closed: AtomicBool::new(false),
        });
        let seen = Arc::clone(&state);
        let acceptor =
            thread::Builder::new().name("plexus-attach".into()).spawn(move || accept(&listener, &seen))?;
        Ok(Self { path: path.into(), state, acceptor: Some(acceptor) })
    }
}

impl AttachServer {
    /// Returns the number of programs that are attached or in a handshake.
    pub fn programs(&self) -> usize {
        self.state.taken.load(Ordering::Relaxed)
    }
}

impl Drop for AttachServer {
    fn drop(&mut self) {
        {
            let _handing_over = self.state.inside.lock().unwrap_or_else(PoisonError::into_inner);
            self.state.closed.store(true, Ordering::Release);
        }
        self.state.wake();
        // After a failure there is nothing left to do.
        let _ = std::fs::remove_file(&self.path);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

/// Accepts programs and notices their ends.
fn accept(listener: &OwnedFd, state: &Arc<ServerState>) {
    let mut inside: Vec<AcceptedProgram> = Vec::new();
    let mut shortage = Shortage { tries: 0, spare: Event::create().ok() };
    while !state.closed.load(Ordering::Acquire) {
        inside.append(&mut state.inside.lock().unwrap_or_else(PoisonError::into_inner));
        let mut events = vec![PollFd::new(listener, PollFlags::IN), PollFd::new(&state.look, PollFlags::IN)];
        for program in &inside {
            // After the handshake a program sends nothing over the socket: readable means closed.
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
                for bell in &state.offer.bells {
                    bell.ring();
                }
                false
            }
            _ => true,
        });
        if happened[1] {
            // A counter that is zero already is not a failure.
            let _ = rustix::io::read(&state.look, &mut [0; 8]);
        }
        if happened[0] {
            accept_program(listener, state, &mut shortage);
        }
    }
}

/// The state of the acceptor while descriptors are missing.
struct Shortage {
    /// How often the next program could not be accepted.
    tries: u32,
    /// A descriptor whose place is used to tell a program that no other is left.
    spare: Option<Event>,
}

/// Accepts the next program and runs its handshake on a thread of its own.
fn accept_program(listener: &OwnedFd, state: &Arc<ServerState>, shortage: &mut Shortage) {
    let next = || rustix::net::accept_with(listener, SocketFlags::CLOEXEC);
    let socket = match next() {
        Ok(socket) => socket,
        // It has gone.
        Err(Errno::WOULDBLOCK) => return,
        Err(error) => {
            shortage.tries += 1;
            if shortage.tries >= TRIES {
                shortage.tries = 0;
                drop(shortage.spare.take());
                if let Ok(socket) = next() {
                    refuse(&socket, &error.into());
                }
                shortage.spare = Event::create().ok();
            }
            // An immediate retry would only burn a core.
            return thread::sleep(RETRY);
        }
    };
    shortage.tries = 0;
    if state.taken.fetch_add(1, Ordering::AcqRel) >= MAX_CLIENTS {
        state.taken.fetch_sub(1, Ordering::AcqRel);
        // A program that does not read this sees the socket closed.
        let _ = send_packet(socket.as_fd(), &Welcome::encode(&Err(Refusal::Full)), &[]);
        return;
    }
    let seat = Arc::new(Seat { socket, taken: Arc::clone(&state.taken) });
    let state = Arc::clone(state);
    let handshake = move || match state.let_in(&seat) {
        Err(error) if is_shortage(&error) => refuse(&seat.socket, &error),
        Err(why) => tracing::debug!("program refused: {why}"),
        Ok(()) => {}
    };
    // Without a thread the other programs wait for it; each of its steps has a time limit.
    threads::start("plexus-attaching", handshake).unwrap_or_else(|handshake| handshake());
}

/// Returns true if the node lacks something that a program needs.
fn is_shortage(error: &io::Error) -> bool {
    use io::ErrorKind::{Other, OutOfMemory, StorageFull};
    matches!(error.kind(), Other | OutOfMemory | StorageFull)
        || matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS))
}

/// Tells a program that this node lacks something for it, and the log what.
fn refuse(socket: &OwnedFd, why: &io::Error) {
    tracing::warn!("a program was refused: {why}");
    // A program that does not read this sees the socket closed.
    let _ = send_packet(socket.as_fd(), &Welcome::encode(&Err(Refusal::NoResources)), &[]);
}

impl ServerState {
    fn wake(&self) {
        // This fails only if the counter is full, and then the acceptor wakes anyway.
        let _ = rustix::io::write(&self.look, &1u64.to_ne_bytes());
    }

    fn let_in(&self, seat: &Arc<Seat>) -> io::Result<()> {
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
            _ => return Err(refused("malformed end of the handshake".into())),
        };
        send_packet(socket.as_fd(), &[GO], &[])?;
        let mut inside = self.inside.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that the end of the node also disconnects a program that is handed
        // over now.
        if self.closed.load(Ordering::Acquire) {
            return Err(refused("this node is ending".into()));
        }
        inside.push(AcceptedProgram { process: process.pidfd, socket, gone });
        for (worker, (rail, bell)) in rails.into_iter().zip(given.bells).enumerate() {
            let attached =
                AttachedProgram { id: given.client, rail: Box::new(rail), seat: Arc::clone(seat), bell };
            self.offer.port.submit(WorkerId(worker as u8), attached);
        }
        drop(inside);
        self.wake();
        Ok(())
    }

    /// Sends the program its welcome, with the memory it maps and the events it rings and waits on.
    fn welcome(&self, socket: &OwnedFd) -> io::Result<WelcomeParts> {
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
        // Programs only read it; changes are requests to the node.
        let arena = self.offer.arena.fd_to_read()?;
        let watch = event.watch_fd()?;
        let mut descriptors: Vec<BorrowedFd<'_>> =
            vec![arena.as_fd(), watch.as_fd(), self.offer.lease.as_fd()];
        for ((rings, bell), rung) in rings.iter().zip(&self.offer.bells).zip(&rung) {
            descriptors.extend([rings.fd(), bell.notice().fd(), rung.as_fd()]);
        }
        send_packet(socket.as_fd(), &Welcome::encode(&Ok(welcome)), &descriptors)?;
        let listen = |(worker, event)| (self.offer.listen)(worker as u8, event);
        let bells = rung.into_iter().enumerate().map(listen).collect::<io::Result<_>>()?;
        Ok(WelcomeParts { client, rings, bells, event: Arc::new(event) })
    }
}

/// The resources that the welcome gave to a program.
struct WelcomeParts {
    client: ClientId,
    rings: Vec<RxRings>,
    /// The events by which the program wakes each worker.
    bells: Vec<Listening>,
    /// The event by which all workers wake the program.
    event: Arc<Event>,
}

/// Makes a rail for each worker from our rings and the program's; all share its one notice.
fn rails(
    rings: Vec<RxRings>,
    theirs: &[OwnedFd],
    notice: &OwnedFd,
    event: &Arc<Event>,
    gone: &Arc<AtomicBool>,
) -> io::Result<Vec<ShmRail>> {
    let mut rails = Vec::new();
    for (rx, tx) in rings.into_iter().zip(theirs) {
        let wrong = |error: SetupError| refused(error.to_string());
        let tx = TxRings::map(tx.as_fd()).map_err(wrong)?;
        let bell = PeerBell::read(notice.as_fd(), Arc::clone(event)).map_err(wrong)?;
        rails.push(ShmRail::new(ShmParts { tx, rx, bell, windows: Arc::new([]), gone: Arc::clone(gone) }));
    }
    Ok(rails)
}

fn setup(error: SetupError) -> io::Error {
    io::Error::other(error.to_string())
}

fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}
