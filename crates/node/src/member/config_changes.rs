//! Changing who belongs to a cluster and where it votes, while it runs: the command `config change`.
//!
//! It takes one of `{"add_node": NAME}`, `{"remove_node": NAME}`, `{"add_file": {"id", "path", "node"}}`, `{"remove_file": ID}`, and is
//! answered when a view with the change is decided; another one is refused until then. Before a node is added all members read `cluster.toml` again. Before a file is added, `{"place_file": {..}}` says where this node finds it, and
//! `{"tell_of_file": {..}}` has this node tell all members, and is answered when all that must open it have.

use std::path::PathBuf;

use plexus_base::NodeId;
use plexus_membership::protocol::{ConfigChange, FileId, InvalidFileId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    admin::commands::{On, Progress, Run, args},
    member::newcomers::{self, Place},
};

/// What is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConfigChangeArgs {
    /// A node belongs to the cluster and may join.
    AddNode(String),
    /// A node does not, and is put out if it is a member.
    RemoveNode(String),
    /// Where a voting file is that is about to be added.
    PlaceFile(FileArgs),
    /// The same, for every member.
    TellOfFile(FileArgs),
    /// A voting file votes.
    AddFile(FileArgs),
    /// A voting file does not vote any more.
    RemoveFile(String),
}

/// A voting file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileArgs {
    /// Its name: 16 hexadecimal digits.
    pub id: String,
    /// Where it is.
    pub path: PathBuf,
    /// The node that serves it; none: every node opens it.
    #[serde(default)]
    pub node: Option<String>,
}

/// See the module.
pub(crate) const COMMANDS: &[(&str, Run)] = &[("config_change", config_change)];

fn node(on: &On, name: &str) -> Result<NodeId, String> {
    on.config.node(name).map(|(id, _)| id).map_err(|error| error.to_string())
}

fn place(on: &On, FileArgs { id, path, node: host }: FileArgs) -> Result<Place, String> {
    let host = host.map(|host| node(on, &host)).transpose()?;
    Ok(Place { file: voting_file(&id)?, host, path })
}

fn voting_file(id: &str) -> Result<FileId, String> {
    id.parse().map_err(|error: InvalidFileId| error.to_string())
}

fn config_change(on: &On, asked: Value, _: Progress<'_>) -> Result<Value, String> {
    let config_change = match args(asked)? {
        ConfigChangeArgs::AddNode(name) => ConfigChange::AddNode(newcomers::tell_of_node(&on.body, &name)?),
        ConfigChangeArgs::RemoveNode(name) => ConfigChange::RemoveNode(node(on, &name)?),
        ConfigChangeArgs::PlaceFile(file) => {
            let place = place(on, file)?;
            if place.host.is_none_or(|host| host == on.body.me()) {
                newcomers::keep(&on.config, on.body.membership(), &place)?;
            }
            return Ok(json!({}));
        }
        ConfigChangeArgs::TellOfFile(file) => {
            newcomers::tell(&on.config, &on.body, &place(on, file)?)?;
            return Ok(json!({}));
        }
        ConfigChangeArgs::AddFile(file) => {
            let place = place(on, file)?;
            ConfigChange::AddFile(place.file, place.host)
        }
        ConfigChangeArgs::RemoveFile(id) => ConfigChange::RemoveFile(voting_file(&id)?),
    };
    on.body.membership().config_change(config_change).map_err(|error| error.to_string())?;
    Ok(json!({}))
}
