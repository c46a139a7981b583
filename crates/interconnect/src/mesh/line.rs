//! A connection during its handshake. It never blocks, and reads no byte beyond the expected
//! message, since the bytes after the last one belong to the rail.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    event::epoll,
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType},
};

pub(super) struct HandshakeStream {
    stream: TcpStream,
    message: Vec<u8>,
    wanted: usize,
}

impl HandshakeStream {
    /// Wraps an accepted connection on which a message of `wanted` bytes is expected.
    pub(super) fn accepted(stream: TcpStream, wanted: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, message: Vec::new(), wanted })
    }

    /// Starts a connection from an address of this node, so that it takes the path that begins
    /// there.
    pub(super) fn call(
        from: SocketAddr,
        to: SocketAddr,
        prepare: impl FnOnce(&OwnedFd) -> io::Result<()>,
    ) -> io::Result<Self> {
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        prepare(&socket)?;
        rustix::net::bind(&socket, &SocketAddr::new(from.ip(), 0))?;
        match rustix::net::connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        Ok(Self { stream, message: Vec::new(), wanted: 0 })
    }

    /// Returns true if the other end has accepted the connection.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        match self.stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(self.stream.peer_addr().is_ok()),
        }
    }

    /// Adds the connection to an epoll set as `token`; with `calling` it also announces that it is
    /// connected.
    pub(super) fn register(&self, epoll: &OwnedFd, token: u64, calling: bool) -> io::Result<()> {
        let flags = if calling { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(token);
        match epoll::add(epoll, self.stream.as_fd(), data, flags) {
            Err(Errno::EXIST) => Ok(epoll::modify(epoll, self.stream.as_fd(), data, flags)?),
            other => Ok(other?),
        }
    }

    /// Sends a message, and then expects one of `wanted` bytes. A handshake is shorter than any
    /// send buffer, so a partial write is an error.
    pub(super) fn send(&mut self, message: &[u8], wanted: usize) -> io::Result<()> {
        self.wanted = wanted;
        if self.stream.write(message)? == message.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// The expected message, once all of it has arrived.
    ///
    /// # Errors
    /// The connection has ended, or more bytes came than expected.
    pub(super) fn receive(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; 512];
        loop {
            // If no message is expected, any byte is an error.
            let room = (self.wanted - self.message.len()).clamp(1, buffer.len());
            match self.stream.read(&mut buffer[..room]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if self.wanted == 0 => return Err(io::ErrorKind::InvalidData.into()),
                Ok(read) => self.message.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if self.message.len() == self.wanted {
                self.wanted = 0;
                return Ok(Some(std::mem::take(&mut self.message)));
            }
        }
    }

    /// The connection itself, removed from the epoll set.
    pub(super) fn into_stream(self, epoll: &OwnedFd) -> io::Result<TcpStream> {
        epoll::delete(epoll, self.stream.as_fd())?;
        Ok(self.stream)
    }
}
