//! An example of a subsystem, which the tests run: a thread of a node asks another node to return
//! some bytes. It uses every part of [`Subsystem`], [`Install`] and [`Handle`].

use std::{
    collections::BTreeMap,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use plexus_admin::control::{Commands, Progress};
use plexus_base::{NodeId, WorkerId};
use plexus_fabric::Event;
use plexus_interconnect::{Channel, Message, Net, Reply};
use plexus_locks::LockService;
use plexus_membership::{
    partitions::Members,
    subsystem::{Neighbours, Subsystem, WorkerPort},
};
use plexus_registry::Apply;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Handle, Install, Installed, Making};
use crate::{
    commands::{CommandContext, NodeCommand, args},
    runtime::NodeRuntime,
};

/// A request that is never answered.
const UNANSWERED: &[u8] = b"keep this";

/// The returned bytes; `None` if the peer is lost.
type Answer = Option<Vec<u8>>;

pub enum EchoTask {
    Call(NodeId, Vec<u8>, Reply<Answer>),
    /// Asks for the number of members in the last view.
    Members(Reply<usize>),
    /// Asks for a reply in the turn after the event of the subsystem, which tells whether the
    /// worker has locks.
    Wait(Reply<bool>),
}

/// The table `[echo]` of `cluster.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct EchoSettings {
    /// The longest text that is sent, in bytes.
    longest: usize,
}

impl Default for EchoSettings {
    fn default() -> Self {
        Self { longest: 1024 }
    }
}

/// The state that threads and workers share.
#[derive(Default)]
struct EchoState {
    returned: AtomicU64,
    is_rung: AtomicBool,
    /// The generation of the registry that was applied.
    applied: AtomicU64,
}

pub struct EchoService {
    state: Arc<EchoState>,
    calls: BTreeMap<u64, Reply<Answer>>,
    last: u64,
    members: usize,
    waiting: Vec<Reply<bool>>,
}

impl Subsystem for EchoService {
    const NAME: &'static str = "echo";
    const CHANNELS: &'static [Channel] = &[Channel::Application3];
    const HAS_TURN: bool = true;
    type Task = EchoTask;

    fn view(&mut self, _: &mut Net, view: &Members) {
        self.members = view.members.len();
    }

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        if message.payload != UNANSWERED {
            self.state.returned.fetch_add(1, Relaxed);
            // Without a link, the caller learns that the call has failed.
            let _ = net.answer(message, message.payload);
        }
    }

    fn task(&mut self, net: &mut Net, task: EchoTask) {
        match task {
            EchoTask::Call(to, bytes, reply) => {
                self.last += 1;
                match net.call(to, Self::CHANNELS[0], &bytes, self.last) {
                    Ok(()) => drop(self.calls.insert(self.last, reply)),
                    Err(_) => reply.send(None),
                }
            }
            EchoTask::Members(reply) => reply.send(self.members),
            EchoTask::Wait(reply) => self.waiting.push(reply),
        }
    }

    fn reply(&mut self, _: &mut Net, _: NodeId, token: u64, payload: &[u8]) {
        self.calls.remove(&token).into_iter().for_each(|reply| reply.send(Some(payload.to_vec())));
    }

    fn call_failed(&mut self, _: &mut Net, _: NodeId, token: u64) {
        self.calls.remove(&token).into_iter().for_each(|reply| reply.send(None));
    }

    fn turn(&mut self, _: &mut Net, others: &mut dyn Neighbours) -> usize {
        if !self.pending() {
            return 0;
        }
        let has_locks = others.get::<LockService>().is_some();
        self.waiting.drain(..).map(|reply| reply.send(has_locks)).count()
    }

    fn pending(&mut self) -> bool {
        self.state.is_rung.load(Relaxed) && !self.waiting.is_empty()
    }
}

/// The interface of the subsystem to threads.
pub(crate) struct Echo {
    port: Arc<dyn WorkerPort<EchoService>>,
    state: Arc<EchoState>,
    settings: EchoSettings,
    /// Wakes worker 0.
    event: Event,
    /// What the node has asked of it, for the test.
    asked: Arc<Mutex<Vec<&'static str>>>,
}

impl Install for EchoService {
    type Handle = Echo;
    const SECTION: Option<&'static str> = Some("echo");
    const COMMANDS: &'static [NodeCommand] = &[NodeCommand::waiting("echo", echo)];

    fn install(node: &Making<'_>, port: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let config = &node.parts.config;
        let settings = config.section::<EchoSettings>("echo")?;
        let event = Event::create().map_err(|error| error.to_string())?;
        let woken = event.as_fd().try_clone_to_owned().and_then(Event::from_peer);
        let events = vec![woken.map_err(|error| error.to_string())?];
        let state = Arc::<EchoState>::default();
        let part = |_| Self {
            state: state.clone(),
            calls: BTreeMap::new(),
            last: 0,
            members: 0,
            waiting: Vec::new(),
        };
        let parts = (0..config.workers).map(part).collect();
        let handle = Echo { port, state: state.clone(), settings, event, asked: Arc::default() };
        Ok(Installed { events, ..Installed::new(parts, handle) })
    }
}

impl Echo {
    fn asked(&self, what: &'static str) {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }
}

impl Handle for Echo {
    fn applies(&self) -> Option<Apply> {
        let state = self.state.clone();
        Some(Box::new(move |contents| state.applied.store(contents.generation(), Relaxed)))
    }

    fn start(&self) -> Result<(), String> {
        self.asked("start");
        Ok(())
    }

    fn serve(&self, node: &Arc<NodeRuntime>, _: &Commands) -> Result<(), String> {
        self.asked(if node.members().contains(node.me()) { "serve" } else { "serve too early" });
        Ok(())
    }

    fn quiesce(&self) {
        self.asked("quiesce");
    }

    fn end(&self) {
        self.asked("end");
    }

    fn ended(&self) {
        self.asked("ended");
    }

    fn status(&self) -> Option<Value> {
        Some(json!({ "longest": self.settings.longest }))
    }

    fn trouble(&self) -> Vec<String> {
        let is_rung = self.state.is_rung.load(Relaxed);
        is_rung.then(|| "echo: somebody has rung".to_owned()).into_iter().collect()
    }

    fn counts(&self, _: Duration) -> Vec<(&'static str, u64)> {
        vec![("returned", self.state.returned.load(Relaxed))]
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EchoArgs {
    node: String,
    text: String,
}

/// The command `echo`: sends a text to a node and answers with what comes back.
fn echo(on: &CommandContext, asked: Value, _: Progress<'_>) -> Result<Value, String> {
    let EchoArgs { node, text } = args(asked)?;
    let (to, _) = on.config.node(&node).map_err(|error| error.to_string())?;
    let handle = &on.runtime().handles().echo;
    let longest = handle.settings.longest;
    if text.len() > longest {
        return Err(format!("the text has {} bytes: use at most {longest}", text.len()));
    }
    let (reply, answer) = Reply::new();
    handle.port.submit(WorkerId(0), EchoTask::Call(to, text.into_bytes(), reply));
    let bytes = answer.wait().flatten().ok_or_else(|| format!("{node} is lost"))?;
    Ok(json!(String::from_utf8_lossy(&bytes)))
}

mod tests {
    use std::time::{Duration, Instant};

    use plexus_admin::{config::Config, control::Control, create};
    use plexus_fabric::RailKind;

    use super::{
        super::cluster::{Cluster, TIMEOUT, config, start},
        *,
    };

    /// Submits a task to worker 1 of node `from`; returns the receiver of the answer.
    fn submit<T>(
        cluster: &Cluster,
        from: usize,
        task: impl FnOnce(Reply<T>) -> EchoTask,
    ) -> plexus_interconnect::Answer<T> {
        let (reply, told) = Reply::new();
        cluster.runtime(from).handles().echo.port.submit(WorkerId(1), task(reply));
        told
    }

    fn call(cluster: &Cluster, to: u8, bytes: &[u8]) -> plexus_interconnect::Answer<Answer> {
        submit(cluster, 0, |reply| EchoTask::Call(NodeId(to), bytes.to_vec(), reply))
    }

    #[test]
    fn bytes_come_back_through_a_change_of_view_and_a_lost_peer_fails_the_call() {
        for rail in [RailKind::Shm, RailKind::Tcp] {
            let mut cluster = Cluster::start(3, 2, rail);
            let come_back = |cluster: &Cluster, bytes: &[u8]| {
                let answer = call(cluster, 1, bytes).wait_for(TIMEOUT).ok().flatten();
                assert_eq!(answer, Some(Some(bytes.to_vec())), "{rail}");
            };
            come_back(&cluster, b"before");
            let unanswered = call(&cluster, 1, UNANSWERED);
            cluster.end(2);
            let start = Instant::now();
            while submit(&cluster, 0, EchoTask::Members).wait_for(TIMEOUT).ok().flatten() != Some(2) {
                assert!(start.elapsed() < TIMEOUT, "the view without the third has not come");
            }
            come_back(&cluster, b"after");
            let still = unanswered.wait_for(Duration::ZERO).err();
            let unanswered = still.expect("its peer is still there");
            cluster.end(1);
            assert_eq!(unanswered.wait_for(TIMEOUT).ok().flatten(), Some(None), "{rail}");
        }
    }

    #[test]
    fn a_node_calls_every_part_of_a_subsystem_in_order() {
        let place = tempfile::tempdir().unwrap();
        let mut config = Config { workers: 2, ..config(place.path(), 1, RailKind::Shm, 30_000) };
        config.sections.insert("echo".into(), "longest = 5\n".into());
        create::create(&config).unwrap();
        let node = start(&Config::load(&config.dir).unwrap(), "n1");
        let asked = node.runtime().handles().echo.asked.clone();
        let asked = || asked.lock().unwrap().join(", ");
        assert_eq!(asked(), "start, serve");

        // The table of the configuration, the command, and the status.
        let mut control = Control::connect(&config.dir, "n1").unwrap();
        let mut call = |command: &str, args| control.call(command, args, |_| ());
        let refused = call("echo", json!({ "node": "n1", "text": "longer" })).unwrap_err();
        assert!(refused.to_string().ends_with("the text has 6 bytes: use at most 5"), "{refused}");
        let status = |status: Value| (status["subsystems"]["echo"].clone(), status["trouble"].clone());
        assert_eq!(status(call("status", json!({})).unwrap()), (json!({ "longest": 5 }), Value::Null));

        // The turn that an event of its own begins. The worker may sleep before.
        let handle = &node.runtime().handles().echo;
        let (reply, answer) = Reply::new();
        handle.port.submit(WorkerId(0), EchoTask::Wait(reply));
        assert_eq!(answer.wait_for(Duration::ZERO).err().map(drop), Some(()), "nobody has rung");
        let (reply, answer) = Reply::new();
        handle.port.submit(WorkerId(0), EchoTask::Wait(reply));
        handle.state.is_rung.store(true, Relaxed);
        handle.event.signal();
        assert_eq!(answer.wait_for(TIMEOUT).ok().flatten(), Some(true), "the worker has locks");
        let trouble = status(call("status", json!({})).unwrap()).1;
        assert_eq!(trouble, json!(["echo: somebody has rung"]));
        assert_eq!(node.runtime().counts_within(TIMEOUT)["echo"], [("returned".to_owned(), 0)].into());

        // The registry: what was answered is applied.
        let set = json!({ "key": "a", "value": { "text": "1" } });
        let generation = call("registry.set", set).unwrap()["version"].as_u64().unwrap();
        assert!(handle.state.applied.load(Relaxed) >= generation && generation > 0);

        call("quiesce", json!({})).unwrap();
        drop(control);
        drop(node);
        // The thread of the connection may keep the node for a moment.
        let begin = Instant::now();
        while !asked().ends_with(", ended") && begin.elapsed() < TIMEOUT {
            std::thread::yield_now();
        }
        assert_eq!(asked(), "start, serve, quiesce, end, ended");

        // A table that no subsystem reads, and one with a wrong key.
        let with = |name: &str, table: &str| {
            let mut config = config.clone();
            config.sections = [(name.to_owned(), table.to_owned())].into();
            crate::Node::start(config, "n1", |_, _| (), |why, _| eprintln!("{why}"))
                .err()
                .unwrap()
                .to_string()
        };
        let path = config.dir.config().display().to_string();
        assert_eq!(with("eco", ""), format!("{path}: there is no table [eco]"));
        let wrong = with("echo", "loud = true");
        assert!(wrong.starts_with(&format!("{path}: [echo]: unknown field `loud`")), "{wrong}");
    }
}
