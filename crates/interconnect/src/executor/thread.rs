//! A thread that runs tasks which other threads give it.

use std::{
    future::{Future, poll_fn},
    io, mem,
    sync::{Arc, Mutex},
    task::{Poll, Waker},
    thread,
};

use super::{
    Task, block_on,
    task::{parts, start},
};
use crate::sync::lock;

type Start = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    starts: Vec<Start>,
    waker: Option<Waker>,
    is_ending: bool,
}

/// A thread that runs tasks, until this is dropped.
pub struct TaskThread {
    queue: Arc<Mutex<Queue>>,
    thread: Option<thread::JoinHandle<()>>,
}

/// The bytes of stack of a thread. Statements of SQL can be deep; the memory is taken when it is
/// used.
const STACK: usize = 64 << 20;

impl TaskThread {
    /// Starts a thread. It gets the worker that it drives with the first request of a task.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(name: &str) -> io::Result<Self> {
        let queue = Arc::<Mutex<Queue>>::default();
        let served = Arc::clone(&queue);
        let builder = thread::Builder::new().name(name.into()).stack_size(STACK);
        let thread = builder.spawn(move || serve(&served))?;
        Ok(Self { queue, thread: Some(thread) })
    }

    /// Adds a task. `make` runs on the thread, so the task may use what belongs to the thread.
    pub fn spawn<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        make: impl FnOnce() -> F + Send + 'static,
    ) -> Task<T> {
        let (task, parts) = parts();
        self.tell(|queue| queue.starts.push(Box::new(move || start(make(), parts))));
        task
    }

    fn tell(&self, what: impl FnOnce(&mut Queue)) {
        let mut queue = lock(&self.queue);
        what(&mut queue);
        let waker = queue.waker.take();
        drop(queue);
        waker.into_iter().for_each(Waker::wake);
    }
}

impl Drop for TaskThread {
    /// Drops the tasks and waits for the end of the thread.
    fn drop(&mut self) {
        self.tell(|queue| queue.is_ending = true);
        // A panic was reported when it happened.
        self.thread.take().into_iter().for_each(|thread| drop(thread.join()));
    }
}

/// Starts each task of the queue, until the thread is to end.
fn serve(queue: &Mutex<Queue>) {
    block_on(poll_fn(|context| {
        let mut queue = lock(queue);
        let starts = mem::take(&mut queue.starts);
        queue.waker = Some(context.waker().clone());
        let is_ending = queue.is_ending;
        drop(queue);
        if is_ending {
            return Poll::Ready(());
        }
        starts.into_iter().for_each(|start| start());
        Poll::Pending
    }));
    super::drop_spawned();
}
