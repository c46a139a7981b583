//! Runs code that waits for blocks: any number of tasks on one thread.
//!
//! A task is a future. While all tasks of a thread wait, the thread drives a worker of the node,
//! which brings the answers. If none of them waits for a worker, it writes the redo for which they
//! wait, or sleeps. Requests of tasks are collected until all tasks wait, and reach the worker
//! together. So do changes that wait for their redo.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::{Future, poll_fn},
    marker::PhantomData,
    mem,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
};

use futures_util::stream::{FuturesUnordered, Stream};
use plexus_base::WorkerId;
use plexus_interconnect::Signal;

use crate::{CacheTask, RedoLog, service::Port};

/// A task that only finds blocks here gives way to the other tasks of its thread once in this many
/// times, and the thread attends the worker. Otherwise it could keep peers waiting that want those
/// blocks.
const GIVE_WAY_EVERY: u32 = 8;

/// The signal of a thread that runs tasks.
struct Bell(Signal);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.set(0);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.set(0);
    }
}

/// The state of a thread that runs tasks.
struct Thread {
    bell: Arc<Bell>,
    waker: Waker,
    is_running: Cell<bool>,
    /// The requests that no worker has yet.
    requests: RefCell<VecDeque<(WorkerId, CacheTask)>>,
    /// The number of requests without an answer, and the worker of the last one.
    waiting: Cell<usize>,
    worker: Cell<WorkerId>,
    /// The redo stream that the thread has promised to write.
    redo: RefCell<Option<Arc<dyn RedoLog>>>,
    /// The number of blocks that tasks found here.
    hits: Cell<u32>,
}

thread_local! {
    static THREAD: Thread = {
        let bell = Arc::new(Bell(Signal::new()));
        Thread {
            waker: Waker::from(Arc::clone(&bell)),
            bell,
            is_running: Cell::new(false),
            requests: RefCell::default(),
            waiting: Cell::new(0),
            worker: Cell::new(WorkerId(0)),
            redo: RefCell::default(),
            hits: Cell::new(0),
        }
    };
}

/// Marks the thread as one that runs no task, when dropped.
struct Ends<'a>(&'a Thread);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_running.set(false);
        self.0.kick();
    }
}

/// Runs a future to its end.
///
/// # Panics
/// In a task: a task must not block its thread.
pub(crate) fn block_on<T>(port: &Port, future: impl Future<Output = T>) -> T {
    THREAD.with(|thread| {
        assert!(!thread.is_running.replace(true), "a task must not block its thread: await instead");
        let _ends = Ends(thread);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(result) = future.as_mut().poll(&mut Context::from_waker(&thread.waker)) {
                // Requests of tasks that ended without waiting for the answer.
                thread.requests.take().into_iter().for_each(|(worker, task)| port.submit(worker, task));
                return result;
            }
            thread.wait(port);
        }
    })
}

/// Runs tasks until all have ended, and returns their results in the order in which they ended.
pub(crate) fn run<T>(port: &Port, tasks: impl IntoIterator<Item: Future<Output = T>>) -> Vec<T> {
    let mut tasks: FuturesUnordered<_> = tasks.into_iter().collect();
    let mut results = Vec::with_capacity(tasks.len());
    block_on(
        port,
        poll_fn(|context| {
            loop {
                match pin!(&mut tasks).poll_next(context) {
                    Poll::Ready(Some(result)) => results.push(result),
                    Poll::Ready(None) => return Poll::Ready(()),
                    Poll::Pending => return Poll::Pending,
                }
            }
        }),
    );
    results
}

impl Thread {
    /// Hands the requests to their workers, and waits until a task can go on.
    fn wait(&self, port: &Port) {
        let (signal, requests) = (&self.bell.0, self.requests.take());
        let drives = self.waiting.get() > 0 && !signal.is_set();
        let driven = self.worker.get();
        let (mine, others): (VecDeque<_>, VecDeque<_>) =
            requests.into_iter().partition(|(worker, _)| drives && *worker == driven);
        others.into_iter().for_each(|(worker, task)| port.submit(worker, task));
        if drives || signal.is_set() {
            self.kick();
        } else if let Some(redo) = self.redo.take() {
            redo.fly(&|| signal.is_set());
        }
        if drives {
            port.wait(driven, &mut mine.into_iter().map(|(_, task)| task), signal);
        } else {
            signal.park();
            signal.take();
        }
    }

    /// Lets another thread write the redo that this one has promised to write.
    fn kick(&self) {
        self.redo.take().inspect(|redo| redo.kick());
    }
}

/// Returns whether the thread runs tasks, and so promises to write a redo stream.
pub(crate) fn flies(redo: &Arc<dyn RedoLog>) -> bool {
    THREAD.with(|thread| {
        if thread.is_running.get() {
            thread.redo.borrow_mut().get_or_insert_with(|| Arc::clone(redo));
        }
        thread.is_running.get()
    })
}

/// Hands a request to a worker: together with those of other tasks, if the thread runs tasks.
pub(crate) fn request(port: &Port, worker: WorkerId, task: CacheTask) {
    THREAD.with(|thread| {
        if thread.is_running.get() {
            thread.worker.set(worker);
            thread.requests.borrow_mut().push_back((worker, task));
        } else {
            port.submit(worker, task);
        }
    });
}

/// A wait of a task for a worker, until this is dropped; on the thread of the task.
pub(crate) struct Waiting(PhantomData<*const ()>);

impl Waiting {
    pub(crate) fn new() -> Self {
        THREAD.with(|thread| thread.waiting.update(|waiting| waiting + 1));
        Self(PhantomData)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        THREAD.with(|thread| thread.waiting.update(|waiting| waiting.wrapping_sub(1)));
    }
}

/// Lets other tasks of the thread go on, once in a while. It is called for each block that was
/// found here.
pub(crate) async fn give_way(port: &Port, worker: WorkerId) {
    let is_due = THREAD.with(|thread| {
        thread.hits.update(|hits| hits.wrapping_add(1));
        thread.hits.get().is_multiple_of(GIVE_WAY_EVERY)
    });
    if !is_due {
        return;
    }
    port.attend(worker);
    let mut has_given_way = false;
    poll_fn(|context| {
        if mem::replace(&mut has_given_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
