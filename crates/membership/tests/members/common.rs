//! Clusters of memberships in one process, with real files, sockets on loopback and an observer
//! that records all calls.
//!
//! No test depends on timing: it waits for an expected state and fails after a generous deadline.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
    },
    thread::ThreadId,
    time::{Duration, Instant},
};

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, NodeSet};
use plexus_interconnect::mesh::{KEY, Key, KeySource};
use plexus_membership::{
    protocol::{FileId, Profile, View},
    runtime::{FencingProof, Membership, MembershipEnd, MembershipObserver, Settings, Status, Transition},
    voting::{
        self,
        format::{ClusterId, FileName},
    },
};
use tempfile::TempDir;

/// A deadline that even a very busy machine meets.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// A lease that a machine busy with eight builds still renews in time.
pub(crate) const PROFILE: Profile = Profile {
    heartbeat: Nanos::from_ms(50),
    lease: Nanos::from_ms(3000),
    evict: Nanos::from_ms(3000),
    kill_margin: Nanos::from_ms(100),
    disk_timeout: Nanos::from_ms(8000),
    drift_ppm: 10_000,
};

/// A membership observer that records its calls and answers as the test wants.
#[derive(Default)]
pub(crate) struct Watcher {
    observed: Mutex<ObservedEvents>,
    changed: Condvar,
    pub(crate) is_unwell: AtomicBool,
    pub(crate) is_stuck: AtomicBool,
    pub(crate) proves: AtomicBool,
    /// The node still acts when it has left.
    pub(crate) acts_on: AtomicBool,
    /// While it is locked, opened views are not entered.
    pub(crate) gate: Mutex<()>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedEvents {
    pub(crate) decided: Vec<Arc<View>>,
    pub(crate) opened: Vec<Arc<View>>,
    pub(crate) transitions: Vec<Transition>,
    pub(crate) fenced: Vec<(NodeId, Incarnation)>,
    /// The members with which the node must leave.
    pub(crate) leavers: NodeSet,
    pub(crate) ended: Option<MembershipEnd>,
    /// The thread that calls it with views.
    pub(crate) by: Option<ThreadId>,
}

impl ObservedEvents {
    pub(crate) fn view(&self) -> Option<&Arc<View>> {
        self.opened.last()
    }

    /// Returns true if the node acts in a view with exactly these members.
    pub(crate) fn is_with(&self, nodes: &[u8]) -> bool {
        let nodes: NodeSet = nodes.iter().copied().map(NodeId).collect();
        self.view().is_some_and(|view| view.members() == nodes)
    }
}

impl Watcher {
    pub(crate) fn observed(&self) -> MutexGuard<'_, ObservedEvents> {
        self.observed.lock().unwrap()
    }

    fn tell(&self, change: impl FnOnce(&mut ObservedEvents)) {
        change(&mut self.observed());
        self.changed.notify_all();
    }

    /// Waits until the recorded calls meet the condition.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&ObservedEvents) -> bool) -> ObservedEvents {
        let (observed, late) =
            self.changed.wait_timeout_while(self.observed(), DEADLINE, |observed| !is_so(observed)).unwrap();
        assert!(!late.timed_out(), "timed out waiting for {what}: {observed:#?}");
        observed.clone()
    }

    #[track_caller]
    pub(crate) fn wait_with(&self, nodes: &[u8]) -> ObservedEvents {
        self.wait(&format!("a view of {nodes:?}"), |observed| observed.is_with(nodes))
    }
}

impl MembershipObserver for Watcher {
    fn decided(&self, view: &Arc<View>) {
        self.tell(|observed| {
            let by = std::thread::current().id();
            assert_eq!(*observed.by.get_or_insert(by), by, "one thread passes all views");
            observed.decided.push(Arc::clone(view));
        });
    }

    fn opened(&self, view: &Arc<View>, transition: &Transition) {
        drop(self.gate.lock().unwrap());
        self.tell(|observed| {
            assert!(observed.decided.contains(view), "a view is decided before it is opened");
            assert!(observed.view().is_none_or(|last| last.epoch < view.epoch), "views come in order");
            observed.opened.push(Arc::clone(view));
            observed.transitions.push(transition.clone());
        });
    }

    fn fence(&self, node: NodeId, incarnation: Incarnation, _: &AtomicBool) -> Result<FencingProof, String> {
        self.tell(|observed| observed.fenced.push((node, incarnation)));
        let proves = self.proves.load(Ordering::Acquire);
        if proves { Ok(FencingProof::Killed) } else { Err("the test proves nothing".into()) }
    }

    fn is_well(&self) -> bool {
        let stuck = |_: &mut ObservedEvents| self.is_stuck.load(Ordering::Acquire);
        if stuck(&mut ObservedEvents::default()) {
            drop(self.changed.wait_while(self.observed(), stuck).unwrap());
        }
        !self.is_unwell.load(Ordering::Acquire)
    }

    fn has_stopped(&self) -> bool {
        !self.acts_on.load(Ordering::Acquire)
    }

    fn leave_too(&self, leavers: NodeSet) {
        self.tell(|observed| observed.leavers = leavers);
    }

    fn end(&self, why: MembershipEnd) {
        self.tell(|observed| {
            assert!(observed.ended.replace(why).is_none(), "it ends once");
            let by = Some(std::thread::current().id());
            // A stopping observer waits for threads that real-time threads could keep from running.
            assert!(
                why != MembershipEnd::Left || observed.by == by,
                "the end of a leave comes on the thread of the views"
            );
        });
    }
}

impl Watcher {
    /// Lets a stuck loop continue.
    pub(crate) fn unstick(&self) {
        self.tell(|_| self.is_stuck.store(false, Ordering::Release));
    }
}

/// Cluster keys that a test can change.
#[derive(Clone)]
pub(crate) struct Keys(Arc<Mutex<Vec<Key>>>);

impl Keys {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let keys = Self(Arc::default());
        keys.set(bytes);
        keys
    }

    pub(crate) fn set(&self, bytes: &[u8]) {
        *self.0.lock().unwrap() = bytes.iter().map(|byte| Key::new([*byte; KEY])).collect();
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys")
    }
}

impl KeySource for Keys {
    fn keys(&self) -> Result<Vec<Key>, String> {
        Ok(self.0.lock().unwrap().clone())
    }
}

/// One incarnation of a node.
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) incarnation: Incarnation,
    pub(crate) watcher: Arc<Watcher>,
    pub(crate) membership: Membership,
}

impl Node {
    /// Returns the status, once the loop answers.
    #[track_caller]
    pub(crate) fn status(&self) -> Status {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.membership.status() {
                return status;
            }
            assert!(Instant::now() < until, "the loop does not answer");
        }
    }

    /// Waits until the status meets the condition.
    #[track_caller]
    pub(crate) fn wait_status(&self, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
        let until = Instant::now() + DEADLINE;
        loop {
            let status = self.status();
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < until, "timed out waiting for {what}: {status:#?}");
            std::thread::yield_now();
        }
    }
}

/// The files and addresses of a cluster.
pub(crate) struct Cluster {
    pub(crate) dir: TempDir,
    pub(crate) first: View,
    pub(crate) profile: Profile,
    pub(crate) keys: Keys,
    pub(crate) paths: usize,
    nodes: u8,
    port: u16,
    incarnations: AtomicU64,
}

const NAME: [u8; 16] = *b"a cluster's name";

impl Cluster {
    /// Creates a cluster; `files` has the server of each file.
    pub(crate) fn new(nodes: u8, files: &[Option<u8>]) -> Self {
        static PORT: AtomicU16 = AtomicU16::new(20_000);
        let ids = files.iter().enumerate();
        let files = ids.map(|(number, host)| (FileId(number as u64 + 1), host.map(NodeId)));
        let cluster = Self {
            dir: TempDir::new().unwrap(),
            first: View::first(NodeSet::first(nodes), files),
            profile: PROFILE,
            keys: Keys::of(&[1]),
            paths: 1,
            nodes,
            port: PORT.fetch_add(1, Ordering::Relaxed),
            incarnations: AtomicU64::new(0),
        };
        cluster.first.files.iter().for_each(|file| cluster.make_file(file.id));
        cluster
    }

    pub(crate) fn path(&self, file: FileId) -> PathBuf {
        self.dir.path().join(format!("vote{}", file.0))
    }

    pub(crate) fn make_file(&self, file: FileId) {
        let name = FileName { cluster: ClusterId(u128::from_le_bytes(NAME)), file };
        voting::create(&self.path(file), name, &self.first).unwrap();
    }

    /// Returns an address of a node that no other test or process uses.
    pub(crate) fn address(&self, node: u8, path: usize) -> SocketAddr {
        let process = std::process::id();
        let [_, high, middle, low] = process.to_be_bytes();
        let ip = Ipv4Addr::new(127, 1 + 16 * path as u8 + (high & 15), middle, low);
        SocketAddr::from((ip, self.port + 64 * u16::from(node)))
    }

    pub(crate) fn addresses(&self, node: u8) -> Vec<SocketAddr> {
        (0..self.paths).map(|path| self.address(node, path)).collect()
    }

    pub(crate) fn settings(&self, node: u8) -> Settings {
        let files = self.first.files.iter().filter(|file| file.host.is_none_or(|host| host.0 == node));
        let others = (0..self.nodes).filter(|other| *other != node);
        Settings {
            me: NodeId(node),
            incarnation: Incarnation(1 + self.incarnations.fetch_add(1, Ordering::Relaxed)),
            profile: self.profile,
            first: self.first.clone(),
            must_prove: NodeSet::EMPTY,
            cluster: NAME,
            keys: Arc::new(self.keys.clone()),
            listen: self.addresses(node),
            peers: others.map(|other| (NodeId(other), self.addresses(other))).collect(),
            files: files.map(|file| (file.id, self.path(file.id))).collect(),
            watchdog: None,
        }
    }

    pub(crate) fn start(&self, node: u8) -> Node {
        start(self.settings(node))
    }

    pub(crate) fn start_all(&self) -> Vec<Node> {
        let nodes: Vec<Node> = (0..self.nodes).map(|node| self.start(node)).collect();
        let all: Vec<u8> = (0..self.nodes).collect();
        nodes.iter().for_each(|node| drop(node.watcher.wait_with(&all)));
        nodes
    }
}

pub(crate) fn start(settings: Settings) -> Node {
    let watcher = Arc::new(Watcher::default());
    let (id, incarnation) = (settings.me, settings.incarnation);
    let membership =
        Membership::start(settings, Arc::clone(&watcher) as Arc<dyn MembershipObserver>).unwrap();
    Node { id, incarnation, watcher, membership }
}

/// Asserts that all nodes have observed the same members for each epoch.
pub(crate) fn assert_agreed<'a>(watchers: impl IntoIterator<Item = &'a Arc<Watcher>>) {
    let mut views: BTreeMap<u32, Arc<View>> = BTreeMap::new();
    for watcher in watchers {
        for view in &watcher.observed().decided {
            let known = views.entry(view.epoch.0).or_insert_with(|| Arc::clone(view));
            assert_eq!(known, view);
        }
    }
    let epochs: BTreeSet<u32> = views.keys().copied().collect();
    assert!(!epochs.contains(&0));
}

pub(crate) fn epoch(observed: &ObservedEvents) -> Epoch {
    observed.view().expect("a view is open").epoch
}

/// Replaces a file with another in one step.
pub(crate) fn replace(path: &Path, bytes: &[u8]) {
    let beside = path.with_extension("beside");
    std::fs::write(&beside, bytes).unwrap();
    std::fs::rename(&beside, path).unwrap();
}
