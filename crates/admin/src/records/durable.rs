//! Small files that are replaced atomically and durably, and locks that end with their process.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
};

use plexus_base::{Incarnation, durable::sync_name, processes::ProcessSpace, reserved::ReservedFile};
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
const SIGNED: usize = 128;

/// Replaces `path` by `value` as JSON; durable on return. A replacement succeeds on a full disk.
///
/// # Errors
/// The system's; the old file is unchanged.
pub fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut text = serde_json::to_string(value)?;
    text.push('\n');
    ReservedFile::new(path.into(), RESERVE).put(text.as_bytes())
}

/// Creates the file `path` with these bytes, readable only by its owner; durable on return.
///
/// # Errors
/// `AlreadyExists`, or another error of the system; nothing is changed.
pub fn create(path: &Path, bytes: &[u8]) -> io::Result<()> {
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
pub fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
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
pub struct Lock(File);

/// The process that signed a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its number, which names it only in its space.
    pub pid: u32,
    /// Its incarnation.
    pub incarnation: u64,
    /// The last incarnation before it of which it knew that all up to that one have ended.
    pub ended: u64,
    /// The space of its number; `None` if an earlier version of Plexus has signed.
    pub space: Option<ProcessSpace>,
}

impl Holder {
    /// Returns the reason why this process cannot name the holder, and so not signal it.
    pub fn obstacle(self) -> Option<&'static str> {
        match (self.space, ProcessSpace::own()) {
            (Some(space), Some(own)) if space == own => None,
            (Some(space), Some(own)) if space.boot == own.boot => {
                Some("it runs in another PID namespace of this host: run the command there, or end it there")
            }
            (Some(_), Some(_)) => Some("it runs on another host, or this host has booted since"),
            _ => Some("its PID namespace is not known: end it by hand"),
        }
    }

    /// Returns true if the holder has signed since this host has booted.
    pub fn is_of_this_boot(&self) -> bool {
        matches!((self.space, ProcessSpace::own()), (Some(space), Some(own)) if space.boot == own.boot)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.obstacle() {
            None => write!(f, "pid {}", self.pid),
            Some(why) => write!(f, "{why}"),
        }
    }
}

/// The state of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// There is no such file.
    Missing,
    /// The lock is free; the value is its last holder.
    Free(Option<Holder>),
    /// The lock is held; the value is its holder, once it has signed.
    Held(Option<Holder>),
}

impl Look {
    /// Returns true if this state proves that an incarnation has ended: it had this file and
    /// released it, or a holder knew that it has ended. A missing file, or one that the incarnation
    /// never signed, proves nothing: its lock may be another file, on another machine or deleted.
    /// Nor does a file that was signed before the host has booted: the host may be a copy.
    pub fn proves_end_of(self, incarnation: Incarnation) -> bool {
        let (Self::Free(Some(last)) | Self::Held(Some(last))) = self else { return false };
        let has_released = matches!(self, Self::Free(_)) && last.incarnation == incarnation.0;
        last.is_of_this_boot() && (has_released || last.ended >= incarnation.0)
    }
}

impl Lock {
    /// Takes the lock and signs it, or returns its holder (if it has signed). A process that only
    /// [looks](Lock::look) does not block this.
    ///
    /// # Errors
    /// The system's.
    pub fn try_take(path: &Path, incarnation: u64) -> io::Result<Result<Self, Option<Holder>>> {
        let lock = match Self::try_lock(path)? {
            Ok((lock, _)) => lock,
            Err(holder) => return Ok(Err(holder)),
        };
        lock.sign(incarnation, 0)?;
        Ok(Ok(lock))
    }

    /// As [`try_take`](Self::try_take), but leaves the signature of the last holder, and returns it
    /// with the lock.
    ///
    /// # Errors
    /// The system's.
    pub fn try_lock(path: &Path) -> io::Result<Result<(Self, Option<Holder>), Option<Holder>>> {
        let mut file = open(path)?;
        while !has_taken(&file, FlockOperation::NonBlockingLockExclusive)? {
            // A holder also excludes shared locks; a process that looks does not.
            if !has_taken(&file, FlockOperation::NonBlockingLockShared)? {
                return Ok(Err(signed(&mut file)?));
            }
            std::thread::yield_now();
        }
        let last = signed(&mut file)?;
        Ok(Ok((Self(file), last)))
    }

    /// Signs the lock, or signs it again with other numbers: those of [`Holder`].
    ///
    /// # Errors
    /// The system's.
    pub fn sign(&self, incarnation: u64, ended: u64) -> io::Result<()> {
        let space = ProcessSpace::own().map(|space| space.to_string()).unwrap_or_default();
        let signature = format!("{} {incarnation} {space} {ended}", std::process::id());
        self.0.write_all_at(format!("{signature:<width$}\n", width = SIGNED - 1).as_bytes(), 0)
    }

    /// Returns the present or last holder of the lock at `path`.
    ///
    /// # Errors
    /// The system's.
    pub fn last(path: &Path) -> io::Result<Option<Holder>> {
        match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            file => signed(&mut file?),
        }
    }

    /// Returns the state of the lock at `path`. To find out, it shares the lock for a moment.
    ///
    /// # Errors
    /// The system's.
    pub fn look(path: &Path) -> io::Result<Look> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Look::Missing),
            file => file?,
        };
        match has_taken(&file, FlockOperation::NonBlockingLockShared)? {
            true => Ok(Look::Free(signed(&mut file)?)),
            false => Ok(Look::Held(signed(&mut file)?)),
        }
    }

    /// Sends a signal to the process that holds the lock at `path`, if that is still `holder` and
    /// has its number in the PID namespace of this process.
    ///
    /// # Errors
    /// The system's; the process may have ended.
    pub fn signal(path: &Path, holder: Holder, signal: Signal) -> io::Result<()> {
        if let Some(why) = holder.obstacle() {
            return Err(io::Error::other(why));
        }
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
    // An earlier version signs in fewer bytes, and may leave the end of a later signature.
    let mut words = text.lines().next()?.split_whitespace();
    let (pid, incarnation) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let space = words.next().and_then(|space| space.parse().ok());
    let ended = words.next().and_then(|ended| ended.parse().ok()).unwrap_or_default();
    Some(Holder { pid, incarnation, ended, space })
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
        let space = ProcessSpace::own();
        let me = Some(Holder { pid: std::process::id(), incarnation: 7, ended: 0, space });
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
        assert!(!over(6) && !over(7) && !over(8), "an earlier one may run on a copied host");
        lock.sign(7, 6).unwrap();
        assert!(over(6) && !over(7) && !over(8));
        std::fs::remove_file(&path).unwrap();
        assert!(!over(7), "the file was removed, but the incarnation runs");
        std::fs::write(&path, "").unwrap();
        assert!(!over(7), "an empty file proves nothing");
        let own = ProcessSpace::own().unwrap();
        std::fs::write(&path, format!("1 6 {own}")).unwrap();
        assert!(over(6) && !over(7), "a file of an earlier incarnation proves nothing about a later one");
        let before = ProcessSpace { boot: own.boot ^ 1, ..own };
        for signature in ["1 6".to_owned(), format!("1 6 {before}")] {
            std::fs::write(&path, &signature).unwrap();
            assert!(!over(6), "this host may be a copy of the one that has signed: {signature}");
        }
        drop(lock);
        drop(Lock::try_take(&path, 8).unwrap().unwrap());
        assert!(!over(7) && over(8) && !over(9));
    }

    #[test]
    fn a_process_of_another_pid_namespace_is_not_signalled_by_its_number() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = Lock::try_take(&path, 7).unwrap().unwrap();
        let mut innocent = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let own = ProcessSpace::own().unwrap();
        let spaces = [
            (Some(ProcessSpace { namespace: own.namespace + 1, ..own }), "another PID namespace"),
            (Some(ProcessSpace { boot: own.boot ^ 1, ..own }), "another host"),
            (None, "not known"),
        ];
        for (space, why) in spaces {
            let holder = Holder { pid: innocent.id(), incarnation: 7, ended: 0, space };
            let space = space.map(|space| space.to_string()).unwrap_or_default();
            lock.0
                .write_all_at(format!("{:<127}\n", format!("{} 7 {space}", innocent.id())).as_bytes(), 0)
                .unwrap();
            assert_eq!(Lock::look(&path).unwrap(), Look::Held(Some(holder)));
            let refused = Lock::signal(&path, holder, Signal::KILL).unwrap_err().to_string();
            assert!(refused.contains(why) && holder.to_string() == refused, "{refused}");
        }
        assert!(innocent.try_wait().unwrap().is_none(), "it lives");
        innocent.kill().unwrap();
        innocent.wait().unwrap();
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
            "1234 5678 b1c3eaa4713e4e12bef99eb521f75e19.4026531836\n",
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
