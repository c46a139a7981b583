//! Closes the remains of ended rails of which the provider still holds operations.
//!
//! One thread serves the process; it starts when the first such rail ends. It posts no queued
//! operation; it only waits for completions, sends goodbye if the rail ended in order, and closes.
//! Guarantees: dropping a rail does not wait; the remains are closed after [`LINGER`] at the
//! latest; no more than twice [`MOST`] rails wait, and one more is closed at once.
//!
//! This module does not know why a rail ended.

use std::{
    sync::{
        OnceLock,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use crate::remains::Remains;

/// The time that the provider may take to complete earlier operations.
pub(crate) const LINGER: Duration = Duration::from_millis(100);

/// The pause between two looks at the waiting remains.
const PAUSE: Duration = Duration::from_millis(1);

/// The rails that may wait to be taken by the thread; it looks at as many more.
const MOST: usize = 64;

/// Remains to be closed when their operations are complete.
pub(crate) trait Ending: Send {
    /// Looks at them without waiting; returns true if they are complete.
    fn look(&mut self) -> bool;
}

/// Closes `remains` on the reaper's thread as soon as possible.
pub(crate) fn close(remains: Remains) {
    static REAPER: OnceLock<Option<SyncSender<Remains>>> = OnceLock::new();
    match REAPER.get_or_init(start) {
        Some(reaper) => {
            if let Err(TrySendError::Full(remains) | TrySendError::Disconnected(remains)) =
                reaper.try_send(remains)
            {
                drop(remains);
            }
        }
        None => drop(remains),
    }
}

fn start<E: Ending + 'static>() -> Option<SyncSender<E>> {
    let (reaper, endings) = sync_channel(MOST);
    let run = move || reap(&endings, LINGER);
    // Without a thread everything is closed at once.
    thread::Builder::new().name("ofi-reaper".into()).spawn(run).ok().map(|_| reaper)
}

/// Closes everything that comes in, until the channel has no sender and all is closed.
fn reap<E: Ending>(endings: &Receiver<E>, linger: Duration) {
    let mut waiting: Vec<(Instant, E)> = Vec::new();
    loop {
        let next = match waiting.len() {
            0 => endings.recv().map_err(|_| RecvTimeoutError::Disconnected),
            MOST.. => Err(RecvTimeoutError::Timeout),
            _ => endings.recv_timeout(PAUSE),
        };
        match next {
            Ok(ending) => waiting.push((Instant::now() + linger, ending)),
            Err(RecvTimeoutError::Disconnected) if waiting.is_empty() => return,
            Err(RecvTimeoutError::Disconnected) => thread::sleep(PAUSE),
            Err(RecvTimeoutError::Timeout) if waiting.len() >= MOST => thread::sleep(PAUSE),
            Err(RecvTimeoutError::Timeout) => {}
        }
        waiting.retain_mut(|(until, ending)| !ending.look() && Instant::now() < *until);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Remains that are complete after so many looks, and report when they are closed.
    struct Fake {
        looks: u32,
        number: usize,
        closed: Sender<usize>,
    }

    impl Ending for Fake {
        fn look(&mut self) -> bool {
            self.looks = self.looks.saturating_sub(1);
            self.looks == 0
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = self.closed.send(self.number);
        }
    }

    #[test]
    fn complete_remains_are_closed_while_others_wait() {
        let (reaper, endings) = sync_channel(MOST);
        let (closed, order) = channel();
        let fake = |number, looks| Fake { looks, number, closed: closed.clone() };
        reaper.send(fake(0, u32::MAX)).unwrap();
        reaper.send(fake(1, 20)).unwrap();
        reaper.send(fake(2, 1)).unwrap();
        let begin = Instant::now();
        let linger = Duration::from_millis(300);
        let thread = thread::spawn(move || reap(&endings, linger));
        assert_eq!([(); 3].map(|()| order.recv().unwrap()), [2, 1, 0]);
        assert!(begin.elapsed() >= linger, "remains that never complete get the full time");
        drop(reaper);
        thread.join().unwrap();
    }

    #[test]
    fn remains_beyond_the_limit_wait_and_all_are_closed() {
        let (reaper, endings) = sync_channel(2 * MOST);
        let (closed, order) = channel();
        for number in 0..2 * MOST {
            reaper.send(Fake { looks: 5, number, closed: closed.clone() }).unwrap();
        }
        drop((reaper, closed));
        reap(&endings, Duration::from_secs(60));
        let mut numbers: Vec<_> = order.iter().collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..2 * MOST).collect::<Vec<_>>());
    }
}
