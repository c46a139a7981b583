//! Explores small scopes for which the tests have no time.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use plexus_checks::{groups, harness::explore::Worlds, registry};

/// Explores every order of events of a small cluster.
#[derive(Parser)]
struct Arguments {
    /// What is explored.
    scope: Scope,
    /// The number of times that nodes end at most.
    #[arg(default_value_t = 2)]
    ends: u8,
}

#[derive(Clone, Copy, ValueEnum)]
enum Scope {
    Registry,
    Groups,
}

fn main() -> ExitCode {
    let Arguments { scope, ends } = Arguments::parse();
    let explored = match scope {
        Scope::Registry => registry::explored::explored(ends, registry::explored::Lie::Nothing),
        Scope::Groups => groups::explored::explored(2, ends, ends, groups::explored::Lie::Nothing),
    };
    match explored {
        Ok(Worlds { all, at_rest }) => {
            println!("{all} worlds, {at_rest} at rest: all of them hold");
            ExitCode::SUCCESS
        }
        Err(what) => {
            println!("{what}");
            ExitCode::FAILURE
        }
    }
}
