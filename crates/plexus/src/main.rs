//! The command line of Plexus.

mod commands;
mod demo;
mod output;
mod process;

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser};

/// Rows, messages and pages take many short pieces of memory: it is faster than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Makes a handful of Linux servers work as one machine.
#[derive(Parser)]
#[command(name = "plexus", version, propagate_version = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: commands::Command,
    /// The cluster's directory, for each command that works on a cluster.
    #[arg(short = 'C', value_name = "DIR")]
    _dir: Option<PathBuf>,
    /// Print the result as JSON, for each command that can.
    #[arg(long = "json")]
    _json: bool,
}

/// Runs the command and returns its exit code: 0 for success, 1 for a failure (one line on standard
/// error gives the reason), 2 for wrong usage, 3 for a measurement that misses a threshold. A node
/// returns 2 for an invalid configuration, 3 after an eviction, 4 if it was removed from the
/// cluster, and 5 if it was told to end and could not hand everything back.
///
/// `plexus lock` returns the code of the command that it runs: 125 if it fails itself, 126 or 127
/// if the command cannot be run or does not exist.
fn main() -> ExitCode {
    process::reset_signals();
    let mut cli = Cli::command();
    let words = commands::behind_command(&cli, std::env::args_os());
    let parsed = cli.try_get_matches_from_mut(&words);
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(mut error) => {
            let command = words.get(1).map(|word| word.to_string_lossy()).unwrap_or_default();
            commands::explain_old_form(&mut error, &command);
            // If standard error is closed, the exit code is the only report.
            let _ = error.print();
            let code = commands::wrong_usage(&command).into();
            return if error.use_stderr() { code } else { ExitCode::SUCCESS };
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
