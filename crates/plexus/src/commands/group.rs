//! `plexus group`: scripts as members of groups.

use anyhow::{Result, bail};
use clap::Subcommand;
use plexus_node::{control::Control, grouping::GroupEvent, registry::Bytes};
use serde_json::{Value, json};

use super::cluster::{Asked, connect};
use crate::output;

/// What is done, and with which cluster.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    does: Does,
    #[command(flatten)]
    asked: Asked,
    /// The node to ask [default: the first of this machine that runs].
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
        #[arg(long, value_name = "SECONDS")]
        wait: Option<f64>,
    },
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.asked.load()?;
    let mut control = connect(&config, args.node.as_deref())?;
    let as_json = args.asked.json;
    match args.does {
        Does::Watch { group } => told(&mut control, "group.watch", json!({ "group": group }), as_json, said),
        Does::Send { group, text } => {
            let asked = json!({ "group": group, "value": Bytes::Text(text) });
            control.call("group.send", asked, |_| ())?;
            if as_json { output::json(&json!({})) } else { Ok(()) }
        }
        Does::Barrier { name, members, wait } => {
            let wait_ms = match wait {
                Some(seconds) if !(0.001..=1e9).contains(&seconds) => {
                    bail!("--wait {seconds}: use 0.001 or more")
                }
                wait => wait.map(|seconds| (seconds * 1e3) as u64),
            };
            let asked = json!({ "barrier": name, "members": members, "wait_ms": wait_ms });
            let come = |event: GroupEvent| {
                if let GroupEvent::View { members: come, .. } = event {
                    output::progress(&format!("{} of {members}: {}", come.len(), come.join(" ")));
                }
                Ok(())
            };
            told(&mut control, "group.barrier", asked, as_json, come)
        }
    }
}

/// Hands on what a member is told, until nobody listens any more or it is over.
fn told(
    control: &mut Control,
    command: &str,
    asked: Value,
    json: bool,
    say: impl Fn(GroupEvent) -> Result<()>,
) -> Result<()> {
    let mut said = Ok(());
    control.call(command, asked, |event| {
        if said.is_ok() {
            said = match json {
                true => output::json_line(&event),
                false => serde_json::from_value(event).map_err(Into::into).and_then(&say),
            };
        }
    })?;
    said
}

fn said(event: GroupEvent) -> Result<()> {
    match event {
        GroupEvent::View { number, members } => {
            output::line(&format!("members ({number}): {}", members.join(" ")))
        }
        GroupEvent::Message { from, value: Bytes::Text(text) } => {
            output::line(&format!("{from}: {}", plain(&text)))
        }
        GroupEvent::Message { from, value: Bytes::Hex(digits) } => {
            output::line(&format!("{from}: 0x{digits}"))
        }
    }
}

/// Without what a terminal would obey.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() {
            true => plain.extend(letter.escape_default()),
            false => plain.push(letter),
        }
    }
    plain
}
