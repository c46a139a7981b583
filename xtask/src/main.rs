//! The command line of the project's own commands.

use std::{
    path::Path,
    process::{self, ExitCode},
};

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use xtask::{command, executive, interconnect, tidy, verify};

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
    /// Real faults between two processes in network namespaces, counted (as root).
    #[command(args_conflicts_with_subcommands = true)]
    Torture {
        #[command(subcommand)]
        of: Option<Torture>,
        /// How many fail-overs, of every kind of fault in turn; how long traffic stood still is printed beside its goal.
        #[arg(long, default_value_t = 200)]
        failovers: u64,
        /// Instead: how two paths of these rates, in Mbit/s, share what the members send.
        #[arg(long, num_args = 2, value_names = ["MBIT", "MBIT"], conflicts_with = "failovers")]
        shares: Option<Vec<u32>>,
    },
    /// Real faults at random on two processes that talk all the time (as root).
    Soak {
        /// For so long; 0.5 is half a minute.
        #[arg(long, default_value_t = 60.0, value_parser = minutes)]
        minutes: f64,
        /// Which faults, and when.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Benchmarks beside peers.
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Torture {
    /// Instead: nodes on hosts of their own under faults of every sort at random, while clients take locks and change the registry; what they saw is judged.
    Executive {
        /// For so long; 0.5 is half a minute.
        #[arg(long, default_value_t = 2.0, value_parser = minutes)]
        minutes: f64,
        /// Which faults, and when.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Instead of faults: so many times a node leaves and joins again.
        #[arg(long, conflicts_with = "minutes")]
        joins: Option<u64>,
    },
}

#[derive(Args)]
struct Sim {
    /// How many seeds of each scenario [default: 200].
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed [default: 0].
    #[arg(long)]
    from: Option<u64>,
    /// Only this scenario; a name that is none, as `?`, lists them.
    #[arg(long)]
    scenario: Option<String>,
    /// Stop in order after so many seconds, however many seeds that were.
    #[arg(long = "for", value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Instead of seeds: so many fail-overs over paths with a rate and a queue, and how long traffic stood still.
    #[arg(long, conflicts_with_all = ["seeds", "scenario", "seconds"])]
    failovers: Option<u64>,
}

#[derive(Subcommand)]
enum Bench {
    /// The interconnect beside UCX, Open MPI, libfabric, plain sockets and the machine's limits, in turn in one run.
    Interconnect(interconnect::Options),
    /// The executive beside etcd, Redis, flock, the bare round trip and Corosync (as root).
    Executive(executive::Options),
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
        Command::Torture { of: Some(Torture::Executive { minutes, seed, joins }), .. } => {
            let plexus = executive::built(&root, "plexus", "plexus")?;
            let mut torture = checks(&root, "torture");
            let (what, count) = match joins {
                Some(count) => ("joins", count),
                None => ("executive", (minutes * 60.0).ceil() as u64),
            };
            command::run(torture.arg(what).arg(plexus).args([count.to_string(), seed.to_string()]))
        }
        Command::Torture { shares: Some(mbit), .. } => {
            let mbit = mbit.iter().map(u32::to_string);
            command::run(checks(&root, "torture").arg("shares").args(mbit))
        }
        Command::Torture { failovers, .. } => {
            command::run(checks(&root, "torture").args(["failovers", &failovers.to_string()]))
        }
        Command::Soak { minutes, seed } => {
            let seconds = ((minutes * 60.0).ceil() as u64).to_string();
            command::run(checks(&root, "torture").args(["soak", &seconds, &seed.to_string()]))
        }
        Command::Sim(sim) => {
            let mut cargo = checks(&root, "sim");
            // The program knows what holds where nothing is said.
            let number = |number: Option<u64>| number.map(|number| number.to_string());
            let given = [
                ("--seeds", number(sim.seeds)),
                ("--failovers", number(sim.failovers)),
                ("--from", number(sim.from)),
                ("--scenario", sim.scenario),
                ("--for", number(sim.seconds)),
            ];
            for (name, value) in given {
                cargo.args(value.iter().flat_map(|value| [name, value]));
            }
            command::run(&mut cargo)
        }
        Command::Bench(Bench::Interconnect(options)) => interconnect::run(&root, &options),
        Command::Bench(Bench::Executive(options)) => executive::run(&root, &options),
    }
}

/// Minutes that are some, and whose seconds can be counted.
fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes: &f64| (0.01..=1e6).contains(minutes));
    minutes.ok_or_else(|| "use a number of minutes, as 0.5 or 60".into())
}

/// A program of `plexus-checks`, to be built and run.
fn checks(root: &Path, name: &str) -> process::Command {
    let mut cargo = command::cargo(root);
    cargo.args(["run", "--quiet", "--release", "--package", "plexus-checks", "--bin", name, "--"]);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_executive_suffers_takes_no_options_of_the_paths() {
        let good = |line: &str| Cli::try_parse_from(line.split(' ')).is_ok();
        assert!(good("xtask torture executive --joins 3 --seed 2"));
        assert!(good("xtask torture --shares 40 10") && good("xtask torture --failovers 5"));
        assert!(!good("xtask torture --shares 40 10 executive"));
        assert!(!good("xtask torture --failovers 5 executive"));
        assert!(!good("xtask torture executive --joins 3 --minutes 2"));
    }
}
