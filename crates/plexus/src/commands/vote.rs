//! `plexus vote`: adds and removes voting files of a cluster that runs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use plexus_node::{
    config::{Config, Voting, this_host},
    config_changes::{ConfigChangeArgs, FileArgs},
    control::{ANSWER_WITHIN, Control, ControlError},
    create,
};

use super::{
    ask::{DONE_WITHIN, answering, connect, connect_all, first_of},
    cluster::{Asked, local_nodes},
};
use crate::output;

/// What is done.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    does: Does,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Subcommand)]
enum Does {
    /// Make a voting file and have it vote.
    Add {
        /// The file, which is made, or an empty block device.
        path: PathBuf,
        /// The node that has it on a disk of its own and serves it [default: every node opens it].
        #[arg(long)]
        node: Option<String>,
    },
    /// Have a voting file vote no more. The file itself stays.
    Remove {
        /// Its name or path, as `plexus status` shows them.
        file: String,
    },
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.asked.load()?;
    let (Voting { id, path, .. }, what) = match args.does {
        Does::Add { path, node } => (add(&config, &path, node)?, "votes"),
        Does::Remove { file } => (remove(&config, &file)?, "votes no more"),
    };
    match args.asked.json {
        true => output::json(&serde_json::json!({ "id": id.to_string(), "path": path })),
        false => output::line(&format!(
            "{id} ({}) {what}; cluster.toml says so: copy it to every machine",
            path.display()
        )),
    }
}

fn add(config: &Config, path: &Path, node: Option<String>) -> Result<Voting> {
    if let Some(name) = &node {
        is_here(config, name)?;
    }
    let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
    if path.to_str().is_none() {
        bail!("{}: is not UTF-8, as cluster.toml is; choose another path", path.display());
    }
    let mut nodes = connect_all(config)?;
    let id = create::voting_file(config, &path)?;
    let file = FileArgs { id: id.to_string(), path: path.clone(), node: node.clone() };
    if let Err(why) = tell(&mut nodes, &file) {
        // Nobody was asked to vote there, so nobody ever will.
        create::discard_voting_file(&path)?;
        return Err(why);
    }
    nodes[0].set_timeout(DONE_WITHIN)?;
    config_change(&mut nodes[0], &ConfigChangeArgs::AddFile(file)).with_context(|| {
        let path = path.display();
        format!(
            "{path}: is made, and may vote yet: remove it if `plexus status` does not list it in a minute"
        )
    })?;
    let file = Voting { id, path, node };
    edit(config, |text| format!("{text}\n{}", config.voting_table(&file)))?;
    Ok(file)
}

/// Has every node that must open a file do so: those of this machine whether they are members or not.
fn tell(nodes: &mut [Control], file: &FileArgs) -> Result<()> {
    for node in nodes.iter_mut() {
        node.set_timeout(ANSWER_WITHIN)?;
        config_change(node, &ConfigChangeArgs::PlaceFile(file.clone()))?;
    }
    // It waits as long itself.
    nodes[0].set_timeout(3 * ANSWER_WITHIN)?;
    config_change(&mut nodes[0], &ConfigChangeArgs::TellOfFile(file.clone()))
}

/// Whether a node belongs on this machine: its files are made here.
fn is_here(config: &Config, name: &str) -> Result<()> {
    let (_, node) = config.node(name)?;
    if node.host != this_host() {
        bail!("{name} belongs on {}: run this there, where its disks are", node.host);
    }
    Ok(())
}

fn remove(config: &Config, file: &str) -> Result<Voting> {
    let wanted = file.parse().ok();
    let path = std::path::absolute(file)?;
    let known = config.voting.iter().find(|known| {
        Some(known.id) == wanted || known.path == path || known.path == config.dir.root().join(file)
    });
    let known = known
        .ok_or_else(|| anyhow!("{file} is no voting file of {}; `plexus status` lists them", config.name))?;
    config_change(&mut connect(config, None)?, &ConfigChangeArgs::RemoveFile(known.id.to_string()))?;
    edit(config, |text| without(text, &known.id.to_string()))?;
    Ok(known.clone())
}

/// The text without the table of this voting file.
fn without(text: &str, id: &str) -> String {
    let mut tables: Vec<String> = vec![String::new()];
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with('[') {
            tables.push(String::new());
        }
        tables.last_mut().expect("there is one").push_str(line);
    }
    let is_it =
        |table: &String| table.trim_start().starts_with("[[voting]]") && table.contains(&format!("\"{id}\""));
    tables.into_iter().filter(|table| !is_it(table)).collect()
}

/// Replaces the text of `cluster.toml`, if what comes of it is a configuration.
fn edit(config: &Config, change: impl FnOnce(&str) -> String) -> Result<()> {
    let path = config.dir.config();
    let name = || path.display().to_string();
    let text = change(&std::fs::read_to_string(&path).with_context(name)?);
    Config::parse(&config.dir, &text)?;
    create::replace_config(&config.dir, &text).with_context(name)
}

fn config_change(control: &mut Control, config_change: &ConfigChangeArgs) -> Result<()> {
    control.call("config_change", serde_json::to_value(config_change)?, |_| ())?;
    Ok(())
}

/// Has a node belong to the cluster, or not any more; asks every other node of this machine until one can.
pub(crate) fn change_node(config: &Config, name: &str, config_change: &ConfigChangeArgs) -> Result<()> {
    config.node(name)?;
    let config_change = serde_json::to_value(config_change)?;
    let others =
        local_nodes(config)?.into_iter().map(|node| node.name.as_str()).filter(|other| *other != name);
    let done = first_of(others, |other| {
        answering(config, other)?.call("config_change", config_change.clone(), |_| ())
    });
    done.map(drop).map_err(|why| match why {
        None | Some(ControlError::NotRunning { .. }) => {
            anyhow!("no other node of this machine runs; ask where one does")
        }
        Some(why) => why.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_voting_file_is_taken_out_of_the_text_and_nothing_else() {
        let table = |id: &str| format!("# of {id}\n[[voting]]\nid = \"{id}\"\npath = \"voting/{id}\"\n");
        let text = format!("format = 1\n{}{}\n[[node]]\nname = \"n1\"\n", table("0a"), table("0b"));
        let left = without(&text, "0a");
        assert!(left.contains("\"0b\"") && !left.contains("\"0a\"") && left.contains("[[node]]"), "{left}");
        assert_eq!(without(&text, "0c"), text);
    }
}
