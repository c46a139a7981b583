//! Runs the clients of a workload in one node: all start together, warm up, are measured, and end.

use std::{
    io,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use crate::clock;

/// The stage of all clients of a node, set by the thread that started them.
#[derive(Default)]
pub(crate) struct Stage {
    stage: AtomicU8,
    failure: Mutex<Option<String>>,
}

/// The stage after the warm-up, which is stage 0.
pub(crate) const MEASURING: u8 = 1;
pub(crate) const OVER: u8 = 2;

/// The interval at which a waiting thread checks whether it was stopped or cancelled.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The start time of the clients on all nodes, and the length of their stages.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) start: SystemTime,
    pub(crate) warm_ms: u64,
    pub(crate) measured_ms: u64,
}

/// The results of the clients, and the counters at the start and the end of the measurement.
pub(crate) struct Measured<D, M> {
    pub(crate) done: Vec<D>,
    pub(crate) before: M,
    pub(crate) after: M,
}

/// Runs each client in a thread until the stage is over. `moment` reads the counters; `wanted`
/// returns false to cancel.
///
/// # Errors
/// One line for the user.
pub(crate) fn run<C, D, M>(
    times: Times,
    clients: impl IntoIterator<Item = C>,
    moment: impl Fn() -> io::Result<M>,
    wanted: &mut dyn FnMut() -> bool,
) -> Result<Measured<D, M>, String>
where
    C: FnOnce(&Stage) -> D + Send,
    D: Send,
{
    let stage = &Stage::default();
    clock::calibrate();
    let (done, moments) = thread::scope(|scope| {
        let mut threads = Vec::new();
        let begin = || {
            // All clients of all nodes start together, so early ones wait.
            thread::sleep(times.start.duration_since(SystemTime::now()).unwrap_or_default());
            for (number, client) in clients.into_iter().enumerate() {
                let thread = thread::Builder::new().name(format!("client-{number}"));
                threads.push(thread.spawn_scoped(scope, move || client(stage))?);
            }
            rest(Duration::from_millis(times.warm_ms), stage, wanted);
            clock::calibrate();
            let before = moment()?;
            stage.reach(MEASURING);
            rest(Duration::from_millis(times.measured_ms), stage, wanted);
            // The clients still run here: the counters include their threads.
            Ok((before, moment()?))
        };
        let moments: io::Result<(M, M)> = begin();
        stage.reach(OVER);
        let done: Vec<_> = threads.into_iter().map(thread::ScopedJoinHandle::join).collect();
        (done, moments)
    });
    if let Some(why) = stage.failure() {
        return Err(why);
    }
    let done = done.into_iter().collect::<Result<Vec<_>, _>>();
    let done = done.map_err(|_| "a client of the workload has panicked; see the log")?;
    let (before, after) = moments.map_err(|error| format!("the workload on this node: {error}"))?;
    Ok(Measured { done, before, after })
}

impl Stage {
    fn reach(&self, stage: u8) {
        self.stage.fetch_max(stage, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn now(&self) -> u8 {
        self.stage.load(Ordering::Relaxed)
    }

    /// Ends all clients of the node.
    pub(crate) fn end(&self) {
        self.reach(OVER);
    }

    /// Ends all clients of the node with a failure.
    pub(crate) fn fail(&self, why: String) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.reach(OVER);
    }

    /// Returns the reason why a client failed, if one has.
    fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Sleeps for `time`, or less if a client fails or the run is cancelled.
fn rest(time: Duration, stage: &Stage, wanted: &mut dyn FnMut() -> bool) {
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stage.now() == OVER {
            return;
        }
        if !wanted() {
            return stage.reach(OVER);
        }
        thread::sleep(left.min(LOOK_EVERY));
    }
}
