//! A connection to a client: bytes in and out.

use std::{
    io::{self, Read, Write},
    mem::MaybeUninit,
    net::TcpStream,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};

use plexus_interconnect::executor::{self, Descriptor};
use rustix::net::RecvFlags;
use rustls::{ServerConfig, ServerConnection};

use super::{MOST_BYTES, MOST_START_BYTES, Outgoing, Received, Start, read, read_start};
use crate::error::{Result, SqlError, code, fail};

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

impl From<Descriptor<UnixStream>> for Socket {
    fn from(socket: Descriptor<UnixStream>) -> Self {
        Self::Unix(socket)
    }
}

impl From<Descriptor<TcpStream>> for Socket {
    fn from(socket: Descriptor<TcpStream>) -> Self {
        Self::Tcp(socket)
    }
}

impl Socket {
    /// Hands what has come to `take`, once something has. Returns the number of bytes, which is
    /// 0 at the end.
    async fn read(&self, mut take: impl FnMut(&[u8])) -> io::Result<usize> {
        // On the stack, so that an idle session has no buffer.
        let mut read = |socket: BorrowedFd<'_>| {
            let mut piece = [const { MaybeUninit::uninit() }; PIECE];
            let ((bytes, _), _) = rustix::net::recv(socket, &mut piece, RecvFlags::empty())?;
            take(bytes);
            Ok(bytes.len())
        };
        match self {
            Self::Unix(socket) => socket.read(|socket| read(socket.as_fd())).await,
            Self::Tcp(socket) => socket.read(|socket| read(socket.as_fd())).await,
        }
    }

    /// Sends bytes from `sent` on, which then counts what has gone: a statement that is cancelled
    /// drops this call, and the next one goes on behind.
    async fn write(&self, bytes: &[u8], sent: &mut usize) -> io::Result<()> {
        while *sent < bytes.len() {
            let rest = &bytes[*sent..];
            *sent += match self {
                Self::Unix(socket) => socket.write(|mut socket| socket.write(rest)).await,
                Self::Tcp(socket) => socket.write(|mut socket| socket.write(rest)).await,
            }?;
        }
        Ok(())
    }
}

/// The encryption of a connection.
struct Tls {
    connection: Box<ServerConnection>,
    /// Encrypted bytes, and how many of them have gone.
    encrypted: Vec<u8>,
    sent: usize,
}

impl Tls {
    /// Appends what is decrypted.
    fn take(&mut self, into: &mut Vec<u8>) -> io::Result<()> {
        match self.connection.reader().read_to_end(into) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            // The client has gone without a farewell.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Decrypts bytes of the client.
    fn decrypt(&mut self, mut bytes: &[u8], into: &mut Vec<u8>) -> io::Result<()> {
        while !bytes.is_empty() {
            self.connection.read_tls(&mut bytes)?;
            self.connection.process_new_packets().map_err(io::Error::other)?;
            self.take(into)?;
        }
        Ok(())
    }

    /// Appends what the client has sent. Returns 0 at the end.
    async fn read(&mut self, socket: &Socket, into: &mut Vec<u8>) -> io::Result<usize> {
        let before = into.len();
        loop {
            // The answers of a handshake.
            self.flush(socket).await?;
            let mut decrypted = Ok(());
            let len = socket.read(|bytes| decrypted = self.decrypt(bytes, into)).await?;
            if decrypted.is_err() {
                self.flush(socket).await?;
            }
            decrypted?;
            if len == 0 || into.len() > before {
                return Ok(into.len() - before);
            }
        }
    }

    async fn flush(&mut self, socket: &Socket) -> io::Result<()> {
        loop {
            socket.write(&self.encrypted, &mut self.sent).await?;
            (self.encrypted, self.sent) = (Vec::new(), 0);
            if !self.connection.wants_write() {
                return Ok(());
            }
            self.connection.write_tls(&mut self.encrypted)?;
        }
    }

    /// Encrypts and writes bytes behind the first `sent`, as [`Socket::write`] does.
    async fn write(&mut self, socket: &Socket, bytes: &[u8], sent: &mut usize) -> io::Result<()> {
        while *sent < bytes.len() {
            *sent += self.connection.writer().write(&bytes[*sent..])?;
            self.flush(socket).await?;
        }
        self.flush(socket).await
    }
}

/// A connection to a client.
pub(crate) struct Connection {
    socket: Socket,
    tls: Option<Tls>,
    received: Vec<u8>,
    /// The begin of the bytes that were not handled yet.
    at: usize,
    pub(crate) out: Outgoing,
    /// The bytes of `out` that have gone.
    sent: usize,
    pub(crate) is_authenticated: bool,
}

fn lost(error: &io::Error) -> SqlError {
    SqlError::new("08006", format!("the connection to the client is lost: {error}"))
}

impl Connection {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            tls: None,
            received: Vec::new(),
            at: 0,
            out: Outgoing::default(),
            sent: 0,
            is_authenticated: false,
        }
    }

    /// Encrypts all that follows.
    pub(crate) fn encrypt(&mut self, settings: Arc<ServerConfig>) -> Result<()> {
        // Bytes before the handshake would count as if they had been encrypted.
        if self.at < self.received.len() {
            fail!(PROTOCOL_VIOLATION, "received unencrypted data after SSL request");
        }
        let tls = ServerConnection::new(settings);
        let tls = tls.map_err(|error| SqlError::new(code::SYSTEM_ERROR, error.to_string()))?;
        self.tls = Some(Tls { connection: Box::new(tls), encrypted: Vec::new(), sent: 0 });
        Ok(())
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether the client may be on another machine.
    pub(crate) fn is_elsewhere(&self) -> bool {
        match &self.socket {
            Socket::Unix(_) => false,
            Socket::Tcp(socket) => {
                socket.get_ref().peer_addr().map_or(true, |peer| !peer.ip().to_canonical().is_loopback())
            }
        }
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
        while self.received.len() - self.at < wanted {
            let received = &mut self.received;
            let read = match &mut self.tls {
                None => self.socket.read(|bytes| received.extend_from_slice(bytes)).await,
                Some(tls) => tls.read(&self.socket, received).await,
            };
            match read {
                Ok(0) => return Ok(false),
                Ok(_) => {}
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
        Ok(self.fill(before + len).await?.then_some(len))
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
        let written = match &mut self.tls {
            None => self.socket.write(&self.out.0, &mut self.sent).await,
            Some(tls) => tls.write(&self.socket, &self.out.0, &mut self.sent).await,
        };
        written.map_err(|error| lost(&error))?;
        self.out.0.clear();
        self.sent = 0;
        self.out.0.shrink_to(FULL);
        Ok(())
    }

    /// Sends what was put for the client if it is much.
    pub(crate) async fn flush_if_full(&mut self) -> Result<()> {
        if self.out.0.len() >= FULL {
            self.flush().await?;
            // A client that reads fast lets other sessions go on, too.
            executor::yield_now().await;
        }
        Ok(())
    }

    /// Sends one byte, the answer to a request for encryption.
    pub(crate) async fn send_byte(&mut self, byte: u8) -> Result<()> {
        self.out.0.push(byte);
        self.flush().await
    }
}
