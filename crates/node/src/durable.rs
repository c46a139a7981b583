//! Small files that are either the old or the new one after any crash, and locks that end with their process.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use rustix::fs::{FlockOperation, flock};
use serde::{Serialize, de::DeserializeOwned};
use tempfile::NamedTempFile;

use crate::{settle::Settled, state::Record};

/// Replaces `path` by `value` as JSON; durable when this returns.
///
/// # Errors
/// The system's; the old file is still there.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    write(path, text.as_bytes())
}

/// Replaces `path` by a file of these bytes that only its owner may read; durable when this returns.
///
/// # Errors
/// The system's; the old file is still there.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let temporary = path.with_extension("tmp");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    File::open(directory)?.sync_all()
}

/// Makes `path`, which is not there yet, as a file of these bytes that only its owner may read; durable when this returns.
///
/// # Errors
/// `AlreadyExists`, or the system's; nothing is changed then.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    File::open(directory)?.sync_all()
}

/// What [`write_json`] left at `path`, or `None` when nothing ever was.
///
/// # Errors
/// The system's, or the text is not what was written.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match std::fs::read(path) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads any bytes as each of the files that a node finds when it starts, as a fuzz target would; how many it takes them for.
#[doc(hidden)]
#[must_use]
pub fn files_any(bytes: &[u8]) -> usize {
    let record = serde_json::from_slice::<Record>(bytes).is_ok_and(|record| {
        let again = serde_json::to_vec(&record).and_then(|text| serde_json::from_slice(&text));
        again.is_ok_and(|again: Record| again == record)
    });
    // What is read is counted and shown to the user.
    let settled = serde_json::from_slice::<Settled>(bytes);
    let settled = settled.is_ok_and(|settled| !settled.lost.to_string().is_empty());
    let holder = std::str::from_utf8(bytes).is_ok_and(|text| signature(text).is_some());
    [record, settled, holder].into_iter().filter(|taken| *taken).count()
}

/// A lock on a file, held until dropped or until the process ends in whatever way.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held, not used")] File);

/// Who holds a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) incarnation: u64,
}

impl Lock {
    /// Takes the lock and signs it, or says who has it (if they have signed).
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn try_take(path: &Path, incarnation: u64) -> io::Result<Result<Self, Option<Holder>>> {
        let mut file = open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                file.set_len(0)?;
                writeln!(file, "{} {incarnation}", std::process::id())?;
                Ok(Ok(Self(file)))
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(Err(signed(&mut file)?)),
            Err(error) => Err(error.into()),
        }
    }

    /// Who holds the lock at `path`, or did last.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn last(path: &Path) -> io::Result<Option<Holder>> {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => signed(&mut file?),
        }
    }

    /// Takes the lock, waiting for whoever has it.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn take(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self(file))
    }

    /// Who holds the lock at `path`. Takes it for a moment to find out, so those who only try must be kept
    /// out by other means.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn holder(path: &Path) -> io::Result<Option<Holder>> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        match flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(None),
            Err(rustix::io::Errno::WOULDBLOCK) => signed(&mut file),
            Err(error) => Err(error.into()),
        }
    }
}

fn signed(file: &mut File) -> io::Result<Option<Holder>> {
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    Ok(signature(&text))
}

fn signature(text: &str) -> Option<Holder> {
    let mut words = text.split_whitespace();
    Some(Holder { pid: words.next()?.parse().ok()?, incarnation: words.next()?.parse().ok()? })
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_has_one_holder_who_can_be_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert_eq!(Lock::holder(&path).unwrap(), None);
        let lock = Lock::try_take(&path, 7).unwrap().unwrap();
        let me = Some(Holder { pid: std::process::id(), incarnation: 7 });
        assert_eq!(Lock::holder(&path).unwrap(), me);
        assert_eq!(Lock::try_take(&path, 8).unwrap().unwrap_err(), me);
        drop(lock);
        assert_eq!(Lock::holder(&path).unwrap(), None);
        assert!(Lock::try_take(&path, 9).unwrap().is_ok());
    }

    #[test]
    fn hostile_files_do_no_harm() {
        let good = [
            r#"{"run":3,"incarnation":9,"phase":"running"}"#,
            r#"{"run":3,"incarnation":9,"phase":"left","view":{"epoch":7,"members":[[0,9],[2,4]]},"lost":[[5,0,7],[9,9,9]]}"#,
            r#"{"run":3,"lost":[[0,7],[9,4294967295]]}"#,
            "1234 5678\n",
        ];
        let good = good.map(|text| text.as_bytes().to_vec());
        assert!(good.iter().all(|bytes| files_any(bytes) == 1));
        plexus_sim::hostile(&good, |bytes| assert!(files_any(bytes) <= 1));
    }

    #[test]
    fn json_is_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        assert_eq!(read_json::<u32>(&path).unwrap(), None);
        write_json(&path, &5).unwrap();
        write_json(&path, &6).unwrap();
        assert_eq!(read_json::<u32>(&path).unwrap(), Some(6));
        std::fs::write(&path, "{").unwrap();
        assert!(read_json::<u32>(&path).is_err());
    }
}
