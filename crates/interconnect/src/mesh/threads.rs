//! The threads of a mesh. Some end long before the mesh: each incarnation of a peer over shared
//! memory has a thread of its own.

use std::{
    io,
    sync::Mutex,
    thread::{self, JoinHandle},
};

use crate::sync::lock;

/// The threads of a mesh.
#[derive(Default)]
pub(super) struct Threads(Mutex<Vec<JoinHandle<()>>>);

impl Threads {
    /// Starts a thread, and forgets those that have ended.
    pub(super) fn start(&self, name: String, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let handle = thread::Builder::new().name(name).spawn(run)?;
        let mut threads = lock(&self.0);
        threads.retain(|thread| !thread.is_finished());
        threads.push(handle);
        Ok(())
    }

    /// Waits until all threads but the calling one have ended.
    pub(super) fn join(&self) {
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
    use std::sync::mpsc;

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
