//! Reads and writes of blocks: one suite for each way to read them.
#![allow(unsafe_code, reason = "frames are handed over as raw memory")]

use std::{
    fs::OpenOptions,
    os::{fd::AsFd, unix::fs::FileExt},
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{
    BlockIo, BlockIoSettings, BlockSize, Buffer, DiskError, DiskReads, FrameMemory, Group, GroupId,
    IoCompletion, Job, Op, Page, Shape, Version, Writer,
};
use rustix::event::{PollFd, PollFlags, poll};

const BLOCKS: u64 = 400;

/// A disk group, its I/O, and memory for reads, which is dropped after the I/O.
struct Disk {
    io: BlockIo,
    group: Arc<Group>,
    frames: Vec<Buffer>,
    _directory: tempfile::TempDir,
}

/// Runs a test with each way to read, on files that are opened directly and on others.
fn each(test: impl Fn(&mut Disk)) {
    // The target's file system permits direct I/O, that of temporary files may not.
    for place in [env!("CARGO_TARGET_TMPDIR").into(), std::env::temp_dir()] {
        for reads in DiskReads::ALL {
            let directory = tempfile::tempdir_in(&place).unwrap();
            let paths = [0, 1].map(|disk| directory.path().join(format!("disk{disk}")));
            let block_size = BlockSize::from_kib(8).unwrap();
            let shape = Shape { id: GroupId::random().unwrap(), block_size, blocks: BLOCKS };
            Group::create(&paths, &shape).unwrap();
            let group = Arc::new(Group::open(&paths, &shape).unwrap());
            let io = BlockIo::new(&group, BlockIoSettings { reads, threads: 2, syncs: true }).unwrap();
            assert!(io.reads().starts_with(reads.name()) || io.reads().contains("(io_uring: "));
            let frames = vec![Buffer::zeroed(8192); BLOCKS as usize];
            test(&mut Disk { io, group, frames, _directory: directory });
        }
    }
}

impl Disk {
    /// Queues a read of a block into the frame of the same number.
    fn read(&mut self, block: u64) {
        let frame = &mut self.frames[block as usize % BLOCKS as usize];
        // SAFETY: no test looks at a frame before its completion.
        let memory = unsafe { FrameMemory::new(NonNull::new(frame.as_mut_ptr()).unwrap(), frame.len()) };
        self.io.submit(Job { token: block ^ 77, block: BlockId(block), op: Op::Read(memory) });
    }

    fn write(&mut self, block: u64, version: u64) {
        let mut bytes = Buffer::zeroed(8192);
        let mut page = Page::of(&mut bytes[..]);
        page.user_mut().fill(block as u8);
        let writer = Writer { node: NodeId(1), incarnation: Incarnation(5) };
        page.stamp(BlockId(block), writer, Version(version));
        page.seal();
        self.io.submit(Job { token: block ^ 77, block: BlockId(block), op: Op::Write(bytes) });
    }

    /// Waits for so many jobs: sleeps on the event whenever nothing is pending.
    fn ended(&mut self, count: usize) -> Vec<IoCompletion> {
        let mut ended = Vec::new();
        let event = self.io.event().unwrap();
        while ended.len() < count {
            if !self.io.pending() {
                poll(&mut [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)], None).unwrap();
                rustix::io::read(&event, &mut [0; 8]).unwrap();
            }
            self.io.reap(&mut ended);
            self.io.begin();
        }
        ended.sort_by_key(|job| job.block);
        ended
    }

    fn one(&mut self) -> Result<Version, DiskError> {
        self.ended(1).pop().unwrap().result
    }
}

#[test]
fn blocks_are_read_as_they_were_written() {
    each(|disk| {
        disk.read(100);
        assert_eq!(disk.one().unwrap(), Version(0));
        disk.write(100, 1);
        let done = disk.ended(1).pop().unwrap();
        assert_eq!((done.token, done.block, done.result.unwrap()), (100 ^ 77, BlockId(100), Version(1)));
        assert!(done.written.is_some(), "the buffer comes back");
        disk.read(100);
        let done = disk.ended(1).pop().unwrap();
        assert_eq!((done.token, done.block, done.result.unwrap()), (100 ^ 77, BlockId(100), Version(1)));
        assert!(done.written.is_none());
        assert!(Page::of(&disk.frames[100][..]).user().iter().all(|byte| *byte == 100));
    });
}

#[test]
fn damaged_and_missing_blocks_are_named() {
    each(|disk| {
        disk.write(100, 1);
        disk.one().unwrap();
        let (path, offset) = disk.group.locate(BlockId(100)).unwrap();
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(&[8], offset + 5000).unwrap();
        disk.read(100);
        let error = disk.one().unwrap_err().to_string();
        assert!(error.contains(", byte ") && error.contains("block 100 is damaged: checksum"), "{error}");
        disk.read(BLOCKS);
        assert!(matches!(disk.one(), Err(DiskError::OutOfRange { .. })));
        let (path, offset) = disk.group.locate(BlockId(100)).unwrap();
        OpenOptions::new().write(true).open(path).unwrap().set_len(offset + 4096).unwrap();
        disk.read(100);
        assert!(matches!(disk.one(), Err(DiskError::Truncated { .. })));
    });
}

#[test]
fn more_jobs_are_queued_than_can_be_under_way() {
    each(|disk| {
        (0..BLOCKS).for_each(|block| disk.write(block, 1 + block));
        assert!(disk.ended(BLOCKS as usize).iter().all(|done| done.result.is_ok()));
        for _ in 0..3 {
            (0..BLOCKS).for_each(|block| disk.read(block));
            for done in disk.ended(BLOCKS as usize) {
                assert_eq!(done.result.unwrap(), Version(1 + done.block.0));
                assert_eq!(Page::of(&disk.frames[done.block.0 as usize][..]).user()[0], done.block.0 as u8);
            }
        }
        assert!(!disk.io.pending());
    });
}

/// The kernel may hand a read to helpers of the thread that submitted it, and cancels it when the
/// thread ends.
#[test]
fn reads_outlive_the_thread_that_began_them() {
    each(|disk| {
        for _ in 0..20 {
            let read = |disk: &mut Disk| {
                (0..100).for_each(|block| disk.read(block));
                disk.io.begin();
            };
            thread::scope(|scope| scope.spawn(|| read(disk)).join().unwrap());
            assert!(disk.ended(100).iter().all(|done| matches!(done.result, Ok(Version(0)))));
        }
    });
}

#[test]
fn dropping_it_waits_for_the_reads_under_way() {
    each(|disk| {
        (0..BLOCKS).for_each(|block| disk.write(block, 1));
        disk.ended(BLOCKS as usize);
        (0..BLOCKS).for_each(|block| disk.read(block));
        disk.io.begin();
        let (group, settings) =
            (disk.group.clone(), BlockIoSettings { reads: DiskReads::Threads, threads: 1, syncs: false });
        drop(std::mem::replace(&mut disk.io, BlockIo::new(&group, settings).unwrap()));
        // Nothing writes into the frames any more.
        let before = disk.frames.clone();
        thread::yield_now();
        assert!(before.iter().zip(&disk.frames).all(|(before, now)| before[..] == now[..]));
    });
}

#[test]
fn a_write_that_the_guard_forbids_is_refused() {
    each(|disk| {
        let may = Arc::new(AtomicBool::new(false));
        disk.group.guard(Box::new({
            let may = may.clone();
            move || may.load(Relaxed)
        }));
        disk.write(3, 1);
        assert!(matches!(disk.one(), Err(DiskError::NoMember { .. })));
        may.store(true, Relaxed);
        disk.write(3, 1);
        assert_eq!(disk.one().unwrap(), Version(1));
    });
}
