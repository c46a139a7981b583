//! Packets with descriptors over a local socket, and paths of sockets that are longer than an address holds.

use std::{
    fs::{File, Permissions},
    io,
    os::{
        fd::{AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::PermissionsExt},
    },
    path::{Path, PathBuf},
};

use plexus_fabric::shm;
pub use plexus_fabric::shm::send_packet;

/// Longest packet.
const PACKET: usize = 128;

// The arena and what wakes the program go in one packet with the rings and the bell of every worker.
const _: () = assert!(2 + 3 * plexus_base::MAX_WORKERS <= shm::MAX_DESCRIPTORS);

/// Receives one packet and what came with it; no bytes: the other side has closed.
///
/// # Errors
/// The system's, or the packet is longer than any.
pub fn receive_packet(socket: BorrowedFd<'_>) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut bytes = vec![0; PACKET];
    let (len, descriptors) = shm::receive_packet(socket, &mut bytes)?;
    bytes.truncate(len);
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

/// Binds a socket to `path` by `bind`, for the owner only. The caller has the node's lock, so a socket that is there is a dead
/// node's, and is replaced. `bind` gets another name of the same place: a socket's address has room for a short one only.
///
/// # Errors
/// The system's.
pub fn bind_for_owner<T>(path: &Path, bind: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let bound = bind(ShortPath::of(path)?.path())?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(bound)
}
