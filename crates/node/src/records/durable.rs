//! Small files that are either the old or the new one after any crash, and locks that end with their process.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use plexus_base::{
    Incarnation,
    durable::{replace, sync_name},
};
use rustix::fs::{FlockOperation, flock};
use serde::{Serialize, de::DeserializeOwned};
use tempfile::NamedTempFile;

use crate::{records::settle::Settled, records::state::Record};

/// Replaces `path` by `value` as JSON; durable when this returns.
///
/// # Errors
/// The system's; the old file is still there.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    replace(path, text.as_bytes())
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
    sync_name(path)
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

/// What a look at a lock shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// There is no such file.
    Missing,
    /// Nobody has it; who had it last.
    Free(Option<Holder>),
    /// Somebody has it; who, if they have signed.
    Held(Option<Holder>),
}

impl Look {
    /// Whether it proves that an incarnation is over: it had this file, and has let go of it, or a later incarnation has come to it. A file that
    /// is gone, or that the incarnation never signed, says nothing: the incarnation may have another, on another machine or one that was removed.
    pub(crate) fn proves_end_of(self, incarnation: Incarnation) -> bool {
        match self {
            Self::Free(Some(last)) => last.incarnation >= incarnation.0,
            Self::Held(Some(holder)) => holder.incarnation > incarnation.0,
            Self::Missing | Self::Free(None) | Self::Held(None) => false,
        }
    }
}

impl Lock {
    /// Takes the lock and signs it, or says who has it (if they have signed). Who only [looks](Lock::look) does not count.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn try_take(path: &Path, incarnation: u64) -> io::Result<Result<Self, Option<Holder>>> {
        let mut file = open(path)?;
        while !has_taken(&file, FlockOperation::NonBlockingLockExclusive)? {
            // Who has it keeps out those who look as well.
            if !has_taken(&file, FlockOperation::NonBlockingLockShared)? {
                return Ok(Err(signed(&mut file)?));
            }
            std::thread::yield_now();
        }
        file.set_len(0)?;
        writeln!(file, "{} {incarnation}", std::process::id())?;
        Ok(Ok(Self(file)))
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

    /// Whether somebody holds the lock at `path`, and who. To find out, it is shared for a moment with others who look.
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
    fn a_lock_has_one_holder_who_can_be_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        assert_eq!(Lock::look(&path).unwrap(), Look::Missing);
        let lock = Lock::try_take(&path, 7).unwrap().unwrap();
        let me = Some(Holder { pid: std::process::id(), incarnation: 7 });
        assert_eq!(Lock::look(&path).unwrap(), Look::Held(me));
        assert_eq!(Lock::try_take(&path, 8).unwrap().unwrap_err(), me);
        drop(lock);
        assert_eq!(Lock::look(&path).unwrap(), Look::Free(me));
        assert!(Lock::try_take(&path, 9).unwrap().is_ok());
    }

    #[test]
    fn a_incarnation_is_over_when_it_has_let_go_of_a_lock_that_it_had() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let over = |incarnation| Lock::look(&path).unwrap().proves_end_of(Incarnation(incarnation));
        assert!(!over(7), "nobody has ever seen it here");
        let lock = Lock::try_take(&path, 7).unwrap().unwrap();
        assert!(over(6) && !over(7) && !over(8));
        std::fs::remove_file(&path).unwrap();
        assert!(!over(7), "it lives, though its file was removed");
        std::fs::write(&path, "").unwrap();
        assert!(!over(7), "nor does an empty file say anything");
        std::fs::write(&path, "1 6").unwrap();
        assert!(over(6) && !over(7), "nor one that an earlier incarnation had");
        drop(lock);
        drop(Lock::try_take(&path, 8).unwrap().unwrap());
        assert!(over(7) && over(8) && !over(9));
    }

    #[test]
    fn who_looks_at_a_lock_keeps_nobody_from_taking_it() {
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
