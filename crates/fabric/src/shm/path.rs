//! Local sockets in the file system, also below directories that are too deep for an address.

use std::{
    fs::{File, Permissions},
    io,
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::PermissionsExt},
    },
    path::{Path, PathBuf},
};

/// A socket address that does not depend on the length of its path. Unix addresses hold about a
/// hundred bytes; cluster directories may be deeper.
pub struct ShortPath {
    path: PathBuf,
    _directory: Option<File>,
}

impl ShortPath {
    /// Returns a short name of `path`, valid while this value lives.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub fn of(path: &Path) -> io::Result<Self> {
        let short = path.as_os_str().as_bytes().len() < 100;
        let (Some(parent), Some(name), false) = (path.parent(), path.file_name(), short) else {
            return Ok(Self { path: path.into(), _directory: None });
        };
        let directory = File::open(parent)?;
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        Ok(Self { path: Path::new(&path).join(name), _directory: Some(directory) })
    }

    /// Returns the short name.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Binds a socket to `path` by `bind`, for the owner only. The caller has the node's lock, so an
/// existing socket is of a dead node and is replaced. `bind` gets a short name of the path, which
/// fits into a socket address.
///
/// # Errors
/// A system call failed.
pub fn bind_for_owner<T>(path: &Path, bind: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let bound = bind(ShortPath::of(path)?.path())?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(bound)
}
