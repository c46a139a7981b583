//! A node as a member of its cluster: takes views from membership to the links and the workers, and proves others dead where it can.
//!
//! Before a view opens, the links to whoever is none any more are gone: that is what refuses all that an earlier epoch might still
//! send. Who comes is let in as soon as that is decided, so that its links stand when the view opens.

pub mod config_changes;
mod fence;
pub(crate) mod newcomers;
mod vitals;
pub(crate) mod watcher;

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak},
    time::{Duration, Instant},
};

use plexus_base::{Epoch, Incarnation, NodeId, NodeSet, WorkerId, clock};
use plexus_interconnect::mesh::Mesh;
use plexus_membership::{
    partitions::Members,
    protocol::{Clean, FINAL_LOG_TIME, View},
    runtime::{FencingProof, Membership, MembershipEnd, MembershipObserver, Transition},
};
use rustix::process::Signal;

use crate::{
    boot::config::Config,
    lifecycle::Lifecycle,
    member::fence::Fence,
    member::vitals::Vitals,
    records::state::Recorder,
    service::{NodeService, NodeTask, Workers},
};

/// What a node does when it must stop at once; does not return where the process is its own.
pub type Die = Arc<dyn Fn(&str) + Send + Sync>;

/// One node's membership, as its guest.
pub(crate) struct Member {
    config: Arc<Config>,
    me: NodeId,
    incarnation: Incarnation,
    lifecycle: Arc<Lifecycle>,
    recorder: Arc<Recorder>,
    workers: Arc<Workers>,
    mesh: Mutex<Weak<Mesh<NodeService>>>,
    membership: OnceLock<Weak<Membership>>,
    fence: Fence,
    vitals: Vitals,
    views: Mutex<Views>,
    changed: Condvar,
    die: Die,
}

/// What is known of views.
struct Views {
    decided: Option<Arc<View>>,
    opened: Option<Arc<View>>,
    rebuilt: Rebuilt,
    ended: Option<String>,
}

/// How many workers are whole again, in which view.
struct Rebuilt {
    epoch: Epoch,
    workers: u8,
}

impl Rebuilt {
    const NONE: Self = Self { epoch: Epoch(0), workers: 0 };

    /// One more is; how many that makes. What comes late from a view before does not count.
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
        incarnation: Incarnation,
        lifecycle: Arc<Lifecycle>,
        recorder: Arc<Recorder>,
        workers: Arc<Workers>,
        die: Die,
    ) -> Self {
        let (fence, vitals) = (Fence::new(Arc::clone(&config), me), Vitals::new(config.workers));
        Self {
            config,
            me,
            incarnation,
            lifecycle,
            recorder,
            workers,
            mesh: Mutex::default(),
            membership: OnceLock::new(),
            fence,
            vitals,
            views: Mutex::new(Views { decided: None, opened: None, rebuilt: Rebuilt::NONE, ended: None }),
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

    /// Says which incarnations that were members are proved to be over. So nobody waits for leases when a whole host comes back.
    fn prove(&self, view: &View) {
        let Some(membership) = self.membership.get().and_then(Weak::upgrade) else { return };
        self.fence
            .over(view, self.incarnation)
            .for_each(|(node, incarnation)| membership.dead(node, incarnation));
    }

    /// A worker has its cache and locks whole again in a view.
    pub(crate) fn rebuilt(&self, epoch: Epoch) {
        let all = self.views().rebuilt.one_more(epoch) == Some(self.config.workers);
        if let Some(membership) = self.membership.get().and_then(Weak::upgrade).filter(|_| all) {
            membership.rebuilt(epoch);
        }
    }

    /// All that this incarnation held is handed back, and it begins nothing more.
    pub(crate) fn handed_back(&self) {
        if let Some(membership) = self.membership.get().and_then(Weak::upgrade) {
            membership
                .clean(self.me, Clean { incarnation: self.incarnation, intact: self.recorder.intact() });
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

    /// Whether every node that belongs to the cluster is listed here, as far as is known. The others do not take in who has no way to a member of theirs.
    pub(crate) fn knows_all(&self) -> bool {
        let listed = NodeSet::first(self.config.node_count());
        self.views()
            .decided
            .as_ref()
            .is_none_or(|view| view.cluster().iter().all(|node| listed.contains(node)))
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
        self.lifecycle.failed(why);
    }

    /// What this node can prove of others.
    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// A worker has taken up what shows that it lives.
    pub(crate) fn pulse(&self, worker: WorkerId) {
        self.vitals.given(worker);
    }
}

impl MembershipObserver for Member {
    fn decided(&self, view: &Arc<View>) {
        let before = self.views().decided.replace(Arc::clone(view));
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
        if let Err(error) = self.recorder.opened(&members) {
            // What might be lost in a view that is not on record would not be named.
            return self.die(&error.to_string());
        }
        for worker in self.workers.all() {
            worker.with(|service, net| {
                service.view(net, &members, view.loss_history(self.me));
            });
        }
        let names: Vec<_> = view.members().iter().map(|node| self.config.name_of(node)).collect();
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

    fn fence(&self, node: NodeId, incarnation: Incarnation) -> Option<FencingProof> {
        let proof = self.fence.end(node, incarnation);
        match proof {
            Some(proof) => {
                tracing::info!(
                    incarnation = incarnation.0,
                    "{} is proved to be over ({proof:?})",
                    self.config.name_of(node)
                )
            }
            None => tracing::warn!(
                incarnation = incarnation.0,
                "{}: nothing proves that it is over, so its lease is waited for",
                self.config.name_of(node)
            ),
        }
        proof
    }

    fn is_well(&self) -> bool {
        // Before there are workers nothing is promised.
        let Some(workers) = self.workers.started() else { return true };
        self.vitals.are_good(clock::now(), |worker| workers[worker.index()].offer(NodeTask::Pulse))
    }

    fn end(&self, why: MembershipEnd) {
        let text = match why {
            MembershipEnd::Died(reason) => reason.to_string(),
            MembershipEnd::Left => "this node has left the cluster".to_owned(),
        };
        self.views().ended = Some(text.clone());
        self.changed.notify_all();
        match why {
            MembershipEnd::Died(_) => self.die(&text),
            MembershipEnd::Left => {
                let workers = self.workers.started().unwrap_or_default();
                workers.iter().for_each(|worker| worker.with(|service, _| service.stop()));
            }
        }
    }
}

/// The end of a process that was put out: in its log, and at once.
pub fn end_process(why: &str) {
    // Whoever reads what is written to may be stopped as well.
    std::thread::spawn(|| {
        std::thread::sleep(FINAL_LOG_TIME.into());
        let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::KILL);
    });
    tracing::error!("{why}");
    std::process::exit(3);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_word_of_an_older_view_does_not_undo_what_is_rebuilt() {
        let mut rebuilt = Rebuilt::NONE;
        assert_eq!(rebuilt.one_more(Epoch(3)), Some(1));
        assert_eq!(rebuilt.one_more(Epoch(4)), Some(1));
        assert_eq!(rebuilt.one_more(Epoch(3)), None);
        assert_eq!(rebuilt.one_more(Epoch(4)), Some(2));
    }
}
