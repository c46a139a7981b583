//! The command line's side of a measurement: one node measures, the other serves.

use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use plexus_node::{
    config::Config,
    control::{Control, ControlError},
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{Measured, Plan, Serve};
use crate::report::{Table, bytes, rate, us};

/// What a node may take longer than the trials need.
const PATIENCE: Duration = Duration::from_secs(15);

/// How often a wait looks whether it is to end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// When one node fails, the other may say for so long why.
const LAST_WORDS: Duration = Duration::from_millis(1500);

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BetweenError {
    /// A node.
    #[error(transparent)]
    Node(#[from] ControlError),
    /// A node's answer makes no sense.
    #[error("the node's answer makes no sense: {0}")]
    Answer(#[from] serde_json::Error),
    /// The user wants no more.
    #[error("interrupted")]
    Interrupted,
}

/// Has the node in place `client` carry out the plan, and the node in place [`Plan::peer`] serve.
///
/// # Errors
/// See [`BetweenError`].
pub fn between(
    config: &Config,
    client: usize,
    plan: &Plan,
    interrupted: &AtomicBool,
) -> Result<Vec<Measured>, BetweenError> {
    let patience = Duration::from_millis(plan.total_ms()) + PATIENCE;
    let (sender, answers) = mpsc::channel();
    let ask = |index: usize, command: &'static str, args: Value| -> Result<(), ControlError> {
        let mut control = Control::connect(&config.dir, &config.nodes[index].name)?;
        control.set_patience(patience)?;
        let sender = sender.clone();
        // Not joined: it ends with its node, and nobody waits for one that hangs.
        thread::spawn(move || {
            let _ = sender.send((command, control.call(command, args, |_| {})));
        });
        Ok(())
    };
    let serve = Serve { driving: plan.driving, patience_ms: plan.total_ms() };
    ask(usize::from(plan.peer), "perf.serve", serde_json::to_value(serve)?)?;
    ask(client, "perf.run", serde_json::to_value(plan)?)?;
    let mut deadline = Instant::now() + patience;
    let (mut result, mut failure, mut left) = (None, None, 2);
    while left > 0 && Instant::now() < deadline {
        if interrupted.load(Ordering::Relaxed) {
            return Err(BetweenError::Interrupted);
        }
        match answers.recv_timeout(LOOK_EVERY) {
            Ok((command, Ok(value))) => {
                left -= 1;
                if command == "perf.run" {
                    result = Some(value);
                }
            }
            Ok((_, Err(error))) => {
                left -= 1;
                deadline = deadline.min(Instant::now() + LAST_WORDS);
                // A node that is gone is why the other one complains.
                if failure.is_none() || matches!(error, ControlError::Ended { .. }) {
                    failure = Some(error);
                }
            }
            Err(_) => {}
        }
    }
    match (failure, result) {
        (Some(error), _) => Err(error.into()),
        (None, Some(value)) => Ok(serde_json::from_value(value)?),
        (None, None) => {
            let name = config.nodes[client].name.clone();
            Err(ControlError::Silent { name, command: "perf.run".into() }.into())
        }
    }
}

/// A measurement with what it was made over.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What joined the two nodes.
    pub rail: String,
    /// Who drove their workers.
    pub waiting: String,
    /// What came out.
    #[serde(flatten)]
    pub measured: Measured,
}

/// The tables of latency and of throughput.
#[must_use]
pub fn tables(rows: &[Row]) -> [Table; 2] {
    let heads = ["rail", "waiting", "method", "size"];
    let mut latency = Table::new(heads.into_iter().chain([
        "one way us",
        "rtt p50",
        "p99",
        "p99.9",
        "CPU us",
        "peer CPU us",
    ]));
    let mut stream = Table::new(heads.into_iter().chain([
        "messages/s",
        "MB/s",
        "CPU us",
        "of a core",
        "peer CPU us",
        "of a core",
    ]));
    for Row { rail, waiting, measured } in rows {
        let size = bytes(u64::from(measured.bytes));
        let mut cells = vec![rail.clone(), waiting.clone(), measured.method.to_string(), size];
        let (client, server) = (measured.cpu_client, measured.cpu_server);
        match measured.response_us {
            Some(response) => {
                cells.push(us(measured.one_way_us.unwrap_or(0.0)));
                cells.extend([response.p50, response.p99, response.p999].map(us));
                cells.extend([client, server].map(|cpu| us(cpu.us_per_message)));
                latency.row(cells);
            }
            None => {
                cells.extend([rate(measured.messages_per_s), rate(measured.mb_per_s)]);
                for cpu in [client, server] {
                    cells.extend([us(cpu.us_per_message), format!("{:.0} %", cpu.percent_of_core)]);
                }
                stream.row(cells);
            }
        }
    }
    [latency, stream]
}

/// The rows as JSON.
#[must_use]
pub fn to_json(rows: &[Row]) -> Value {
    json!({ "perf": rows })
}
