//! What a node does for the workload when asked over its control socket: `bench.blocks` and `bench.sum`.

use std::sync::Arc;

use plexus_disks::{BlockSize, HEADER, TRAILER};
use plexus_node::control::Command;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Workload,
    node::{self, Host},
    parameters::MAX_HOT,
};
use crate::workload::{MAX_CLIENTS, Run, Running, answer, arguments};

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
    let blocks = RunBlocks { host: host.clone(), user_bytes, running: Running::default() };
    vec![Arc::new(blocks), Arc::new(SumBlocks { host })]
}

struct RunBlocks {
    host: Arc<dyn Host>,
    user_bytes: usize,
    running: Running,
}

impl Command for RunBlocks {
    fn name(&self) -> &'static str {
        "bench.blocks"
    }

    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let Run::<Workload> { workload, start_unix_ms } = arguments(args)?;
        workload.check(self.host.nodes(), self.user_bytes, self.host.cache().blocks())?;
        answer(self.running.run(start_unix_ms, |start| {
            node::run(&*self.host, &workload, start, &mut || progress(Value::Null))
        })?)
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
