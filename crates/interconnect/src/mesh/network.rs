//! The one thread that calls and is called over TCP. It sleeps until something happens on a connection or is due, and never
//! waits for a single one.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Instant,
};

use rustix::{
    event::{Timespec, epoll},
    io::Errno,
};

use super::{MeshError, calls::Calls, common::Common, door::Door, not_accepted};

/// The mark of the descriptor that tells of a change; those of listeners follow.
const STIRRED: u64 = 0;

/// Marks from here on are connections: those of the door are even, those of calls odd.
const CONNECTIONS: u64 = 1 << 16;

/// Connections that are accepted before others get their turn.
const ACCEPTED_PER_TURN: usize = 64;

fn guest(number: u64) -> u64 {
    CONNECTIONS + number * 2
}

fn call(number: u64) -> u64 {
    CONNECTIONS + number * 2 + 1
}

pub(super) struct Network {
    common: Arc<Common>,
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    door: Door,
    calls: Calls,
}

impl Network {
    /// Listens on every address of the node.
    pub(super) fn listen(addresses: &[SocketAddr]) -> Result<Vec<TcpListener>, MeshError> {
        let listen = |address: &SocketAddr| {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listen = |address| {
            listen(address).map_err(|error| MeshError::Listen { address: address.to_string(), error })
        };
        addresses.iter().map(listen).collect()
    }

    pub(super) fn new(common: Arc<Common>, listeners: Vec<TcpListener>) -> Result<Self, MeshError> {
        let set_up = || -> io::Result<OwnedFd> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let add =
                |fd, mark| epoll::add(&epoll, fd, epoll::EventData::new_u64(mark), epoll::EventFlags::IN);
            add(common.stirred.as_fd(), STIRRED)?;
            for (index, listener) in listeners.iter().enumerate() {
                add(listener.as_fd(), STIRRED + 1 + index as u64)?;
            }
            Ok(epoll)
        };
        let epoll = set_up().map_err(|error| MeshError::System { what: "create an epoll set", error })?;
        let (door, calls) = (Door::new(common.clone()), Calls::new(common.clone()));
        Ok(Self { common, epoll, listeners, door, calls })
    }

    /// Runs until the node ends.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.common.is_stopping() {
            let now = Instant::now();
            let due = [self.door.expire(now), self.calls.look(&self.epoll, call, now), self.common.look(now)];
            let sleep = due.into_iter().flatten().min().map(|due| due.saturating_duration_since(now));
            let sleep = sleep.map(|sleep| Timespec {
                tv_sec: sleep.as_secs() as i64,
                tv_nsec: i64::from(sleep.subsec_nanos()),
            });
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), sleep.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return tracing::error!(%error, "peers cannot be reached any more"),
            }
            for event in &events {
                self.handle(event.data.u64());
            }
        }
    }

    fn handle(&mut self, mark: u64) {
        match mark.checked_sub(CONNECTIONS) {
            Some(number) if number % 2 == 0 => self.door.hear(&self.epoll, number / 2),
            Some(number) => self.calls.hear(&self.epoll, call, number / 2),
            None if mark == STIRRED => self.common.stirred.clear(),
            None => self.accept(mark - STIRRED - 1),
        }
    }

    fn accept(&mut self, index: u64) {
        let Some(listener) = self.listeners.get(index as usize) else { return };
        for _ in 0..ACCEPTED_PER_TURN {
            match listener.accept() {
                Ok((stream, from)) => self.door.welcome(&self.epoll, guest, stream, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Perhaps no descriptor is left: there may be one that is held for a stranger.
                Err(_) if self.door.make_room() => {}
                Err(error) => return not_accepted(&error),
            }
        }
    }
}
