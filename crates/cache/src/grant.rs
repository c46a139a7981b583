//! The answer of a worker to a task that waits for a block.
//!
//! The task may end before the answer comes. Then the worker gets the block back at once, so no
//! frame stays pinned without a task.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::{
    protocol::{BlockError, Granted},
    tasks::Waiting,
};

/// The answer to a task that waits.
pub(crate) type Answer = Result<Granted, BlockError>;

enum State {
    /// No answer yet; the task that waits for it, once it does.
    Open(Option<Waker>),
    /// The answer; `None`: there will be none.
    Answered(Option<Answer>),
    /// The task has taken the answer, or needs none.
    Over,
}

type Cell = Arc<Mutex<State>>;

fn lock(cell: &Mutex<State>) -> MutexGuard<'_, State> {
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The worker's end of a request for a block. One that is dropped tells the task that no answer
/// comes.
pub struct GrantReply(Option<Cell>);

impl GrantReply {
    /// Makes the reply to a request of which nobody needs the answer.
    pub(crate) fn unwanted() -> Self {
        Self(None)
    }

    /// Answers the request. Returns the answer if the task does not need it any more.
    pub(crate) fn send(mut self, answer: Answer) -> Option<Answer> {
        match self.0.take() {
            Some(cell) => set(&cell, Some(answer)),
            None => Some(answer),
        }
    }
}

impl Drop for GrantReply {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            set(&cell, None);
        }
    }
}

fn set(cell: &Mutex<State>, answer: Option<Answer>) -> Option<Answer> {
    let mut state = lock(cell);
    match std::mem::replace(&mut *state, State::Over) {
        State::Open(waker) => {
            *state = State::Answered(answer);
            drop(state);
            waker.into_iter().for_each(Waker::wake);
            None
        }
        State::Answered(_) | State::Over => answer,
    }
}

/// The task's end: ends with the answer, or `None` if there will be none.
pub(crate) struct Grant<'a> {
    cell: Cell,
    /// Gives back a block that came too late.
    undo: &'a dyn Fn(Granted),
    _waiting: Waiting,
}

impl<'a> Grant<'a> {
    pub(crate) fn new(undo: &'a dyn Fn(Granted)) -> (Self, GrantReply) {
        let cell = Arc::new(Mutex::new(State::Open(None)));
        let reply = GrantReply(Some(Arc::clone(&cell)));
        (Self { cell, undo, _waiting: Waiting::new() }, reply)
    }
}

impl Future for Grant<'_> {
    type Output = Option<Answer>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        let mut state = lock(&self.cell);
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered(answer) => Poll::Ready(answer),
            State::Open(_) => {
                *state = State::Open(Some(context.waker().clone()));
                Poll::Pending
            }
            State::Over => Poll::Ready(None),
        }
    }
}

impl Drop for Grant<'_> {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut *lock(&self.cell), State::Over);
        if let State::Answered(Some(Ok(granted))) = state {
            (self.undo)(granted);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::protocol::Slot;

    const GRANTED: Answer = Ok(Granted::Pinned(Slot(7)));

    fn poll(grant: Pin<&mut Grant<'_>>) -> Poll<Option<Answer>> {
        grant.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_reaches_the_task_or_goes_back() {
        let undone = std::cell::Cell::new(0);
        let undo = |_| undone.set(undone.get() + 1);
        let (grant, reply) = Grant::new(&undo);
        let mut grant = pin!(grant);
        assert_eq!(poll(grant.as_mut()), Poll::Pending);
        assert_eq!(reply.send(GRANTED), None);
        assert_eq!(poll(grant.as_mut()), Poll::Ready(Some(GRANTED)));

        let (grant, reply) = Grant::new(&undo);
        drop(reply);
        assert_eq!(poll(pin!(grant)), Poll::Ready(None), "no answer will come");

        let (grant, reply) = Grant::new(&undo);
        drop(grant);
        assert_eq!((reply.send(GRANTED), undone.get()), (Some(GRANTED), 0), "the worker has it back");

        let (grant, reply) = Grant::new(&undo);
        assert_eq!(reply.send(GRANTED), None);
        drop(grant);
        assert_eq!(undone.get(), 1, "the task gives it back");
        assert_eq!(GrantReply::unwanted().send(GRANTED), Some(GRANTED));
    }
}
