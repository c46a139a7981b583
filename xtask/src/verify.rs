//! The gate: all checks that a change must pass before it is merged.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

use crate::{command, tidy};

/// Runs all steps over the repository at `root` and prints their times; stops at the first failure.
///
/// # Errors
/// A step fails; the error names it.
pub fn run(root: &Path) -> Result<()> {
    let started = Instant::now();
    let cargo = |arguments: &[&str]| command::run(command::cargo(root).args(arguments));
    let mut times: Vec<(&str, Duration)> = Vec::new();
    let mut step = |name: &'static str, work: &mut dyn FnMut() -> Result<()>| -> Result<()> {
        println!("\n== {name}");
        let started = Instant::now();
        let result = work();
        times.push((name, started.elapsed()));
        result.map_err(|error| error.context(format!("the gate fails: {name}")))
    };

    step("formatting", &mut || cargo(&["fmt", "--all", "--check"]))?;
    step("tidy", &mut || tidy_tree(root))?;
    step("lints", &mut || cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    step("documentation", &mut || {
        // Only developers read these pages, so links to private items are fine.
        let mut doc = command::cargo(root);
        doc.args(["doc", "--workspace", "--no-deps", "--document-private-items"])
            .env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links");
        command::run(&mut doc)
    })?;
    step("tests", &mut || cargo(&["test", "--workspace", "--no-fail-fast"]))?;
    step("licences and sources", &mut || deny(root))?;

    println!();
    for (name, time) in &times {
        println!("{name:<22} {:>7.1} s", time.as_secs_f64());
    }
    println!("{:<22} {:>7.1} s: the gate passes", "all", started.elapsed().as_secs_f64());
    Ok(())
}

/// Checks the house rules over the repository at `root` and prints what breaks them.
///
/// # Errors
/// A rule is broken, or the repository cannot be read.
pub fn tidy_tree(root: &Path) -> Result<()> {
    let tree = tidy::Tree::read(root)?;
    for (path, lines) in tidy::long_files(&tree) {
        println!("{path}: {lines} lines; consider dividing it by concept");
    }
    let findings = tidy::check(&tree);
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => Ok(()),
        n => bail!("{n} findings: the house rules are in docs/style.md"),
    }
}

/// Checks licences and sources of all dependencies with cargo-deny.
fn deny(root: &Path) -> Result<()> {
    let installed =
        Command::new("cargo").args(["deny", "--version"]).output().is_ok_and(|out| out.status.success());
    if !installed {
        println!("skipped: cargo-deny is not installed (cargo install --locked cargo-deny)");
        return Ok(());
    }
    // Advisories need the network and change without a commit: `cargo deny check` shows them.
    let mut deny = command::cargo(root);
    command::run(deny.args(["deny", "check", "--hide-inclusion-graph", "bans", "licenses", "sources"]))
}
