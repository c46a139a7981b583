//! The command line of the project's own commands (`cargo xtask`).

use std::{
    path::Path,
    process::{self, ExitCode},
};

use anyhow::Result;
use clap::{Parser, Subcommand};
use xtask::{command, compat, disks, executive, interconnect, mutate, package, redo, sql, tidy, verify};

/// The programs that faults of networks need, and their packages.
const IP: (&str, &str) = ("ip", "iproute2");
const TC: (&str, &str) = ("tc", "iproute2");
const NFT: (&str, &str) = ("nft", "nftables");

/// The project's own commands.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gate: formatting, house rules, lints, documentation, tests, licences.
    Verify,
    /// Check the house rules.
    Tidy {
        /// First copy the layouts from the code into docs/formats.md.
        #[arg(long)]
        fix: bool,
    },
    /// Plant the mistakes of xtask/mutations.toml one by one; show which ones the tests catch.
    Mutate(mutate::Options),
    /// Run the protocols in the simulator, one cluster for each seed.
    Sim {
        /// The options of the program; `--help` lists them.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    /// Inject a number of real faults between two processes in network namespaces (as root).
    #[command(args_conflicts_with_subcommands = true)]
    Torture {
        #[command(subcommand)]
        of: Option<Torture>,
        /// Number of fail-overs, over all kinds of faults; prints each stall beside its goal.
        #[arg(long, default_value_t = 200)]
        failovers: u64,
        /// Instead, measure how two paths with these rates in Mbit/s share the traffic.
        #[arg(long, num_args = 2, value_names = ["MBIT", "MBIT"], conflicts_with = "failovers")]
        shares: Option<Vec<u32>>,
    },
    /// Inject real faults at random between two processes under constant traffic (as root).
    Soak {
        /// Duration in minutes; fractions are allowed.
        #[arg(long, default_value_t = 60.0, value_parser = minutes)]
        minutes: f64,
        /// Seed of the faults and their times.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Run the suites of clients of PostgreSQL on PostgreSQL 15 and on Plexus, and compare them.
    Compat(compat::Options),
    /// Build the Debian package and the tar file of a release.
    Package(package::Options),
    /// Run benchmarks beside other systems.
    #[command(subcommand)]
    Bench(Bench),
}

#[derive(Subcommand)]
enum Torture {
    /// Run four nodes under random faults and check what clients of locks and registry observe.
    Executive {
        #[command(flatten)]
        faults: RandomFaults,
        /// Instead of faults, let a node leave and join again this many times.
        #[arg(long, conflicts_with = "minutes")]
        joins: Option<u64>,
    },
    /// Run three nodes under random faults of nodes and disks; check every acknowledged change.
    Redo(RandomFaults),
    /// The same beside transactions of SQL; check sums, acknowledged changes and the history.
    Sql(RandomFaults),
    /// The faults of redo, and of single disks, with mirrored disks on three hosts; compare all
    /// copies after each.
    Disks(RandomFaults),
}

/// The duration and the seed of a run with random faults.
#[derive(clap::Args)]
struct RandomFaults {
    /// Duration in minutes; fractions are allowed.
    #[arg(long, default_value_t = 2.0, value_parser = minutes)]
    minutes: f64,
    /// Seed of the faults and their times.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Subcommand)]
enum Bench {
    /// Compare the interconnect with UCX, Open MPI, libfabric, sockets and the machine's limits.
    Interconnect(interconnect::Options),
    /// Compare the executive with etcd, Redis, flock, the bare round trip and Corosync (as root).
    Executive(executive::Options),
    /// Measure redo: durable changes, hand-over and recovery, beside the limits of the disk.
    Redo(redo::Options),
    /// Measure mirrored disks beside fio, one copy and mirrors of Linux (as root).
    Disks(disks::Options),
    /// Compare SQL with PostgreSQL 15, and two nodes with one.
    Sql(sql::Options),
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
    let plexus = || command::built_program(&root, "plexus", "plexus");
    let torture = |programs: &[_]| -> Result<_> {
        command::require(programs)?;
        Ok(checks(&root, "torture"))
    };
    let seconds = |minutes: f64| (minutes * 60.0).ceil() as u64;
    match command {
        Command::Verify => verify::run(&root),
        Command::Tidy { fix } => {
            if fix {
                tidy::fix(&root)?;
            }
            verify::tidy_tree(&root)
        }
        Command::Mutate(options) => mutate::run(&root, &options),
        Command::Torture {
            of: Some(Torture::Executive { faults: RandomFaults { minutes, seed }, joins }),
            ..
        } => {
            let mut torture = torture(&[IP, NFT])?;
            let (what, count) = match joins {
                Some(count) => ("joins", count),
                None => ("executive", seconds(minutes)),
            };
            command::run(torture.arg(what).arg(plexus()?).args([count, seed].map(|n| n.to_string())))
        }
        Command::Torture {
            of:
                Some(
                    of @ (Torture::Redo(RandomFaults { minutes, seed })
                    | Torture::Sql(RandomFaults { minutes, seed })
                    | Torture::Disks(RandomFaults { minutes, seed })),
                ),
            ..
        } => {
            let mut torture = torture(&[IP])?;
            torture.arg(match of {
                Torture::Sql(_) => "sql",
                Torture::Disks(_) => "disks",
                Torture::Executive { .. } | Torture::Redo(_) => "redo",
            });
            torture.arg(plexus()?);
            command::run(torture.args(["--minutes", &minutes.to_string(), "--seed", &seed.to_string()]))
        }
        Command::Torture { shares: Some(mbit), .. } => {
            command::run(torture(&[IP, TC, NFT])?.arg("shares").args(mbit.iter().map(u32::to_string)))
        }
        Command::Torture { failovers, .. } => {
            command::run(torture(&[IP, TC, NFT])?.args(["failovers", &failovers.to_string()]))
        }
        Command::Soak { minutes, seed } => {
            let numbers = [seconds(minutes), seed].map(|n| n.to_string());
            command::run(torture(&[IP, TC, NFT])?.arg("soak").args(numbers))
        }
        Command::Compat(options) => compat::run(&root, &options),
        Command::Package(options) => package::run(&root, &options),
        Command::Sim { options } => command::run(checks(&root, "sim").args(options)),
        Command::Bench(Bench::Interconnect(options)) => interconnect::run(&root, &options),
        Command::Bench(Bench::Executive(options)) => executive::run(&root, &options),
        Command::Bench(Bench::Redo(options)) => redo::run(&root, &options),
        Command::Bench(Bench::Disks(options)) => disks::run(&root, &options),
        Command::Bench(Bench::Sql(options)) => sql::run(&root, &options),
    }
}

/// Parses a number of minutes within a sensible range.
fn minutes(text: &str) -> Result<f64, String> {
    let minutes = text.parse().ok().filter(|minutes: &f64| (0.01..=1e6).contains(minutes));
    minutes.ok_or_else(|| "expected a number of minutes from 0.01 to 1000000, such as 0.5 or 60".into())
}

/// Returns a command that builds and runs the program `name` of `plexus-checks`.
fn checks(root: &Path, name: &str) -> process::Command {
    let mut cargo = command::cargo(root);
    cargo.args(["run", "--quiet", "--release", "--package", "plexus-checks", "--bin", name, "--"]);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn torture_executive_refuses_the_options_of_torture() {
        let good = |line: &str| Cli::try_parse_from(line.split(' ')).is_ok();
        assert!(good("xtask torture executive --joins 3 --seed 2"));
        assert!(good("xtask torture --shares 40 10") && good("xtask torture --failovers 5"));
        assert!(!good("xtask torture --shares 40 10 executive"));
        assert!(!good("xtask torture --failovers 5 executive"));
        assert!(!good("xtask torture executive --joins 3 --minutes 2"));
        assert!(good("xtask torture redo --minutes 0.5 --seed 2") && !good("xtask torture redo --joins 3"));
    }
}
