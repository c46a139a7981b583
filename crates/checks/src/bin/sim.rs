//! Runs many seeds: `sim [--seeds N] [--from S] [--scenario NAME] [--for SECONDS]`, or counts
//! fail-overs: `sim --failovers N [--from S]`. Exits with 1 at the first failure.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use plexus_checks::{
    Failure, Scenario,
    harness::run_seed,
    paths::{Paths, Stalls},
    run, scenario,
};

/// The interval of progress messages.
const SAY_EVERY: Duration = Duration::from_secs(1);

struct Arguments {
    seeds: u64,
    from: u64,
    scenarios: Vec<Scenario>,
    /// The time after which no further seed is begun.
    until: Option<Instant>,
    failovers: Option<usize>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed =
        Arguments { seeds: 200, from: 0, scenarios: scenario::ALL.to_vec(), until: None, failovers: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("`{word}` needs a value"))?;
        let number = || value.parse().map_err(|_| format!("`{word}` needs a number, not `{value}`"));
        match word.as_str() {
            "--seeds" => parsed.seeds = number()?,
            "--from" => parsed.from = number()?,
            "--for" => parsed.until = Some(Instant::now() + Duration::from_secs(number()?)),
            "--failovers" => parsed.failovers = Some(number()? as usize),
            "--scenario" => {
                let names: Vec<&str> = scenario::ALL.iter().map(|scenario| scenario.name).collect();
                let unknown = || format!("no scenario `{value}`: use one of {}", names.join(", "));
                parsed.scenarios = vec![scenario::named(&value).ok_or_else(unknown)?];
            }
            _ => {
                return Err(format!(
                    "unknown argument `{word}`: use --seeds N, --from S, --scenario NAME, --for SECONDS, --failovers N"
                ));
            }
        }
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    // Failed assertions are reported with seed and history below.
    std::panic::set_hook(Box::new(|_| {}));
    let result = match arguments.failovers {
        Some(count) => failovers(count, arguments.from),
        None => seeds(&arguments),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            println!("{failure}");
            println!(
                "again: cargo xtask sim --scenario {} --from {} --seeds 1",
                failure.scenario, failure.seed
            );
            ExitCode::FAILURE
        }
    }
}

/// Runs the seeds of all scenarios in turn, so that all have had as many when time is up.
fn seeds(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { seeds, from, scenarios, until, .. } = arguments;
    let began = Instant::now();
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
        let (paths, outcome) = run_seed("paths", seed, |_| Paths::new(seed))?;
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
