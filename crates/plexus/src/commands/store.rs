//! `plexus store`: checks the tables of the cluster, and what they are made of.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Subcommand;
use plexus_admin::control::ControlError;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ask::connect, cluster::ClusterOptions};
use crate::output;

/// The interval of progress lines.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// The arguments of `plexus store`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: StoreCommand,
    #[command(flatten)]
    cluster: ClusterOptions,
}

#[derive(Subcommand)]
enum StoreCommand {
    /// Check the tables of all databases while they are in use: trees are in order, indexes have
    /// what the rows have, each block has one owner, and all writers of rows are known. Nothing is
    /// changed.
    Check {
        /// The node that reads everything [default: the first one that answers].
        #[arg(short = 'n', long, value_name = "NODE")]
        node: Option<String>,
    },
}

/// The result of a check.
#[derive(Serialize, Deserialize)]
struct StoreReport {
    tables: u64,
    rows: u64,
    trees: u64,
    pages: u64,
    entries: u64,
    status_blocks: u64,
    freed_status_blocks: u64,
    examined: u64,
    untold: u64,
    faults: Vec<String>,
}

/// Runs `plexus store`.
pub(crate) fn run(args: Args) -> Result<()> {
    let config = args.cluster.load()?;
    let StoreCommand::Check { node } = args.command;
    let mut control = connect(&config, node.as_deref())?;
    let mut told = Instant::now();
    let answer: std::result::Result<Value, ControlError> =
        control.call("store.check", Value::Null, |progress| {
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let what = progress["what"].as_str().unwrap_or_default();
                output::progress(&format!("{} {what} read", progress["count"]));
            }
        });
    let report: StoreReport = serde_json::from_value(answer?)?;
    if args.cluster.json {
        output::json(&report)?;
    } else {
        report.faults.iter().try_for_each(|fault| output::line(fault))?;
        let StoreReport { tables, rows, trees, pages, entries, status_blocks, examined, .. } = &report;
        output::line(&format!(
            "{tables} tables with {rows} rows; {trees} trees, {pages} pages, {entries} entries; \
             {status_blocks} status blocks; {examined} other blocks"
        ))?;
    }
    match report.faults.len() {
        0 if args.cluster.json => Ok(()),
        0 => output::line("no fault"),
        count => bail!("the store has {count} faults: restore a backup, or ask for help"),
    }
}
