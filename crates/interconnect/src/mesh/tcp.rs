//! TCP between two nodes: a connection for each worker and lane, each with a hello of its own.
//!
//! Who connects says [`GO`] on all of them when the last one stands: an attempt that was given up leaves nothing with
//! whoever accepted.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};

use plexus_base::{Incarnation, NodeId};
use plexus_fabric::{LANES, Lane, Rail, RailKind, TcpRail, WindowSpan, Windows, tcp::TcpParts};

use super::{
    HANDSHAKE, Mesh, Peer,
    hello::HELLO,
    lock,
    spans::{self, SPANS},
};
use crate::Service;

/// The last byte of a handshake.
const GO: u8 = 0x47;

/// The connections of one caller, until all are there.
pub(super) struct Gathering {
    incarnation: Incarnation,
    streams: Vec<[Option<TcpStream>; LANES]>,
}

impl<S: Service> Mesh<S> {
    pub(super) fn connect_tcp(&self, peer: &Peer) -> Result<(), String> {
        let mut streams = Vec::new();
        let mut windows = Vec::new();
        for worker in 0..self.workers.len() as u8 {
            let mut lanes = Vec::with_capacity(LANES);
            for lane in Lane::ALL {
                let mut stream = TcpStream::connect_timeout(&peer.address, HANDSHAKE)
                    .map_err(|error| format!("no answer at {}: {error}", peer.address))?;
                let hello = self.hello(peer.id, RailKind::Tcp, lane, worker);
                let answer =
                    exchange(&mut stream, &hello.encode()).map_err(|error| format!("handshake: {error}"))?;
                self.accepted(&answer, peer)?;
                windows = self.exchange_windows(&mut stream)?;
                lanes.push(stream);
            }
            streams.push(<[TcpStream; LANES]>::try_from(lanes).map_err(|_| "a lane is missing")?);
        }
        for stream in streams.iter_mut().flatten() {
            stream.write_all(&[GO]).map_err(|error| format!("handshake: {error}"))?;
        }
        self.attach_tcp(peer.id, streams, &windows)
    }

    pub(super) fn accept_tcp(&self, mut stream: TcpStream, from: SocketAddr) -> Result<(), String> {
        let hello = receive(&mut stream).map_err(|error| format!("{from}: {error}"))?;
        let (hello, peer, answer) =
            self.judge(&hello, RailKind::Tcp).map_err(|why| format!("{from}: {why}"))?;
        stream.write_all(&answer.encode()).map_err(|error| format!("{from}: {error}"))?;
        let Some(peer) = peer else {
            tracing::warn!("{} was refused: {:?}", hello.from, answer.refusal);
            return Ok(());
        };
        let windows = self.exchange_windows(&mut stream).map_err(|why| format!("{from}: {why}"))?;
        if receive::<1>(&mut stream).map_err(|error| format!("{from}: {error}"))? != [GO] {
            return Err(format!("{from}: it does not say that it is ready"));
        }
        let complete = {
            let mut gathering = lock(&self.gathering);
            let empty = || Gathering {
                incarnation: hello.incarnation,
                streams: (0..self.workers.len()).map(|_| [const { None }; LANES]).collect(),
            };
            let gathered = gathering.entry(peer.id).or_insert_with(empty);
            if gathered.incarnation != hello.incarnation {
                *gathered = empty();
            }
            gathered.streams[usize::from(hello.worker)][hello.lane.index()] = Some(stream);
            let all = gathered.streams.iter().flatten().all(Option::is_some);
            if all { gathering.remove(&peer.id) } else { None }
        };
        let Some(gathered) = complete else { return Ok(()) };
        let streams =
            gathered.streams.into_iter().map(|lanes| lanes.map(|stream| stream.expect("all are there")));
        self.attach_tcp(peer.id, streams.collect(), &windows)
    }

    /// Both ends say what their windows are; the peer's.
    fn exchange_windows(&self, stream: &mut TcpStream) -> Result<Vec<WindowSpan>, String> {
        let ours = spans::encode(self.config.windows.iter().map(|window| window.span()));
        stream.write_all(&ours).map_err(|error| error.to_string())?;
        spans::decode(&receive::<SPANS>(stream).map_err(|error| error.to_string())?)
    }

    fn attach_tcp(
        &self,
        peer: NodeId,
        streams: Vec<[TcpStream; LANES]>,
        peer_windows: &[WindowSpan],
    ) -> Result<(), String> {
        let windows = Arc::new(Windows::new(self.config.windows.iter().cloned()));
        let rails = streams
            .into_iter()
            .map(|streams| {
                let parts = TcpParts {
                    streams,
                    windows: windows.clone(),
                    peer_windows: peer_windows.to_vec(),
                    seals: None,
                };
                let rail = TcpRail::new(parts).map_err(|error| error.to_string())?;
                Ok(Box::new(rail) as Box<dyn Rail>)
            })
            .collect::<Result<Vec<_>, String>>()?;
        self.attach(peer, rails);
        Ok(())
    }
}

fn exchange(stream: &mut TcpStream, hello: &[u8; HELLO]) -> std::io::Result<[u8; HELLO]> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(HANDSHAKE))?;
    stream.write_all(hello)?;
    receive(stream)
}

fn receive<const LENGTH: usize>(stream: &mut TcpStream) -> std::io::Result<[u8; LENGTH]> {
    let end = std::time::Instant::now() + HANDSHAKE;
    let mut bytes = [0; LENGTH];
    let mut read = 0;
    // A limit for all of it, so that a byte now and then does not keep a handshake open.
    while read < LENGTH {
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut bytes[read..])? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            more => read += more,
        }
    }
    Ok(bytes)
}
