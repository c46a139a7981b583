//! Turns at real files.

use std::time::Duration;

use plexus_base::{Incarnation, NodeId, NodeSet};

use super::*;
use crate::{
    protocol::{FileId, Profile, Report, View},
    voting::{
        self,
        format::{BLOCK, ClusterId, FILE},
    },
};

const NAME: FileName = FileName { cluster: ClusterId(3), file: FileId(5) };
const DEADLINE: Duration = Duration::from_secs(60);

fn view() -> View {
    View::first(NodeSet::first(4), [(NAME.file, None)])
}

fn heartbeat(node: u8, counter: u64) -> (usize, Vec<u8>) {
    let first = Report::first(NodeId(node), Incarnation(1), &Profile::LAN, Arc::new(view()));
    let report = Report { counter, ..first };
    (format::heartbeat_at(report.node), format::heartbeat(NAME, &report))
}

struct Test {
    dir: tempfile::TempDir,
    queue: FileQueue,
    done: mpsc::Receiver<FinishedTurn>,
    gate: mpsc::Sender<()>,
}

impl Test {
    /// Starts a thread that takes no turns before the gate opens.
    fn closed() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (send, done) = mpsc::channel();
        let (gate, at_gate) = mpsc::channel();
        let urgent = move || at_gate.recv().unwrap();
        let path = dir.path().join("file");
        let queue = FileQueue::start(path, NAME, urgent, move |done| send.send(done).unwrap()).unwrap();
        Self { dir, queue, done, gate }
    }

    fn open(&self) {
        self.gate.send(()).unwrap();
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("file")
    }

    fn make(&self) {
        voting::create(&self.path(), NAME, &view()).unwrap();
    }

    fn submit(&self, number: u64, writes: Vec<(usize, Vec<u8>)>, is_served: bool) {
        self.queue.submit(TurnJob { number, writes, is_served });
    }

    fn next(&self) -> FinishedTurn {
        self.done.recv_timeout(DEADLINE).unwrap()
    }

    /// Returns the counters of the heartbeats of nodes 0 to 3 that the next turn has read.
    fn counters(&self) -> [u64; 4] {
        let contents = match self.next().result.unwrap() {
            TurnContents::Contents(contents) => *contents,
            TurnContents::Packed(packed) => {
                format::contents(NAME, &packed::unpacked_file(&packed).unwrap()).unwrap()
            }
        };
        std::array::from_fn(|node| contents.nodes[node].heartbeat.good().map_or(0, |report| report.counter))
    }
}

#[test]
fn concurrent_turns_see_each_other_and_the_last_write_stays() {
    let test = Test::closed();
    test.make();
    test.submit(1, vec![heartbeat(0, 4)], false);
    test.submit(2, vec![heartbeat(1, 7)], true);
    test.submit(3, vec![heartbeat(2, 8)], true);
    test.submit(4, vec![heartbeat(2, 9)], true);
    test.open();
    for _ in 1..=4 {
        assert_eq!(test.counters(), [4, 7, 9, 0]);
    }
    test.submit(5, vec![heartbeat(3, 1)], false);
    assert_eq!(test.counters(), [4, 7, 9, 1]);
}

#[test]
fn each_failed_turn_is_reported_and_the_next_opens_the_file_again() {
    let test = Test::closed();
    test.submit(1, vec![heartbeat(0, 4)], false);
    test.submit(2, Vec::new(), true);
    test.open();
    for number in 1..=2 {
        let done = test.next();
        assert_eq!(done.number, number);
        assert!(matches!(done.result, Err(error) if error.to_string().starts_with("open ")));
    }
    test.make();
    test.submit(3, vec![heartbeat(0, 5)], false);
    assert_eq!(test.counters(), [5, 0, 0, 0]);
    // A new file at the path replaces the open one.
    std::fs::remove_file(test.path()).unwrap();
    test.make();
    test.submit(4, vec![heartbeat(1, 6)], false);
    assert_eq!(test.counters(), [0, 6, 0, 0]);
    // A truncated file, and one that is not a voting file.
    std::fs::OpenOptions::new().write(true).open(test.path()).unwrap().set_len(BLOCK as u64 * 7).unwrap();
    test.submit(5, Vec::new(), false);
    assert!(matches!(&*test.next().result.err().unwrap(), FileError::Io { doing: "read", .. }));
    std::fs::write(test.path(), vec![1; FILE]).unwrap();
    test.submit(6, Vec::new(), false);
    assert!(matches!(&*test.next().result.err().unwrap(), FileError::Block { .. }));
}

#[test]
fn a_closed_queue_ends_after_its_turns() {
    let test = Test::closed();
    test.make();
    test.submit(1, vec![heartbeat(0, 4)], false);
    let Test { queue, done, gate, dir: _dir } = test;
    let thread = queue.close();
    gate.send(()).unwrap();
    thread.join().unwrap();
    assert_eq!(done.try_iter().count(), 1);
}

#[test]
fn content_is_read_only_after_it_is_durable() {
    // The device can be read and written, but not synced.
    let looked = voting::look(std::path::Path::new("/dev/zero"), NAME);
    assert!(matches!(looked, Err(FileError::Io { doing: "write", .. })), "{looked:?}");
}

#[test]
fn a_write_of_another_process_in_the_same_block_is_read_and_not_written_over() {
    let test = Test::closed();
    test.make();
    test.open();
    test.submit(1, vec![heartbeat(0, 4)], false);
    assert_eq!(test.counters(), [4, 0, 0, 0]);
    // The other process has the same file.
    let mut other = Disk::open(&test.path()).unwrap();
    other.turn([&[heartbeat(0, 700)][..]]).unwrap();
    test.submit(2, vec![heartbeat(0, 5)], false);
    test.submit(3, vec![heartbeat(1, 6)], true);
    assert_eq!(test.counters()[0], 700);
    assert_eq!(test.counters(), [700, 6, 0, 0], "the turn of another node is executed");
}
