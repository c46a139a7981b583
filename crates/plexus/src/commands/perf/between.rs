//! Measuring between two nodes of a running cluster.

use std::{path::Path, sync::atomic::Ordering};

use anyhow::{Context, bail};
use plexus_base::Waiting;
use plexus_bench::perf::{self, Attachment, Live, Measured, Op, Over, Plan, Row, Trial, alone::RailChoice};
use plexus_node::{
    config::{Config, Encrypt},
    control::ControlError,
    launch,
};
use plexus_observe::cluster::{Reading, Seen};

use super::{Cores, Teller, Wish, driving, explained};
use crate::commands::{cluster::load, interrupt::interrupted};

/// Between the two nodes called `names`, else the first two.
pub(super) fn measure(wish: &Wish, dir: &Path, names: Option<&[String; 2]>) -> anyhow::Result<Vec<Row>> {
    let interrupted = interrupted()?;
    let config = load(dir)?;
    let [client, server] = match names {
        Some([one, other]) => [config.node(one)?.0.index(), config.node(other)?.0.index()],
        None => [0, 1],
    };
    if config.nodes.len() < 2 || client == server {
        bail!("a measurement needs two nodes: name two of {}", config.dir.root().display());
    }
    if wish.cores != Cores::Usual {
        bail!("--cores: nodes stay on the `cores` of cluster.toml; change them there");
    }
    if wish.encrypt != Encrypt::Auto || wish.key.is_some() {
        bail!("--encrypt, --plain, --key: nodes encrypt as cluster.toml says and have the cluster's keys");
    }
    let as_configured = config.waiting;
    let waits = match wish.waits[..] {
        [] if as_configured == Waiting::Polling => vec![Waiting::Polling],
        [] => vec![Waiting::Polling, as_configured],
        _ => wish.waits.clone(),
    };
    let possible = |wait: &Waiting| matches!(wait, Waiting::Polling) || *wait == as_configured;
    let of_nodes = wish.trials.iter().any(|trial| trial.op != Op::Datagram);
    if let Some(wait) = waits.iter().find(|wait| of_nodes && !possible(wait)) {
        bail!("--wait {wait}: the nodes wait as cluster.toml says ({as_configured}); use that, or polling");
    }
    let over = over(&config, client, server)?;
    let uses = |wanted: &str| over.rail.split(" + ").all(|rail| rail.split(' ').next() == Some(wanted));
    let other = |wanted: &&RailChoice| **wanted != RailChoice::Auto && !uses(&wanted.to_string());
    if let Some(wanted) = wish.rails.iter().find(other) {
        bail!(
            "--rail {wanted}: the nodes use {}, and `plexus rails` says why; change `rails` in cluster.toml, or measure without a cluster",
            over.rail
        );
    }
    let attachments = attachments(&config, [client, server])?;
    let split = Split(&wish.trials);
    let mut rows = Vec::new();
    for wait in waits {
        let (driving, _) = driving(wait);
        let plan = Plan { peer: server as u8, driving, trials: split.of_nodes(), until: wish.until };
        let measure = |number| {
            let teller = Teller::new(wish, format!("{}, {wait}", over.rail), number);
            let mut measured = Vec::new();
            if !plan.trials.is_empty() {
                plan.check()?;
                let tell = &mut |live| teller.tell(split.whole(live, false));
                measured = perf::between(&config, client, &plan, &interrupted, tell).map_err(explained)?;
            }
            let datagrams = split.of_programs();
            if !datagrams.is_empty() {
                let tell = &mut |live| {
                    teller.tell(split.whole(live, true));
                    !interrupted.load(Ordering::Relaxed)
                };
                measured.extend(perf::datagrams(&attachments, wait, &datagrams, wish.until, tell)?);
            }
            Ok(split.in_order(measured))
        };
        rows.extend(wish.rows(wait, measure, &over)?);
    }
    Ok(rows)
}

/// Where programs attach to the two nodes. Their processes are known while they run.
fn attachments(config: &Config, nodes: [usize; 2]) -> anyhow::Result<[Attachment; 2]> {
    let attachment = |node: usize| {
        let name = &config.nodes[node].name;
        let pid = launch::status(&config.dir, name).map(|status| status.pid);
        let pid = pid.with_context(|| format!("{name}: does not say which process it is"))?;
        Ok::<_, anyhow::Error>(Attachment { socket: config.dir.attach(name), pid })
    };
    Ok([attachment(nodes[0])?, attachment(nodes[1])?])
}

/// Trials of which programs measure some, and the nodes the others.
struct Split<'a>(&'a [Trial]);

impl Split<'_> {
    fn places(&self, programs: bool) -> impl Iterator<Item = (usize, Trial)> {
        let places = self.0.iter().copied().enumerate();
        places.filter(move |(_, trial)| (trial.op == Op::Datagram) == programs)
    }

    fn of_nodes(&self) -> Vec<Trial> {
        self.places(false).map(|(_, trial)| trial).collect()
    }

    fn of_programs(&self) -> Vec<Trial> {
        self.places(true).map(|(_, trial)| trial).collect()
    }

    /// How far all are, where one part of them says how far it is.
    fn whole(&self, live: Live, programs: bool) -> Live {
        let trial = self.places(programs).nth(live.trial).map_or(live.trial, |(place, _)| place);
        Live { trial, ..live }
    }

    /// What the nodes measured, and behind it what programs did, in the order of the trials.
    fn in_order(&self, measured: Vec<Measured>) -> Vec<Measured> {
        let places = self.places(false).chain(self.places(true)).map(|(place, _)| place);
        let mut placed: Vec<_> = places.zip(measured).collect();
        placed.sort_by_key(|(place, _)| *place);
        placed.into_iter().map(|(_, measured)| measured).collect()
    }
}

/// The rails between the two, as the one that measures says.
fn over(config: &Config, client: usize, server: usize) -> anyhow::Result<Over> {
    let (client, server) = (&config.nodes[client].name, &config.nodes[server].name);
    let reading = Reading::take(config, Some(client))?;
    let Some((_, seen)) = reading.nodes.first() else { bail!("{client}: not found") };
    match seen {
        Seen::Alive(snapshot) => Ok(Over::of(&snapshot.rails, server)),
        Seen::Silent(why) => bail!("{why}"),
        Seen::Down => Err(ControlError::NotRunning {
            name: client.clone(),
            dir: config.dir.root().display().to_string(),
        }
        .into()),
    }
}
