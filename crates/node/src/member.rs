//! A node as a member of its cluster: takes views from membership to the links and the workers, and proves others dead where it can.
//!
//! Before a view opens, the links to whoever is none any more are gone: that is what refuses all that an earlier epoch might still
//! send. Who comes is let in as soon as that is decided, so that its links stand when the view opens.

use std::{
    process::{Command, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, WorkerId, clock};
use plexus_interconnect::mesh::Mesh;
use plexus_membership::{
    partitions::Members,
    protocol::View,
    runtime::{End, Guest, Membership, Proof, Transition},
};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::{
    config::Config,
    durable::Lock,
    life::Life,
    service::{NodeService, NodeTask, Workers},
    state::Recorder,
};

/// How often each worker is asked for a sign of life.
const PULSE_EVERY: Nanos = Nanos::from_ms(300);

/// How long one may owe it before the node stops vouching for itself: longer than a worker is ever busy with one thing.
const PULSE_WITHIN: Nanos = Nanos::from_ms(2_000);

/// How long the end of a process that was killed is waited for.
const DEATH_WITHIN: Duration = Duration::from_secs(10);

/// How often it is looked whether it has ended.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// How long a fence command may take.
const FENCE_WITHIN: Duration = Duration::from_secs(60);

/// What a node does when it must stop at once; does not return where the process is its own.
pub type Die = Arc<dyn Fn(&str) + Send + Sync>;

/// One node's membership, as its guest.
pub(crate) struct Member {
    config: Arc<Config>,
    me: NodeId,
    incarnation: Incarnation,
    life: Arc<Life>,
    recorder: Arc<Recorder>,
    workers: Arc<Workers>,
    mesh: Mutex<Weak<Mesh<NodeService>>>,
    membership: OnceLock<Weak<Membership>>,
    vitals: Vitals,
    views: Mutex<Views>,
    changed: Condvar,
    die: Die,
}

/// What is known of views.
struct Views {
    decided: Option<Arc<View>>,
    opened: Option<Arc<View>>,
    /// How many workers are whole again, in which view.
    rebuilt: (Epoch, u8),
    ended: Option<String>,
}

impl Member {
    pub(crate) fn new(
        config: Arc<Config>,
        me: NodeId,
        incarnation: Incarnation,
        life: Arc<Life>,
        recorder: Arc<Recorder>,
        workers: Arc<Workers>,
        die: Die,
    ) -> Self {
        let vitals = Vitals::new(config.workers);
        Self {
            config,
            me,
            incarnation,
            life,
            recorder,
            workers,
            mesh: Mutex::default(),
            membership: OnceLock::new(),
            vitals,
            views: Mutex::new(Views { decided: None, opened: None, rebuilt: (Epoch(0), 0), ended: None }),
            changed: Condvar::new(),
            die,
        }
    }

    /// Whom links are made by.
    pub(crate) fn place_mesh(&self, mesh: &Arc<Mesh<NodeService>>) {
        *self.mesh.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(mesh);
    }

    /// Who is told when a view is rebuilt.
    pub(crate) fn place_membership(&self, membership: &Arc<Membership>) {
        assert!(self.membership.set(Arc::downgrade(membership)).is_ok(), "a node has one membership");
        let decided = self.views().decided.clone();
        if let Some(decided) = decided {
            self.prove(&decided);
        }
    }

    /// Says which members of a view are proved to be over: earlier lives of this node, and nodes of this host that let go of their
    /// locks. So nobody waits for leases when a whole host comes back.
    fn prove(&self, view: &View) {
        let Some(membership) = self.membership.get().and_then(Weak::upgrade) else { return };
        for node in view.members().iter() {
            let Some(life) = view.life(node) else { continue };
            let is_over = match node == self.me {
                true => life != self.incarnation,
                false => self.is_dead(node, life),
            };
            if is_over {
                membership.dead(node, life);
            }
        }
    }

    /// A worker has its cache and locks whole again in a view.
    pub(crate) fn rebuilt(&self, epoch: Epoch) {
        let mut views = self.views();
        if views.rebuilt.0 != epoch {
            views.rebuilt = (epoch, 0);
        }
        views.rebuilt.1 += 1;
        let all = views.rebuilt.1 == self.config.workers;
        drop(views);
        if let Some(membership) = self.membership.get().and_then(Weak::upgrade).filter(|_| all) {
            membership.rebuilt(epoch);
        }
    }

    fn mesh(&self) -> Option<Arc<Mesh<NodeService>>> {
        self.mesh.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the cluster has decided that this node does not belong to it.
    pub(crate) fn is_removed(&self) -> bool {
        self.views()
            .decided
            .as_ref()
            .is_some_and(|view| view.epoch.0 > 0 && !view.cluster().contains(self.me))
    }

    /// The view that the node acts in, if any.
    pub(crate) fn opened(&self) -> Option<Arc<View>> {
        self.views().opened.clone()
    }

    /// Waits until the node acts in a view; for so long.
    ///
    /// # Errors
    /// It never will.
    pub(crate) fn wait_opened(&self, limit: Duration) -> Result<Option<Arc<View>>, String> {
        let end = Instant::now() + limit;
        let mut views = self.views();
        loop {
            match &*views {
                Views { ended: Some(why), .. } => return Err(why.clone()),
                Views { opened: Some(view), .. } => return Ok(Some(view.clone())),
                Views { .. } => {}
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            views = self.changed.wait_timeout(views, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends the node at once; the others go on without it.
    pub(crate) fn die(&self, why: &str) {
        (self.die)(why);
        self.life.failed(why);
    }

    pub(crate) fn name(&self, node: NodeId) -> String {
        self.config.nodes.get(node.index()).map_or_else(|| node.to_string(), |node| node.name.clone())
    }

    /// How a life of `node` is proved to be over: in the words of `plexus status`.
    pub(crate) fn fencing(&self, node: NodeId) -> &'static str {
        match self.config.nodes.get(node.index()) {
            Some(other) if other.host == self.config.nodes[self.me.index()].host => "kill",
            Some(other) if !other.fence.is_empty() => "agent",
            _ => "lease only",
        }
    }

    /// Whether the process of this life of a node of the same host is proved to be over: it has let go of its lock, which no process does before
    /// everything that it had begun at the disks is done.
    pub(crate) fn is_dead(&self, node: NodeId, life: Incarnation) -> bool {
        let Some(path) = self.lock_of(node) else { return false };
        match Lock::holder(&path) {
            Ok(None) => true,
            Ok(Some(holder)) => holder.incarnation != life.0,
            Err(_) => false,
        }
    }

    /// The lock of a node of this host.
    fn lock_of(&self, node: NodeId) -> Option<std::path::PathBuf> {
        (self.fencing(node) == "kill").then(|| self.config.dir.lock(&self.config.nodes[node.index()].name))
    }

    /// Kills the process of a node of this host and awaits its end.
    fn kill(&self, node: NodeId, life: Incarnation) -> Option<Proof> {
        let path = self.lock_of(node)?;
        let holder = Lock::holder(&path).ok()?;
        let Some(holder) = holder.filter(|holder| holder.incarnation == life.0) else {
            return Some(Proof::Killed);
        };
        // Nodes of a test may share a process: such a one ends by itself.
        if holder.pid != std::process::id() {
            let pidfd = pidfd_open(Pid::from_raw(i32::try_from(holder.pid).ok()?)?, PidfdFlags::empty());
            // It is looked at again when it cannot be another's number any more.
            let still = Lock::holder(&path).ok()?;
            if let Ok(pidfd) = pidfd
                && still == Some(holder)
            {
                let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            }
        }
        let end = Instant::now() + DEATH_WITHIN;
        while Instant::now() < end {
            if self.is_dead(node, life) {
                return Some(Proof::Killed);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        None
    }

    /// Has the node's fence command prove it.
    fn agent(&self, node: NodeId, life: Incarnation) -> Option<Proof> {
        let words = &self.config.nodes.get(node.index())?.fence;
        let name = self.name(node);
        let mut command = Command::new(words.first()?);
        command.args(&words[1..]).env("PLEXUS_NODE", &name).env("PLEXUS_LIFE", life.0.to_string());
        let mut child = match command.stdin(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::error!("{name}: its fence command {}: {error}", words[0]);
                return None;
            }
        };
        let end = Instant::now() + FENCE_WITHIN;
        loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Some(Proof::Off),
                Ok(Some(status)) => {
                    tracing::error!("{name}: its fence command ended with {status}: its lease is waited for");
                    return None;
                }
                Ok(None) if Instant::now() < end => std::thread::sleep(LOOK_EVERY * 10),
                Ok(None) | Err(_) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    tracing::error!("{name}: its fence command takes more than {} s", FENCE_WITHIN.as_secs());
                    return None;
                }
            }
        }
    }
}

impl Guest for Member {
    fn decided(&self, view: &Arc<View>) {
        let before = self.views().decided.replace(Arc::clone(view));
        self.prove(view);
        let Some(mesh) = self.mesh() else { return };
        if let Some(before) = before {
            for (node, life) in before.gone(view).filter(|(node, _)| *node != self.me) {
                mesh.forget(node, life);
            }
        }
        for node in view.members().without(self.me).iter() {
            let Some(life) = view.life(node) else { continue };
            if let Err(error) = mesh.admit(node, life) {
                tracing::error!("{}: {error}", self.name(node));
            }
        }
    }

    fn opened(&self, view: &Arc<View>, transition: &Transition) {
        let members = Members::from(&**view);
        if let Err(error) = self.recorder.opened(&members) {
            // What might be lost in a view that is not on record would not be named.
            return self.die(&error.to_string());
        }
        for worker in self.workers.all() {
            worker.with(|service, net| {
                net.enter(view.epoch);
                service.view(net, &members);
            });
        }
        let names: Vec<_> = view.members().iter().map(|node| self.name(node)).collect();
        let phases = transition.phases;
        tracing::info!(
            epoch = view.epoch.0,
            "members are {} (detect {:.0} ms, decide {:.0}, fence {:.0}, open {:.0})",
            names.join(", "),
            phases.detect,
            phases.decide,
            phases.fence,
            phases.open,
        );
        self.views().opened = Some(Arc::clone(view));
        self.changed.notify_all();
    }

    fn fence(&self, node: NodeId, life: Incarnation) -> Option<Proof> {
        let proof = self.kill(node, life).or_else(|| self.agent(node, life));
        match proof {
            Some(proof) => {
                tracing::info!(life = life.0, "{} is proved to be over ({proof:?})", self.name(node))
            }
            None => tracing::warn!(
                life = life.0,
                "{}: nothing proves that it is over, so its lease is waited for",
                self.name(node)
            ),
        }
        proof
    }

    fn is_well(&self) -> bool {
        self.vitals.are_good(&self.workers)
    }

    fn end(&self, why: End) {
        let text = match why {
            End::Died(reason) => reason.to_string(),
            End::Left => "this node has left the cluster".to_owned(),
        };
        self.views().ended = Some(text.clone());
        self.changed.notify_all();
        if let End::Died(_) = why {
            self.die(&text);
        }
    }
}

/// The signs of life of the workers: each is handed a task now and then, and must have taken it up in time.
struct Vitals(Vec<Vital>);

#[derive(Default)]
struct Vital {
    /// When the last task was handed in; 0: the worker has taken it up.
    owed_since: AtomicU64,
    /// When the next may be.
    next: AtomicU64,
}

impl Vitals {
    fn new(workers: u8) -> Self {
        Self((0..workers).map(|_| Vital::default()).collect())
    }

    fn are_good(&self, workers: &Workers) -> bool {
        let now = clock::now();
        // Before there are workers nothing is promised.
        let Some(workers) = workers.started() else { return true };
        self.0.iter().zip(workers).all(|(vital, worker)| {
            let owed = vital.owed_since.load(Relaxed);
            if owed != 0 {
                return now.since(Nanos(owed)) < PULSE_WITHIN;
            }
            if now.0 >= vital.next.load(Relaxed) {
                vital.next.store((now + PULSE_EVERY).0, Relaxed);
                vital.owed_since.store(now.0, Relaxed);
                // Where there is no room, its turn is owed all the same.
                worker.offer(NodeTask::Pulse);
            }
            true
        })
    }
}

impl Member {
    /// A worker has taken its task up.
    pub(crate) fn pulse(&self, worker: WorkerId) {
        self.vitals.0[worker.index()].owed_since.store(0, Relaxed);
    }
}

/// The end of a process that was put out: in its log, and at once.
pub fn end_process(why: &str) {
    // Whoever reads what is written to may be stopped as well.
    std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(10));
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    });
    tracing::error!("{why}");
    std::process::exit(3);
}
