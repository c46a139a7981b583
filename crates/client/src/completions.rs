//! Completion queues, which report the end of posted operations.
//!
//! Each posted operation reserves room for its completion, until the program takes the completion.
//! A program that never takes completions therefore gets [`Error::Busy`] and does not fill its
//! memory.

use std::{collections::VecDeque, time::Duration};

use plexus_base::Waiting;

use crate::{Address, Client, Error};

/// The maximum of completions that are in a queue or reserved.
const MAX_OWED: usize = 8192;

/// The operation that a completion belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A message was put into a receive of its receiver.
    Send,
    /// A message has arrived.
    Receive,
    /// Bytes were written to a window and all its copies.
    Put,
    /// Bytes of a window were read.
    Get,
    /// A number was added to a word of a window.
    FetchAdd,
    /// A word of a window was compared and, if it had the expected value, replaced.
    CompareSwap,
}

/// The result of a posted operation.
#[derive(Debug)]
pub struct Completion {
    /// The cookie that the operation was posted with.
    pub cookie: u64,
    /// The port of the endpoint that it was posted to.
    pub endpoint: u32,
    /// The kind of operation.
    pub operation: Operation,
    /// The outcome. [`Error::TooLong`] means that a message did not fit its receive; `bytes` holds
    /// the part that did.
    pub result: Result<(), Error>,
    /// The earlier value of a word that the operation changed.
    pub value: u64,
    /// The received or read bytes.
    pub bytes: Vec<u8>,
    /// The sender of a received message.
    pub from: Option<Address>,
}

/// A queue that gets the completions of a program's endpoints.
pub struct CompletionQueue {
    pub(crate) client: Client,
    pub(crate) number: u64,
    waiting: Waiting,
}

/// The completions of a queue, and how many more are reserved.
#[derive(Default)]
pub(crate) struct Completions {
    done: VecDeque<Completion>,
    owed: usize,
}

impl Completions {
    pub(crate) fn reserve(&mut self) -> Result<(), Error> {
        if self.owed >= MAX_OWED {
            return Err(Error::Busy("completions in a queue or reserved"));
        }
        self.owed += 1;
        Ok(())
    }

    pub(crate) fn unreserve(&mut self, count: usize) {
        self.owed -= count;
    }

    pub(crate) fn push(&mut self, completion: Completion) {
        self.done.push_back(completion);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.done.is_empty()
    }

    fn pop(&mut self) -> Option<Completion> {
        let completion = self.done.pop_front()?;
        self.owed -= 1;
        Some(completion)
    }
}

impl Client {
    /// Creates a queue for completions; `waiting` sets how threads wait for them.
    #[must_use]
    pub fn completion_queue(&self, waiting: Waiting) -> CompletionQueue {
        let number = self.shared.act(|core| {
            let number = core.next();
            core.queues.insert(number, Completions::default());
            number
        });
        CompletionQueue { client: self.clone(), number, waiting }
    }
}

impl CompletionQueue {
    /// Takes the oldest completion, if there is one.
    ///
    /// # Errors
    /// [`Error::NodeLost`]: the node has ended and no completion is left.
    pub fn poll(&self) -> Result<Option<Completion>, Error> {
        match self.wait(Some(Duration::ZERO)) {
            Ok(completion) => Ok(Some(completion)),
            Err(Error::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits up to `limit` for the oldest completion and takes it; `None` waits forever.
    ///
    /// # Errors
    /// [`Error::TimedOut`]: no completion came within `limit`.
    pub fn wait(&self, limit: Option<Duration>) -> Result<Completion, Error> {
        self.client.shared.wait(self.waiting, limit, |core| core.queues.get_mut(&self.number)?.pop())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.client.shared.act(|core| core.queues.remove(&self.number));
    }
}
