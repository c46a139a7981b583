//! `plexus group`: lets scripts take part in groups.

use anyhow::Result;
use clap::Subcommand;
use plexus_node::{grouping::GroupEvent, registry::Bytes};
use serde_json::{Value, json};

use super::{
    ask::{connect, follow, wait_ms},
    cluster::ClusterOptions,
};
use crate::output;

/// The arguments of `plexus group`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: GroupCommand,
    #[command(flatten)]
    cluster: ClusterOptions,
    /// The node to ask [default: the first of this machine that answers].
    #[arg(long, global = true)]
    node: Option<String>,
}

#[derive(Subcommand)]
enum GroupCommand {
    /// Print the members and messages of a group, in the order that all members see, until
    /// interrupted.
    Watch {
        /// The group: a name of 1 to 64 bytes that begins neither with `plexus ` nor `barrier:`. A
        /// group exists while it has members.
        group: String,
    },
    /// Send a message to all members of a group.
    Send {
        /// The group.
        group: String,
        /// The message: text of at most 16,384 bytes.
        text: String,
    },
    /// Wait until N clients have reached a barrier. A client that ends before does not count.
    Barrier {
        /// The barrier: a name of 1 to 56 bytes.
        name: String,
        /// Number of clients that must reach the barrier, including this one.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
        members: u64,
        /// Wait at most this many seconds.
        #[arg(long = "wait", value_name = "SECONDS", value_parser = wait_ms)]
        wait_ms: Option<u64>,
    },
}

/// Runs `plexus group`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    let mut control = connect(&config, args.node.as_deref())?;
    let as_json = args.cluster.json;
    match args.command {
        GroupCommand::Watch { group } => follow(control, "group.watch", json!({ "group": group }), |event| {
            print_event(event, as_json, print_text)
        }),
        GroupCommand::Send { group, text } => {
            let request = json!({ "group": group, "value": Bytes::Text(text) });
            control.call("group.send", request, |_| ())?;
            if as_json { output::json(&json!({})) } else { Ok(()) }
        }
        GroupCommand::Barrier { name, members, wait_ms } => {
            let request = json!({ "barrier": name, "members": members, "wait_ms": wait_ms });
            let arrived = |event: GroupEvent| {
                if let GroupEvent::View { members: present, .. } = event {
                    output::progress(&format!("{} of {members}: {}", present.len(), present.join(" ")));
                }
                Ok(())
            };
            // Goes on when the output has no reader: the others wait for this client.
            let mut printed = Ok(());
            control.set_timeout(None)?;
            control.call("group.barrier", request, |event| {
                if printed.is_ok() {
                    printed = print_event(event, as_json, arrived);
                }
            })?;
            printed
        }
    }
}

/// Prints one event of a group, as JSON or with `print`.
fn print_event(event: Value, json: bool, print: impl Fn(GroupEvent) -> Result<()>) -> Result<()> {
    if json { output::json_line(&event) } else { print(serde_json::from_value(event)?) }
}

fn print_text(event: GroupEvent) -> Result<()> {
    match event {
        GroupEvent::View { members, .. } => output::line(&format!("members: {}", members.join(" "))),
        GroupEvent::Message { from, value } => output::line(&format!("{from}: {}", output::shown(&value))),
    }
}
