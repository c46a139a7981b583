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

/// Exit codes: 0 done, 1 not done (one line on standard error says why), 2 wrong usage, 3 measured, and a threshold missed. `plexus lock` has
/// that of the command that it ran, 125 where it failed itself, 126 or 127 where there is no such command to be run.
fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Where standard error is closed the exit code must do.
            let _ = error.print();
            return if error.use_stderr() { commands::wrong_usage().into() } else { ExitCode::SUCCESS };
        }
    };
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(ended) = error.downcast_ref::<commands::Ended>() {
                return ExitCode::from(ended.0);
            }
            output::error(&error);
            match error.downcast_ref::<commands::Failed>() {
                Some(failed) => ExitCode::from(failed.code),
                None if error.is::<commands::Missed>() => ExitCode::from(3),
                None => ExitCode::FAILURE,
            }
        }
    }
}
