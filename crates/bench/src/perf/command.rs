//! The control commands of a measurement: `perf.run` and `perf.serve`.

use std::sync::Arc;

use plexus_interconnect::Service;
use plexus_node::{control::Command, port::Ports};
use serde_json::{Value, json};

use super::{Place, Plan, Serve, run, serve};

/// Returns the commands of a measurement for this path.
#[must_use]
pub fn commands<S: Service + AsMut<Ports>>(place: &Place<S>) -> Vec<Arc<dyn Command>> {
    vec![Arc::new(RunPerf(place.clone())), Arc::new(ServePerf(place.clone()))]
}

struct RunPerf<S: Service>(Place<S>);

impl<S: Service + AsMut<Ports>> Command for RunPerf<S> {
    fn name(&self) -> &'static str {
        "perf.run"
    }

    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let plan: Plan = serde_json::from_value(args).map_err(|error| format!("not a plan: {error}"))?;
        let measured =
            run(&self.0, &plan, &mut |live| progress(json!(live))).map_err(|error| error.to_string())?;
        serde_json::to_value(measured).map_err(|error| error.to_string())
    }
}

struct ServePerf<S: Service>(Place<S>);

impl<S: Service + AsMut<Ports>> Command for ServePerf<S> {
    fn name(&self) -> &'static str {
        "perf.serve"
    }

    fn run(&self, args: Value, progress: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let order: Serve = serde_json::from_value(args).map_err(|error| format!("not an order: {error}"))?;
        serve(&self.0, &order, &mut || progress(Value::Null)).map_err(|error| error.to_string())?;
        Ok(Value::Null)
    }
}
