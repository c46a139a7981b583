//! Plants the mistakes that `xtask/mutations.toml` lists and checks that tests catch them.
//!
//! The command works on a copy of the repository under `target/mutate`, so the work tree never
//! changes, however the command ends. Builds share the target folder of the repository. A mistake
//! is caught when one of its tests fails or exceeds the time limit. The tests must pass without it.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use crate::{
    command::{self, CapturedOutput, ChildGuard},
    tidy::Tree,
};

/// The list of mistakes, from the root of the repository.
const LIST: &str = "xtask/mutations.toml";

/// The time limit of the tests of a mutation that names none.
const LIMIT_S: u64 = 300;

/// The choice of mutations to try.
#[derive(Args)]
pub struct Options {
    /// Only mutations whose name or file contains this text.
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Print the list and run nothing.
    #[arg(long)]
    list: bool,
}

/// The list of mistakes.
#[derive(Deserialize)]
struct List {
    mutation: Vec<Mutation>,
}

/// One mistake to plant, and the tests that must catch it.
#[derive(Deserialize)]
struct Mutation {
    name: String,
    file: String,
    /// A text that occurs in the file exactly once.
    find: String,
    replace: String,
    #[serde(flatten)]
    tests: Tests,
}

/// The tests of a mutation.
#[derive(PartialEq, Eq, PartialOrd, Ord, Deserialize)]
struct Tests {
    /// The arguments of `cargo test`.
    #[serde(rename = "tests")]
    cargo: String,
    /// The filters of test names.
    #[serde(default)]
    filters: String,
    limit_s: Option<u64>,
}

/// The result of a run of tests.
enum Outcome {
    Passed,
    Failed(String),
    TimedOut,
    NotBuilt(String),
    /// The filters name no test.
    NoTests,
}

/// Plants the listed mistakes one by one and prints which of them the tests catch.
///
/// # Errors
/// A mistake survives or does not apply, its tests fail without it, or the copy cannot be made.
pub fn run(root: &Path, options: &Options) -> Result<()> {
    let mut mutations = read(root)?;
    if let Some(only) = &options.only {
        mutations.retain(|mutation| mutation.name.contains(only) || mutation.file.contains(only));
    }
    ensure!(!mutations.is_empty(), "no mutation of {LIST} matches");
    if options.list {
        mutations.iter().for_each(|mutation| println!("{}: {}", mutation.file, mutation.name));
        return Ok(());
    }
    let copy = root.join("target/mutate");
    synchronise(root, &copy)?;
    let mut unchanged: BTreeMap<&Tests, Option<String>> = BTreeMap::new();
    let mut counts = [0; 3];
    for mutation in &mutations {
        let started = Instant::now();
        let verdict = try_out(root, &copy, mutation, &mut unchanged)?;
        let (index, word, detail) = match verdict {
            Verdict::Caught(by) => (0, "caught", by),
            Verdict::Survived => (1, "SURVIVED", String::new()),
            Verdict::DoesNotApply(why) => (2, "DOES NOT APPLY", why),
        };
        counts[index] += 1;
        let (file, name, seconds) = (&mutation.file, &mutation.name, started.elapsed().as_secs());
        println!("{word:<14} {file}: {name} ({seconds} s) {detail}");
    }
    let [caught, survived, broken] = counts;
    println!("\n{caught} caught, {survived} survived, {broken} do not apply");
    ensure!(survived + broken == 0, "not all mistakes are caught");
    Ok(())
}

/// The result of a mutation.
enum Verdict {
    Caught(String),
    Survived,
    DoesNotApply(String),
}

/// Plants one mistake, runs its tests and restores the file.
///
/// `unchanged` has the result of tests that already ran without a mistake.
fn try_out<'a>(
    root: &Path,
    copy: &Path,
    mutation: &'a Mutation,
    unchanged: &mut BTreeMap<&'a Tests, Option<String>>,
) -> Result<Verdict> {
    let file = copy.join(&mutation.file);
    let text = fs::read_to_string(&file).unwrap_or_default();
    let mutated = match mutated(mutation, &text) {
        Ok(mutated) => mutated,
        Err(why) => return Ok(Verdict::DoesNotApply(why)),
    };
    if !unchanged.contains_key(&mutation.tests) {
        let failure = match test(root, copy, &mutation.tests)? {
            Outcome::Passed => None,
            Outcome::NoTests => Some("no such test".into()),
            Outcome::TimedOut => Some("its tests exceed the time limit without it".into()),
            Outcome::Failed(test) => Some(format!("its tests fail without it: {test}")),
            Outcome::NotBuilt(error) => Some(format!("its tests do not build: {error}")),
        };
        unchanged.insert(&mutation.tests, failure);
    }
    if let Some(Some(failure)) = unchanged.get(&mutation.tests) {
        return Ok(Verdict::DoesNotApply(failure.clone()));
    }
    fs::write(&file, mutated)?;
    let outcome = test(root, copy, &mutation.tests);
    fs::write(&file, text)?;
    Ok(match outcome? {
        Outcome::Failed(test) => Verdict::Caught(format!("by {test}")),
        Outcome::TimedOut => Verdict::Caught("by the time limit".into()),
        Outcome::Passed | Outcome::NoTests => Verdict::Survived,
        Outcome::NotBuilt(error) => Verdict::DoesNotApply(format!("does not compile: {error}")),
    })
}

/// Plants the mistake in `text`, or says why it does not apply.
fn mutated(mutation: &Mutation, text: &str) -> Result<String, String> {
    match text.matches(&mutation.find).count() {
        1 => Ok(text.replacen(&mutation.find, &mutation.replace, 1)),
        n => Err(format!("the text to replace occurs {n} times in {}, not once", mutation.file)),
    }
}

/// Builds the tests in the copy and runs them until one fails.
fn test(root: &Path, copy: &Path, tests: &Tests) -> Result<Outcome> {
    let mut build = command::cargo(copy);
    build
        .args(["test", "--no-run", "--message-format", "json-render-diagnostics"])
        .args(tests.cargo.split_whitespace());
    // Dependencies are those of the repository itself: they need not be built again.
    let built = command::output(build.env("CARGO_TARGET_DIR", root.join("target")));
    let messages = match built {
        Ok(messages) => messages,
        Err(error) => {
            let text = format!("{error:#}");
            let line = text.lines().find(|line| line.starts_with("error")).unwrap_or("the build fails");
            return Ok(Outcome::NotBuilt(line.to_owned()));
        }
    };
    let started = Instant::now();
    let mut count = 0;
    for (program, folder) in programs(&messages) {
        let (out, err) = (CapturedOutput::new()?, CapturedOutput::new()?);
        let mut command = Command::new(&program);
        command.args(tests.filters.split_whitespace()).current_dir(folder);
        command.stdin(Stdio::null()).stdout(out.stdio()?).stderr(err.stdio()?);
        let mut child =
            ChildGuard(command.spawn().with_context(|| format!("cannot run {}", program.display()))?);
        let left = Duration::from_secs(tests.limit_s.unwrap_or(LIMIT_S)).saturating_sub(started.elapsed());
        if !command::ends_within(&child.0, left)? {
            return Ok(Outcome::TimedOut);
        }
        let status = child.0.wait()?;
        let text = out.text()?;
        if !status.success() {
            return Ok(Outcome::Failed(failure(&text).unwrap_or_else(|| status.to_string())));
        }
        count += tests_run(&text);
    }
    Ok(if count == 0 { Outcome::NoTests } else { Outcome::Passed })
}

/// Returns the test that failed, and the seed of the simulator if there is one.
fn failure(text: &str) -> Option<String> {
    let test = text.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"))?;
    let seed =
        text.lines().find_map(|line| line.starts_with("scenario ").then_some(line.split_once(" at ")?.0));
    Some(seed.map_or_else(|| test.to_owned(), |seed| format!("{test}, {seed}")))
}

/// Returns the test programs that cargo built, each with the folder of its package.
fn programs(messages: &str) -> Vec<(PathBuf, PathBuf)> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let tests = messages.filter(|message| message["profile"]["test"] == true);
    let program = |message: Value| {
        let manifest = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        Some((PathBuf::from(message["executable"].as_str()?), manifest))
    };
    tests.filter_map(program).collect()
}

/// Returns how many tests passed, from the summary of a test program.
fn tests_run(text: &str) -> u32 {
    let counts = text.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    counts.filter_map(|line| line.split(' ').next()?.parse::<u32>().ok()).sum()
}

/// Makes `copy` equal to the repository, and leaves equal files alone: their time tells cargo that
/// nothing has changed.
fn synchronise(root: &Path, copy: &Path) -> Result<()> {
    fs::create_dir_all(copy)?;
    let (wanted, old) = (Tree::read(root)?, Tree::read(copy)?);
    for (path, text) in wanted.files() {
        let target = copy.join(path);
        if old.text(path) != Some(text) {
            fs::create_dir_all(target.parent().unwrap_or(copy))?;
            fs::write(&target, text).with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    for (path, _) in old.files().filter(|(path, _)| wanted.text(path).is_none()) {
        fs::remove_file(copy.join(path))?;
    }
    Ok(())
}

/// Reads the list.
fn read(root: &Path) -> Result<Vec<Mutation>> {
    let text = fs::read_to_string(root.join(LIST)).with_context(|| format!("cannot read {LIST}"))?;
    parse(&text).with_context(|| format!("cannot use {LIST}"))
}

fn parse(text: &str) -> Result<Vec<Mutation>> {
    let List { mutation: mutations } = toml::from_str(text)?;
    for mutation in &mutations {
        ensure!(mutation.find != mutation.replace, "{} replaces nothing", mutation.name);
    }
    Ok(mutations)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_mutation_applies_to_the_present_code() {
        let root = crate::root();
        let mutations = read(&root).expect("the list is good");
        let broken: Vec<String> = mutations
            .iter()
            .filter_map(|mutation| {
                let text = fs::read_to_string(root.join(&mutation.file)).unwrap_or_default();
                mutated(mutation, &text).err().map(|why| format!("\n{}: {why}", mutation.name))
            })
            .collect();
        assert!(broken.is_empty(), "{}", broken.concat());
    }

    #[test]
    fn mutation_replaces_a_text_that_occurs_once() {
        let list = "[[mutation]]\nname = 'n'\nfile = 'f'\nfind = 'a < b'\nreplace = 'a <= b'\n\
                    tests = '-p x --lib'\nfilters = 'one two'\nlimit_s = 7\n";
        let mutation = parse(list).expect("a good list").remove(0);
        let Tests { cargo, filters, limit_s } = &mutation.tests;
        assert_eq!((cargo.as_str(), filters.as_str(), *limit_s), ("-p x --lib", "one two", Some(7)));
        assert_eq!(mutated(&mutation, "if a < b {}"), Ok("if a <= b {}".into()));
        assert!(mutated(&mutation, "a < b && a < b").is_err_and(|why| why.contains("2 times")));
        assert!(mutated(&mutation, "").is_err_and(|why| why.contains("0 times")));
        assert!(parse(&list.replace("a <= b", "a < b")).is_err(), "it changes nothing");
        assert!(parse("[[mutation]]\nname = 'n'\n").is_err() && parse("").is_err());
    }

    #[test]
    fn copy_follows_the_repository_and_keeps_equal_files() {
        let folder = tempfile::tempdir().expect("a folder");
        let (root, copy) = (folder.path().join("root"), folder.path().join("copy"));
        fs::create_dir_all(root.join("src")).expect("a folder");
        fs::write(root.join("src/a.rs"), "a").expect("written");
        fs::write(root.join("b.rs"), "b").expect("written");
        synchronise(&root, &copy).expect("copied");
        let time =
            |path: &str| fs::metadata(copy.join(path)).and_then(|meta| meta.modified()).expect("a time");
        let before = time("b.rs");
        fs::write(copy.join("src/a.rs"), "a mistake").expect("written");
        fs::write(copy.join("c.rs"), "c").expect("written");
        synchronise(&root, &copy).expect("copied");
        assert_eq!(fs::read_to_string(copy.join("src/a.rs")).expect("read"), "a");
        assert!(!copy.join("c.rs").exists() && time("b.rs") == before);
    }

    #[test]
    fn test_programs_and_their_counts_are_read() {
        let messages = "{\"profile\":{\"test\":true},\"executable\":\"/t/a\",\"manifest_path\":\"/w/a/Cargo.toml\"}\n\
                        {\"profile\":{\"test\":false},\"executable\":\"/t/b\",\"manifest_path\":\"/w/b/Cargo.toml\"}\n";
        assert_eq!(programs(messages), [(PathBuf::from("/t/a"), PathBuf::from("/w/a"))]);
        let text = "test a ... ok\ntest b ... FAILED\nscenario views seed 7 at 3 ns: property\n";
        assert_eq!(failure(text).as_deref(), Some("b, scenario views seed 7"));
        assert_eq!(tests_run("running 3 tests\ntest result: ok. 3 passed; 0 failed; 0 ignored\n"), 3);
    }
}
