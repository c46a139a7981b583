//! File replacement that leaves either the old or the new file after a crash.
//!
//! The new file is written beside the old one, with `.new` appended to its name, and renamed once
//! it is durable. It is always created, never opened, so a symbolic link in its place is not
//! followed. All changes are durable when a function returns.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};

/// Replaces `path` with a file of these bytes that only its owner may read.
///
/// # Errors
/// Returns the I/O error; the old file is still there.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, |_| Ok(()))
}

/// Replaces the content of a file and keeps its owner and permissions. If `path` is a symbolic
/// link, the file that it leads to is replaced.
///
/// # Errors
/// Returns the I/O error; the old file is still there.
pub fn rewrite(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let path = path.canonicalize()?;
    let old = fs::metadata(&path)?;
    put(&path, bytes, |new| {
        let made = new.metadata()?;
        if (made.uid(), made.gid()) != (old.uid(), old.gid()) {
            fchown(new, Some(old.uid()), Some(old.gid()))?;
        }
        new.set_permissions(old.permissions())
    })
}

fn put(path: &Path, bytes: &[u8], prepare: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
    let new = beside(path);
    let mut file = make(&new)?;
    prepare(&file)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    rename(&new, path)
}

/// Renames a file and replaces the file that had the new name.
///
/// # Errors
/// Returns the I/O error; the file may have been renamed all the same.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_name(to)
}

/// Creates a file that only its owner may read, and removes a file left at the path.
///
/// # Errors
/// Returns the I/O error.
pub fn make(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Returns the path at which the new file for `path` is written.
#[must_use]
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Makes the directory entry of `path` durable, whether or not the file exists.
///
/// # Errors
/// Returns the I/O error.
pub fn sync_name(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
}

/// Returns the text to put before the error of a failed write: what to do if the disk is full.
#[must_use]
pub fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "the disk is full, make room on it: ",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt, symlink},
    };

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn a_file_is_replaced_and_a_symlink_at_the_temporary_name_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("a"), directory.path().join("other"));
        fs::write(&other, "other").unwrap();
        symlink(&other, beside(&path)).unwrap();
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"two".to_vec(), 0o600));
        assert_eq!(fs::read(&other).unwrap(), b"other");
        assert!(!beside(&path).exists() && !path.is_symlink());
    }

    #[test]
    fn a_rewritten_file_keeps_its_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("a"), directory.path().join("link"));
        fs::write(&path, "one").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        symlink("a", &link).unwrap();
        rewrite(&link, b"two").unwrap();
        assert_eq!((fs::read(&path).unwrap(), mode(&path)), (b"two".to_vec(), 0o664));
        assert!(link.is_symlink());
        assert!(rewrite(&directory.path().join("none"), b"").is_err());
    }
}
