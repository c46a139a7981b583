//! `plexus registry`: what the cluster knows about itself, to be read, changed, watched, backed up and restored.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Subcommand;
use plexus_node::{
    control::{ANSWER_WITHIN, Control, Seen},
    registry::{Bytes, Change, Entry, Status},
};
use plexus_observe::show;
use serde_json::{Value, json};

use super::{
    ask::{connect, follow},
    cluster::{Asked, local_nodes},
};
use crate::output;

/// Bytes that a table shows of a value.
const SHOWN: usize = 60;

/// Bytes that are read of a file for a value: more than any may have, so that the registry says how many are possible.
const READ: u64 = 1 << 20;

/// What is done, and with which cluster.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    does: Does,
    #[command(flatten)]
    asked: Asked,
    /// The node to ask [default: the first of this machine that answers].
    #[arg(long, global = true)]
    node: Option<String>,
}

#[derive(Subcommand)]
enum Does {
    #[command(flatten)]
    AtOne(AtOne),
    /// Show how the registry of each node of this machine stands.
    Status,
}

/// What one node does for all.
#[derive(Subcommand)]
enum AtOne {
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
    /// Set a key; prints its new version.
    Set {
        /// A path such as `nodes/n1/address`.
        key: String,
        /// The value: text of 65,536 bytes at most.
        #[arg(required_unless_present = "file", conflicts_with = "file")]
        value: Option<String>,
        /// The value is what stands in this file; `-`: what comes at the standard input.
        #[arg(long)]
        file: Option<PathBuf>,
        /// Only if the key has this version; 0: only if it is not there.
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Delete a key.
    Delete {
        /// The key.
        key: String,
        /// Only if it has this version.
        #[arg(long, value_name = "N")]
        if_version: Option<u64>,
    },
    /// Print every change of keys that begin with a prefix, until it is interrupted.
    Watch {
        /// The prefix; empty: all keys.
        prefix: String,
        /// Begin with the changes after this generation [default: with the next change].
        #[arg(long, value_name = "GENERATION")]
        from: Option<u64>,
    },
    /// Write everything into a file.
    Backup {
        /// The file; a backup that is there is replaced.
        file: PathBuf,
    },
    /// Make everything what a backup holds.
    Restore {
        /// The file.
        file: PathBuf,
    },
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.asked.load()?;
    match args.does {
        Does::Status => {
            let nodes: Vec<_> = match &args.node {
                Some(name) => vec![config.node(name)?.1.name.as_str()],
                None => local_nodes(&config)?.into_iter().map(|node| node.name.as_str()).collect(),
            };
            status(Seen::of_all(&config.dir, &nodes, "registry.status", ANSWER_WITHIN), args.asked.json)
        }
        Does::AtOne(does) => at_one(connect(&config, args.node.as_deref())?, does, args.asked.json),
    }
}

fn at_one(mut control: Control, does: AtOne, as_json: bool) -> Result<()> {
    match does {
        AtOne::Get { key } => {
            let entry = control.call("registry.get", json!({ "key": key }), |_| ())?;
            if as_json {
                return output::json(&entry);
            }
            match serde_json::from_value::<Entry>(entry)?.value {
                Bytes::Text(text) => output::line(&text),
                value => output::bytes(&value.bytes().map_err(anyhow::Error::msg)?),
            }
        }
        AtOne::List { prefix } => list(&mut control, &prefix, as_json),
        AtOne::Set { key, value, file, if_version } => {
            let value = match (value, file) {
                (Some(text), _) => Bytes::Text(text),
                (None, Some(file)) => Bytes::of(&read(&file)?),
                (None, None) => bail!("no value"),
            };
            let asked = json!({ "key": key, "value": value, "if_version": if_version });
            let answer = control.call("registry.set", asked, |_| ())?;
            done(&answer, as_json, &format!("{key}: version {}", answer["version"]))
        }
        AtOne::Delete { key, if_version } => {
            let answer =
                control.call("registry.delete", json!({ "key": key, "if_version": if_version }), |_| ())?;
            done(&answer, as_json, &format!("{key}: deleted"))
        }
        AtOne::Watch { prefix, from } => {
            let say = |news| if as_json { output::json_line(&news) } else { told(news) };
            follow(control, "registry.watch", json!({ "prefix": prefix, "from": from }), say)
        }
        AtOne::Backup { file } => {
            let asked = json!({ "path": std::path::absolute(&file)? });
            let answer = control.call("registry.backup", asked, |_| ())?;
            let said = format!("{}: the registry as of generation {}", file.display(), answer["generation"]);
            done(&answer, as_json, &said)
        }
        AtOne::Restore { file } => {
            let asked = json!({ "path": std::path::absolute(&file)? });
            let answer = control.call("registry.restore", asked, |_| ())?;
            let said = format!("{}: restored as generation {}", file.display(), answer["generation"]);
            done(&answer, as_json, &said)
        }
    }
}

fn done(answer: &Value, json: bool, said: &str) -> Result<()> {
    if json { output::json(answer) } else { output::line(said) }
}

/// What a file holds, but no more of it than shows that it is too long.
fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = match path.to_str() {
        Some("-") => std::io::stdin().lock().take(READ).read_to_end(&mut bytes),
        _ => File::open(path).and_then(|file| file.take(READ).read_to_end(&mut bytes)),
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
        return output::line(if prefix.is_empty() { "no keys" } else { "no keys begin with that" });
    }
    let mut table = show::Table::new(["key", "value", "version"]).left(2);
    for Entry { key, version, value } in entries {
        table.row([key, short(&value), version.to_string()]);
    }
    output::line(table.to_string().trim_end())
}

fn short(value: &Bytes) -> String {
    let mut shown = output::shown(value);
    if let Some((end, _)) = shown.char_indices().nth(SHOWN) {
        shown.replace_range(end.., "...");
    }
    shown
}

fn told(news: Value) -> Result<()> {
    if let Some(from) = news.get("watching") {
        output::progress(&format!("changes after generation {from}:"));
        return Ok(());
    }
    match serde_json::from_value(news)? {
        Change::Set(Entry { key, version, value }) => {
            output::line(&format!("{key} (version {version}): {}", short(&value)))
        }
        Change::Deleted { key, version } => output::line(&format!("{key}: deleted in generation {version}")),
        Change::ReadAnew(generation) => output::line(&format!(
            "changes were missed, or all was restored: list anew, generation {generation}"
        )),
    }
}

fn status(all: Vec<(String, Seen<Status>)>, json: bool) -> Result<()> {
    if json {
        let one = |(node, seen): &(String, Seen<Status>)| match seen {
            Seen::Alive(status) => json!({ "node": node, "registry": status }),
            Seen::Silent(why) => json!({ "node": node, "state": seen.state(), "why": why }),
            Seen::Down => json!({ "node": node, "state": seen.state() }),
        };
        return output::json(&all.iter().map(one).collect::<Vec<_>>());
    }
    let mut table = show::Table::new(["node", "epoch", "generation", "keys", "waits for"]).left(1);
    let mut said = Vec::new();
    for (node, seen) in all {
        match seen {
            Seen::Alive(status) => {
                let generation = status.generation.map_or("none yet".into(), |number| number.to_string());
                let row = [status.epoch.to_string(), generation, status.keys.to_string()];
                said.extend(status.trouble.iter().map(|what| format!("{node}: {what}")));
                table.row([node].into_iter().chain(row).chain([status.awaited.join(" ")]));
            }
            Seen::Silent(why) => {
                table.row([node, "silent".into()]);
                said.push(why);
            }
            Seen::Down => table.row([node, "down".into()]),
        }
    }
    output::line(table.to_string().trim_end())?;
    said.iter().try_for_each(|line| output::line(line))
}
