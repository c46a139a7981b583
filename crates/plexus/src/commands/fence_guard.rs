//! `plexus fence-guard`: runs a fence command for a node. See [`plexus_node::fence_guard`].

use std::{ffi::OsString, time::Duration};

use plexus_node::fence_guard;

use super::CommandExit;
use crate::output;

/// The arguments of `plexus fence-guard`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The longest time that the command may take, in milliseconds.
    #[arg(long)]
    within_ms: u64,
    /// The fence command.
    #[arg(required = true, last = true)]
    command: Vec<OsString>,
}

/// Runs the command. The reason of a failure goes to standard output.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    match fence_guard::serve(Duration::from_millis(args.within_ms), &args.command) {
        Ok(()) => Ok(()),
        Err(why) => {
            output::line(&why)?;
            Err(CommandExit(1).into())
        }
    }
}
