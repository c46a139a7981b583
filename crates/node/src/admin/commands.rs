//! The commands that every node has: `status`, `accept_lost`, `quiesce`, `handback`, `exit`.
//!
//! To end a cluster without loss, all nodes quiesce, then all hand back, then all exit with
//! `{"clean":true}`; see [`crate::boot::down`]. An `exit` without it makes the node leave alone.

use std::{sync::Arc, time::Duration};

use plexus_base::NodeId;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    admin::control::{Command, CommandSlots, Commands},
    body::{Body, BodyStatus},
    boot::config::Config,
    lifecycle::{Ending, Lifecycle, Stage},
    records::settle::Settled,
};

/// The answer of `status`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The name of the node.
    pub name: String,
    /// The process of the node.
    pub pid: u32,
    /// The stage of the node.
    pub state: Stage,
    /// The reason why it has stopped, if it has.
    pub why: Option<String>,
    /// The number of the run.
    pub run: u64,
    /// The seconds since its start.
    pub uptime_s: f64,
    /// The number of blocks that are refused because a failed node had their latest version, in
    /// this run or an earlier one.
    pub blocks_lost: u64,
    /// The status of links and cache; all zero before the node serves.
    #[serde(flatten)]
    pub body: BodyStatus,
}

/// A command with a closure as its action.
struct ClosureCommand<F>(&'static str, F);

impl<F> Command for ClosureCommand<F>
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

/// The interval at which a waiting command checks that its client is still connected.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Decodes the arguments of a command.
pub(crate) fn args<T: DeserializeOwned>(args: Value) -> Result<T, String> {
    serde_json::from_value(args).map_err(|error| format!("not what the command takes: {error}"))
}

/// Encodes the answer of a command.
pub(crate) fn json_of(value: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

/// The context of commands about the cluster.
pub(crate) struct CommandContext {
    pub(crate) config: Arc<Config>,
    pub(crate) body: Arc<Body>,
    pub(crate) places: Arc<CommandSlots>,
}

/// Sends progress to the client; returns false if the client is gone.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(Value) -> bool;

/// A command about the cluster.
pub(crate) type Run = fn(&CommandContext, Value, Progress<'_>) -> Result<Value, String>;

/// Registers commands by name. A command that waits for other nodes or for its client may do so for
/// long, and takes one of the limited slots for that. So other clients can still ask for the status
/// of the node, and evict a node that does not respond.
pub(crate) fn register(
    commands: &Commands,
    on: &Arc<CommandContext>,
    waits: bool,
    all: &[(&'static str, Run)],
) {
    for (name, run) in all.iter().copied() {
        let on = Arc::clone(on);
        commands.register(Arc::new(ClosureCommand(name, move |args: Value, progress: Progress<'_>| {
            let _place = if waits { Some(on.places.take()?) } else { None };
            run(&on, args, progress)
        })));
    }
}

/// Registers the commands that a node has before its parts are made.
pub(crate) fn register_status(
    commands: &Commands,
    config: &Arc<Config>,
    me: NodeId,
    settled: &Settled,
    lifecycle: &Arc<Lifecycle>,
) {
    register_status_of(commands, config, me, settled, lifecycle, None);
    let lifecycle = Arc::clone(lifecycle);
    commands.register(Arc::new(ClosureCommand("exit", move |args: Value, _: Progress<'_>| {
        exit(&lifecycle, &args)
    })));
}

/// Registers all other commands.
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
    commands.register(Arc::new(ClosureCommand("accept_lost", move |_: Value, _: Progress<'_>| {
        expect(&of_lifecycle, &[Stage::Running])?;
        Ok(json!({ "accepted": of_body.accept_lost()? }))
    })));
    let (of_lifecycle, of_body) = (Arc::clone(lifecycle), Arc::clone(body));
    commands.register(Arc::new(ClosureCommand("quiesce", move |_: Value, _: Progress<'_>| {
        expect(&of_lifecycle, &[Stage::Running, Stage::Quiesced, Stage::HandedBack])?;
        if of_lifecycle.stage().0 != Stage::HandedBack {
            of_body.quiesce();
            of_lifecycle.reach(Stage::Quiesced);
        }
        Ok(json!({}))
    })));
    let (of_lifecycle, of_body) = (Arc::clone(lifecycle), Arc::clone(body));
    commands.register(Arc::new(ClosureCommand("handback", move |_: Value, progress: Progress<'_>| {
        expect(&of_lifecycle, &[Stage::Quiesced, Stage::HandedBack])?;
        let handed_back = of_body.hand_back(&mut |written| {
            // The hand-back continues without a client, because half of it has no use.
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
    commands.register(Arc::new(ClosureCommand("status", move |_: Value, _: Progress<'_>| {
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
