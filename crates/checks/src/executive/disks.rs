//! Files in memory, mounted by FUSE, that fail as disks do: full, unreadable, slow, stalled, torn,
//! restored from an older copy, or without what was not synced when the power was lost.
//!
//! Every read and write comes here, past all caches. All files are in one directory, in which
//! programs may create, rename and remove files; names are durable at once. Nothing is left behind:
//! dropping it unmounts the files, and the system does so when this process ends.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow,
    WriteFlags,
};
use plexus_sim::Random;
use rustix::fs::FallocateFlags;
use tempfile::TempDir;

/// The time for which the kernel may cache file attributes.
const AT_ONCE: Duration = Duration::ZERO;

/// The interval at which a stalled request checks for the end of the stall.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The threads that serve requests; a slow request occupies one of them.
const THREADS: usize = 32;

/// The bytes that a disk writes as a whole when the power is lost.
const SECTOR: usize = 512;

/// The blocks of 4 KiB that the file system reports as free.
const FREE: u64 = 1 << 20;

/// The fault of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Wrong {
    /// No fault.
    #[default]
    Nothing,
    /// Writes fail because the disk is full.
    Full,
    /// The disk is full: writes fail where the file has no space reserved.
    NoRoom,
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
    /// The bytes for which space is reserved behind the end.
    reserved: usize,
    /// The number of writes so far.
    writes: u64,
    /// The writes that no sync covers, if the files can lose power.
    unsynced: Vec<UnsyncedWrite>,
}

/// A write that a loss of power may undo.
struct UnsyncedWrite {
    number: u64,
    offset: usize,
    before: Vec<u8>,
    after: Vec<u8>,
}

/// All files, by number and by name.
#[derive(Default)]
struct Files {
    contents: BTreeMap<u64, Content>,
    names: BTreeMap<String, u64>,
    /// True if writes are remembered until they are synced.
    can_lose_power: bool,
    /// The fault of new files.
    wrong: Wrong,
}

impl Files {
    fn add(&mut self, name: String, bytes: Vec<u8>) -> u64 {
        // Number 1 is the directory. Removed files stay, for those who have them open.
        let number = self.contents.len() as u64 + 2;
        self.contents.insert(number, Content { bytes, wrong: self.wrong, ..Content::default() });
        self.names.insert(name, number);
        number
    }

    fn named(&mut self, name: &str) -> Option<&mut Content> {
        self.contents.get_mut(self.names.get(name)?)
    }
}

impl Content {
    fn write(&mut self, offset: usize, data: &[u8], is_remembered: bool) {
        let end = offset + data.len();
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let place = &mut self.bytes[offset..end];
        self.writes += 1;
        if is_remembered {
            let (before, after) = (place.to_vec(), data.to_vec());
            self.unsynced.push(UnsyncedWrite { number: self.writes, offset, before, after });
        }
        place.copy_from_slice(data);
    }

    /// Undoes the writes that were not synced, and does some of their sectors again.
    fn lose_power(&mut self, random: &mut Random) {
        let lost = std::mem::take(&mut self.unsynced);
        for UnsyncedWrite { offset, before, .. } in lost.iter().rev() {
            self.bytes[*offset..offset + before.len()].copy_from_slice(before);
        }
        // All are lost, or those from one on, or any.
        let (how, from) = (random.below(3), random.below(lost.len() as u64 + 1));
        for (index, UnsyncedWrite { offset, after, .. }) in (0..).zip(&lost) {
            let percent = match how {
                0 => 0,
                1 if index == from => 50,
                1 => u64::from(index < from) * 100,
                _ => *random.pick(&[0, 50, 100]),
            };
            for (sector, bytes) in after.chunks(SECTOR).enumerate() {
                if random.percent(percent) {
                    let at = offset + sector * SECTOR;
                    self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
                }
            }
        }
    }
}

type Shared = Arc<Mutex<Files>>;

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
        Self::mount_with(files, false)
    }

    /// As [`Disks::mount`]; `can_lose_power` allows [`Disks::lose_power`].
    ///
    /// # Errors
    /// As [`Disks::mount`].
    pub fn mount_with(
        files: impl IntoIterator<Item = (String, Vec<u8>)>,
        can_lose_power: bool,
    ) -> io::Result<Self> {
        let mut all = Files { can_lose_power, ..Files::default() };
        for (name, bytes) in files {
            all.add(name, bytes);
        }
        let files: Shared = Arc::new(Mutex::new(all));
        let folder = tempfile::tempdir()?;
        let mut options = Config::default();
        options.n_threads = Some(THREADS);
        let mounted = fuser::spawn_mount(Served(files.clone()), folder.path(), &options)?;
        Ok(Self { files, _mounted: mounted, folder })
    }

    /// Returns the directory of the files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of a file.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the names of all files.
    pub fn names(&self) -> Vec<String> {
        lock(&self.files).names.keys().cloned().collect()
    }

    /// Sets the fault of a file.
    ///
    /// # Panics
    /// There is no such file.
    pub fn make(&self, name: &str, wrong: Wrong) {
        lock(&self.files).named(name).expect("a mounted file").wrong = wrong;
    }

    /// Sets the fault of all files, also of those that are created later.
    pub fn make_all(&self, wrong: Wrong) {
        let mut files = lock(&self.files);
        files.wrong = wrong;
        files.contents.values_mut().for_each(|file| file.wrong = wrong);
    }

    /// Loses all or some of the sectors that were written and not synced. No program may have a
    /// file open.
    pub fn lose_power(&self, random: &mut Random) {
        lock(&self.files).contents.values_mut().for_each(|file| file.lose_power(random));
    }

    /// Returns the content of a file.
    pub fn copy(&self, name: &str) -> Vec<u8> {
        lock(&self.files).named(name).map_or_else(Vec::new, |file| file.bytes.clone())
    }

    /// Changes the content of a file as no program does.
    ///
    /// # Panics
    /// There is no such file.
    pub fn change<T>(&self, name: &str, change: impl FnOnce(&mut [u8]) -> T) -> T {
        change(&mut lock(&self.files).named(name).expect("a mounted file").bytes)
    }

    /// Restores an older content of a file.
    pub fn restore(&self, name: &str, copy: Vec<u8>) {
        if let Some(file) = lock(&self.files).named(name) {
            (file.bytes, file.unsynced) = (copy, Vec::new());
        }
    }
}

fn lock(files: &Shared) -> MutexGuard<'_, Files> {
    files.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The file system.
struct Served(Shared);

impl Served {
    /// Waits as long as an access to a file takes.
    fn wait(&self, number: INodeNo) {
        let wrong = || lock(&self.0).contents.get(&u64::from(number)).map(|file| file.wrong);
        if let Some(Wrong::Slow(time)) = wrong() {
            thread::sleep(time);
        }
        while wrong() == Some(Wrong::Stalled) {
            thread::sleep(LOOK_EVERY);
        }
    }

    /// Accesses a file, with its delay if it is slow.
    fn with<R>(
        &self,
        number: INodeNo,
        act: impl FnOnce(&mut Content, bool) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        self.wait(number);
        let mut files = lock(&self.0);
        let can_lose_power = files.can_lose_power;
        act(files.contents.get_mut(&u64::from(number)).ok_or(Errno::ENOENT)?, can_lose_power)
    }

    /// Makes the writes durable that had ended when this began.
    fn sync(&self, number: INodeNo) -> Result<(), Errno> {
        let writes = || lock(&self.0).contents.get(&u64::from(number)).map(|file| file.writes);
        let covered = writes().ok_or(Errno::ENOENT)?;
        self.with(number, |file, _| match file.wrong {
            Wrong::Unreadable => Err(Errno::EIO),
            _ => {
                file.unsynced.retain(|write| write.number > covered);
                Ok(())
            }
        })
    }

    fn attributes(&self, number: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size) = match u64::from(number) {
            1 => (FileType::Directory, 0o755, 0),
            number => {
                let length = lock(&self.0).contents.get(&number)?.bytes.len();
                (FileType::RegularFile, 0o600, length as u64)
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
        let number = name.to_str().and_then(|name| lock(&self.0).names.get(name).copied());
        let number = number.filter(|_| parent == INodeNo::ROOT).map(INodeNo);
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
        let read = self.with(number, |file, _| {
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
        let written = self.with(number, |file, can_lose_power| {
            let whole = match file.wrong {
                Wrong::Full => return Err(Errno::ENOSPC),
                Wrong::Unreadable => return Err(Errno::EIO),
                Wrong::Torn => &data[..data.len() / 2],
                _ => data,
            };
            let offset = usize::try_from(offset).map_err(|_| Errno::ENOSPC)?;
            let has_room = offset + whole.len() <= file.reserved.max(file.bytes.len());
            if file.wrong == Wrong::NoRoom && !has_room {
                return Err(Errno::ENOSPC);
            }
            file.write(offset, whole, can_lose_power);
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

    fn fsync(&self, _: &Request, number: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        answer(self.sync(number), reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn create(&self, _: &Request, _: INodeNo, name: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        let Some(name) = name.to_str() else { return reply.error(Errno::EINVAL) };
        let number = INodeNo(lock(&self.0).add(name.into(), Vec::new()));
        match self.attributes(number) {
            Some(attributes) => {
                let direct = FopenFlags::FOPEN_DIRECT_IO;
                reply.created(&AT_ONCE, &attributes, Generation(0), FileHandle(0), direct);
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = name.to_str().and_then(|name| lock(&self.0).names.remove(name));
        answer(removed.map(drop).ok_or(Errno::ENOENT), reply);
    }

    fn rename(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: INodeNo,
        new: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (Some(name), Some(new)) = (name.to_str(), new.to_str()) else {
            return reply.error(Errno::EINVAL);
        };
        let names = &mut lock(&self.0).names;
        let Some(number) = names.remove(name) else { return reply.error(Errno::ENOENT) };
        let other = names.insert(new.into(), number);
        if let Some(other) = other.filter(|_| flags.contains(RenameFlags::RENAME_EXCHANGE)) {
            names.insert(name.into(), other);
        }
        reply.ok();
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        let names = lock(&self.0).names.clone();
        for (index, (name, number)) in names.iter().enumerate().skip(from) {
            if reply.add(INodeNo(*number), index as u64 + 1, FileType::RegularFile, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let is_full = matches!(lock(&self.0).wrong, Wrong::Full | Wrong::NoRoom);
        let free = if is_full { 0 } else { FREE };
        reply.statfs(FREE, free, free, FREE, FREE, 4096, 255, 4096);
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let only_reserves = mode == FallocateFlags::KEEP_SIZE.bits() as i32;
        let reserved = self.with(number, |file, _| match (file.wrong, only_reserves) {
            (_, false) => Err(Errno::EOPNOTSUPP),
            (Wrong::Full | Wrong::NoRoom, _) => Err(Errno::ENOSPC),
            _ => {
                file.reserved = file.reserved.max((offset + length) as usize);
                Ok(())
            }
        });
        answer(reserved, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(size) = size.and_then(|size| usize::try_from(size).ok()) {
            let resized = self.with(number, |file, _| {
                // A shorter file forgets the writes behind its end.
                file.unsynced.retain(|write| write.offset + write.after.len() <= size);
                match file.bytes.is_empty() {
                    // New memory, which takes room where it is written.
                    true => file.bytes = vec![0; size],
                    false => file.bytes.resize(size, 0),
                }
                Ok(())
            });
            if let Err(errno) = resized {
                return reply.error(errno);
            }
        }
        match self.attributes(number) {
            Some(attributes) => reply.attr(&AT_ONCE, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }
}

fn answer(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(errno),
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
        self.make_all(Wrong::Stalled);
    }

    /// Removes the faults of all files.
    pub fn mend(&self) {
        self.make_all(Wrong::Nothing);
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

        disks.make_all(Wrong::NoRoom);
        a.write_all_at(&[6; 4096], 4096).unwrap();
        assert_eq!(a.write_at(&[6; 4096], 8192).unwrap_err().kind(), io::ErrorKind::StorageFull);
        disks.mend();

        let slow = Duration::from_millis(20);
        disks.make("a", Wrong::Slow(slow));
        let start = Instant::now();
        read(&a).unwrap();
        assert!(start.elapsed() >= slow);
    }
    #[test]
    fn a_loss_of_power_keeps_what_was_synced_and_any_sectors_of_the_rest() {
        let disks = match Disks::mount_with([("a".to_owned(), vec![1; 8192])], true) {
            Ok(disks) => disks,
            Err(why) => return eprintln!("skipped: no FUSE: {why}"),
        };
        let file = File::options().read(true).write(true).open(disks.path("a")).unwrap();
        let mut random = Random::new(1);
        let mut seen = [0; 3];
        for _ in 0..64 {
            file.write_all_at(&[2; 4096], 0).unwrap();
            file.sync_data().unwrap();
            file.write_all_at(&[3; 8192], 0).unwrap();
            disks.lose_power(&mut random);
            let bytes = disks.copy("a");
            assert!(bytes.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            let kept = bytes.iter().filter(|byte| **byte == 3).count();
            assert!(bytes[..4096].iter().all(|byte| matches!(byte, 2 | 3)) && kept.is_multiple_of(SECTOR));
            seen[if kept == 0 { 0 } else { 1 + usize::from(kept == bytes.len()) }] += 1;
            disks.restore("a", vec![1; 8192]);
        }
        assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    }
}
