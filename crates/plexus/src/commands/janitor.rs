//! `plexus janitor`: cleans up after the process that started it. See [`plexus_admin::janitor`].

use anyhow::bail;
use plexus_admin::janitor;

/// The arguments of `plexus janitor`: none, since it reads its orders from standard input.
#[derive(clap::Args)]
pub(crate) struct Args {}

/// Serves until standard input closes.
pub(crate) fn run(_: Args) -> anyhow::Result<()> {
    match janitor::serve()? {
        true => Ok(()),
        false => {
            bail!("temporary files or processes could not be removed; remove those listed above by hand")
        }
    }
}
