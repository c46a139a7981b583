//! Tasks that are spawned on a thread, and their end.

use std::{
    any::Any,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    task::{Context, Poll},
};

use futures_util::{
    FutureExt,
    future::{AbortHandle, Abortable, LocalBoxFuture},
};

use super::THREAD;
use crate::{Answer, Reply};

/// A task of a thread, without its result.
pub(super) type SpawnedTask = LocalBoxFuture<'static, ()>;

/// A spawned task. It is a future that ends with the task: with its result, or `None` if the task
/// was cancelled or panicked. The task goes on if this is dropped.
pub struct Task<T> {
    result: Answer<T>,
    cancel: CancelHandle,
}

/// Cancels a task, from any thread.
#[derive(Clone)]
pub struct CancelHandle(AbortHandle);

impl CancelHandle {
    /// Lets the task end at its next wait: it is dropped there. A task that has ended stays so.
    pub fn cancel(&self) {
        self.0.abort();
    }
}

impl<T> Task<T> {
    /// Returns a handle that cancels the task.
    #[must_use]
    pub fn cancel_handle(&self) -> CancelHandle {
        self.cancel.clone()
    }

    /// Waits for the end of the task, which runs on another thread.
    ///
    /// # Panics
    /// In a task.
    pub fn wait(self) -> Option<T> {
        self.result.wait()
    }
}

impl<T> Future for Task<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        Pin::new(&mut self.result).poll(context)
    }
}

/// Adds a task to the calling thread. It runs while the thread [runs](super::block_on) tasks.
pub fn spawn<T: 'static>(future: impl Future<Output = T> + 'static) -> Task<T> {
    let (task, parts) = parts();
    start(future, parts);
    task
}

/// The ends of a task that the task itself needs.
pub(super) struct TaskParts<T> {
    reply: Reply<T>,
    registration: futures_util::future::AbortRegistration,
}

pub(super) fn parts<T>() -> (Task<T>, TaskParts<T>) {
    let (reply, result) = Reply::new();
    let (cancel, registration) = AbortHandle::new_pair();
    (Task { result, cancel: CancelHandle(cancel) }, TaskParts { reply, registration })
}

/// Adds a task with its parts to the calling thread.
pub(super) fn start<T: 'static>(future: impl Future<Output = T> + 'static, parts: TaskParts<T>) {
    let TaskParts { reply, registration } = parts;
    let counted = super::counts_possessions(future);
    let guarded = AssertUnwindSafe(Abortable::new(counted, registration)).catch_unwind();
    let task = guarded.map(|ended| match ended {
        Ok(Ok(result)) => reply.send(result),
        Ok(Err(_cancelled)) => {}
        Err(panic) => tracing::error!("a task panicked: {}", text_of(&*panic)),
    });
    THREAD.with(|thread| thread.spawned.borrow_mut().push(task.boxed_local()));
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
