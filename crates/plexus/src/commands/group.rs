//! `plexus group`: scripts as members of groups.

use anyhow::Result;
use clap::Subcommand;
use plexus_node::{grouping::GroupEvent, registry::Bytes};
use serde_json::{Value, json};

use super::{
    ask::{connect, follow, wait_ms},
    cluster::Asked,
};
use crate::output;

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
    /// Print who is in a group and what is said there, in the order that all members are told, until it is interrupted.
    Watch {
        /// Any name of 1 to 64 bytes that begins neither with `plexus ` nor `barrier:`; a group is there as long as it has members.
        group: String,
    },
    /// Say something to all members of a group.
    Send {
        /// The group.
        group: String,
        /// What: text of 16,384 bytes at most.
        text: String,
    },
    /// Wait until so many have come to a barrier, and go on together; one that ends before has not come.
    Barrier {
        /// Any name of 1 to 56 bytes.
        name: String,
        /// How many have to come, this one too.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=256))]
        members: u64,
        /// Wait no longer than so many seconds.
        #[arg(long = "wait", value_name = "SECONDS", value_parser = wait_ms)]
        wait_ms: Option<u64>,
    },
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.asked.load()?;
    let mut control = connect(&config, args.node.as_deref())?;
    let as_json = args.asked.json;
    match args.does {
        Does::Watch { group } => {
            follow(control, "group.watch", json!({ "group": group }), |event| told(event, as_json, said))
        }
        Does::Send { group, text } => {
            let asked = json!({ "group": group, "value": Bytes::Text(text) });
            control.call("group.send", asked, |_| ())?;
            if as_json { output::json(&json!({})) } else { Ok(()) }
        }
        Does::Barrier { name, members, wait_ms } => {
            let asked = json!({ "barrier": name, "members": members, "wait_ms": wait_ms });
            let come = |event: GroupEvent| {
                if let GroupEvent::View { members: come, .. } = event {
                    output::progress(&format!("{} of {members}: {}", come.len(), come.join(" ")));
                }
                Ok(())
            };
            // Whether anybody reads who has come or not: the others wait for this one.
            let mut said = Ok(());
            control.set_timeout(None)?;
            control.call("group.barrier", asked, |event| {
                if said.is_ok() {
                    said = told(event, as_json, come);
                }
            })?;
            said
        }
    }
}

/// Hands on what a member is told.
fn told(event: Value, json: bool, say: impl Fn(GroupEvent) -> Result<()>) -> Result<()> {
    if json { output::json_line(&event) } else { say(serde_json::from_value(event)?) }
}

fn said(event: GroupEvent) -> Result<()> {
    match event {
        GroupEvent::View { number, members } => {
            output::line(&format!("members ({number}): {}", members.join(" ")))
        }
        GroupEvent::Message { from, value } => output::line(&format!("{from}: {}", output::shown(&value))),
    }
}
