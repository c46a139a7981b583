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
    /// The redo streams that the thread has promised to write: one of each node whose changes its
    /// tasks wait for.
    redo: RefCell<Vec<Arc<dyn RedoLog>>>,
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
        self.0.delegate();
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
        // It can write one stream itself.
        let led = if drives || signal.is_set() { None } else { self.redo.borrow_mut().pop() };
        self.delegate();
        led.inspect(|redo| redo.lead(&|| signal.is_set()));
        if drives {
            port.wait(driven, &mut mine.into_iter().map(|(_, task)| task), signal);
        } else {
            signal.park();
            signal.take();
        }
    }

    /// Lets other threads write the redo that this one has promised to write.
    fn delegate(&self) {
        self.redo.take().iter().for_each(|redo| redo.delegate());
    }
}

/// Returns whether the thread runs tasks, and so promises to write a redo stream.
pub(crate) fn leads(redo: &Arc<dyn RedoLog>) -> bool {
    THREAD.with(|thread| {
        if thread.is_running.get() {
            let mut promised = thread.redo.borrow_mut();
            if !promised.iter().any(|one| Arc::ptr_eq(one, redo)) {
                promised.push(Arc::clone(redo));
            }
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

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use plexus_base::{BlockId, Epoch, Incarnation, NodeId, wire::DecodeError};
    use plexus_disks::Version;
    use plexus_interconnect::Net;
    use plexus_membership::subsystem::WorkerPort;

    use super::*;
    use crate::{CacheService, LoggedChange, RedoFailed};

    /// Workers that no task needs.
    struct NoWorkers;

    impl WorkerPort<CacheService> for NoWorkers {
        fn submit(&self, _: WorkerId, _: CacheTask) {}
        fn offer(&self, _: WorkerId, _: CacheTask) {}
        fn visit(&self, _: WorkerId, _: &mut dyn FnMut(&mut CacheService, &mut Net)) -> bool {
            false
        }
        fn attend(&self, _: WorkerId) {}
        fn wait(&self, _: WorkerId, _: &mut dyn Iterator<Item = CacheTask>, _: &Signal) {}
    }

    /// A stream that becomes durable when anyone writes it.
    #[derive(Default)]
    struct Stream(Mutex<(bool, Vec<Waker>)>);

    impl Stream {
        fn write(&self) {
            let mut stream = self.0.lock().unwrap();
            stream.0 = true;
            stream.1.drain(..).for_each(Waker::wake);
        }
    }

    impl RedoLog for Stream {
        fn poll_durable(&self, _: u64, context: &mut Context<'_>, _: bool) -> Poll<Result<(), RedoFailed>> {
            let mut stream = self.0.lock().unwrap();
            stream.1.push(context.waker().clone());
            if stream.0 { Poll::Ready(Ok(())) } else { Poll::Pending }
        }
        fn lead(&self, _: &dyn Fn() -> bool) {
            self.write();
        }
        fn delegate(&self) {
            self.write();
        }

        fn poll_reserve(
            &self,
            _: &mut Option<u64>,
            _: u32,
            _: &mut Context<'_>,
        ) -> Poll<Result<(), RedoFailed>> {
            unreachable!()
        }
        fn forget(&self, _: u64) {}
        fn try_reserve(&self, _: u32) -> Result<bool, RedoFailed> {
            unreachable!()
        }
        fn release(&self, _: u32) {}
        fn append(&self, _: &[LoggedChange<'_>]) -> u64 {
            unreachable!()
        }
        fn carry(&self, _: BlockId, _: usize) -> Option<Vec<u8>> {
            unreachable!()
        }
        fn append_carried(&self, _: BlockId, _: Version, _: &[u8]) -> Result<Option<u64>, DecodeError> {
            unreachable!()
        }
        fn position(&self) -> u64 {
            unreachable!()
        }
        fn durable(&self) -> u64 {
            unreachable!()
        }
        fn flush(&self, _: WorkerId, _: u64) {}
        fn begin(&self) {}
        fn recover(&self, _: WorkerId, _: Epoch, _: Vec<(NodeId, Incarnation)>) {}
        fn replay(&self, _: WorkerId, _: Epoch, _: Vec<BlockId>) {}
        fn close(&self, _: WorkerId, _: Epoch) {}
    }

    #[test]
    fn a_thread_has_every_stream_written_for_which_its_tasks_wait() {
        let streams = [(); 3].map(|()| Arc::<Stream>::default());
        let logs = streams.clone().map(|stream| stream as Arc<dyn RedoLog>);
        let wait =
            |redo: Arc<dyn RedoLog>| poll_fn(move |context| redo.poll_durable(1, context, leads(&redo)));
        // Without the promise no thread writes the stream, and the tasks would wait for ever.
        let written = run(&NoWorkers, logs.map(wait));
        assert!(written.iter().all(Result::is_ok) && written.len() == 3);
        assert!(streams.iter().all(|stream| stream.0.lock().unwrap().0));
    }
}
