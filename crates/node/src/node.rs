//! One node, from its start to its end.
//!
//! [`Node::start`] returns when the node serves; [`Node::run_until_stopped`] waits until a command or a signal ends
//! it. The order matters and is all here: the lock before anything else, the last run settled before this one
//! begins, disks and address checked before peers are bothered, the record written before the first message is
//! served.

use std::{io, path::PathBuf, sync::Arc, thread, thread::JoinHandle};

use plexus_base::NodeId;
use plexus_disks::{DiskError, Group};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    admin::commands::{self, On},
    admin::control::{Command, Commands, Server},
    admin::grouping,
    admin::locking,
    admin::registry,
    body::{Body, Parts},
    boot::config::{Config, ConfigError, NodeConfig},
    boot::machine::{self, MachineError},
    lifecycle::{Ending, Lifecycle, Stage},
    member::Die,
    member::config_changes,
    member::newcomers,
    records::settle::{self, Entry},
    records::state::{Recorder, StateError},
};

/// A node that serves.
pub struct Node {
    lifecycle: Arc<Lifecycle>,
    body: Arc<Body>,
    // Dropped in this order: nobody can ask any more, signals do what they did before, the lock goes last.
    _server: Server,
    _signals: SignalThread,
    _entry: Entry,
}

/// Why a node did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The records of runs, or the lock.
    #[error(transparent)]
    State(#[from] StateError),
    /// The disk group.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// What the machine has to give.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The control socket.
    #[error("{path}: control socket: {source}")]
    Control {
        /// The socket.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Links and cache.
    #[error("{0}")]
    Body(String),
    /// Asked to end before it served.
    #[error("{0} was told to end before all its peers were there")]
    Interrupted(String),
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}

impl Node {
    /// Starts the node called `name` and waits for its peers. `more` are commands that it is to know besides
    /// its own, made from its body. `die` is called when it must stop at once, and must not return where the process is its own.
    ///
    /// # Errors
    /// One line for the user. The node holds nothing then, and has changed nothing.
    pub fn start(
        config: Config,
        name: &str,
        more: impl FnOnce(&Arc<Body>) -> Vec<Arc<dyn Command>>,
        die: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, NodeError> {
        let config = Arc::new(config);
        let (me, node) = config.node(name)?;
        machine::pin(name, &node.cores)?;
        let entry = settle::enter(&config, name)?;
        let recorder =
            Arc::new(Recorder::new(&config.dir, name, entry.incarnation, config.workers, &entry.settled));
        let lifecycle = Arc::new(Lifecycle::new(recorder.clone()));
        let signals =
            SignalThread::start(&lifecycle).map_err(|source| NodeError::Io { what: "signals", source })?;
        let known = Commands::new();
        commands::register_status(&known, &config, me, &entry.settled, &lifecycle);
        let path = config.dir.socket(name);
        let server =
            Server::start(&path, known.clone()).map_err(|source| NodeError::Control { path, source })?;

        let body = Arc::new(join(&config, me, node, &entry, &lifecycle, recorder, Arc::new(die))?);
        commands::register_rest(&known, &config, me, &entry.settled, &lifecycle, &body);
        let places = Arc::default();
        let on = Arc::new(On { config: Arc::clone(&config), body: Arc::clone(&body), places });
        for all in [locking::COMMANDS, registry::COMMANDS, grouping::COMMANDS] {
            commands::register(&known, &on, true, all);
        }
        for all in [locking::LOOKS, registry::LOOKS, config_changes::COMMANDS] {
            commands::register(&known, &on, false, all);
        }
        newcomers::serve(&body).map_err(|source| NodeError::Io { what: "a thread for newcomers", source })?;
        more(&body).into_iter().for_each(|command| known.register(command));
        body.open_door().map_err(NodeError::Body)?;
        lifecycle.reach(Stage::Running);
        tracing::info!(run = entry.settled.run, incarnation = entry.incarnation.0, "{name} serves");
        Ok(Self { lifecycle, body, _server: server, _signals: signals, _entry: entry })
    }

    /// Where it stands.
    #[must_use]
    pub fn lifecycle(&self) -> &Arc<Lifecycle> {
        &self.lifecycle
    }

    /// What it is made of.
    #[must_use]
    pub fn body(&self) -> &Arc<Body> {
        &self.body
    }

    /// Waits until the node is told to end, and ends it.
    ///
    /// # Errors
    /// It could not write what it must; the next start will say what is lost.
    pub fn run_until_stopped(self) -> Result<(), NodeError> {
        let ending = self.lifecycle.wait_for_end();
        if ending == Ending::Leave && self.lifecycle.stage().0 != Stage::Stopped {
            self.body.quiesce();
            let handed_back = self.body.hand_back(&mut |_| {}).map_err(NodeError::Body)?;
            tracing::info!(written = handed_back.written, "handed back");
        }
        self.body.leave(ending)?;
        Ok(())
    }
}

/// Checks what can be checked alone, then finds the peers.
fn join(
    config: &Arc<Config>,
    me: NodeId,
    node: &NodeConfig,
    entry: &Entry,
    lifecycle: &Arc<Lifecycle>,
    recorder: Arc<Recorder>,
    die: Die,
) -> Result<Body, NodeError> {
    let group = Group::open(&config.disks, &config.shape())?;
    for path in group.buffered() {
        tracing::warn!(
            "{}: the file system refuses direct I/O; blocks pass through the page cache",
            path.display()
        );
    }
    machine::check_memory(&node.name, config.shared_bytes())?;
    machine::check_addresses(&node.name, node.all_addresses())?;
    lifecycle.reach(Stage::Joining);
    let parts = Parts {
        config: Arc::clone(config),
        me,
        incarnation: entry.incarnation,
        settled: &entry.settled,
        recorder,
        group: Arc::new(group),
        lifecycle: Arc::clone(lifecycle),
        die,
    };
    Body::join(parts).map_err(|why| match lifecycle.is_ending() {
        true => NodeError::Interrupted(node.name.clone()),
        false => NodeError::Body(why),
    })
}

/// Turns SIGTERM and SIGINT into an end; a second one ends the process at once.
struct SignalThread {
    handle: signal_hook::iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

impl SignalThread {
    fn start(lifecycle: &Arc<Lifecycle>) -> io::Result<Self> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let handle = signals.handle();
        let lifecycle = Arc::clone(lifecycle);
        let thread = thread::Builder::new().name("plexus-signals".into()).spawn(move || {
            for signal in signals.forever() {
                if lifecycle.is_ending() {
                    std::process::exit(128 + signal);
                }
                if let Err(error) = lifecycle.end(Ending::Leave) {
                    tracing::error!("{error}");
                }
            }
        })?;
        Ok(Self { handle, thread: Some(thread) })
    }
}

impl Drop for SignalThread {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}
