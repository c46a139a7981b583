//! The redo of a node with a driven disk and invented answers: each waiter is woken, and every
//! question of a worker is answered.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use std::{
    sync::{
        Arc, Condvar, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::Duration,
};

use common::{CLUSTER, Files};
use plexus_base::{BlockId, Incarnation, NodeId, WorkerId};
use plexus_cache::{CacheTask, LoggedChange, RedoAnswers, RedoDurability, RedoFailed, RedoLog, RedoRecovery};
use plexus_disks::Version;
use plexus_redo::{
    NodeRedo, RedoSettings,
    recovery::RedoFiles,
    stream::protocol::{Geometry, PAGE},
};

/// The longest wait for something that must happen.
const LIMIT: Duration = Duration::from_secs(60);

/// The time of a checkpoint that is not due, far beyond the limit.
const NEVER: Duration = Duration::from_secs(3600);

/// The disk of the stream: it holds writes back, and fails.
#[derive(Default)]
struct Disk {
    is_held: Mutex<bool>,
    changed: Condvar,
    is_broken: AtomicBool,
}

impl Disk {
    fn hold(&self, is_held: bool) {
        *self.is_held.lock().expect("sound") = is_held;
        self.changed.notify_all();
    }

    /// Waits until a write may go on; false: it fails.
    fn may_write(&self) -> bool {
        let held = self.is_held.lock().expect("sound");
        drop(self.changed.wait_while(held, |is_held| *is_held).expect("sound"));
        !self.is_broken.load(SeqCst)
    }
}

struct Node {
    redo: NodeRedo,
    disk: Arc<Disk>,
    answers: Mutex<mpsc::Receiver<(WorkerId, CacheTask)>>,
    failures: Mutex<mpsc::Receiver<String>>,
    /// The version of the block that is changed.
    version: AtomicU64,
    _directory: tempfile::TempDir,
}

impl Drop for Node {
    fn drop(&mut self) {
        self.disk.hold(false);
    }
}

impl Node {
    /// Starts the redo of a node with two workers and a stream of 1 MiB, which is not open.
    fn new() -> Self {
        Self::with_new_streams_of(Geometry::new(64 * PAGE, 4).expect("segments"))
    }

    /// As `new`, where new streams have another geometry since the stream was made.
    fn with_new_streams_of(configured: Geometry) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let group = Arc::new(Files::create(directory.path().into(), 8).group);
        let disk = Arc::<Disk>::default();
        let files = RedoFiles::new(directory.path().join("redo"), CLUSTER);
        let files = files.guarded({
            let disk = Arc::clone(&disk);
            move || disk.may_write()
        });
        let geometry = Geometry::new(64 * PAGE, 4).expect("segments");
        let stream = files.prepare(NodeId(1), "n1", Incarnation(1), geometry).expect("a stream");
        let (failed, failures) = mpsc::channel();
        let failed = Mutex::new(failed);
        // The test may be over.
        let failed = Box::new(move |why: &str| _ = failed.lock().expect("sound").send(why.to_owned()));
        let settings = RedoSettings {
            workers: 2,
            files,
            geometry: configured,
            stream: Some(stream),
            name: "n1".into(),
            me: (NodeId(1), Incarnation(1)),
            ledger: None,
            target_bytes: u64::MAX,
            failed,
        };
        let (tell, answers) = mpsc::channel();
        let tell = RedoAnswers::new(move |worker, task| _ = tell.send((worker, task)));
        let redo = NodeRedo::start(settings, group, tell).expect("threads");
        let (answers, failures) = (Mutex::new(answers), Mutex::new(failures));
        Self { redo, disk, answers, failures, version: AtomicU64::new(0), _directory: directory }
    }

    fn answer(&self) -> (WorkerId, CacheTask) {
        self.answers.lock().expect("sound").recv_timeout(LIMIT).expect("an answer")
    }

    /// As `new`, with the stream open.
    fn open() -> Self {
        Self::new().opened()
    }

    fn opened(self) -> Self {
        let node = self;
        let mut task = Task::default();
        assert_eq!(task.reserve(&node, 1), Poll::Pending);
        node.redo.begin();
        task.is_woken();
        assert_eq!(task.reserve(&node, 1), Poll::Ready(Ok(())));
        node.redo.release(1);
        node
    }

    /// Appends a change for which room was reserved.
    fn append(&self) -> u64 {
        let before = Version(self.version.fetch_add(1, SeqCst));
        let change = Some((Version(before.0 + 1), &[7; 12_000][..]));
        self.redo.append(&[LoggedChange { block: BlockId(1), before, image: None, change }])
    }

    /// Checks that a checkpoint is due.
    fn has_a_checkpoint_due(&self) {
        thread::scope(|scope| {
            let (tell, is_due) = mpsc::channel();
            scope.spawn(move || tell.send(self.redo.wait_for_checkpoint(NEVER)).expect("the test listens"));
            let is_due = is_due.recv_timeout(LIMIT);
            if is_due.is_err() {
                self.redo.end();
            }
            assert_eq!(is_due, Ok(true));
        });
    }

    /// Appends changes until there is no room for another. Returns their end.
    fn fill(&self) -> u64 {
        let mut end = 0;
        while self.redo.try_reserve(1).expect("it works") {
            end = self.append();
        }
        end
    }

    /// Waits until `worker` is told that everything below `end` is durable.
    fn hears_durable(&self, worker: WorkerId, end: u64) {
        loop {
            match self.answer() {
                (to, CacheTask::Durable(durable)) if to == worker && durable >= end => return,
                _ => {}
            }
        }
    }

    fn flush(&self, end: u64) {
        self.redo.flush(WorkerId(0), end);
        self.hears_durable(WorkerId(0), end);
    }
}

/// True once the task was woken.
#[derive(Default)]
struct Woken(Mutex<bool>, Condvar);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        *self.0.lock().expect("sound") = true;
        self.1.notify_all();
    }
}

/// A task, which polls when it is told to.
#[derive(Default)]
struct Task {
    woken: Arc<Woken>,
    ticket: Option<u64>,
}

impl Task {
    fn poll<T>(&mut self, poll: impl FnOnce(&mut Option<u64>, &mut Context<'_>) -> Poll<T>) -> Poll<T> {
        *self.woken.0.lock().expect("sound") = false;
        let waker = Waker::from(Arc::clone(&self.woken));
        poll(&mut self.ticket, &mut Context::from_waker(&waker))
    }

    fn reserve(&mut self, node: &Node, changes: u32) -> Poll<Result<(), RedoFailed>> {
        self.poll(|ticket, context| node.redo.poll_reserve(ticket, changes, context))
    }

    fn durable(&mut self, node: &Node, end: u64) -> Poll<Result<(), RedoFailed>> {
        self.poll(|_, context| node.redo.poll_durable(end, context, false))
    }

    fn is_woken(&self) {
        let woken = self.woken.0.lock().expect("sound");
        let (woken, _) = self.woken.1.wait_timeout_while(woken, LIMIT, |woken| !*woken).expect("sound");
        assert!(*woken, "the task waits for ever");
    }

    fn was_woken(&self) -> bool {
        *self.woken.0.lock().expect("sound")
    }
}

#[test]
fn changes_wait_until_the_stream_is_open() {
    let node = Node::new();
    let mut tasks: [Task; 3] = Default::default();
    assert!(tasks.iter_mut().all(|task| task.reserve(&node, 1).is_pending()));
    assert_eq!(node.redo.waits(), None, "it is not room that they wait for");
    assert_eq!(node.redo.try_reserve(1), Ok(false));
    node.redo.begin();
    tasks.iter().for_each(Task::is_woken);
    assert!(tasks.iter_mut().all(|task| task.reserve(&node, 1) == Poll::Ready(Ok(()))));
    assert_eq!(node.redo.waits(), None);
}

#[test]
fn a_release_wakes_tasks_that_wait_for_room() {
    let node = Node::open();
    let mut held = 0;
    while node.redo.try_reserve(1).expect("it works") {
        held += 1;
    }
    let mut tasks: [Task; 3] = Default::default();
    let [one, two, gone] = &mut tasks;
    assert!(one.reserve(&node, 1).is_pending() && two.reserve(&node, 2).is_pending());
    assert!(gone.reserve(&node, 1).is_pending());
    node.redo.forget(gone.ticket.expect("it waits"));
    assert_eq!(node.redo.waits().map(|waits| waits.tasks), Some(2));
    node.redo.release(1);
    assert!(one.was_woken() && !two.was_woken() && !gone.was_woken());
    // The one that was woken does not come; the other one needs more.
    node.redo.forget(one.ticket.expect("it waits"));
    node.redo.release(1);
    assert!(two.was_woken());
    assert_eq!(two.reserve(&node, 2), Poll::Ready(Ok(())));
    // It was served after it was woken, and the wait is over all the same.
    assert_eq!(node.redo.waits(), None);
    node.redo.release(held);
}

#[test]
fn when_all_wait_for_room_the_checkpoint_that_moves_wakes_them() {
    let node = Node::open();
    let end = node.fill();
    let mut tasks: [Task; 3] = Default::default();
    assert!(tasks.iter_mut().all(|task| task.reserve(&node, 1).is_pending()));
    node.flush(end);
    let waits = node.redo.waits().expect("they wait");
    assert!(waits.tasks == 3 && waits.used_bytes > waits.stream_bytes / 2, "{waits:?}");
    node.has_a_checkpoint_due();
    node.redo.checkpoint(node.redo.durable(), None);
    tasks.iter().for_each(Task::is_woken);
    assert!(tasks.iter_mut().all(|task| task.reserve(&node, 1) == Poll::Ready(Ok(()))));
}

/// Notes how many bytes are in the stream, and not durable, when a task is woken.
struct Looks {
    node: Weak<Node>,
    bytes: Mutex<Option<usize>>,
}

impl Wake for Looks {
    fn wake(self: Arc<Self>) {
        let records = self.node.upgrade().and_then(|node| node.redo.carry(BlockId(1), usize::MAX));
        *self.bytes.lock().expect("sound") = records.map(|records| records.len());
    }
}

#[test]
fn room_is_given_back_when_the_group_that_needed_it_is_in_the_stream() {
    let node = Arc::new(Node::open());
    node.disk.hold(true);
    let mut reserved = 0;
    while node.redo.try_reserve(1).expect("it works") {
        reserved += 1;
    }
    let looks = Arc::new(Looks { node: Arc::downgrade(&node), bytes: Mutex::default() });
    let waker = Waker::from(Arc::clone(&looks));
    let waits = node.redo.poll_reserve(&mut None, 1, &mut Context::from_waker(&waker));
    assert!(waits.is_pending());
    for groups in 1..=reserved {
        node.append();
        if let Some(bytes) = *looks.bytes.lock().expect("sound") {
            assert!(bytes > groups * 12_000, "{bytes} bytes of {groups} groups");
            return;
        }
    }
    panic!("the task waits for ever");
}

#[test]
fn a_checkpoint_that_becomes_due_during_a_pass_is_made() {
    let node = Node::open();
    // A pass begins, and the stream becomes full before it ends.
    assert!(node.redo.wait_for_checkpoint(Duration::ZERO));
    let durable = node.redo.durable();
    let end = node.fill();
    node.flush(end);
    let mut task = Task::default();
    assert!(task.reserve(&node, 1).is_pending());
    node.redo.checkpoint(durable, None);
    // It has brought no room, so there is another.
    node.has_a_checkpoint_due();
    node.redo.checkpoint(node.redo.durable(), None);
    task.is_woken();
    assert_eq!(task.reserve(&node, 1), Poll::Ready(Ok(())));
}

#[test]
fn a_stream_takes_changes_after_a_longer_one_was_configured() {
    let longer = Geometry::new(64 * 64 * PAGE, 4).expect("segments");
    let node = Node::with_new_streams_of(longer).opened();
    assert_eq!(node.redo.try_reserve(1), Ok(true));
}

#[test]
fn every_flush_is_answered() {
    let node = Node::open();
    let mut task = Task::default();
    while task.reserve(&node, 3).is_pending() {
        task.is_woken();
    }
    node.disk.hold(true);
    let ends = [node.append(), node.append(), node.append()];
    node.redo.flush(WorkerId(0), ends[0]);
    node.redo.flush(WorkerId(1), ends[1]);
    // While the first flush is under way the worker wants more.
    node.redo.flush(WorkerId(0), ends[2]);
    node.disk.hold(false);
    let mut open = vec![(WorkerId(0), ends[2]), (WorkerId(1), ends[1])];
    while !open.is_empty() {
        let (to, CacheTask::Durable(durable)) = node.answer() else {
            panic!("an answer without a question");
        };
        open.retain(|(worker, end)| *worker != to || *end > durable);
    }
    // It is durable already.
    node.flush(ends[1]);
}

#[test]
fn clients_that_wait_for_durability_are_woken_by_the_sync_or_by_the_failure() {
    let node = Node::open();
    node.disk.hold(true);
    let append = || node.redo.try_reserve(1).map(|_| node.append()).expect("it works");
    let (mut first, mut second, end) = (Task::default(), Task::default(), append());
    assert!(first.durable(&node, end).is_pending() && second.durable(&node, end).is_pending());
    node.disk.hold(false);
    first.is_woken();
    second.is_woken();
    assert_eq!(first.durable(&node, end), Poll::Ready(Ok(())));

    node.disk.hold(true);
    node.disk.is_broken.store(true, SeqCst);
    let later = append();
    node.fill();
    let mut waits = Task::default();
    assert!(first.durable(&node, later).is_pending() && waits.reserve(&node, 1).is_pending());
    node.disk.hold(false);
    first.is_woken();
    waits.is_woken();
    assert!(matches!(first.durable(&node, later), Poll::Ready(Err(_))));
    assert!(matches!(waits.reserve(&node, 1), Poll::Ready(Err(_))));
    assert!(node.redo.try_reserve(1).is_err());
    let failures = node.failures.lock().expect("sound");
    let why = failures.recv_timeout(LIMIT).expect("the node is told to end");
    assert!(why.starts_with("redo stream of node 1 has failed"), "{why}");
    assert!(failures.try_recv().is_err(), "once");
}

#[test]
fn a_group_that_was_not_appended_fails_instead_of_waiting_for_ever() {
    let node = Node::open();
    let reserved = node.redo.try_reserve(2);
    assert_eq!(reserved, Ok(true));
    let before = node.append();
    node.redo.leaving();
    node.redo.close_stream();
    let end = node.append();
    let mut task = Task::default();
    let Poll::Ready(Err(why)) = task.durable(&node, end) else { panic!("it waits, or was appended") };
    assert!(why.0.contains("is closed: the node is leaving"), "{why}");
    // What was appended before is durable all the same.
    assert_eq!(task.durable(&node, before), Poll::Ready(Ok(())));
    assert!(node.failures.lock().expect("sound").try_recv().is_err());
}
