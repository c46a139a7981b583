//! The common parts of workloads: limits of requests, names of choices, and the simultaneous start
//! on all nodes.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

/// The maximum of clients on a node; each is a thread.
pub(crate) const MAX_CLIENTS: u32 = 256;

/// The maximum time until the start.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Refuses numbers of clients that no node can have.
pub(crate) fn check_clients(clients: u32) -> Result<(), String> {
    match clients {
        1..=MAX_CLIENTS => Ok(()),
        _ => Err(format!("{clients} clients on each node: use 1 to {MAX_CLIENTS}")),
    }
}

/// Refuses times that measure nothing, or occupy a node too long.
pub(crate) fn check_times(warm_ms: u64, measured_ms: u64) -> Result<(), String> {
    match (warm_ms, measured_ms) {
        (..=60_000, 50..=3_600_000) => Ok(()),
        _ => Err("measure for 0.05 to 3600 seconds, after a warm-up of at most 60".into()),
    }
}

/// The arguments of a command that runs a workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Run<W> {
    pub(crate) workload: W,
    /// The start time in milliseconds of Unix time, equal on all nodes.
    pub(crate) start_unix_ms: u64,
}

/// Decodes arguments from JSON.
pub(crate) fn arguments<T: DeserializeOwned>(args: Value) -> Result<T, String> {
    serde_json::from_value(args).map_err(|error| format!("not what this command takes: {error}"))
}

/// Encodes an answer as JSON.
pub(crate) fn answer(value: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

/// The state of a kind of workload on a node: one runs at a time.
#[derive(Default)]
pub(crate) struct Running(AtomicBool);

impl Running {
    /// Runs a workload that starts at the given time, unless another one runs.
    pub(crate) fn run<R>(
        &self,
        start_unix_ms: u64,
        run: impl FnOnce(SystemTime) -> Result<R, String>,
    ) -> Result<R, String> {
        let start = SystemTime::UNIX_EPOCH + Duration::from_millis(start_unix_ms);
        if start.duration_since(SystemTime::now()).is_ok_and(|ahead| ahead > LONGEST_WAIT) {
            return Err("the start is more than a minute ahead: do the clocks of the nodes agree?".into());
        }
        if self.0.swap(true, Ordering::AcqRel) {
            return Err("a workload runs on this node already: wait for its end".into());
        }
        let _ends = Ends(&self.0);
        run(start)
    }
}

/// Marks the workload as ended when dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_workload_runs_at_a_time_and_none_in_an_hour() {
        let running = Running::default();
        let inner = running.run(0, |_| {
            let refused: Result<(), String> = running.run(0, |_| Ok(()));
            assert!(refused.unwrap_err().contains("runs on this node already"));
            Err::<(), _>("its own".to_owned())
        });
        assert_eq!((inner, running.run(0, |_| Ok(7))), (Err("its own".into()), Ok(7)));
        let soon = SystemTime::now() + Duration::from_secs(3600);
        let soon = soon.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
        assert!(running.run(soon, |_| Ok(())).unwrap_err().contains("a minute ahead"));
    }
}
