//! What a node does for the workload when asked over its control socket: `bench.blocks` and `bench.sum`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use plexus_disks::{BlockSize, HEADER, TRAILER};
use plexus_node::control::Command;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    Workload,
    node::{self, Host},
    parameters::{MAX_CLIENTS, MAX_HOT},
};

/// The start may be this far ahead at most.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The arguments of `bench.blocks`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub(super) workload: Workload,
    /// When to begin, in milliseconds of Unix time, so that all nodes begin together.
    pub(super) start_unix_ms: u64,
}

/// The arguments of `bench.sum`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sum {
    pub(super) hot: u64,
    pub(super) slots: usize,
}

/// The commands, for a node with blocks of `block_size`.
#[must_use]
pub fn commands(host: Arc<dyn Host>, block_size: BlockSize) -> Vec<Arc<dyn Command>> {
    let user_bytes = block_size.bytes() - HEADER - TRAILER;
    let blocks = RunBlocks { host: host.clone(), user_bytes, running: AtomicBool::new(false) };
    vec![Arc::new(blocks), Arc::new(SumBlocks { host })]
}

fn arguments<T: DeserializeOwned>(args: Value) -> Result<T, String> {
    serde_json::from_value(args).map_err(|error| format!("not what this command takes: {error}"))
}

fn answer(value: impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

struct RunBlocks {
    host: Arc<dyn Host>,
    user_bytes: usize,
    running: AtomicBool,
}

/// Says that the workload runs no more, however it ended.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Command for RunBlocks {
    fn name(&self) -> &'static str {
        "bench.blocks"
    }

    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let Run { workload, start_unix_ms } = arguments(args)?;
        workload.check(self.host.nodes(), self.user_bytes, self.host.cache().blocks())?;
        let start = SystemTime::UNIX_EPOCH + Duration::from_millis(start_unix_ms);
        if start.duration_since(SystemTime::now()).is_ok_and(|ahead| ahead > LONGEST_WAIT) {
            return Err("the start is more than a minute ahead: do the clocks of the nodes agree?".into());
        }
        if self.running.swap(true, Ordering::AcqRel) {
            return Err("a workload runs on this node already: wait for its end".into());
        }
        let _running = Running(&self.running);
        answer(node::run(&*self.host, &workload, start, &mut || progress(Value::Null))?)
    }
}

struct SumBlocks {
    host: Arc<dyn Host>,
}

impl Command for SumBlocks {
    fn name(&self) -> &'static str {
        "bench.sum"
    }

    fn run(&self, args: Value, _: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let Sum { hot, slots } = arguments(args)?;
        let most = MAX_CLIENTS as usize * self.host.nodes();
        if hot > MAX_HOT || slots > most {
            return Err(format!("sums over at most {MAX_HOT} blocks and {most} clients"));
        }
        answer(node::sum(&self.host.cache(), hot, slots)?)
    }
}
