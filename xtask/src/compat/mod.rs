//! Runs the tests that clients of PostgreSQL have, on PostgreSQL 15 and on Plexus, and compares
//! them.
//!
//! Each suite has a folder in `target/compat` with an environment of Python, the source
//! distribution with the tests, and the output of the last runs. Both servers are new ones that
//! are reached by Unix sockets and end with the run. A suite that cannot be run is named with the
//! reason; the others are run.

mod results;
mod suites;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, builder::PossibleValuesParser};

use self::{
    results::{Comparison, Outcomes},
    suites::{SUITES, Suite, WITHOUT_TESTS},
};
use crate::{
    command::{ChildGuard, ends_within, output_within},
    compare::document::{self, date, markdown},
    sql::{
        plexus::Plexus,
        postgres::Postgres,
        work::{Server, psql},
    },
};

/// The document with the results, and the name of its section.
const DOCUMENT: &str = "docs/clients.md";
const SECTION: &str = "compat";

/// The time limits of one run of a suite, and of a step that installs it.
const RUN: Duration = Duration::from_secs(20 * 60);
const INSTALL: Duration = Duration::from_secs(10 * 60);

/// The share of tests that must pass on Plexus, in thousandths.
const GOAL: usize = 950;

/// The options of the command.
#[derive(Args)]
pub struct Options {
    /// Run this suite; may be given more than once [default: all suites].
    #[arg(long, value_parser = PossibleValuesParser::new(SUITES.iter().map(|suite| suite.name)))]
    suite: Vec<String>,
    /// Write the results into docs/clients.md.
    #[arg(long)]
    write: bool,
    /// Use this program instead of building Plexus in release mode.
    #[arg(long)]
    plexus: Option<PathBuf>,
}

/// Runs the suites, prints the table, and with `--write` puts it into docs/clients.md.
///
/// # Errors
/// Plexus cannot be built, a suite could not be run, or misses the goal.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let plexus = match &options.plexus {
        Some(path) => Plexus::at(&path.canonicalize().with_context(|| path.display().to_string())?),
        None => Plexus::build(root)?,
    };
    let compared: Vec<_> = SUITES
        .iter()
        .map(|suite| {
            let is_chosen = options.suite.is_empty() || options.suite.iter().any(|name| name == suite.name);
            let result = match is_chosen {
                true => compare(root, suite, &plexus).inspect_err(|error| println!("  {error:#}")),
                false => Err(anyhow::anyhow!("it was left out with --suite")),
            };
            (suite, is_chosen, result)
        })
        .collect();
    let text = report(compared.iter().map(|(suite, _, result)| (*suite, result)));
    println!("\n{text}");
    if options.write {
        document::write(root, DOCUMENT, SECTION, &text)?;
    }
    let is_missed = |result: &Result<Comparison>| !result.as_ref().is_ok_and(|both| both.per_mille() >= GOAL);
    let missed = compared.iter().filter(|(_, is_chosen, result)| *is_chosen && is_missed(result));
    let missed: Vec<_> = missed.map(|(suite, ..)| suite.name).collect();
    ensure!(missed.is_empty(), "not run, or below the goal: {}", missed.join(", "));
    Ok(())
}

/// Installs a suite, runs it on both servers, and compares the outcomes.
fn compare(root: &Path, suite: &Suite, plexus: &Plexus) -> Result<Comparison> {
    println!("{} {}", suite.name, suite.version);
    let place = root.join(format!("target/compat/{}-{}", suite.name, suite.version));
    install(suite, &place)?;
    let tests = |server: &Server, name: &str| tests(root, suite, &place, server, name);
    let postgres = tests(&Postgres::start()?.server, "postgres")?;
    let plexus = plexus.one_node(|server| tests(server, "plexus"))?;
    Ok(Comparison::of(&postgres, &plexus))
}

/// Makes the environment of a suite with its tests, unless it is there with the same versions.
fn install(suite: &Suite, place: &Path) -> Result<()> {
    let (done, source) = (place.join("installed"), place.join("source"));
    if fs::read_to_string(&done).is_ok_and(|packages| packages == suite.packages) {
        return Ok(());
    }
    if place.exists() {
        fs::remove_dir_all(place)?;
    }
    fs::create_dir_all(&source)?;
    println!("  installing");
    let package = format!("{}=={}", suite.name, suite.version);
    let step = |command: &mut Command| output_within(command.current_dir(place), INSTALL);
    step(Command::new("python3").args(["-m", "venv", "environment"]))?;
    let pip = || Command::new(place.join("environment/bin/pip"));
    step(pip().args(["install", "--quiet", &package]).args(suite.packages.split(' ')))?;
    step(pip().args(["download", "--quiet", "--no-deps", "--no-binary", suite.name, "-d", ".", &package]))?;
    let files = fs::read_dir(place)?.collect::<Result<Vec<_>, _>>()?;
    let is_source = |path: &PathBuf| path.to_string_lossy().ends_with(".tar.gz");
    let archive = files.iter().map(|file| file.path()).find(is_source);
    let archive = archive.with_context(|| format!("{package} has no source distribution"))?;
    step(Command::new("tar").args(["--strip-components", "1", "-C", "source", "-xf"]).arg(archive))?;
    Ok(fs::write(done, suite.packages)?)
}

/// Runs the tests of a suite on a server; their outcomes and output are kept as `name`.
fn tests(root: &Path, suite: &Suite, place: &Path, server: &Server, name: &str) -> Result<Outcomes> {
    println!("  running on {name}");
    if !suite.prepare.is_empty() {
        psql(server, suite.prepare)?;
    }
    let (results, log) = (place.join(format!("{name}.json")), place.join(format!("{name}.log")));
    File::create(&results)?;
    let output = File::create(&log)?;
    let mut words = suite.command.split_whitespace();
    let mut command = Command::new(place.join("environment/bin").join(words.next().context("no program")?));
    command.args(words).current_dir(place.join("source").join(suite.folder));
    command.env("PYTHONPATH", root.join("xtask/src/compat/python")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("COMPAT_RESULTS", &results);
    server.tell(&mut command);
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let child = ChildGuard(command.spawn().context("the tests cannot be started")?);
    let is_over = ends_within(&child.0, RUN)?;
    drop(child);
    let outcomes = Outcomes::of(&fs::read_to_string(&results)?);
    if !is_over {
        println!("  ended after {} minutes", RUN.as_secs() / 60);
    }
    match (name, outcomes.passed()) {
        (_, 0) => bail!("no test has passed on {name}: see its log in target/compat"),
        ("postgres", _) if !is_over => bail!("the tests did not end in time on PostgreSQL"),
        _ => Ok(outcomes),
    }
}

/// Formats the table, then the tests that pass on PostgreSQL only, then all that was not run.
fn report<'a>(compared: impl Iterator<Item = (&'a Suite, &'a Result<Comparison>)>) -> String {
    let percent = |share: usize| format!("{}.{} %", share / 10, share % 10);
    let head = ["suite", "version", "tests", "pass on PostgreSQL 15", "of these on Plexus", "share", "goal"];
    let mut rows = vec![head.map(str::to_owned)];
    let (mut others, mut missing) = (String::new(), String::new());
    for (suite, result) in compared {
        let cells = match result {
            Ok(both) => [both.expected.to_string(), both.passed().to_string(), percent(both.per_mille())],
            Err(_) => ["not run", "not run", ""].map(str::to_owned),
        };
        let [expected, passed, share] = cells;
        let (name, version, tests) = (suite.name.into(), suite.version.into(), suite.tests.into());
        rows.push([name, version, tests, expected, passed, share, percent(GOAL)]);
        match result {
            Ok(both) => {
                missing += &format!("- of {}: {}\n", suite.name, suite.left_out);
                others += &format!("\n{} of {} pass on PostgreSQL only", both.others.len(), suite.name);
                others += if both.others.is_empty() { ".\n" } else { ":\n\n" };
                others += &differences(both);
            }
            Err(error) => {
                let error = format!("{error:#}");
                let first = error.lines().next().unwrap_or_default();
                missing += &format!("- {}: {first}\n", suite.name);
            }
        }
    }
    for (client, package) in WITHOUT_TESTS {
        missing += &format!("- {client}: its package has no tests ({package})\n");
    }
    format!("{}, UTC.\n\n{}\nNot run:\n\n{missing}{others}", date(), markdown(&rows))
}

/// Formats the tests that pass on PostgreSQL only as a table, with a row for each error.
fn differences(both: &Comparison) -> String {
    let mut table = String::new();
    for (reason, tests) in both.by_reason() {
        // Without padding: the names of a row may take thousands of characters.
        let cells = [reason.to_owned(), tests.len().to_string(), format!("`{}`", tests.join("`, `"))];
        table += &format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "));
    }
    match table.is_empty() {
        true => table,
        false => "| error on Plexus | number | tests |\n|---|---|---|\n".to_owned() + &table,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_names_all_that_was_not_run() {
        let others = vec![("test_a".to_owned(), "`x` is refused".to_owned())];
        let results = [Ok(Comparison { expected: 3, others }), Err(anyhow::anyhow!("no pip\nmore"))];
        let text = report(SUITES.iter().zip(&results));
        let row = text.lines().find(|line| line.starts_with("| sqlalchemy")).expect("its row is there");
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[4..8], ["3", "2", "66.6 %", "95.0 %"]);
        assert!(text.contains("\n- django: no pip\n") && text.contains("\n- psycopg: its package"), "{text}");
        assert!(text.contains("\n| `x` is refused | 1 | `test_a` |\n"), "{text}");
    }

    #[test]
    fn the_document_has_its_section() {
        let text = fs::read_to_string(crate::root().join(DOCUMENT)).expect("the document is there");
        let places = ["<!-- compat -->\n", "<!-- end of compat -->\n"].map(|marker| text.find(marker));
        assert!(places[0].is_some() && places[0] < places[1], "{places:?}");
    }
}
