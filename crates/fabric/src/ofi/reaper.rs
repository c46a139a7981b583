//! Closes what is left of rails that ended while the provider still had something of them in its hands.
//!
//! One thread for the whole process, started when the first such rail ends. It posts nothing that was queued; it only waits for
//! completions, says goodbye where the rail ended in peace, and closes. Guarantees: whoever drops a rail does not wait;
//! what is left is closed after [`LINGER`] at the latest; no more than twice [`MOST`] rails wait for that, and one more is
//! closed at once.
//!
//! This module must not know why a rail ended.

use std::{
    sync::{
        OnceLock,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::remains::Remains;

/// How long the provider may take over what was sent before.
pub(super) const LINGER: Duration = Duration::from_millis(100);

/// Between two looks at what waits.
const PAUSE: Duration = Duration::from_millis(1);

/// Rails that may wait to be taken by the thread, and as many that it looks at.
const MOST: usize = 64;

/// Something that is to be closed when it is through.
pub(super) trait Ending: Send {
    /// Looks at it without waiting; whether it is through.
    fn look(&mut self) -> bool;
}

/// Closes `remains` as soon as that can be, elsewhere.
pub(super) fn close(remains: Remains) {
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

/// Closes what comes in, until nobody can send any more and all is closed.
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

    /// Is through after so many looks, and says when it is closed.
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
    fn what_is_through_is_closed_while_another_still_waits() {
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
        assert!(begin.elapsed() >= linger, "that which is never through had its time");
        drop(reaper);
        thread.join().unwrap();
    }

    #[test]
    fn more_than_it_looks_at_wait_their_turn_and_all_are_closed() {
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
