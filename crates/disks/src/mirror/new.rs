//! A new disk: what is at its path is looked at first, and nothing is overwritten unasked.
//!
//! [`DiskPlace::check`] changes nothing. So a command checks the places of all its disks, and then
//! creates them. A block device, or a file to replace, stays open in between and is opened by
//! nothing else.

use std::{
    fs, io,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    slice,
    time::{Duration, Instant},
};

use plexus_base::durable;
use rustix::fs::FallocateFlags;

use super::disk::{NewDisk, disk_bytes, write_label};
use crate::{
    Buffer, Device, DiskError, FileDevice, UNIT,
    group::{check_room, create_file, preallocate, read_label},
    label::Label,
};

/// The bytes that are zeroed at a time, between two looks at the clock.
const STEP: u64 = 64 * UNIT;

/// The time between two reports of progress.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// The marks of what is often on a block device: its name, and its magic bytes with their offset.
/// They only make the message clearer: any byte that is not zero counts.
const MARKS: [(&str, usize, &[u8]); 8] = [
    ("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 65_600, b"_BHRfS_M"),
    ("a swap area", 4086, b"SWAPSPACE2"),
    ("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
    ("a physical volume of LVM", 536, b"LVM2 001"),
    ("a member of a RAID (md)", 4096, b"\xfc\x4e\x2b\xa9"),
    ("a partition table or boot sector", 510, b"\x55\xaa"),
];

/// Gets the path of a disk and the percentage of it that is zeroed, every second.
pub type ZeroProgress<'a> = &'a dyn Fn(&Path, u64);

/// The place of a new disk, where it can be created.
pub struct DiskPlace {
    path: PathBuf,
    disk: NewDisk,
    found: Found,
}

/// The object at the path.
enum Found {
    Nothing,
    /// This disk, complete.
    ThisDisk,
    /// A file to replace.
    File(#[expect(dead_code, reason = "it keeps its lock")] FileDevice),
    /// A block device to overwrite.
    BlockDevice(FileDevice),
}

impl DiskPlace {
    /// Checks that a disk can be created at `path`, and changes nothing. With `force` it may
    /// overwrite what is there. A complete disk of this identifier stays as it is, so that an
    /// interrupted command can be repeated.
    ///
    /// # Errors
    /// Something else is there and `force` is false; it is in use; there is too little room; or the
    /// system refuses.
    pub fn check(path: &Path, disk: &NewDisk, force: bool) -> Result<Self, DiskError> {
        let found = look(path, disk, force)?;
        if matches!(found, Found::Nothing | Found::File(_)) {
            // The directory of the file may be made later.
            let directory = path.ancestors().skip(1).find(|directory| directory.is_dir());
            let file = directory.map(|directory| directory.join("disk"));
            file.map_or(Ok(()), |file| check_room(&[file], disk.length()))?;
        }
        Ok(Self { path: path.into(), disk: disk.clone(), found })
    }

    /// Returns the path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the disk: zeroed, labelled and durable.
    ///
    /// # Errors
    /// A file has appeared at the path, or the system refuses.
    pub fn create(self, progress: ZeroProgress<'_>) -> Result<(), DiskError> {
        let Self { path, disk, found } = self;
        match found {
            Found::ThisDisk => Ok(()),
            Found::BlockDevice(device) => overwrite(&device, &disk, progress),
            Found::Nothing if path.exists() => Err(DiskError::Exists { path }),
            Found::Nothing | Found::File(_) => make_file(&path, &disk),
        }
    }
}

/// Creates a disk at `path`, zeroed, labelled and durable, if nothing else is there.
///
/// # Errors
/// As [`DiskPlace::check`] and [`DiskPlace::create`].
pub fn create_disk(path: &Path, disk: &NewDisk) -> Result<(), DiskError> {
    DiskPlace::check(path, disk, false)?.create(&|_, _| ())
}

/// Removes a disk that [`DiskPlace::create`] made: the file, or the label of a block device.
///
/// # Errors
/// It is in use, or the system refuses.
pub fn discard_disk(path: &Path) -> Result<(), DiskError> {
    match is_block_device(path) {
        true => zero(&FileDevice::open_alone(path)?, 0..UNIT),
        false => fs::remove_file(path).map_err(DiskError::io("removing a disk", path)),
    }
}

/// Returns the number of chunks for which a block device has room; `None` if none is at `path`.
///
/// # Errors
/// It has no room for one chunk, or the system refuses.
pub fn slots_of_device(path: &Path, chunk_mib: u32) -> Result<Option<u32>, DiskError> {
    if !is_block_device(path) {
        return Ok(None);
    }
    let bytes = FileDevice::open(path)?.length();
    match most_slots(bytes, chunk_mib) {
        0 => Err(too_small(path, bytes, disk_bytes(1, chunk_mib), chunk_mib)),
        slots => Ok(Some(slots)),
    }
}

/// Returns the number of chunks for which the file or block device of a disk has room now.
pub(super) fn slots_of(device: &FileDevice, chunk_mib: u32) -> Result<u32, DiskError> {
    // The length may have changed since it was opened.
    Ok(most_slots(FileDevice::open(&device.path)?.length(), chunk_mib))
}

/// Gives a disk room for more chunks: zeroed, then named in the label, durably. If it ends in the
/// middle, the label says what was there before. A label that names more is left as it is.
pub(super) fn extend(device: &FileDevice, disk: &NewDisk) -> Result<(), DiskError> {
    let label = read_label(device)?;
    let old = NewDisk { slots: u32::try_from(label.blocks).unwrap_or(u32::MAX), ..disk.clone() };
    if old.slots >= disk.slots {
        return Ok(());
    }
    if old.slots_start() != disk.slots_start() {
        let most_mib = (old.slots_start() - UNIT) * 8;
        return Err(DiskError::NoBits { path: device.path.clone(), most_mib });
    }
    let new = old.length()..disk.length();
    match is_block_device(&device.path) {
        true if FileDevice::open(&device.path)?.length() < new.end => {
            let found = FileDevice::open(&device.path)?.length();
            return Err(too_small(&device.path, found, new.end, disk.chunk_mib));
        }
        true => new
            .clone()
            .step_by(STEP as usize)
            .try_for_each(|from| zero(device, from..new.end.min(from + STEP)))?,
        false => {
            check_room(slice::from_ref(&device.path), new.end - new.start)?;
            // An interrupted command or an operator has left what is behind it.
            let cut = device.file.set_len(new.start);
            let made = cut.and_then(|()| preallocate(&device.file, new));
            made.map_err(DiskError::io("giving a disk its length", &device.path))?;
        }
    }
    device.file.sync_all().map_err(DiskError::io("giving a disk its length", &device.path))?;
    write_label(device, &Label { blocks: disk.slots.into(), ..label })
}

fn most_slots(bytes: u64, chunk_mib: u32) -> u32 {
    let most = u32::try_from(bytes / UNIT / u64::from(chunk_mib)).unwrap_or(u32::MAX);
    // The label and the dirty bits are less than a chunk.
    if disk_bytes(most, chunk_mib) <= bytes { most } else { most.saturating_sub(1) }
}

fn is_block_device(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

fn too_small(path: &Path, found: u64, needed: u64, chunk_mib: u32) -> DiskError {
    DiskError::TooSmall {
        path: path.into(),
        found_mib: found / UNIT,
        needed_mib: needed.div_ceil(UNIT),
        most_mib: u64::from(most_slots(found, chunk_mib)) * u64::from(chunk_mib),
    }
}

fn look(path: &Path, disk: &NewDisk, force: bool) -> Result<Found, DiskError> {
    let occupied = |what: String| DiskError::Occupied { path: path.into(), what };
    let kind = match fs::metadata(path) {
        // Otherwise a mistyped device would become a file in memory.
        Err(error) if error.kind() == io::ErrorKind::NotFound && is_for_devices(path) => {
            return Err(DiskError::NoDevice { path: path.into() });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        found => found.map_err(DiskError::io("looking at a disk", path))?.file_type(),
    };
    if !kind.is_file() && !kind.is_block_device() {
        return Err(DiskError::NoDisk { path: path.into() });
    }
    let device = FileDevice::open_alone(path)?;
    let label = read_label(&device);
    if label.as_ref().is_ok_and(|label| disk.check(path, label).is_ok()) {
        return Ok(Found::ThisDisk);
    }
    if kind.is_block_device() && device.length() < disk.length() {
        return Err(too_small(path, device.length(), disk.length(), disk.chunk_mib));
    }
    let content = match label_content(label, disk)? {
        Some(content) => Some(content),
        None if kind.is_file() => Some("exists already".into()),
        None => device_content(&device)?,
    };
    match content.filter(|_| !force) {
        Some(what) => Err(occupied(what)),
        None if kind.is_file() => Ok(Found::File(device)),
        None => Ok(Found::BlockDevice(device)),
    }
}

/// Returns true for a path at which only the system makes files.
fn is_for_devices(path: &Path) -> bool {
    path.starts_with("/dev") && !path.starts_with("/dev/shm")
}

/// Describes the label of another disk; `None` if there is no label.
fn label_content(label: Result<Label, DiskError>, disk: &NewDisk) -> Result<Option<String>, DiskError> {
    match label {
        Ok(Label { group, id, .. }) if group == disk.group => {
            Ok(Some(format!("is another disk of this cluster already, {id:032x}")))
        }
        Ok(Label { group, .. }) => Ok(Some(format!("is a disk of another cluster, {group}"))),
        Err(DiskError::Older { found, .. }) => {
            Ok(Some(format!("is a disk of a cluster of an older version of plexus (format {found})")))
        }
        Err(DiskError::Label { .. }) => Ok(None),
        Err(why) => Err(why),
    }
}

/// Describes what is on a block device; `None` if its first and last MiB are zero. File systems,
/// partition tables and volumes have their marks there.
fn device_content(device: &FileDevice) -> Result<Option<String>, DiskError> {
    let mut bytes = Buffer::zeroed(UNIT as usize);
    device.read(0, &mut bytes)?;
    let mark = MARKS.iter().find(|(_, at, magic)| bytes[*at..].starts_with(magic));
    let mark = mark.map(|(name, ..)| format!("has {name}"));
    let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    let starts_zero = is_zero(&bytes);
    device.read(last_part(device), &mut bytes)?;
    let data = || "has data in its first or last MiB".to_owned();
    Ok(mark.or_else(|| (!starts_zero || !is_zero(&bytes)).then(data)))
}

/// Returns the offset of the last MiB of a device, in whole sectors.
fn last_part(device: &FileDevice) -> u64 {
    let last = device.length().saturating_sub(UNIT);
    last - last % crate::ALIGN as u64
}

/// Zeroes a block device and labels it.
fn overwrite(device: &FileDevice, disk: &NewDisk, progress: ZeroProgress<'_>) -> Result<(), DiskError> {
    // First what was found: a repeated command finds nothing more.
    zero(device, 0..UNIT)?;
    zero(device, last_part(device)..device.length())?;
    device.sync()?;
    let (length, mut reported) = (disk.length(), Instant::now());
    for from in (UNIT..length).step_by(STEP as usize) {
        zero(device, from..length.min(from + STEP))?;
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            progress(&device.path, from * 100 / length);
        }
    }
    device.sync()?;
    write_label(device, &disk.label())
}

/// Zeroes bytes of a block device, by the device itself where it can.
fn zero(device: &FileDevice, bytes: std::ops::Range<u64>) -> Result<(), DiskError> {
    // The system does for a block device what its call BLKZEROOUT does.
    let flags = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let zeroed = rustix::fs::fallocate(&device.file, flags, bytes.start, bytes.end - bytes.start);
    zeroed.map_err(|error| DiskError::io("writing zeros", &device.path)(error.into()))
}

/// Creates the file of a disk under another name, and then names it.
fn make_file(path: &Path, disk: &NewDisk) -> Result<(), DiskError> {
    let new = durable::beside(path);
    // What an interrupted command has left.
    let _ = fs::remove_file(&new);
    let made = create_file(&new).and_then(|file| {
        let failed = DiskError::io("giving a disk its length", path);
        preallocate(&file, 0..disk.length()).and_then(|()| file.sync_all()).map_err(failed)?;
        let device = FileDevice::open(&new)?;
        write_label(&device, &disk.label())?;
        durable::rename(&new, path).map_err(DiskError::io("naming a disk", path))
    });
    made.inspect_err(|_| {
        // The error that led here is the one to report.
        let _ = fs::remove_file(&new);
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use plexus_namespaces::LoopDevice;

    use super::*;
    use crate::{BlockSize, GroupId, mirror::ServedDisk};

    fn new_disk() -> NewDisk {
        let block_size = BlockSize::from_kib(8).unwrap();
        NewDisk { group: GroupId(7), id: 11, number: 2, block_size, chunk_mib: 64, slots: 2 }
    }

    fn refusal<T>(result: Result<T, DiskError>) -> String {
        result.err().map(|why| why.to_string()).expect("it is refused")
    }

    #[test]
    fn a_file_is_replaced_only_by_force_and_not_while_it_is_open() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        fs::write(&path, "a letter").unwrap();
        let why = refusal(create_disk(&path, &new_disk()));
        assert!(why.contains("disk: exists already") && why.contains("--force"), "{why}");
        DiskPlace::check(&path, &new_disk(), true).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"a letter", "a check changes nothing");
        DiskPlace::check(&path, &new_disk(), true).unwrap().create(&|_, _| ()).unwrap();
        let open = || ServedDisk::open(&path, &new_disk(), |_, _| ());
        let disk = open().unwrap();
        let linked = directory.path().join("link");
        symlink(&path, &linked).unwrap();
        assert!(refusal(ServedDisk::open(&linked, &new_disk(), |_, _| ())).contains("is in use"));
        let other = NewDisk { id: 12, ..new_disk() };
        assert!(refusal(DiskPlace::check(&path, &other, true)).contains("is in use"));
        drop(disk);
        assert!(refusal(create_disk(&path, &other)).contains("another disk of this cluster"));
        discard_disk(&path).unwrap();
        // Two names of one new file.
        symlink(directory.path(), directory.path().join("here")).unwrap();
        let [one, two] = [(&path, &new_disk()), (&directory.path().join("here/disk"), &other)]
            .map(|(path, disk)| DiskPlace::check(path, disk, true).unwrap());
        one.create(&|_, _| ()).unwrap();
        assert!(refusal(two.create(&|_, _| ())).contains("exists already"));
        open().unwrap();
        assert!(refusal(create_disk(directory.path(), &other)).contains("is neither a file nor"));
        assert!(refusal(create_disk(Path::new("/dev/no/such"), &other)).contains("no such device"));
    }

    #[test]
    fn a_block_device_is_zeroed_and_labelled_and_what_it_has_is_kept_without_force() {
        let directory = tempfile::tempdir().unwrap();
        for (name, sector_bytes) in [("512", 512), ("4096", 4096)] {
            let device = match LoopDevice::new(&directory.path().join(name), 200, sector_bytes) {
                Ok(device) => device,
                Err(why) => return eprintln!("skipped: {why}"),
            };
            check_device(device.path(), &directory.path().join(name));
        }
    }

    fn check_device(path: &Path, behind: &Path) {
        assert_eq!(slots_of_device(path, 64).unwrap(), Some(3));
        assert!(refusal(slots_of_device(path, 256)).contains("has 200 MiB, and 258 MiB are needed"));
        let large = NewDisk { slots: 4, ..new_disk() };
        assert!(refusal(create_disk(path, &large)).contains("size_mib of at most 192 for it"));
        let ends = |name| {
            let put = |at, bytes: &[u8]| {
                let mut block = Buffer::zeroed(crate::ALIGN);
                block[..bytes.len()].copy_from_slice(bytes);
                FileDevice::open(path).unwrap().write(at, &block).unwrap();
            };
            // Data where a slot will be, and at the end; then the mark itself.
            put(100 * UNIT, b"old");
            put(199 * UNIT + 4096, b"end");
            let why = refusal(create_disk(path, &new_disk()));
            assert!(why.contains("has data in its first or last MiB"), "{why}");
            put(0, name);
        };
        ends(b"XFSB");
        let why = refusal(create_disk(path, &new_disk()));
        assert!(why.contains("has an XFS file system; choose another path"), "{why}");
        let place = DiskPlace::check(path, &new_disk(), true).unwrap();
        assert!(refusal(DiskPlace::check(path, &new_disk(), true)).contains("is in use"));
        place.create(&|_, _| ()).unwrap();
        let bytes = fs::read(behind).unwrap();
        assert!(bytes[..8] == *b"PLEXDISK" && bytes[2 * UNIT as usize..].iter().all(|byte| *byte == 0));
        create_disk(path, &new_disk()).unwrap();
        let other = NewDisk { group: GroupId(8), ..new_disk() };
        assert!(refusal(create_disk(path, &other)).contains("is a disk of another cluster, 00000"));
        let disk = ServedDisk::open(path, &new_disk(), |_, _| ()).unwrap();
        assert!(refusal(DiskPlace::check(path, &other, true)).contains("is in use"));
        drop(disk);
        discard_disk(path).unwrap();
        create_disk(path, &other).unwrap();
    }
}
