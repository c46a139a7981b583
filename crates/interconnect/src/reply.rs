//! The answer of a worker to a request.
//!
//! The worker has a [`Reply`], to be used once. The client has the [`Answer`], a future: a task
//! awaits it, a thread [waits](Answer::wait) for it. A reply that is dropped tells the client that
//! no answer will come. A client that drops the answer needs none: the worker learns it when it
//! sends.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use crate::{
    executor::{self, WaitsForWorker},
    sync::lock,
};

enum State<T> {
    /// No answer yet; the task that waits for it, once it does.
    Open(Option<Waker>),
    /// The answer; `None`: there will be none.
    Answered(Option<T>),
    /// The client has taken the answer, or needs none.
    Over,
}

type Cell<T> = Arc<Mutex<State<T>>>;

/// The worker's end of a request.
pub struct Reply<T>(Option<Cell<T>>);

impl<T> Reply<T> {
    /// Makes the two ends of a request.
    #[must_use]
    #[allow(clippy::new_ret_no_self, reason = "the ends belong together")]
    pub fn new() -> (Self, Answer<T>) {
        let cell = Arc::new(Mutex::new(State::Open(None)));
        (Self(Some(Arc::clone(&cell))), Answer { cell, waits: None, is_safe: false })
    }

    /// Makes the reply to a request whose answer no client needs.
    #[must_use]
    pub fn unwanted() -> Self {
        Self(None)
    }

    /// Answers the request.
    pub fn send(self, answer: T) {
        drop(self.deliver(answer));
    }

    /// Answers the request. Returns the answer if the client does not need it any more.
    pub fn deliver(mut self, answer: T) -> Option<T> {
        match self.0.take() {
            Some(cell) => set(&cell, Some(answer)),
            None => Some(answer),
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(cell) = self.0.take() {
            set(&cell, None);
        }
    }
}

fn set<T>(cell: &Mutex<State<T>>, answer: Option<T>) -> Option<T> {
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

/// The client's end of a request: ends with the answer, or with `None` if there will be none.
pub struct Answer<T> {
    cell: Cell<T>,
    waits: Option<WaitsForWorker>,
    /// True if a task may wait for it that has what others wait for.
    is_safe: bool,
}

impl<T> Answer<T> {
    /// Allows a task to wait for it that [has](executor::Possession) what others wait for, because
    /// the answer depends on no other task.
    #[must_use]
    pub fn safe(mut self) -> Self {
        self.is_safe = true;
        self
    }

    /// Waits for the answer.
    ///
    /// # Panics
    /// In a task: a task awaits the answer.
    pub fn wait(self) -> Option<T> {
        executor::block_on(self)
    }

    /// Waits for the answer, for at most `limit`.
    ///
    /// # Errors
    /// The answer itself if it has not come.
    ///
    /// # Panics
    /// As [`Answer::wait`].
    pub fn wait_for(mut self, limit: Duration) -> Result<Option<T>, Self> {
        executor::block_on(executor::timeout(limit, &mut self)).ok_or(self)
    }

    /// Takes an answer that has come. Without one the worker learns, when it sends, that none is
    /// needed any more.
    pub fn take(&mut self) -> Option<T> {
        match std::mem::replace(&mut *lock(&self.cell), State::Over) {
            State::Answered(answer) => answer,
            State::Open(_) | State::Over => None,
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.cell);
        match std::mem::replace(&mut *state, State::Over) {
            State::Answered(answer) => {
                drop(state);
                self.waits = None;
                Poll::Ready(answer)
            }
            State::Open(_) => {
                *state = State::Open(Some(context.waker().clone()));
                drop(state);
                let may_wait = self.is_safe || !executor::has_possessions();
                assert!(may_wait, "a task that has a block must not wait for what another task may have");
                self.waits.get_or_insert_with(WaitsForWorker::new);
                Poll::Pending
            }
            State::Over => Poll::Ready(None),
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        self.take();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn poll<T>(answer: Pin<&mut Answer<T>>) -> Poll<Option<T>> {
        answer.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn an_answer_reaches_the_client_or_goes_back() {
        let (reply, answer) = Reply::new();
        let mut answer = pin!(answer);
        assert_eq!(poll(answer.as_mut()), Poll::Pending);
        assert_eq!(reply.deliver(7), None);
        assert_eq!(poll(answer.as_mut()), Poll::Ready(Some(7)));
        assert_eq!(poll(answer), Poll::Ready(None), "it is answered once");

        let (reply, answer) = Reply::<u8>::new();
        drop(reply);
        assert_eq!(poll(pin!(answer)), Poll::Ready(None), "no answer will come");

        let (reply, answer) = Reply::new();
        drop(answer);
        assert_eq!(reply.deliver(7), Some(7), "the worker has it back");

        let (reply, mut answer) = Reply::new();
        assert_eq!(reply.deliver(7), None);
        assert_eq!((answer.take(), answer.take()), (Some(7), None), "the client gives it back");
        assert_eq!(Reply::unwanted().deliver(7), Some(7));
    }

    #[test]
    fn a_thread_waits_for_an_answer_as_long_as_it_wants() {
        let (reply, answer) = Reply::new();
        let Err(answer) = answer.wait_for(Duration::from_millis(1)) else { panic!("there is no answer") };
        let answers = std::thread::spawn(move || reply.deliver(5));
        assert_eq!(answer.wait(), Some(5));
        assert_eq!(answers.join().unwrap(), None);
        let (reply, answer) = Reply::<u8>::new();
        drop(reply);
        assert_eq!(answer.wait_for(Duration::from_secs(60)).ok(), Some(None));
    }
}
