//! `plexus vote`: adds and removes voting files of a running cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use plexus_admin::{
    config::{Config, Voting, this_host},
    control::{ANSWER_WITHIN, Control, ControlError},
    create,
    status::Status,
};
use plexus_node::config_changes::{ConfigChangeArgs, FileArgs};

use super::{
    ask::{REQUEST_TIMEOUT, answering, connect, connect_all, first_of},
    cluster::{ClusterOptions, local_nodes},
};
use crate::output;

/// The arguments of `plexus vote`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: VoteCommand,
    #[command(flatten)]
    cluster: ClusterOptions,
}

#[derive(Subcommand)]
enum VoteCommand {
    /// Create a voting file and let it vote.
    Add {
        /// The file to create, or an empty block device.
        path: PathBuf,
        /// The node that has the file on its own disk and serves it [default: every node opens it].
        #[arg(long)]
        node: Option<String>,
    },
    /// Remove a voting file from the votes. The file itself stays.
    Remove {
        /// The voting file's name or path, as `plexus status` shows them.
        file: String,
    },
}

/// Runs `plexus vote`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load_as_owner()?;
    let (Voting { id, path, .. }, state) = match args.command {
        VoteCommand::Add { path, node } => (add(&config, &path, node)?, "votes"),
        VoteCommand::Remove { file } => (remove(&config, &file)?, "no longer votes"),
    };
    match args.cluster.json {
        true => output::json(&serde_json::json!({ "id": id.to_string(), "path": path })),
        false => output::line(&format!(
            "{id} ({}) {state}; cluster.toml was changed: copy it to every machine",
            path.display()
        )),
    }
}

fn add(config: &Config, path: &Path, node: Option<String>) -> Result<Voting> {
    if let Some(name) = &node {
        check_is_local(config, name)?;
    }
    let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
    if path.to_str().is_none() {
        bail!("{}: the path is not UTF-8, as cluster.toml requires; use another path", path.display());
    }
    let mut nodes = connect_all(config)?;
    let (id, is_new) = create::voting_file(config, &path)?;
    let file = Voting { id, path, node };
    let known = seen(config, &mut nodes[0])?.into_iter().find(|known| known.id == id);
    let listed = config.voting.iter().find(|listed| listed.id == id);
    if let Some(known) = listed.or(known.as_ref()).filter(|known| known.node != file.node) {
        let by = known.node.as_deref().map_or("every node opens it".into(), |by| format!("{by} serves it"));
        bail!("{}: is the voting file {id} already, and {by}; remove it first", file.path.display());
    }
    if let Some(listed) =
        listed.filter(|listed| listed.path.canonicalize().ok() != file.path.canonicalize().ok())
    {
        let (path, at) = (file.path.display(), listed.path.display());
        bail!(
            "{path}: is a copy of the voting file {id}, which cluster.toml lists as {at}; use another path"
        );
    }
    let asked = FileArgs { id: id.to_string(), path: file.path.clone(), node: file.node.clone() };
    // cluster.toml has the file before any node votes there: a node that starts must find it.
    let prepared = announce(&mut nodes, &asked).and_then(|()| match listed {
        Some(_) => Ok(()),
        None => edit(config, |text| format!("{text}\n{}", config.voting_table(&file))),
    });
    if let Err(why) = prepared {
        let is_listed = |now: Config| now.voting.iter().any(|listed| listed.id == id);
        if is_new && !Config::load(&config.dir).is_ok_and(is_listed) {
            // No node was asked to vote there, so none ever will.
            create::discard_voting_file(&file.path)?;
        }
        return Err(why);
    }
    nodes[0].set_timeout(REQUEST_TIMEOUT)?;
    config_change(&mut nodes[0], &ConfigChangeArgs::AddFile(asked)).with_context(|| {
        let path = file.path.display();
        format!(
            "{path}: is in cluster.toml and may still become a voting file; run this command again, or take it back with `plexus vote remove {id}`"
        )
    })?;
    Ok(file)
}

/// Returns the voting files that a node knows, as `plexus status` shows them.
fn seen(config: &Config, node: &mut Control) -> Result<Vec<Voting>> {
    let status: Status = serde_json::from_value(node.call("status", serde_json::Value::Null, |_| ())?)?;
    let files = status.runtime.membership.into_iter().flat_map(|membership| membership.files);
    let name = |host: u8| config.nodes.get(usize::from(host)).map_or("?".into(), |node| node.name.clone());
    let known = files.filter_map(|file| {
        let path = file.path.unwrap_or_default().into();
        Some(Voting { id: file.id.parse().ok()?, path, node: file.host.map(name) })
    });
    Ok(known.collect())
}

/// Makes every node that must open a file do so, on this machine also nodes that are not members.
fn announce(nodes: &mut [Control], file: &FileArgs) -> Result<()> {
    for node in nodes.iter_mut() {
        node.set_timeout(ANSWER_WITHIN)?;
        config_change(node, &ConfigChangeArgs::PlaceFile(file.clone()))?;
    }
    // The node itself waits for the answers of the others.
    nodes[0].set_timeout(3 * ANSWER_WITHIN)?;
    config_change(&mut nodes[0], &ConfigChangeArgs::TellOfFile(file.clone()))
}

/// Checks that a node belongs on this machine, where its files are created.
pub(crate) fn check_is_local(config: &Config, name: &str) -> Result<()> {
    let (_, node) = config.node(name)?;
    if node.host != this_host() {
        bail!("{name} belongs on {}; run this command there", node.host);
    }
    Ok(())
}

fn remove(config: &Config, file: &str) -> Result<Voting> {
    let wanted = file.parse().ok();
    let path = std::path::absolute(file)?;
    let mut node = connect(config, None)?;
    // A file may vote and not be listed, or the other way round, after an interrupted command.
    let known = config.voting.iter().cloned().chain(seen(config, &mut node)?).find(|known| {
        Some(known.id) == wanted || known.path == path || known.path == config.dir.root().join(file)
    });
    let known = known
        .ok_or_else(|| anyhow!("{file} is not a voting file of {}; see `plexus status`", config.name))?;
    config_change(&mut node, &ConfigChangeArgs::RemoveFile(known.id.to_string()))?;
    edit(config, |text| without(text, &known.id.to_string())).with_context(|| {
        format!("{} no longer votes, and cluster.toml may still list it; run this command again", known.id)
    })?;
    Ok(known)
}

/// Returns the text without the table of this voting file.
fn without(text: &str, id: &str) -> String {
    let mut tables: Vec<String> = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with('[') {
            tables.push(String::new());
        }
        tables.last_mut().expect("the list starts with one element").push_str(line);
    }
    let is_it =
        |table: &String| table.trim_start().starts_with("[[voting]]") && table.contains(&format!("\"{id}\""));
    tables.into_iter().filter(|table| !is_it(table)).collect()
}

/// Replaces the text of `cluster.toml` if the new text is a valid configuration.
fn edit(config: &Config, change: impl FnOnce(&str) -> String) -> Result<()> {
    let path = config.dir.config();
    let name = || path.display().to_string();
    let old = std::fs::read_to_string(&path).with_context(name)?;
    let text = change(&old);
    if text == old {
        return Ok(());
    }
    Config::parse(&config.dir, &text)?;
    create::replace_config(&config.dir, &text).with_context(name)
}

fn config_change(control: &mut Control, config_change: &ConfigChangeArgs) -> Result<()> {
    control.call("config_change", serde_json::to_value(config_change)?, |_| ())?;
    Ok(())
}

/// Adds or removes a node; tries every other node of this machine until one succeeds.
pub(crate) fn change_node(config: &Config, name: &str, config_change: &ConfigChangeArgs) -> Result<()> {
    config.node(name)?;
    let config_change = serde_json::to_value(config_change)?;
    ask_another(config, name, |node| node.call("config_change", config_change.clone(), |_| ()).map(drop))
}

/// Asks the other nodes of this machine than the one called `name`, until one succeeds.
pub(crate) fn ask_another(
    config: &Config,
    name: &str,
    mut ask: impl FnMut(&mut Control) -> Result<(), ControlError>,
) -> Result<()> {
    let others =
        local_nodes(config)?.into_iter().map(|node| node.name.as_str()).filter(|other| *other != name);
    first_of(others, |other| ask(&mut answering(config, other)?)).map_err(|why| match why {
        None | Some(ControlError::NotRunning { .. }) => {
            anyhow!("no other node runs on this machine; run this command where one does")
        }
        Some(why) => why.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_table_of_the_voting_file_is_removed() {
        let table = |id: &str| format!("# of {id}\n[[voting]]\nid = \"{id}\"\npath = \"voting/{id}\"\n");
        let text = format!("format = 1\n{}{}\n[[node]]\nname = \"n1\"\n", table("0a"), table("0b"));
        let left = without(&text, "0a");
        assert!(left.contains("\"0b\"") && !left.contains("\"0a\"") && left.contains("[[node]]"), "{left}");
        assert_eq!(without(&text, "0c"), text);
    }
}
