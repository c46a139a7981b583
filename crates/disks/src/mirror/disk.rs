//! A disk that this node serves: a file or block device, with a label and dirty bits in front of
//! the chunks. One thread executes the requests in the order in which they were taken; other
//! threads execute reads that no pending write touches (`queue.rs`).
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
    collections::BTreeSet,
    path::{Path, PathBuf},
    slice,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
};

use bytes::Bytes;
use plexus_base::aligned::is_aligned;

use super::{
    buffers::{BufferPool, PooledBuffer},
    map::UNIT_BYTES,
    new::{extend, slots_of},
    protocol::{DiskAnswer, DiskOp},
    queue::{DiskJob, JobQueue, adjacent},
};
use crate::{
    BlockSize, Buffer, Device, DiskError, FileDevice, GroupId, UNIT,
    group::read_label,
    label::{COPIES, LABEL, Label},
};

/// The place of the dirty bits.
const BITS_START: u64 = UNIT;

/// The bytes that are written to change a bit.
const SECTOR: usize = 4096;

/// The threads that execute reads beside the queue: the reads that a disk has at once.
const READERS: usize = 8;

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
    pub(super) fn label(&self) -> Label {
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
    pub(super) fn slots_start(&self) -> u64 {
        slots_start(self.slots, self.chunk_mib)
    }

    /// Returns the bytes of the whole disk.
    #[must_use]
    pub fn length(&self) -> u64 {
        disk_bytes(self.slots, self.chunk_mib)
    }

    /// Compares a label with what is expected, except for the slots: the map counts them.
    pub(super) fn check(&self, path: &Path, found: &Label) -> Result<(), DiskError> {
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

/// Returns the place of the first slot of a disk.
fn slots_start(slots: u32, chunk_mib: u32) -> u64 {
    let bits = u64::from(slots) * u64::from(chunk_mib);
    BITS_START + bits.div_ceil(8).next_multiple_of(UNIT)
}

/// Returns the bytes of a disk with this many slots.
pub(super) fn disk_bytes(slots: u32, chunk_mib: u32) -> u64 {
    slots_start(slots, chunk_mib) + u64::from(slots) * u64::from(chunk_mib) * UNIT
}

/// Writes both copies of a label, one after the other, each durably.
pub(super) fn write_label(device: &FileDevice, label: &Label) -> Result<(), DiskError> {
    let mut bytes = Buffer::zeroed(LABEL);
    label.encode(&mut bytes);
    (0..COPIES).try_for_each(|copy| {
        device.write((copy * LABEL) as u64, &bytes)?;
        device.sync()
    })
}

/// A disk that this node serves. Dropping it executes what was taken.
pub struct ServedDisk {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The failures of a disk.
#[derive(Default)]
pub(super) struct DiskFailures {
    pub(super) reads: AtomicU64,
    pub(super) writes: AtomicU64,
    pub(super) syncs: AtomicU64,
}

impl DiskFailures {
    fn all(&self) -> [&AtomicU64; 3] {
        [&self.reads, &self.writes, &self.syncs]
    }

    /// Adds those of an earlier opening.
    pub(super) fn add(&self, earlier: &Self) {
        for (count, earlier) in self.all().into_iter().zip(earlier.all()) {
            count.fetch_add(earlier.load(Relaxed), Relaxed);
        }
    }
}

fn counted<T>(result: Result<T, DiskError>, failures: &AtomicU64) -> Result<T, DiskError> {
    result.inspect_err(|_| {
        failures.fetch_add(1, Relaxed);
    })
}

struct Shared {
    failures: Arc<DiskFailures>,
    device: FileDevice,
    disk: NewDisk,
    queue: JobQueue,
    buffers: BufferPool,
    /// The dirty bits as they are on the disk.
    bits: Mutex<Vec<u8>>,
    /// One thread has the disk grow, until it is closed.
    is_closed: Mutex<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ServedDisk {
    /// Opens a disk, checks its label, and starts its threads. They call `answer` with the ticket
    /// of each request: for writes, and for reads of what they write, in the order of the requests.
    ///
    /// # Errors
    /// The file is not this disk, it is open already, or the system refuses. The error names the
    /// disk.
    pub fn open(
        path: &Path,
        disk: &NewDisk,
        answer: impl Fn(u64, DiskAnswer<Bytes>) + Send + Sync + 'static,
    ) -> Result<Self, DiskError> {
        let device = FileDevice::open_alone(path).map_err(|why| match why {
            DiskError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                DiskError::Missing { path: path.into(), number: usize::from(disk.number) }
            }
            why => why,
        })?;
        let label = read_label(&device)?;
        disk.check(path, &label)?;
        let slots = u32::try_from(label.blocks).unwrap_or(u32::MAX).min(disk.slots);
        let (found, expected) = (device.length(), NewDisk { slots, ..disk.clone() }.length());
        if found < expected {
            return Err(DiskError::Truncated { path: path.into(), found, expected });
        }
        // An image, or the file of a new host, may be of a time before the disk has grown.
        extend(&device, disk)?;
        let mut bits = Buffer::zeroed((disk.slots_start() - BITS_START) as usize);
        device.read(BITS_START, &mut bits)?;
        let bits = Mutex::new(bits.to_vec());
        let (queue, disk, answer) = (JobQueue::default(), disk.clone(), Arc::new(answer));
        let failures = Arc::default();
        let shared = Arc::new(Shared {
            failures,
            device,
            disk,
            queue,
            buffers: BufferPool::default(),
            bits,
            is_closed: Mutex::default(),
        });
        let mut served = Self { shared: shared.clone(), threads: Vec::new() };
        for number in 0..=READERS {
            let (shared, answer) = (shared.clone(), answer.clone());
            let thread = thread::Builder::new().name(format!("plexus-disk-{}", shared.disk.number));
            let thread = thread.spawn(move || match number {
                0 => shared.execute_batches(&*answer),
                _ => shared.execute_reads(&*answer),
            });
            // Those that run end with `served`.
            served.threads.push(thread.map_err(DiskError::io("starting a thread of a disk", path))?);
        }
        Ok(served)
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

    pub(super) fn failures(&self) -> Arc<DiskFailures> {
        self.shared.failures.clone()
    }

    /// Returns the file, which stays open with it.
    #[must_use]
    pub fn file(&self) -> DiskFile {
        DiskFile(self.shared.clone())
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

    /// Executes a request behind all earlier ones of its place.
    pub fn submit(&self, job: DiskJob) {
        self.shared.queue.submit(job);
    }
}

/// The file of a disk that this node serves. Requests go on while it is looked at, and while it
/// grows: the slots stay where they are.
pub struct DiskFile(Arc<Shared>);

impl DiskFile {
    /// Returns the path if it does not lead to this disk any more.
    #[must_use]
    pub fn displaced(&self) -> Option<PathBuf> {
        let device = &self.0.device;
        (!device.is_in_place()).then(|| device.path.clone())
    }

    /// Returns the number of chunks for which the file or block device has room now.
    ///
    /// # Errors
    /// The system refuses.
    pub fn slots_of_file(&self) -> Result<u32, DiskError> {
        slots_of(&self.0.device, self.0.disk.chunk_mib)
    }

    /// Gives the disk room for so many chunks, durably. The map may have them then.
    ///
    /// # Errors
    /// There is too little room, the disk is closed, or the system refuses.
    pub fn grow(&self, slots: u32) -> Result<(), DiskError> {
        let is_closed = lock(&self.0.is_closed);
        if *is_closed {
            let why = std::io::Error::other("it is closed");
            return Err(DiskError::io("giving a disk its length", &self.0.device.path)(why));
        }
        extend(&self.0.device, &NewDisk { slots, ..self.0.disk.clone() })
    }
}

impl Drop for ServedDisk {
    fn drop(&mut self) {
        self.shared.queue.close();
        *lock(&self.shared.is_closed) = true;
        // A panic of a thread was reported when it happened.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}

/// The function that gets the answers.
type Answer<'a> = &'a dyn Fn(u64, DiskAnswer<Bytes>);

fn failed(why: DiskError) -> DiskAnswer<Bytes> {
    DiskAnswer::Failed(why.to_string())
}

impl Shared {
    fn execute_batches(&self, answer: Answer<'_>) {
        loop {
            let jobs = self.queue.next_batch();
            if jobs.is_empty() {
                return;
            }
            let answers = self.execute_batch(&jobs, answer);
            self.queue.batch_ended(&jobs);
            answers.into_iter().for_each(|(ticket, result)| answer(ticket, result));
        }
    }

    fn execute_reads(&self, answer: Answer<'_>) {
        while let Some(job) = self.queue.next_read() {
            let result = self.execute(slice::from_ref(&job));
            self.queue.read_ended(&job);
            answer(job.ticket, result.map_or_else(failed, |result| result.unwrap_or(DiskAnswer::Done)));
        }
    }

    /// Executes a batch with one sync. Returns the answers that had to wait for it: to writes, and
    /// to reads that may have seen one.
    fn execute_batch(&self, jobs: &[DiskJob], answer: Answer<'_>) -> Vec<(u64, DiskAnswer<Bytes>)> {
        // The bits of all jobs first, with one sync: they are durable before any of the data.
        if let Err(why) = self.note(jobs.iter().filter(|job| job.notes)) {
            let why = failed(why);
            return jobs.iter().map(|job| (job.ticket, why.clone())).collect();
        }
        let (mut waiting, mut rest) = (Vec::new(), jobs);
        while !rest.is_empty() {
            let (run, others) = rest.split_at(adjacent(rest));
            rest = others;
            match self.execute(run) {
                Ok(None) => waiting.extend(run.iter().map(|job| (job.ticket, DiskAnswer::Done))),
                Ok(Some(result)) if waiting.is_empty() => answer(run[0].ticket, result),
                Ok(Some(result)) => waiting.push((run[0].ticket, result)),
                Err(why) => {
                    let why = failed(why);
                    run.iter().for_each(|job| answer(job.ticket, why.clone()));
                }
            }
        }
        if !waiting.is_empty()
            && let Err(why) = self.sync()
        {
            let why = failed(why);
            waiting.iter_mut().for_each(|(_, result)| *result = why.clone());
        }
        waiting
    }

    /// Executes one request, or adjacent writes; `None` for writes, which a sync must follow.
    fn execute(&self, run: &[DiskJob]) -> Result<Option<DiskAnswer<Bytes>>, DiskError> {
        let DiskJob { slot, op, .. } = &run[0];
        match op {
            DiskOp::Write { offset, data } if run.len() == 1 && is_aligned(data) => {
                self.write(self.place(*slot, *offset), data).map(|()| None)
            }
            DiskOp::Write { offset, .. } => {
                let (bytes, length) = self.gathered(run);
                self.write(self.place(*slot, *offset), &bytes.buffer[..length]).map(|()| None)
            }
            DiskOp::Read { offset, length, .. } => {
                let length = *length as usize;
                let mut bytes = self.buffers.take(length);
                self.read(self.place(*slot, *offset), &mut bytes.buffer[..length])?;
                Ok(Some(DiskAnswer::Read(Bytes::from_owner(bytes).slice(..length))))
            }
            DiskOp::Dirty => {
                let bits = lock(&self.bits);
                let is_set = |unit: &u32| {
                    let bit = self.bit(*slot, *unit);
                    bits[bit / 8] >> (bit % 8) & 1 == 1
                };
                Ok(Some(DiskAnswer::Dirty((0..self.disk.chunk_mib).filter(is_set).collect())))
            }
            DiskOp::Clean { unit } => {
                let bit = self.bit(*slot, *unit);
                let mut bits = lock(&self.bits);
                bits[bit / 8] &= !(1 << (bit % 8));
                self.write_bits(&bits, bit / 8 / SECTOR).map(|()| None)
            }
        }
    }

    /// Returns the bytes of adjacent writes, for one I/O, and their number.
    fn gathered(&self, run: &[DiskJob]) -> (PooledBuffer, usize) {
        let data = || {
            run.iter().filter_map(|job| match &job.op {
                DiskOp::Write { data, .. } => Some(data),
                _ => None,
            })
        };
        let mut bytes = self.buffers.take(data().map(Bytes::len).sum());
        let mut length = 0;
        for data in data() {
            bytes.buffer[length..length + data.len()].copy_from_slice(data);
            length += data.len();
        }
        (bytes, length)
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
        written.and_then(|()| self.sync()).inspect_err(|_| {
            // Those that are not durable are to be set again.
            set.iter().for_each(|bit| bits[bit / 8] &= !(1 << (bit % 8)));
        })
    }

    fn write_bits(&self, bits: &[u8], sector: usize) -> Result<(), DiskError> {
        let from = sector * SECTOR;
        self.write(BITS_START + from as u64, &bits[from..from + SECTOR])
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), DiskError> {
        counted(self.device.write(at, bytes), &self.failures.writes)
    }

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), DiskError> {
        counted(self.device.read(at, into), &self.failures.reads)
    }

    fn sync(&self) -> Result<(), DiskError> {
        counted(self.device.sync(), &self.failures.syncs)
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

    use super::{super::create_disk, *};

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

    /// Opens a disk whose queue stands still until the sender is used: then the others are taken
    /// together.
    fn gated(path: &Path) -> (ServedDisk, Answers, mpsc::Sender<()>) {
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel();
        let gone = Mutex::new(gone);
        let answer = move |ticket, answer| {
            tell.send((ticket, answer)).unwrap();
            if ticket == 0 {
                lock(&gone).recv().unwrap();
            }
        };
        let disk = ServedDisk::open(path, &new_disk(), answer).unwrap();
        disk.submit(DiskJob { ticket: 0, slot: 0, op: DiskOp::Dirty, notes: false });
        told.recv().unwrap();
        (disk, told, go)
    }

    #[test]
    fn a_read_of_another_place_does_not_wait_for_a_sync() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create_disk(&path, &new_disk()).unwrap();
        let (disk, told, go) = gated(&path);
        let submit = |ticket, slot, op| disk.submit(DiskJob { ticket, slot, op, notes: false });
        submit(1, 1, write(8192, 1));
        // Beside the write, before and behind it, and in another slot.
        for (ticket, slot, offset) in [(2, 1, 0), (3, 1, 16384), (4, 2, 8192)] {
            submit(ticket, slot, read(offset, false));
            assert_eq!(told.recv().unwrap(), (ticket, DiskAnswer::Read(vec![0; 8192].into())));
        }
        go.send(()).unwrap();
        assert_eq!(told.recv().unwrap(), (1, DiskAnswer::Done));
    }

    #[test]
    fn a_read_of_the_same_place_sees_the_write_and_waits_for_its_sync() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create_disk(&path, &new_disk()).unwrap();
        let (disk, told, go) = gated(&path);
        let submit = |ticket, op| disk.submit(DiskJob { ticket, slot: 1, op, notes: false });
        submit(1, write(8192, 1));
        submit(2, DiskOp::Read { offset: 12288, length: 8192, in_doubt: false });
        submit(3, DiskOp::Read { offset: 12288, length: 8192, in_doubt: false });
        submit(4, write(16384, 2));
        go.send(()).unwrap();
        let seen = |second| DiskAnswer::Read([[1; 4096], [second; 4096]].concat().into());
        let expected = [(1, DiskAnswer::Done), (2, seen(0)), (3, seen(0)), (4, DiskAnswer::Done)];
        assert_eq!([(); 4].map(|()| told.recv().unwrap()), expected);
    }

    #[test]
    fn each_read_sees_the_writes_that_were_taken_before_it_and_no_later_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create_disk(&path, &new_disk()).unwrap();
        let (disk, told) = open(&path);
        let mut random = plexus_sim::Random::new(7);
        let (mut sectors, mut expected) = ([0; 12], Vec::new());
        for ticket in 0..3000 {
            let (first, count) = (random.below(8) as usize, 1 + random.below(4) as usize);
            let (offset, length) = (first as u32 * 4096, count as u32 * 4096);
            let bytes = |sectors: &[u8]| sectors.iter().flat_map(|byte| [*byte; 4096]).collect::<Bytes>();
            let range = first..first + count;
            let op = match random.below(3) {
                0 => {
                    sectors[range.clone()].fill(ticket as u8);
                    expected.push(DiskAnswer::Done);
                    DiskOp::Write { offset, data: bytes(&sectors[range]) }
                }
                _ => {
                    expected.push(DiskAnswer::Read(bytes(&sectors[range])));
                    DiskOp::Read { offset, length, in_doubt: false }
                }
            };
            disk.submit(DiskJob { ticket, slot: 1, op, notes: false });
        }
        // It executes what it has taken.
        drop(disk);
        let mut answers: Vec<_> = told.iter().collect();
        answers.sort_by_key(|(ticket, _)| *ticket);
        assert_eq!(answers.len(), expected.len());
        let differing = answers.iter().find(|(ticket, answer)| expected[*ticket as usize] != *answer);
        assert!(differing.is_none(), "{:?}", differing.map(|(ticket, _)| ticket));
    }

    /// A unit that was copied is cleaned late, and a write of it was taken behind that.
    #[test]
    fn a_bit_of_a_later_write_in_one_batch_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create_disk(&path, &new_disk()).unwrap();
        let (disk, told, go) = gated(&path);
        let submit = |ticket, op, notes| disk.submit(DiskJob { ticket, slot: 1, op, notes });
        submit(1, DiskOp::Clean { unit: 9 }, false);
        submit(2, write(9 << 20, 1), true);
        submit(3, DiskOp::Dirty, false);
        go.send(()).unwrap();
        let dirty = told.iter().find(|(ticket, _)| *ticket == 3).unwrap();
        assert_eq!(dirty.1, DiskAnswer::Dirty(vec![9]));
    }

    #[test]
    fn a_disk_grows_while_it_is_used_and_after_an_interruption() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disk");
        create_disk(&path, &new_disk()).unwrap();
        let (disk, told) = open(&path);
        let run = |disk: &ServedDisk, told: &Answers, slot, op| {
            disk.submit(DiskJob { ticket: 5, slot, op, notes: true });
            told.recv().unwrap().1
        };
        assert_eq!(run(&disk, &told, 2, write(0, 1)), DiskAnswer::Done);
        assert_eq!(disk.file().slots_of_file().unwrap(), 3);
        // An interrupted growth, and what an operator has put there.
        let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
        std::io::Write::write_all(&mut &file, &[7; 70 << 20]).unwrap();
        assert_eq!(disk.file().slots_of_file().unwrap(), 4);
        disk.file().grow(4).unwrap();
        let bytes = |byte| DiskAnswer::Read(vec![byte; 8192].into());
        assert_eq!(run(&disk, &told, 3, read(0, false)), bytes(0));
        assert_eq!(run(&disk, &told, 3, write(8192, 2)), DiskAnswer::Done);
        // A second one does no harm, and neither does one that would be smaller.
        disk.file().grow(4).unwrap();
        disk.file().grow(2).unwrap();
        let huge = disk.file().grow(200_000).unwrap_err().to_string();
        assert!(huge.contains("at most 8388608 MiB of chunks; add another disk"), "{huge}");
        let much = disk.file().grow(100_000).unwrap_err().to_string();
        assert!(much.contains("MiB free; make room"), "{much}");
        drop(disk);
        // The map has the old size still, or has a larger one than the image.
        for slots in [3, 4, 5] {
            let (tell, told) = mpsc::channel();
            let answer = move |ticket, answer| tell.send((ticket, answer)).unwrap();
            let disk = ServedDisk::open(&path, &NewDisk { slots, ..new_disk() }, answer).unwrap();
            assert_eq!(run(&disk, &told, 2, read(0, false)), bytes(1), "{slots}");
            assert_eq!(run(&disk, &told, 3, read(8192, false)), bytes(2), "{slots}");
        }
        assert_eq!(fs::metadata(&path).unwrap().len(), NewDisk { slots: 5, ..new_disk() }.length());
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
            assert!(made.is_some_and(|why| why.contains("disk of") && why.contains("--force")));
            open.unwrap_or_default()
        };
        let cases = [
            (NewDisk { group: GroupId(8), ..new_disk() }, "belongs to disk group"),
            (NewDisk { id: 12, ..new_disk() }, "is the disk 0000000000000000000000000000000b of the group"),
            (NewDisk { chunk_mib: 256, ..new_disk() }, "a chunk in bytes of 67108864"),
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
