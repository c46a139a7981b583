//! A stream as its threads see it: progress without waiting, and reading while it is written.

use std::{
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{Device, DeviceFault, DiskError, Extent, Extents, FileDevice, SimulatedDevice, Version};
use plexus_redo::stream::{
    driver::{RedoProgress, RedoStream, create},
    protocol::{Geometry, Group, Lsn, PAGE, Record, StreamHeader},
    reader::StreamReader,
};
use plexus_sim::Random;

const NODE: NodeId = NodeId(1);

/// The longest wait for something that must happen.
const LIMIT: Duration = Duration::from_secs(60);

fn group(number: u64) -> Group {
    let mut group = Group::default();
    group.push(&Record::change(BlockId(1), Version(number), Version(number + 1), &[7; 500]));
    group
}

#[test]
fn clients_hear_of_progress_and_of_a_failure_without_waiting() {
    let geometry = Geometry::new(8 * PAGE, 2).expect("segments");
    let device = Arc::new(SimulatedDevice::new(geometry.length()));
    device.write(0, &StreamHeader::new(5, NODE, geometry).encode()).expect("written");
    let tail = StreamReader::open(&*device).and_then(StreamReader::scan).expect("a stream").tail;
    let (told, progress) = mpsc::channel();
    let told = move |step| told.send(step).expect("the test listens");
    let stream = RedoStream::open(Arc::<SimulatedDevice>::clone(&device), tail, Incarnation(1), told);
    let stream = stream.expect("it opens");
    let next = || progress.recv_timeout(LIMIT).expect("progress");
    let (before, begin) = (stream.fill(), stream.end());
    assert_eq!(stream.durable(), begin);
    let appended = stream.try_append(&group(1)).expect("room");
    assert!(stream.end() > begin && stream.fill().free < before.free);
    assert_eq!(stream.fill().used - before.used, before.free - stream.fill().free);
    // Until it is durable its record can travel with the block.
    let carried = |limit| stream.carry(BlockId(1), limit).map(|group| group.into_bytes().len());
    assert_eq!((carried(532), carried(531)), (Some(532), None));
    assert!(stream.carry(BlockId(2), 0).is_some_and(|group| group.is_empty()));
    stream.want(appended.end);
    assert!(matches!(next(), RedoProgress::Durable(lsn) if lsn >= appended.end));
    assert!(stream.durable() >= appended.end);
    assert_eq!(carried(0), Some(0));
    // Fill it: a group is refused, and the checkpoint makes room.
    let refused = (2..).find(|number| stream.try_append(&group(*number)).is_err());
    stream.want(Lsn(u64::MAX));
    while stream.durable() < stream.end() {
        assert!(matches!(next(), RedoProgress::Durable(_)));
    }
    let full = stream.fill().used;
    stream.checkpoint(stream.durable());
    while !matches!(next(), RedoProgress::Room) {}
    assert!(stream.fill().used < full);
    device.fail_next(DeviceFault::SyncFails);
    stream.want(stream.try_append(&group(refused.expect("it fills"))).expect("room").end);
    let failed = loop {
        if let RedoProgress::Failed(why) = next() {
            break why.to_string();
        }
    };
    assert!(failed.starts_with("redo stream of node 1 has failed: simulated device"), "{failed}");
}

/// Batches cross the ends of extents, and a sync reaches each device.
#[test]
fn a_stream_over_several_extents_is_found_after_a_loss_of_power() {
    let geometry = Geometry::new(8 * PAGE, 2).expect("segments");
    let devices = [(); 2].map(|()| Arc::new(SimulatedDevice::new(geometry.length())));
    let mut random = Random::new(5);
    let (mut begin, mut extents) = (0, Vec::new());
    while begin < geometry.length() {
        let (offset, length) = (begin, random.between(100, 3 * PAGE).min(geometry.length() - begin));
        extents.push(Extent { device: devices[extents.len() % 2].clone(), offset, length });
        begin += length;
    }
    assert!(extents.len() > 4);
    let device = || Extents::new(Path::new("extents"), extents.clone());
    device().write(0, &StreamHeader::new(5, NODE, geometry).encode()).expect("written");
    let scan = |device: &Extents| StreamReader::open(device).and_then(StreamReader::scan);
    let tail = scan(&device()).expect("a stream").tail;
    let stream = RedoStream::open(Arc::new(device()), tail, Incarnation(1), drop).expect("it opens");
    let mut last = stream.end();
    // More than the stream has room for, so that it begins again.
    for number in 0..300 {
        last = stream.append(&group(number)).expect("a group").end;
        if number % 7 == 0 {
            stream.wait_durable(last).expect("durable");
            stream.checkpoint(last);
        }
    }
    stream.wait_durable(last).expect("durable");
    drop(stream);
    devices.iter().for_each(|device| device.lose_power(|sectors| vec![false; sectors]));
    let found = scan(&device()).expect("a stream");
    assert!(found.damage.is_none() && found.tail.end >= last, "{:?} {last:?}", found.tail.end);
    assert_eq!(found.highest.get(&BlockId(1)), Some(&Version(300)));
}

#[test]
fn a_running_stream_is_read_up_to_what_was_durable_when_the_reading_began() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("redo");
    create(&path, 5, NODE, Geometry::new(64 * PAGE, 3).expect("segments")).expect("a stream");
    let device = FileDevice::open(&path).expect("a device");
    let tail = StreamReader::open(&device).and_then(StreamReader::scan).expect("a stream").tail;
    let stream = RedoStream::open(Arc::new(device), tail, Incarnation(1), drop).expect("it opens");
    let (durable, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut most_checkpoints = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                let appended = stream.append(&group(number)).expect("a group");
                stream.wait_durable(appended.end).expect("durable");
                durable.store(number + 1, SeqCst);
                if number % 40 == 0 {
                    stream.checkpoint(appended.start);
                }
                if is_over.load(SeqCst) {
                    break;
                }
            }
        });
        for _ in 0..300 {
            let before = durable.load(SeqCst);
            let device = FileDevice::open(&path).expect("a device");
            let mut reader = StreamReader::open(&device).expect("a stream").of_running();
            let mut checkpoint = reader.header().checkpoint;
            let mut last: Option<(Lsn, u64)> = None;
            while let Some(batch) = reader.next_batch().expect("no damage") {
                for (lsn, record, _) in batch.records() {
                    let number = record.after.0;
                    if let Some((at, _)) = last.filter(|(_, last)| last + 1 != number) {
                        // Only what a checkpoint has passed meanwhile is left out.
                        checkpoint = StreamReader::open(&device).expect("a stream").header().checkpoint;
                        assert!(at < checkpoint, "version {number} after {last:?}");
                        most_checkpoints += 1;
                    }
                    last = Some((lsn, number));
                }
            }
            let found = last.map_or(0, |(_, last)| last);
            assert!(found >= before, "{found} of {before} found, from {checkpoint}");
        }
        is_over.store(true, SeqCst);
    });
    println!("{most_checkpoints} times a checkpoint overtook the reader");
}

#[test]
fn a_reader_that_the_writer_overtakes_goes_on_at_the_checkpoint() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("redo");
    // More than the reader reads ahead.
    create(&path, 5, NODE, Geometry::new(512 * PAGE, 3).expect("segments")).expect("a stream");
    let device = FileDevice::open(&path).expect("a device");
    let tail = StreamReader::open(&device).and_then(StreamReader::scan).expect("a stream").tail;
    let stream = RedoStream::open(Arc::new(device), tail, Incarnation(1), drop).expect("it opens");
    let append = |number: u64| {
        let mut group = Group::default();
        group.push(&Record::change(BlockId(1), Version(number), Version(number + 1), &[7; 100_000]));
        let appended = stream.append(&group).expect("a group");
        stream.wait_durable(appended.end).expect("durable");
        appended.start
    };
    (0..50).for_each(|number| {
        append(number);
    });
    let device = FileDevice::open(&path).expect("a device");
    let mut reader = StreamReader::open(&device).expect("a stream").of_running();
    assert!(reader.next_batch().expect("no damage").is_some());
    (50..150).for_each(|number| stream.checkpoint(append(number)));
    let batches = reader.map(|batch| batch.expect("no damage"));
    let last = batches.last().expect("it goes on");
    assert!(last.records().all(|(_, record, _)| record.after == Version(150)), "{:?}", last.head());
}

/// A thread that waits, and true once it need not wait any more.
struct Woken(Thread, AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.1.store(true, SeqCst);
        self.0.unpark();
    }
}

/// Waits until a group is durable, and writes the stream meanwhile, or has it written by others.
fn lead(stream: &RedoStream, end: Lsn, delegates: bool) {
    loop {
        let woken = Arc::new(Woken(thread::current(), AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&woken));
        match stream.poll_durable(end, &Context::from_waker(&waker), true) {
            Poll::Ready(result) => return result.expect("durable"),
            Poll::Pending if delegates => stream.delegate(),
            Poll::Pending => stream.lead(&|| woken.1.load(SeqCst)),
        }
        while !woken.1.load(SeqCst) {
            thread::park();
        }
    }
}

#[test]
fn every_client_goes_on_whichever_thread_writes() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("redo");
    create(&path, 5, NODE, Geometry::new(64 * PAGE, 3).expect("segments")).expect("a stream");
    for (leading, delegating, waiting) in [(1, 0, 0), (3, 0, 0), (2, 1, 1), (1, 0, 3)] {
        let device = FileDevice::open(&path).expect("a device");
        let tail = StreamReader::open(&device).and_then(StreamReader::scan).expect("a stream").tail;
        let incarnation = Incarnation(tail.header.incarnation.0 + 1);
        let stream = RedoStream::open(Arc::new(device), tail, incarnation, drop).expect("it opens");
        let work = |wait: &dyn Fn(Lsn)| {
            for number in 0..200 {
                let appended = stream.append(&group(number)).expect("a group");
                wait(appended.end);
                assert!(stream.durable() >= appended.end);
                stream.checkpoint(appended.start);
            }
        };
        let wait = |end| stream.wait_durable(end).expect("durable");
        thread::scope(|scope| {
            (0..leading).for_each(|_| _ = scope.spawn(|| work(&|end| lead(&stream, end, false))));
            (0..delegating).for_each(|_| _ = scope.spawn(|| work(&|end| lead(&stream, end, true))));
            (0..waiting).for_each(|_| _ = scope.spawn(|| work(&wait)));
        });
    }
}

#[test]
fn two_clients_that_promised_to_write_are_not_left_alone_after_a_flush_with_three() {
    // The thread must be asleep when the two come, which a single try does not ensure.
    for _ in 0..20 {
        let geometry = Geometry::new(8 * PAGE, 2).expect("segments");
        let device = Arc::new(SimulatedDevice::new(geometry.length()));
        device.write(0, &StreamHeader::new(5, NODE, geometry).encode()).expect("written");
        let tail = StreamReader::open(&*device).and_then(StreamReader::scan).expect("a stream").tail;
        let (told, progress) = mpsc::channel();
        let told = move |step| told.send(step).expect("the test listens");
        let stream = RedoStream::open(device, tail, Incarnation(1), told).expect("it opens");
        // They find work of their own instead of writing, and let the stream's thread write.
        let flush = |clients: u64, first: u64| {
            let appended =
                (0..clients).map(|client| stream.try_append(&group(first + client)).expect("room").end);
            let ends: Vec<Lsn> = appended.collect();
            let woken = Arc::new(Woken(thread::current(), AtomicBool::new(false)));
            let waker = Waker::from(woken);
            ends.iter().for_each(|end| {
                let polled = stream.poll_durable(*end, &Context::from_waker(&waker), true);
                assert!(polled.is_pending());
            });
            ends.iter().for_each(|_| stream.delegate());
            let last = *ends.last().expect("a client");
            loop {
                match progress.recv_timeout(LIMIT).expect("a thread writes the stream") {
                    RedoProgress::Durable(durable) if durable >= last => return,
                    _ => {}
                }
            }
        };
        flush(3, 1);
        flush(2, 4);
    }
}

/// A device that tells of each sync by a client, which then waits for the gate.
struct Gated {
    device: SimulatedDevice,
    gate: Mutex<()>,
    syncs: mpsc::Sender<()>,
}

impl Device for Gated {
    fn length(&self) -> u64 {
        self.device.length()
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), DiskError> {
        self.device.read(offset, into)
    }
    fn write(&self, offset: u64, from: &[u8]) -> Result<(), DiskError> {
        self.device.write(offset, from)
    }
    fn sync(&self) -> Result<(), DiskError> {
        // The threads of the stream have names.
        if thread::current().name().is_none() {
            self.syncs.send(()).expect("the test listens");
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        }
        self.device.sync()
    }
}

/// A wait that tells a channel of its end.
struct TellsOfEnd(mpsc::Sender<()>);

impl Wake for TellsOfEnd {
    fn wake(self: Arc<Self>) {
        self.0.send(()).expect("the test listens");
    }
}

#[test]
fn a_client_that_stops_writing_leaves_the_waits_of_others_to_the_next_one() {
    let geometry = Geometry::new(8 * PAGE, 2).expect("segments");
    let (syncs, syncing) = mpsc::channel();
    let device =
        Arc::new(Gated { device: SimulatedDevice::new(geometry.length()), gate: Mutex::new(()), syncs });
    // No thread writes zeros, and wakes others when it has.
    let header = StreamHeader { zeroed: Lsn(u64::MAX), ..StreamHeader::new(5, NODE, geometry) };
    device.write(0, &header.encode()).expect("written");
    let tail = StreamReader::open(&*device).and_then(StreamReader::scan).expect("a stream").tail;
    let stream =
        RedoStream::open(Arc::<Gated>::clone(&device), tail, Incarnation(1), drop).expect("it opens");
    let gate = device.gate.lock().expect("the gate");
    thread::scope(|scope| {
        scope.spawn(|| lead(&stream, stream.try_append(&group(1)).expect("room").end, false));
        syncing.recv_timeout(LIMIT).expect("the first client writes");
        // The next client relies on the first one, which has all that it wants after this sync.
        let end = stream.try_append(&group(2)).expect("room").end;
        let (told, over) = mpsc::channel();
        let waker = Waker::from(Arc::new(TellsOfEnd(told)));
        assert!(stream.poll_durable(end, &Context::from_waker(&waker), false).is_pending());
        drop(gate);
        over.recv_timeout(LIMIT).expect("another thread writes for the second client");
        assert!(stream.durable() >= end);
    });
}
