//! The tasks that wait for room in a stream.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::Waker,
    time::{Duration, Instant},
};

/// The tasks that wait, and since when there is at least one.
#[derive(Default)]
pub(crate) struct RoomWaiters {
    /// True if there may be a task. A task sets it before it looks for room again; a thread that
    /// makes room reads it afterwards.
    may_wait: AtomicBool,
    waiters: Mutex<(Vec<Waker>, Option<Instant>)>,
}

impl RoomWaiters {
    /// Wakes a task when there may be room.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        let (tasks, since) = &mut *waiters;
        if !tasks.iter().any(|task| task.will_wake(waker)) {
            tasks.push(waker.clone());
        }
        since.get_or_insert_with(Instant::now);
        self.may_wait.store(true, SeqCst);
    }

    /// Wakes all tasks: there may be room.
    pub(crate) fn wake(&self) {
        if self.may_wait.load(SeqCst) {
            let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
            self.may_wait.store(false, SeqCst);
            let tasks = std::mem::take(&mut waiters.0);
            drop(waiters);
            tasks.into_iter().for_each(Waker::wake);
        }
    }

    /// Notes that a task got its room.
    pub(crate) fn served(&self) {
        if self.may_wait.load(SeqCst) {
            self.waiters.lock().unwrap_or_else(PoisonError::into_inner).1 = None;
        }
    }

    /// Returns how long no task has got its room.
    pub(crate) fn waited(&self) -> Option<Duration> {
        let waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        waiters.1.filter(|_| !waiters.0.is_empty()).map(|since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering::Relaxed},
        },
        task::Wake,
    };

    use super::*;

    #[derive(Default)]
    struct Counted(AtomicU32);

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[test]
    fn each_waiting_task_is_woken_once() {
        let (room, counted) = (RoomWaiters::default(), Arc::new(Counted::default()));
        let waker = Waker::from(Arc::clone(&counted));
        room.wake();
        assert_eq!(room.waited(), None);
        room.wait(&waker);
        room.wait(&waker);
        assert!(room.waited().is_some());
        room.wake();
        room.wake();
        assert_eq!((counted.0.load(Relaxed), room.waited()), (1, None));
    }
}
