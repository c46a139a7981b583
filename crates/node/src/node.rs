//! One node, from its start to its end.
//!
//! [`Node::start`] returns when the node serves; [`Node::run_until_stopped`] waits until a command
//! or a signal ends it. This file fixes the order of the steps. The node takes its lock first. It
//! checks disks and addresses before it contacts
//! peers. It writes its record before it serves the first message.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, OnceLock, Weak, mpsc},
    thread,
    thread::JoinHandle,
};

use plexus_admin::{
    config::{Config, ConfigError, NodeConfig},
    control::{Commands, Server},
    machine::{self, MachineError},
    records::state::{self, Entry, Recorder, StateError},
    status::Stage,
};
use plexus_base::NodeId;
use plexus_disks::{DiskError, Group, mirror::Mirror};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    commands::{self, CommandContext},
    lifecycle::{Ending, Lifecycle},
    member::config_changes,
    member::newcomers,
    member::{Die, Member},
    runtime::{JoinError, NodeRuntime, Parts},
    subsystems::COMMANDS,
};

/// A node that serves.
pub struct Node {
    lifecycle: Arc<Lifecycle>,
    runtime: Arc<NodeRuntime>,
    // Dropped in this order: first the commands end, then the signal handlers; the lock goes last.
    _server: Server,
    _signals: SignalThread,
    _entry: Entry,
}

/// The reason why a node did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The record of the node cannot be used, or another process has the lock.
    #[error(transparent)]
    State(#[from] StateError),
    /// The disk group cannot be opened.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// The machine lacks memory, cores or addresses that the node needs.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The control socket.
    #[error("{path}: control socket: {source}")]
    Control {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The node was removed from the cluster.
    #[error("{0}")]
    Removed(String),
    /// Links, cache or another part cannot be started.
    #[error("{0}")]
    Runtime(String),
    /// The node was stopped before it served.
    #[error("{0} was stopped before all its peers were connected")]
    Interrupted(String),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The object or action that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
}

impl Node {
    /// Starts the node called `name` and waits for its peers. `more` registers additional commands
    /// on the parts of the node. `die` is called when the node must stop at once; it must not
    /// return if the process belongs to the node alone.
    ///
    /// # Errors
    /// The node cannot start; the text is one line for the user. The node then holds nothing and
    /// has changed nothing.
    pub fn start(
        config: Config,
        name: &str,
        more: impl FnOnce(&Commands, &Arc<NodeRuntime>),
        die: impl Fn(&str, u8) + Send + Sync + 'static,
    ) -> Result<Self, NodeError> {
        let config = Arc::new(config);
        let (me, node) = config.node(name)?;
        machine::pin(name, &node.cores)?;
        let entry = state::enter(&config.dir, name)?;
        let recorder = Recorder::new(&config.dir, name, entry.incarnation);
        let lifecycle = Arc::new(Lifecycle::new(recorder));
        let signals =
            SignalThread::start(&lifecycle).map_err(|source| NodeError::Io { what: "signals", source })?;
        let known = Commands::default();
        let on = CommandContext::new(&config, name, &lifecycle);
        commands::register(&known, &on, commands::FIRST);
        let path = config.dir.socket(name);
        let server =
            Server::start(&path, known.clone()).map_err(|source| NodeError::Control { path, source })?;

        let parts: (Die, _) = (Arc::new(die), Arc::clone(&on.member));
        let runtime = Arc::new(join(&config, me, node, &entry, &lifecycle, parts)?);
        if let Err(why) = entry.acts() {
            tracing::warn!("the lock of {name} cannot be signed: {why}");
        }
        on.place_runtime(&runtime);
        for all in [commands::COMMANDS, config_changes::COMMANDS].iter().chain(COMMANDS) {
            commands::register(&known, &on, all);
        }
        newcomers::serve(&runtime)
            .map_err(|source| NodeError::Io { what: "a thread for newcomers", source })?;
        more(&known, &runtime);
        runtime.serve(&known).map_err(NodeError::Runtime)?;
        lifecycle.reach(Stage::Running);
        tracing::info!(incarnation = entry.incarnation.0, "{name} serves");
        Ok(Self { lifecycle, runtime, _server: server, _signals: signals, _entry: entry })
    }

    /// Returns the lifecycle of the node.
    pub fn lifecycle(&self) -> &Arc<Lifecycle> {
        &self.lifecycle
    }

    /// Returns the parts of the node.
    pub fn runtime(&self) -> &Arc<NodeRuntime> {
        &self.runtime
    }

    /// Waits until the end of the node is requested, then ends it.
    ///
    /// # Errors
    /// The final record or blocks cannot be written; the next start recovers from redo.
    pub fn run_until_stopped(self) -> Result<(), NodeError> {
        let ending = self.lifecycle.wait_for_end();
        if ending == Ending::Leave && self.lifecycle.stage().0 != Stage::Stopped {
            self.runtime.quiesce();
            let handed_back = self.runtime.hand_back(&mut |_| {}).map_err(NodeError::Runtime)?;
            tracing::info!(written = handed_back.written, "handed back");
        }
        self.runtime.leave(ending)?;
        Ok(())
    }
}

/// Checks what this node can check alone, then joins its peers.
fn join(
    config: &Arc<Config>,
    me: NodeId,
    node: &NodeConfig,
    entry: &Entry,
    lifecycle: &Arc<Lifecycle>,
    (die, member): (Die, Arc<OnceLock<Weak<Member>>>),
) -> Result<NodeRuntime, NodeError> {
    let (propose, proposals) = mpsc::channel();
    let group = match config.is_served() {
        true => Group::mirrored(
            &config.shape(),
            Mirror::new(me, config.fenced(), 1000 * u64::from(config.start_wait_s), propose),
        ),
        false => Group::open(&config.disks, &config.shape())?,
    };
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
        ended: entry.ended,
        group: Arc::new(group),
        proposals: Mutex::new(Some(proposals)),
        lifecycle: Arc::clone(lifecycle),
        die,
        member,
    };
    NodeRuntime::join(parts).map_err(|why| match why {
        _ if lifecycle.is_ending() => NodeError::Interrupted(node.name.clone()),
        JoinError::Removed(why) => NodeError::Removed(why),
        JoinError::Failed(why) => NodeError::Runtime(why),
    })
}

/// The thread that ends the node on SIGTERM or SIGINT; a second signal ends the process at once.
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
