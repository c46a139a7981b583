//! The command line's side of a measurement: one node measures, the other serves.

use std::{sync::atomic::AtomicBool, time::Duration};

use plexus_admin::config::Config;

use super::{Live, Measured, Plan, Serve};
use crate::everywhere::{RunError, ask, parse, to_json};

/// The time that a node may need beyond the trials.
const TIMEOUT: Duration = Duration::from_secs(15);

/// Lets node `client` carry out the plan, and node [`Plan::peer`] serve. `tell` gets the progress.
///
/// # Errors
/// See [`RunError`].
pub fn between(
    config: &Config,
    client: usize,
    plan: &Plan,
    interrupted: &AtomicBool,
    tell: &mut dyn FnMut(Live),
) -> Result<Vec<Measured>, RunError> {
    let serve = Serve { driving: plan.driving, peer_timeout_ms: plan.total_ms() };
    let requests =
        vec![(usize::from(plan.peer), "perf.serve", to_json(&serve)), (client, "perf.run", to_json(plan))];
    let time = Duration::from_millis(plan.total_ms()) + TIMEOUT;
    let mut report = |progress| serde_json::from_value(progress).map_or((), &mut *tell);
    let mut answers = ask(config, requests, time, interrupted, &mut report)?;
    parse(&config.nodes[client].name, answers.remove(1))
}
