//! Real processes under real faults: `torture failovers N`, `torture shares MBIT MBIT` and `torture
//! soak SECONDS [SEED]`; these start `torture member`. `torture executive PLEXUS SECONDS [SEED]`,
//! `torture joins PLEXUS COUNT [SEED]` and `torture views PLEXUS death|cut|cut-fast|recovery` start
//! nodes of the program `PLEXUS`. Exits with 1 at the first failure.

use std::{process::ExitCode, time::Duration};

use plexus_checks::{
    executive,
    faults::{campaign, member::Member},
};

/// The time over which shares of paths are counted.
const SHARES_FOR: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("torture: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), String> {
    const USAGE: &str = "use: torture failovers N | torture shares MBIT MBIT | torture soak SECONDS [SEED] | \
                         torture executive PLEXUS SECONDS [SEED] | torture joins PLEXUS COUNT [SEED] | torture views PLEXUS death|cut|cut-fast|recovery";
    let number = |text: &String| text.parse::<u64>().map_err(|_| format!("{text} is not a number; {USAGE}"));
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    match arguments {
        [command, rest @ ..] if command == "member" => {
            Member::from_arguments(rest).ok_or_else(|| format!("no member: {rest:?}"))?.run()
        }
        [command, count] if command == "failovers" => {
            let count = number(count)? as usize;
            let mut say = |done: usize| {
                if done.is_multiple_of(20) {
                    eprintln!("{done} of {count}");
                }
            };
            let stalls = campaign::failovers(program, count, &mut say)?;
            println!("{count} fail-overs: 0 lost, 0 doubled, 0 late, 0 out of order\n{stalls}");
            Ok(())
        }
        [command, first, second] if command == "shares" => {
            let mbit = [number(first)? as u32, number(second)? as u32];
            let shares = campaign::shares(program, mbit, SHARES_FOR)?;
            let of_all = f64::from(mbit[0]) * 100.0 / f64::from(mbit[0] + mbit[1]);
            println!("paths of {first} and {second} Mbit/s, of which the first has {of_all:.1} %: {shares}");
            Ok(())
        }
        [command, seconds, seed @ ..] if command == "soak" && seed.len() < 2 => {
            let (time, seed) = (Duration::from_secs(number(seconds)?), seed.first().map_or(Ok(1), number)?);
            let mut say = |soaked: &campaign::Soaked| eprintln!("{} faults", soaked.faults);
            let soaked = campaign::soak(program, time, seed, &mut say)?;
            let campaign::Soaked { faults, delivered, grew_kib } = soaked;
            println!(
                "{faults} faults, {delivered} messages: each delivered once, in order, unchanged; no descriptor or thread more, \
                 memory from the middle to the end {grew_kib:+?} KiB"
            );
            Ok(())
        }
        [command, plexus, seconds, seed @ ..] if command == "executive" && seed.len() < 2 => {
            let (seconds, seed) = (number(seconds)?, seed.first().map_or(Ok(1), number)?);
            let time = Duration::from_secs(seconds);
            let report = executive::campaign::run(plexus.into(), time, seed, &mut |what| eprintln!("{what}"));
            let minutes = seconds as f64 / 60.0;
            print!("{}", report.map_err(again(&format!("--minutes {minutes:.2} --seed {seed}")))?);
            Ok(())
        }
        [command, plexus, count, seed @ ..] if command == "joins" && seed.len() < 2 => {
            let (count, seed) = (number(count)?, seed.first().map_or(Ok(1), number)?);
            let report =
                executive::campaign::joins(plexus.into(), count, seed, &mut |what| eprintln!("{what}"));
            print!("{}", report.map_err(again(&format!("--joins {count} --seed {seed}")))?);
            Ok(())
        }
        [command, plexus, what] if command == "views" => {
            let ms = match what.as_str() {
                "death" => executive::views::death(plexus.into()),
                "cut" => executive::views::cut(plexus.into(), "lan"),
                "cut-fast" => executive::views::cut(plexus.into(), "fast"),
                "recovery" => executive::views::recovery(plexus.into()),
                _ => return Err(USAGE.into()),
            };
            println!("{:.3}", ms?);
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

/// Appends to a failure the command that repeats the run.
fn again(options: &str) -> impl Fn(String) -> String {
    move |why| format!("{why}\nthe same faults again: cargo xtask torture executive {options}")
}
