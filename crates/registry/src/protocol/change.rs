//! What may be asked of the registry, what came of it, and why it may be refused.

use std::{collections::BTreeSet, sync::Arc};

use plexus_base::{Incarnation, NodeId};

use super::{
    ClusterName, Contents, Entry, Key,
    contents::size,
    limits::{EDITS_MAX, KEYS_MAX, QUEUED_BYTES_MAX, QUEUED_MAX, TOTAL_MAX, VALUE_MAX},
};

/// What happens to one key.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum What {
    /// It gets this value.
    Set(Arc<[u8]>),
    /// It is gone, if it was there.
    Delete,
    /// Nothing: only its version matters.
    Keep,
}

/// One key of a change.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Edit {
    /// The key.
    pub key: Key,
    /// The version that it must have for the change to be made; 0: it must not be there. `None`: whatever it has.
    pub expect: Option<u64>,
    /// What happens to it.
    pub what: What,
}

impl Edit {
    fn bytes(&self) -> usize {
        let value = match &self.what {
            What::Set(value) => value.len(),
            What::Delete | What::Keep => 0,
        };
        size_of::<Self>() + self.key.as_str().len() + value
    }
}

/// Edits that are made all or none, of keys that differ, one at least.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Change(pub Vec<Edit>);

impl Change {
    /// Sets a key, whatever it has.
    #[must_use]
    pub fn set(key: Key, value: &[u8]) -> Self {
        Self(vec![Edit { key, expect: None, what: What::Set(value.into()) }])
    }

    /// Sets a key if it has this version (0: if it is not there).
    #[must_use]
    pub fn compare_and_set(key: Key, version: u64, value: &[u8]) -> Self {
        Self(vec![Edit { key, expect: Some(version), what: What::Set(value.into()) }])
    }

    /// Deletes a key.
    #[must_use]
    pub fn delete(key: Key) -> Self {
        Self(vec![Edit { key, expect: None, what: What::Delete }])
    }

    /// Whether any contents could take it.
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
            let What::Set(value) = what else { continue };
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

/// What can be asked for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Command {
    /// Nothing: when it is done, everything that was done before it was asked for is shown.
    Look,
    /// Edits.
    Change(Change),
    /// Everything becomes what a backup holds; each key gets the new generation as its version.
    Restore(Arc<Contents>),
}

impl Command {
    /// Whether any contents of `cluster` could take it.
    ///
    /// # Errors
    /// Why none can.
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

    /// About what it takes in memory while it waits.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Look => 0,
            Self::Change(Change(edits)) => edits.iter().map(Edit::bytes).sum(),
            Self::Restore(contents) => contents.bytes,
        }
    }
}

/// Who asked for a command: the same three once more are the same command, sent again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Which of its commands, in the order in which it asks, one at a time.
    pub number: u64,
}

/// What a command did, for those who watch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Changed {
    /// The generation that it made.
    pub generation: u64,
    /// Everything may be different (restored): read anew.
    pub whole: bool,
    /// Keys that were set, with what they have now, or deleted.
    pub keys: Vec<(Key, Option<Entry>)>,
}

/// Why a command was not done. Nothing has changed then.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refused {
    /// Not a key.
    #[error("`{key}` {why}; use a path of 1 to 255 bytes such as `nodes/n1/address`")]
    Key {
        /// Its begin, printable.
        key: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A value is too long.
    #[error(
        "{key}: a value of {bytes} bytes; at most {VALUE_MAX} are possible: keep data in files and a path here"
    )]
    Value {
        /// The key.
        key: Key,
        /// Bytes of the value.
        bytes: usize,
    },
    /// A key has another version than the change is for.
    #[error("{key}: has version {found}, not {expected} (0: it is not there); read it again and decide anew")]
    Version {
        /// The key.
        key: Key,
        /// The version that was asked for.
        expected: u64,
        /// The version that it has; 0: none.
        found: u64,
    },
    /// A key stands in a change twice.
    #[error("{key}: stands in the change twice; name each key once")]
    Twice {
        /// The key.
        key: Key,
    },
    /// A change without edits.
    #[error("the change is empty")]
    Empty,
    /// A change with too many edits.
    #[error("a change of {edits} keys; at most {EDITS_MAX} are possible: make several changes")]
    Edits {
        /// How many it has.
        edits: usize,
    },
    /// Too many keys.
    #[error("the registry would have {keys} keys; at most {KEYS_MAX} are possible: delete some first")]
    Keys {
        /// How many there would be.
        keys: usize,
    },
    /// Too much in all.
    #[error(
        "the registry would take {bytes} bytes; at most {TOTAL_MAX} are possible: delete something first"
    )]
    Total {
        /// How many bytes it would take.
        bytes: usize,
    },
    /// Too many wait.
    #[error(
        "too many changes wait already (at most {QUEUED_MAX}, {QUEUED_BYTES_MAX} bytes); ask again later"
    )]
    Busy,
    /// A backup of another cluster.
    #[error("the backup is of cluster {found}, this is {expected}; take a backup of this cluster")]
    Foreign {
        /// Whose it is.
        found: super::ClusterName,
        /// Whose it should be.
        expected: super::ClusterName,
    },
    /// No generation is left in this epoch.
    #[error(
        "no generation is left above {generation} in this view of the cluster; start a node again, which begins another"
    )]
    Generation {
        /// The last one.
        generation: u64,
    },
    /// The view cannot begin: its members have only copies that are older than what was written, or newer than their view.
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
