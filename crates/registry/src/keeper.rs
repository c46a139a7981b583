//! The threads that wait for what is slow: one for the copies of this node, one for what remembers generations for all.

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
    service::{Port, RegistryTask, WORKER},
    shared::Shared,
};

/// How long after a copy failed it is tried again.
const REPAIR_EVERY: Duration = Duration::from_secs(1);

/// Remembers for the whole cluster which generation was written last: the voting files.
pub trait Memory: Send + Sync + 'static {
    /// The registry has this generation. It may be remembered later, or with the next one.
    fn note(&self, generation: u64);

    /// Waits until this generation (0: none) is remembered; the greatest that is, read after this was called. `None`: the node ends.
    fn remember(&self, generation: u64) -> Option<u64>;
}

/// The membership of the node, which starts when its services are wired, and uses them: so they do not keep it.
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
    /// What is to be saved.
    desk: Arc<LatestWork<Arc<Contents>>>,
    /// Taken when nothing is asked any more.
    asks: Mutex<Option<mpsc::Sender<(Epoch, u64)>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Keeper {
    /// Starts both. What they have to say they hand to the worker behind `port`.
    pub(crate) fn start(
        copies: Copies,
        memory: Arc<dyn Memory>,
        shared: &Arc<Shared>,
        port: &Weak<Port>,
    ) -> io::Result<Self> {
        let desk = Arc::default();
        let saver = Saver { desk: Arc::clone(&desk), copies, shared: Arc::clone(shared), port: port.clone() };
        saver.tell();
        let (asks, asked) = mpsc::channel();
        let port = port.clone();
        let remembers = thread::Builder::new().name("plexus-remember".into());
        let remembers = remembers.spawn(move || remember(&*memory, &asked, &port))?;
        let saves = thread::Builder::new().name("plexus-registry".into()).spawn(move || saver.run())?;
        Ok(Self { desk, asks: Mutex::new(Some(asks)), threads: Mutex::new(vec![remembers, saves]) })
    }

    /// Has contents saved, or newer ones that come before their turn.
    pub(crate) fn save(&self, contents: Arc<Contents>) {
        self.desk.put(contents);
    }

    /// Has a generation remembered.
    pub(crate) fn remember(&self, epoch: Epoch, generation: u64) {
        let asks = self.asks.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody is there any more when the node ends.
        if let Some(asks) = &*asks {
            let _ = asks.send((epoch, generation));
        }
    }

    /// Nothing is begun any more.
    pub(crate) fn stop(&self) {
        self.desk.close();
    }

    /// The same, and waits until nothing is written or asked any more, when the memory has ended. Not on a worker, which the threads may be waiting
    /// for.
    pub(crate) fn end(&self) {
        self.stop();
        drop(self.asks.lock().unwrap_or_else(PoisonError::into_inner).take());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            // A panic was reported when it happened. It may be one of them that lets go of the last handle.
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

fn remember(memory: &dyn Memory, asked: &mpsc::Receiver<(Epoch, u64)>, port: &Weak<Port>) {
    while let Ok((epoch, generation)) = asked.recv() {
        let Some(known) = memory.remember(generation) else { return };
        let Some(port) = port.upgrade() else { return };
        port.submit(WORKER, RegistryTask::Remembered(epoch, known));
    }
}

struct Saver {
    desk: Arc<LatestWork<Arc<Contents>>>,
    copies: Copies,
    shared: Arc<Shared>,
    port: Weak<Port>,
}

impl Saver {
    fn run(mut self) {
        let mut has_saved = false;
        loop {
            // Before the first save there is nothing to repair with.
            let is_sick = has_saved && self.copies.trouble().next().is_some();
            let saved = match self.desk.next(is_sick.then_some(REPAIR_EVERY)) {
                NextWork::Ready(contents) => self.copies.save(contents),
                NextWork::TimedOut => self.copies.repair(),
                NextWork::Closed => return,
            };
            has_saved = true;
            self.tell();
            if let (Some(generation), Some(port)) = (saved, self.port.upgrade()) {
                port.submit(WORKER, RegistryTask::Saved(generation));
            }
        }
    }

    /// Says what is wrong with the copies, where that has changed.
    fn tell(&self) {
        let now: Vec<String> = self.copies.trouble().map(str::to_owned).collect();
        let mut board = self.shared.board();
        for what in now.iter().filter(|what| !board.trouble.contains(what)) {
            tracing::warn!("a copy of the registry: {what}; it is written anew as soon as that is possible");
        }
        if now.is_empty() && !board.trouble.is_empty() {
            tracing::info!("both copies of the registry are whole again");
        }
        board.trouble = now;
    }
}
