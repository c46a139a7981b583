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

/// Runs the command and returns its exit code: 0 for success, 1 for a failure (one line on standard
/// error gives the reason), 2 for wrong usage, 3 for a measurement that misses a threshold. A node
/// returns 2 for an invalid configuration, 3 after an eviction, 4 if it was removed from the
/// cluster, and 5 if it was told to end and could not hand everything back.
///
/// `plexus lock` returns the code of the command that it runs: 125 if it fails itself, 126 or 127
/// if the command cannot be run or does not exist.
fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            commands::explain_old_form(&mut error);
            // If standard error is closed, the exit code is the only report.
            let _ = error.print();
            return if error.use_stderr() { commands::wrong_usage().into() } else { ExitCode::SUCCESS };
        }
    };
    match cli.command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if let Some(exit) = error.downcast_ref::<commands::CommandExit>() {
                return ExitCode::from(exit.0);
            }
            output::error(&error);
            match error.downcast_ref::<commands::CommandFailure>() {
                Some(failure) => ExitCode::from(failure.code),
                None if error.is::<commands::MissedThreshold>() => ExitCode::from(3),
                None => ExitCode::FAILURE,
            }
        }
    }
}
