//! Completion queues: where the ends of posted work are found.
//!
//! A queue has a place for the completion of everything that is posted to it, taken when it is posted and free again when
//! the completion is. So what a program posts and does not look after ends in [`Error::Busy`], not in its memory.

use std::{collections::VecDeque, time::Duration};

use plexus_base::Waiting;

use crate::{Address, Client, Error};

/// Completions that a queue has or will have.
const MAX_OWED: usize = 8192;

/// What a completion is the end of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// A message was put into a receive of its receiver.
    Send,
    /// A message has come.
    Receive,
    /// Bytes are in a window and in all its copies.
    Put,
    /// Bytes of a window are here.
    Get,
    /// A word of a window was added to.
    FetchAdd,
    /// A word of a window was compared and, if it was the expected one, replaced.
    CompareSwap,
}

/// The end of something that was posted.
#[derive(Debug)]
pub struct Completion {
    /// What it was posted with.
    pub cookie: u64,
    /// The port of the endpoint that it was posted to.
    pub endpoint: u32,
    /// What it was.
    pub operation: Operation,
    /// Whether it was done. An [`Error::TooLong`] says that a message did not fit its receive; `bytes` is what did.
    pub result: Result<(), Error>,
    /// The word as it was before, where one was changed.
    pub value: u64,
    /// What came, where something did.
    pub bytes: Vec<u8>,
    /// Who sent it.
    pub from: Option<Address>,
}

/// Where endpoints of one program put their completions.
pub struct CompletionQueue {
    pub(crate) client: Client,
    pub(crate) number: u64,
    waiting: Waiting,
}

/// The completions of a queue.
#[derive(Default)]
pub(crate) struct Completions {
    done: VecDeque<Completion>,
    owed: usize,
}

impl Completions {
    pub(crate) fn owe(&mut self) -> Result<(), Error> {
        if self.owed >= MAX_OWED {
            return Err(Error::Busy("completions in a queue and under way to it"));
        }
        self.owed += 1;
        Ok(())
    }

    pub(crate) fn forgive(&mut self, count: usize) {
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
    /// A queue for completions, and how threads wait for them.
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
    /// The oldest completion, if there is one.
    ///
    /// # Errors
    /// The node has ended and nothing more is there.
    pub fn poll(&self) -> Result<Option<Completion>, Error> {
        match self.wait(Some(Duration::ZERO)) {
            Ok(completion) => Ok(Some(completion)),
            Err(Error::TimedOut) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The oldest completion, for which it waits up to `limit` (`None`: without end).
    ///
    /// # Errors
    /// [`Error::TimedOut`].
    pub fn wait(&self, limit: Option<Duration>) -> Result<Completion, Error> {
        self.client.shared.wait(self.waiting, limit, |core| core.queues.get_mut(&self.number)?.pop())
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.client.shared.act(|core| core.queues.remove(&self.number));
    }
}
