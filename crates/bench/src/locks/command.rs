//! The control commands of the workload.
//!
//! `bench.locks` runs the clients. `bench.hold` takes the given number of locks, answers `{"held",
//! "ms"}`, and holds them until the connection ends.

use std::{sync::Arc, thread, time::Instant};

use plexus_admin::control::{Commands, Progress};
use plexus_locks::{NodeLock, protocol::Mode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Workload, names,
    node::{self, Host},
};
use crate::{
    stage::LOOK_EVERY,
    workload::{Run, Running, answer, arguments},
};

/// The number of locks requested between two checks for cancellation.
const LOCKS_AT_ONCE: usize = 1024;

/// The arguments of `bench.hold`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hold {
    pub(super) locks: u64,
}

/// The answer of `bench.hold` when it has the locks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Holds {
    pub(super) held: u64,
    pub(super) ms: u64,
}

/// Registers the commands of the lock workload.
pub fn register(commands: &Commands, host: &Arc<dyn Host>) {
    let (of_run, running) = (Arc::clone(host), Running::default());
    commands.register("bench.locks", move |args, progress| run(&*of_run, &running, args, progress));
    let host = Arc::clone(host);
    commands.register("bench.hold", move |args, progress| hold(&*host, args, progress));
}

fn run(host: &dyn Host, running: &Running, args: Value, progress: Progress<'_>) -> Result<Value, String> {
    let Run::<Workload> { workload, start_unix_ms } = arguments(args)?;
    workload.check(host.nodes())?;
    answer(
        running
            .run(start_unix_ms, |start| node::run(host, &workload, start, &mut || progress(Value::Null)))?,
    )
}

fn hold(host: &dyn Host, args: Value, progress: Progress<'_>) -> Result<Value, String> {
    let Hold { locks } = arguments(args)?;
    let session = host.locks().session();
    let start = Instant::now();
    let mut held: Vec<NodeLock> = Vec::new();
    let mut names = names::spread(host.me(), locks);
    loop {
        let ask = |name| Ok(session.ask(name?, Mode::EX, None));
        let asked = names.by_ref().take(LOCKS_AT_ONCE).map(ask).collect::<Result<Vec<_>, String>>()?;
        if asked.is_empty() {
            break;
        }
        for waiting in asked {
            match waiting.wait_while(LOOK_EVERY, || progress(Value::Null)) {
                Some(lock) => held.push(lock.map_err(|error| error.to_string())?),
                None => return Ok(json!({})),
            }
        }
        if !progress(Value::Null) {
            return Ok(json!({}));
        }
    }
    let holds = Holds { held: held.len() as u64, ms: start.elapsed().as_millis() as u64 };
    let mut is_there = progress(answer(holds)?);
    while is_there {
        thread::sleep(LOOK_EVERY);
        is_there = progress(Value::Null);
    }
    Ok(json!({}))
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Mutex, mpsc},
        time::Duration,
    };

    use plexus_base::{NodeId, WorkerId};
    use plexus_interconnect::Net;
    use plexus_locks::{LockManager, LockService, LockTask, StopFlag};
    use plexus_membership::subsystem::WorkerPort;

    use super::*;

    /// Workers that never execute their requests.
    #[derive(Default)]
    struct Deaf(Mutex<Vec<LockTask>>);

    impl WorkerPort<LockService> for Deaf {
        fn submit(&self, _: WorkerId, task: LockTask) {
            self.0.lock().unwrap().push(task);
        }

        fn offer(&self, worker: WorkerId, task: LockTask) {
            self.submit(worker, task);
        }

        fn visit(&self, _: WorkerId, _: &mut dyn FnMut(&mut LockService, &mut Net)) -> bool {
            false
        }

        fn attend(&self, _: WorkerId) {}
    }

    struct Alone(LockManager);

    impl Host for Alone {
        fn me(&self) -> NodeId {
            NodeId(0)
        }

        fn nodes(&self) -> usize {
            1
        }

        fn locks(&self) -> LockManager {
            self.0.clone()
        }
    }

    /// Returns the answer of a command on a node that grants nothing, after the command was
    /// cancelled.
    fn interrupted(
        command: impl FnOnce(&dyn Host, Progress<'_>) -> Result<Value, String> + Send + 'static,
    ) -> Result<Value, String> {
        let locks = LockManager::new(Arc::new(Deaf::default()), 1, Arc::new(StopFlag::default()));
        let (tell, told) = mpsc::channel();
        // The thread is not joined: a command that cannot be interrupted waits forever.
        thread::spawn(move || tell.send(command(&Alone(locks), &mut |_| false)));
        told.recv_timeout(Duration::from_secs(60)).expect("it ends")
    }

    #[test]
    fn waiting_for_locks_to_hold_can_be_interrupted() {
        let said = interrupted(|host, progress| hold(host, json!({ "locks": 2 }), progress));
        assert_eq!(said, Ok(json!({})));
    }

    #[test]
    fn search_for_names_can_be_interrupted() {
        let args = serde_json::to_value(Run { workload: Workload::default(), start_unix_ms: 0 }).unwrap();
        let said = interrupted(|host, progress| run(host, &Running::default(), args, progress));
        assert_eq!(said, Err(names::UNWANTED.into()));
    }
}
