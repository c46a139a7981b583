//! A disk group: blocks striped in units of 1 MiB over one or more files ("disks").
//!
//! Unit `u` of the group lies on disk `u % disks`, at byte `DATA_START + (u / disks) * UNIT`; a
//! block never crosses a unit. The first MiB of each disk holds its label, twice; the rest of it is
//! zero. Files have their full length from the start, so a write never finds the file system full.
//!
//! Guarantees: [`Group::create`] overwrites nothing and leaves nothing behind when it fails.
//! [`Group::open`] accepts exactly the configured disks, complete and in order. I/O is direct where
//! the file system allows it, so a node reads the latest write of any node.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use plexus_base::{
    BlockId,
    aligned::{ALIGN, Buffer},
    wire::{DecodeError, Fault},
};
use rustix::fs::FallocateFlags;

use crate::{
    Device, DiskError, FileDevice, GroupId, Page, Shape, Version,
    device::write_zeros,
    label::{COPIES, FORMAT, LABEL, Label},
    mirror::{BlockCopy, Mirror, MirrorBlocks, Scrubbed},
};

/// The bytes of a stripe unit.
pub const UNIT: u64 = 1 << 20;

/// The offset of the first unit on a disk; the label lies before it.
pub const DATA_START: u64 = UNIT;

/// An open disk group, shared by I/O threads: all I/O is positioned.
pub struct Group {
    shape: Shape,
    disks: Vec<FileDevice>,
    /// The disks of all nodes, with copies of each block; then `disks` is empty.
    mirror: Option<MirrorBlocks>,
    /// The check that allows writes; without one, writes are always allowed.
    guard: OnceLock<Guard>,
}

/// A disk with the openings that its label names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskOpening {
    /// The file.
    pub path: PathBuf,
    /// The random name of the disk.
    pub id: u128,
    /// The number of the last opening or closing of the group; 0: none yet.
    pub last: u64,
    /// The number of the one before.
    pub before: u64,
}

/// The name of a mirrored group in messages.
const MIRRORED: &str = "mirrored disk group";

/// A check before each write whether this node may write.
pub type Guard = Box<dyn Fn() -> bool + Send + Sync>;

impl Group {
    /// Makes the disks of a new group: files of their full length, zeroed, labelled, durable.
    ///
    /// # Errors
    /// A file exists, the room does not suffice, or the system refuses. Then no file of the group
    /// remains.
    pub fn create(paths: &[PathBuf], shape: &Shape) -> Result<(), DiskError> {
        assert!(!paths.is_empty() && shape.blocks > 0, "a group has disks and blocks");
        let length = disk_length(shape, paths.len());
        check_room(paths, length)?;
        let mut made = Vec::new();
        let result = paths
            .iter()
            .enumerate()
            .try_for_each(|(number, path)| create_disk(path, number, paths.len(), shape, length, &mut made));
        if result.is_err() {
            for path in made {
                // The error that led here is the one to report.
                let _ = std::fs::remove_file(path);
            }
        }
        result
    }

    /// Opens the disks at `paths`, in the order of the configuration, and checks each label against
    /// it.
    ///
    /// # Errors
    /// The error names the disk and what to do; nothing was changed.
    pub fn open(paths: &[PathBuf], shape: &Shape) -> Result<Self, DiskError> {
        let disks = paths
            .iter()
            .enumerate()
            .map(|(number, path)| {
                let disk = open_disk(path, number)?;
                check(&disk, &read_label(&disk)?, number, paths.len(), shape)?;
                Ok(disk)
            })
            .collect::<Result<_, DiskError>>()?;
        Ok(Self { shape: *shape, disks, mirror: None, guard: OnceLock::new() })
    }

    /// Makes the group over the disks of all nodes.
    #[must_use]
    pub fn mirrored(shape: &Shape, mirror: Arc<Mirror>) -> Self {
        let mirror = Some(MirrorBlocks::new(shape, mirror));
        Self { shape: *shape, disks: Vec::new(), mirror, guard: OnceLock::new() }
    }

    /// Returns the disks of all nodes, if the group is mirrored over them.
    #[must_use]
    pub fn mirror(&self) -> Option<&Arc<Mirror>> {
        self.mirror.as_ref().map(MirrorBlocks::mirror)
    }

    /// Returns the blocks with their copies on the disks of all nodes, if the group has such.
    pub(crate) fn mirrored_blocks(&self) -> Option<&MirrorBlocks> {
        self.mirror.as_ref()
    }

    /// Reads all copies of a mirrored group, compares them, and replaces bad ones. `progress` is
    /// told what was done so far, and returns false to end it. `None` in a group without copies.
    ///
    /// # Errors
    /// The node ends, or a sound copy cannot be written.
    pub fn scrub(&self, progress: &mut dyn FnMut(&Scrubbed) -> bool) -> Result<Option<Scrubbed>, DiskError> {
        self.mirror.as_ref().map(|mirror| mirror.scrub(progress)).transpose()
    }

    /// Installs `guard`, which must allow each later write. A file cannot refuse the write of an
    /// evicted node, so the node checks itself.
    ///
    /// # Panics
    /// If the group has a guard already.
    pub fn guard(&self, guard: Guard) {
        assert!(self.guard.set(guard).is_ok(), "a group has one guard");
    }

    /// Returns the shape of the group.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns the number of blocks, which every node knows. A mirrored group has whole chunks, and
    /// may grow.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks_of(|(bytes, _)| bytes)
    }

    /// Returns the number of blocks that other nodes may use already.
    #[must_use]
    pub fn known_blocks(&self) -> u64 {
        self.blocks_of(|(bytes, known)| bytes.max(known))
    }

    fn blocks_of(&self, bytes: impl Fn((u64, u64)) -> u64) -> u64 {
        let mirrored = self.mirror().map(|mirror| bytes(mirror.bytes()));
        self.shape.blocks.max(mirrored.unwrap_or(0) / self.shape.block_size.bytes() as u64)
    }

    /// Returns the disks that use the page cache because their file system refuses direct I/O.
    /// Nodes on one host still see each other's writes.
    pub fn buffered(&self) -> impl Iterator<Item = &Path> {
        self.disks.iter().filter(|disk| !disk.is_direct).map(|disk| disk.path.as_path())
    }

    /// Returns the disks that this node has open and that are at their paths no more: they were
    /// removed or replaced while they were open, and end with the last process that has them open.
    pub fn displaced(&self) -> Vec<PathBuf> {
        let opened = self.disks.iter().filter(|disk| !disk.is_in_place()).map(|disk| disk.path.clone());
        opened.chain(self.mirror().into_iter().flat_map(|mirror| mirror.displaced())).collect()
    }

    /// Reads a whole block, as it is on disk.
    ///
    /// # Errors
    /// The block is out of range, or the system failed to read it.
    ///
    /// # Panics
    /// If `into` is not one block long.
    pub fn read(&self, block: BlockId, into: &mut [u8]) -> Result<(), DiskError> {
        assert_eq!(into.len(), self.shape.block_size.bytes(), "a read is one block");
        match &self.mirror {
            Some(mirror) => mirror.read(self.checked(block)?, into),
            None => {
                let (disk, offset) = self.place(block)?;
                disk.read(offset, into)
            }
        }
    }

    /// Reads a block and verifies its page. In a mirrored group, a copy that is not sound is
    /// replaced from another one; the caller keeps writers away.
    ///
    /// # Errors
    /// As [`Group::read`], or no copy is sound.
    pub fn read_verified(&self, block: BlockId, into: &mut [u8]) -> Result<Version, DiskError> {
        match &self.mirror {
            Some(mirror) => mirror.read_verified(self.checked(block)?, into),
            None => {
                self.read(block, into)?;
                self.verify(block, into)
            }
        }
    }

    /// Reads all current copies of a block that may have been written in part, each with its disk.
    ///
    /// # Errors
    /// As [`Group::read`].
    pub fn read_in_doubt(&self, block: BlockId) -> Result<Vec<BlockCopy>, DiskError> {
        match &self.mirror {
            Some(mirror) => mirror.read_in_doubt(self.checked(block)?),
            None => {
                let mut bytes = Buffer::zeroed(self.shape.block_size.bytes());
                self.read(block, &mut bytes)?;
                Ok(vec![BlockCopy { disk: None, version: 0, bytes }])
            }
        }
    }

    /// Writes a block to those of its copies whose bytes differ. Returns false if the block has
    /// other copies by now: then they must be read again.
    ///
    /// # Errors
    /// As [`Group::write`].
    pub fn write_differing(
        &self,
        block: BlockId,
        from: &[u8],
        copies: &[BlockCopy],
    ) -> Result<bool, DiskError> {
        if let Some(mirror) = &self.mirror {
            self.check_guard()?;
            return mirror.write_differing(self.checked(block)?, from, copies);
        }
        if copies.iter().any(|copy| copy.bytes[..from.len()] != *from) {
            self.write(block, from)?;
        }
        Ok(true)
    }

    /// Returns the version of a block that was read, if its page is sound.
    pub(crate) fn verify(&self, block: BlockId, frame: &[u8]) -> Result<Version, DiskError> {
        Page::of(frame).verify(block).map_err(|page| match self.locate(block) {
            Ok((path, offset)) => DiskError::Page { path: path.into(), offset, page },
            Err(why) => why,
        })
    }

    /// Writes a whole block, as it is. It survives the end of this process at once, and a power cut
    /// only after [`Group::sync`].
    ///
    /// # Errors
    /// The block is out of range, the guard refuses the write, or the system failed to write it.
    /// After a system failure the content of the block is unknown.
    ///
    /// # Panics
    /// If `from` is not one block long.
    pub fn write(&self, block: BlockId, from: &[u8]) -> Result<(), DiskError> {
        self.write_all(&[(block, from)])
    }

    /// Writes whole blocks, as [`Group::write`]. In a mirrored group they are durable when this
    /// returns.
    ///
    /// # Errors
    /// As [`Group::write`]. Some of the blocks may be written.
    ///
    /// # Panics
    /// As [`Group::write`].
    pub fn write_all(&self, blocks: &[(BlockId, &[u8])]) -> Result<(), DiskError> {
        for (block, from) in blocks {
            self.checked(*block)?;
            assert_eq!(from.len(), self.shape.block_size.bytes(), "a write is one block");
        }
        if let Some(mirror) = &self.mirror {
            self.check_guard()?;
            return mirror.write(blocks);
        }
        blocks.iter().try_for_each(|(block, from)| {
            let (disk, offset) = self.place(*block)?;
            self.check_guard()?;
            disk.write(offset, from)
        })
    }

    fn check_guard(&self) -> Result<(), DiskError> {
        let path = || self.disks.first().map_or_else(|| MIRRORED.into(), |disk| disk.path.clone());
        if self.may_write() { Ok(()) } else { Err(DiskError::NoMember { path: path() }) }
    }

    /// Returns false if the guard forbids writes: the node may be no member any more.
    #[must_use]
    pub fn may_write(&self) -> bool {
        self.guard.get().is_none_or(|guard| guard())
    }

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// The system failed; then the writes since the last success are in doubt.
    pub fn sync(&self) -> Result<(), DiskError> {
        self.disks.iter().try_for_each(Device::sync)
    }

    /// Reads the labels again, and returns the openings that they name.
    ///
    /// # Errors
    /// A label cannot be read any more.
    pub fn openings(&self) -> Result<Vec<DiskOpening>, DiskError> {
        let opening = |disk: &FileDevice| {
            let Label { id, last, before, .. } = read_label(disk)?;
            Ok(DiskOpening { path: disk.path.clone(), id, last, before })
        };
        self.disks.iter().map(opening).collect()
    }

    /// Writes the openings of each disk into its label, one copy after the other, and syncs both.
    ///
    /// # Errors
    /// The guard refuses the write, or the system fails. Some labels may be written.
    pub fn note_openings(&self, openings: &[DiskOpening]) -> Result<(), DiskError> {
        for (disk, DiskOpening { last, before, .. }) in self.disks.iter().zip(openings) {
            let mut bytes = Buffer::zeroed(LABEL);
            let label = read_label(disk)?;
            // Another node may have written a later one meanwhile.
            if label.last > *last {
                continue;
            }
            Label { last: *last, before: *before, ..label }.encode(&mut bytes);
            for copy in 0..COPIES {
                if !self.may_write() {
                    return Err(DiskError::NoMember { path: disk.path.clone() });
                }
                disk.write((copy * LABEL) as u64, &bytes)?;
                disk.sync()?;
            }
        }
        Ok(())
    }

    /// Returns the file of a block and its offset there, for messages.
    ///
    /// # Errors
    /// The block is out of range.
    pub fn locate(&self, block: BlockId) -> Result<(&Path, u64), DiskError> {
        if self.mirror.is_some() {
            let byte = self.checked(block)?.0 * self.shape.block_size.bytes() as u64;
            return Ok((Path::new(MIRRORED), byte));
        }
        self.place(block).map(|(disk, offset)| (disk.path.as_path(), offset))
    }

    fn checked(&self, block: BlockId) -> Result<BlockId, DiskError> {
        match block.0 < self.known_blocks() {
            true => Ok(block),
            false => Err(DiskError::OutOfRange { block, blocks: self.known_blocks() }),
        }
    }

    pub(crate) fn place(&self, block: BlockId) -> Result<(&FileDevice, u64), DiskError> {
        self.checked(block)?;
        let byte = block.0 * self.shape.block_size.bytes() as u64;
        let (unit, within) = (byte / UNIT, byte % UNIT);
        let disks = self.disks.len() as u64;
        Ok((&self.disks[(unit % disks) as usize], DATA_START + unit / disks * UNIT + within))
    }
}

fn open_disk(path: &Path, number: usize) -> Result<FileDevice, DiskError> {
    FileDevice::open_raw(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => DiskError::Missing { path: path.into(), number },
        _ => DiskError::io("opening a disk", path)(source),
    })
}

/// Returns the first copy of the label that is sound.
pub(crate) fn read_label(disk: &FileDevice) -> Result<Label, DiskError> {
    let mut bytes = Buffer::zeroed(COPIES * LABEL);
    let mut filled = 0;
    while filled < bytes.len() {
        // Whole sectors or the end of the file: the next read stays aligned.
        match disk.file.read_at(&mut bytes[filled..], filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(source) => return Err(DiskError::io("reading a label", &disk.path)(source)),
        }
        if !filled.is_multiple_of(ALIGN) {
            break;
        }
    }
    let mut copies = bytes[..filled].chunks(LABEL).map(Label::decode);
    let first = copies.next().map(|first| first.or_else(|why| copies.find_map(Result::ok).ok_or(why)));
    let why = match first {
        Some(Ok(label)) => return Ok(label),
        Some(Err(DecodeError { fault: Fault::Magic, .. })) => "is not a Plexus disk".into(),
        Some(Err(DecodeError { fault: Fault::Version { found, .. }, .. })) if found < FORMAT => {
            return Err(DiskError::Older { path: disk.path.clone(), found, expected: FORMAT });
        }
        Some(Err(error)) => error.to_string(),
        None => "is empty".into(),
    };
    Err(DiskError::Label { path: disk.path.clone(), why })
}

/// Compares the label with the configuration, and the file with the label.
fn check(
    disk: &FileDevice,
    label: &Label,
    number: usize,
    disks: usize,
    shape: &Shape,
) -> Result<(), DiskError> {
    let path = || disk.path.clone();
    if label.group != shape.id || label.cluster != shape.id.0 {
        return Err(DiskError::Foreign { path: path(), found: label.group, expected: shape.id });
    }
    let facts = [
        ("disks", u64::from(label.disks), disks as u64),
        ("a block size in bytes of", u64::from(label.block_size), shape.block_size.bytes() as u64),
        ("a stripe unit in bytes of", u64::from(label.unit), UNIT),
        ("blocks", label.blocks, shape.blocks),
    ];
    for (what, found, expected) in facts {
        if found != expected {
            return Err(DiskError::Shape { path: path(), what, found, expected });
        }
    }
    if label.disk as usize != number {
        let (found, count) = (label.disk, label.disks);
        return Err(DiskError::Order { path: path(), found, expected: number, count });
    }
    let metadata = disk.file.metadata().map_err(DiskError::io("looking at a disk", &disk.path))?;
    let expected = disk_length(shape, disks);
    if metadata.is_file() && metadata.len() < expected {
        return Err(DiskError::Truncated { path: path(), found: metadata.len(), expected });
    }
    Ok(())
}

/// Returns the bytes of each disk of a group.
fn disk_length(shape: &Shape, disks: usize) -> u64 {
    let units = (shape.blocks * shape.block_size.bytes() as u64).div_ceil(UNIT);
    DATA_START + units.div_ceil(disks as u64) * UNIT
}

/// Checks that every file system has room for its disks.
pub(crate) fn check_room(paths: &[PathBuf], length: u64) -> Result<(), DiskError> {
    let mut wanted: BTreeMap<u64, (PathBuf, u64)> = BTreeMap::new();
    for path in paths {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_path_buf(),
            _ => PathBuf::from("."),
        };
        let metadata = std::fs::metadata(&directory)
            .map_err(DiskError::io("looking for the directory of a disk", &directory))?;
        wanted.entry(metadata.dev()).or_insert((directory, 0)).1 += length;
    }
    for (path, needed) in wanted.into_values() {
        let room = rustix::fs::statvfs(&path)
            .map_err(|error| DiskError::io("asking for free room", &path)(error.into()))?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if free < needed {
            return Err(DiskError::NoRoom { path, needed_mib: needed.div_ceil(UNIT), free_mib: free / UNIT });
        }
    }
    Ok(())
}

fn create_disk(
    path: &Path,
    number: usize,
    disks: usize,
    shape: &Shape,
    length: u64,
    made: &mut Vec<PathBuf>,
) -> Result<(), DiskError> {
    let file = create_file(path)?;
    made.push(path.into());
    preallocate(&file, 0..length).map_err(|source| match source.kind() {
        io::ErrorKind::StorageFull => {
            DiskError::NoRoom { path: path.into(), needed_mib: length.div_ceil(UNIT), free_mib: 0 }
        }
        _ => DiskError::io("giving a disk its length", path)(source),
    })?;
    let id = GroupId::random().map_err(DiskError::io("naming a disk", path))?.0;
    let label = Label {
        cluster: shape.id.0,
        group: shape.id,
        id,
        disk: number as u32,
        disks: disks as u32,
        block_size: shape.block_size.bytes() as u32,
        unit: UNIT as u32,
        blocks: shape.blocks,
        last: 0,
        before: 0,
    };
    let mut bytes = Buffer::zeroed(COPIES * LABEL);
    bytes.chunks_mut(LABEL).for_each(|copy| label.encode(copy));
    let written = file.write_all_at(&bytes, 0).and_then(|()| file.sync_all());
    written.map_err(DiskError::io("writing a label", path))
}

/// Creates an empty file that only its owner may read.
pub(crate) fn create_file(path: &Path) -> Result<File, DiskError> {
    let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    created.map_err(|source| match source.kind() {
        io::ErrorKind::AlreadyExists => DiskError::Exists { path: path.into() },
        _ => DiskError::io("making a disk", path)(source),
    })
}

/// Gives a file room for these bytes at its end: with one call where the file system can, else by
/// writing zeros.
pub(crate) fn preallocate(file: &File, bytes: Range<u64>) -> io::Result<()> {
    match rustix::fs::fallocate(file, FallocateFlags::empty(), bytes.start, bytes.end - bytes.start) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP) => write_zeros(file, bytes),
        Err(error) => Err(error.into()),
    }
}
