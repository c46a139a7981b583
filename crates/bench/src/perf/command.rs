//! The control commands of a measurement: `perf.run` and `perf.serve`.

use plexus_admin::control::Commands;
use plexus_node::service::MeasuredService;
use serde_json::{Value, json};

use super::{MeasuredPath, Plan, Serve, run, serve};

/// Registers the commands of a measurement for this path.
pub fn register<S: MeasuredService>(commands: &Commands, place: &MeasuredPath<S>) {
    let of_run = place.clone();
    commands.register("perf.run", move |args, progress| {
        let plan: Plan = serde_json::from_value(args).map_err(|error| format!("not a plan: {error}"))?;
        let measured =
            run(&of_run, &plan, &mut |live| progress(json!(live))).map_err(|error| error.to_string())?;
        serde_json::to_value(measured).map_err(|error| error.to_string())
    });
    let place = place.clone();
    commands.register("perf.serve", move |args, progress| {
        let order: Serve = serde_json::from_value(args).map_err(|error| format!("not an order: {error}"))?;
        serve(&place, &order, &mut || progress(Value::Null)).map_err(|error| error.to_string())?;
        Ok(Value::Null)
    });
}
