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
use serde_json::Value;

use super::{Live, Measured, Plan, Serve};
use crate::stage::LOOK_EVERY;

/// The time that a node may need beyond the trials.
const TIMEOUT: Duration = Duration::from_secs(15);

/// When one node fails, the other may say for so long why.
const LAST_WORDS: Duration = Duration::from_millis(1500);

/// The reason why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BetweenError {
    /// A node refused or failed.
    #[error(transparent)]
    Node(#[from] ControlError),
    /// The answer of a node is malformed.
    #[error("the node's answer makes no sense: {0}")]
    Answer(#[from] serde_json::Error),
    /// The user interrupted the measurement.
    #[error("interrupted")]
    Interrupted,
}

/// An answer of a node over its control socket.
enum Said {
    Progress(Live),
    End(&'static str, Result<Value, ControlError>),
}

/// Has the node in place `client` carry out the plan, and the node in place [`Plan::peer`] serve.
/// `tell` hears how far it is.
///
/// # Errors
/// See [`BetweenError`].
pub fn between(
    config: &Config,
    client: usize,
    plan: &Plan,
    interrupted: &AtomicBool,
    tell: &mut dyn FnMut(Live),
) -> Result<Vec<Measured>, BetweenError> {
    let timeout = Duration::from_millis(plan.total_ms()) + TIMEOUT;
    let (sender, answers) = mpsc::channel();
    let ask = |index: usize, command: &'static str, args: Value| -> Result<(), ControlError> {
        let mut control = Control::connect(&config.dir, &config.nodes[index].name)?;
        control.set_timeout(timeout)?;
        let sender = sender.clone();
        // Not joined: it ends with its node, and nobody waits for one that hangs.
        thread::spawn(move || {
            let progress = |value| {
                if let Ok(live) = serde_json::from_value(value) {
                    let _ = sender.send(Said::Progress(live));
                }
            };
            let end = control.call(command, args, progress);
            let _ = sender.send(Said::End(command, end));
        });
        Ok(())
    };
    let serve = Serve { driving: plan.driving, peer_timeout_ms: plan.total_ms() };
    ask(usize::from(plan.peer), "perf.serve", serde_json::to_value(serve)?)?;
    ask(client, "perf.run", serde_json::to_value(plan)?)?;
    let mut deadline = Instant::now() + timeout;
    let (mut result, mut failure, mut left) = (None, None, 2);
    while left > 0 && Instant::now() < deadline {
        if interrupted.load(Ordering::Relaxed) {
            return Err(BetweenError::Interrupted);
        }
        match answers.recv_timeout(LOOK_EVERY) {
            Ok(Said::Progress(live)) => tell(live),
            Ok(Said::End(command, Ok(value))) => {
                left -= 1;
                if command == "perf.run" {
                    result = Some(value);
                }
            }
            Ok(Said::End(_, Err(error))) => {
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
