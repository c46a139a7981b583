//! Proofs that an incarnation of another node has ended: a look at its lock, a kill, a fence
//! command.
//! `docs/membership.md` says what each proves.

use std::{
    fmt,
    io::{self, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use plexus_admin::{
    config::Config,
    records::durable::{Lock, Look},
    supervisor,
};
use plexus_base::{Incarnation, NodeId};
use plexus_membership::{protocol::View, runtime::FencingProof};
use rustix::process::Signal;

/// The longest wait for the end of a killed process.
const DEATH_WITHIN: Duration = Duration::from_secs(10);

/// The interval at which the lock of a killed process is checked.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// The longest that a fence command may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(60);

/// The way to prove that an incarnation of another node has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fencing {
    /// The node runs on this host: its process is killed.
    Kill,
    /// The node's fence command proves it.
    Agent,
    /// There is no proof: the lease must be waited for.
    LeaseOnly,
}

impl fmt::Display for Fencing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "kill",
            Self::Agent => "agent",
            Self::LeaseOnly => "lease only",
        })
    }
}

/// The means of one node to prove the end of others.
pub(crate) struct Fence {
    config: Arc<Config>,
    me: NodeId,
    /// The last earlier incarnation of this node that has provably ended; 0: none.
    pub(crate) ended: Incarnation,
    /// True once a fence command was run.
    has_run: AtomicBool,
}

impl Fence {
    pub(crate) fn new(config: Arc<Config>, me: NodeId, ended: Incarnation) -> Self {
        Self { config, me, ended, has_run: AtomicBool::new(false) }
    }

    /// Returns the way to prove the end of a node. A node that runs in another PID namespace of
    /// this host cannot be killed from here.
    pub(crate) fn kind(&self, node: NodeId) -> Fencing {
        let is_apart =
            || matches!(self.look(node), Some(Look::Held(Some(holder))) if holder.obstacle().is_some());
        match self.config.nodes.get(node.index()) {
            Some(_) if self.lock_of(node).is_some() && !is_apart() => Fencing::Kill,
            Some(other) if !other.fence.is_empty() => Fencing::Agent,
            _ => Fencing::LeaseOnly,
        }
    }

    /// Returns the incarnations that were members in `view` or before and have provably ended.
    /// These are earlier incarnations of this node, and those of nodes of this host that released
    /// their locks. A node that has left may act for a moment after that decision, so a starting
    /// node waits for it too unless its end is proved.
    pub(crate) fn over(&self, view: &View) -> impl Iterator<Item = (NodeId, Incarnation)> {
        view.incarnations().filter(move |(node, incarnation)| match *node == self.me {
            true => *incarnation <= self.ended,
            false => self.is_over(*node, *incarnation),
        })
    }

    /// Returns true if the process of this incarnation of a node of the same host has provably
    /// ended: its lock is free. A process keeps the lock until all its disk operations are
    /// complete.
    pub(crate) fn is_over(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.look(node).is_some_and(|look| look.proves_end_of(incarnation))
    }

    /// Ends an incarnation and returns the proof. May take long; returns soon after `is_over` is
    /// set.
    ///
    /// # Errors
    /// There is no proof, for this reason.
    pub(crate) fn end(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        is_over: &AtomicBool,
    ) -> Result<FencingProof, String> {
        match self.kind(node) {
            Fencing::Kill => self
                .kill(node, incarnation, is_over)
                .map_or_else(|| self.command(node, incarnation, is_over), Ok)
                .map_err(|why| format!("its process on this host cannot be ended, and {why}")),
            Fencing::Agent | Fencing::LeaseOnly => self.command(node, incarnation, is_over),
        }
    }

    /// Returns true if the process of this incarnation runs on this host.
    pub(crate) fn runs_here(&self, node: NodeId, incarnation: Incarnation) -> bool {
        matches!(self.look(node), Some(Look::Held(Some(holder))) if holder.incarnation == incarnation.0)
    }

    fn look(&self, node: NodeId) -> Option<Look> {
        Lock::look(&self.lock_of(node)?).ok()
    }

    /// Returns the path of the lock of a node of this host.
    fn lock_of(&self, node: NodeId) -> Option<PathBuf> {
        let nodes = &self.config.nodes;
        let node = nodes.get(node.index()).filter(|node| node.host == nodes[self.me.index()].host)?;
        Some(self.config.dir.lock(&node.name))
    }

    /// Kills the process and waits for its end.
    fn kill(&self, node: NodeId, incarnation: Incarnation, is_over: &AtomicBool) -> Option<FencingProof> {
        match self.look(node)? {
            look if look.proves_end_of(incarnation) => return Some(FencingProof::Killed),
            Look::Held(Some(holder)) if holder.obstacle().is_some() => return None,
            Look::Held(Some(holder)) if holder.incarnation == incarnation.0 => {
                // Nodes that share a process end by themselves.
                if holder.pid != std::process::id() {
                    supervisor::announce_eviction(&self.config.dir, &self.config.nodes[node.index()].name);
                    // A process that has ended meanwhile is noticed below.
                    let _ = Lock::signal(&self.lock_of(node)?, holder, Signal::KILL);
                }
            }
            // A process has the lock and has not signed it yet.
            Look::Held(None) => {}
            Look::Missing | Look::Free(_) | Look::Held(Some(_)) => return None,
        }
        let end = Instant::now() + DEATH_WITHIN;
        while Instant::now() < end && !is_over.load(Relaxed) {
            if self.is_over(node, incarnation) {
                return Some(FencingProof::Killed);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        None
    }

    /// Runs the node's fence command. Reads `cluster.toml` again if it has none or has run one, so
    /// that a corrected command counts.
    fn command(
        &self,
        node: NodeId,
        incarnation: Incarnation,
        is_over: &AtomicBool,
    ) -> Result<FencingProof, String> {
        if is_over.load(Relaxed) {
            return Err("the proof is not needed any more".into());
        }
        let find = |config: &Config| {
            config.nodes.iter().find(|other| other.number == node && !other.fence.is_empty()).cloned()
        };
        let known = find(&self.config);
        let is_read = known.is_none() || self.has_run.swap(true, Relaxed);
        let read = || Config::load(&self.config.dir).ok().as_ref().and_then(find);
        let node = is_read.then(read).flatten().or(known);
        let node = node.ok_or("this node has no fence command for it in cluster.toml")?;
        // The running program, also after its file was replaced.
        let mut guard = Command::new("/proc/self/exe");
        guard.arg("fence-guard").arg(format!("--within-ms={}", COMMAND_WITHIN.as_millis())).arg("--");
        guard
            .args(&node.fence)
            .env("PLEXUS_NODE", &node.name)
            .env("PLEXUS_INCARNATION", incarnation.0.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let failed = |error: io::Error| format!("its fence command cannot be run: {error}");
        let mut guard = guard.spawn().map_err(failed)?;
        let mut needs_it = guard.stdin.take();
        let status = loop {
            if is_over.load(Relaxed) {
                needs_it = None;
            }
            match guard.try_wait().map_err(failed)? {
                Some(status) => break status,
                None => std::thread::sleep(LOOK_EVERY * 10),
            }
        };
        drop(needs_it);
        let mut why = String::new();
        if let Some(mut output) = guard.stdout.take() {
            // Without the reason, there is the exit status.
            let _ = output.read_to_string(&mut why);
        }
        match (status.success(), why.trim()) {
            (true, _) => Ok(FencingProof::Off),
            (false, "") => Err(format!("its fence command failed ({status})")),
            (false, why) => Err(format!("its fence command {why}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use plexus_base::NodeSet;
    use plexus_membership::protocol::{FileId, Seat};

    use super::*;
    use plexus_admin::{config::NodeConfig, layout::ClusterDir};

    /// Returns a configuration of four nodes, the last of them on another host.
    fn config(dir: &ClusterDir) -> Config {
        let node = |(number, host): (u16, &str)| NodeConfig {
            host: host.into(),
            ..NodeConfig::new(
                number as u8 - 1,
                &format!("n{number}"),
                ([127, 0, 0, 1], number).into(),
                Vec::new(),
            )
        };
        let nodes = (1..).zip(["a", "a", "a", "b"]).map(node).collect();
        Config::new(dir.clone(), "c1", nodes).unwrap()
    }

    #[test]
    fn nodes_that_left_before_a_view_are_proved_to_have_ended_like_its_members() {
        let place = tempfile::tempdir().unwrap();
        let dir = ClusterDir::new(place.path());
        let config = Arc::new(config(&dir));
        std::fs::create_dir_all(dir.lock("n1").parent().unwrap()).unwrap();
        let hold = |name| Lock::try_take(&dir.lock(name), 7).unwrap().unwrap();
        ["n2", "n3", "n4"].into_iter().for_each(|name| drop(hold(name)));
        let mut view = View::first(NodeSet::first(4), [(FileId(1), None)]);
        let incarnation = Incarnation(7);
        view.seats[..4].copy_from_slice(&[
            Seat::Out(incarnation),
            Seat::In(incarnation),
            Seat::Out(incarnation),
            Seat::Out(incarnation),
        ]);
        let over = |ended| {
            let fence = Fence::new(config.clone(), NodeId(0), Incarnation(ended));
            fence.over(&view).map(|(node, _)| node.0).collect::<Vec<_>>()
        };
        assert_eq!(over(7), [0, 1, 2], "there is no proof for a node of another host");
        let _lock = hold("n3");
        assert_eq!(over(6), [1], "the earlier one of this node may run, and so does a holder of a lock");
    }
}
