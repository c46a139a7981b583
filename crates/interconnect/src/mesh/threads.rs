//! The threads of a mesh. Some end long before the mesh: each incarnation of a peer over shared
//! memory has a thread of its own until it is connected.

use std::{
    io,
    sync::{Mutex, mpsc},
    thread::{self, JoinHandle},
};

use crate::sync::lock;

type Work = Box<dyn FnOnce() + Send>;

/// The threads of a mesh.
#[derive(Default)]
pub(super) struct Threads(Mutex<Vec<JoinHandle<()>>>, Mutex<Option<mpsc::Sender<Work>>>);

impl Threads {
    /// Starts a thread, and forgets those that have ended.
    pub(super) fn start(&self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let handle = thread::Builder::new().name(name).spawn(run)?;
        let mut threads = lock(&self.0);
        threads.retain(|thread| !thread.is_finished());
        threads.push(handle);
        Ok(())
    }

    /// Starts the thread that does later work if the system gives no other.
    pub(super) fn start_reserve(&self) -> io::Result<()> {
        let (work, waiting) = mpsc::channel::<Work>();
        self.start("reserve".into(), move || waiting.into_iter().for_each(|work| work()))?;
        *lock(&self.1) = Some(work);
        Ok(())
    }

    /// Does work on a thread of its own, or on the reserve.
    pub(super) fn start_or_wait(&self, name: String, run: impl FnOnce() + Clone + Send + 'static) {
        if self.start(name, run.clone()).is_err()
            && let Some(reserve) = &*lock(&self.1)
        {
            // Its receiver lives as long as this sender.
            let _ = reserve.send(Box::new(run));
        }
    }

    /// Waits until all threads but the calling one have ended.
    pub(super) fn join(&self) {
        drop(lock(&self.1).take());
        for handle in std::mem::take(&mut *lock(&self.0)) {
            if handle.thread().id() != thread::current().id() {
                // A panic was reported when it happened.
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ended_threads_are_forgotten() {
        let threads = Threads::default();
        let (end, ended) = mpsc::channel::<()>();
        threads.start("stays".into(), move || assert!(ended.recv().is_err())).unwrap();
        for _ in 0..3 {
            threads.start("ends".into(), || ()).unwrap();
            while lock(&threads.0).iter().filter(|thread| !thread.is_finished()).count() > 1 {
                thread::yield_now();
            }
            assert_eq!(lock(&threads.0).len(), 2);
        }
        drop(end);
        threads.join();
        assert!(lock(&threads.0).is_empty());
    }
}
