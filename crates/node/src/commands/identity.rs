//! The commands that accept a loss: a redo stream that is given up, disks that are older images.
//!
//! | command | arguments | answer |
//! |---|---|---|
//! | `redo.give_up` | `stream`, `accepts` | [`GivenUp`] |
//! | `disk.force` | `accepts`, `version` | [`Forced`] |
//!
//! Without `accepts` they only describe the loss. They can be repeated after an interruption.

use plexus_admin::control::Progress;
use plexus_redo::recovery::StreamToGiveUp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    commands::{CommandContext, NodeCommand, args, json_of},
    disks,
};

/// The most blocks that an answer names.
const NAMED_BLOCKS: usize = 1000;

/// A redo stream that is or was given up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GivenUp {
    /// The file of the stream.
    pub path: String,
    /// The state of the file, if it is not a sound stream.
    pub state: String,
    /// The number of blocks with records in it, as far as they are known.
    pub blocks: usize,
    /// The first of them.
    pub named: Vec<u64>,
    /// True if nothing had to be given up.
    pub is_over: bool,
}

/// Disks that are or were older images.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Forced {
    /// One text for each of them.
    pub faults: Vec<String>,
    /// The version of the map of a mirrored group.
    pub version: Option<u64>,
}

pub(crate) const COMMANDS: &[NodeCommand] =
    &[NodeCommand::waiting("redo.give_up", give_up), NodeCommand::waiting("disk.force", force)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GiveUpArgs {
    stream: String,
    accepts: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ForceArgs {
    accepts: bool,
    /// The version of the map of a mirrored group for which the loss was shown.
    version: Option<u64>,
}

fn give_up(on: &CommandContext, asked: Value, _: Progress<'_>) -> Result<Value, String> {
    let GiveUpArgs { stream, accepts } = args(asked)?;
    let redo = on.runtime().redo().ok_or("the cluster has no redo (redo_mib = 0)")?;
    let StreamToGiveUp { path, state, blocks, is_over, .. } =
        redo.give_up(&stream, accepts).map_err(|why| why.to_string())?;
    let named = blocks.iter().take(NAMED_BLOCKS).map(|block| block.0).collect();
    json_of(&GivenUp { path: path.display().to_string(), state, blocks: blocks.len(), named, is_over })
}

fn force(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let ForceArgs { accepts, version } = args(asked)?;
    if let Some(mirror) = on.runtime().disk_group().mirror() {
        let (faults, version) = disks::force(on, mirror, (accepts, version), progress)?;
        return json_of(&Forced { faults, version: Some(version) });
    }
    json_of(&Forced { faults: on.runtime().force_disks(accepts)?, version: None })
}
