//! The threads that wait for slow storage: one for the copies of this node, one for the voting
//! files.

use std::{
    io,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak, mpsc},
    thread::{self, JoinHandle},
    time::Duration,
};

use plexus_base::{
    Epoch,
    latest::{LatestWork, NextWork},
};
use plexus_membership::runtime::Membership;

use crate::{
    Copies,
    protocol::Contents,
    service::{RegistryPort, RegistryTask, WORKER},
    shared::Shared,
};

/// How long after a failure of a copy, or without space for larger contents, it is tried again.
const REPAIR_EVERY: Duration = Duration::from_secs(1);

/// The number of failures in a row, [`REPAIR_EVERY`] apart, after which copies count as unwritable.
const LASTING: u32 = 2;

/// The failures in a row to write either copy, for another reason than a full disk.
#[derive(Default)]
struct Failures(u32);

impl Failures {
    /// Counts an attempt. Returns whether the copies can be written, if that has changed, and with
    /// each failed repair while they cannot. Failed saves count once until a repair is due: several
    /// may follow each other at once, and nodes that share a directory must have time to say the
    /// same.
    fn count(&mut self, is_unwritable: bool, is_repair: bool) -> Option<bool> {
        let could_write = self.0 < LASTING;
        self.0 = match (is_unwritable, is_repair) {
            (false, _) => 0,
            (true, true) => self.0.saturating_add(1),
            (true, false) => self.0.max(1),
        };
        let can_write = self.0 < LASTING;
        (can_write != could_write || !can_write && is_repair).then_some(can_write)
    }
}

/// A store that remembers for the whole cluster which generation was written last: the voting
/// files.
pub trait Memory: Send + Sync + 'static {
    /// Notes that the registry has this generation. It may be remembered later, or with the next
    /// one.
    fn note(&self, generation: u64);

    /// Waits until `generation` (0: none) is remembered. Returns the greatest remembered
    /// generation, read after this call. `None` if the node ends.
    fn remember(&self, generation: u64) -> Option<u64>;
}

/// The membership starts when the services of its node are wired, and uses them, so they hold it
/// weakly.
impl Memory for OnceLock<Weak<Membership>> {
    fn note(&self, generation: u64) {
        if let Some(membership) = self.get().and_then(Weak::upgrade) {
            membership.registry(generation);
        }
    }

    fn remember(&self, generation: u64) -> Option<u64> {
        self.wait().upgrade()?.remember(generation).ok()
    }
}

pub(crate) struct Keeper {
    /// The contents to be saved.
    to_save: Arc<LatestWork<Arc<Contents>>>,
    /// `None` once no more requests are sent.
    asks: Mutex<Option<mpsc::Sender<(Epoch, u64)>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Keeper {
    /// Starts both threads. They send their results to the worker behind `port`, the first when it
    /// has asked for something.
    pub(crate) fn start(
        copies: Copies,
        memory: Arc<dyn Memory>,
        shared: &Arc<Shared>,
        port: &Weak<RegistryPort>,
    ) -> io::Result<Self> {
        let to_save = Arc::default();
        let mut saver = Saver {
            to_save: Arc::clone(&to_save),
            copies,
            shared: Arc::clone(shared),
            port: port.clone(),
            unapplied: None,
            has_room: true,
            failures: Failures::default(),
        };
        saver.tell();
        saver.reserve();
        let (asks, asked) = mpsc::channel();
        let port = port.clone();
        let remembers = thread::Builder::new().name("plexus-remember".into());
        let remembers = remembers.spawn(move || remember(&*memory, &asked, &port))?;
        let saves = thread::Builder::new().name("plexus-registry".into()).spawn(move || saver.run())?;
        Ok(Self { to_save, asks: Mutex::new(Some(asks)), threads: Mutex::new(vec![remembers, saves]) })
    }

    /// Queues contents to be saved. Newer contents replace queued ones.
    pub(crate) fn save(&self, contents: Arc<Contents>) {
        self.to_save.put(contents);
    }

    /// Queues a generation to be remembered.
    pub(crate) fn remember(&self, epoch: Epoch, generation: u64) {
        let asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        // The receiver is gone when the node ends.
        if let Some(asks) = &*asks {
            let _ = asks.send((epoch, generation));
        }
    }

    /// Stops the threads from starting new work.
    pub(crate) fn stop(&self) {
        self.to_save.close();
    }

    /// Stops the threads and waits for their work under way, after the memory has ended. Do not
    /// call it on a worker, for which the threads may be waiting.
    pub(crate) fn end(&self) {
        self.stop();
        drop(self.asks.lock().unwrap_or_else(PoisonError::into_inner).take());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic was reported when it happened. One of these threads may drop the last handle
            // itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop();
    }
}

fn remember(memory: &dyn Memory, asked: &mpsc::Receiver<(Epoch, u64)>, port: &Weak<RegistryPort>) {
    while let Ok((epoch, generation)) = asked.recv() {
        let Some(known) = memory.remember(generation) else { return };
        let Some(port) = port.upgrade() else { return };
        port.submit(WORKER, RegistryTask::Remembered(epoch, known));
    }
}

struct Saver {
    to_save: Arc<LatestWork<Arc<Contents>>>,
    copies: Copies,
    shared: Arc<Shared>,
    port: Weak<RegistryPort>,
    /// The newest contents that were to be saved, until they are applied.
    unapplied: Option<Arc<Contents>>,
    /// True if the copies have space for larger contents.
    has_room: bool,
    failures: Failures,
}

impl Saver {
    fn run(mut self) {
        let mut has_saved = false;
        loop {
            // Before the first save there is nothing to repair with, and perhaps no worker yet.
            let is_sick = has_saved && (!self.has_room || self.copies.trouble().next().is_some());
            let (saved, is_repair) = match self.to_save.next(is_sick.then_some(REPAIR_EVERY)) {
                NextWork::Ready(contents) => {
                    has_saved = true;
                    self.unapplied = Some(Arc::clone(&contents));
                    (self.copies.save(contents), false)
                }
                NextWork::TimedOut => (self.copies.repair(), true),
                NextWork::Closed => return,
            };
            if saved.is_some() {
                self.unapplied.take().into_iter().for_each(|contents| self.shared.apply(contents));
            }
            // Reported before the save, so that the coordinator knows it when it accepts the next
            // command.
            let room = self.reserve().map(RegistryTask::Room);
            let can_write = self.failures.count(self.copies.is_unwritable(), is_repair);
            let can_write = can_write.map(RegistryTask::CanWrite);
            self.tell();
            if let Some(port) = self.port.upgrade() {
                let tasks = room.into_iter().chain(can_write).chain(saved.map(RegistryTask::Saved));
                tasks.for_each(|task| port.submit(WORKER, task));
            }
        }
    }

    /// Reserves space for larger contents. Returns whether there is any, if it is not as before.
    fn reserve(&mut self) -> Option<bool> {
        let named =
            |why| format!("the registry refuses changes: no space can be kept for its next copy: {why}");
        let full = self.copies.reserve().map_err(named).err();
        let has_room = full.is_none();
        let is_new = std::mem::replace(&mut self.has_room, has_room) != has_room;
        if is_new {
            match &full {
                Some(full) => tracing::warn!("{full}"),
                None => tracing::info!("the registry takes changes again: its next copy has space"),
            }
        }
        self.shared.board().full = full;
        is_new.then_some(has_room)
    }

    /// Reports the problems of the copies, if they have changed.
    fn tell(&self) {
        let now: Vec<String> = self.copies.trouble().map(str::to_owned).collect();
        let mut board = self.shared.board();
        for what in now.iter().filter(|what| !board.trouble.contains(what)) {
            tracing::warn!("a copy of the registry: {what}; it is written again as soon as that is possible");
        }
        if now.is_empty() && !board.trouble.is_empty() {
            tracing::info!("both copies of the registry are whole again");
        }
        board.trouble = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_saves_that_follow_each_other_at_once_are_one_failure() {
        let mut failures = Failures::default();
        assert!((0..5).all(|_| failures.count(true, false).is_none()));
        assert_eq!(failures.count(true, true), Some(false));
        // A node leaves when it says this again.
        assert_eq!(failures.count(true, false), None);
        assert_eq!(failures.count(true, true), Some(false));
        assert_eq!(failures.count(false, false), Some(true));
        assert_eq!(failures.count(false, true), None);
    }
}
