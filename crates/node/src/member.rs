//! The node as a member of its cluster: it passes views from the membership to the links and the
//! workers, and proves the end of other nodes where it can.
//!
//! Before a view opens, the links to nodes that are no longer members are closed. This refuses all
//! messages of an earlier epoch. A new member is admitted as soon as the view is decided, so that
//! its links are up when the view opens.

pub mod config_changes;
mod fence;
pub mod fence_guard;
pub(crate) mod newcomers;
mod vitals;
pub(crate) mod watcher;

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak, atomic::AtomicBool},
    time::{Duration, Instant},
};

use plexus_admin::{config::Config, last_end, launch, service_manager};
use plexus_base::{Epoch, Incarnation, NodeId, NodeSet, WorkerId, clock};
use plexus_interconnect::mesh::Mesh;
use plexus_membership::{
    partitions::Members,
    protocol::{FINAL_LOG_TIME, StopReason, View},
    runtime::{
        AwaitedProof, FencingProof, LeaseBasis, Membership, MembershipEnd, MembershipObserver, Status,
        Transition,
    },
};

use crate::{
    lifecycle::{Ending, Lifecycle},
    member::fence::Fence,
    member::vitals::Vitals,
    service::{NodeService, NodeTask, Workers},
    subsystems::Drain,
};

/// Stops the node at once. It does not return if the node has a process of its own.
///
/// It receives the reason and the exit code of the process.
pub type Die = Arc<dyn Fn(&str, u8) + Send + Sync>;

/// The observer of this node's membership.
pub(crate) struct Member {
    config: Arc<Config>,
    me: NodeId,
    incarnation: Incarnation,
    lifecycle: Arc<Lifecycle>,
    workers: Arc<Workers>,
    mesh: Mutex<Weak<Mesh<NodeService>>>,
    membership: OnceLock<Weak<Membership>>,
    fence: Fence,
    vitals: Vitals,
    views: Mutex<Views>,
    changed: Condvar,
    die: Die,
    drains: Vec<Drain>,
}

/// The views that this node knows.
struct Views {
    decided: Option<Arc<View>>,
    opened: Option<Arc<View>>,
    rebuilt: Rebuilt,
    ended: Option<String>,
}

/// The number of workers that have rebuilt their subsystems in a view.
struct Rebuilt {
    epoch: Epoch,
    workers: u8,
}

impl Rebuilt {
    const NONE: Self = Self { epoch: Epoch(0), workers: 0 };

    /// Counts one more worker and returns how many have rebuilt. Ignores notices of older views.
    fn one_more(&mut self, epoch: Epoch) -> Option<u8> {
        if epoch < self.epoch {
            return None;
        }
        if epoch > self.epoch {
            *self = Self { epoch, workers: 0 };
        }
        self.workers += 1;
        Some(self.workers)
    }
}

impl Member {
    pub(crate) fn new(
        config: Arc<Config>,
        me: NodeId,
        [incarnation, ended]: [Incarnation; 2],
        lifecycle: Arc<Lifecycle>,
        workers: Arc<Workers>,
        die: Die,
        drains: Vec<Drain>,
    ) -> Self {
        let (fence, vitals) = (Fence::new(Arc::clone(&config), me, ended), Vitals::new(config.workers));
        Self {
            config,
            me,
            incarnation,
            lifecycle,
            workers,
            mesh: Mutex::default(),
            membership: OnceLock::new(),
            fence,
            vitals,
            views: Mutex::new(Views { decided: None, opened: None, rebuilt: Rebuilt::NONE, ended: None }),
            changed: Condvar::new(),
            die,
            drains,
        }
    }

    /// Sets the mesh that makes the links.
    pub(crate) fn place_mesh(&self, mesh: &Arc<Mesh<NodeService>>) {
        *self.mesh.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(mesh);
    }

    /// Sets the membership, which learns when a view is rebuilt.
    pub(crate) fn place_membership(&self, membership: &Arc<Membership>) {
        assert!(self.membership.set(Arc::downgrade(membership)).is_ok(), "a node has one membership");
        // Before any view: the others may put the earlier incarnation out before this node learns a
        // view with it, and would run the fence command of the node that has just returned.
        membership.dead(self.me, self.fence.ended);
        let decided = self.views().decided.clone();
        if let Some(decided) = decided {
            self.prove(&decided);
        }
    }

    /// Reports the former members whose end is proved, so that no lease is waited for when a whole
    /// host restarts.
    fn prove(&self, view: &View) {
        let Some(membership) = self.membership.get().and_then(Weak::upgrade) else { return };
        self.fence.over(view).for_each(|(node, incarnation)| membership.dead(node, incarnation));
    }

    /// Notes that a worker has rebuilt its subsystems in a view.
    pub(crate) fn rebuilt(&self, epoch: Epoch) {
        let all = self.views().rebuilt.one_more(epoch) == Some(self.config.workers);
        if let Some(membership) = self.membership.get().and_then(Weak::upgrade).filter(|_| all) {
            membership.rebuilt(epoch);
        }
    }

    /// Returns the status of the membership, and a line for each proof that keeps views closed.
    pub(crate) fn membership_status(&self) -> Option<(Status, Vec<String>)> {
        let status = self.membership.get()?.upgrade()?.status()?;
        let line = |awaited: &AwaitedProof| {
            let name = self.config.name_of(NodeId(awaited.node));
            let problem = awaited.problem.as_deref().unwrap_or("the first attempt is under way");
            format!(
                "view {} does not open: the end of {name} (incarnation {}) must be proved, because it has a \
                 fence command: {problem}; if {name} is certainly off or cut off from its disks: \
                 `plexus node fenced {name}`",
                status.decided, awaited.incarnation
            )
        };
        let lines = status.awaited_proofs.iter().map(line).collect();
        Some((status, lines))
    }

    /// Takes an operator's word that an incarnation has ended for certain.
    ///
    /// # Errors
    /// This node knows that it has not, or has no membership.
    pub(crate) fn vouched(&self, node: NodeId, incarnation: Incarnation) -> Result<(), String> {
        let name = self.config.name_of(node);
        let membership = self.membership.get().and_then(Weak::upgrade).ok_or("it has no membership yet")?;
        if self.fence.runs_here(node, incarnation) {
            return Err(format!(
                "{name} (incarnation {}) still runs on this host: end its process",
                incarnation.0
            ));
        }
        tracing::warn!(incarnation = incarnation.0, "an operator vouches for the end of {name}");
        membership.dead(node, incarnation);
        Ok(())
    }

    fn mesh(&self) -> Option<Arc<Mesh<NodeService>>> {
        self.mesh.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    fn views(&self) -> MutexGuard<'_, Views> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the cluster has removed this node.
    pub(crate) fn is_removed(&self) -> bool {
        self.views()
            .decided
            .as_ref()
            .is_some_and(|view| view.epoch.0 > 0 && !view.cluster().contains(self.me))
    }

    /// Returns true if this node's list has every node of the cluster, as far as it knows. The
    /// others do not admit a node that cannot reach all members.
    pub(crate) fn knows_all(&self) -> bool {
        let listed = self.config.numbers();
        self.views()
            .decided
            .as_ref()
            .is_none_or(|view| view.cluster().iter().all(|node| listed.contains(node)))
    }

    /// Returns the view that the node acts in, if any.
    pub(crate) fn opened(&self) -> Option<Arc<View>> {
        self.views().opened.clone()
    }

    /// Waits up to `limit` until the node acts in a view.
    ///
    /// # Errors
    /// The membership has ended; the text gives the reason.
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

    /// Stops the node at once; the others continue without it.
    pub(crate) fn die(&self, why: &str) {
        self.die_with(why, launch::EVICTED_CODE);
    }

    fn die_with(&self, why: &str, code: u8) {
        (self.die)(why, code);
        self.lifecycle.failed(why);
    }

    fn names(&self, nodes: NodeSet) -> String {
        nodes.iter().map(|node| self.config.name_of(node)).collect::<Vec<_>>().join(", ")
    }

    /// Returns the text of why the lease has ended.
    fn lease_over(&self, basis: LeaseBasis) -> String {
        let LeaseBasis { unrenewed, silent, idle } = basis;
        let silent = match silent.is_empty() {
            true => "all other members have confirmed it".into(),
            false => format!("{} did not confirm it either", self.names(silent)),
        };
        format!(
            "{}: no majority of the voting files has renewed it for {} ms, and {silent}; the membership's thread ran last {} ms ago",
            StopReason::LeaseOver,
            unrenewed.0 / 1_000_000,
            idle.0 / 1_000_000,
        )
    }

    /// Returns the text of why the voting files know a later incarnation, and lets the next start
    /// take a number above it.
    fn behind(&self, later: Incarnation) -> String {
        let next = match self.lifecycle.pass(later) {
            Ok(()) => "the next start takes a higher number".to_owned(),
            Err(error) => {
                format!("the next start must take a higher number, and that cannot be recorded: {error}")
            }
        };
        format!(
            "{} than this one, {}: its clock was ahead, or its state was lost or is an older copy; {next}",
            StopReason::Behind(later),
            self.incarnation.0,
        )
    }

    /// Returns the proofs that this node has about others.
    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// Notes that a worker has taken its pulse task, which shows that it runs.
    pub(crate) fn pulse(&self, worker: WorkerId) {
        self.vitals.given(worker);
    }
}

impl MembershipObserver for Member {
    fn decided(&self, view: &Arc<View>) {
        let before = self.views().decided.replace(Arc::clone(view));
        tracing::info!(
            epoch = view.epoch.0,
            "a view is decided: its members are {}",
            self.names(view.members())
        );
        self.prove(view);
        let Some(mesh) = self.mesh() else { return };
        if let Some(before) = before {
            for (node, incarnation) in before.gone(view).filter(|(node, _)| *node != self.me) {
                mesh.forget(node, incarnation);
            }
        }
        for node in view.members().without(self.me).iter() {
            let Some(incarnation) = view.incarnation(node) else { continue };
            if let Err(error) = mesh.admit(node, incarnation) {
                tracing::error!("{}: {error}", self.config.name_of(node));
            }
        }
    }

    fn opened(&self, view: &Arc<View>, transition: &Transition) {
        let members = Members::from(&**view);
        for worker in self.workers.all() {
            worker.with(|service, net| service.view(net, &members));
        }
        let phases = transition.phases;
        tracing::info!(
            epoch = view.epoch.0,
            "members are {} (detect {:.0} ms, decide {:.0}, fence {:.0}, open {:.0})",
            self.names(view.members()),
            phases.detect,
            phases.decide,
            phases.fence,
            phases.open,
        );
        let members = self.names(view.members());
        service_manager::notify_status(&format!("epoch {}: members are {members}", view.epoch.0));
        self.views().opened = Some(Arc::clone(view));
        self.changed.notify_all();
    }

    fn fence(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        is_over: &AtomicBool,
    ) -> Result<FencingProof, String> {
        let proof = self.fence.end(node, incarnation, is_over)?;
        tracing::info!(
            incarnation = incarnation.0,
            "the end of {} is proved ({proof:?})",
            self.config.name_of(node)
        );
        Ok(proof)
    }

    fn name(&self, node: NodeId) -> String {
        self.config.name_of(node)
    }

    fn leave_too(&self, leavers: NodeSet) {
        tracing::warn!(
            "this node ends too: no majority of the voting files is left without those that {} served",
            self.names(leavers)
        );
        if let Err(error) = self.lifecycle.end(Ending::Leave) {
            tracing::error!("{error}");
        }
    }

    fn is_well(&self) -> bool {
        // Before there are workers, no promise depends on them.
        let (now, workers) = (clock::now(), self.workers.started());
        let is_well = workers.is_none_or(|workers| {
            self.vitals.are_good(now, |worker| workers[worker.index()].offer(NodeTask::Pulse))
        });
        if is_well {
            service_manager::notify_works(now);
        }
        is_well
    }

    fn end(&self, why: MembershipEnd) {
        let text = match why {
            MembershipEnd::Died { reason: StopReason::LeaseOver, basis } => self.lease_over(basis),
            MembershipEnd::Died { reason: StopReason::Behind(later), .. } => self.behind(later),
            MembershipEnd::Died { reason: StopReason::Doubled(file), .. } => format!(
                "another process acts as {} of this cluster: it has written to voting file {file}; end it if this host \
                 was copied or moved, then start the node again with `plexus up`",
                self.config.name_of(self.me)
            ),
            MembershipEnd::Died { reason, .. } => reason.to_string(),
            MembershipEnd::Left => "this node has left the cluster".to_owned(),
        };
        self.views().ended = Some(text.clone());
        self.changed.notify_all();
        match why {
            MembershipEnd::Died { reason: StopReason::Doubled(_), .. } => {
                self.die_with(&text, launch::DOUBLED_CODE)
            }
            MembershipEnd::Died { .. } => self.die(&text),
            MembershipEnd::Left => {
                let workers = self.workers.started().unwrap_or_default();
                workers.iter().for_each(|worker| worker.with(|service, _| service.stop()));
            }
        }
    }

    fn has_stopped(&self) -> bool {
        self.drains.iter().all(|drain| drain())
    }
}

/// Ends the process of a node that may not act any more at once, with an error in its log. The exit
/// code tells its supervisor whether it returns, so nothing may replace it by a signal.
pub fn end_process(why: &str, code: u8) {
    // The reader of the log may have stopped as well, so the write may block.
    let ends = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(FINAL_LOG_TIME.into());
        signal_hook::low_level::exit(code.into());
    });
    // Without a thread that ends it the exit code is the only report.
    if ends.is_ok() {
        last_end::note_failure(why);
    }
    signal_hook::low_level::exit(code.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_of_an_older_view_does_not_change_the_count_of_rebuilt_workers() {
        let mut rebuilt = Rebuilt::NONE;
        assert_eq!(rebuilt.one_more(Epoch(3)), Some(1));
        assert_eq!(rebuilt.one_more(Epoch(4)), Some(1));
        assert_eq!(rebuilt.one_more(Epoch(3)), None);
        assert_eq!(rebuilt.one_more(Epoch(4)), Some(2));
    }
}
