//! `plexus registry`: reads, changes, watches, backs up and restores the registry.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use plexus_admin::control::{ANSWER_WITHIN, Control, ControlError, Seen};
use plexus_node::registry::{Bytes, Change, Entry, Status};
use plexus_observe::show;
use serde_json::{Value, json};

use super::{
    ask::{connect, follow},
    cluster::{ClusterOptions, local_nodes},
};
use crate::output;

/// The number of characters of a value that a table shows.
const SHOWN_CHARS: usize = 60;

/// The bytes read from a value's file: more than a value may have, so that the registry reports the
/// limit.
const READ_LIMIT: u64 = 1 << 20;

/// The arguments of `plexus registry`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: RegistryCommand,
    #[command(flatten)]
    cluster: ClusterOptions,
    /// The node to ask [default: the first of this machine that answers].
    #[arg(long, global = true)]
    node: Option<String>,
}

#[derive(Subcommand)]
enum RegistryCommand {
    #[command(flatten)]
    OneNodeCommand(OneNodeCommand),
    /// Show the state of the registry on each node of this machine.
    Status,
}

/// The commands that one node runs for the whole cluster.
#[derive(Subcommand)]
enum OneNodeCommand {
    /// Print the value of a key.
    Get {
        /// A path such as `nodes/n1/address`.
        key: String,
    },
    /// Print all keys that begin with a prefix, with versions and values.
    List {
        /// The prefix [default: all keys].
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Set a key and print its new version.
    Set {
        /// A path such as `nodes/n1/address`.
        key: String,
        /// The value: text of at most 65,536 bytes.
        #[arg(required_unless_present = "file", conflicts_with = "file")]
        value: Option<String>,
        /// Read the value from this file, or from standard input for `-`.
        #[arg(long)]
        file: Option<PathBuf>,
        /// Set the key only if it has this version; 0 means that it must not exist.
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Delete a key.
    Delete {
        /// The key.
        key: String,
        /// Delete the key only if it has this version.
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Print every change of keys that begin with a prefix, until interrupted.
    Watch {
        /// The prefix; an empty one matches all keys.
        prefix: String,
        /// Begin with the changes after this generation [default: with the next change].
        #[arg(long, value_name = "GENERATION")]
        from: Option<u64>,
    },
    /// Write the whole registry into a file.
    Backup {
        /// The file; an existing backup is replaced.
        file: PathBuf,
    },
    /// Replace the whole registry with a backup.
    Restore {
        /// The file.
        file: PathBuf,
    },
}

/// Runs `plexus registry`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    match args.command {
        RegistryCommand::Status => {
            let nodes: Vec<_> = match &args.node {
                Some(name) => vec![config.node(name)?.1.name.as_str()],
                None => local_nodes(&config)?.into_iter().map(|node| node.name.as_str()).collect(),
            };
            status(Seen::of_all(&config.dir, &nodes, "registry.status", ANSWER_WITHIN), args.cluster.json)
        }
        RegistryCommand::OneNodeCommand(command) => {
            run_on_node(connect(&config, args.node.as_deref())?, command, args.cluster.json)
        }
    }
}

fn run_on_node(mut control: Control, command: OneNodeCommand, as_json: bool) -> Result<()> {
    match command {
        OneNodeCommand::Get { key } => {
            let entry = control.call("registry.get", json!({ "key": key }), |_| ())?;
            if as_json {
                return output::json(&entry);
            }
            match serde_json::from_value::<Entry>(entry)?.value {
                Bytes::Text(text) => output::line(&text),
                value => output::bytes(&value.bytes().map_err(anyhow::Error::msg)?),
            }
        }
        OneNodeCommand::List { prefix } => list(&mut control, &prefix, as_json),
        OneNodeCommand::Set { key, value, file, if_version } => {
            let value = match (value, file) {
                (Some(text), _) => Bytes::Text(text),
                (None, Some(file)) => Bytes::of(&read(&file)?),
                (None, None) => bail!("no value"),
            };
            let request = json!({ "key": key, "value": value, "if_version": if_version });
            let answer = change(&mut control, "registry.set", request)?;
            done(&answer, as_json, &format!("{key}: version {}", answer["version"]))
        }
        OneNodeCommand::Delete { key, if_version } => {
            let request = json!({ "key": key, "if_version": if_version });
            let answer = change(&mut control, "registry.delete", request)?;
            done(&answer, as_json, &format!("{key}: deleted"))
        }
        OneNodeCommand::Watch { prefix, from } => {
            let print = |update| if as_json { output::json_line(&update) } else { print_change(update) };
            follow(control, "registry.watch", json!({ "prefix": prefix, "from": from }), print)
        }
        OneNodeCommand::Backup { file } => {
            let request = json!({ "path": std::path::absolute(&file)? });
            let answer = control.call("registry.backup", request, |_| ())?;
            let text = format!("{}: the registry as of generation {}", file.display(), answer["generation"]);
            done(&answer, as_json, &text)
        }
        OneNodeCommand::Restore { file } => {
            let request = json!({ "path": std::path::absolute(&file)? });
            let answer = change(&mut control, "registry.restore", request)?;
            let text = format!("{}: restored as generation {}", file.display(), answer["generation"]);
            done(&answer, as_json, &text)
        }
    }
}

/// Calls a command that changes the registry. Without an answer its outcome is unknown.
fn change(control: &mut Control, command: &str, request: Value) -> Result<Value> {
    control.call(command, request, |_| ()).map_err(|error| match error {
        ControlError::Silent { .. } | ControlError::Ended { .. } | ControlError::Dropped { .. } => {
            anyhow!("outcome unknown: {error}; `plexus registry get` shows whether the change was made")
        }
        error => error.into(),
    })
}

fn done(answer: &Value, json: bool, text: &str) -> Result<()> {
    if json { output::json(answer) } else { output::line(text) }
}

/// Reads a file up to a limit beyond the longest valid value.
fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().lock().take(READ_LIMIT).read_to_end(&mut bytes),
        _ => File::open(path).and_then(|file| file.take(READ_LIMIT).read_to_end(&mut bytes)),
    };
    read.with_context(|| path.display().to_string())?;
    Ok(bytes)
}

fn list(control: &mut Control, prefix: &str, json: bool) -> Result<()> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut bad = None;
    control.call("registry.list", json!({ "prefix": prefix }), |more| {
        match serde_json::from_value::<Vec<Entry>>(more) {
            Ok(more) => entries.extend(more),
            Err(error) => bad = Some(error),
        }
    })?;
    if let Some(error) = bad {
        return Err(error.into());
    }
    if json {
        return output::json(&entries);
    }
    if entries.is_empty() {
        return output::line(if prefix.is_empty() { "no keys" } else { "no keys begin with this prefix" });
    }
    let mut table = show::Table::new(["key", "value", "version"]).left(2);
    for Entry { key, version, value } in entries {
        table.row([key, short(&value), version.to_string()]);
    }
    output::line(table.to_string().trim_end())
}

fn short(value: &Bytes) -> String {
    let mut shown = output::shown(value);
    if let Some((end, _)) = shown.char_indices().nth(SHOWN_CHARS) {
        shown.replace_range(end.., "...");
    }
    shown
}

fn print_change(update: Value) -> Result<()> {
    if let Some(from) = update.get("watching") {
        output::progress(&format!("changes after generation {from}:"));
        return Ok(());
    }
    match serde_json::from_value(update)? {
        Change::Set(Entry { key, version, value }) => {
            output::line(&format!("{key} (version {version}): {}", short(&value)))
        }
        Change::Deleted { key, version } => output::line(&format!("{key}: deleted in generation {version}")),
        Change::ReadAgain(generation) => output::line(&format!(
            "changes were missed, or the registry was restored: list the keys again, generation {generation}"
        )),
    }
}

fn status(all: Vec<(String, Seen<Status>)>, json: bool) -> Result<()> {
    if json {
        let one = |(node, seen): &(String, Seen<Status>)| match seen {
            Seen::Alive(status) => json!({ "node": node, "registry": status }),
            Seen::Silent(why) => json!({ "node": node, "state": seen.state(), "why": why }),
            _ => json!({ "node": node, "state": seen.state() }),
        };
        return output::json(&all.iter().map(one).collect::<Vec<_>>());
    }
    let mut table = show::Table::new(["node", "epoch", "generation", "keys", "waits for"]).left(1);
    let mut notes = Vec::new();
    for (node, seen) in all {
        match seen {
            Seen::Alive(status) => {
                let generation = status.generation.map_or("none yet".into(), |number| number.to_string());
                let row = [status.epoch.to_string(), generation, status.keys.to_string()];
                notes.extend(status.trouble.iter().map(|trouble| format!("{node}: {trouble}")));
                table.row([node].into_iter().chain(row).chain([status.awaited.join(" ")]));
            }
            Seen::Silent(why) => {
                table.row([node, "silent".into()]);
                notes.push(why);
            }
            _ => table.row([node, seen.state().into()]),
        }
    }
    output::line(table.to_string().trim_end())?;
    notes.iter().try_for_each(|line| output::line(line))
}
