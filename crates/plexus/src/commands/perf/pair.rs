//! Measures with a listener: one that runs elsewhere, or a child process.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, bail};
use plexus_base::Waiting;
use plexus_bench::perf::{
    PerfError, Row, Trial,
    alone::{AloneError, Ask, PerfSession, RailChoice},
};

use super::{MeasureRequest, ProgressReporter, driving, place};
use crate::{commands::cluster::this_program, output};

/// The default waiting modes of both sides.
const WAITS: [Waiting; 2] = [Waiting::Polling, Waiting::Adaptive];

/// Measures between this process and a child, over every rail that one machine has.
pub(super) fn measure(request: &MeasureRequest, interrupted: &AtomicBool) -> anyhow::Result<Vec<Row>> {
    if request.key.is_some() {
        bail!("--key: the other side is a child process; use a key with --listen or a HOST");
    }
    let other = ChildListener::start()?;
    let rails = match request.rails.is_empty() {
        true => RailChoice::every(),
        false => request.rails.clone(),
    };
    sessions(request, &other.address, &rails, true, interrupted)
}

/// Measures with the listener at `host`.
pub(super) fn measure_with(
    request: &MeasureRequest,
    host: &str,
    interrupted: &AtomicBool,
) -> anyhow::Result<Vec<Row>> {
    if request.key.is_none() {
        output::progress("warning: without --key the other side is not authenticated");
    }
    let rails = if request.rails.is_empty() { &[RailChoice::Auto][..] } else { &request.rails };
    sessions(request, host, rails, false, interrupted)
}

fn sessions(
    request: &MeasureRequest,
    address: &str,
    rails: &[RailChoice],
    here: bool,
    interrupted: &AtomicBool,
) -> anyhow::Result<Vec<Row>> {
    request.trials.iter().try_for_each(Trial::check_between_nodes)?;
    let core = place(request.cores, here)?;
    let waits = if request.waits.is_empty() { &WAITS[..] } else { &request.waits };
    let mut rows = Vec::new();
    for rail in rails {
        for wait in waits {
            let (driving, waiting) = driving(*wait);
            let ask = Ask { rail: *rail, waiting, driving, core, encrypt: request.encrypt };
            let session = PerfSession::open(address, &ask, request.key.as_ref())?;
            let over = session.over();
            let measure = |number| {
                let progress = ProgressReporter::new(request, format!("{}, {wait}", over.rail), number);
                let measured = session.measure(request.trials.clone(), request.until, &mut |live| {
                    progress.report(live);
                    !interrupted.load(Ordering::Relaxed)
                });
                match measured {
                    Err(AloneError::Perf(PerfError::PeerGone(_))) => bail!("the other side ended"),
                    other => Ok(other?),
                }
            };
            rows.extend(request.rows(*wait, measure, over)?);
        }
    }
    Ok(rows)
}

/// A listener in a child process. It ends when its input closes, at the latest with this process.
struct ChildListener {
    child: Child,
    address: String,
}

impl ChildListener {
    fn start() -> anyhow::Result<Self> {
        let mut child = Command::new(this_program()?)
            .args(["perf", "--listen", "127.0.0.1:0", "--lifeline", "--json"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the other side")?;
        let mut line = String::new();
        let output = child.stdout.take().context("the other side has no output")?;
        let mut other = Self { child, address: String::new() };
        BufReader::new(output).read_line(&mut line).context("the other side")?;
        let answer: serde_json::Value = serde_json::from_str(&line)
            .with_context(|| format!("the other side answered `{}`", line.trim()))?;
        other.address =
            answer["listening"].as_str().context("the other side does not report its address")?.into();
        Ok(other)
    }
}

impl Drop for ChildListener {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // The child ends when its input closes.
        let _ = self.child.wait();
    }
}
