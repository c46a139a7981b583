//! A relay between two ends of TCP connections that disturbs them on request, for tests of real
//! sockets.
//!
//! It listens on loopback, connects each caller to the target, and passes bytes in both directions.
//! A handle flips bits, drops bytes, delays them or resets the connections. Without such a request
//! every byte passes in order, and the end of a connection is passed on. Dropping the relay ends
//! its threads and connections. The kernels of both ends talk to the relay, so dropped bytes were
//! acknowledged. A path that is also dead for the kernel needs a network namespace with its link
//! down.
//!
//! The relay does not know the meaning of the bytes.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use plexus_sim::Random;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    net::sockopt,
};

/// The bytes that may be buffered in one direction of a connection.
const ROOM: usize = 4 << 20;
/// The bytes read at once.
const CHUNK: usize = 64 << 10;

/// A direction of the connections through the relay.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From the caller of the relay to the target.
    There,
    /// From the target to the caller.
    Back,
}

impl Direction {
    /// Both directions.
    pub const BOTH: [Self; 2] = [Self::There, Self::Back];
}

/// The disturbances of one direction, for all connections.
#[derive(Clone, Copy, Default)]
struct Harm {
    swallow: bool,
    delay: Duration,
    /// The number of next chunks in which a bit is flipped.
    flips: u32,
}

struct State {
    random: Random,
    harm: [Harm; 2],
    /// The bytes read from a sender, by direction.
    taken: [u64; 2],
    connections: Vec<Connection>,
    ending: bool,
}

/// A connection as the handle sees it.
struct Connection {
    /// A descriptor that becomes readable when the connection must be reset.
    reset: Arc<OwnedFd>,
    thread: JoinHandle<()>,
}

/// The handle. See the [module documentation](self).
pub struct Relay {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    end: Arc<OwnedFd>,
    listener: Option<JoinHandle<()>>,
}

impl Relay {
    /// Starts a relay to `to`; `seed` determines the flipped bits.
    ///
    /// # Errors
    /// The system refuses a socket.
    pub fn start(to: SocketAddr, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let state = Arc::new(Mutex::new(State {
            random: Random::new(seed),
            harm: [Harm::default(); 2],
            taken: [0; 2],
            connections: Vec::new(),
            ending: false,
        }));
        let end = Arc::new(signal()?);
        let (state_there, end_there) = (Arc::clone(&state), Arc::clone(&end));
        let listener = std::thread::spawn(move || listen(&listener, to, &state_there, &end_there));
        Ok(Self { address, state, end, listener: Some(listener) })
    }

    /// Returns the address to call.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Flips one bit in the next bytes that pass.
    pub fn flip(&self, way: Direction) {
        locked(&self.state).harm[way as usize].flips += 1;
    }

    /// Drops all bytes from now on, or (`false`) passes them again: then the receiver finds a gap.
    pub fn swallow(&self, way: Direction, swallow: bool) {
        locked(&self.state).harm[way as usize].swallow = swallow;
    }

    /// Delays all bytes from now on by `delay`, in order.
    pub fn delay(&self, way: Direction, delay: Duration) {
        locked(&self.state).harm[way as usize].delay = delay;
    }

    /// Resets every current connection; new ones are accepted as before.
    pub fn reset(&self) {
        let connections = std::mem::take(&mut locked(&self.state).connections);
        for connection in &connections {
            raise(&connection.reset);
        }
        connections.into_iter().for_each(|connection| drop(connection.thread.join()));
    }

    /// Returns the number of bytes read in a direction, including dropped ones.
    pub fn taken(&self, way: Direction) -> u64 {
        locked(&self.state).taken[way as usize]
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        locked(&self.state).ending = true;
        raise(&self.end);
        if let Some(listener) = self.listener.take() {
            drop(listener.join());
        }
        self.reset();
    }
}

fn locked(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn signal() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

fn raise(signal: &OwnedFd) {
    // Fails only if the signal is already set.
    let _ = rustix::io::write(signal, &1u64.to_ne_bytes());
}

/// Sleeps until one of `fds` is ready, or for `most`.
fn wait(fds: &mut [PollFd<'_>], most: Option<Duration>) {
    let most = most.map(|most| Timespec {
        tv_sec: most.as_secs().cast_signed(),
        tv_nsec: i64::from(most.subsec_nanos()),
    });
    // Interrupted: the caller looks again.
    let _ = poll(fds, most.as_ref());
}

fn listen(listener: &TcpListener, to: SocketAddr, state: &Arc<Mutex<State>>, end: &OwnedFd) {
    loop {
        wait(&mut [PollFd::new(listener, PollFlags::IN), PollFd::new(end, PollFlags::IN)], None);
        let mut locked_state = locked(state);
        if locked_state.ending {
            return;
        }
        let Ok((caller, _)) = listener.accept() else { continue };
        let Ok(reset) = signal().map(Arc::new) else { continue };
        let (state, raised) = (Arc::clone(state), Arc::clone(&reset));
        // The target may be gone: then the caller's connection ends as well.
        let thread = std::thread::spawn(move || {
            if let Ok(called) = TcpStream::connect(to) {
                let _ = pass([caller, called], &state, &raised);
            }
        });
        locked_state.connections.push(Connection { reset, thread });
    }
}

/// Passes bytes in both directions until both have ended or an error ends the connection.
fn pass(ends: [TcpStream; 2], state: &Mutex<State>, reset: &OwnedFd) -> io::Result<()> {
    for end in &ends {
        end.set_nonblocking(true)?;
        end.set_nodelay(true)?;
        // Any disorderly end appears as a reset at the other side.
        sockopt::set_socket_linger(end, Some(Duration::ZERO))?;
    }
    let mut flows = Direction::BOTH.map(Flow::new);
    loop {
        for flow in &mut flows {
            let (from, to) = (&ends[flow.way as usize], &ends[1 - flow.way as usize]);
            flow.take(from, state)?;
            flow.give(to)?;
        }
        if flows.iter().all(|flow| flow.closed) {
            ends.iter().try_for_each(|end| sockopt::set_socket_linger(end, None))?;
            return Ok(());
        }
        let interest = [0, 1].map(|end: usize| {
            let (from_here, to_here) = (&flows[end], &flows[1 - end]);
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, from_here.has_room());
            flags.set(PollFlags::OUT, to_here.blocked);
            flags
        });
        let due = flows.iter().filter_map(Flow::due).min();
        let mut fds = vec![PollFd::new(reset, PollFlags::IN)];
        // Without this, an idle end would report its hang-up again and again.
        for (end, flags) in ends.iter().zip(interest) {
            if !flags.is_empty() {
                fds.push(PollFd::from_borrowed_fd(end.as_fd(), flags));
            }
        }
        wait(&mut fds, due.map(|due| due.saturating_duration_since(Instant::now())));
        if !fds[0].revents().is_empty() {
            return Ok(());
        }
    }
}

/// One direction of a connection.
struct Flow {
    way: Direction,
    /// The bytes under way, with the time at which each chunk may arrive.
    line: VecDeque<(Instant, Vec<u8>)>,
    waiting: usize,
    /// True if the sender has closed its side.
    ended: bool,
    /// True if the receiver's side was closed.
    closed: bool,
    /// True if the receiver has no room now.
    blocked: bool,
}

impl Flow {
    fn new(way: Direction) -> Self {
        Self { way, line: VecDeque::new(), waiting: 0, ended: false, closed: false, blocked: false }
    }

    fn has_room(&self) -> bool {
        !self.ended && self.waiting < ROOM
    }

    /// Returns the time at which the next chunk is due, unless the receiver must make room first.
    fn due(&self) -> Option<Instant> {
        self.line.front().filter(|_| !self.blocked).map(|(due, _)| *due)
    }

    fn take(&mut self, mut from: &TcpStream, state: &Mutex<State>) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        while self.has_room() {
            let len = match from.read(&mut chunk) {
                Ok(0) => {
                    self.ended = true;
                    return Ok(());
                }
                Ok(len) => len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let bytes = &mut chunk[..len];
            let mut state = locked(state);
            let State { random, harm, taken, .. } = &mut *state;
            let harm = &mut harm[self.way as usize];
            taken[self.way as usize] += len as u64;
            if harm.swallow {
                continue;
            }
            if harm.flips > 0 {
                harm.flips -= 1;
                let bit = random.below(len as u64 * 8) as usize;
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            self.waiting += len;
            self.line.push_back((Instant::now() + harm.delay, bytes.to_vec()));
        }
        Ok(())
    }

    fn give(&mut self, mut to: &TcpStream) -> io::Result<()> {
        self.blocked = false;
        while let Some((due, bytes)) = self.line.front_mut() {
            if *due > Instant::now() {
                return Ok(());
            }
            match to.write(bytes) {
                Ok(len) => {
                    self.waiting -= len;
                    bytes.drain(..len);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
            if bytes.is_empty() {
                self.line.pop_front();
            }
        }
        if self.ended && !self.closed {
            to.shutdown(Shutdown::Write)?;
            self.closed = true;
        }
        Ok(())
    }
}
