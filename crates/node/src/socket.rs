//! Opening a Unix socket of a node under its path.

use std::{fs::Permissions, io, os::unix::fs::PermissionsExt, path::Path};

use plexus_client::wire::ShortPath;

/// Binds a socket to `path` by `bind`, for the owner only. The caller has the node's lock, so a socket that is there is a dead
/// node's, and is replaced. `bind` gets another name of the same place: a socket's address has room for a short one only.
///
/// # Errors
/// The system's.
pub(crate) fn open<T>(path: &Path, bind: impl FnOnce(&Path) -> io::Result<T>) -> io::Result<T> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let bound = bind(ShortPath::of(path)?.path())?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(bound)
}
