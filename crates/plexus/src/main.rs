//! The command line of Plexus.

mod commands;
mod demo;
mod output;

use std::process::ExitCode;

use clap::Parser;

/// Makes a handful of Linux servers work as one machine.
#[derive(Parser)]
#[command(name = "plexus", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
}

/// Exit codes: 0 done, 1 not done (one line on standard error says why), 2 wrong usage, 3 measured, and a threshold missed; `plexus lock` has
/// that of the command that it ran.
fn main() -> ExitCode {
    match Cli::parse().command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(ended) = error.downcast_ref::<commands::Ended>() {
                return ExitCode::from(ended.0);
            }
            output::error(&error);
            if error.is::<commands::Missed>() { ExitCode::from(3) } else { ExitCode::FAILURE }
        }
    }
}
