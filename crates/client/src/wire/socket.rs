//! Packets with descriptors over a local socket, and paths of sockets that are longer than an address holds.

use std::{
    fs::File,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// Most descriptors of one packet: an arena, and rings and bell of every worker.
const DESCRIPTORS: usize = 1 + 3 * plexus_base::MAX_WORKERS + 2;

/// Longest packet.
const PACKET: usize = 128;

/// Sends one packet with descriptors.
///
/// # Errors
/// The system's.
pub fn send_packet(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one packet and what came with it; no bytes: the other side has closed.
///
/// # Errors
/// The system's, or the packet is longer than any.
pub fn receive_packet(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; PACKET];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut into = [IoSliceMut::new(&mut bytes)];
    let received = rustix::net::recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a packet longer than any"));
    }
    bytes.truncate(received.bytes);
    Ok((bytes, descriptors))
}

/// A socket's address that does not depend on how long its path is: Unix addresses hold about a hundred bytes,
/// cluster directories may be deeper.
pub struct ShortPath {
    path: PathBuf,
    _directory: Option<File>,
}

impl ShortPath {
    /// A short name of `path`, good as long as this lives.
    ///
    /// # Errors
    /// Its directory cannot be opened.
    pub fn of(path: &Path) -> io::Result<Self> {
        let short = path.as_os_str().as_bytes().len() < 100;
        let (Some(parent), Some(name), false) = (path.parent(), path.file_name(), short) else {
            return Ok(Self { path: path.into(), _directory: None });
        };
        let directory = File::open(parent)?;
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        Ok(Self { path: Path::new(&path).join(name), _directory: Some(directory) })
    }

    /// The short name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}
