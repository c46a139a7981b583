//! `plexus down`: writes all changes to disk and stops the nodes of this machine, or all nodes.

use anyhow::bail;
use plexus_admin::{
    config::{Config, this_host},
    down::{self, Down, DownScope},
    launch, supervisor,
};
use plexus_observe::show::count;
use serde_json::json;

use super::{
    ask::answering,
    cluster::{Cluster, local_nodes},
    systemd::Manager,
};
use crate::output;

/// The arguments of `plexus down`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    cluster: Cluster,
    /// Stop the nodes of all machines, through the nodes of this one.
    #[arg(long)]
    all: bool,
    /// Let SQL transactions on this machine end first, for at most so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
    wait: Option<u64>,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Waits for the ends of transactions of SQL sessions on all nodes of this machine.
fn drain(config: &Config, seconds: u64, quiet: bool) {
    if !quiet {
        output::progress(&format!("waits up to {seconds} s for the ends of transactions"));
    }
    let names = local_nodes(config).unwrap_or_default().into_iter().map(|node| node.name.clone());
    let drain = |name: String| {
        let control = answering(config, &name);
        let asked = json!({ "seconds": seconds });
        match control.and_then(|mut control| control.call("sessions.drain", asked, |_| ())) {
            Ok(answer) if !quiet && answer["left"] != 0 => {
                output::progress(&format!("{name}: {} sessions do not end", answer["left"]));
            }
            // A node that does not answer has none.
            _ => {}
        }
    };
    std::thread::scope(|scope| names.for_each(|name| drop(scope.spawn(|| drain(name)))));
}

/// Runs `plexus down`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let config = args.cluster.load()?;
    let scope = match args.all {
        true => DownScope::All,
        false => local_nodes(&config).map(|_| DownScope::Host)?,
    };
    if let Some(seconds) = args.wait {
        drain(&config, seconds, args.json);
    }
    let down = down::take_down(&config, scope, &|name, action| {
        if !args.json {
            output::progress(&format!("{name}: {action}"));
        }
    });
    let others = others(&config, &down);
    let here = this_host();
    let names = config.nodes.iter().filter(|node| node.host == here).map(|node| &node.name);
    let lost: Vec<String> = names.filter_map(|name| without_files(&config, name)).collect();
    if !lost.is_empty() {
        bail!("{}", lost.join("; "));
    }
    for node in config.nodes.iter().filter(|node| node.host == here && !down.left.contains(&node.name)) {
        let waited = supervisor::dismiss(&config.dir, &node.name).map_err(anyhow::Error::msg)?;
        if waited && !args.json && down.ended.iter().all(|ended| ended.name != node.name) {
            output::progress(&format!("{}: does not return", node.name));
        }
    }
    if let Some(manager) = Manager::of(&config).filter(|_| !args.json) {
        let stop = manager.stop_command(&config);
        output::progress(&format!("a node that systemd is about to restart is stopped by `{stop}`"));
    }
    if args.json {
        output::json(&serde_json::to_value(&down)?)?;
    } else if down.ended.is_empty() && down.left.is_empty() {
        let here = if args.all { "" } else { " on this machine" };
        output::line(&format!("{}: no node runs{here}", config.name))?;
    } else if down.clean {
        let written: u64 = down.ended.iter().map(|node| node.written).sum();
        let held: u64 = down.ended.iter().map(|node| node.held).sum();
        output::line(&format!(
            "{}: down{}: {} nodes gave back {} blocks and wrote {} of them; {}",
            config.name,
            if others.is_empty() { String::new() } else { format!(" on {}", this_host()) },
            down.ended.len(),
            count(held),
            count(written),
            match (&down.unrecovered, others.is_empty()) {
                (Some(_), _) => "but not all changes are on disk",
                (None, true) => "everything is on disk",
                (None, false) => "nothing is lost",
            }
        ))?;
    }
    if !args.json {
        others.iter().try_for_each(|line| output::line(line))?;
    }
    if let Some(refused) = down.refused {
        let left = down.left.join(", ");
        bail!("{left} handed everything back but did not end: {refused}; then run `plexus down` again");
    }
    if !down.left.is_empty() {
        let why = down.why.map_or(String::new(), |why| format!(" ({why})"));
        bail!("{} did not end{why}; see its log and end the process by hand", down.left.join(", "));
    }
    if let Some(why) = down.why {
        let then = match config.redo_mib {
            0 => "changes that were not on disk are gone, as there is no redo",
            _ => "the next `plexus up` recovers from redo what is not on disk",
        };
        bail!("down, but not cleanly: {why}; {then}");
    }
    match down.unrecovered {
        Some(why) => bail!("down, but {why}"),
        None => Ok(()),
    }
}

/// Returns a line about a node that runs although its files are gone, if it does.
pub(super) fn without_files(config: &Config, name: &str) -> Option<String> {
    let process = launch::unreachable_process(&config.dir, name)?;
    let run = config.dir.root().join("run");
    Some(format!(
        "{name}: process {process} runs, but its files in {} were removed, so no command reaches it; \
         `kill {process}` ends it in order",
        run.display()
    ))
}

/// Returns a line about the members of other hosts that go on, and one about those that do not.
fn others(config: &Config, down: &Down) -> Vec<String> {
    let named = |names: &[String]| {
        let one = |name: &String| match config.node(name) {
            Ok((_, node)) => format!("{name} on {}", node.host),
            Err(_) => name.clone(),
        };
        names.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let says = [
        (&down.go_on, "going on; `plexus down --all` ends all nodes"),
        (
            &down.end_too,
            "ending too: without the nodes of this machine no majority of the voting files is left",
        ),
    ];
    let said = says.into_iter().filter(|(names, _)| !names.is_empty());
    said.map(|(names, what)| format!("{}: {what}", named(names))).collect()
}
