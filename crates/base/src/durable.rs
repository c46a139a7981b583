//! Files that are either the old or the new one after any crash.
//!
//! A new file is written beside the old one, with `.new` behind its name, and takes its place when it is durable. It is made, never opened
//! where something stands: a name that leads elsewhere is not followed. What happened is durable when a function returns.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt, fchown},
    path::{Path, PathBuf},
};

/// Replaces `path` by a file of these bytes that only its owner may read.
///
/// # Errors
/// The system's; the old file is still there.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    put(path, bytes, |_| Ok(()))
}

/// Replaces what a file holds, which keeps its owner and who may use it. Where `path` is a link, the file that it leads to.
///
/// # Errors
/// The system's; the old file is still there.
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

/// Gives a file another name, instead of the one that has it.
///
/// # Errors
/// The system's; it may have happened all the same.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_name(to)
}

/// A new file that only its owner may read, instead of one that was left there.
///
/// # Errors
/// The system's.
pub fn make(path: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Where the new file for `path` is made.
#[must_use]
pub fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Makes it durable which file has the name `path`, if any.
///
/// # Errors
/// The system's.
pub fn sync_name(path: &Path) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
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
    fn a_file_is_replaced_and_a_link_left_in_its_way_is_not_followed() {
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
    fn what_is_rewritten_keeps_who_may_use_it() {
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
