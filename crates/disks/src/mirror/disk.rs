//! A disk that this node serves: a file or block device, with a label and dirty bits in front of
//! the chunks. One thread executes the requests in the order in which they were taken.
//!
//! | byte | contents |
//! |---|---|
//! | 0 | the label, twice (`label.rs`), with 0 as the number of disks: the map of the group counts them |
//! | 1 MiB | a dirty bit for each unit of each slot |
//! | the next MiB behind them | the slots |
//!
//! A bit is durable before the write that it is about. It says that another copy of the unit does
//! not have that write. A bit that is set without need costs a copy of the unit, nothing else.

use std::{
    collections::{BTreeSet, VecDeque},
    path::Path,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
};

use bytes::Bytes;
use plexus_base::durable;

use super::{
    map::UNIT_BYTES,
    protocol::{DiskAnswer, DiskOp},
};
use crate::{
    BlockSize, Buffer, Device, DiskError, FileDevice, GroupId, UNIT,
    group::{create_file, preallocate, read_label},
    label::{COPIES, LABEL, Label},
};

/// The place of the dirty bits.
const BITS_START: u64 = UNIT;

/// The bytes that are written to change a bit.
const SECTOR: usize = 4096;

/// The most requests that one sync covers.
const BATCH: usize = 256;

/// A disk to create.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewDisk {
    /// The group of the disk.
    pub group: GroupId,
    /// The identifier of the disk.
    pub id: u128,
    /// The number of the disk: its position in the configuration.
    pub number: u8,
    /// The length of the blocks of the group.
    pub block_size: BlockSize,
    /// The length of a chunk in MiB.
    pub chunk_mib: u32,
    /// The number of chunks for which the disk has room.
    pub slots: u32,
}

impl NewDisk {
    fn label(&self) -> Label {
        Label {
            cluster: self.group.0,
            group: self.group,
            id: self.id,
            disk: u32::from(self.number),
            disks: 0,
            block_size: self.block_size.bytes() as u32,
            unit: self.chunk_mib << 20,
            blocks: u64::from(self.slots),
            last: 0,
            before: 0,
        }
    }

    /// Returns the place of the first slot.
    fn slots_start(&self) -> u64 {
        let bits = u64::from(self.slots) * u64::from(self.chunk_mib);
        BITS_START + bits.div_ceil(8).next_multiple_of(UNIT)
    }

    /// Returns the bytes of the whole disk.
    #[must_use]
    pub fn length(&self) -> u64 {
        self.slots_start() + u64::from(self.slots) * u64::from(self.chunk_mib) * UNIT
    }

    /// Compares a label with what is expected.
    fn check(&self, path: &Path, found: &Label) -> Result<(), DiskError> {
        let expected = self.label();
        if (found.group, found.cluster) != (expected.group, expected.cluster) {
            return Err(DiskError::Foreign {
                path: path.into(),
                found: found.group,
                expected: expected.group,
            });
        }
        if found.id != expected.id {
            let why = format!("is the disk {:032x} of the group, not {:032x}", found.id, expected.id);
            return Err(DiskError::Label { path: path.into(), why });
        }
        let facts = [
            ("a block size in bytes of", u64::from(found.block_size), u64::from(expected.block_size)),
            ("a chunk in bytes of", u64::from(found.unit), u64::from(expected.unit)),
            ("slots", found.blocks, expected.blocks),
            ("disks in its label", u64::from(found.disks), 0),
        ];
        match facts.into_iter().find(|(_, found, expected)| found != expected) {
            Some((what, found, expected)) => {
                Err(DiskError::Shape { path: path.into(), what, found, expected })
            }
            None => Ok(()),
        }
    }
}

/// Creates a disk at `path`, zeroed, labelled and durable. A complete disk of this identifier stays
/// as it is, so that an interrupted command can be repeated.
///
/// # Errors
/// The file exists and is not this disk, the room does not suffice, or the system refuses.
pub fn create_disk(path: &Path, disk: &NewDisk) -> Result<(), DiskError> {
    if path.exists() {
        let found = FileDevice::open(path).and_then(|device| read_label(&device));
        let is_this = found.is_ok_and(|label| disk.check(path, &label).is_ok());
        return if is_this { Ok(()) } else { Err(DiskError::Exists { path: path.into() }) };
    }
    let new = durable::beside(path);
    // What an interrupted command has left.
    let _ = std::fs::remove_file(&new);
    crate::group::check_room(&[path.to_owned()], disk.length())?;
    let made = create_file(&new).and_then(|file| {
        let failed = DiskError::io("giving a disk its length", path);
        preallocate(&file, disk.length()).and_then(|()| file.sync_all()).map_err(failed)?;
        let device = FileDevice::open(&new)?;
        write_label(&device, &disk.label())?;
        durable::rename(&new, path).map_err(DiskError::io("naming a disk", path))
    });
    made.inspect_err(|_| {
        // The error that led here is the one to report.
        let _ = std::fs::remove_file(&new);
    })
}

/// Writes both copies of a label, one after the other, each durably.
fn write_label(device: &FileDevice, label: &Label) -> Result<(), DiskError> {
    let mut bytes = Buffer::zeroed(LABEL);
    label.encode(&mut bytes);
    (0..COPIES).try_for_each(|copy| {
        device.write((copy * LABEL) as u64, &bytes)?;
        device.sync()
    })
}

/// A request that the disk is to execute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskJob {
    /// The number that the answer has.
    pub ticket: u64,
    /// The slot.
    pub slot: u32,
    /// The operation.
    pub op: DiskOp<Bytes>,
    /// The dirty bit of its unit is set first.
    pub notes: bool,
}

/// A disk that this node serves. Dropping it executes what was taken.
pub struct ServedDisk {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    device: FileDevice,
    disk: NewDisk,
    queue: Mutex<Queue>,
    work: Condvar,
    /// The dirty bits as they are on the disk.
    bits: Mutex<Vec<u8>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<DiskJob>,
    is_closed: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServedDisk {
    /// Opens a disk, checks its label, and starts its thread. That calls `answer` with the ticket
    /// of each request, in the order of the requests but that reads may be answered before writes.
    ///
    /// # Errors
    /// The file is not this disk, or the system refuses. The error names the disk.
    pub fn open(
        path: &Path,
        disk: &NewDisk,
        answer: impl Fn(u64, DiskAnswer<Bytes>) + Send + 'static,
    ) -> Result<Self, DiskError> {
        let device = FileDevice::open_raw(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => {
                DiskError::Missing { path: path.into(), number: usize::from(disk.number) }
            }
            _ => DiskError::io("opening a disk", path)(source),
        })?;
        disk.check(path, &read_label(&device)?)?;
        if device.length() < disk.length() {
            let (found, expected) = (device.length(), disk.length());
            return Err(DiskError::Truncated { path: path.into(), found, expected });
        }
        let mut bits = Buffer::zeroed((disk.slots_start() - BITS_START) as usize);
        device.read(BITS_START, &mut bits)?;
        let bits = Mutex::new(bits.to_vec());
        let (queue, work) = (Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { device, disk: disk.clone(), queue, work, bits });
        let executes = shared.clone();
        let thread = thread::Builder::new().name(format!("plexus-disk-{}", disk.number));
        let thread = thread.spawn(move || executes.execute_all(&answer));
        let thread = thread.map_err(DiskError::io("starting the thread of a disk", path))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Returns the numbers of the last two openings, the last one first.
    ///
    /// # Errors
    /// The label cannot be read.
    pub fn openings(&self) -> Result<[u64; 2], DiskError> {
        let Label { last, before, .. } = read_label(&self.shared.device)?;
        Ok([last, before])
    }

    /// Notes an opening in the label, durably, beside the one that the registry knows.
    ///
    /// # Errors
    /// The label cannot be read or written.
    pub fn note_opening(&self, opening: u64, known: u64) -> Result<(), DiskError> {
        let label = read_label(&self.shared.device)?;
        write_label(&self.shared.device, &Label { last: opening, before: known, ..label })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shared.device.path
    }

    /// Returns true if a sync has failed: then every later one fails until the disk is opened
    /// again.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.device.has_failed()
    }

    /// Executes a request behind all earlier ones.
    pub fn submit(&self, job: DiskJob) {
        lock(&self.shared.queue).jobs.push_back(job);
        self.shared.work.notify_one();
    }
}

impl Drop for ServedDisk {
    fn drop(&mut self) {
        lock(&self.shared.queue).is_closed = true;
        self.shared.work.notify_one();
        // A panic of the thread was reported when it happened.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

impl Shared {
    fn next_jobs(&self) -> Vec<DiskJob> {
        let is_idle = |queue: &mut Queue| queue.jobs.is_empty() && !queue.is_closed;
        let mut queue =
            self.work.wait_while(lock(&self.queue), is_idle).unwrap_or_else(PoisonError::into_inner);
        // A bit of a later write is set before the batch: it must not be cleared by an earlier
        // request.
        let cleans = |job: &DiskJob| matches!(job.op, DiskOp::Clean { .. });
        let first = queue.jobs.iter().take(BATCH).position(cleans);
        let count = first.map_or(queue.jobs.len().min(BATCH), |at| at + 1);
        queue.jobs.drain(..count).collect()
    }

    fn execute_all(&self, answer: &dyn Fn(u64, DiskAnswer<Bytes>)) {
        loop {
            let jobs = self.next_jobs();
            if jobs.is_empty() {
                return;
            }
            let failed = |why: DiskError| DiskAnswer::Failed(why.to_string());
            // The bits of all jobs first, with one sync: they are durable before any of the data.
            if let Err(why) = self.note(jobs.iter().filter(|job| job.notes)) {
                let why = failed(why);
                jobs.iter().for_each(|job| answer(job.ticket, why.clone()));
                continue;
            }
            // The answers that wait for the sync: writes, and reads that may have seen one.
            let mut waiting = Vec::new();
            for job in jobs {
                match self.execute(&job) {
                    Ok(None) => waiting.push((job.ticket, DiskAnswer::Done)),
                    Ok(Some(result)) if waiting.is_empty() => answer(job.ticket, result),
                    Ok(Some(result)) => waiting.push((job.ticket, result)),
                    Err(why) => answer(job.ticket, failed(why)),
                }
            }
            if waiting.is_empty() {
                continue;
            }
            let synced = self.device.sync().err().map(failed);
            for (ticket, result) in waiting {
                answer(ticket, synced.clone().unwrap_or(result));
            }
        }
    }

    /// Executes one request; `None` for a write, which a sync must follow.
    fn execute(&self, job: &DiskJob) -> Result<Option<DiskAnswer<Bytes>>, DiskError> {
        match &job.op {
            DiskOp::Write { offset, data } => {
                self.device.write(self.place(job.slot, *offset), data).map(|()| None)
            }
            DiskOp::Read { offset, length, .. } => {
                let mut bytes = Buffer::zeroed(*length as usize);
                let bytes = &mut bytes[..*length as usize];
                self.device.read(self.place(job.slot, *offset), bytes)?;
                Ok(Some(DiskAnswer::Read(Bytes::copy_from_slice(bytes))))
            }
            DiskOp::Dirty => {
                let bits = lock(&self.bits);
                let is_set = |unit: &u32| {
                    let bit = self.bit(job.slot, *unit);
                    bits[bit / 8] >> (bit % 8) & 1 == 1
                };
                Ok(Some(DiskAnswer::Dirty((0..self.disk.chunk_mib).filter(is_set).collect())))
            }
            DiskOp::Clean { unit } => {
                let bit = self.bit(job.slot, *unit);
                let mut bits = lock(&self.bits);
                bits[bit / 8] &= !(1 << (bit % 8));
                self.write_bits(&bits, bit / 8 / SECTOR).map(|()| None)
            }
        }
    }

    /// Sets the dirty bits of requests, durably.
    fn note<'a>(&self, jobs: impl Iterator<Item = &'a DiskJob>) -> Result<(), DiskError> {
        let mut bits = lock(&self.bits);
        let (mut sectors, mut set) = (BTreeSet::new(), Vec::new());
        for job in jobs {
            let (DiskOp::Write { offset, .. } | DiskOp::Read { offset, .. }) = &job.op else { continue };
            let bit = self.bit(job.slot, offset / UNIT_BYTES);
            if bits[bit / 8] >> (bit % 8) & 1 == 0 {
                bits[bit / 8] |= 1 << (bit % 8);
                sectors.insert(bit / 8 / SECTOR);
                set.push(bit);
            }
        }
        if sectors.is_empty() {
            return Ok(());
        }
        let written = sectors.into_iter().try_for_each(|sector| self.write_bits(&bits, sector));
        written.and_then(|()| self.device.sync()).inspect_err(|_| {
            // Those that are not durable are to be set again.
            set.iter().for_each(|bit| bits[bit / 8] &= !(1 << (bit % 8)));
        })
    }

    fn write_bits(&self, bits: &[u8], sector: usize) -> Result<(), DiskError> {
        let from = sector * SECTOR;
        self.device.write(BITS_START + from as u64, &bits[from..from + SECTOR])
    }

    fn bit(&self, slot: u32, unit: u32) -> usize {
        (u64::from(slot) * u64::from(self.disk.chunk_mib) + u64::from(unit)) as usize
    }

    fn place(&self, slot: u32, offset: u32) -> u64 {
        let chunk = u64::from(self.disk.chunk_mib) * UNIT;
        self.disk.slots_start() + u64::from(slot) * chunk + u64::from(offset)
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::mpsc};

    use super::*;

    fn new_disk() -> NewDisk {
        let block_size = BlockSize::from_kib(8).unwrap();
        NewDisk { group: GroupId(7), id: 11, number: 2, block_size, chunk_mib: 64, slots: 3 }
    }

    type Answers = mpsc::Receiver<(u64, DiskAnswer<Bytes>)>;

    fn open(path: &Path) -> (ServedDisk, Answers) {
        let (tell, told) = mpsc::channel();
        let answer = move |ticket, answer| tell.send((ticket, answer)).unwrap();
        (ServedDisk::open(path, &new_disk(), answer).unwrap(), told)
    }

    fn write(offset: u32, byte: u8) -> DiskOp<Bytes> {
        DiskOp::Write { offset, data: vec![byte; 8192].into() }
    }

    fn read(offset: u32, in_doubt: bool) -> DiskOp<Bytes> {
        DiskOp::Read { offset, length: 8192, in_doubt }
    }

    #[test]
    fn a_disk_executes_in_order_and_keeps_its_bits() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create_disk(&path, &new_disk()).unwrap();
        let run = |disk: &ServedDisk, told: &Answers, slot, op, notes| {
            disk.submit(DiskJob { ticket: 5, slot, op, notes });
            let (ticket, answer) = told.recv().unwrap();
            assert_eq!(ticket, 5);
            answer
        };
        let bytes = |byte| DiskAnswer::Read(vec![byte; 8192].into());
        let (disk, told) = open(&path);
        assert_eq!(run(&disk, &told, 2, read(0, false), false), bytes(0), "a new disk is zero");
        // A read behind writes of the same place sees the last one, also within one sync.
        for (ticket, op) in [write(0, 1), write(0, 2), read(0, false)].into_iter().enumerate() {
            disk.submit(DiskJob { ticket: ticket as u64, slot: 2, op, notes: false });
        }
        let mut answers: Vec<_> = (0..3).map(|_| told.recv().unwrap()).collect();
        answers.sort_by_key(|(ticket, _)| *ticket);
        assert_eq!(answers, [(0, DiskAnswer::Done), (1, DiskAnswer::Done), (2, bytes(2))]);
        // The last place of the last slot.
        let last = (64 << 20) - 8192;
        assert_eq!(run(&disk, &told, 2, write(last, 3), true), DiskAnswer::Done);
        assert_eq!(run(&disk, &told, 1, read(9 << 20, true), true), bytes(0));
        let is_dirty = |disk: &ServedDisk, told: &Answers, expected: [&[u32]; 3]| {
            for (slot, expected) in (0..).zip(expected) {
                let found = run(disk, told, slot, DiskOp::Dirty, false);
                assert_eq!(found, DiskAnswer::Dirty(expected.into()), "slot {slot}");
            }
        };
        is_dirty(&disk, &told, [&[], &[9], &[63]]);
        assert_eq!(disk.openings().unwrap(), [0, 0]);
        disk.note_opening(40, 0).unwrap();
        disk.note_opening(50, 40).unwrap();
        drop(disk);
        let (disk, told) = open(&path);
        assert_eq!(disk.openings().unwrap(), [50, 40]);
        is_dirty(&disk, &told, [&[], &[9], &[63]]);
        assert_eq!(run(&disk, &told, 2, DiskOp::Clean { unit: 63 }, false), DiskAnswer::Done);
        is_dirty(&disk, &told, [&[], &[9], &[]]);
        assert_eq!(run(&disk, &told, 2, read(last, false), false), bytes(3));
    }

    /// A unit that was copied is cleaned late, and a write of it was taken behind that.
    #[test]
    fn a_bit_of_a_later_write_in_one_batch_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create_disk(&path, &new_disk()).unwrap();
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let answer = move |ticket, answer| {
            tell.send((ticket, answer)).unwrap();
            if ticket == 0 {
                // The others are taken together.
                gone.recv().unwrap();
            }
        };
        let disk = ServedDisk::open(&path, &new_disk(), answer).unwrap();
        let submit = |ticket, op, notes| disk.submit(DiskJob { ticket, slot: 1, op, notes });
        submit(0, read(0, false), false);
        submit(1, DiskOp::Clean { unit: 9 }, false);
        submit(2, write(9 << 20, 1), true);
        submit(3, DiskOp::Dirty, false);
        go.send(()).unwrap();
        let dirty = told.iter().find(|(ticket, _)| *ticket == 3).unwrap();
        assert_eq!(dirty.1, DiskAnswer::Dirty(vec![9]));
    }

    #[test]
    fn another_disk_is_refused_and_nothing_is_changed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create_disk(&path, &new_disk()).unwrap();
        create_disk(&path, &new_disk()).unwrap();
        let refused = |disk: &NewDisk| {
            let open = ServedDisk::open(&path, disk, |_, _| ()).err().map(|why| why.to_string());
            let made = create_disk(&path, disk).err().map(|why| why.to_string());
            assert!(made.is_some_and(|why| why.contains("exists already")));
            open.unwrap_or_default()
        };
        let cases = [
            (NewDisk { group: GroupId(8), ..new_disk() }, "belongs to disk group"),
            (NewDisk { id: 12, ..new_disk() }, "is the disk 0000000000000000000000000000000b of the group"),
            (NewDisk { chunk_mib: 256, ..new_disk() }, "a chunk in bytes of 67108864"),
            (NewDisk { slots: 4, ..new_disk() }, "slots 3, the configuration says 4"),
        ];
        for (disk, expected) in cases {
            let why = refused(&disk);
            assert!(why.contains(expected) && why.contains("disk: "), "{why}");
        }
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(new_disk().length() - 1).unwrap();
        let open = || ServedDisk::open(&path, &new_disk(), |_, _| ()).err().map(|why| why.to_string());
        assert!(open().is_some_and(|why| why.contains("truncated")));
        let letter = b"a letter".repeat(1024);
        fs::write(&path, &letter).unwrap();
        assert!(open().is_some_and(|why| why.contains("is not a Plexus disk")));
        assert!(create_disk(&path, &new_disk()).is_err());
        assert_eq!(fs::read(&path).unwrap(), letter);
        fs::remove_file(&path).unwrap();
        assert!(open().is_some_and(|why| why.contains("is missing")));
    }
}
