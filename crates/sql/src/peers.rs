//! The sessions of all nodes: listed, cancelled and ended from each of them; and their counts of
//! statements.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use plexus_base::{MAX_NODES, NodeId};
use plexus_interconnect::executor;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    activity::{Activity, SessionInfo},
    statements::{StatementCounts, StatementInfo},
};

/// The process numbers of a node: a process number is one of the cluster.
const PROCESSES: i32 = 100_000_000;

const _: () = assert!(MAX_NODES as i64 * PROCESSES as i64 <= i32::MAX as i64);

/// The longest wait for the answer of a node.
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// The other nodes.
pub trait Peers: Send + Sync {
    /// Returns the members of the cluster without this node.
    fn members(&self) -> Vec<NodeId>;

    /// Runs a command on a member: `sessions`, `statements` or `session`. `None`: there is no
    /// answer, or it is an error.
    fn ask(
        &self,
        node: NodeId,
        command: &'static str,
        args: Value,
    ) -> Pin<Box<dyn Future<Output = Option<Value>> + Send>>;
}

/// The sessions of this node, by their process numbers, and the way to the others.
pub(crate) struct ClusterSessions {
    own: Mutex<BTreeMap<i32, Arc<Activity>>>,
    me: NodeId,
    peers: Box<dyn Peers>,
    counts: Option<Arc<StatementCounts>>,
}

impl ClusterSessions {
    pub(crate) fn new(me: NodeId, peers: Box<dyn Peers>, counts: Option<Arc<StatementCounts>>) -> Self {
        Self { own: Mutex::default(), me, peers, counts }
    }

    /// Returns the sessions of this node.
    pub(crate) fn own(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<Activity>>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the process number of a session of this node from its number there. Numbers begin
    /// again when a node has had many.
    pub(crate) fn process(&self, id: i32) -> i32 {
        i32::from(self.me.0) * PROCESSES + id.rem_euclid(PROCESSES)
    }

    /// Returns the sessions of this node, for people, with their numbers there.
    pub(crate) fn own_infos(&self) -> Vec<SessionInfo> {
        self.own().iter().map(|(process, activity)| activity.info(process % PROCESSES)).collect()
    }

    /// Returns the counts of statements of this node.
    pub(crate) fn own_statements(&self) -> Vec<StatementInfo> {
        self.counts.as_ref().map(|counts| counts.infos()).unwrap_or_default()
    }

    /// Cancels the statement of a session of this node, or ends the session. Returns whether there
    /// is such a session.
    pub(crate) fn signal_own(&self, id: i32, ends: bool) -> bool {
        let session = self.own().get(&self.process(id)).cloned();
        let act = |activity: &Arc<Activity>| if ends { activity.end() } else { activity.cancel() };
        session.as_ref().map(act).is_some()
    }

    /// Returns the sessions of all nodes that answer, with their process numbers.
    pub(crate) async fn all(&self) -> Vec<SessionInfo> {
        let with_process = |node: NodeId, infos: Vec<SessionInfo>| {
            let first = i32::from(node.0) * PROCESSES;
            infos
                .into_iter()
                .map(move |info| SessionInfo { id: first + info.id.rem_euclid(PROCESSES), ..info })
        };
        let all = self.of_all("sessions", self.own_infos()).await;
        all.into_iter().flat_map(|(node, infos)| with_process(node, infos)).collect()
    }

    /// Returns what a command says on all nodes that answer; `own` is what it says here.
    async fn of_all<T: DeserializeOwned>(&self, command: &'static str, own: Vec<T>) -> Vec<(NodeId, Vec<T>)> {
        let ask = |node: NodeId| async move {
            let asked = self.peers.ask(node, command, json!(null));
            let answer = executor::timeout(ANSWER_TIME, asked).await.flatten();
            (node, answer.and_then(|infos| serde_json::from_value(infos).ok()).unwrap_or_default())
        };
        let others = join_all(self.peers.members().into_iter().map(ask)).await;
        [(self.me, own)].into_iter().chain(others).collect()
    }

    /// Returns the counts of statements of all nodes that answer, together.
    pub(crate) async fn statements(&self) -> Vec<StatementInfo> {
        let mut together = BTreeMap::new();
        for (_, infos) in self.of_all("statements", self.own_statements()).await {
            for info in infos {
                let StatementInfo { user, database, statement, .. } = &info;
                let key = (user.clone(), database.clone(), statement.clone());
                let none = StatementInfo {
                    user: user.clone(),
                    database: database.clone(),
                    statement: statement.clone(),
                    ..StatementInfo::default()
                };
                together.entry(key).or_insert(none).add(&info);
            }
        }
        together.into_values().collect()
    }

    /// Cancels the statement of a session, or ends the session. Returns whether it was told.
    pub(crate) async fn signal(&self, process: i32, ends: bool) -> bool {
        let (node, id) = (NodeId((process / PROCESSES) as u8), process % PROCESSES);
        if node == self.me {
            return self.signal_own(id, ends);
        }
        let asked = self.peers.ask(node, "session", json!({ "id": id, "ends": ends }));
        executor::timeout(ANSWER_TIME, asked).await.flatten().is_some()
    }
}
