//! Windows: named memory of a node that programs of all nodes share.
//!
//! A window lives at the node of the program that created it, its *home*. Every access is done there, one after the
//! other. A node whose programs map the window keeps a copy: what changes at home is then written to every copy, in the
//! same order for all. [`Window::put`], [`Window::fetch_add`] and [`Window::compare_swap`] return when what they changed is in all
//! of them, so whoever hears of it from the caller and then looks at its copy finds it.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use plexus_base::{MAX_NODES, NodeId};

use crate::{
    Client, Error, MAX_MESSAGE,
    client::verify_node,
    core::{Finished, Limited, WindowState, window_result},
    wire::{Head, Status, Use, Verb, hash, limits},
};

/// A window; given back when dropped, which ends it where this program created it.
pub struct Window {
    client: Client,
    home: NodeId,
    worker: usize,
    /// This program's number for it.
    pub(crate) number: u32,
    len: u64,
    /// One more than where the copy of this node lies in its arena; 0: not mapped.
    mapped: AtomicU64,
}

impl Client {
    /// Makes a window of `len` bytes, all zero, a multiple of 8, under a name that no other window of this node has.
    ///
    /// # Errors
    /// [`Error::Taken`], [`Error::NoRoom`].
    pub fn create_window(&self, name: &str, len: u64) -> Result<Window, Error> {
        if len == 0 || !len.is_multiple_of(8) {
            return Err(Error::Argument("a window has a length that is a multiple of 8, and not 0"));
        }
        let (number, done) = self.window_number(name, |core, worker, head| {
            Ok(core.ask(worker, Head { value: len, ..head(Verb::Create) }, name.as_bytes()))
        })?;
        let window = self.window(name, self.node(), number, done.status, len)?;
        window.mapped.store(done.value + 1, Ordering::Release);
        Ok(window)
    }

    /// The window of that name at `node`.
    ///
    /// # Errors
    /// [`Error::NoWindow`], [`Error::NodeGone`].
    pub fn open_window(&self, node: NodeId, name: &str) -> Result<Window, Error> {
        verify_node(node)?;
        let (number, done) = self.window_number(name, |core, worker, head| {
            core.ask_limited(Limited::Access, worker, Head { node, ..head(Verb::Open) }, name.as_bytes())
        })?;
        self.window(name, node, number, done.status, done.value)
    }

    /// The window of that name at whichever node has one, this node first.
    ///
    /// # Errors
    /// [`Error::NoWindow`]: no node that can be reached has one.
    pub fn find_window(&self, name: &str) -> Result<Window, Error> {
        let others = (0..MAX_NODES as u8).map(NodeId).filter(|node| *node != self.node());
        for node in std::iter::once(self.node()).chain(others) {
            match self.open_window(node, name) {
                Err(Error::NoWindow | Error::NodeGone(_)) => {}
                found => return found,
            }
        }
        Err(Error::NoWindow)
    }

    fn window_number(
        &self,
        name: &str,
        ask: impl FnOnce(&mut crate::core::Core, usize, &dyn Fn(Verb) -> Head) -> Result<u64, Error>,
    ) -> Result<(u32, Finished), Error> {
        if name.is_empty() || name.len() > limits::MAX_NAME {
            return Err(Error::Argument("the name of a window has 1 to 64 bytes"));
        }
        let (number, id) = self.shared.act(|core| {
            let number = core.next() as u32;
            let worker = core.worker(hash(name.as_bytes()));
            core.windows.insert((worker, number), WindowState::default());
            let head = |verb| Head { port: number, ..Head::new(verb, Use::Windows) };
            (number, ask(core, worker, &head))
        });
        match id.and_then(|id| self.result(id, None)) {
            Ok(done) => Ok((number, done)),
            Err(error) => {
                self.shared.act(|core| {
                    let worker = core.worker(hash(name.as_bytes()));
                    core.windows.remove(&(worker, number));
                });
                Err(error)
            }
        }
    }

    fn window(
        &self,
        name: &str,
        home: NodeId,
        number: u32,
        status: Status,
        len: u64,
    ) -> Result<Window, Error> {
        let worker = self.shared.act(|core| core.worker(hash(name.as_bytes())));
        // Dropped on an error, it forgets what was noted of it; the node does not know it then.
        let window = Window { client: self.clone(), home, worker, number, len, mapped: AtomicU64::new(0) };
        match status {
            Status::Ok => Ok(window),
            Status::InUse => Err(Error::Taken(format!("the name {name:?}"))),
            Status::NoRoom => Err(Error::NoRoom(len)),
            Status::NodeGone => Err(Error::NodeGone(home)),
            status => Err(window_result(status).err().unwrap_or(Error::NoWindow)),
        }
    }
}

impl Window {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes; none has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The node that it lives at.
    #[must_use]
    pub fn home(&self) -> NodeId {
        self.home
    }

    /// Has this node keep a copy, and makes it readable in place. For its creator a window is mapped from the beginning. The copy
    /// is given up when the last program of the node that mapped it drops it.
    ///
    /// # Errors
    /// [`Error::NoRoom`] in this node's arena, [`Error::NoWindow`], [`Error::NodeGone`].
    pub fn map(&self) -> Result<(), Error> {
        let done = self.ask(|core, head| Ok(core.ask(self.worker, head(Verb::Map), &[])))?;
        match done.status {
            Status::Ok => {
                self.mapped.store(done.value + 1, Ordering::Release);
                Ok(())
            }
            Status::NoRoom => Err(Error::NoRoom(self.len)),
            status => Err(self.error(status)),
        }
    }

    /// Reads this node's copy; see [`Window::map`]. Others may write meanwhile: more than a word may be half old and half new.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; the window is not mapped; [`Error::NoWindow`], [`Error::NodeGone`]: it has ended;
    /// [`Error::NodeLost`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let place = self.place(offset, into.len() as u64)?;
        self.alive()?;
        if self.client.shared.arena.read(place, into) { Ok(()) } else { Err(Error::OutOfRange) }
    }

    /// Reads the word at `offset`, a multiple of 8, of this node's copy: little endian, and never half of a change. This is one
    /// look at memory, and an end of the window is not looked for: after it the word stays what it was last.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; the window is not mapped.
    #[inline]
    pub fn load(&self, offset: u64) -> Result<u64, Error> {
        let place = self.place(offset, 8)?;
        self.client.shared.arena.load(place).ok_or(Error::OutOfRange)
    }

    /// Waits up to `limit` (`None`: without end) until the word at `offset` of this node's copy is one that `wanted` likes; the word.
    ///
    /// # Errors
    /// As [`Window::read`]; [`Error::TimedOut`].
    pub fn wait_word(
        &self,
        offset: u64,
        limit: Option<Duration>,
        mut wanted: impl FnMut(u64) -> bool,
    ) -> Result<u64, Error> {
        let end = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut seen = None;
        loop {
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            let word = self.next_word(offset, seen, left)?;
            // Not under the lock: what it calls may need it.
            if wanted(word) {
                return Ok(word);
            }
            seen = Some(word);
        }
    }

    /// The word at `offset` as soon as it is not the one that was seen.
    fn next_word(&self, offset: u64, seen: Option<u64>, limit: Option<Duration>) -> Result<u64, Error> {
        self.place(offset, 8)?;
        let key = (self.worker, self.number);
        self.client.shared.wait(self.client.waiting(), limit, |core| {
            let state = core.windows.get_mut(&key)?;
            if let Some(status) = state.gone {
                return Some(Err(self.error(status)));
            }
            // The node answers when it will tell of the next change; what has changed until then is seen in the look that
            // follows the answer.
            if !std::mem::replace(&mut state.watched, true) {
                core.send(self.worker, self.head(Verb::Watch), &[]);
            }
            Some(self.load(offset)).filter(|word| !matches!(word, Ok(word) if Some(*word) == seen))
        })?
    }

    /// Reads at the window's home.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::NoWindow`], [`Error::NodeGone`].
    pub fn get(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let (mut at, mut rest) = (offset, into);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at_mut(piece(at, rest.len()));
            let len = (piece.len() as u64).to_le_bytes();
            let done = self.access(Verb::Get, at, &len)?;
            piece.copy_from_slice(done.bytes.get(..piece.len()).ok_or(Error::OutOfRange)?);
            (at, rest) = (at + piece.len() as u64, behind);
        }
        Ok(())
    }

    /// Writes at the window's home and in every copy. What is longer than [`MAX_MESSAGE`] is written in pieces; other programs'
    /// changes may come in between. No word, eight bytes at a multiple of 8, is ever seen half written.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::NoWindow`], [`Error::NodeGone`]: after that it may be in some copies and not in others.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(piece(at, rest.len()));
            self.access(Verb::Put, at, piece)?;
            (at, rest) = (at + piece.len() as u64, behind);
        }
        Ok(())
    }

    /// Adds to the word at `offset`, a multiple of 8, wrapping around; what it was before.
    ///
    /// # Errors
    /// As [`Window::put`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Error> {
        Ok(self.access(Verb::Add, offset, &add.to_le_bytes())?.value)
    }

    /// Makes the word at `offset`, a multiple of 8, `new` if it is `expected`; what it was before.
    ///
    /// # Errors
    /// As [`Window::put`].
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        Ok(self.access(Verb::Swap, offset, &swap(expected, new))?.value)
    }

    fn access(&self, verb: Verb, offset: u64, operand: &[u8]) -> Result<Finished, Error> {
        let done = self.ask(|core, head| {
            let head = Head { value: offset, ..head(verb) };
            core.ask_limited(Limited::Access, self.worker, head, operand)
        })?;
        match done.status {
            Status::Ok => Ok(done),
            status => Err(self.error(status)),
        }
    }

    fn ask(
        &self,
        ask: impl FnOnce(&mut crate::core::Core, &dyn Fn(Verb) -> Head) -> Result<u64, Error>,
    ) -> Result<Finished, Error> {
        let head = |verb| self.head(verb);
        let id = self.client.shared.act(|core| ask(core, &head))?;
        self.client.result(id, None)
    }

    /// The head of what is asked about it.
    pub(crate) fn head(&self, verb: Verb) -> Head {
        Head { port: self.number, ..Head::new(verb, Use::Windows) }
    }

    /// The worker that serves it.
    pub(crate) fn worker(&self) -> usize {
        self.worker
    }

    fn place(&self, offset: u64, len: u64) -> Result<u64, Error> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::OutOfRange);
        }
        match self.mapped.load(Ordering::Acquire) {
            0 => Err(Error::Argument("the window is not mapped here; map it first")),
            place => Ok(place - 1 + offset),
        }
    }

    fn alive(&self) -> Result<(), Error> {
        let key = (self.worker, self.number);
        let gone = self.client.shared.see(|core| core.windows.get(&key).and_then(|state| state.gone))?;
        gone.map_or(Ok(()), |status| Err(self.error(status)))
    }

    fn error(&self, status: Status) -> Error {
        match status {
            Status::NodeGone => Error::NodeGone(self.home),
            status => window_result(status).err().unwrap_or(Error::NoWindow),
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        let close = self.head(Verb::Close);
        self.client.shared.act(|core| {
            core.windows.remove(&(self.worker, self.number));
            core.send(self.worker, close, &[]);
        });
    }
}

/// How much of `rest` bytes at `offset` is accessed at once: no word is cut in two.
fn piece(offset: u64, rest: usize) -> usize {
    if rest <= MAX_MESSAGE { rest } else { MAX_MESSAGE - (offset % 8) as usize }
}

const _: () = assert!(MAX_MESSAGE.is_multiple_of(8));

/// The operands of a compare-and-swap.
pub(crate) fn swap(expected: u64, new: u64) -> [u8; 16] {
    let mut operands = [0; 16];
    operands[..8].copy_from_slice(&expected.to_le_bytes());
    operands[8..].copy_from_slice(&new.to_le_bytes());
    operands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_accesses_are_cut_between_words() {
        for (begin, len) in
            (0..9).flat_map(|begin| [0, 1, MAX_MESSAGE, 3 * MAX_MESSAGE + 5].map(|len| (begin, len)))
        {
            let (mut at, end) = (begin, begin + len as u64);
            while at < end {
                let piece = piece(at, (end - at) as usize);
                assert!(piece > 0 && piece <= MAX_MESSAGE);
                at += piece as u64;
                assert!(at == end || at.is_multiple_of(8), "{at} of {len} bytes at {begin}");
            }
            assert_eq!(at, end);
        }
    }
}
