//! What a node says of its membership, for people and programs.

use serde::{Deserialize, Serialize};

use super::{Proof, priority::Priority};

/// A member's view of its cluster.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The view that the node acts in; 0: none yet.
    pub opened: u32,
    /// The last view that it knows to be decided.
    pub decided: u32,
    /// Its members.
    pub members: Vec<MemberStatus>,
    /// What the lease lasts if it is not renewed; 0 where there is none.
    pub lease_ms: f64,
    /// Nodes heard of lately that are configured with another lease than this one, with that in milliseconds: neither takes the other in.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub odd_leases: Vec<(u8, f64)>,
    /// Whether the voting files suffice.
    pub quorum: Quorum,
    /// Voting files of the view, and others that had turns.
    pub files: Vec<FileStatus>,
    /// The last lives that were put out, newest last.
    pub fencing: Vec<Fencing>,
    /// The last views that were opened, newest last.
    pub transitions: Vec<Transition>,
    /// How the threads that keep the node a member run.
    pub priority: Priority,
    /// The names of the cluster's keys that are valid here, the newest first: while one replaces another, all nodes must have both first.
    pub keys: Vec<String>,
    /// Datagrams that no node of the cluster sent to this one.
    pub strangers: u64,
}

/// A member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Which node.
    pub node: u8,
    /// In which incarnation.
    pub incarnation: u64,
    /// When it was last heard over the network; the node itself, and one that never was: none.
    pub heard_ms: Option<u64>,
}

/// Votes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quorum {
    /// Voting files of the view.
    pub files: usize,
    /// How many of them must answer.
    pub needed: usize,
    /// How many have within the last lease.
    pub answering: usize,
}

/// A voting file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FileStatus {
    /// Its id, in hexadecimal.
    pub id: String,
    /// Whether it is of the view.
    pub votes: bool,
    /// The node that serves it, where not everybody opens it.
    pub host: Option<u8>,
    /// Where this node opens it.
    pub path: Option<String>,
    /// How long ago a turn at it went well.
    pub answered_ms: Option<u64>,
    /// How long that turn took.
    pub turn_ms: Option<f64>,
    /// Whether it was found to be an older copy of itself.
    pub set_aside: bool,
    /// Why the last turn failed, if it did.
    pub error: Option<String>,
}

/// What was done to make sure of an incarnation that was put out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fencing {
    /// The node.
    pub node: u8,
    /// Its incarnation.
    pub incarnation: u64,
    /// How far that is.
    pub state: FencingState,
}

/// How an incarnation that was put out is known to have stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FencingState {
    /// Not yet.
    UnderWay,
    /// This node has proved it.
    Proved(Proof),
    /// It was told: by another member, by the node itself when it left, or by who uses the membership.
    Told,
    /// Nothing proves it, but its lease is over.
    WaitedOut,
}

/// A view that was opened, and how long each step to it took.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Transition {
    /// The view.
    pub epoch: u32,
    /// The one that this node acted in before; 0: none.
    pub before: u32,
    /// When it was opened, in milliseconds since 1970.
    pub at_ms: u64,
    /// Members of the view before, with their incarnations, that are none any more.
    pub gone: Vec<(u8, u64)>,
    /// Members that were none before.
    pub came: Vec<(u8, u64)>,
    /// How long it took.
    pub phases: Phases,
}

/// The steps of a transition, one after the other, in milliseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Phases {
    /// From when the first of those that went was last heard, to the first ballot for the view.
    pub detect: f64,
    /// From there until the view was decided.
    pub decide: f64,
    /// From there until everybody who went had stopped for certain.
    pub fence: f64,
    /// From there until it was opened.
    pub open: f64,
    /// From there until what the node does in views was whole again; none: it is not yet.
    pub rebuild: Option<f64>,
}
