//! The command line of the project's own commands.

use std::{
    path::Path,
    process::{self, ExitCode},
};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use xtask::{command, interconnect, tidy, verify};

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The gate: formatting, house rules, lints, documentation, tests, licences.
    Verify,
    /// The house rules alone.
    Tidy {
        /// Copy the layouts from the code into docs/formats.md first.
        #[arg(long)]
        fix: bool,
    },
    /// Runs the protocols in the simulator, one cluster for each seed.
    Sim(Sim),
    /// Real fail-overs between two processes in network namespaces, counted (as root).
    Torture {
        /// How many.
        #[arg(long, default_value_t = 200)]
        failovers: u64,
    },
    /// Real faults at random on two processes that talk all the time (as root).
    Soak {
        /// For so long.
        #[arg(long, default_value_t = 60)]
        minutes: u64,
        /// Which faults, and when.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Benchmarks beside peers.
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Args)]
struct Sim {
    /// How many seeds.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long)]
    from: Option<u64>,
    /// Only this scenario.
    #[arg(long)]
    scenario: Option<String>,
}

#[derive(Subcommand)]
enum Bench {
    /// The interconnect beside UCX, Open MPI, libfabric, plain sockets and the machine's limits, in turn in one run.
    Interconnect(interconnect::Options),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let root = xtask::root();
    match command {
        Command::Verify => verify::run(&root),
        Command::Tidy { fix } => {
            if fix {
                tidy::fix(&root)?;
            }
            verify::tidy_tree(&root)
        }
        Command::Torture { failovers } => {
            command::run(checks(&root, "torture").args(["failovers", &failovers.to_string()]))
        }
        Command::Soak { minutes, seed } => {
            let seconds = (minutes * 60).to_string();
            command::run(checks(&root, "torture").args(["soak", &seconds, &seed.to_string()]))
        }
        Command::Sim(sim) => {
            let mut cargo = checks(&root, "sim");
            cargo.args(["--seeds", &sim.seeds.to_string()]);
            for (name, value) in
                [("--from", sim.from.map(|seed| seed.to_string())), ("--scenario", sim.scenario)]
            {
                cargo.args(value.iter().flat_map(|value| [name, value]));
            }
            command::run(&mut cargo)
        }
        Command::Bench(Bench::Interconnect(options)) => interconnect::run(&root, &options),
    }
}

/// A program of `plexus-checks`, to be built and run.
fn checks(root: &Path, name: &str) -> process::Command {
    let mut cargo = command::cargo(root);
    cargo.args(["run", "--quiet", "--release", "--package", "plexus-checks", "--bin", name, "--"]);
    cargo
}
