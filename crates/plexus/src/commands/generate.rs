//! `plexus generate`: writes the manual pages and the completions of shells, from the definitions
//! that `--help` prints. Packages are built with it.

use std::path::PathBuf;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

/// The arguments of `plexus generate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The kind of files.
    kind: Kind,
    /// The existing directory for the files.
    dir: PathBuf,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// A page for each command.
    Man,
    /// The completions of bash, zsh and fish.
    Completions,
}

/// Runs `plexus generate`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let mut command = crate::Cli::command();
    let written = match args.kind {
        Kind::Man => clap_mangen::generate_to(command, &args.dir),
        Kind::Completions => [Shell::Bash, Shell::Zsh, Shell::Fish].into_iter().try_for_each(|shell| {
            clap_complete::generate_to(shell, &mut command, "plexus", &args.dir).map(drop)
        }),
    };
    written.with_context(|| format!("{}: writing the files", args.dir.display()))
}
