//! `plexus vote`: adds and removes voting files of a cluster that runs.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use clap::Subcommand;
use plexus_node::{
    config::{Config, parse_voting_id, voting_id},
    control::Control,
    create,
    wishes::{FileArgs, WishArgs},
};

use super::cluster::{Cluster, local_nodes};
use crate::output;

/// What is done.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    does: Does,
    /// Print the voting file as JSON.
    #[arg(long, global = true)]
    json: bool,
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
        /// The cluster's directory [default: $PLEXUS_DIR, or the current one if it is a cluster].
        #[arg(long, value_name = "DIR")]
        cluster: Option<PathBuf>,
    },
    /// Have a voting file vote no more. The file itself stays.
    Remove {
        /// Its name or path, as `plexus status` shows them.
        file: String,
        /// The cluster's directory [default: $PLEXUS_DIR, or the current one if it is a cluster].
        #[arg(long, value_name = "DIR")]
        cluster: Option<PathBuf>,
    },
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<()> {
    let (id, path, what) = match args.does {
        Does::Add { path, node, cluster } => add(&Cluster::at(cluster).load()?, &path, node)?,
        Does::Remove { file, cluster } => remove(&Cluster::at(cluster).load()?, &file)?,
    };
    match args.json {
        true => output::json(&serde_json::json!({ "id": id, "path": path })),
        false => output::line(&format!(
            "{id} ({}) {what}; cluster.toml says so: copy it to every machine",
            path.display()
        )),
    }
}

fn add(config: &Config, path: &Path, node: Option<String>) -> Result<(String, PathBuf, &'static str)> {
    if let Some(node) = &node {
        config.node(node)?;
    }
    let mut nodes = connect(config)?;
    let path = std::path::absolute(path).with_context(|| path.display().to_string())?;
    let id = create::voting_file(config, &path)?;
    let file = FileArgs { id: voting_id(id), path: path.clone(), node };
    let added = (|| {
        for control in &mut nodes {
            ask(control, &WishArgs::PlaceFile(file.clone()))?;
        }
        ask(&mut nodes[0], &WishArgs::AddFile(file.clone()))
    })();
    if let Err(why) = added {
        // It is of no use to anybody.
        let _ = std::fs::remove_file(&path);
        return Err(why);
    }
    let node = file.node.as_ref().map(|node| format!("node = \"{node}\"\n")).unwrap_or_default();
    let written = toml_string(&path);
    edit(config, |text| format!("{text}\n[[voting]]\nid = \"{}\"\npath = {written}\n{node}", file.id))?;
    Ok((file.id, path, "votes"))
}

fn remove(config: &Config, file: &str) -> Result<(String, PathBuf, &'static str)> {
    let wanted = parse_voting_id(file).ok();
    let path = std::path::absolute(file)?;
    let known = config.voting.iter().find(|known| {
        Some(known.id) == wanted || known.path == path || known.path == config.dir.root().join(file)
    });
    let known = known
        .ok_or_else(|| anyhow!("{file} is no voting file of {}; `plexus status` lists them", config.name))?;
    let id = voting_id(known.id);
    ask(&mut connect(config)?[0], &WishArgs::RemoveFile(id.clone()))?;
    edit(config, |text| without(text, &id))?;
    Ok((id, known.path.clone(), "votes no more"))
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

fn toml_string(path: &Path) -> String {
    format!("{:?}", path.display().to_string())
}

/// Every node of this machine that runs.
fn connect(config: &Config) -> Result<Vec<Control>> {
    let nodes = local_nodes(config)?;
    let nodes: Vec<_> =
        nodes.iter().filter_map(|node| Control::connect(&config.dir, &node.name).ok()).collect();
    if nodes.is_empty() {
        bail!("no node of this machine runs; a cluster votes only while it runs: `plexus up`");
    }
    Ok(nodes)
}

fn ask(control: &mut Control, wish: &WishArgs) -> Result<()> {
    control.call("wish", serde_json::to_value(wish)?, |_| ())?;
    Ok(())
}

/// Has a node belong to the cluster, or not any more; asks every other node of this machine until one can.
pub(crate) fn wish_of_node(config: &Config, name: &str, wish: &WishArgs) -> Result<()> {
    config.node(name)?;
    let others = local_nodes(config)?;
    let mut why = anyhow!("no other node of this machine runs; ask where one does");
    for other in others.iter().filter(|other| other.name != name) {
        let Ok(mut control) = Control::connect(&config.dir, &other.name) else { continue };
        match ask(&mut control, wish) {
            Ok(()) => return Ok(()),
            Err(error) => why = error,
        }
    }
    Err(why)
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
