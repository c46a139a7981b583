//! Measuring with a listener: one that runs elsewhere, or a process of ours that serves until we end.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::atomic::Ordering,
};

use anyhow::{Context, bail};
use plexus_base::Waiting;
use plexus_bench::perf::{
    PerfError, Row, Trial,
    alone::{AloneError, Ask, RailChoice, Session},
};

use super::{Teller, Wish, driving, place};
use crate::{
    commands::{cluster::this_program, interrupt::interrupted},
    output,
};

/// How both sides wait unless told otherwise.
const WAITS: [Waiting; 2] = [Waiting::Polling, Waiting::Adaptive];

/// Between this process and another of this machine, over every rail that there is on one.
pub(super) fn measure(wish: &Wish) -> anyhow::Result<Vec<Row>> {
    if wish.key.is_some() {
        bail!(
            "--key: the other side is a process of this one's own; a key is for --listen and who measures with it"
        );
    }
    let other = Other::start()?;
    let rails = match wish.rails.is_empty() {
        true => RailChoice::every(),
        false => wish.rails.clone(),
    };
    sessions(wish, &other.address, &rails, true)
}

/// With the listener on another machine, or wherever `host` is.
pub(super) fn measure_with(wish: &Wish, host: &str) -> anyhow::Result<Vec<Row>> {
    if wish.key.is_none() {
        output::progress(
            "without --key nobody is authenticated: whoever answers there is taken for the other side",
        );
    }
    let rails = if wish.rails.is_empty() { &[RailChoice::Auto][..] } else { &wish.rails };
    sessions(wish, host, rails, false)
}

fn sessions(wish: &Wish, address: &str, rails: &[RailChoice], here: bool) -> anyhow::Result<Vec<Row>> {
    wish.trials.iter().try_for_each(Trial::check_between_nodes)?;
    let interrupted = interrupted()?;
    let core = place(wish.cores, here)?;
    let waits = if wish.waits.is_empty() { &WAITS[..] } else { &wish.waits };
    let mut rows = Vec::new();
    for rail in rails {
        for wait in waits {
            let (driving, waiting) = driving(*wait);
            let ask = Ask { rail: *rail, waiting, driving, core, encrypt: wish.encrypt };
            let session = Session::open(address, &ask, wish.key.as_ref())?;
            let over = session.over();
            let measure = |number| {
                let teller = Teller::new(wish, format!("{}, {wait}", over.rail), number);
                let measured = session.measure(wish.trials.clone(), wish.until, &mut |live| {
                    teller.tell(live);
                    !interrupted.load(Ordering::Relaxed)
                });
                match measured {
                    Err(AloneError::Perf(PerfError::Unwanted)) => bail!("interrupted"),
                    Err(AloneError::Perf(PerfError::PeerGone(_))) => bail!("the other side is gone"),
                    other => Ok(other?),
                }
            };
            rows.extend(wish.rows(*wait, measure, over)?);
        }
    }
    Ok(rows)
}

/// A listener of our own. It ends when its input does, which is when this process ends, however that comes.
struct Other {
    child: Child,
    address: String,
}

impl Other {
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
        let said: serde_json::Value =
            serde_json::from_str(&line).with_context(|| format!("the other side said `{}`", line.trim()))?;
        other.address =
            said["listening"].as_str().context("the other side does not say where it listens")?.into();
        Ok(other)
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It has ended or is about to.
        let _ = self.child.wait();
    }
}
