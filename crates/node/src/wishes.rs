//! Changing who belongs to a cluster and where it votes, while it runs: the command `wish`.
//!
//! It takes one of `{"add_node": NAME}`, `{"remove_node": NAME}`, `{"add_file": {"id", "path", "node"}}`, `{"remove_file": ID}`, and is
//! answered when a view with the change is decided. Before a file is added, `{"place_file": {..}}` says where this node finds it, and
//! `{"tell_of_file": {..}}` has this node tell all members, and is answered when all that must open it have.

use std::{path::PathBuf, sync::Arc};

use plexus_base::NodeId;
use plexus_membership::protocol::{FileId, NoFileId, Wish};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    body::Body,
    config::Config,
    control::Command,
    voting_places::{self, Place},
};

/// What is wanted.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WishArgs {
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

/// The command.
pub(crate) fn command(config: &Arc<Config>, me: NodeId, body: &Arc<Body>) -> Arc<dyn Command> {
    Arc::new(Wishes { config: config.clone(), me, body: body.clone() })
}

struct Wishes {
    config: Arc<Config>,
    me: NodeId,
    body: Arc<Body>,
}

impl Wishes {
    fn node(&self, name: &str) -> Result<NodeId, String> {
        self.config.node(name).map(|(id, _)| id).map_err(|error| error.to_string())
    }

    fn place(&self, FileArgs { id, path, node }: &FileArgs) -> Result<Place, String> {
        let host = node.as_deref().map(|node| self.node(node)).transpose()?;
        Ok(Place { file: voting_file(id)?, host, path: path.clone() })
    }

    fn wish(&self, args: &WishArgs) -> Result<Option<Wish>, String> {
        Ok(Some(match args {
            WishArgs::AddNode(name) => Wish::AddNode(self.node(name)?),
            WishArgs::RemoveNode(name) => Wish::RemoveNode(self.node(name)?),
            WishArgs::PlaceFile(file) => {
                let place = self.place(file)?;
                if place.host.is_none_or(|host| host == self.me) {
                    voting_places::keep(&self.config, self.body.membership(), &place)?;
                }
                return Ok(None);
            }
            WishArgs::TellOfFile(file) => {
                voting_places::tell(&self.config, &self.body, &self.place(file)?)?;
                return Ok(None);
            }
            WishArgs::AddFile(file) => {
                let place = self.place(file)?;
                Wish::AddFile(place.file, place.host)
            }
            WishArgs::RemoveFile(id) => Wish::RemoveFile(voting_file(id)?),
        }))
    }
}

fn voting_file(id: &str) -> Result<FileId, String> {
    id.parse().map_err(|error: NoFileId| error.to_string())
}

impl Command for Wishes {
    fn name(&self) -> &'static str {
        "wish"
    }

    fn run(&self, args: Value, _: &mut dyn FnMut(Value) -> bool) -> Result<Value, String> {
        let args: WishArgs = serde_json::from_value(args).map_err(|error| format!("wish: {error}"))?;
        if let Some(wish) = self.wish(&args)? {
            self.body.membership().wish(wish).map_err(|error| error.to_string())?;
        }
        Ok(json!({}))
    }
}
