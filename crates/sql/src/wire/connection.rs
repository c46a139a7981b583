//! A connection to a client: bytes in and out.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
};

use plexus_interconnect::executor::Descriptor;

use super::{MOST_BYTES, MOST_START_BYTES, Outgoing, Received, Start, read, read_start};
use crate::error::{Result, SqlError, code};

/// The bytes that are read at once.
const PIECE: usize = 16 << 10;

/// The bytes for a client above which they are sent.
const FULL: usize = 64 << 10;

/// A socket of a client.
pub enum Socket {
    /// A program of this machine.
    Unix(Descriptor<UnixStream>),
    /// A program anywhere.
    Tcp(Descriptor<TcpStream>),
}

impl Socket {
    async fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.read(|mut socket| socket.read(into)).await,
            Self::Tcp(socket) => socket.read(|mut socket| socket.read(into)).await,
        }
    }

    async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(socket) => socket.write(|mut socket| socket.write(bytes)).await,
            Self::Tcp(socket) => socket.write(|mut socket| socket.write(bytes)).await,
        }
    }
}

/// A connection to a client.
pub(crate) struct Connection {
    socket: Socket,
    received: Vec<u8>,
    /// The begin of the bytes that were not handled yet.
    at: usize,
    pub(crate) out: Outgoing,
    pub(crate) is_authenticated: bool,
}

fn lost(error: &io::Error) -> SqlError {
    SqlError::new("08006", format!("the connection to the client is lost: {error}"))
}

impl Connection {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket, received: Vec::new(), at: 0, out: Outgoing::default(), is_authenticated: false }
    }

    /// Returns whether the client may be another user than the owner of this node.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.socket, Socket::Tcp(_))
    }

    /// Waits until so many bytes are there; false if the client has ended the connection.
    async fn fill(&mut self, wanted: usize) -> Result<bool> {
        if self.received.len() - self.at < wanted {
            self.received.drain(..self.at);
            self.at = 0;
        }
        let mut piece = [0; PIECE];
        while self.received.len() - self.at < wanted {
            match self.socket.read(&mut piece).await {
                Ok(0) => return Ok(false),
                Ok(len) => self.received.extend_from_slice(&piece[..len]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(false),
                Err(error) => return Err(lost(&error)),
            }
        }
        Ok(true)
    }

    async fn length(&mut self, before: usize) -> Result<Option<usize>> {
        if !self.fill(before + 4).await? {
            return Ok(None);
        }
        let head = &self.received[self.at + before..];
        let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let most = if self.is_authenticated { MOST_BYTES } else { MOST_START_BYTES };
        if !(4..=most).contains(&len) {
            return Err(SqlError::new(code::PROTOCOL_VIOLATION, "invalid message length"));
        }
        match self.fill(before + len).await? {
            true => Ok(Some(len)),
            false => Ok(None),
        }
    }

    /// Waits for the first message; `None` if the client has ended the connection.
    pub(crate) async fn start(&mut self) -> Result<Option<Start>> {
        let Some(len) = self.length(0).await? else { return Ok(None) };
        let body = &self.received[self.at + 4..self.at + len];
        let start = read_start(body)?;
        self.at += len;
        Ok(Some(start))
    }

    /// Waits for a message; `None` if the client has ended the connection. What was put for the
    /// client is sent before a wait.
    pub(crate) async fn receive(&mut self) -> Result<Option<Received>> {
        let is_there = {
            let rest = &self.received[self.at..];
            rest.len() >= 5 && rest.len() > u32::from_be_bytes([rest[1], rest[2], rest[3], rest[4]]) as usize
        };
        if !is_there {
            self.flush().await?;
        }
        let Some(len) = self.length(1).await? else { return Ok(None) };
        let (kind, body) = (self.received[self.at], &self.received[self.at + 5..self.at + 1 + len]);
        let message = read(kind, body);
        self.at += 1 + len;
        if self.at == self.received.len() {
            self.received.clear();
            self.at = 0;
            // An idle session has no large buffers.
            self.received.shrink_to(PIECE);
        }
        message.map(Some)
    }

    /// Sends all that was put for the client.
    pub(crate) async fn flush(&mut self) -> Result<()> {
        let mut sent = 0;
        while sent < self.out.0.len() {
            sent += self.socket.write(&self.out.0[sent..]).await.map_err(|error| lost(&error))?;
        }
        self.out.0.clear();
        self.out.0.shrink_to(FULL);
        Ok(())
    }

    /// Sends what was put for the client if it is much.
    pub(crate) async fn flush_if_full(&mut self) -> Result<()> {
        if self.out.0.len() >= FULL { self.flush().await } else { Ok(()) }
    }

    /// Sends one byte, the answer to a request for encryption.
    pub(crate) async fn send_byte(&mut self, byte: u8) -> Result<()> {
        self.out.0.push(byte);
        self.flush().await
    }
}
