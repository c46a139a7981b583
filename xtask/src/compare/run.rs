//! A run of a benchmark: rounds beside which other load is detected, then the report.

use std::{path::Path, process::Command};

use anyhow::{Result, bail, ensure};
use clap::Args;

use super::{document, quiet::CoreLoad, report::Report};
use crate::command;

/// The options of benchmarks with a section in the document.
#[derive(Args)]
pub(crate) struct WriteOptions {
    /// Write the results into docs/performance.md.
    #[arg(long)]
    pub write: bool,
    /// Write them although other processes use the cores.
    #[arg(long, requires = "write")]
    anyway: bool,
}

/// A run of a benchmark.
pub(crate) struct Run<'a> {
    options: &'a WriteOptions,
    load: CoreLoad,
}

impl<'a> Run<'a> {
    /// Looks for other load on `cpus`, or on all cores; comes before anything is built or started.
    ///
    /// # Errors
    /// There is other load, and the results were to be written.
    pub(crate) fn start(options: &'a WriteOptions, cpus: Option<[usize; 2]>) -> Result<Self> {
        let all = std::thread::available_parallelism()?.get();
        let mut load = CoreLoad::on(cpus.map_or_else(|| (0..all).collect(), Vec::from));
        load.sample()?;
        load.permit(options.write, options.anyway)?;
        Ok(Self { options, load })
    }

    /// Runs `round` for each round, from 1.
    ///
    /// # Errors
    /// The load cannot be read, or a round failed as a whole.
    pub(crate) fn rounds(&mut self, rounds: u32, mut round: impl FnMut(u32) -> Result<()>) -> Result<()> {
        for number in 1..=rounds {
            println!("round {number} of {rounds}");
            self.load.sample()?;
            round(number)?;
        }
        Ok(())
    }

    /// Prints the report; with `--write` also puts it into `section` of the document.
    ///
    /// # Errors
    /// The report has failed rows. There was other load and it was to be written; or it cannot be.
    pub(crate) fn end(self, root: &Path, section: &str, report: &Report) -> Result<()> {
        let warning = self.load.warning().map_or_else(String::new, |warning| format!("{warning}\n\n"));
        let text = warning + &report.text;
        println!("\n{text}");
        if self.options.write {
            self.load.permit(true, self.options.anyway)?;
            document::write(root, document::DOCUMENT, section, &text)?;
        }
        match report.failed.len() {
            0 => Ok(()),
            failed => bail!("{failed} rows:\n{}", report.failed.join("\n")),
        }
    }
}

/// Installs programs that are measured with apt-get.
///
/// # Errors
/// This process is not root on Debian, or apt-get fails.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root() && command::found("apt-get"),
        "--install needs root on Debian: run `apt-get install {}` or the equivalent of your system",
        packages.join(" ")
    );
    command::run(Command::new("apt-get").args(["install", "--yes", "--no-install-recommends"]).args(packages))
}
