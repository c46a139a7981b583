//! A file that is replaced again and again, also while its disk is full.
//!
//! The new content is written to a second file beside it, with `.new` appended to its name. Then
//! the two exchange their names. The old file stays as the next second file, with room for a larger
//! content. So a replacement takes no space from the disk unless the content has grown by more than
//! the reserve.
//!
//! After a crash the file at the path is the old or the new one, whole: a second file is only
//! written when the names are known to be durable. A symbolic link in its place is not followed.
//!
//! On a file system that cannot exchange names or reserve space, or that writes every change to a
//! new place (Btrfs), a replacement still fails on a full disk. The old file is there then.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{CWD, FallocateFlags, OFlags, RenameFlags, fallocate, renameat_with},
    io::Errno,
};

use crate::durable::{beside, make, sync_name};

/// A file with a second file for its next content; see the [module](self).
#[derive(Debug)]
pub struct ReservedFile {
    path: PathBuf,
    /// The bytes by which the content may grow without new space.
    reserve: u64,
    /// The length of the last written content.
    len: u64,
    /// The second file, from its writing until the exchange.
    new: Option<File>,
    /// True if the names of both files are durable.
    is_settled: bool,
}

impl ReservedFile {
    /// Describes the file at `path`, whose content may grow by `reserve` bytes without new space.
    /// Touches no file.
    #[must_use]
    pub fn new(path: PathBuf, reserve: u64) -> Self {
        Self { path, reserve, len: 0, new: None, is_settled: false }
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the content, durably, and reserves space for the next one if there is any.
    ///
    /// # Errors
    /// Returns the I/O error; a whole file is still there, normally the old one.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes)?;
        self.sync()?;
        self.exchange()?;
        self.sync_name()?;
        // Without space the next replacement may fail; this one has succeeded.
        let _ = self.reserve();
        Ok(())
    }

    /// Writes the new content to the second file.
    ///
    /// # Errors
    /// Returns the I/O error.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        (self.new, self.len) = (None, bytes.len() as u64);
        let file = self.second()?;
        file.write_all_at(bytes, 0)?;
        if file.metadata()?.len() > self.len {
            file.set_len(self.len)?;
        }
        self.new = Some(file);
        Ok(())
    }

    /// Makes the second file durable.
    ///
    /// # Errors
    /// Returns the I/O error, or that nothing was written.
    pub fn sync(&self) -> io::Result<()> {
        self.new.as_ref().ok_or_else(|| io::Error::other("there is no new file"))?.sync_all()
    }

    /// Puts the second file in the place of the file.
    ///
    /// # Errors
    /// Returns the I/O error; the file may have been replaced all the same.
    pub fn exchange(&mut self) -> io::Result<()> {
        (self.new, self.is_settled) = (None, false);
        let new = beside(&self.path);
        match renameat_with(CWD, &new, CWD, &self.path, RenameFlags::EXCHANGE) {
            // There is no old file, or the file system cannot exchange names.
            Err(Errno::NOENT | Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                fs::rename(&new, &self.path)
            }
            done => Ok(done?),
        }
    }

    /// Makes the exchange durable.
    ///
    /// # Errors
    /// Returns the I/O error.
    pub fn sync_name(&mut self) -> io::Result<()> {
        sync_name(&self.path)?;
        self.is_settled = true;
        Ok(())
    }

    /// Reserves space for a content that follows the present one.
    ///
    /// # Errors
    /// The disk has no space, or the system refuses.
    pub fn reserve(&mut self) -> io::Result<()> {
        // An earlier process has written the present content if this one has written none.
        let len = fs::metadata(&self.path).map_or(0, |meta| meta.len()).max(self.len);
        match fallocate(self.second()?, FallocateFlags::KEEP_SIZE, 0, len + self.reserve) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Opens the second file, or creates it. One that may be the durable file at the path is not
    /// written again.
    fn second(&mut self) -> io::Result<File> {
        let new = beside(&self.path);
        self.is_settled = self.is_settled || sync_name(&self.path).is_ok();
        let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
        let open = || {
            let file = OpenOptions::new().write(true).custom_flags(flags).open(&new).ok()?;
            let meta = file.metadata().ok()?;
            (meta.is_file() && meta.nlink() == 1 && meta.mode() & 0o077 == 0).then_some(file)
        };
        match self.is_settled.then(open).flatten() {
            Some(file) => Ok(file),
            None => make(&new),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn inodes(path: &Path) -> [u64; 2] {
        [path, &beside(path)].map(|path| fs::symlink_metadata(path).unwrap().ino())
    }

    #[test]
    fn the_two_files_exchange_their_names_and_keep_their_room() {
        const RESERVE: u64 = 64 << 10;
        let directory = tempfile::tempdir().unwrap();
        let mut file = ReservedFile::new(directory.path().join("a"), RESERVE);
        file.put(b"the first").unwrap();
        let [one, two] = inodes(file.path());
        for (content, inodes_after) in [(&b"the second"[..], [two, one]), (b"3", [one, two])] {
            file.put(content).unwrap();
            assert_eq!(fs::read(file.path()).unwrap(), content);
            assert_eq!(inodes(file.path()), inodes_after);
            let room = fs::metadata(beside(file.path())).unwrap().blocks() * 512;
            assert!(room >= RESERVE, "{room}");
        }
    }

    #[test]
    fn the_content_of_an_earlier_process_counts_when_space_is_reserved() {
        const RESERVE: u64 = 64 << 10;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        ReservedFile::new(path.clone(), RESERVE).put(&vec![7; 256 << 10]).unwrap();
        // As a put on a full disk leaves it: without space for a content like this one.
        fs::remove_file(beside(&path)).unwrap();
        ReservedFile::new(path.clone(), RESERVE).reserve().unwrap();
        let room = fs::metadata(beside(&path)).unwrap().blocks() * 512;
        assert!(room >= (256 << 10) + RESERVE, "{room}");
    }

    #[test]
    fn no_other_file_is_written_in_place_of_the_second() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("a"), directory.path().join("other"));
        fs::write(&other, "other").unwrap();
        let links: [fn(&Path, &Path) -> io::Result<()>; 2] =
            [|from, to| symlink(from, to), |from, to| fs::hard_link(from, to)];
        for link in links {
            let _ = fs::remove_file(beside(&path));
            link(&other, &beside(&path)).unwrap();
            ReservedFile::new(path.clone(), 4096).put(b"one").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"one");
            assert_eq!(fs::read(&other).unwrap(), b"other");
        }
    }
}
