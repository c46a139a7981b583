//! Measuring between two nodes of a running cluster.

use std::path::Path;

use anyhow::bail;
use plexus_base::Waiting;
use plexus_bench::perf::{self, Plan, Row, alone::RailChoice};

use super::{Cores, Teller, Wish, driving, explained};
use crate::commands::{cluster::load, interrupt::interrupted, measured};

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
    let rail = measured::rails_in_use(&config)?;
    let other = |wanted: &&RailChoice| **wanted != RailChoice::Auto && wanted.to_string() != rail;
    if let Some(wanted) = wish.rails.iter().find(other) {
        bail!(
            "--rail {wanted}: the nodes use {rail}, and `plexus rails` says why; change `rails` in cluster.toml, or measure without a cluster"
        );
    }
    let mut rows = Vec::new();
    for wait in waits {
        let (driving, _) = driving(wait);
        let plan = Plan { peer: server as u8, driving, trials: wish.trials.clone(), until: wish.until };
        plan.check()?;
        let measure = |number| {
            let teller = Teller::new(wish, format!("{rail}, {wait}"), number);
            perf::between(&config, client, &plan, &interrupted, &mut |live| teller.tell(live))
                .map_err(explained)
        };
        rows.extend(wish.rows(wait, measure, (&rail, "what the nodes use now; `plexus rails` says why"))?);
    }
    Ok(rows)
}
