//! Proofs that an incarnation of another node has ended: a look at its lock, a kill, a fence
//! command.
//! `docs/membership.md` says what each proves.

use std::{
    fmt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_base::{Incarnation, NodeId};
use plexus_membership::{protocol::View, runtime::FencingProof};
use rustix::process::Signal;

use crate::{
    boot::config::Config,
    boot::supervisor,
    records::durable::{Lock, Look},
};

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
}

impl Fence {
    pub(crate) fn new(config: Arc<Config>, me: NodeId) -> Self {
        Self { config, me }
    }

    pub(crate) fn kind(&self, node: NodeId) -> Fencing {
        match self.config.nodes.get(node.index()) {
            Some(other) if other.host == self.config.nodes[self.me.index()].host => Fencing::Kill,
            Some(other) if !other.fence.is_empty() => Fencing::Agent,
            _ => Fencing::LeaseOnly,
        }
    }

    /// Returns the incarnations that were members in `view` or before and have provably ended.
    /// These are earlier incarnations of this node (`own` is the present one), and those of nodes
    /// of this host that released their locks. A node that has left may act for a moment after that
    /// decision, so a starting node waits for it too unless its end is proved.
    pub(crate) fn over(&self, view: &View, own: Incarnation) -> impl Iterator<Item = (NodeId, Incarnation)> {
        view.incarnations().filter(move |(node, incarnation)| match *node == self.me {
            true => *incarnation < own,
            false => self.is_over(*node, *incarnation),
        })
    }

    /// Returns true if the process of this incarnation of a node of the same host has provably
    /// ended: its lock is free. A process keeps the lock until all its disk operations are
    /// complete.
    pub(crate) fn is_over(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.look(node).is_some_and(|look| look.proves_end_of(incarnation))
    }

    /// Ends an incarnation and returns the proof, if this node has a way. May take long.
    pub(crate) fn end(&self, node: NodeId, incarnation: Incarnation) -> Option<FencingProof> {
        match self.kind(node) {
            Fencing::Kill => self.kill(node, incarnation).or_else(|| self.command(node, incarnation)),
            Fencing::Agent => self.command(node, incarnation),
            Fencing::LeaseOnly => None,
        }
    }

    fn look(&self, node: NodeId) -> Option<Look> {
        Lock::look(&self.lock_of(node)?).ok()
    }

    /// Returns the path of the lock of a node of this host.
    fn lock_of(&self, node: NodeId) -> Option<PathBuf> {
        (self.kind(node) == Fencing::Kill)
            .then(|| self.config.dir.lock(&self.config.nodes[node.index()].name))
    }

    /// Kills the process and waits for its end.
    fn kill(&self, node: NodeId, incarnation: Incarnation) -> Option<FencingProof> {
        match self.look(node)? {
            look if look.proves_end_of(incarnation) => return Some(FencingProof::Killed),
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
        while Instant::now() < end {
            if self.is_over(node, incarnation) {
                return Some(FencingProof::Killed);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        None
    }

    /// Runs the node's fence command.
    fn command(&self, node: NodeId, incarnation: Incarnation) -> Option<FencingProof> {
        let node = self.config.nodes.get(node.index())?;
        let (name, words) = (&node.name, &node.fence);
        let mut command = Command::new(words.first()?);
        command
            .args(&words[1..])
            .env("PLEXUS_NODE", name)
            .env("PLEXUS_INCARNATION", incarnation.0.to_string());
        let mut child = match command.stdin(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) => {
                tracing::error!("{name}: its fence command {}: {error}", words[0]);
                return None;
            }
        };
        let end = Instant::now() + COMMAND_WITHIN;
        let why = loop {
            match child.try_wait() {
                Ok(Some(status)) if status.success() => return Some(FencingProof::Off),
                Ok(Some(status)) => break format!("ended with {status}"),
                Ok(None) if Instant::now() < end => std::thread::sleep(LOOK_EVERY * 10),
                Ok(None) => break format!("takes more than {} s", COMMAND_WITHIN.as_secs()),
                Err(error) => break format!("cannot be waited for: {error}"),
            }
        };
        // Fails if the process has ended.
        let _ = child.kill();
        let _ = child.wait();
        tracing::error!("{name}: its fence command {why}");
        None
    }
}

#[cfg(test)]
mod tests {
    use plexus_base::NodeSet;
    use plexus_membership::protocol::{FileId, Seat};

    use super::*;
    use crate::boot::{config::NodeConfig, layout::ClusterDir};

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
        let fence = Fence::new(config, NodeId(0));
        let over = |own| fence.over(&view, Incarnation(own)).map(|(node, _)| node.0).collect::<Vec<_>>();
        assert_eq!(over(8), [0, 1, 2], "there is no proof for a node of another host");
        let _lock = hold("n3");
        assert_eq!(over(7), [1], "the asking incarnation runs, and so does a holder of a lock");
    }
}
