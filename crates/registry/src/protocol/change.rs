//! Commands to the registry, their results, and the reasons for refusals.

use std::{collections::BTreeSet, sync::Arc};

use plexus_base::{Incarnation, NodeId};

use super::{
    ClusterName, Contents, Entry, Key,
    contents::size,
    limits::{DISKS, EDITS_MAX, KEYS_MAX, QUEUED_BYTES_MAX, QUEUED_MAX, TOTAL_MAX, VALUE_MAX},
};

/// The effect of an edit on its key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum EditKind {
    /// The key gets this value.
    Set(Arc<[u8]>),
    /// The key is deleted, if it exists.
    Delete,
    /// The key stays as it is; only its version is checked.
    Keep,
}

/// One key of a change.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Edit {
    /// The key.
    pub key: Key,
    /// The version that the key must have; 0 means that it must not exist. `None` accepts any
    /// version.
    pub expect: Option<u64>,
    /// The effect on the key.
    pub what: EditKind,
}

impl Edit {
    fn bytes(&self) -> usize {
        let value = match &self.what {
            EditKind::Set(value) => value.len(),
            EditKind::Delete | EditKind::Keep => 0,
        };
        size_of::<Self>() + self.key.as_str().len() + value
    }
}

/// Edits that are made all or none: at least one, and all of different keys.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Change(pub Vec<Edit>);

impl Change {
    /// Sets a key, whatever its version.
    pub fn set(key: Key, value: &[u8]) -> Self {
        Self(vec![Edit { key, expect: None, what: EditKind::Set(value.into()) }])
    }

    /// Sets a key if it has this version (0: if it does not exist).
    pub fn compare_and_set(key: Key, version: u64, value: &[u8]) -> Self {
        Self(vec![Edit { key, expect: Some(version), what: EditKind::Set(value.into()) }])
    }

    /// Deletes a key.
    pub fn delete(key: Key) -> Self {
        Self(vec![Edit { key, expect: None, what: EditKind::Delete }])
    }

    /// Returns true if the change cannot make the contents longer: it replaces values of fixed
    /// length.
    pub(super) fn keeps_length(&self) -> bool {
        let replaces = |edit: &Edit| edit.expect.is_some_and(|version| version > 0);
        self.0.iter().all(|edit| edit.key.as_str().starts_with(DISKS) && replaces(edit))
    }

    /// Checks the limits that do not depend on the contents.
    pub(super) fn check(&self) -> Result<(), Refused> {
        let Self(edits) = self;
        if edits.is_empty() {
            return Err(Refused::Empty);
        }
        if edits.len() > EDITS_MAX {
            return Err(Refused::Edits { edits: edits.len() });
        }
        let (mut seen, mut bytes) = (BTreeSet::new(), 0);
        for Edit { key, what, .. } in edits {
            if !seen.insert(key) {
                return Err(Refused::Twice { key: key.clone() });
            }
            let EditKind::Set(value) = what else { continue };
            if value.len() > VALUE_MAX {
                return Err(Refused::Value { key: key.clone(), bytes: value.len() });
            }
            bytes += size(key, value);
        }
        if bytes > TOTAL_MAX {
            return Err(Refused::Total { bytes });
        }
        Ok(())
    }
}

/// A command to the registry.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// A command without effect. When it is done, all commands that were done before it are shown.
    Look,
    /// Edits of keys.
    Change(Change),
    /// Replaces all contents by those of a backup; each key gets the new generation as its version.
    Restore(Arc<Contents>),
}

impl Command {
    /// Checks that the command is valid for some contents of `cluster`.
    ///
    /// # Errors
    /// The reason why it is not.
    pub fn check(&self, cluster: ClusterName) -> Result<(), Refused> {
        match self {
            Self::Look => Ok(()),
            Self::Change(change) => change.check(),
            Self::Restore(backup) if backup.cluster != cluster => {
                Err(Refused::Foreign { found: backup.cluster, expected: cluster })
            }
            Self::Restore(_) => Ok(()),
        }
    }

    /// Returns roughly how many bytes the command takes in memory while it waits.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Look => 0,
            Self::Change(Change(edits)) => edits.iter().map(Edit::bytes).sum(),
            Self::Restore(contents) => contents.bytes,
        }
    }
}

/// The origin of a command. A command with the same origin is the same command, sent again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// The node.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The number of the command on that node, which has one command under way at a time.
    pub number: u64,
}

/// The effect of a command, for watches.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Changed {
    /// The generation that it made.
    pub generation: u64,
    /// True after a restore: everything may be different and must be read again.
    pub whole: bool,
    /// The changed keys with their new entries; `None` for a deleted key.
    pub keys: Vec<(Key, Option<Entry>)>,
}

/// The reason why a command was refused. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refused {
    /// The text is not a key.
    #[error("`{key}` {why}; use a path of 1 to 255 bytes such as `nodes/n1/address`")]
    Key {
        /// The beginning of the text, printable.
        key: String,
        /// The reason.
        why: &'static str,
    },
    /// A value is too long.
    #[error(
        "{key}: a value of {bytes} bytes; at most {VALUE_MAX} are possible: keep data in files and a path here"
    )]
    Value {
        /// The key.
        key: Key,
        /// The length of the value in bytes.
        bytes: usize,
    },
    /// A key has another version than the change expects.
    #[error("{key}: has version {found}, not {expected} (0: it does not exist); read it again and retry")]
    Version {
        /// The key.
        key: Key,
        /// The version that was expected.
        expected: u64,
        /// The version that the key has; 0: it does not exist.
        found: u64,
    },
    /// A change names a key twice.
    #[error("{key}: is in the change twice; name each key once")]
    Twice {
        /// The key.
        key: Key,
    },
    /// A change has no edits.
    #[error("the change is empty")]
    Empty,
    /// A change has too many edits.
    #[error("a change of {edits} keys; at most {EDITS_MAX} are possible: make several changes")]
    Edits {
        /// The number of edits.
        edits: usize,
    },
    /// There would be too many keys.
    #[error("the registry would have {keys} keys; at most {KEYS_MAX} are possible: delete some first")]
    Keys {
        /// The number of keys.
        keys: usize,
    },
    /// The contents would be too large.
    #[error(
        "the registry would take {bytes} bytes; at most {TOTAL_MAX} are possible: delete something first"
    )]
    Total {
        /// The size in bytes.
        bytes: usize,
    },
    /// Too many commands wait.
    #[error(
        "too many changes wait already (at most {QUEUED_MAX}, {QUEUED_BYTES_MAX} bytes); ask again later"
    )]
    Busy,
    /// A backup belongs to another cluster.
    #[error("the backup is of cluster {found}, this is {expected}; take a backup of this cluster")]
    Foreign {
        /// The cluster of the backup.
        found: super::ClusterName,
        /// The cluster of this registry.
        expected: super::ClusterName,
    },
    /// A member has no space on its disk for larger contents.
    #[error("not made, because the disk of node number {node} is full; make room there and try again")]
    Full {
        /// The member.
        node: NodeId,
    },
    /// No generation is left in this epoch.
    #[error(
        "no generation is left above {generation} in this view of the cluster; start a node again, which begins another"
    )]
    Generation {
        /// The last one.
        generation: u64,
    },
    /// The view cannot begin: all copies of its members are older than the last written generation,
    /// or newer than their view.
    #[error("{}", closed(*found, *known))]
    Closed {
        /// The generation of the newest copy that members have; 0: none.
        found: u64,
        /// The newest generation that is known to have been written, or the first of the view.
        known: u64,
    },
}

fn closed(found: u64, known: u64) -> String {
    if found < known {
        format!(
            "the registry is closed: the newest copy of the members has generation {found}, but {known} was written; \
             start a node that has the newer copy, or restore a backup"
        )
    } else {
        format!(
            "the registry is closed: a copy has generation {found}, but this view of the cluster begins with {known}; \
             the voting files are older than the registry: put the newer ones back"
        )
    }
}
