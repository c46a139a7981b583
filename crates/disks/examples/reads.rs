//! Measures random reads of blocks of a disk group: `reads FOLDER BLOCK_KIB SECONDS`. Prints the
//! reads in a second as JSON, by the way to read and the number of reads under way.
//!
//! docs/performance.md has the figures beside those of fio on the same file.

use std::{
    env,
    error::Error,
    os::fd::AsFd,
    path::Path,
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_base::BlockId;
use plexus_disks::{
    BlockIo, BlockIoSettings, BlockSize, Buffer, DiskReads, FrameMemory, Group, GroupId, Job, Op, Shape,
};
use rustix::event::{PollFd, PollFlags, poll};

/// The bytes of the group.
const BYTES: u64 = 64 << 20;

/// The threads of a worker of a node.
const THREADS: usize = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = env::args().collect();
    let [_, folder, kib, seconds] = &arguments[..] else {
        return Err("usage: reads FOLDER BLOCK_KIB SECONDS".into());
    };
    let block_size = BlockSize::from_kib(kib.parse()?).ok_or("no such block size")?;
    let blocks = BYTES / block_size.bytes() as u64;
    let shape = Shape { id: GroupId::random()?, block_size, blocks };
    let path = Path::new(folder).join(format!("blocks{kib}"));
    Group::create(std::slice::from_ref(&path), &shape)?;
    let group = Arc::new(Group::open(std::slice::from_ref(&path), &shape)?);
    // A file system answers reads of blocks that were never written without the disk.
    let zeros = Buffer::zeroed(block_size.bytes());
    (0..blocks).try_for_each(|block| group.write(BlockId(block), &zeros))?;
    group.sync()?;
    let mut rates = Vec::new();
    for reads in DiskReads::ALL {
        for depth in [1, 32] {
            let rate = measure(&group, reads, depth, Duration::from_secs_f64(seconds.parse()?))?;
            rates.push(format!("\"{reads} {depth}\":{rate:.0}"));
        }
    }
    println!("{{{}}}", rates.join(","));
    Ok(())
}

/// Keeps `depth` reads under way, and returns the reads in a second.
#[allow(unsafe_code, reason = "frames are handed over as raw memory")]
fn measure(group: &Arc<Group>, reads: DiskReads, depth: u64, time: Duration) -> Result<f64, Box<dyn Error>> {
    let length = group.shape().block_size.bytes();
    // Dropped after the I/O.
    let mut frames = vec![Buffer::zeroed(length); depth as usize];
    let mut io = BlockIo::new(group, BlockIoSettings { reads, threads: THREADS, syncs: false })?;
    if !io.reads().starts_with(reads.name()) {
        return Err(io.reads().into());
    }
    let event = io.event()?;
    let mut chance = BlockId(7);
    let mut submit = |io: &mut BlockIo, frame: u64| {
        chance = BlockId(chance.hash());
        let start = NonNull::from(&mut frames[frame as usize][..]).cast();
        // SAFETY: no other code looks at the frames, and each has one read.
        let memory = unsafe { FrameMemory::new(start, length) };
        let block = BlockId(chance.0 % group.shape().blocks);
        io.submit(Job { token: frame, block, op: Op::Read(memory) });
    };
    (0..depth).for_each(|frame| submit(&mut io, frame));
    let (begin, mut done, mut ended) = (Instant::now(), 0u64, Vec::new());
    while begin.elapsed() < time {
        if !io.pending() {
            poll(&mut [PollFd::from_borrowed_fd(event.as_fd(), PollFlags::IN)], None)?;
            rustix::io::read(&event, &mut [0; 8])?;
        }
        io.reap(&mut ended);
        done += ended.len() as u64;
        for job in ended.drain(..) {
            job.result?;
            submit(&mut io, job.token);
        }
        io.begin();
    }
    Ok(done as f64 / begin.elapsed().as_secs_f64())
}
