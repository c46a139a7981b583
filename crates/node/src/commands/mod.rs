//! The commands that every node has: `status`, `fenced`, `quiesce`, `handback`, `exit`.
//!
//! To end a cluster without loss, all nodes quiesce, then all hand back, then all exit with
//! `{"clean":true}`; see [`plexus_admin::down`]. An `exit` without it makes the node leave alone.

pub mod disk_speed;
pub(crate) mod forward;
pub mod grouping;
pub mod identity;
pub mod locking;
pub mod registry;

use std::{
    sync::{Arc, OnceLock, Weak, mpsc},
    thread,
    time::Duration,
};

use plexus_admin::{
    config::Config,
    control::{CommandSlots, Commands, Progress},
    memory::MemoryUse,
    status::{RuntimeStatus, Stage, Status},
};
use plexus_base::Incarnation;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    lifecycle::{Ending, Lifecycle},
    member::Member,
    runtime::{HandedBack, NodeRuntime},
};

/// The arguments of `fenced`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FencedArgs {
    /// The name of the node.
    pub node: String,
    /// The incarnation that has ended.
    pub incarnation: u64,
}

/// The interval at which a waiting command checks that its client is still connected.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Decodes the arguments of a command.
pub(crate) fn args<T: DeserializeOwned>(args: Value) -> Result<T, String> {
    serde_json::from_value(args).map_err(|error| format!("not what the command takes: {error}"))
}

/// Runs work that cannot look at the client, such as a read of the user's file, on a thread of its
/// own. If the client goes first, the command ends and gives its slot back; the work goes on.
pub(crate) fn aside<T: Send + 'static>(
    progress: Progress<'_>,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let (tell, told) = mpsc::sync_channel(1);
    let run = move || {
        // The answer has no receiver if the client has gone.
        let _ = tell.send(work());
    };
    thread::Builder::new()
        .name("plexus-command".into())
        .spawn(run)
        .map_err(|error| format!("no thread for the command: {error}"))?;
    loop {
        match told.recv_timeout(LOOK_EVERY) {
            Ok(done) => return done,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err("the command failed; see the log".into()),
            Err(mpsc::RecvTimeoutError::Timeout) if progress(Value::Null) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => return Err("the client has gone".into()),
        }
    }
}

/// Encodes the answer of a command.
pub(crate) fn json_of(value: &impl Serialize) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

/// The context of the commands of a node.
pub(crate) struct CommandContext {
    pub(crate) config: Arc<Config>,
    name: String,
    lifecycle: Arc<Lifecycle>,
    places: CommandSlots,
    runtime: OnceLock<Arc<NodeRuntime>>,
    /// The membership, from the time on when the node tries to join.
    pub(crate) member: Arc<OnceLock<Weak<Member>>>,
}

impl CommandContext {
    /// Creates the context of a node that has no runtime yet.
    pub(crate) fn new(config: &Arc<Config>, name: &str, lifecycle: &Arc<Lifecycle>) -> Arc<Self> {
        Arc::new(Self {
            config: Arc::clone(config),
            name: name.into(),
            lifecycle: Arc::clone(lifecycle),
            places: CommandSlots::default(),
            runtime: OnceLock::new(),
            member: Arc::default(),
        })
    }

    /// Gives the commands the runtime. All but [`FIRST`] are registered afterwards.
    pub(crate) fn place_runtime(&self, runtime: &Arc<NodeRuntime>) {
        assert!(self.runtime.set(Arc::clone(runtime)).is_ok(), "a node has one runtime");
    }

    /// Returns the status of a node that has not joined yet.
    fn joining(&self) -> RuntimeStatus {
        let member = self.member.get().and_then(Weak::upgrade);
        match member.and_then(|member| member.membership_status()) {
            Some((status, trouble)) => {
                RuntimeStatus { membership: Some(status), trouble, ..RuntimeStatus::default() }
            }
            None => RuntimeStatus::default(),
        }
    }

    /// Returns the runtime of the node.
    pub(crate) fn runtime(&self) -> &Arc<NodeRuntime> {
        self.runtime.get().expect("the command is registered after the runtime was placed")
    }
}

/// The action of a command about the cluster.
pub(crate) type Run = fn(&CommandContext, Value, Progress<'_>) -> Result<Value, String>;

/// A command of the control socket.
#[derive(Clone, Copy)]
pub(crate) struct NodeCommand {
    name: &'static str,
    run: Run,
    /// True if it waits for other nodes or for its client, maybe for long. It takes one of the
    /// limited slots for that, so that other clients can still ask for the status of the node, and
    /// evict a node that does not respond.
    waits: bool,
}

impl NodeCommand {
    /// A command that answers at once.
    pub(crate) const fn prompt(name: &'static str, run: Run) -> Self {
        Self { name, run, waits: false }
    }

    /// A command that may wait.
    pub(crate) const fn waiting(name: &'static str, run: Run) -> Self {
        Self { name, run, waits: true }
    }
}

/// Registers commands by name.
pub(crate) fn register(commands: &Commands, on: &Arc<CommandContext>, all: &[NodeCommand]) {
    for NodeCommand { name, run, waits } in all.iter().copied() {
        let on = Arc::clone(on);
        commands.register(name, move |args, progress| {
            let _place = if waits { Some(on.places.take()?) } else { None };
            run(&on, args, progress)
        });
    }
}

/// The commands that a node has before its runtime is made.
pub(crate) const FIRST: &[NodeCommand] = &[
    NodeCommand::prompt("status", status),
    NodeCommand::prompt("fenced", fenced),
    NodeCommand::prompt("exit", exit),
];

/// The commands of this module that need the runtime.
pub(crate) const COMMANDS: &[NodeCommand] =
    &[NodeCommand::prompt("quiesce", quiesce), NodeCommand::prompt("handback", hand_back)];

fn status(on: &CommandContext, _: Value, _: Progress<'_>) -> Result<Value, String> {
    let (state, why) = on.lifecycle.stage();
    let uptime = plexus_base::clock::now().since(on.lifecycle.since());
    let runtime = on.runtime.get();
    json_of(&Status {
        name: on.name.clone(),
        pid: std::process::id(),
        state,
        why,
        uptime_s: uptime.0 as f64 / 1e9,
        memory: MemoryUse::now(),
        runtime: runtime.map_or_else(|| on.joining(), |runtime| runtime.status()),
    })
}

/// Takes an operator's word that an incarnation of a node has ended for certain.
fn fenced(on: &CommandContext, asked: Value, _: Progress<'_>) -> Result<Value, String> {
    let FencedArgs { node, incarnation } = args(asked)?;
    let (node, _) = on.config.node(&node).map_err(|error| error.to_string())?;
    let member = on.member.get().and_then(Weak::upgrade).ok_or("it has no membership yet")?;
    member.vouched(node, Incarnation(incarnation))?;
    Ok(json!({}))
}

fn exit(on: &CommandContext, args: Value, _: Progress<'_>) -> Result<Value, String> {
    let clean = args["clean"] == true;
    if clean {
        expect(&on.lifecycle, &[Stage::HandedBack])?;
    }
    let ending = if clean { Ending::Together } else { Ending::Leave };
    on.lifecycle.end(ending).map_err(|error| error.to_string())?;
    Ok(json!({}))
}

fn quiesce(on: &CommandContext, _: Value, _: Progress<'_>) -> Result<Value, String> {
    expect(&on.lifecycle, &[Stage::Running, Stage::Quiesced, Stage::HandedBack])?;
    if on.lifecycle.stage().0 != Stage::HandedBack {
        on.runtime().quiesce();
        on.lifecycle.reach(Stage::Quiesced);
    }
    Ok(json!({}))
}

fn hand_back(on: &CommandContext, _: Value, progress: Progress<'_>) -> Result<Value, String> {
    expect(&on.lifecycle, &[Stage::Quiesced, Stage::HandedBack])?;
    let handed_back = on.runtime().hand_back(&mut |written| {
        // The hand-back continues without a client, because half of it has no use.
        progress(json!({ "written": written }));
    })?;
    on.lifecycle.reach(Stage::HandedBack);
    let HandedBack { written, gave_up, unrecovered } = handed_back;
    Ok(json!({ "written": written, "held": gave_up, "unrecovered": unrecovered }))
}

fn expect(lifecycle: &Lifecycle, stages: &[Stage]) -> Result<(), String> {
    match lifecycle.stage() {
        (stage, _) if stages.contains(&stage) => Ok(()),
        (Stage::Stopped, Some(why)) => Err(format!("it has stopped: {why}")),
        (stage, _) => Err(format!("it is {stage}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_whose_work_hangs_ends_with_its_client() {
        let (end, hangs) = mpsc::channel::<()>();
        let work = move || hangs.recv().map_err(|error| error.to_string());
        let mut looks = 0;
        let mut client = |value: Value| {
            assert_eq!(value, Value::Null);
            looks += 1;
            looks < 3
        };
        assert_eq!(aside(&mut client, work), Err("the client has gone".into()));
        assert_eq!(looks, 3);
        drop(end);
        assert_eq!(aside(&mut |_| true, || Ok(7)), Ok(7));
    }
}
