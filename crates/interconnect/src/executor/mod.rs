//! Runs code that waits: any number of tasks on one thread.
//!
//! A task is a future. It waits for the [answer](crate::Answer) of a worker, for a [time](sleep),
//! for a [descriptor](Descriptor), or for anything else that calls its waker. A wait stops one
//! task, and is cancelled when the task is dropped.
//!
//! **A thread drives its worker while its tasks wait.** When no task of a thread can go on, the
//! thread does the first of these that applies, until a waker of its tasks is called or the next
//! timer is due:
//!
//! 1. It drives the worker that got the last request, if a task waits for an answer or for a
//!    descriptor: the answer then costs no wake-up.
//! 2. It does [shared work](SharedWork) for which its tasks wait, for example it writes redo.
//! 3. It sleeps.
//!
//! Requests of tasks reach the workers at once, but no worker is woken for them before all tasks of
//! the thread wait: they are handled together.
//!
//! **No wake-up is lost.** The wakers of all tasks of a thread set one [`Signal`]. It is taken
//! before the tasks are polled, and the thread sleeps only on a signal that is not set.
//!
//! A thread enters by [`run`] or [`block_on`]. [`spawn`] adds a task to the thread; a
//! [`TaskThread`] gets tasks from other threads.

mod descriptor;
mod task;
mod thread;
mod timers;

use std::{
    cell::{Cell, RefCell},
    future::{Future, poll_fn},
    marker::PhantomData,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, Stream};
use plexus_base::{Nanos, clock};

pub(crate) use self::descriptor::Readiness;
pub use self::{
    descriptor::{Descriptor, DescriptorSet},
    task::{CancelHandle, Task, spawn},
    thread::TaskThread,
};
use self::{task::SpawnedTask, timers::Timers};
use crate::Signal;

/// A task that does not wait gives way to the other tasks of its thread once in this many times,
/// and the thread attends its worker. Otherwise it could keep peers waiting.
const GIVE_WAY_EVERY: u32 = 8;

/// A worker, as threads that run tasks see it.
pub trait Driven: Send + Sync {
    /// Drives the worker until `signal` is set, or until a time.
    fn drive(&self, signal: &Signal, until: Option<Nanos>);

    /// Ensures that queued tasks of the worker are handled.
    fn see_to_tasks(&self);
}

/// Work that one of many threads does for all of them.
pub trait SharedWork: Send + Sync {
    /// Lets the calling thread, which waits for nothing else, do the work until its wait `is_over`.
    /// Returns at once if another thread does it.
    fn lead(&self, is_over: &dyn Fn() -> bool);

    /// Lets another thread do the work.
    fn delegate(&self);
}

/// The signal of a thread that runs tasks.
struct Bell {
    signal: Signal,
    /// The number of requests without an answer and of descriptors: waits that end by a worker.
    waits: AtomicUsize,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.signal.set(0);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.signal.set(0);
    }
}

/// The state of a thread that runs tasks.
struct ThreadState {
    bell: Arc<Bell>,
    waker: Waker,
    is_running: Cell<bool>,
    /// The worker that got the last request.
    driven: RefCell<Option<Arc<dyn Driven>>>,
    /// Other workers with requests that perhaps no thread handles yet.
    asked: RefCell<Vec<Arc<dyn Driven>>>,
    /// The work that the thread has promised to do or to delegate.
    promised: RefCell<Vec<Arc<dyn SharedWork>>>,
    timers: RefCell<Timers>,
    /// The tasks that were spawned since the last poll.
    spawned: RefCell<Vec<SpawnedTask>>,
    tasks: RefCell<FuturesUnordered<SpawnedTask>>,
}

thread_local! {
    static THREAD: ThreadState = {
        let bell = Arc::new(Bell { signal: Signal::new(), waits: AtomicUsize::new(0) });
        ThreadState {
            waker: Waker::from(Arc::clone(&bell)),
            bell,
            is_running: Cell::new(false),
            driven: RefCell::default(),
            asked: RefCell::default(),
            promised: RefCell::default(),
            timers: RefCell::default(),
            spawned: RefCell::default(),
            tasks: RefCell::default(),
        }
    };
}

// Apart from the rest: each use of a block needs them, and these cost an instruction each.
thread_local! {
    /// The number of times that a task did not wait.
    static HITS: Cell<u32> = const { Cell::new(0) };
    /// The [`Possession`]s of the task that is being polled.
    static POSSESSIONS: Cell<u32> = const { Cell::new(0) };
}

/// Marks the thread as one that runs no task, when dropped.
struct Ends<'a>(&'a ThreadState);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.is_running.set(false);
        self.0.delegate();
        *self.0.driven.borrow_mut() = None;
        // Requests of tasks that ended without waiting for the answer.
        self.0.see_to_requests(None);
    }
}

/// Runs a future to its end, and the [spawned](spawn) tasks of the thread meanwhile.
///
/// # Panics
/// In a task: a task must not block its thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    THREAD.with(|thread| {
        assert!(!thread.is_running.replace(true), "a task must not block its thread: await instead");
        let _ends = Ends(thread);
        let mut future = pin!(counts_possessions(future));
        let mut context = Context::from_waker(&thread.waker);
        loop {
            // What is set from here on shows that a task can go on.
            thread.bell.signal.take();
            if let Poll::Ready(result) = future.as_mut().poll(&mut context) {
                return result;
            }
            thread.poll_spawned(&mut context);
            thread.wait();
        }
    })
}

/// Runs tasks until all have ended, and returns their results in the order in which they ended.
///
/// # Panics
/// As [`block_on`].
pub fn run<T>(tasks: impl IntoIterator<Item: Future<Output = T>>) -> Vec<T> {
    let mut tasks: FuturesUnordered<_> =
        tasks.into_iter().map(|task| Box::pin(counts_possessions(task))).collect();
    let mut results = Vec::with_capacity(tasks.len());
    block_on(poll_fn(|context| {
        loop {
            match pin!(&mut tasks).poll_next(context) {
                Poll::Ready(Some(result)) => results.push(result),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }));
    results
}

/// Returns whether the calling thread runs tasks.
#[must_use]
pub fn is_running() -> bool {
    THREAD.with(|thread| thread.is_running.get())
}

impl ThreadState {
    /// Polls the spawned tasks that can go on.
    fn poll_spawned(&self, context: &mut Context<'_>) {
        let mut tasks = self.tasks.borrow_mut();
        if tasks.is_empty() && self.spawned.borrow().is_empty() {
            return;
        }
        loop {
            tasks.extend(self.spawned.take());
            match pin!(&mut *tasks).poll_next(context) {
                Poll::Ready(Some(())) => {}
                Poll::Ready(None) | Poll::Pending if !self.spawned.borrow().is_empty() => {}
                Poll::Ready(None) | Poll::Pending => return,
            }
        }
    }

    /// Waits until a task can go on.
    fn wait(&self) {
        let signal = &self.bell.signal;
        let until = self.timers.borrow().next();
        let driven = match signal.is_set() || self.bell.waits.load(Relaxed) == 0 {
            true => None,
            false => self.driven.borrow().clone(),
        };
        self.see_to_requests(driven.as_ref());
        // It can do one work itself.
        let led = if driven.is_some() || signal.is_set() { None } else { self.promised.borrow_mut().pop() };
        self.delegate();
        let is_due = || until.is_some_and(|until| until <= clock::now());
        led.inspect(|work| work.lead(&|| signal.is_set() || is_due()));
        match driven {
            Some(worker) => worker.drive(signal, until),
            None => signal.park(until),
        }
        if until.is_some() {
            self.timers.borrow_mut().fire(clock::now());
        }
    }

    /// Lets other threads do the work that this one has promised.
    fn delegate(&self) {
        self.promised.take().iter().for_each(|work| work.delegate());
    }

    /// Ensures that the requests are handled at all workers but the one that the thread drives.
    fn see_to_requests(&self, driven: Option<&Arc<dyn Driven>>) {
        let is_driven = |worker: &Arc<dyn Driven>| {
            driven.is_some_and(|driven| std::ptr::addr_eq(Arc::as_ptr(driven), Arc::as_ptr(worker)))
        };
        // Without a new allocation for each wait. A worker's handlers do not wait.
        let mut asked = self.asked.borrow_mut();
        asked.drain(..).filter(|worker| !is_driven(worker)).for_each(|worker| worker.see_to_tasks());
    }
}

/// Notes a request that was queued at a worker without a wake-up. The thread sees to it when all
/// its tasks wait, and drives the worker if a task waits for an answer.
pub(crate) fn asked(worker: &Arc<impl Driven + 'static>) {
    let is_it = |known: &Arc<dyn Driven>| std::ptr::addr_eq(Arc::as_ptr(known), Arc::as_ptr(worker));
    THREAD.with(|thread| {
        let mut asked = thread.asked.borrow_mut();
        if !asked.iter().any(is_it) {
            asked.push(worker.clone());
        }
        let mut driven = thread.driven.borrow_mut();
        if !driven.as_ref().is_some_and(is_it) {
            *driven = Some(worker.clone());
        }
    });
}

/// Something that a task has and that others may wait for, such as a block, until this is dropped.
/// A task that has one must not wait for an answer: two tasks could wait for each other for ever.
/// It stays with its task.
pub struct Possession(PhantomData<*const ()>);

impl Possession {
    /// Counts one more for the task that is being polled.
    #[must_use]
    #[allow(clippy::new_without_default, reason = "it has an effect")]
    pub fn new() -> Self {
        POSSESSIONS.set(POSSESSIONS.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for Possession {
    fn drop(&mut self) {
        // It may be dropped with its task, when that is not polled.
        POSSESSIONS.set(POSSESSIONS.get().saturating_sub(1));
    }
}

/// Returns whether the task that is being polled has anything that others may wait for.
#[must_use]
pub fn has_possessions() -> bool {
    POSSESSIONS.get() > 0
}

/// Counts the possessions of a task apart from those of others; tasks of this executor do.
#[doc(hidden)]
pub async fn counts_possessions<T>(task: impl Future<Output = T>) -> T {
    struct Exchange<'a>(&'a Cell<u32>);

    impl<'a> Exchange<'a> {
        fn new(own: &'a Cell<u32>) -> Self {
            own.set(POSSESSIONS.replace(own.get()));
            Self(own)
        }
    }

    impl Drop for Exchange<'_> {
        fn drop(&mut self) {
            self.0.set(POSSESSIONS.replace(self.0.get()));
        }
    }

    let mut task = pin!(task);
    let own = Cell::new(0);
    poll_fn(|context| {
        let _exchange = Exchange::new(&own);
        task.as_mut().poll(context)
    })
    .await
}

/// A wait that a worker ends, until this is dropped. The thread that made it drives the worker
/// meanwhile.
pub(crate) struct WaitsForWorker(Arc<Bell>);

impl WaitsForWorker {
    pub(crate) fn new() -> Self {
        let bell = THREAD.with(|thread| Arc::clone(&thread.bell));
        bell.waits.fetch_add(1, Relaxed);
        Self(bell)
    }
}

impl Drop for WaitsForWorker {
    fn drop(&mut self) {
        self.0.waits.fetch_sub(1, Relaxed);
    }
}

/// Promises that the calling thread does or delegates the work when none of its tasks can go on.
/// Returns false, and promises nothing, if the thread runs no tasks.
pub fn promise(work: Arc<dyn SharedWork>) -> bool {
    THREAD.with(|thread| {
        if thread.is_running.get() {
            let mut promised = thread.promised.borrow_mut();
            if !promised.iter().any(|one| std::ptr::addr_eq(Arc::as_ptr(one), Arc::as_ptr(&work))) {
                promised.push(work);
            }
        }
        thread.is_running.get()
    })
}

/// Drops the spawned tasks of the calling thread.
fn drop_spawned() {
    THREAD.with(|thread| {
        let (spawned, tasks) = (thread.spawned.take(), thread.tasks.take());
        drop((spawned, tasks));
    });
}

/// Lets other tasks of the thread go on, once in a while. A task calls it each time that it did not
/// have to wait. `attend` lets the thread attend its worker.
pub async fn give_way(attend: impl FnOnce()) {
    let hits = HITS.get().wrapping_add(1);
    HITS.set(hits);
    if !hits.is_multiple_of(GIVE_WAY_EVERY) {
        return;
    }
    attend();
    yield_now().await;
}

/// Lets the other tasks of the thread go on that can.
pub async fn yield_now() {
    let mut has_given_way = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_given_way, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Waits for a time.
pub async fn sleep(time: Duration) {
    sleep_until(clock::now() + time).await;
}

/// Waits until a time.
pub async fn sleep_until(time: Nanos) {
    let mut timer = None;
    poll_fn(|context| {
        if time <= clock::now() {
            return Poll::Ready(());
        }
        timer = Some(timers::Timer::new(time, context.waker().clone()));
        Poll::Pending
    })
    .await;
}

/// Waits for a future, for at most `limit`. Returns `None` if the time is over, and drops the
/// future.
pub async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let mut sleep = pin!(sleep(limit));
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => sleep.as_mut().poll(context).map(|()| None),
    })
    .await
}

#[cfg(test)]
mod tests;
