//! Nodes in this process that make a cluster, for programs to attach to.
#![allow(dead_code, reason = "not every test that includes it uses all of it")]

pub(crate) mod program;

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use plexus_admin::{
    config::{Config, Membership, NodeConfig},
    create,
    layout::ClusterDir,
    machine::MachineError,
    status::ProgramsStatus,
};
use plexus_base::Waiting;
use plexus_client::Client;
use plexus_disks::BlockSize;
use plexus_fabric::RailKind;
use plexus_locks::{LockManager, SurveyedResource};
use plexus_membership::groups::Groups;
use plexus_node::{Node, NodeError, runtime::NodeRuntime};
use plexus_registry::Registry;

/// The timeout of these tests, far longer than any correct step.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A cluster that ends when it is dropped.
pub(crate) struct Cluster {
    nodes: Vec<Option<Node>>,
    dir: ClusterDir,
    _place: tempfile::TempDir,
}

/// Returns an address that no other test has, in this process or another one at the same time.
fn address() -> std::net::SocketAddr {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let (process, number) = (std::process::id(), NEXT.fetch_add(1, Relaxed));
    ([127, 128 | (process >> 8) as u8, process as u8, number as u8], 7500).into()
}

/// Describes a small cluster below `place`. Its leases last `lease_ms`, so that its nodes stay
/// members on a machine with any load.
pub(crate) fn config(place: &Path, nodes: usize, rail: RailKind, lease_ms: u32) -> Config {
    let node = |number| NodeConfig::new(number, &format!("n{}", number + 1), address(), vec![rail]);
    let dir = ClusterDir::new(place.join("c"));
    Config {
        waiting: Waiting::Adaptive,
        membership: Membership {
            lease_ms: Some(lease_ms),
            evict_ms: Some(lease_ms),
            ..Membership::default()
        },
        block_size: BlockSize::from_kib(4).unwrap(),
        checkpoint_seconds: 60,
        ..Config::new(dir, "c", (0..nodes as u8).map(node).collect()).unwrap()
    }
}

/// Starts a node of a cluster that was created.
pub(crate) fn start(config: &Config, name: &str) -> Node {
    let begin = Instant::now();
    loop {
        match Node::start(config.clone(), name, |_, _| (), |why, _| eprintln!("{why}")) {
            // A process that another test starts has the sockets of this one until it executes its
            // program, and so the address of a node that has just ended.
            Err(NodeError::Machine(MachineError::AddressInUse { .. })) if begin.elapsed() < TIMEOUT => {
                thread::yield_now();
            }
            started => return started.unwrap(),
        }
    }
}

/// Starts all nodes of a cluster that was created.
pub(crate) fn start_all(config: &Config) -> Vec<Node> {
    thread::scope(|scope| {
        let spawn = |node: &'_ NodeConfig| {
            let name = node.name.clone();
            scope.spawn(move || start(config, &name))
        };
        let starts: Vec<_> = config.nodes.iter().map(spawn).collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    })
}

impl Cluster {
    /// Starts nodes that are connected by `rail`.
    pub(crate) fn start(nodes: usize, workers: u8, rail: RailKind) -> Self {
        Self::start_with(nodes, rail, |config| config.workers = workers)
    }

    /// Starts nodes that are connected by `rail`, with other settings.
    pub(crate) fn start_with(nodes: usize, rail: RailKind, set: impl FnOnce(&mut Config)) -> Self {
        let place = tempfile::tempdir().unwrap();
        let mut config = config(place.path(), nodes, rail, 30_000);
        set(&mut config);
        create::create(&config).unwrap();
        let nodes = start_all(&config).into_iter().map(Some).collect();
        let dir = config.dir;
        Self { nodes, dir, _place: place }
    }

    /// Attaches a program to the node with number `index`.
    pub(crate) fn client(&self, index: usize) -> Client {
        Client::attach(self.socket(index)).unwrap()
    }

    /// Returns the path of its attach socket.
    pub(crate) fn socket(&self, index: usize) -> PathBuf {
        self.dir.attach(&format!("n{}", index + 1))
    }

    /// Returns the path of its control socket.
    pub(crate) fn control(&self, index: usize) -> PathBuf {
        self.dir.socket(&format!("n{}", index + 1))
    }

    /// Returns the parts of the node with number `index`.
    pub(crate) fn runtime(&self, index: usize) -> &NodeRuntime {
        self.nodes[index].as_ref().unwrap().runtime()
    }

    /// Returns the lock manager of the node with number `index`.
    pub(crate) fn locks(&self, index: usize) -> LockManager {
        self.runtime(index).locks().clone()
    }

    /// Returns the locks that the first `nodes` nodes know together.
    fn surveyed(&self, nodes: usize) -> Vec<SurveyedResource> {
        (0..nodes).flat_map(|node| self.locks(node).survey(TIMEOUT).unwrap().resources).collect()
    }

    /// Surveys the locks until the condition holds.
    #[track_caller]
    pub(crate) fn wait_until(&self, nodes: usize, what: &str, is: impl Fn(&[SurveyedResource]) -> bool) {
        let start = Instant::now();
        loop {
            let seen = self.surveyed(nodes);
            if is(&seen) {
                return;
            }
            assert!(start.elapsed() < TIMEOUT, "waiting until {what}: {seen:?}");
            thread::yield_now();
        }
    }

    /// Waits until the master, one of the first `nodes` nodes, has a request in the queue for
    /// `name`.
    #[track_caller]
    pub(crate) fn wait_until_waited_for(&self, nodes: usize, name: &str) {
        self.wait_until(nodes, "a client waits", |seen| waits_for(seen, name));
    }

    /// Returns the groups of the node with number `index`.
    pub(crate) fn groups(&self, index: usize) -> Groups {
        self.runtime(index).groups().clone()
    }

    /// Returns the registry of the node with number `index`.
    pub(crate) fn registry(&self, index: usize) -> Registry {
        self.runtime(index).registry().clone()
    }

    /// Returns the resources of programs on the node with number `index`.
    pub(crate) fn programs(&self, index: usize) -> ProgramsStatus {
        self.runtime(index).programs()
    }

    /// Returns the cluster's directory.
    pub(crate) fn directory(&self) -> &Path {
        self.dir.root()
    }

    /// Ends the node with number `index`.
    pub(crate) fn end(&mut self, index: usize) {
        self.nodes[index].take();
    }

    /// Asserts that programs of both nodes reach each other.
    pub(crate) fn assert_alive(&self) {
        let limit = Some(TIMEOUT);
        let (one, two) = (self.client(0), self.client(1));
        for port in [10, 11] {
            let (here, there) = (one.bind(port).unwrap(), two.bind(port).unwrap());
            there.send(here.address(), b"alive", limit).unwrap();
            let got = here.receive(limit).unwrap();
            assert_eq!((got.from, &got.bytes[..]), (there.address(), &b"alive"[..]));
        }
    }
}

/// Returns true if a request waits for `name`.
pub(crate) fn waits_for(seen: &[SurveyedResource], name: &str) -> bool {
    seen.iter().any(|of| of.name.bytes() == name.as_bytes() && !of.waiting.is_empty())
}
