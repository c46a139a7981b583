//! A process that writes a stream is killed at any moment, again and again: whatever it reported as
//! durable is there, whole, in order and once.
//!
//! The test starts itself as the process that is killed.

use std::{
    collections::{BTreeMap, VecDeque},
    env,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use plexus_base::{BlockId, Incarnation, NodeId};
use plexus_disks::{FileDevice, Version};
use plexus_redo::stream::{
    driver::{RedoStream, create},
    protocol::{Geometry, Group, Lsn, Record},
    reader::StreamReader,
};

const CLUSTER: u128 = 5;
const NODE: NodeId = NodeId(1);
const WRITERS: u64 = 3;
const ROUNDS: u64 = 15;
/// The records of a group, each of which names the writer and the number of its group.
const RECORDS: u64 = 3;
/// The last groups of all writers, which no checkpoint passes: so few that those of two
/// incarnations have room in the ring.
const KEPT: usize = 60;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    match arguments.get(1).map(String::as_str) {
        Some("--writer") => write(Path::new(&arguments[2]), arguments[3].parse().expect("a number")),
        _ => {
            kill_writers();
            println!("test nothing_durable_is_lost_when_the_writer_is_killed ... ok");
        }
    }
}

/// Appends groups on several threads, and prints the number of each when it is durable. Several
/// groups of each incarnation wait for the checkpoint, because the ring is small.
fn write(path: &Path, incarnation: u64) {
    let device = FileDevice::open(path).expect("a device");
    let scan = StreamReader::open(&device).and_then(StreamReader::scan).expect("a stream");
    let stream = RedoStream::open(Arc::new(device), scan.tail, Incarnation(incarnation), drop);
    let stream = stream.expect("it opens");
    let kept = Mutex::new(VecDeque::new());
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (stream, kept) = (&stream, &kept);
            scope.spawn(move || {
                for number in 1.. {
                    let what = [incarnation, writer, number].map(u64::to_le_bytes).concat();
                    let mut group = Group::default();
                    for record in 0..RECORDS {
                        let bytes = what.repeat(1 + (number * 7 + record) as usize % 90);
                        let block = BlockId(writer * RECORDS + record);
                        group.push(&Record::change(block, Version(number), Version(number + 1), &bytes));
                    }
                    let appended = stream.append(&group).expect("a group");
                    stream.wait_durable(appended.end).expect("durable");
                    let line = format!("{incarnation} {writer} {number} {}\n", appended.start.0);
                    std::io::stdout().write_all(line.as_bytes()).expect("the parent reads");
                    let mut kept = kept.lock().expect("no thread panics");
                    kept.push_back(appended.start);
                    if kept.len() > KEPT {
                        stream.checkpoint(kept.pop_front().expect("more than none"));
                    }
                }
            });
        }
    });
}

/// One group, by its incarnation, writer and number.
type GroupName = (u64, u64, u64);

fn kill_writers() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("redo");
    let geometry = Geometry::new(256 << 10, 4).expect("segments");
    create(&path, CLUSTER, NODE, geometry).expect("a stream");
    let mut durable: BTreeMap<GroupName, Lsn> = BTreeMap::new();
    for incarnation in 1..=ROUNDS {
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--writer", path.to_str().expect("a path"), &incarnation.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut take = |line: String| {
            let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
            durable.insert((numbers[0], numbers[1], numbers[2]), Lsn(numbers[3]));
        };
        // Later rounds pass the end of the ring.
        let awaited = incarnation as usize * 37 % 500 + 1;
        lines.by_ref().take(awaited).for_each(|line| take(line.expect("a line")));
        child.kill().expect("it lives");
        child.wait().expect("it ends");
        // Lines are written in one piece, so none is cut.
        lines.map_while(Result::ok).for_each(&mut take);
        let found = read(&path);
        let checkpoint = found.checkpoint;
        let needed = durable.iter().filter(|(_, start)| **start >= checkpoint);
        let missing: Vec<_> = needed.filter(|(name, _)| !found.groups.contains(name)).collect();
        assert!(missing.is_empty(), "durable and gone after incarnation {incarnation}: {missing:?}");
    }
    let found = read(&path);
    assert!(found.checkpoint > Lsn(geometry.length()), "the ring was used more than once");
    println!("{} groups durable, {} still in the stream", durable.len(), found.groups.len());
}

struct Found {
    checkpoint: Lsn,
    groups: Vec<GroupName>,
}

/// Reads all groups, and checks that each is whole, and that those of a writer are in order.
fn read(path: &Path) -> Found {
    let device = FileDevice::open(path).expect("a device");
    let reader = StreamReader::open(&device).and_then(|reader| reader.of(CLUSTER, NODE)).expect("a stream");
    let checkpoint = reader.header().checkpoint;
    let mut groups: Vec<GroupName> = Vec::new();
    for batch in reader {
        let batch = batch.expect("no damage");
        let records: Vec<_> = batch.records().collect();
        for group in records.chunks(RECORDS as usize) {
            let name = |bytes: &[u8]| {
                let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
                (number(0), number(8), number(16))
            };
            let (_, first, _) = &group[0];
            let this = name(first.bytes);
            assert!(
                group.iter().all(|(_, record, _)| record.bytes.chunks(24).all(|part| name(part) == this))
            );
            assert!(group.iter().map(|(_, _, is_last)| *is_last).eq([false, false, true]));
            let last = groups.iter().rev().find(|(_, writer, _)| *writer == this.1);
            assert!(last.is_none_or(|last| *last < this), "{this:?} after {last:?}");
            groups.push(this);
        }
    }
    Found { checkpoint, groups }
}
