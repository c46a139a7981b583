//! What a node does for the workload when asked over its control socket.
//!
//! `bench.locks` runs the clients. `bench.hold` takes so many locks, says `{"held", "ms"}`, and holds them for as long as the connection stands.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use plexus_locks::{Ask, Lock, LockError, Waiting, protocol::Mode};
use plexus_node::control::Command;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    Workload,
    node::{self, Host},
};

/// The start may be this far ahead at most.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Locks asked for at once, between two looks whether anybody still wants them.
const LOCKS_AT_ONCE: usize = 1024;

/// How often it is looked whether the connection stands.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The arguments of `bench.locks`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) workload: Workload,
    /// When to begin, in milliseconds of Unix time, so that all nodes begin together.
    pub(super) start_unix_ms: u64,
}

/// The arguments of `bench.hold`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) locks: u64,
}

/// What `bench.hold` says when it has them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Holds {
    pub(super) held: u64,
    pub(super) ms: u64,
}

/// The commands.
#[must_use]
pub fn commands(host: &Arc<dyn Host>) -> [Arc<dyn Command>; 2] {
    let run = RunLocks { host: host.clone(), running: AtomicBool::new(false) };
    [Arc::new(run), Arc::new(HoldLocks(host.clone()))]
}

fn arguments<T: DeserializeOwned>(args: Value) -> Result<T, String> {
    serde_json::from_value(args).map_err(|error| format!("not what this command takes: {error}"))
}

struct RunLocks {
    host: Arc<dyn Host>,
    running: AtomicBool,
}

/// Says that the workload runs no more, however it ended.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Command for RunLocks {
    fn name(&self) -> &'static str {
        "bench.locks"
    }

    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let Run { workload, start_unix_ms } = arguments(args)?;
        workload.check(self.host.nodes())?;
        let start = SystemTime::UNIX_EPOCH + Duration::from_millis(start_unix_ms);
        if start.duration_since(SystemTime::now()).is_ok_and(|ahead| ahead > LONGEST_WAIT) {
            return Err("the start is more than a minute ahead: do the clocks of the nodes agree?".into());
        }
        if self.running.swap(true, Ordering::AcqRel) {
            return Err("a workload runs on this node already: wait for its end".into());
        }
        let _running = Running(&self.running);
        let result = node::run(&*self.host, &workload, start, &mut || progress(Value::Null))?;
        serde_json::to_value(result).map_err(|error| error.to_string())
    }
}

struct HoldLocks(Arc<dyn Host>);

impl Command for HoldLocks {
    fn name(&self) -> &'static str {
        "bench.hold"
    }

    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let Hold { locks } = arguments(args)?;
        let session = self.0.locks().session();
        let start = Instant::now();
        let mut held: Vec<Lock> = Vec::new();
        let mut names = node::spread(self.0.me(), locks);
        loop {
            let ask = |name| Ok(session.ask(Ask { name: name?, mode: Mode::EX, patience: None }));
            let asked = names.by_ref().take(LOCKS_AT_ONCE).map(ask).collect::<Result<Vec<_>, String>>()?;
            if asked.is_empty() {
                break;
            }
            for waiting in asked {
                match granted(waiting, &mut || progress(Value::Null)) {
                    Some(lock) => held.push(lock.map_err(|error| error.to_string())?),
                    None => return Ok(json!({})),
                }
            }
            if !progress(Value::Null) {
                return Ok(json!({}));
            }
        }
        let holds = Holds { held: held.len() as u64, ms: start.elapsed().as_millis() as u64 };
        let mut is_there = progress(serde_json::to_value(holds).map_err(|error| error.to_string())?);
        while is_there {
            thread::sleep(LOOK_EVERY);
            is_there = progress(Value::Null);
        }
        Ok(json!({}))
    }
}

/// Waits for a lock for as long as `wanted` says so.
fn granted(mut waiting: Waiting, wanted: &mut dyn FnMut() -> bool) -> Option<Result<Lock, LockError>> {
    loop {
        match waiting.wait(LOOK_EVERY) {
            Ok(answer) => return Some(answer),
            Err(still) if wanted() => waiting = still,
            Err(_) => return None,
        }
    }
}
