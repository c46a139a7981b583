//! Files in memory, mounted by FUSE, that fail as disks under voting files do: full, unreadable,
//! slow, stalled, torn, or restored from an older copy.
//!
//! Every read and write comes here, past all caches. Nothing is left behind: dropping it unmounts
//! the files, and the system does so when this process ends.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, UNIX_EPOCH},
};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite,
    Request, WriteFlags,
};
use plexus_sim::Random;
use tempfile::TempDir;

/// The time for which the kernel may cache file attributes.
const AT_ONCE: Duration = Duration::ZERO;

/// The interval at which a stalled request checks for the end of the stall.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The threads that serve requests; a slow request occupies one of them.
const THREADS: usize = 16;

/// The fault of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wrong {
    /// No fault.
    #[default]
    Nothing,
    /// Writes fail because the disk is full.
    Full,
    /// Reads and writes fail.
    Unreadable,
    /// Reads and writes take this much longer.
    Slow(Duration),
    /// The first half of each write is done, and then the write fails.
    Torn,
    /// Reads and writes wait until the fault is removed.
    Stalled,
}

#[derive(Default)]
struct Content {
    bytes: Vec<u8>,
    wrong: Wrong,
}

type Shared = Arc<Mutex<BTreeMap<String, Content>>>;

/// The mounted files, unmounted on drop.
pub struct Disks {
    files: Shared,
    // Must be dropped before the directory that it is mounted on.
    _mounted: BackgroundSession,
    folder: TempDir,
}

impl Disks {
    /// Mounts files with these contents.
    ///
    /// # Errors
    /// FUSE is not available here; tests that need it are then skipped.
    pub fn mount(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> io::Result<Self> {
        let content = |(name, bytes)| (name, Content { bytes, wrong: Wrong::Nothing });
        let files: Shared = Arc::new(Mutex::new(files.into_iter().map(content).collect()));
        let folder = tempfile::tempdir()?;
        let mut options = Config::default();
        options.n_threads = Some(THREADS);
        let mounted = fuser::spawn_mount(Served(files.clone()), folder.path(), &options)?;
        Ok(Self { files, _mounted: mounted, folder })
    }

    /// Returns the path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the names of all files.
    pub fn names(&self) -> Vec<String> {
        lock(&self.files).keys().cloned().collect()
    }

    /// Sets the fault of a file.
    pub fn make(&self, name: &str, wrong: Wrong) {
        if let Some(file) = lock(&self.files).get_mut(name) {
            file.wrong = wrong;
        }
    }

    /// Returns the content of a file.
    pub fn copy(&self, name: &str) -> Vec<u8> {
        lock(&self.files).get(name).map_or_else(Vec::new, |file| file.bytes.clone())
    }

    /// Restores an older content of a file.
    pub fn restore(&self, name: &str, copy: Vec<u8>) {
        if let Some(file) = lock(&self.files).get_mut(name) {
            file.bytes = copy;
        }
    }
}

fn lock(files: &Shared) -> MutexGuard<'_, BTreeMap<String, Content>> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file system. The number of a file is its position among the names, from 2 on.
struct Served(Shared);

impl Served {
    /// Accesses a file, with its delay if it is slow.
    fn with<R>(
        &self,
        number: INodeNo,
        act: impl FnOnce(&mut Content) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let at = usize::try_from(u64::from(number)).ok().and_then(|number| number.checked_sub(2));
        let at = at.ok_or(Errno::ENOENT)?;
        let wrong = || lock(&self.0).values().nth(at).map(|file| file.wrong);
        if let Some(Wrong::Slow(time)) = wrong() {
            thread::sleep(time);
        }
        while wrong() == Some(Wrong::Stalled) {
            thread::sleep(LOOK_EVERY);
        }
        act(lock(&self.0).values_mut().nth(at).ok_or(Errno::ENOENT)?)
    }

    fn attributes(&self, number: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match u64::from(number) {
            1 => (FileType::Directory, 0o755, 0),
            number => {
                let at = usize::try_from(number).ok()?.checked_sub(2)?;
                (FileType::RegularFile, 0o600, lock(&self.0).values().nth(at)?.bytes.len() as u64)
            }
        };
        Some(FileAttr {
            ino: number,
            size,
            blocks: size.div_ceil(512),
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            flags: 0,
            blksize: 4096,
        })
    }
}

impl Filesystem for Served {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let at = lock(&self.0).keys().position(|known| OsStr::new(known) == name);
        let number = at.filter(|_| parent == INodeNo::ROOT).map(|at| INodeNo(at as u64 + 2));
        match number.and_then(|number| self.attributes(number)) {
            Some(attributes) => reply.entry(&AT_ONCE, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(number) {
            Some(attributes) => reply.attr(&AT_ONCE, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = self.with(number, |file| {
            if file.wrong == Wrong::Unreadable {
                return Err(Errno::EIO);
            }
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(file.bytes.len());
            let to = from.saturating_add(size as usize).min(file.bytes.len());
            Ok(file.bytes[from..to].to_vec())
        });
        match read {
            Ok(bytes) => reply.data(&bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let written = self.with(number, |file| {
            let whole = match file.wrong {
                Wrong::Full => return Err(Errno::ENOSPC),
                Wrong::Unreadable => return Err(Errno::EIO),
                Wrong::Torn => &data[..data.len() / 2],
                Wrong::Nothing | Wrong::Slow(_) | Wrong::Stalled => data,
            };
            // Files keep their initial length.
            let from = usize::try_from(offset).unwrap_or(usize::MAX);
            let place = from.checked_add(whole.len()).and_then(|to| file.bytes.get_mut(from..to));
            place.ok_or(Errno::ENOSPC)?.copy_from_slice(whole);
            if whole.len() == data.len() { Ok(data.len() as u32) } else { Err(Errno::EIO) }
        });
        match written {
            Ok(count) => reply.written(count),
            Err(errno) => reply.error(errno),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }
}

/// The number of kinds of trouble, drawn at random.
const TROUBLES: u64 = 5;

/// A disk fault of one of the files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The file has this fault from now on.
    Is(Wrong),
    /// The file is restored as it was this long before.
    Back(Duration),
}

impl Trouble {
    /// Draws a fault.
    pub fn any(random: &mut Random) -> Self {
        match random.below(TROUBLES) {
            0 => Self::Is(Wrong::Full),
            1 => Self::Is(Wrong::Unreadable),
            2 => Self::Is(Wrong::Torn),
            3 => Self::Is(Wrong::Slow(Duration::from_millis(50 + random.below(2000)))),
            _ => Self::Back(Duration::from_millis(random.below(1000))),
        }
    }
}

impl Disks {
    /// Causes a fault of the file at this position among the names; returns a description. Only one
    /// at a time: of three files a majority is left.
    pub fn make_trouble(&self, place: u64, trouble: Trouble) -> String {
        let names = self.names();
        let name = &names[place as usize % names.len()];
        match trouble {
            Trouble::Is(wrong) => {
                self.make(name, wrong);
                format!("{name} is {wrong:?}")
            }
            Trouble::Back(time) => {
                let old = self.copy(name);
                thread::sleep(time);
                self.restore(name, old);
                format!("{name} comes back as it was")
            }
        }
    }

    /// Stalls all files.
    pub fn stall(&self) {
        self.names().iter().for_each(|name| self.make(name, Wrong::Stalled));
    }

    /// Removes the faults of all files.
    pub fn mend(&self) {
        self.names().iter().for_each(|name| self.make(name, Wrong::Nothing));
    }
}

/// Moves files of a cluster onto disks that can fail; returns the disks and the new paths.
///
/// # Errors
/// A file cannot be read, or FUSE is not available here.
pub fn moved(paths: &[PathBuf]) -> io::Result<(Disks, Vec<PathBuf>)> {
    let name =
        |path: &Path| path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let files = paths.iter().map(|path| Ok((name(path), std::fs::read(path)?)));
    let disks = Disks::mount(files.collect::<io::Result<Vec<_>>>()?)?;
    let places = paths.iter().map(|path| disks.path(&name(path))).collect();
    Ok((disks, places))
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::unix::fs::FileExt, time::Instant};

    use super::*;

    #[test]
    fn files_fail_as_configured() {
        let files = [("a".to_owned(), vec![1; 8192]), ("b".to_owned(), vec![2; 8192])];
        let disks = match Disks::mount(files) {
            Ok(disks) => disks,
            Err(why) => return eprintln!("skipped: no FUSE: {why}"),
        };
        let open = |name| File::options().read(true).write(true).open(disks.path(name)).unwrap();
        let (a, b) = (open("a"), open("b"));
        let read = |file: &File| {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, 4096).map(|()| bytes)
        };
        a.write_all_at(&[3; 4096], 4096).unwrap();
        assert_eq!((read(&a).unwrap(), read(&b).unwrap()), ([3; 4096], [2; 4096]));

        disks.make("a", Wrong::Full);
        assert_eq!(a.write_at(&[4; 4096], 4096).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(read(&a).unwrap(), [3; 4096]);
        disks.make("a", Wrong::Unreadable);
        assert!(read(&a).is_err() && read(&b).is_ok());

        disks.make("a", Wrong::Nothing);
        let before = disks.copy("a");
        disks.make("a", Wrong::Torn);
        assert!(a.write_at(&[5; 4096], 4096).is_err());
        disks.make("a", Wrong::Nothing);
        let torn = read(&a).unwrap();
        assert_eq!((torn[2047], torn[2048]), (5, 3));
        disks.restore("a", before);
        assert_eq!(read(&a).unwrap(), [3; 4096]);

        let slow = Duration::from_millis(20);
        disks.make("a", Wrong::Slow(slow));
        let start = Instant::now();
        read(&a).unwrap();
        assert!(start.elapsed() >= slow);
    }
}
