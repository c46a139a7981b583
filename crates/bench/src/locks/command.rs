//! The control commands of the workload.
//!
//! `bench.locks` runs the clients. `bench.hold` takes the given number of locks, answers `{"held",
//! "ms"}`, and holds them until the connection ends.

use std::{sync::Arc, thread, time::Instant};

use plexus_locks::{NodeLock, protocol::Mode};
use plexus_node::control::Command;
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

/// Returns the commands of the lock workload.
#[must_use]
pub fn commands(host: &Arc<dyn Host>) -> [Arc<dyn Command>; 2] {
    let run = RunLocks { host: host.clone(), running: Running::default() };
    [Arc::new(run), Arc::new(HoldLocks(host.clone()))]
}

struct RunLocks {
    host: Arc<dyn Host>,
    running: Running,
}

impl Command for RunLocks {
    fn name(&self) -> &'static str {
        "bench.locks"
    }

    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let Run::<Workload> { workload, start_unix_ms } = arguments(args)?;
        workload.check(self.host.nodes())?;
        answer(self.running.run(start_unix_ms, |start| {
            node::run(&*self.host, &workload, start, &mut || progress(Value::Null))
        })?)
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
        let mut held: Vec<NodeLock> = Vec::new();
        let mut names = names::spread(self.0.me(), locks);
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
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{Mutex, mpsc},
        time::Duration,
    };

    use plexus_base::{NodeId, WorkerId};
    use plexus_interconnect::{Net, Signal};
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

        fn wait(&self, worker: WorkerId, task: Option<LockTask>, _: &Signal) {
            task.into_iter().for_each(|task| self.submit(worker, task));
        }
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
        command: impl FnOnce(Arc<dyn Host>) -> Arc<dyn Command>,
        args: Value,
    ) -> Result<Value, String> {
        let locks = LockManager::new(Arc::new(Deaf::default()), 1, Arc::new(StopFlag::default()));
        let command = command(Arc::new(Alone(locks)));
        let (tell, told) = mpsc::channel();
        // The thread is not joined: a command that cannot be interrupted waits forever.
        thread::spawn(move || tell.send(command.run(args, &mut |_| false)));
        told.recv_timeout(Duration::from_secs(60)).expect("it ends")
    }

    #[test]
    fn waiting_for_locks_to_hold_can_be_interrupted() {
        assert_eq!(interrupted(|host| Arc::new(HoldLocks(host)), json!({ "locks": 2 })), Ok(json!({})));
    }

    #[test]
    fn search_for_names_can_be_interrupted() {
        let command = |host| Arc::new(RunLocks { host, running: Running::default() }) as Arc<dyn Command>;
        let run = Run { workload: Workload::default(), start_unix_ms: 0 };
        let said = interrupted(command, serde_json::to_value(run).unwrap());
        assert_eq!(said, Err(names::UNWANTED.into()));
    }
}
