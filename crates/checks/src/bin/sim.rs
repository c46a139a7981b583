//! Runs many seeds: `sim [--seeds N] [--from S] [--scenario NAME]`. Ends with 1 at the first failure.

use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

use plexus_checks::{Scenario, run, scenario};

struct Arguments {
    seeds: u64,
    from: u64,
    scenarios: Vec<Scenario>,
}

fn arguments() -> Result<Arguments, String> {
    let mut parsed = Arguments { seeds: 200, from: 0, scenarios: scenario::ALL.to_vec() };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or(format!("`{word}` needs a value"))?;
        let number = || value.parse().map_err(|_| format!("`{word}` needs a number, not `{value}`"));
        match word.as_str() {
            "--seeds" => parsed.seeds = number()?,
            "--from" => parsed.from = number()?,
            "--scenario" => {
                let names: Vec<&str> = scenario::ALL.iter().map(|scenario| scenario.name).collect();
                let unknown = || format!("no scenario `{value}`: use one of {}", names.join(", "));
                parsed.scenarios = vec![scenario::named(&value).ok_or_else(unknown)?];
            }
            _ => return Err(format!("unknown argument `{word}`: use --seeds N, --from S, --scenario NAME")),
        }
    }
    Ok(parsed)
}

fn main() -> ExitCode {
    let Arguments { seeds, from, scenarios } = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    // Failed assertions are reported with seed and history below.
    std::panic::set_hook(Box::new(|_| {}));
    let alone = scenarios.len() == 1;
    for scenario in scenarios {
        let step = if alone { 1 } else { scenario.bigger };
        let (began, mut told) = (Instant::now(), Instant::now());
        let (mut events, mut operations, mut lost) = (0, 0, 0);
        for seed in (from..from + seeds).step_by(step as usize) {
            match run(seed, scenario) {
                Ok(outcome) => {
                    (events, operations) = (events + outcome.events, operations + outcome.operations);
                    lost += outcome.rails_lost;
                }
                Err(failure) => {
                    println!("{failure}");
                    println!("again: cargo xtask sim --scenario {} --from {seed} --seeds 1", scenario.name);
                    return ExitCode::FAILURE;
                }
            }
            if told.elapsed() > Duration::from_secs(1) {
                told = Instant::now();
                eprintln!("{:>10}: {} of {seeds} seeds", scenario.name, seed - from + 1);
            }
        }
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{:>10}: {} seeds, {operations} operations, {lost} ends of rails lost, {events} events, {:.1} s, {:.2} M events/s",
            scenario.name,
            seeds.div_ceil(step),
            seconds,
            events as f64 / seconds / 1e6,
        );
    }
    ExitCode::SUCCESS
}
