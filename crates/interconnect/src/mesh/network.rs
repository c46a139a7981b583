//! The thread that makes and accepts TCP connections. It sleeps until an event on any connection or
//! a timeout, and never waits for a single connection.

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

use super::{MeshError, calls::OutgoingCalls, common::MeshState, incoming::IncomingCalls, not_accepted};

/// The epoll token of the event that announces a change; those of listeners follow.
const WAKE: u64 = 0;

/// The first epoll token of connections: incoming ones are even, outgoing ones odd.
const CONNECTIONS: u64 = 1 << 16;

/// The connections that are accepted before other events get their turn.
const ACCEPTED_PER_TURN: usize = 64;

fn incoming_token(number: u64) -> u64 {
    CONNECTIONS + number * 2
}

fn call_token(number: u64) -> u64 {
    CONNECTIONS + number * 2 + 1
}

pub(super) struct Network {
    common: Arc<MeshState>,
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    incoming: IncomingCalls,
    calls: OutgoingCalls,
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

    pub(super) fn new(common: Arc<MeshState>, listeners: Vec<TcpListener>) -> Result<Self, MeshError> {
        let set_up = || -> io::Result<OwnedFd> {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let add =
                |fd, mark| epoll::add(&epoll, fd, epoll::EventData::new_u64(mark), epoll::EventFlags::IN);
            add(common.wake_network.as_fd(), WAKE)?;
            for (index, listener) in listeners.iter().enumerate() {
                add(listener.as_fd(), WAKE + 1 + index as u64)?;
            }
            Ok(epoll)
        };
        let epoll = set_up().map_err(|error| MeshError::System { what: "create an epoll set", error })?;
        let (incoming, calls) = (IncomingCalls::new(common.clone()), OutgoingCalls::new(common.clone()));
        Ok(Self { common, epoll, listeners, incoming, calls })
    }

    /// Runs until the node ends.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(64);
        while !self.common.is_stopping() {
            let now = Instant::now();
            let due = [
                self.incoming.expire(now),
                self.calls.look(&self.epoll, call_token, now),
                self.common.look(now),
            ];
            let sleep = due.into_iter().flatten().min().map(|due| due.saturating_duration_since(now));
            let sleep = sleep.map(|sleep| Timespec {
                tv_sec: sleep.as_secs() as i64,
                tv_nsec: i64::from(sleep.subsec_nanos()),
            });
            events.clear();
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), sleep.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    return tracing::error!(%error, "connections to peers stopped: waiting for events failed");
                }
            }
            for event in &events {
                self.handle(event.data.u64());
            }
        }
    }

    fn handle(&mut self, mark: u64) {
        match mark.checked_sub(CONNECTIONS) {
            Some(number) if number % 2 == 0 => self.incoming.readable(&self.epoll, number / 2),
            Some(number) => self.calls.readable(&self.epoll, call_token, number / 2),
            None if mark == WAKE => self.common.wake_network.clear(),
            None => self.accept(mark - WAKE - 1),
        }
    }

    fn accept(&mut self, index: u64) {
        let Some(listener) = self.listeners.get(index as usize) else { return };
        for _ in 0..ACCEPTED_PER_TURN {
            match listener.accept() {
                Ok((stream, from)) => self.incoming.accept(&self.epoll, incoming_token, stream, from),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // There may be no descriptor left; closing an unauthenticated connection may free
                // one.
                Err(_) if self.incoming.make_room() => {}
                Err(error) => return not_accepted(&error),
            }
        }
    }
}
