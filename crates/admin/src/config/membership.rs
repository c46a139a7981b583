//! The tables `[membership]` and `[[voting]]` of `cluster.toml`: the times of the membership, and
//! the voting files.

use std::path::PathBuf;

use plexus_base::Nanos;
use plexus_membership::protocol::{FileId, MAX_FILES, Profile};
use serde::{Deserialize, Deserializer, de::Error as _};

use super::NodeConfig;
use crate::layout::ClusterDir;

/// The table `[membership]`. A time that is not given is that of the profile.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Membership {
    /// The profile: `lan`, `fast` or `wan`.
    pub profile: String,
    /// The interval between two reports of a node, in milliseconds.
    pub heartbeat_ms: Option<u32>,
    /// The length of a lease in milliseconds, from the start of its renewal.
    pub lease_ms: Option<u32>,
    /// The silence in milliseconds after which a node is evicted.
    pub evict_ms: Option<u32>,
    /// The time in milliseconds that a process takes to end.
    pub kill_margin_ms: Option<u32>,
    /// The time in milliseconds for which voting files may stall while all members hear each other;
    /// at least a lease.
    pub disk_timeout_ms: Option<u32>,
    /// The watchdog device of each host, fed while its node is healthy.
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
            disk_timeout_ms: None,
            watchdog: None,
        }
    }
}

impl Membership {
    /// Returns the times that it names.
    ///
    /// # Errors
    /// There is no such profile, or the times do not fit each other.
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
            (self.disk_timeout_ms, &mut times.disk_timeout),
        ];
        for (given, time) in given {
            if let Some(ms) = given {
                *time = Nanos::from_ms(ms.into());
            }
        }
        if self.disk_timeout_ms.is_none() {
            times.disk_timeout = times.disk_timeout.max(times.lease);
        }
        times.check().map_err(|error| format!("[membership] {error}"))?;
        Ok(times)
    }
}

/// A voting file in the configuration.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Voting {
    /// The identifier, made with the file.
    #[serde(deserialize_with = "id")]
    pub id: FileId,
    /// The file or block device, absolute or relative to the cluster's directory.
    pub path: PathBuf,
    /// The node that serves the file from its own disk; if `None`, every node opens it itself.
    #[serde(default)]
    pub node: Option<String>,
}

fn id<'de, D: Deserializer<'de>>(from: D) -> Result<FileId, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

/// Checks the list of voting files.
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
