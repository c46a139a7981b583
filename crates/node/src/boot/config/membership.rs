//! The table `[membership]` and the tables `[[voting]]` of `cluster.toml`: how fast a lost node is noticed, and where votes are kept.

use std::path::PathBuf;

use plexus_base::Nanos;
use plexus_membership::protocol::{FileId, MAX_FILES, Profile};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::NodeConfig;
use crate::boot::layout::ClusterDir;

/// The table `[membership]`. A time that is not given is the profile's.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Membership {
    /// `lan`, `fast` or `wan`.
    pub profile: String,
    /// Between two reports of a node, in milliseconds.
    pub heartbeat_ms: Option<u32>,
    /// How long a node acts after it began to renew its lease, in milliseconds.
    pub lease_ms: Option<u32>,
    /// A node that was not heard for so long is put out, in milliseconds.
    pub evict_ms: Option<u32>,
    /// How long a process takes to end, in milliseconds.
    pub kill_margin_ms: Option<u32>,
    /// The watchdog of each host, to be fed while its node is well.
    pub watchdog: Option<PathBuf>,
}

impl Default for Membership {
    fn default() -> Self {
        Self {
            profile: "lan".into(),
            heartbeat_ms: None,
            lease_ms: None,
            evict_ms: None,
            kill_margin_ms: None,
            watchdog: None,
        }
    }
}

impl Membership {
    /// The times that it names.
    ///
    /// # Errors
    /// There is no such profile, or they do not fit each other.
    pub fn times(&self) -> Result<Profile, String> {
        let named = Profile::ALL.into_iter().find(|(name, _)| *name == self.profile);
        let (_, mut times) = named.ok_or_else(|| {
            let names = Profile::ALL.map(|(name, _)| format!("{name:?}"));
            format!("[membership] profile = {:?}: use {}", self.profile, names.join(", "))
        })?;
        let given = [
            (self.heartbeat_ms, &mut times.heartbeat),
            (self.lease_ms, &mut times.lease),
            (self.evict_ms, &mut times.evict),
            (self.kill_margin_ms, &mut times.kill_margin),
        ];
        for (given, time) in given {
            if let Some(ms) = given {
                *time = Nanos::from_ms(ms.into());
            }
        }
        times.check().map_err(|error| format!("[membership] {error}"))?;
        Ok(times)
    }
}

/// A voting file.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Voting {
    /// Its name, made with it.
    #[serde(deserialize_with = "id")]
    pub id: FileId,
    /// The file or block device, absolute or from the cluster's directory.
    pub path: PathBuf,
    /// The node that has it on a disk of its own and serves it; none: every node opens it itself.
    #[serde(default)]
    pub node: Option<String>,
}

fn id<'de, D: Deserializer<'de>>(from: D) -> Result<FileId, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// Complains of voting files that cannot be.
pub(super) fn check(dir: &ClusterDir, voting: &[Voting], nodes: &[NodeConfig]) -> Result<(), String> {
    if !(1..=MAX_FILES).contains(&voting.len()) {
        return Err(format!(
            "{} voting files; a cluster has 1 to {MAX_FILES} (`plexus init` makes them)",
            voting.len()
        ));
    }
    for (index, file) in voting.iter().enumerate() {
        if file.path.as_os_str().is_empty() {
            return Err(format!("[[voting]] {index} has no path; name a file"));
        }
        for earlier in &voting[..index] {
            if earlier.id == file.id {
                return Err(format!("two voting files are called {}; list each once", file.id));
            }
            if earlier.path == file.path && earlier.node == file.node {
                return Err(format!(
                    "two voting files are {}; list each once",
                    dir.root().join(&file.path).display()
                ));
            }
        }
        if let Some(node) = file.node.as_ref().filter(|node| nodes.iter().all(|known| known.name != **node)) {
            return Err(format!(
                "the voting file {} is served by {node}, which is no node",
                file.path.display()
            ));
        }
    }
    Ok(())
}
