//! Measuring between two nodes of a running cluster.

use std::path::Path;

use anyhow::bail;
use plexus_base::Waiting;
use plexus_bench::perf::{self, Over, Plan, Row, alone::RailChoice};
use plexus_node::{config::Config, control::ControlError};
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
    if wish.encrypt || wish.key.is_some() {
        bail!("--encrypt, --key: nodes encrypt as cluster.toml says and have the cluster's keys");
    }
    let as_configured = config.waiting;
    let waits = match wish.waits[..] {
        [] if as_configured == Waiting::Polling => vec![Waiting::Polling],
        [] => vec![Waiting::Polling, as_configured],
        _ => wish.waits.clone(),
    };
    let possible = |wait: &Waiting| matches!(wait, Waiting::Polling) || *wait == as_configured;
    if let Some(wait) = waits.iter().find(|wait| !possible(wait)) {
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
    let mut rows = Vec::new();
    for wait in waits {
        let (driving, _) = driving(wait);
        let plan = Plan { peer: server as u8, driving, trials: wish.trials.clone(), until: wish.until };
        plan.check()?;
        let measure = |number| {
            let teller = Teller::new(wish, format!("{}, {wait}", over.rail), number);
            perf::between(&config, client, &plan, &interrupted, &mut |live| teller.tell(live))
                .map_err(explained)
        };
        rows.extend(wish.rows(wait, measure, &over)?);
    }
    Ok(rows)
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
