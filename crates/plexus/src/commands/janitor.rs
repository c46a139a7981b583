//! `plexus janitor`: cleans up after the process that started it. See [`plexus_node::janitor`].

use anyhow::bail;
use plexus_node::janitor;

/// Nothing: it is told what to do over its standard input.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Serves until its input closes.
pub(crate) fn run(_: Args) -> anyhow::Result<()> {
    match janitor::serve()? {
        true => Ok(()),
        false => bail!("something temporary could not be removed; see above, and remove it"),
    }
}
