//! The state of a recovery, for people.

use serde::{Deserialize, Serialize};

/// The part of a node in the last recovery: its scan of the streams of nodes that were gone, and
/// its replay of the blocks that it masters.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct RecoveryStatus {
    /// The epoch of the view; 0: nothing was ever recovered.
    pub epoch: u32,
    /// The phase.
    pub phase: RecoveryPhase,
    /// The number of scanned streams.
    pub streams: u64,
    /// The number of blocks in these streams.
    pub scanned: u64,
    /// The milliseconds of the scan.
    pub scan_ms: f64,
    /// The number of blocks that this node replays: those that it masters and no node holds.
    pub blocks: u64,
    /// The number of blocks that were replayed to disk.
    pub replayed: u64,
    /// The number of blocks that are refused because their redo is incomplete or damaged.
    pub refused: u64,
    /// The milliseconds of the replay.
    pub replay_ms: f64,
    /// The reason why the scan fails. Blocks that no node holds are refused, and it is tried again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// True if the scan fails because the registry cannot be asked now, as while nodes start.
    #[serde(default)]
    pub waits_for_registry: bool,
}

/// A phase of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryPhase {
    /// The streams are read. Requests for blocks that no node holds wait.
    Scanning,
    /// Blocks are written to disk. Requests for those that are not yet wait.
    Replaying,
    /// No request waits.
    #[default]
    Over,
}

impl RecoveryStatus {
    /// Returns the reason why changes of nodes that are gone are not on disk, if any may not be.
    #[must_use]
    pub fn unrecovered(self) -> Option<String> {
        let Self { phase, problem, refused, .. } = self;
        problem.or_else(|| match (refused, phase) {
            (0, RecoveryPhase::Over) => None,
            (0, _) => Some("the recovery is not over".into()),
            _ => Some(format!("the redo of {refused} blocks is incomplete or damaged; the log names them")),
        })
    }
}
