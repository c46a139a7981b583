//! The control commands of the workload: `bench.blocks` and `bench.sum`.

use std::sync::Arc;

use plexus_disks::{HEADER, TRAILER};
use plexus_node::{body::Body, control::Command};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Workload, node, parameters::MAX_HOT};
use crate::workload::{MAX_CLIENTS, Run, Running, answer, arguments};

/// The arguments of `bench.sum`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Sum {
    pub(super) hot: u64,
    pub(super) slots: usize,
}

/// Returns the commands of the block workload.
#[must_use]
pub fn commands(body: &Arc<Body>) -> Vec<Arc<dyn Command>> {
    let blocks = RunBlocks { body: Arc::clone(body), running: Running::default() };
    vec![Arc::new(blocks), Arc::new(SumBlocks(Arc::clone(body)))]
}

struct RunBlocks {
    body: Arc<Body>,
    running: Running,
}

impl Command for RunBlocks {
    fn name(&self) -> &'static str {
        "bench.blocks"
    }

    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let Run::<Workload> { workload, start_unix_ms } = arguments(args)?;
        let config = self.body.config();
        let user_bytes = config.block_size.bytes() - HEADER - TRAILER;
        workload.check(config.nodes.len(), user_bytes, self.body.cache().blocks())?;
        answer(self.running.run(start_unix_ms, |start| {
            node::run(&self.body, &workload, start, &mut || progress(Value::Null))
        })?)
    }
}

struct SumBlocks(Arc<Body>);

impl Command for SumBlocks {
    fn name(&self) -> &'static str {
        "bench.sum"
    }

    fn run(&self, args: Value, _: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let Sum { hot, slots } = arguments(args)?;
        let most = MAX_CLIENTS as usize * self.0.config().nodes.len();
        if hot > MAX_HOT || slots > most {
            return Err(format!("sums over at most {MAX_HOT} blocks and {most} clients"));
        }
        answer(node::sum(self.0.cache(), hot, slots)?)
    }
}
