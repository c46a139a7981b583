//! Commands for nodes of other hosts, forwarded by a member.
//!
//! The control socket of a node can be reached on its own host only. On another host a program asks
//! any node there with the command `forward`, and that node passes the request to the member over
//! their link. Request and answer are the JSON of the [control socket](plexus_admin::control), one
//! message each. The link has proved the cluster key, so the member trusts the request. Only the
//! commands in [`FORWARDED`] can be forwarded.
//!
//! A request ends after its time limit, and when the member's link is lost. Both mean that the
//! member cannot be reached, and not that it is down: views decide that.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError, Weak, mpsc},
    thread,
    time::{Duration, Instant},
};

use plexus_admin::control::{CommandSlots, Commands, Forwarded, Progress, Request, Response, WeakCommands};
use plexus_base::{Epoch, Incarnation, NodeId, WorkerId, threads};
use plexus_interconnect::{Channel, Kind, MAX_MESSAGE, Message, Net, Reply};
use plexus_membership::subsystem::{Subsystem, WorkerPort};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    commands::{CommandContext, LOOK_EVERY, NodeCommand, args, json_of},
    runtime::NodeRuntime,
    subsystems::{Handle, Install, Installed, Making},
};

/// The commands that other nodes may forward: those that change nothing, those that end a node, and
/// those of the block workload. Also those that sessions of SQL ask of each other.
const FORWARDED: [&str; 13] = [
    "status",
    "snapshot",
    "locks",
    "sessions",
    "session",
    "statements",
    "disks",
    "disk.measure",
    "quiesce",
    "handback",
    "exit",
    "bench.blocks",
    "bench.sum",
];

/// The worker that exchanges the messages.
const WORKER: WorkerId = WorkerId(0);

/// The longest wait for the connection to a new member, and the interval between attempts.
const CONNECTED_WITHIN: Duration = Duration::from_secs(2);
const AGAIN_AFTER: Duration = Duration::from_millis(20);

/// The most requests that may wait for one peer.
const WAITING_MAX: usize = 64;

/// The commands of this module.
const COMMANDS: &[NodeCommand] = &[NodeCommand::waiting("forward", forward)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForwardArgs {
    node: String,
    within_ms: u64,
    request: Request,
}

fn forward(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let ForwardArgs { node, within_ms, request } = args(asked)?;
    let (node, _) = on.config.node(&node).map_err(|error| error.to_string())?;
    let request = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
    json_of(&pass_on(on.runtime(), node, &request, Duration::from_millis(within_ms), progress)?)
}

/// Passes a request to another node and waits for the answer. A member to which there is no
/// connection yet, or no longer, is tried again for a while: a view may tell more.
///
/// # Errors
/// The client has gone.
fn pass_on(
    runtime: &NodeRuntime,
    node: NodeId,
    request: &[u8],
    within: Duration,
    progress: Progress<'_>,
) -> Result<Forwarded, String> {
    let start = Instant::now();
    loop {
        let why = match attempt(runtime, node, request, within, progress)? {
            Ok(said) => return Ok(said),
            Err(why) => why,
        };
        let may_connect = why == NoAnswer::Unconnected && start.elapsed() < within.min(CONNECTED_WITHIN);
        if !may_connect || !progress(Value::Null) {
            let problem = runtime.problem(node).map_or(String::new(), |problem| format!(": {problem}"));
            return Ok(Forwarded::Unreachable(format!("{why}{problem}")));
        }
        thread::sleep(AGAIN_AFTER);
    }
}

fn attempt(
    runtime: &NodeRuntime,
    node: NodeId,
    request: &[u8],
    within: Duration,
    progress: Progress<'_>,
) -> Result<Result<Forwarded, NoAnswer>, String> {
    let unreachable = |why: String| Ok(Ok(Forwarded::Unreachable(why)));
    let Some(view) = runtime.view() else {
        return unreachable("the node that was asked is not a member itself".into());
    };
    if !view.members().contains(node) {
        let belongs = view.cluster().contains(node);
        return Ok(Ok(if belongs { Forwarded::Down } else { Forwarded::Removed }));
    }
    let mut answer = runtime.handles().forward.ask(node, request.to_vec());
    let end = Instant::now() + within;
    loop {
        answer = match answer.wait_for(LOOK_EVERY) {
            Ok(Some(answer)) => return Ok(answer.map(|bytes| Forwarded::of(&bytes))),
            Ok(None) => return unreachable("the node that was asked is ending".into()),
            Err(_) if Instant::now() >= end => {
                return unreachable(format!("it did not answer within {} s", within.as_secs()));
            }
            Err(answer) if progress(Value::Null) => answer,
            Err(_) => return Err("the client has gone".into()),
        }
    }
}

/// The reason why a peer has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoAnswer {
    /// The request was not sent.
    #[error("there is no connection to it")]
    Unconnected,
    /// The request was sent, and the link is lost.
    #[error("its connection was lost before it answered")]
    Lost,
    /// The limit of requests is reached.
    #[error("too many requests wait for it already")]
    Busy,
}

/// The answer of a peer, or the reason why there is none.
type Answer = Result<Vec<u8>, NoAnswer>;

/// The request that an answer belongs to.
#[derive(Clone, Copy, Debug)]
pub struct RequestOrigin {
    from: NodeId,
    incarnation: Incarnation,
    epoch: Epoch,
    tag: u32,
}

/// A task of a thread of the node.
pub enum ForwardTask {
    /// Sends a request to a peer.
    Ask(NodeId, Vec<u8>, Reply<Answer>),
    /// Sends the answer to the request of a peer.
    Answer(RequestOrigin, Vec<u8>),
}

/// The exchange of requests and answers with peers, on worker 0.
pub struct ForwardService {
    calls: BTreeMap<u64, (NodeId, Reply<Answer>)>,
    last: u64,
    /// Takes the requests of peers to the thread that runs them.
    requests: mpsc::Sender<(RequestOrigin, Vec<u8>)>,
}

impl ForwardService {
    fn answered(&mut self, token: u64, answer: Answer) {
        if let Some((_, reply)) = self.calls.remove(&token) {
            reply.send(answer);
        }
    }
}

impl Subsystem for ForwardService {
    const NAME: &'static str = "forward";
    const CHANNELS: &'static [Channel] = &[Channel::Control];
    type Task = ForwardTask;

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        let Message { from, epoch, tag, .. } = message;
        if let Some(incarnation) = net.incarnation(from) {
            // Fails when the node is ending: the peer learns that from its link.
            let origin = RequestOrigin { from, incarnation, epoch, tag };
            let _ = self.requests.send((origin, message.payload.to_vec()));
        }
    }

    fn task(&mut self, net: &mut Net, task: ForwardTask) {
        match task {
            ForwardTask::Ask(to, _, reply)
                if self.calls.values().filter(|(of, _)| *of == to).count() >= WAITING_MAX =>
            {
                reply.send(Err(NoAnswer::Busy));
            }
            ForwardTask::Ask(to, request, reply) => {
                self.last += 1;
                match net.call(to, Channel::Control, &request, self.last) {
                    Ok(()) => drop(self.calls.insert(self.last, (to, reply))),
                    Err(_) => reply.send(Err(NoAnswer::Unconnected)),
                }
            }
            // Another incarnation of the peer did not ask.
            ForwardTask::Answer(RequestOrigin { from, incarnation, epoch, tag }, answer) => {
                if net.incarnation(from) == Some(incarnation) {
                    let (channel, kind) = (Channel::Control, Kind::Request);
                    let request = Message { from, channel, kind, epoch, tag, payload: &[] };
                    // Without a link, the peer learns that the call has failed.
                    let _ = net.answer(request, &answer);
                }
            }
        }
    }

    fn reply(&mut self, _: &mut Net, _: NodeId, token: u64, payload: &[u8]) {
        self.answered(token, Ok(payload.to_vec()));
    }

    fn call_failed(&mut self, _: &mut Net, _: NodeId, token: u64) {
        self.answered(token, Err(NoAnswer::Lost));
    }
}

/// The interface of the subsystem to threads.
pub(crate) struct Forwarder {
    port: Arc<dyn WorkerPort<ForwardService>>,
    requests: Mutex<Option<mpsc::Receiver<(RequestOrigin, Vec<u8>)>>>,
}

impl Install for ForwardService {
    type Handle = Forwarder;
    const COMMANDS: &'static [NodeCommand] = COMMANDS;

    fn install(_: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let (requests, receiver) = mpsc::channel();
        let parts = vec![Self { calls: BTreeMap::new(), last: 0, requests }];
        let handle = Forwarder { port, requests: Mutex::new(Some(receiver)) };
        Ok(Installed::new(parts, handle))
    }
}

impl Handle for Forwarder {
    /// Runs the requests of other nodes on these commands.
    fn serve(&self, _: &Arc<NodeRuntime>, commands: &Commands) -> Result<(), String> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        let requests = requests.expect("a node serves its peers once");
        let (commands, port) = (commands.downgrade(), Arc::downgrade(&self.port));
        let thread = thread::Builder::new().name("plexus-forward".into());
        let started = thread.spawn(move || serve(&requests, &commands, &port)).map(drop);
        started.map_err(|error| format!("a thread for the commands of other nodes: {error}"))
    }
}

impl Forwarder {
    /// Sends a request to a peer; the answer comes to the receiver.
    pub(crate) fn ask(&self, node: NodeId, request: Vec<u8>) -> plexus_interconnect::Answer<Answer> {
        let (reply, answer) = Reply::new();
        self.port.submit(WORKER, ForwardTask::Ask(node, request, reply));
        answer
    }
}

/// Runs each request on a thread of its own, because some take long.
fn serve(
    requests: &mpsc::Receiver<(RequestOrigin, Vec<u8>)>,
    commands: &WeakCommands,
    port: &Weak<dyn WorkerPort<ForwardService>>,
) {
    let slots = Arc::new(CommandSlots::default());
    while let Ok((origin, request)) = requests.recv() {
        let (slots, commands, port) = (slots.clone(), commands.clone(), port.clone());
        let run = move || {
            let answer = answer(&commands, &slots, &request);
            if let Some(port) = port.upgrade() {
                port.submit(WORKER, ForwardTask::Answer(origin, answer));
            }
        };
        // Without a thread the other requests wait for it.
        threads::start("plexus-forwarded", run).unwrap_or_else(|run| run());
    }
}

/// Runs the request of a peer and returns the encoded answer.
fn answer(commands: &WeakCommands, slots: &CommandSlots, request: &[u8]) -> Vec<u8> {
    let run = || {
        let Request { command, args } =
            serde_json::from_slice(request).map_err(|error| format!("not a request: {error}"))?;
        if !FORWARDED.contains(&&*command) {
            return Err(format!("`{command}` is not forwarded: run it on the host of the node"));
        }
        let _slot = slots.take()?;
        let action = commands.upgrade().ok_or("the node is ending")?.find(&command)?;
        action(args, &mut |_| true)
    };
    let encoded = serde_json::to_vec(&run().map_or_else(Response::Error, Response::Ok));
    let why = match encoded {
        Ok(bytes) if bytes.len() <= MAX_MESSAGE => return bytes,
        Ok(bytes) => format!("an answer of {} bytes is too long to be forwarded", bytes.len()),
        Err(error) => error.to_string(),
    };
    serde_json::to_vec(&Response::Error(why)).unwrap_or_default()
}
