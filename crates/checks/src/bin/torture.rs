//! Real processes under real faults. `failovers`, `shares` and `soak` start `torture member`; the
//! others start nodes of the program `plexus`. Exits with 1 at the first failure.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, ValueEnum};
use plexus_checks::{
    durability::campaign::{self, Work},
    executive::{self, views::ClientWork},
    faults::{self, member::Member},
};

/// The time over which shares of paths are counted.
const SHARES_FOR: Duration = Duration::from_secs(5);

/// Real processes under real faults.
#[derive(Parser)]
enum Command {
    /// Runs one member of a pair; the other commands start it.
    #[command(hide = true)]
    Member { member: String },
    /// Strikes the path in use again and again.
    Failovers { count: usize },
    /// Measures how two paths with these rates share bulk.
    Shares { first_mbit: u32, second_mbit: u32 },
    /// Causes random faults of paths for a time.
    Soak {
        seconds: u64,
        #[arg(default_value_t = 1)]
        seed: u64,
    },
    /// Causes random faults of nodes, networks and disks for a time.
    Executive {
        plexus: PathBuf,
        seconds: u64,
        #[arg(default_value_t = 1)]
        seed: u64,
    },
    /// Causes random faults of nodes and disks under transactions of SQL for a time.
    Sql(DurabilityOptions),
    /// Causes random faults of nodes and disks under changes of blocks for a time.
    Redo(DurabilityOptions),
    /// The same with mirrored disks, one on each of three hosts.
    Disks(DurabilityOptions),
    /// Makes nodes leave and join again.
    Joins {
        plexus: PathBuf,
        count: u64,
        #[arg(default_value_t = 1)]
        seed: u64,
    },
    /// Measures how long a new view takes.
    Views { plexus: PathBuf, after: ViewsAfter },
}

/// The program, and the faults to cause beside changes that must be durable.
#[derive(clap::Args)]
struct DurabilityOptions {
    plexus: PathBuf,
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A part of the names of the faults to cause.
    #[arg(long, default_value = "")]
    only: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum ViewsAfter {
    Death,
    Cut,
    CutFast,
    Recovery,
    /// The longest wait of a client of another node, that takes locks or sets keys.
    DeathLocks,
    DeathKeys,
    CutLocks,
    CutKeys,
}

fn main() -> ExitCode {
    match run(Command::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("torture: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    match command {
        Command::Member { member } => Member::from_argument(&member)?.run()?,
        Command::Failovers { count } => {
            let mut say = |done: usize| {
                if done.is_multiple_of(20) {
                    eprintln!("{done} of {count}");
                }
            };
            let stalls = faults::campaign::failovers(program, count, &mut say)?;
            println!("{count} fail-overs: 0 lost, 0 doubled, 0 late, 0 out of order\n{stalls}");
        }
        Command::Shares { first_mbit: first, second_mbit: second } => {
            let shares = faults::campaign::shares(program, [first, second], SHARES_FOR)?;
            let of_all = f64::from(first) * 100.0 / f64::from(first + second);
            println!("paths of {first} and {second} Mbit/s, of which the first has {of_all:.1} %: {shares}");
        }
        Command::Soak { seconds, seed } => {
            let mut say = |soaked: &faults::campaign::Soaked| eprintln!("{} faults", soaked.faults);
            let soaked = faults::campaign::soak(program, Duration::from_secs(seconds), seed, &mut say)?;
            let faults::campaign::Soaked { faults, delivered, grew_kib } = soaked;
            println!(
                "{faults} faults, {delivered} messages: each delivered once, in order, unchanged; no descriptor or thread more, \
                 memory from the middle to the end {grew_kib:+?} KiB"
            );
        }
        Command::Executive { plexus, seconds, seed } => {
            let time = Duration::from_secs(seconds);
            let report = executive::campaign::run(plexus, time, seed, &mut |what| eprintln!("{what}"));
            let minutes = seconds as f64 / 60.0;
            print!("{}", report.map_err(again(&format!("executive --minutes {minutes:.2} --seed {seed}")))?);
        }
        Command::Redo(options) => durable(Work::Blocks, options)?,
        Command::Sql(options) => durable(Work::Sql, options)?,
        Command::Disks(options) => durable(Work::Mirrored, options)?,
        Command::Joins { plexus, count, seed } => {
            let report = executive::campaign::joins(plexus, count, seed, &mut |what| eprintln!("{what}"));
            print!("{}", report.map_err(again(&format!("executive --joins {count} --seed {seed}")))?);
        }
        Command::Views { plexus, after } => {
            let ms = match after {
                ViewsAfter::Death => executive::views::death(plexus),
                ViewsAfter::Cut => executive::views::cut(plexus, "lan"),
                ViewsAfter::CutFast => executive::views::cut(plexus, "fast"),
                ViewsAfter::Recovery => executive::views::recovery(plexus),
                ViewsAfter::DeathLocks => executive::views::client(plexus, 0, ClientWork::Locks),
                ViewsAfter::DeathKeys => executive::views::client(plexus, 0, ClientWork::Keys),
                ViewsAfter::CutLocks => executive::views::client(plexus, 2, ClientWork::Locks),
                ViewsAfter::CutKeys => executive::views::client(plexus, 2, ClientWork::Keys),
            };
            println!("{:.3}", ms?);
        }
    }
    Ok(())
}

/// Causes random faults of nodes and disks beside this work.
fn durable(work: Work, options: DurabilityOptions) -> Result<(), String> {
    let DurabilityOptions { plexus, minutes, seed, only } = options;
    let time = Duration::from_secs_f64(minutes * 60.0);
    let report = campaign::run(plexus, work, time, seed, &only, &mut |what| eprintln!("{what}"));
    let name = match work {
        Work::Blocks => "redo",
        Work::Sql => "sql",
        Work::Mirrored => "disks",
    };
    print!("{}", report.map_err(again(&format!("{name} --minutes {minutes:.2} --seed {seed}")))?);
    Ok(())
}

/// Appends to a failure the command that repeats the run.
fn again(options: &str) -> impl Fn(String) -> String {
    move |why| format!("{why}\nthe same faults again: cargo xtask torture {options}")
}
