//! How a thread waits for the answer of a worker.
//!
//! The worker has a [`Reply`], to be used once. The thread has a channel or a [`ReplySlot`]. A
//! channel lets it do something else meanwhile, or wait with a timeout. With a slot the thread
//! drives the worker until it has the answer: [`Worker::wait`](crate::Worker::wait) on the slot's
//! signal. A reply that is dropped tells the thread that no answer will come.

use std::sync::{Arc, Mutex, mpsc};

use crate::{Signal, sync::lock};

/// The worker's end of a request that a thread waits for.
pub struct Reply<T>(Option<To<T>>);

enum To<T> {
    Channel(mpsc::Sender<T>),
    Slot(Arc<ReplySlot<T>>),
}

impl<T> Reply<T> {
    /// Makes a reply and the channel that carries it.
    #[must_use]
    pub fn channel() -> (Self, mpsc::Receiver<T>) {
        let (sender, receiver) = mpsc::channel();
        (Self(Some(To::Channel(sender))), receiver)
    }

    /// Answers the request.
    pub fn send(mut self, answer: T) {
        match self.0.take() {
            // A thread that no longer waits does not need the answer.
            Some(To::Channel(sender)) => drop(sender.send(answer)),
            Some(To::Slot(slot)) => slot.set(Some(answer)),
            None => {}
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(To::Slot(slot)) = self.0.take() {
            slot.set(None);
        }
    }
}

/// The reply slot of a thread that drives the worker while it waits. It serves one request at a
/// time and is used again.
///
/// It belongs to the thread that made it, as its [`Signal`] does.
pub struct ReplySlot<T> {
    signal: Signal,
    answer: Mutex<Option<T>>,
}

impl<T> ReplySlot<T> {
    /// Makes a slot of the calling thread.
    #[must_use]
    #[allow(clippy::new_ret_no_self, reason = "replies share it with its thread")]
    pub fn new() -> Arc<Self> {
        Arc::new(Self { signal: Signal::new(), answer: Mutex::new(None) })
    }

    /// Returns the worker's end of the next request.
    #[must_use]
    pub fn reply(self: &Arc<Self>) -> Reply<T> {
        Reply(Some(To::Slot(self.clone())))
    }

    /// Returns the signal to wait for.
    #[must_use]
    pub fn signal(&self) -> &Signal {
        &self.signal
    }

    /// Takes the answer after a wait for the signal; `None` if there will be none.
    #[must_use]
    pub fn take(&self) -> Option<T> {
        lock(&self.answer).take()
    }

    fn set(&self, answer: Option<T>) {
        *lock(&self.answer) = answer;
        self.signal.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_answered_once_for_each_request() {
        let slot = ReplySlot::new();
        for answer in [7, 8] {
            slot.reply().send(answer);
            assert_eq!((slot.signal().take(), slot.take()), (Some(0), Some(answer)));
        }
        assert_eq!((slot.signal().take(), slot.take()), (None, None));
    }

    #[test]
    fn a_reply_that_is_dropped_says_that_no_answer_will_come() {
        let slot = ReplySlot::<u8>::new();
        drop(slot.reply());
        assert_eq!((slot.signal().take(), slot.take()), (Some(0), None));
        let (reply, told) = Reply::<u8>::channel();
        drop(reply);
        assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected));
    }
}
