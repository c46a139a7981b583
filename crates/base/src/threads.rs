//! Threads that a running node can do without: where the system gives none, as at a limit of a
//! control group, their work is done by the thread that asks for it.

use std::{
    panic,
    sync::{Arc, Mutex, PoisonError},
    thread::{Builder, Scope, ScopedJoinHandle},
};

/// Work that another thread does or this one has done.
#[derive(Debug)]
pub enum Beside<'scope, T> {
    /// Another thread does it.
    Thread(ScopedJoinHandle<'scope, T>),
    /// It is done.
    Done(T),
}

impl<T> Beside<'_, T> {
    /// Waits for the end of the work and returns its result.
    ///
    /// # Panics
    /// If the work has panicked.
    pub fn join(self) -> T {
        match self {
            Self::Thread(thread) => thread.join().unwrap_or_else(|why| panic::resume_unwind(why)),
            Self::Done(result) => result,
        }
    }
}

/// Does work on a thread of its own, or here before it returns if there is none.
pub fn beside<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Beside<'scope, T> {
    beside_in(Builder::new(), scope, work)
}

/// Does work on a thread of its own that is not joined. Returns the work if there is none.
///
/// # Errors
/// The work itself.
pub fn start<F: FnOnce() + Send + 'static>(name: &str, work: F) -> Result<(), F> {
    start_in(Builder::new().name(name.into()), work)
}

fn start_in<F: FnOnce() + Send + 'static>(builder: Builder, work: F) -> Result<(), F> {
    let work = Arc::new(Mutex::new(Some(work)));
    let take = |work: &Mutex<Option<F>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = Arc::clone(&work);
    let run = move || take(&theirs).expect("only this thread takes it")();
    match builder.spawn(run) {
        Ok(_) => Ok(()),
        Err(_) => Err(take(&work).expect("no thread has taken it")),
    }
}

fn beside_in<'scope, T: Send + 'scope, F: FnOnce() -> T + Send + 'scope>(
    builder: Builder,
    scope: &'scope Scope<'scope, '_>,
    work: F,
) -> Beside<'scope, T> {
    // A thread that does not start drops what it was given, so the work has two owners.
    let work = Arc::new(Mutex::new(Some(work)));
    let take = |work: &Mutex<Option<F>>| work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = Arc::clone(&work);
    let run = move || take(&theirs).expect("only this thread takes it")();
    match builder.spawn_scoped(scope, run) {
        Ok(thread) => Beside::Thread(thread),
        Err(_) => Beside::Done(take(&work).expect("no thread has taken it")()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn work_is_done_without_a_thread_if_there_is_none() {
        let here = thread::current().id();
        thread::scope(|scope| {
            let other = beside(scope, || thread::current().id()).join();
            assert_ne!(other, here);
            let impossible = Builder::new().stack_size(1 << 46);
            assert_eq!(beside_in(impossible, scope, || thread::current().id()).join(), here);
        });
        let (tell, told) = std::sync::mpsc::channel();
        let work = move || tell.send(thread::current().id()).unwrap();
        let Err(work) = start_in(Builder::new().stack_size(1 << 46), work) else { panic!("a thread") };
        assert!(start("other", work).is_ok());
        assert_ne!(told.recv().unwrap(), here);
    }
}
