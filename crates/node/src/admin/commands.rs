//! What every node does when asked: `status`, `accept_lost`, `quiesce`, `handback`, `exit`.
//!
//! To end a cluster without loss all nodes quiesce, then all hand back, then all exit with `{"clean":true}`; see
//! [`crate::boot::down`]. An `exit` without it makes the node leave alone.

use std::{sync::Arc, time::Duration};

use plexus_base::NodeId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    admin::control::{Command, Commands, Places},
    body::{Body, BodyStatus},
    boot::config::Config,
    lifecycle::{Ending, Lifecycle, Stage},
    records::settle::Settled,
};

/// What `status` answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The node.
    pub name: String,
    /// Its process.
    pub pid: u32,
    /// Where it stands.
    pub state: Stage,
    /// Why it has stopped, if it has.
    pub why: Option<String>,
    /// The number of the run.
    pub run: u64,
    /// Seconds since it started.
    pub uptime_s: f64,
    /// Blocks that are refused because their latest version went down with a node, in this run or an earlier one.
    pub blocks_lost: u64,
    /// Links and cache; all zero before it serves.
    #[serde(flatten)]
    pub body: BodyStatus,
}

/// A command that is a closure.
struct Does<F>(&'static str, F);

impl<F> Command for Does<F>
where
    F: Fn(Value, Progress<'_>) -> Result<Value, String> + Send + Sync,
{
    fn name(&self) -> &'static str {
        self.0
    }
    fn run(&self, args: Value, progress: Progress<'_>) -> Result<Value, String> {
        (self.1)(args, progress)
    }
}

/// How often a command that waits looks whether somebody still does.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What a command is asked for with.
pub(crate) fn args<T: DeserializeOwned>(args: Value) -> Result<T, String> {
    serde_json::from_value(args).map_err(|error| format!("not what the command takes: {error}"))
}

/// What it says.
pub(crate) fn json_of(value: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

/// What commands about the cluster have of their node.
pub(crate) struct On {
    pub(crate) config: Arc<Config>,
    pub(crate) body: Arc<Body>,
    pub(crate) places: Arc<Places>,
}

/// How a command tells something on the way; whether anybody is still there.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(Value) -> bool;

/// A command about the cluster.
pub(crate) type Run = fn(&On, Value, Progress<'_>) -> Result<Value, String>;

/// Has these be asked for, by their names. What waits for others, or for whoever asked, may do so for as long as they hang, and has one of the places for
/// that: so others can still ask how the node is, and put out who hangs.
pub(crate) fn register(commands: &Commands, on: &Arc<On>, waits: bool, all: &[(&'static str, Run)]) {
    for (name, run) in all.iter().copied() {
        let on = Arc::clone(on);
        commands.register(Arc::new(Does(name, move |args: Value, progress: Progress<'_>| {
            let _place = if waits { Some(on.places.take()?) } else { None };
            run(&on, args, progress)
        })));
    }
}

/// What can be asked of a node that has no body yet.
pub(crate) fn register_status(
    commands: &Commands,
    config: &Arc<Config>,
    me: NodeId,
    settled: &Settled,
    lifecycle: &Arc<Lifecycle>,
) {
    register_status_of(commands, config, me, settled, lifecycle, None);
    let lifecycle = Arc::clone(lifecycle);
    commands.register(Arc::new(Does("exit", move |args: Value, _: Progress<'_>| exit(&lifecycle, &args))));
}

/// Everything.
pub(crate) fn register_rest(
    commands: &Commands,
    config: &Arc<Config>,
    me: NodeId,
    settled: &Settled,
    lifecycle: &Arc<Lifecycle>,
    body: &Arc<Body>,
) {
    register_status_of(commands, config, me, settled, lifecycle, Some(Arc::clone(body)));
    let (of_lifecycle, of_body) = (Arc::clone(lifecycle), Arc::clone(body));
    commands.register(Arc::new(Does("accept_lost", move |_: Value, _: Progress<'_>| {
        expect(&of_lifecycle, &[Stage::Running])?;
        Ok(json!({ "accepted": of_body.accept_lost()? }))
    })));
    let (of_lifecycle, of_body) = (Arc::clone(lifecycle), Arc::clone(body));
    commands.register(Arc::new(Does("quiesce", move |_: Value, _: Progress<'_>| {
        expect(&of_lifecycle, &[Stage::Running, Stage::Quiesced, Stage::HandedBack])?;
        if of_lifecycle.stage().0 != Stage::HandedBack {
            of_body.quiesce();
            of_lifecycle.reach(Stage::Quiesced);
        }
        Ok(json!({}))
    })));
    let (of_lifecycle, of_body) = (Arc::clone(lifecycle), Arc::clone(body));
    commands.register(Arc::new(Does("handback", move |_: Value, progress: Progress<'_>| {
        expect(&of_lifecycle, &[Stage::Quiesced, Stage::HandedBack])?;
        let handed_back = of_body.hand_back(&mut |written| {
            // Handing back goes on without a client: half a hand-back is worth nothing.
            progress(json!({ "written": written }));
        })?;
        of_lifecycle.reach(Stage::HandedBack);
        Ok(json!({ "written": handed_back.written, "held": handed_back.gave_up }))
    })));
}

fn register_status_of(
    commands: &Commands,
    config: &Arc<Config>,
    me: NodeId,
    settled: &Settled,
    lifecycle: &Arc<Lifecycle>,
    body: Option<Arc<Body>>,
) {
    let name = config.nodes[me.index()].name.clone();
    let (run, lost_before, lifecycle) = (settled.run, settled.lost.len(), Arc::clone(lifecycle));
    commands.register(Arc::new(Does("status", move |_: Value, _: Progress<'_>| {
        let (state, why) = lifecycle.stage();
        let uptime = plexus_base::clock::now().since(lifecycle.since());
        let status = Status {
            name: name.clone(),
            pid: std::process::id(),
            state,
            why,
            run,
            uptime_s: uptime.0 as f64 / 1e9,
            blocks_lost: body.as_ref().map_or(lost_before, |body| body.blocks_lost()),
            body: body.as_ref().map(|body| body.status()).unwrap_or_default(),
        };
        json_of(&status)
    })));
}

fn expect(lifecycle: &Lifecycle, stages: &[Stage]) -> Result<(), String> {
    match lifecycle.stage() {
        (stage, _) if stages.contains(&stage) => Ok(()),
        (Stage::Stopped, Some(why)) => Err(format!("it has stopped: {why}")),
        (stage, _) => Err(format!("it is {stage}")),
    }
}

fn exit(lifecycle: &Lifecycle, args: &Value) -> Result<Value, String> {
    let clean = args["clean"] == true;
    if clean {
        expect(lifecycle, &[Stage::HandedBack])?;
    }
    lifecycle.end(if clean { Ending::Together } else { Ending::Leave }).map_err(|error| error.to_string())?;
    Ok(json!({}))
}
