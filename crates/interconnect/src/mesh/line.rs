//! A connection during its handshake: it never blocks, and reads no byte beyond the message that is expected, for what
//! follows the last one belongs to the rail.

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

pub(super) struct Line {
    stream: TcpStream,
    message: Vec<u8>,
    wanted: usize,
}

impl Line {
    /// A connection that was accepted, on which a message of `wanted` bytes is expected.
    pub(super) fn accepted(stream: TcpStream, wanted: usize) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, message: Vec::new(), wanted })
    }

    /// A connection that is being made from an address of this node, so that it takes the path that begins there.
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

    /// Whether the other end has taken the call.
    pub(super) fn is_connected(&self) -> io::Result<bool> {
        match self.stream.take_error()? {
            Some(error) => Err(error),
            None => Ok(self.stream.peer_addr().is_ok()),
        }
    }

    /// Announces arrivals, and with `calling` that the call was taken, as `token`.
    pub(super) fn register(&self, epoll: &OwnedFd, token: u64, calling: bool) -> io::Result<()> {
        let flags = if calling { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(token);
        match epoll::add(epoll, self.stream.as_fd(), data, flags) {
            Err(Errno::EXIST) => Ok(epoll::modify(epoll, self.stream.as_fd(), data, flags)?),
            other => Ok(other?),
        }
    }

    /// Sends a message, and then expects one of `wanted` bytes. A handshake is shorter than any send buffer: what is not
    /// taken at once never will be.
    pub(super) fn say(&mut self, message: &[u8], wanted: usize) -> io::Result<()> {
        self.wanted = wanted;
        if self.stream.write(message)? == message.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// The message that was expected, once all of it is here.
    ///
    /// # Errors
    /// The connection has ended, or more came than was asked for.
    pub(super) fn hear(&mut self) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; 512];
        loop {
            // Where nothing is expected, anything but silence is a mistake.
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

    /// The connection itself, which announces nothing any more.
    pub(super) fn into_stream(self, epoll: &OwnedFd) -> io::Result<TcpStream> {
        epoll::delete(epoll, self.stream.as_fd())?;
        Ok(self.stream)
    }
}
