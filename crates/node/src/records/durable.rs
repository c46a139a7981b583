//! Small files that are replaced atomically and durably, and locks that end with their process.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use plexus_base::{Incarnation, durable::sync_name, reserved::ReservedFile};
use rustix::{
    fs::{FlockOperation, flock},
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};
use serde::{Serialize, de::DeserializeOwned};
use tempfile::NamedTempFile;

use crate::records::state::Record;

/// The bytes by which a record may grow on a full disk.
const RESERVE: u64 = 4 << 10;

/// The bytes of a signed lock. Its length never changes, so a new signature needs no space.
const SIGNED: usize = 64;

/// Replaces `path` by `value` as JSON; durable on return. A replacement succeeds on a full disk.
///
/// # Errors
/// The system's; the old file is unchanged.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    ReservedFile::new(path.into(), RESERVE).put(text.as_bytes())
}

/// Creates the file `path` with these bytes, readable only by its owner; durable on return.
///
/// # Errors
/// `AlreadyExists`, or another error of the system; nothing is changed.
pub(crate) fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let mut file = NamedTempFile::new_in(directory)?;
    file.write_all(bytes)?;
    file.as_file().sync_all()?;
    file.persist_noclobber(path)?;
    sync_name(path)
}

/// Returns the value that [`write_json`] wrote to `path`, or `None` if there is no file.
///
/// # Errors
/// The file cannot be read, or its text is not such a value.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match std::fs::read(path) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Decodes any bytes as each file that a starting node reads, for fuzzing; returns how many accept
/// them.
#[doc(hidden)]
pub fn files_any(bytes: &[u8]) -> usize {
    let record = serde_json::from_slice::<Record>(bytes).is_ok_and(|record| {
        let again = serde_json::to_vec(&record).and_then(|text| serde_json::from_slice(&text));
        again.is_ok_and(|again: Record| again == record)
    });
    let holder = std::str::from_utf8(bytes).is_ok_and(|text| signature(text).is_some());
    [record, holder].into_iter().filter(|taken| *taken).count()
}

/// A lock on a file, held until it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct Lock(File);

/// The process that signed a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) pid: u32,
    pub(crate) incarnation: u64,
}

/// The state of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// There is no such file.
    Missing,
    /// The lock is free; the value is its last holder.
    Free(Option<Holder>),
    /// The lock is held; the value is its holder, once it has signed.
    Held(Option<Holder>),
}

impl Look {
    /// Returns true if this state proves that an incarnation has ended: it had this file and
    /// released it, or a later incarnation has it. A missing file, or one that the incarnation
    /// never signed, proves nothing: its lock may be another file, on another machine or deleted.
    pub(crate) fn proves_end_of(self, incarnation: Incarnation) -> bool {
        match self {
            Self::Free(Some(last)) => last.incarnation >= incarnation.0,
            Self::Held(Some(holder)) => holder.incarnation > incarnation.0,
            Self::Missing | Self::Free(None) | Self::Held(None) => false,
        }
    }
}

impl Lock {
    /// Takes the lock and signs it, or returns its holder (if it has signed). A process that only
    /// [looks](Lock::look) does not block this.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn try_take(path: &Path, incarnation: u64) -> io::Result<Result<Self, Option<Holder>>> {
        let mut file = open(path)?;
        while !has_taken(&file, FlockOperation::NonBlockingLockExclusive)? {
            // A holder also excludes shared locks; a process that looks does not.
            if !has_taken(&file, FlockOperation::NonBlockingLockShared)? {
                return Ok(Err(signed(&mut file)?));
            }
            std::thread::yield_now();
        }
        let lock = Self(file);
        lock.sign(incarnation)?;
        Ok(Ok(lock))
    }

    /// Signs the lock with another number.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn sign(&self, incarnation: u64) -> io::Result<()> {
        let signature = format!("{} {incarnation}", std::process::id());
        self.0.write_all_at(format!("{signature:<width$}\n", width = SIGNED - 1).as_bytes(), 0)
    }

    /// Returns the present or last holder of the lock at `path`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn last(path: &Path) -> io::Result<Option<Holder>> {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => signed(&mut file?),
        }
    }

    /// Returns the state of the lock at `path`. To find out, it shares the lock for a moment.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn look(path: &Path) -> io::Result<Look> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Look::Missing),
            file => file?,
        };
        match has_taken(&file, FlockOperation::NonBlockingLockShared)? {
            true => Ok(Look::Free(signed(&mut file)?)),
            false => Ok(Look::Held(signed(&mut file)?)),
        }
    }

    /// Sends a signal to the process that holds the lock at `path`, if that is still `holder`.
    ///
    /// # Errors
    /// The system's; the process may have ended.
    pub(crate) fn signal(path: &Path, holder: Holder, signal: Signal) -> io::Result<()> {
        let pid = i32::try_from(holder.pid).ok().and_then(Pid::from_raw);
        let process = pidfd_open(pid.ok_or(io::ErrorKind::InvalidData)?, PidfdFlags::empty())?;
        // The lock is checked again after the pidfd is open, so the pid cannot belong to another
        // process.
        if Self::look(path)? == Look::Held(Some(holder)) {
            pidfd_send_signal(&process, signal)?;
        }
        Ok(())
    }
}

fn has_taken(file: &File, how: FlockOperation) -> io::Result<bool> {
    match flock(file, how) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
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
    use std::{
        sync::atomic::{AtomicBool, Ordering::Relaxed},
        thread,
    };

    use super::*;

    #[test]
    fn a_lock_has_one_holder_with_a_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert_eq!(Lock::look(&path).unwrap(), Look::Missing);
        let lock = Lock::try_take(&path, 7).unwrap().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), SIGNED as u64);
        let me = Some(Holder { pid: std::process::id(), incarnation: 7 });
        assert_eq!(Lock::look(&path).unwrap(), Look::Held(me));
        assert_eq!(Lock::try_take(&path, 8).unwrap().unwrap_err(), me);
        drop(lock);
        assert_eq!(Lock::look(&path).unwrap(), Look::Free(me));
        assert!(Lock::try_take(&path, 9).unwrap().is_ok());
    }

    #[test]
    fn incarnation_has_ended_when_it_has_released_a_lock_that_it_had() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let over = |incarnation| Lock::look(&path).unwrap().proves_end_of(Incarnation(incarnation));
        assert!(!over(7), "this incarnation never had the lock");
        let lock = Lock::try_take(&path, 7).unwrap().unwrap();
        assert!(over(6) && !over(7) && !over(8));
        std::fs::remove_file(&path).unwrap();
        assert!(!over(7), "the file was removed, but the incarnation runs");
        std::fs::write(&path, "").unwrap();
        assert!(!over(7), "an empty file proves nothing");
        std::fs::write(&path, "1 6").unwrap();
        assert!(over(6) && !over(7), "a file of an earlier incarnation proves nothing about a later one");
        drop(lock);
        drop(Lock::try_take(&path, 8).unwrap().unwrap());
        assert!(over(7) && over(8) && !over(9));
    }

    #[test]
    fn looks_at_a_lock_do_not_prevent_taking_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        drop(Lock::try_take(&path, 1).unwrap().unwrap());
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    Lock::look(&path).unwrap();
                }
            });
            let takes: Vec<_> =
                (2..5_000).map(|incarnation| Lock::try_take(&path, incarnation).unwrap().err()).collect();
            is_over.store(true, Relaxed);
            assert!(takes.iter().all(Option::is_none), "{:?}", takes.iter().flatten().next());
        });
    }

    #[test]
    fn hostile_files_do_no_harm() {
        let good = [
            r#"{"incarnation":9,"phase":"running"}"#,
            r#"{"incarnation":18446744073709551615,"phase":"left"}"#,
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
