//! Tests of the executor: a model under random actions, and real threads, workers and descriptors.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    rc::Rc,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

use plexus_base::{NodeId, Waiting};
use plexus_fabric::{Bell, Lost};
use plexus_sim::Random;

use super::*;
use crate::{Answer, Message, Net, Reply, Service, Worker, WorkerParts};

/// Longer than any test takes.
const NEVER: Duration = Duration::from_secs(60);

/// Answers requests: the even ones at once, the others in the next turn.
#[derive(Default)]
struct Answers(Vec<(u64, Reply<u64>)>);

impl Service for Answers {
    type Task = (u64, Reply<u64>);

    fn message(&mut self, _: &mut Net, _: Message<'_>) {}

    fn task(&mut self, _: &mut Net, (number, reply): Self::Task) {
        match number.is_multiple_of(2) {
            true => reply.send(number + 1),
            false => self.0.push((number, reply)),
        }
    }

    fn peer_gone(&mut self, _: &mut Net, _: NodeId, _: &Lost) {}

    fn turn(&mut self, _: &mut Net) -> usize {
        self.0.drain(..).map(|(number, reply)| reply.send(number + 1)).count()
    }

    fn pending(&mut self) -> bool {
        !self.0.is_empty()
    }
}

fn worker(waiting: Waiting) -> Worker<Answers> {
    let parts = WorkerParts::alone(NodeId(0), Arc::new(Bell::create().unwrap()), waiting);
    Worker::new(parts, Answers::default()).unwrap()
}

async fn ask(worker: &Worker<Answers>, number: u64) -> u64 {
    let (reply, answer) = Reply::new();
    worker.request((number, reply));
    answer.await.expect("the worker lives")
}

/// Without a background thread only the threads that wait can drive the workers.
#[test]
fn a_thread_drives_the_workers_for_which_its_tasks_wait() {
    for waiting in Waiting::ALL {
        let workers = [(); 2].map(|()| worker(waiting));
        let work = |task: u64| {
            let workers = &workers;
            async move {
                for number in 0..100 {
                    // Requests to both at a time: the thread drives one of them.
                    let one = ask(&workers[(task % 2) as usize], number);
                    let other = ask(&workers[((task + 1) % 2) as usize], number + 1);
                    assert_eq!(futures_util::future::join(one, other).await, (number + 1, number + 2));
                }
            }
        };
        thread::scope(|scope| {
            for thread in 0..3 {
                scope.spawn(move || run((0..10).map(|task| work(thread * 10 + task))));
            }
        });
    }
}

#[test]
fn a_time_limit_ends_a_wait_in_every_mode() {
    for waiting in Waiting::ALL {
        let worker = worker(waiting);
        let (unanswered, answer) = Reply::<()>::new();
        block_on(async {
            assert_eq!(ask(&worker, 1).await, 2);
            let begin = clock::now();
            assert!(timeout(Duration::from_millis(5), answer).await.is_none(), "{waiting}");
            assert!(clock::now().since(begin) >= Nanos::from_ms(5));
            sleep(Duration::from_millis(1)).await;
            assert_eq!(ask(&worker, 2).await, 3);
        });
        assert_eq!(unanswered.deliver(()), Some(()), "the wait was dropped");
    }
}

/// The world of a seed: tasks that wait for time, for gates and for each other, that spawn and
/// cancel others.
struct Seed {
    random: RefCell<Random>,
    /// Gates that no task has opened yet.
    gates: RefCell<Vec<Reply<u64>>>,
    cancels: RefCell<Vec<(usize, CancelHandle)>>,
    /// By task: whether a task has cancelled it, and whether it went to its end.
    cancelled: RefCell<Vec<bool>>,
    ended: RefCell<Vec<bool>>,
    /// The tasks whose futures exist.
    alive: Cell<usize>,
}

struct Alive(Rc<Seed>);

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.alive.update(|alive| alive - 1);
    }
}

fn begin(seed: &Rc<Seed>, depth: u64) -> Task<usize> {
    let place = seed.ended.borrow().len();
    seed.ended.borrow_mut().push(false);
    seed.cancelled.borrow_mut().push(false);
    seed.alive.update(|alive| alive + 1);
    let alive = Alive(Rc::clone(seed));
    let task = spawn(async move { act(&alive.0, place, depth).await });
    seed.cancels.borrow_mut().push((place, task.cancel_handle()));
    task
}

async fn act(seed: &Rc<Seed>, place: usize, depth: u64) -> usize {
    let draw = |bound| seed.random.borrow_mut().below(bound);
    let mut children = Vec::new();
    for _ in 0..draw(6) {
        match draw(6) {
            0 => sleep(Duration::from_micros(draw(300))).await,
            1 => give_way(|| ()).await,
            2 => {
                let (reply, answer) = Reply::new();
                seed.gates.borrow_mut().push(reply);
                assert!(matches!(answer.await, Some(7) | None));
            }
            3 => {
                let gate = seed.gates.borrow_mut().pop();
                gate.into_iter().for_each(|gate| {
                    if draw(4) > 0 {
                        gate.send(7)
                    }
                });
            }
            4 if depth > 0 => children.push(begin(seed, depth - 1)),
            _ => {
                let count = seed.cancels.borrow().len() as u64;
                let (other, handle) = seed.cancels.borrow()[draw(count) as usize].clone();
                if draw(3) == 0 {
                    seed.cancelled.borrow_mut()[other] = true;
                    handle.cancel();
                }
            }
        }
    }
    for child in children {
        child.await;
    }
    seed.ended.borrow_mut()[place] = true;
    place
}

#[test]
fn every_task_ends_or_is_cancelled_whatever_tasks_do_to_each_other() {
    let mut seen = [0; 2];
    for number in 0..300 {
        let seed = Rc::new(Seed {
            random: RefCell::new(Random::new(number)),
            gates: RefCell::default(),
            cancels: RefCell::default(),
            cancelled: RefCell::default(),
            ended: RefCell::default(),
            alive: Cell::new(0),
        });
        block_on(async {
            let tasks: Vec<_> = (0..8).map(|_| begin(&seed, 3)).collect();
            let opens = spawn({
                let seed = Rc::clone(&seed);
                async move {
                    // Tasks may wait for gates that no other task opens.
                    while seed.alive.get() > 0 {
                        sleep(Duration::from_micros(50)).await;
                        seed.gates.take().into_iter().for_each(|gate| gate.send(7));
                    }
                }
            });
            for (place, task) in tasks.into_iter().enumerate() {
                let result = timeout(NEVER, task).await.expect("a task waits for ever");
                assert_eq!(result.is_some(), seed.ended.borrow()[place], "seed {number}, task {place}");
            }
            timeout(NEVER, opens).await.expect("a child waits for ever");
        });
        for (cancelled, ended) in seed.cancelled.borrow().iter().zip(&*seed.ended.borrow()) {
            assert!(*cancelled || *ended, "seed {number}: a task neither ended nor was cancelled");
            seen[usize::from(*ended)] += 1;
        }
        THREAD.with(|thread| assert_eq!(thread.timers.borrow().next(), None, "a timer is left"));
        assert_eq!(THREAD.with(|thread| thread.bell.waits.load(Relaxed)), 0, "a wait is left");
    }
    assert!(seen.iter().all(|count| *count > 100), "{seen:?}");
}

#[test]
fn answers_and_cancellations_of_other_threads_wake_the_tasks() {
    let runs = TaskThread::start("tasks").unwrap();
    let (replies, answers): (Vec<_>, Vec<Answer<u64>>) = (0..2000).map(|_| Reply::new()).unzip();
    let tasks: Vec<_> = answers.into_iter().map(|answer| runs.spawn(|| answer)).collect();
    let cancels: Vec<_> = tasks.iter().map(Task::cancel_handle).collect();
    thread::scope(|scope| {
        let mut replies = replies.into_iter().enumerate();
        for _ in 0..4 {
            let part: Vec<_> = replies.by_ref().take(500).collect();
            let cancels = &cancels;
            scope.spawn(move || {
                for (place, reply) in part {
                    match place % 3 {
                        0 => cancels[place].cancel(),
                        1 => drop(reply),
                        _ => reply.send(place as u64),
                    }
                }
            });
        }
    });
    for (place, task) in tasks.into_iter().enumerate() {
        let expected = match place % 3 {
            0 => None,
            1 => Some(None),
            _ => Some(Some(place as u64)),
        };
        assert_eq!(task.wait(), expected, "{place}");
    }
}

#[test]
fn a_panic_ends_its_task_and_the_end_of_the_thread_drops_the_others() {
    static DROPPED: AtomicBool = AtomicBool::new(false);
    struct Notes;
    impl Drop for Notes {
        fn drop(&mut self) {
            DROPPED.store(true, SeqCst);
        }
    }
    let runs = TaskThread::start("tasks").unwrap();
    let panics = runs.spawn(|| async { panic!("on purpose") });
    let waits = runs.spawn(|| async {
        let _notes = Notes;
        std::future::pending::<()>().await;
    });
    assert_eq!(panics.wait(), None::<()>);
    assert_eq!(runs.spawn(|| async { 5 }).wait(), Some(5), "the thread goes on");
    assert!(!DROPPED.load(SeqCst));
    drop(runs);
    assert!(DROPPED.load(SeqCst));
    assert_eq!(waits.wait(), None);
}

/// Work that is done when any thread does it.
#[derive(Default)]
struct Work(Mutex<(bool, Vec<Waker>)>);

impl Work {
    fn poll(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut work = self.0.lock().unwrap();
        work.1.push(context.waker().clone());
        if work.0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl SharedWork for Work {
    fn lead(&self, _: &dyn Fn() -> bool) {
        self.delegate();
    }

    fn delegate(&self) {
        let mut work = self.0.lock().unwrap();
        work.0 = true;
        work.1.drain(..).for_each(Waker::wake);
    }
}

#[test]
fn a_thread_has_all_work_done_for_which_its_tasks_wait() {
    let works = [(); 3].map(|()| Arc::<Work>::default());
    // Without the promise no thread does the work, and the tasks would wait for ever.
    let wait = |work: &Arc<Work>| {
        let work = Arc::clone(work);
        timeout(
            NEVER,
            poll_fn(move |context| {
                assert!(promise(Arc::clone(&work) as Arc<dyn SharedWork>));
                work.poll(context)
            }),
        )
    };
    assert_eq!(run(works.each_ref().map(wait)), [Some(()); 3]);
    assert!(!promise(Arc::<Work>::default()), "this thread runs no tasks now");
}

#[test]
#[should_panic(expected = "a task must not block its thread")]
fn a_task_that_blocks_its_thread_panics() {
    block_on(async { block_on(async {}) });
}

/// More descriptors than are taken off the set at once, on two threads, of the worker and of sets
/// of their own.
#[test]
fn tasks_wait_for_descriptors_in_every_mode() {
    const PAIRS: usize = 40;
    for (waiting, has_sets) in
        Waiting::ALL.into_iter().flat_map(|waiting| [(waiting, false), (waiting, true)])
    {
        let worker = worker(waiting);
        let watches = {
            let worker = worker.clone();
            thread::spawn(move || worker.run().unwrap())
        };
        let sets = [(); 2].map(|()| Arc::new(worker.descriptor_set().unwrap()));
        let threads = [(); 2].map(|()| TaskThread::start("tasks").unwrap());
        let (mut clients, mut tasks) = (Vec::new(), Vec::new());
        for (thread, set) in threads.iter().zip(&sets) {
            let set = Arc::clone(set);
            drop(thread.spawn(move || async move { set.serve().await.unwrap() }));
        }
        for pair in 0..PAIRS {
            let (client, server) = UnixStream::pair().unwrap();
            client.set_read_timeout(Some(NEVER)).unwrap();
            clients.push(client);
            server.set_nonblocking(true).unwrap();
            let worker = worker.clone();
            let set = has_sets.then(|| Arc::clone(&sets[pair % 2]));
            tasks.push(threads[pair % 2].spawn(move || async move {
                let server = match set {
                    Some(set) => set.descriptor(server),
                    None => worker.descriptor(server),
                };
                echo(&worker, server.unwrap()).await.unwrap()
            }));
        }
        for round in 0..50u8 {
            if round % 10 == 9 {
                // The threads of the tasks sleep by now.
                thread::sleep(Duration::from_millis(5));
            }
            clients.iter().for_each(|mut client| client.write_all(&[round; 3]).unwrap());
            for mut client in &clients {
                let mut bytes = [0; 3];
                client.read_exact(&mut bytes).unwrap();
                assert_eq!(bytes, [round; 3], "{waiting}");
            }
        }
        drop(clients);
        assert!(tasks.into_iter().all(|task| task.wait() == Some(150)), "{waiting}: each read all bytes");
        drop((threads, sets));
        assert!(!worker.watches_descriptors());
        worker.stop();
        watches.join().unwrap();
    }
}

/// Writes back what it reads, and returns how many bytes came before the end.
async fn echo(worker: &Worker<Answers>, stream: Descriptor<UnixStream>) -> io::Result<usize> {
    let mut sum = 0;
    let mut bytes = [0; 2];
    loop {
        let read = stream.read(|mut stream| stream.read(&mut bytes)).await?;
        if read == 0 {
            return Ok(sum);
        }
        sum += read;
        assert_eq!(ask(worker, sum as u64).await, sum as u64 + 1);
        stream.write(|mut stream| stream.write_all(&bytes[..read])).await?;
    }
}

/// A service that always has work, so that the thread that drives it never sleeps.
struct Busy;

impl Service for Busy {
    type Task = ();

    fn message(&mut self, _: &mut Net, _: Message<'_>) {}

    fn task(&mut self, _: &mut Net, (): ()) {}

    fn peer_gone(&mut self, _: &mut Net, _: NodeId, _: &Lost) {}

    fn turn(&mut self, _: &mut Net) -> usize {
        1
    }

    fn pending(&mut self) -> bool {
        true
    }
}

#[test]
fn descriptors_are_seen_by_a_thread_that_never_sleeps() {
    for waiting in Waiting::ALL {
        let parts = WorkerParts::alone(NodeId(0), Arc::new(Bell::create().unwrap()), waiting);
        let worker = Worker::new(parts, Busy).unwrap();
        let driver = {
            let worker = worker.clone();
            thread::spawn(move || worker.run().unwrap())
        };
        let (mut client, server) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(NEVER)).unwrap();
        server.set_nonblocking(true).unwrap();
        let thread = TaskThread::start("task").unwrap();
        let task = {
            let worker = worker.clone();
            thread.spawn(move || async move {
                let server = worker.descriptor(server).unwrap();
                let mut byte = [0];
                server.read(|mut stream| stream.read(&mut byte)).await.unwrap();
                server.write(|mut stream| stream.write(&byte)).await.unwrap()
            })
        };
        // The task waits by now, and its thread sleeps.
        thread::sleep(Duration::from_millis(20));
        client.write_all(&[7]).unwrap();
        let mut byte = [0];
        assert!(client.read_exact(&mut byte).is_ok(), "{waiting}: no answer");
        assert_eq!((byte, task.wait()), ([7], Some(1)));
        drop(thread);
        worker.stop();
        driver.join().unwrap();
    }
}
