//! Runs many seeds, or counts fail-overs. Exits with 1 at the first failure.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use plexus_checks::{
    Failure, Scenario,
    harness::run_seed,
    paths::{Paths, Stalls},
    run, scenario,
};

/// The interval of progress messages.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// Runs many seeds of scenarios, or counts fail-overs.
#[derive(Parser)]
struct Arguments {
    /// The number of seeds of each scenario.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// The only scenario to run.
    #[arg(long, value_parser = one)]
    scenario: Option<Scenario>,
    /// The seconds after which no further seed is begun.
    #[arg(long = "for")]
    seconds: Option<u64>,
    /// The number of fail-overs over simulated paths to run instead of scenarios.
    #[arg(long, conflicts_with_all = ["seeds", "scenario", "seconds"])]
    failovers: Option<usize>,
}

fn one(name: &str) -> Result<Scenario, String> {
    let names = || scenario::ALL.map(|scenario| scenario.name).join(", ");
    scenario::named(name).ok_or_else(|| format!("no such scenario: use one of {}", names()))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // Failed assertions are reported with seed and history below.
    std::panic::set_hook(Box::new(|_| {}));
    let result = match arguments.failovers {
        Some(count) => failovers(count, arguments.from),
        None => seeds(&arguments),
    };
    let Err(failure) = result else { return ExitCode::SUCCESS };
    println!("{failure}");
    println!("again: cargo xtask sim --scenario {} --from {} --seeds 1", failure.scenario, failure.seed);
    ExitCode::FAILURE
}

/// Runs the seeds of all scenarios in turn, so that all have had as many when time is up.
fn seeds(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { seeds, from, scenario, seconds, .. } = arguments;
    let scenarios = scenario.map_or(scenario::ALL.to_vec(), |one| vec![one]);
    let began = Instant::now();
    let until = seconds.map(|seconds| began + Duration::from_secs(seconds));
    let mut told = began;
    let mut tallies = vec![Tally::default(); scenarios.len()];
    for seed in *from..from + seeds {
        if until.is_some_and(|until| Instant::now() >= until) {
            println!("time is up after {} of {seeds} seeds", seed - from);
            break;
        }
        for (scenario, tally) in scenarios.iter().zip(&mut tallies) {
            if scenarios.len() == 1 || (seed - from).is_multiple_of(scenario.bigger) {
                tally.take(seed, *scenario)?;
            }
        }
        if told.elapsed() > SAY_EVERY {
            told = Instant::now();
            eprintln!("{} of {seeds} seeds", seed - from + 1);
        }
    }
    for (scenario, tally) in scenarios.iter().zip(&tallies) {
        let Tally { seeds, operations, lost, events, time } = tally;
        let seconds = time.as_secs_f64();
        println!(
            "{:>10}: {seeds} seeds, {operations} operations, {lost} ends of rails lost, {events} events, {seconds:.1} s, {:.2} M events/s",
            scenario.name,
            *events as f64 / seconds / 1e6,
        );
    }
    Ok(())
}

/// The counts of the seeds of a scenario.
#[derive(Clone, Default)]
struct Tally {
    seeds: u64,
    operations: u64,
    lost: u64,
    events: u64,
    time: Duration,
}

impl Tally {
    fn take(&mut self, seed: u64, scenario: Scenario) -> Result<(), Failure> {
        let began = Instant::now();
        let outcome = run(seed, scenario)?;
        self.seeds += 1;
        self.operations += outcome.operations;
        self.lost += outcome.rails_lost;
        self.events += outcome.events;
        self.time += began.elapsed();
        Ok(())
    }
}

/// Runs at least `count` fail-overs over paths with a rate and a queue.
fn failovers(count: usize, from: u64) -> Result<(), Failure> {
    let mut told = Instant::now();
    let (mut stalls, mut delivered) = (Stalls::default(), 0);
    for seed in from.. {
        let (paths, outcome) = run_seed("paths", seed, |_| Box::new(Paths::new(seed)))?;
        delivered += outcome.operations;
        paths.stalls.into_iter().for_each(|stall| stalls.add(stall));
        if stalls.count() >= count {
            println!(
                "{} fail-overs, {} seeds, {delivered} messages: 0 lost, 0 doubled, 0 out of order; stalls in simulated time\n{stalls}",
                stalls.count(),
                seed - from + 1
            );
            return Ok(());
        }
        if told.elapsed() > SAY_EVERY {
            told = Instant::now();
            eprintln!("{} of {count} fail-overs", stalls.count());
        }
    }
    Ok(())
}
