//! The commands on the registry.
//!
//! | command | arguments | answer |
//! |---|---|---|
//! | `registry.get` | `key` | [`Entry`] |
//! | `registry.list` | `prefix` | lists of [`Entry`] as progress, then `generation` |
//! | `registry.set` | `key`, `value`, `if_version` | `version` |
//! | `registry.delete` | `key`, `if_version` | `version` |
//! | `registry.watch` | `prefix`, `from` | [`Change`]s as progress, until the connection ends |
//! | `registry.backup` | `path` | `generation` |
//! | `registry.restore` | `path` | `generation` |
//! | `registry.status` | | [`Status`] |
//!
//! Reads are at least as new as every answer before, on any node.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use plexus_admin::control::Progress;
use plexus_base::hex;
use plexus_registry::{
    RegistryError,
    protocol::{self, Command as Ask, Contents, DISKS, Edit, EditKind, Key, Refused, WatchEvent},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::commands::{CommandContext, LOOK_EVERY, NodeCommand, args, aside, json_of};

/// The approximate number of bytes of values in one line of progress.
const LINE: usize = 1 << 20;

/// A value: text, or hexadecimal digits if the bytes are not text.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Bytes {
    /// UTF-8.
    Text(String),
    /// Two digits for each byte.
    Hex(String),
}

impl Bytes {
    /// Returns the bytes as text, or as digits if they are not UTF-8.
    pub fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.into()),
            Err(_) => Self::Hex(hex::digits(bytes)),
        }
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// The digits are not hexadecimal.
    pub fn bytes(&self) -> Result<Vec<u8>, String> {
        match self {
            Self::Text(text) => Ok(text.clone().into_bytes()),
            Self::Hex(digits) => hex::bytes(digits).ok_or_else(|| "not hexadecimal digits".into()),
        }
    }
}

/// A key with its value and version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The generation of its last change.
    pub version: u64,
    /// The value.
    pub value: Bytes,
}

/// A change, as a watch reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A key was set.
    Set(Entry),
    /// A key was deleted.
    Deleted {
        /// The key.
        key: String,
        /// The generation of the deletion.
        version: u64,
    },
    /// Changes were missed, or a backup was restored: read everything again, at this generation or
    /// later.
    ReadAgain(u64),
}

/// The status of the registry on a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// The epoch of its view.
    pub epoch: u32,
    /// The generation of its contents; `None` before the first view.
    pub generation: Option<u64>,
    /// The number of keys.
    pub keys: usize,
    /// The members that the others wait for; only the coordinator knows them.
    pub awaited: Vec<String>,
    /// The problems of its copies on disk.
    pub trouble: Vec<String>,
}

/// The commands that wait for other nodes.
pub(crate) const COMMANDS: &[NodeCommand] = &[
    NodeCommand::waiting("registry.get", get),
    NodeCommand::waiting("registry.list", list),
    NodeCommand::waiting("registry.set", set),
    NodeCommand::waiting("registry.delete", delete),
    NodeCommand::waiting("registry.watch", watch),
    NodeCommand::waiting("registry.backup", backup),
    NodeCommand::waiting("registry.restore", restore),
    NodeCommand::prompt("registry.status", status),
];

/// The longest wait for an answer. A view change takes less, and the client waits longer.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Waits for a result for as long as the client is connected, for a limited time.
fn done(on: &CommandContext, ask: Ask, progress: Progress<'_>) -> Result<u64, String> {
    let is_look = ask == Ask::Look;
    let mut waiting = on.runtime().registry().ask(ask);
    let end = Instant::now() + ANSWER_WITHIN;
    loop {
        match waiting.wait(LOOK_EVERY) {
            Some(Err(RegistryError::Refused(Refused::Full { node }))) => {
                let name = on.config.name_of(node);
                return Err(format!(
                    "the change was not made: the disk of {name} is full; make room there and try again (`plexus status` names the path)"
                ));
            }
            Some(Err(RegistryError::Unwritable { nodes, was_sent })) => {
                let names: Vec<_> = nodes.iter().map(|node| on.config.name_of(node)).collect();
                let outcome = match (is_look, was_sent) {
                    (true, _) => "no answer",
                    (false, true) => "outcome unknown: the change may be made later; no answer",
                    (false, false) => "the change was not made",
                };
                return Err(format!(
                    "{outcome}, because the copies of the registry on {} cannot be written, and the other members are no majority; \
                     `plexus status` names the reason",
                    names.join(", ")
                ));
            }
            Some(answer) => return answer.map_err(|error| error.to_string()),
            None if Instant::now() >= end => return Err(unanswered(is_look)),
            None if progress(Value::Null) => {}
            None => return Err("the client that waited for the answer has gone".into()),
        }
    }
}

/// Returns the text for a command without an answer in time.
fn unanswered(is_look: bool) -> String {
    let (seconds, outcome) = (ANSWER_WITHIN.as_secs(), "outcome unknown: the change may be made later; ");
    format!(
        "{}no answer in {seconds} s, because not every node has the latest changes on its disk; `plexus registry status` names these nodes{}",
        if is_look { "" } else { outcome },
        if is_look { "" } else { ", and `plexus registry get` shows the outcome when they are done" },
    )
}

/// Returns contents that are at least as new as every answer before.
fn look(on: &CommandContext, progress: Progress<'_>) -> Result<Arc<Contents>, String> {
    done(on, Ask::Look, progress)?;
    on.runtime().registry().contents().ok_or_else(|| "nothing is shown".into())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyArgs {
    key: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EditArgs {
    key: String,
    #[serde(default)]
    value: Option<Bytes>,
    #[serde(default)]
    if_version: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListArgs {
    prefix: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WatchArgs {
    prefix: String,
    #[serde(default)]
    from: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PathArgs {
    path: PathBuf,
}

fn key(text: &str) -> Result<Key, String> {
    Key::new(text).map_err(|refused| refused.to_string())
}

/// Checks a key that a user changes.
fn free_key(text: &str) -> Result<Key, String> {
    match text.starts_with(DISKS) {
        true => Err(format!("{text}: the nodes keep the keys under {DISKS} themselves; choose another key")),
        false => key(text),
    }
}

fn shown(key: &Key, entry: &protocol::Entry) -> Entry {
    Entry { key: key.as_str().into(), version: entry.version, value: Bytes::of(&entry.value) }
}

fn get(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let KeyArgs { key: text } = args(asked)?;
    let key = key(&text)?;
    let contents = look(on, progress)?;
    let entry = contents.entry(&text).ok_or_else(|| format!("{key}: is not there"))?;
    json_of(&shown(&key, entry))
}

fn list(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let ListArgs { prefix } = args(asked)?;
    let contents = look(on, progress)?;
    let (mut entries, mut bytes) = (Vec::new(), 0);
    for (key, entry) in contents.under(&prefix) {
        bytes += key.as_str().len() + entry.value.len();
        entries.push(shown(key, entry));
        if bytes > LINE {
            progress(json_of(&std::mem::take(&mut entries))?);
            bytes = 0;
        }
    }
    progress(json_of(&entries)?);
    Ok(json!({ "generation": contents.generation() }))
}

fn set(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let EditArgs { key: text, value, if_version } = args(asked)?;
    let value = value.ok_or("a key is set to a value")?.bytes()?;
    let edit = Edit { key: free_key(&text)?, expect: if_version, what: EditKind::Set(value.into()) };
    let version = done(on, Ask::Change(protocol::Change(vec![edit])), progress)?;
    Ok(json!({ "version": version }))
}

fn delete(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let EditArgs { key: text, if_version, .. } = args(asked)?;
    let key = free_key(&text)?;
    let contents = look(on, progress)?;
    // If another client has deleted the key meanwhile, the result is the same.
    if contents.entry(&text).is_none() {
        return Err(format!("{key}: is not there"));
    }
    let edit = Edit { key, expect: if_version, what: EditKind::Delete };
    let version = done(on, Ask::Change(protocol::Change(vec![edit])), progress)?;
    Ok(json!({ "version": version }))
}

fn watch(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let WatchArgs { prefix, from } = args(asked)?;
    let from = match from {
        Some(from) => from,
        None => look(on, progress)?.generation(),
    };
    let watch = on.runtime().registry().watch(&prefix, from).map_err(|error| error.to_string())?;
    let mut is_there = progress(json!({ "watching": from }));
    while is_there {
        let told = match watch.next(LOOK_EVERY).map_err(|ended| ended.to_string())? {
            None => {
                is_there = progress(Value::Null);
                continue;
            }
            Some(WatchEvent::ReadAgain(generation)) => vec![Change::ReadAgain(generation)],
            Some(WatchEvent::Change(version, keys)) => {
                let change = |(key, entry): (Key, Option<protocol::Entry>)| match entry {
                    Some(entry) => Change::Set(shown(&key, &entry)),
                    None => Change::Deleted { key: key.as_str().into(), version },
                };
                keys.into_iter().map(change).collect()
            }
        };
        for change in told {
            is_there = progress(json_of(&change)?);
        }
    }
    Ok(json!({}))
}

fn backup(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let PathArgs { path } = args(asked)?;
    look(on, progress)?;
    let registry = on.runtime().registry().clone();
    let generation = aside(progress, move || registry.backup(&path).map_err(|error| error.to_string()))?;
    Ok(json!({ "generation": generation }))
}

fn restore(on: &CommandContext, asked: Value, progress: Progress<'_>) -> Result<Value, String> {
    let PathArgs { path } = args(asked)?;
    let registry = on.runtime().registry().clone();
    let backup = aside(progress, move || registry.read_backup(&path).map_err(|error| error.to_string()))?;
    let generation = done(on, backup, progress)?;
    Ok(json!({ "generation": generation }))
}

fn status(on: &CommandContext, _: Value, _: Progress<'_>) -> Result<Value, String> {
    let status = on.runtime().registry().status();
    json_of(&Status {
        epoch: status.epoch.0,
        generation: status.generation,
        keys: status.keys,
        awaited: status.awaited.iter().map(|node| on.config.name_of(node)).collect(),
        trouble: status.trouble,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_through_as_they_were() {
        for bytes in [&b"text"[..], b"", b"\xff\x00\x7f", "größe".as_bytes()] {
            assert_eq!(Bytes::of(bytes).bytes().unwrap(), bytes);
        }
        for bad in ["f", "fg", "+1", "ß"] {
            assert!(Bytes::Hex(bad.into()).bytes().is_err(), "{bad}");
        }
    }
}
