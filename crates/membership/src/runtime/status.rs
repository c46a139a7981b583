//! The status of a node's membership, for people and programs.

use serde::{Deserialize, Serialize};

use super::{FencingProof, priority::Priority};

/// A node's status in its cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The epoch of the view in which the node acts; 0: none yet.
    pub opened: u32,
    /// The epoch of the last view that the node knows to be decided.
    pub decided: u32,
    /// The members of the decided view.
    pub members: Vec<MemberStatus>,
    /// The remaining time of the lease; 0 if there is none.
    pub lease_ms: f64,
    /// The nodes heard recently whose configured lease or disk timeout differs, with these two in
    /// milliseconds. Such nodes do not accept each other as members.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differing_times: Vec<(u8, f64, f64)>,
    /// The state of the majority of voting files.
    pub quorum: Quorum,
    /// The voting files of the view, and others that had turns.
    pub files: Vec<FileStatus>,
    /// The last evicted incarnations, newest last.
    pub fencing: Vec<Fencing>,
    /// The removed incarnations without whose proved end no view opens.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaited_proofs: Vec<AwaitedProof>,
    /// The last opened views, newest last.
    pub transitions: Vec<Transition>,
    /// The priority of the threads that keep the node a member.
    pub priority: Priority,
    /// The names of the cluster's valid keys, newest first. During a key replacement, all nodes
    /// must have both keys before the old one is removed.
    pub keys: Vec<String>,
    /// The number of unauthenticated datagrams received.
    pub unauthenticated: u64,
}

/// The status of a member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The node number.
    pub node: u8,
    /// Its incarnation.
    pub incarnation: u64,
    /// The time since it was last heard over the network; none for this node and for nodes never
    /// heard.
    pub heard_ms: Option<u64>,
}

/// The quorum of voting files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quorum {
    /// The voting files of the view.
    pub files: usize,
    /// The number of them that must answer.
    pub needed: usize,
    /// The number of them that have answered within the last lease time.
    pub answering: usize,
}

/// The status of a voting file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FileStatus {
    /// The identifier in hexadecimal.
    pub id: String,
    /// True if the file is in the view.
    pub votes: bool,
    /// The node that serves it; none if every node opens it.
    pub host: Option<u8>,
    /// The path at which this node opens it.
    pub path: Option<String>,
    /// The time since the last successful turn.
    pub answered_ms: Option<u64>,
    /// The duration of that turn.
    pub turn_ms: Option<f64>,
    /// True if the file was found to be an older copy of itself.
    pub set_aside: bool,
    /// The error of the last turn, if it failed.
    pub error: Option<String>,
}

/// A removed incarnation whose end must be proved and is not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AwaitedProof {
    /// The node.
    pub node: u8,
    /// Its incarnation.
    pub incarnation: u64,
    /// The time since this node waits.
    pub for_ms: u64,
    /// The time since the node was last heard over the network; none if never.
    pub heard_ms: Option<u64>,
    /// The reason why the last attempt to prove it has failed; none during the first.
    pub problem: Option<String>,
}

/// The fencing of an evicted incarnation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fencing {
    /// The node.
    pub node: u8,
    /// Its incarnation.
    pub incarnation: u64,
    /// The state of the fencing.
    pub state: FencingState,
}

/// The way in which an evicted incarnation is known to have stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FencingState {
    /// It is not known yet.
    UnderWay,
    /// This node has proved it.
    Proved(FencingProof),
    /// It was reported by another member, by the observer, or by the leaving node itself.
    Reported,
    /// Its lease has ended; there is no proof.
    LeaseEnded,
}

/// An opened view, and the duration of each step to it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Transition {
    /// The epoch of the view.
    pub epoch: u32,
    /// The epoch of the previous view in which this node acted; 0: none.
    pub before: u32,
    /// The time of opening, in milliseconds since 1970.
    pub at_ms: u64,
    /// The removed members, with their incarnations.
    pub gone: Vec<(u8, u64)>,
    /// The new members, with their incarnations.
    pub came: Vec<(u8, u64)>,
    /// The durations of the steps.
    pub phases: Phases,
}

/// The consecutive steps of a transition, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Phases {
    /// From the last sign of the first removed member to the first ballot for the view.
    pub detect: f64,
    /// From the first ballot to the decision.
    pub decide: f64,
    /// From the decision until all removed members have stopped for certain.
    pub fence: f64,
    /// From there until the view was opened.
    pub open: f64,
    /// From opening until all subsystems were rebuilt; none if not yet.
    pub rebuild: Option<f64>,
}
