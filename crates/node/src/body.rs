//! What a node is made of besides its life: links to its peers, the cache, the disk group.
//!
//! The order of calls is [`Body::join`], then either [`Body::quiesce`] and [`Body::hand_back`] (with
//! all nodes), or [`Body::freeze`] (alone). A body that finds a peer gone freezes by itself, and reports what it held
//! and what is lost through [`Life::stopped`].

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_disks::Group;
use serde::{Deserialize, Serialize};

use crate::{blocks::Blocks, config::Config, life::Life, settle::Settled, traffic::Traffic};

/// What a body is made from.
pub struct Parts {
    /// The cluster.
    pub config: Arc<Config>,
    /// Which of its nodes this is.
    pub me: NodeId,
    /// This life of the node.
    pub incarnation: Incarnation,
    /// The run that it takes part in, and the blocks that are refused in it. Peers must have the same
    /// [fingerprint](Settled::fingerprint).
    pub settled: Settled,
    /// The disks.
    pub group: Arc<Group>,
    /// Where the node stands.
    pub life: Arc<Life>,
}

/// The running parts of a node.
pub struct Body {
    config: Arc<Config>,
    me: NodeId,
    _group: Arc<Group>,
}

/// What the body says about itself; part of the node's status.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct BodyStatus {
    /// The epoch of the view.
    pub epoch: u32,
    /// The members, by name.
    pub members: Vec<String>,
    /// How each peer is reached.
    pub peers: Vec<PeerStatus>,
    /// Blocks that the cache holds in any mode.
    pub blocks_held: u64,
    /// Of these, blocks that this node owes to the disks.
    pub blocks_owed: u64,
    /// Connections refused because whoever was at the other end is no peer.
    pub strangers: u64,
}

/// How a peer is reached.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Its name.
    pub name: String,
    /// The rail in use, or nothing when there is none.
    pub rail: Option<String>,
}

/// What was held when the node gave it back or froze.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct HandedBack {
    /// Blocks held in any mode; every one is on disk in the version that was held.
    pub held: Blocks,
    /// How many of them had to be written.
    pub written: u64,
}

impl Body {
    /// Connects to all peers and serves. Calls [`Life::begin`] after everything that can fail alone and before
    /// the first message of a peer can be served; if it fails after that, it says by [`Life::stopped`] what it
    /// held, which is nothing where no peer was connected. Gives up when [`Life::is_ending`].
    ///
    /// # Errors
    /// One line for the user.
    pub fn join(parts: Parts) -> Result<Self, String> {
        let Parts { config, me, group, life, .. } = parts;
        life.begin().map_err(|error| error.to_string())?;
        Ok(Self { config, me, _group: group })
    }

    /// What it looks like now.
    #[must_use]
    pub fn status(&self) -> BodyStatus {
        let members = vec![self.config.nodes[self.me.index()].name.clone()];
        BodyStatus { epoch: Epoch(1).0, members, ..BodyStatus::default() }
    }

    /// What went over the links so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    /// Starts no change any more, and waits for those under way.
    ///
    /// # Errors
    /// One line for the user.
    pub fn quiesce(&self) -> Result<(), String> {
        Ok(())
    }

    /// Writes every block that is owed and gives all of them up. After every node has quiesced; doing it again
    /// does nothing.
    ///
    /// # Errors
    /// One line for the user; what was not handed back is still held.
    pub fn hand_back(&self, progress: &mut dyn FnMut(u64)) -> Result<HandedBack, String> {
        progress(0);
        Ok(HandedBack::default())
    }

    /// Stops at once: gives nothing away any more, then writes what must not be lost.
    ///
    /// # Errors
    /// One line for the user.
    pub fn freeze(&self) -> Result<HandedBack, String> {
        Ok(HandedBack::default())
    }
}
