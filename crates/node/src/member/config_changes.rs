//! Config changes: the command that changes the nodes and voting files of a running cluster.
//!
//! The command takes one of `{"add_node": NAME}`, `{"remove_node": NAME}`, `{"add_file": {"id",
//! "path", "node"}}` and `{"remove_file": ID}`. It is answered when a view with the change is
//! decided, at once if one is; other changes are refused until then. Before a node is added, all
//! members read `cluster.toml` again. Before a file is added, `{"place_file": {..}}` gives its path
//! on this node. `{"tell_of_file": {..}}` has this node announce it to all members, and is answered
//! when all that must open it have done so.

use std::path::PathBuf;

use plexus_admin::control::Progress;
use plexus_base::NodeId;
use plexus_membership::{
    protocol::{ConfigChange, ConfigChangeRefusal, FileId, InvalidFileId},
    runtime::ConfigChangeError,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    commands::{CommandContext, NodeCommand, args},
    member::newcomers::{self, VotingFileLocation},
};

/// The arguments of a config change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigChangeArgs {
    /// Adds a node, which may then join.
    AddNode(String),
    /// Removes a node, and evicts it if it is a member.
    RemoveNode(String),
    /// Sets the path of a voting file on this node, before the file is added.
    PlaceFile(FileArgs),
    /// Sets the path of a voting file on every member.
    TellOfFile(FileArgs),
    /// Adds a voting file, which then votes.
    AddFile(FileArgs),
    /// Removes a voting file, which then does not vote.
    RemoveFile(String),
}

/// A voting file as an argument.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileArgs {
    /// The identifier of the file: 16 hexadecimal digits.
    pub id: String,
    /// The path of the file.
    pub path: PathBuf,
    /// The node that serves it; if `None`, every node opens it.
    #[serde(default)]
    pub node: Option<String>,
}

/// The commands of this module.
pub(crate) const COMMANDS: &[NodeCommand] = &[NodeCommand::prompt("config_change", config_change)];

fn node(on: &CommandContext, name: &str) -> Result<NodeId, String> {
    on.config.node(name).map(|(id, _)| id).map_err(|error| error.to_string())
}

fn place(
    on: &CommandContext,
    FileArgs { id, path, node: host }: FileArgs,
) -> Result<VotingFileLocation, String> {
    let host = host.map(|host| node(on, &host)).transpose()?;
    Ok(VotingFileLocation { file: voting_file(&id)?, host, path })
}

fn voting_file(id: &str) -> Result<FileId, String> {
    id.parse().map_err(|error: InvalidFileId| error.to_string())
}

fn config_change(on: &CommandContext, asked: Value, _: Progress<'_>) -> Result<Value, String> {
    let config_change = match args(asked)? {
        ConfigChangeArgs::AddNode(name) => {
            ConfigChange::AddNode(newcomers::tell_of_node(on.runtime(), &name)?)
        }
        ConfigChangeArgs::RemoveNode(name) => ConfigChange::RemoveNode(node(on, &name)?),
        ConfigChangeArgs::PlaceFile(file) => {
            let place = place(on, file)?;
            if place.host.is_none_or(|host| host == on.runtime().me()) {
                newcomers::keep(&on.config, on.runtime().membership(), &place)?;
            }
            return Ok(json!({}));
        }
        ConfigChangeArgs::TellOfFile(file) => {
            newcomers::tell(&on.config, on.runtime(), &place(on, file)?)?;
            return Ok(json!({}));
        }
        ConfigChangeArgs::AddFile(file) => {
            let place = place(on, file)?;
            ConfigChange::AddFile(place.file, place.host)
        }
        ConfigChangeArgs::RemoveFile(id) => ConfigChange::RemoveFile(voting_file(&id)?),
    };
    match on.runtime().membership().config_change(config_change) {
        // An interrupted command is repeated.
        Ok(()) | Err(ConfigChangeError::Refused(ConfigChangeRefusal::Done)) => Ok(json!({})),
        Err(error) => Err(error.to_string()),
    }
}
