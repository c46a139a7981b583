//! Windows: named memory of a node that programs of all nodes share.
//!
//! A window is at the node of the program that created it, its *home*. The home does all accesses,
//! one after the other. A node whose programs map the window keeps a copy. The home writes each
//! change to every copy, in the same order for all. [`ClientWindow::put`],
//! [`ClientWindow::fetch_add`] and [`ClientWindow::compare_swap`] return when the change is in all
//! copies. So a program that hears of the change from the caller finds it in its copy.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use plexus_base::{MAX_NODES, NodeId};

use crate::{
    Client, Error,
    client::verify_node,
    core::{Finished, Limited, WindowState, window_result},
    wire::{
        Head, Status, Use, Verb, hash,
        limits::{self, MAX_MESSAGE},
    },
};

/// A window, given back when dropped. If this program created it, dropping it ends the window.
pub struct ClientWindow {
    client: Client,
    home: NodeId,
    worker: usize,
    /// This program's number of the window.
    pub(crate) number: u32,
    len: u64,
    /// The offset of this node's copy in its arena plus one; 0 if the window is not mapped.
    mapped: AtomicU64,
}

impl Client {
    /// Creates a window of `len` zero bytes, a multiple of 8, under a name that is unique on this
    /// node.
    ///
    /// # Errors
    /// [`Error::Taken`], [`Error::NoRoom`].
    pub fn create_window(&self, name: &str, len: u64) -> Result<ClientWindow, Error> {
        if len == 0 || !len.is_multiple_of(8) {
            return Err(Error::Argument("the length of a window must be a positive multiple of 8"));
        }
        let (number, done) = self.window_number(name, |core, worker, head| {
            Ok(core.ask(worker, Head { value: len, ..head(Verb::Create) }, name.as_bytes()))
        })?;
        let window = self.window(name, self.node(), number, done.status, len)?;
        window.mapped.store(done.value + 1, Ordering::Release);
        Ok(window)
    }

    /// Opens the window of that name at `node`.
    ///
    /// # Errors
    /// [`Error::NoWindow`], [`Error::NodeGone`].
    pub fn open_window(&self, node: NodeId, name: &str) -> Result<ClientWindow, Error> {
        verify_node(node)?;
        let (number, done) = self.window_number(name, |core, worker, head| {
            core.request_limited(Limited::Access, worker, Head { node, ..head(Verb::Open) }, name.as_bytes())
        })?;
        self.window(name, node, number, done.status, done.value)
    }

    /// Opens the window of that name at the first node that has one, beginning with this node.
    ///
    /// # Errors
    /// [`Error::NoWindow`]: no reachable node has one.
    pub fn find_window(&self, name: &str) -> Result<ClientWindow, Error> {
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
        ask: impl FnOnce(&mut crate::core::ClientCore, usize, &dyn Fn(Verb) -> Head) -> Result<u64, Error>,
    ) -> Result<(u32, Finished), Error> {
        if name.is_empty() || name.len() > limits::MAX_NAME {
            return Err(Error::Argument("the name of a window must have 1 to 64 bytes"));
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
    ) -> Result<ClientWindow, Error> {
        let worker = self.shared.act(|core| core.worker(hash(name.as_bytes())));
        // If this returns an error, dropping it removes the entry here; the node then has no such
        // window.
        let window =
            ClientWindow { client: self.clone(), home, worker, number, len, mapped: AtomicU64::new(0) };
        match status {
            Status::Ok => Ok(window),
            Status::InUse => Err(Error::Taken(format!("the name {name:?}"))),
            Status::NoRoom => Err(Error::NoRoom(len)),
            Status::NodeGone => Err(Error::NodeGone(home)),
            status => Err(window_result(status).err().unwrap_or(Error::NoWindow)),
        }
    }
}

impl ClientWindow {
    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the window has no bytes, which is never the case.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the node that has the window.
    #[must_use]
    pub fn home(&self) -> NodeId {
        self.home
    }

    /// Makes this node keep a copy that programs read in place. For its creator a window is mapped
    /// from the start. The copy ends when the last program of the node that mapped it drops the
    /// window.
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

    /// Reads from this node's copy; see [`ClientWindow::map`]. Concurrent writes may be half
    /// visible in ranges longer than a word.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`], or the window is not mapped.
    /// - [`Error::NoWindow`], [`Error::NodeGone`]: the window has ended.
    /// - [`Error::NodeLost`]: this program's node has ended.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), Error> {
        let place = self.place(offset, into.len() as u64)?;
        self.alive()?;
        if self.client.shared.arena.read(place, into) { Ok(()) } else { Err(Error::OutOfRange) }
    }

    /// Reads the little-endian word at `offset`, a multiple of 8, of this node's copy. It never
    /// sees half of a change. This only reads memory and does not check that the window still
    /// exists; after its end the word keeps its last value.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], or the window is not mapped.
    #[inline]
    pub fn load(&self, offset: u64) -> Result<u64, Error> {
        let place = self.place(offset, 8)?;
        self.client.shared.arena.load(place).ok_or(Error::OutOfRange)
    }

    /// Waits up to `limit` until the word at `offset` of this node's copy satisfies `wanted`, and
    /// returns the word; `None` waits forever.
    ///
    /// # Errors
    /// The errors of [`ClientWindow::read`], and [`Error::TimedOut`].
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
            // `wanted` may need the lock, so it is not called under it.
            if wanted(word) {
                return Ok(word);
            }
            seen = Some(word);
        }
    }

    /// Returns the word at `offset` as soon as it differs from `seen`.
    fn next_word(&self, offset: u64, seen: Option<u64>, limit: Option<Duration>) -> Result<u64, Error> {
        self.place(offset, 8)?;
        let key = (self.worker, self.number);
        self.client.shared.wait(self.client.waiting(), limit, |core| {
            let state = core.windows.get_mut(&key)?;
            if let Some(status) = state.gone {
                return Some(Err(self.error(status)));
            }
            // The node answers once it will announce the next change. The look after the answer
            // sees earlier changes.
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

    /// Writes at the window's home and in every copy. More than [`MAX_MESSAGE`] bytes are written
    /// in pieces, with changes of other programs in between. An aligned word of eight bytes is
    /// never seen half written.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::NoWindow`], or [`Error::NodeGone`]. After the last, some
    /// copies may have the change and others not.
    pub fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (piece, behind) = rest.split_at(piece(at, rest.len()));
            self.access(Verb::Put, at, piece)?;
            (at, rest) = (at + piece.len() as u64, behind);
        }
        Ok(())
    }

    /// Adds to the word at `offset`, a multiple of 8, wrapping around. Returns the earlier value.
    ///
    /// # Errors
    /// The errors of [`ClientWindow::put`].
    pub fn fetch_add(&self, offset: u64, add: u64) -> Result<u64, Error> {
        Ok(self.access(Verb::Add, offset, &add.to_le_bytes())?.value)
    }

    /// Sets the word at `offset`, a multiple of 8, to `new` if it is `expected`. Returns the
    /// earlier value.
    ///
    /// # Errors
    /// The errors of [`ClientWindow::put`].
    pub fn compare_swap(&self, offset: u64, expected: u64, new: u64) -> Result<u64, Error> {
        Ok(self.access(Verb::Swap, offset, &swap(expected, new))?.value)
    }

    fn access(&self, verb: Verb, offset: u64, operand: &[u8]) -> Result<Finished, Error> {
        let done = self.ask(|core, head| {
            let head = Head { value: offset, ..head(verb) };
            core.request_limited(Limited::Access, self.worker, head, operand)
        })?;
        match done.status {
            Status::Ok => Ok(done),
            status => Err(self.error(status)),
        }
    }

    fn ask(
        &self,
        ask: impl FnOnce(&mut crate::core::ClientCore, &dyn Fn(Verb) -> Head) -> Result<u64, Error>,
    ) -> Result<Finished, Error> {
        let head = |verb| self.head(verb);
        let id = self.client.shared.act(|core| ask(core, &head))?;
        self.client.result(id, None)
    }

    /// Returns the head of a request about this window.
    pub(crate) fn head(&self, verb: Verb) -> Head {
        Head { port: self.number, ..Head::new(verb, Use::Windows) }
    }

    /// Returns the worker that serves this window.
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

impl Drop for ClientWindow {
    fn drop(&mut self) {
        let close = self.head(Verb::Close);
        self.client.shared.act(|core| {
            core.windows.remove(&(self.worker, self.number));
            core.send(self.worker, close, &[]);
        });
    }
}

/// Returns how many of `rest` bytes at `offset` one access covers, so that no word is split.
fn piece(offset: u64, rest: usize) -> usize {
    if rest <= MAX_MESSAGE { rest } else { MAX_MESSAGE - (offset % 8) as usize }
}

const _: () = assert!(MAX_MESSAGE.is_multiple_of(8));

/// Returns the operands of a compare-and-swap.
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
