//! Measuring between two nodes of a running cluster.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use plexus_admin::{
    config::{Config, Encrypt},
    launch,
};
use plexus_base::Waiting;
use plexus_bench::perf::{self, Attachment, Live, Measured, Op, Over, Plan, Row, Trial, alone::RailChoice};
use plexus_observe::cluster::Reading;

use super::{Cores, MeasureRequest, ProgressReporter, driving, measured};

/// Measures between the two nodes called `names`, or else the first two.
pub(super) fn measure(
    request: &MeasureRequest,
    config: &Config,
    names: Option<&[String; 2]>,
    interrupted: &AtomicBool,
) -> anyhow::Result<Vec<Row>> {
    let [client, server] = match names {
        Some([one, other]) => [config.node(one)?.0.index(), config.node(other)?.0.index()],
        None => {
            let mut numbers = config.nodes.iter().map(|node| node.number.index());
            [numbers.next(), numbers.next()].map(Option::unwrap_or_default)
        }
    };
    if client == server {
        bail!("a measurement needs two nodes: name two of {}", config.dir.root().display());
    }
    if request.cores != Cores::Usual {
        bail!("--cores: nodes run on the `cores` of cluster.toml; change them there");
    }
    if request.encrypt != Encrypt::Auto || request.key.is_some() {
        bail!(
            "--encrypt, --plain, --key: nodes use the encryption and keys of their cluster; change cluster.toml"
        );
    }
    let as_configured = config.waiting;
    let waits = match request.waits[..] {
        [] if as_configured == Waiting::Polling => vec![Waiting::Polling],
        [] => vec![Waiting::Polling, as_configured],
        _ => request.waits.clone(),
    };
    let possible = |wait: &Waiting| matches!(wait, Waiting::Polling) || *wait == as_configured;
    let of_nodes = request.trials.iter().any(|trial| trial.op != Op::Datagram);
    if let Some(wait) = waits.iter().find(|wait| of_nodes && !possible(wait)) {
        bail!("--wait {wait}: the nodes wait as cluster.toml says ({as_configured}); use that, or polling");
    }
    measured::check_here(config, [client, server].into_iter().map(|node| &config.nodes[node]))?;
    let over = over(config, client, server)?;
    let uses = |wanted: &str| over.rail.split(" + ").all(|rail| rail.split(' ').next() == Some(wanted));
    let other = |wanted: &&RailChoice| **wanted != RailChoice::Auto && !uses(&wanted.to_string());
    if let Some(wanted) = request.rails.iter().find(other) {
        bail!(
            "--rail {wanted}: the nodes use {} (see `plexus rails`); change `rails` in cluster.toml, or measure without a cluster",
            over.rail
        );
    }
    let attachments = attachments(config, [client, server])?;
    let split = Split(&request.trials);
    let mut rows = Vec::new();
    for wait in waits {
        let (driving, _) = driving(wait);
        let plan = Plan { peer: server as u8, driving, trials: split.node_trials(), until: request.until };
        let measure = |number| {
            let progress = ProgressReporter::new(request, format!("{}, {wait}", over.rail), number);
            let mut measured = Vec::new();
            if !plan.trials.is_empty() {
                plan.check()?;
                let report = &mut |live| progress.report(split.whole(live, false));
                measured =
                    perf::between(config, client, &plan, interrupted, report).map_err(measured::explained)?;
            }
            let datagrams = split.program_trials();
            if !datagrams.is_empty() {
                let report = &mut |live| {
                    progress.report(split.whole(live, true));
                    !interrupted.load(Ordering::Relaxed)
                };
                measured.extend(perf::datagrams(&attachments, wait, &datagrams, request.until, report)?);
            }
            Ok(split.in_order(measured))
        };
        rows.extend(request.rows(wait, measure, &over)?);
    }
    Ok(rows)
}

/// Returns the sockets where programs attach to the two nodes, with the nodes' process ids.
fn attachments(config: &Config, nodes: [usize; 2]) -> anyhow::Result<[Attachment; 2]> {
    let attachment = |node: usize| {
        let name = &config.nodes[node].name;
        let pid = launch::status(&config.dir, name).map(|status| status.pid);
        let pid = pid.with_context(|| format!("{name}: does not report its process id"))?;
        Ok::<_, anyhow::Error>(Attachment { socket: config.dir.attach(name), pid })
    };
    Ok([attachment(nodes[0])?, attachment(nodes[1])?])
}

/// The trials, split into those that programs measure and those that nodes measure.
struct Split<'a>(&'a [Trial]);

impl Split<'_> {
    fn positions(&self, programs: bool) -> impl Iterator<Item = (usize, Trial)> {
        let positions = self.0.iter().copied().enumerate();
        positions.filter(move |(_, trial)| (trial.op == Op::Datagram) == programs)
    }

    fn node_trials(&self) -> Vec<Trial> {
        self.positions(false).map(|(_, trial)| trial).collect()
    }

    fn program_trials(&self) -> Vec<Trial> {
        self.positions(true).map(|(_, trial)| trial).collect()
    }

    /// Maps the progress of one part to the progress of all trials.
    fn whole(&self, live: Live, programs: bool) -> Live {
        let trial = self.positions(programs).nth(live.trial).map_or(live.trial, |(place, _)| place);
        Live { trial, ..live }
    }

    /// Sorts the measurements, first those of nodes and then those of programs, into the order of
    /// the trials.
    fn in_order(&self, measured: Vec<Measured>) -> Vec<Measured> {
        let positions = self.positions(false).chain(self.positions(true)).map(|(place, _)| place);
        let mut placed: Vec<_> = positions.zip(measured).collect();
        placed.sort_by_key(|(place, _)| *place);
        placed.into_iter().map(|(_, measured)| measured).collect()
    }
}

/// Returns the rails between the two nodes, as the client's node reports them.
fn over(config: &Config, client: usize, server: usize) -> anyhow::Result<Over> {
    let (client, server) = (&config.nodes[client].name, &config.nodes[server].name);
    let reading = Reading::take(config, Some(client))?;
    let Some((_, seen)) = reading.nodes.first() else { bail!("{client}: not found") };
    let snapshot = seen.answer(&config.dir, client).map_err(anyhow::Error::msg)?;
    Ok(Over::of(&snapshot.rails, server))
}
