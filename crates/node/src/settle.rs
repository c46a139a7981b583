//! Between two runs of a cluster: which blocks did the last one lose?
//!
//! Until redo exists, a changed block lives only in the cache of its holder until it is written back. So when
//! a node dies, some blocks on disk are older than what was acknowledged. This is found out here, from the
//! records that the nodes left, and the blocks are named and refused until the user accepts their old content.
//!
//! The rule, for the records of one run: of the views in them the latest counts. What its members knew to be lost is lost, and so is every
//! block that was mastered in it by a member that died: recorded `running` in the life that the view has. Nothing is added where somebody of that view
//! recorded *clean*, because that is written only after every member had handed back. Members whose records are not here are on machines that
//! settle for themselves; when nodes found a cluster anew, they tell each other what each of them knows.
//!
//! Nodes that start at the same time agree through a lock and the number of the run: whoever comes first
//! when no node of the last run lives settles it and opens the next; the others join that one.

use std::{collections::BTreeMap, time::SystemTime};

use plexus_base::{BlockId, Incarnation, NodeId, NodeSet, Partition, crc32c};
use plexus_cache::protocol::Lost;
use serde::{Deserialize, Serialize};

use crate::{
    blocks::Blocks,
    config::{Config, NodeConfig},
    durable::{self, Lock, Look},
    state::{self, Phase, Record, StateError},
};

/// Instead of a view: what was lost was accepted as it is, whatever it was.
const ACCEPTED: u32 = u32::MAX;

/// What `state/lost.json` says.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settled {
    /// The number of the run that nodes start or are in.
    pub run: u64,
    /// The blocks that earlier runs lost and nobody has accepted yet. They are refused in this run.
    pub lost: Blocks,
    /// The view of the cluster in which things stood so. A later one than any: they were accepted as they are since.
    #[serde(default)]
    pub view: u32,
    /// Nodes, each with a life with which nothing was lost, and the view as of which that knew of nothing lost, or 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clean: Vec<(u8, u64, u32)>,
}

impl Settled {
    /// Changes with what two nodes of one cluster must agree on before they serve each other: the settings that are the
    /// same for all, and the nodes up to the later of the two. Behind them more may be added.
    #[must_use]
    pub fn fingerprint(config: &Config, one: NodeId, other: NodeId) -> u64 {
        let addresses = |node: &NodeConfig| node.all_addresses().collect::<Vec<_>>();
        let nodes = config.nodes.iter().take(one.max(other).index() + 1);
        let nodes: Vec<_> =
            nodes.map(|node| (&node.name, &node.host, addresses(node), &node.rails)).collect();
        let settings = format!(
            "{} {} {:?} {} {:?} {nodes:?}",
            config.id, config.workers, config.block_size, config.blocks, config.interconnect
        );
        u64::from(crc32c(settings.as_bytes()))
    }
}

/// What the next run begins with, by the records of the nodes that took part in the last; none: nobody acted.
#[must_use]
pub fn settlement(run: u64, records: &BTreeMap<NodeId, Record>, blocks: u64) -> Option<Settled> {
    let views = records.values().filter_map(|record| record.view.as_ref());
    let last = views.max_by_key(|view| view.epoch)?;
    let view = last.members();
    let mut lost = Lost::default();
    let (mut dead, mut is_clean, mut whole) = (NodeSet::EMPTY, false, 0);
    for (node, record) in records {
        match view.life(*node) {
            None => {}
            Some(life) if life.0 == record.incarnation => {
                lost.join(&record.known_lost());
                whole = whole.max(record.whole);
                match record.phase {
                    Phase::Running => dead.insert(*node),
                    Phase::Left => {}
                    Phase::Clean => is_clean |= record.view.as_ref() == Some(last),
                }
            }
            // It began another life, and nobody acted in a view with that: the one before died.
            Some(_) => dead.insert(*node),
        }
    }
    let masters: Vec<NodeId> = (0..Partition::COUNT).map(|number| view.master(Partition(number))).collect();
    let is_unknown = |block: &BlockId| {
        !is_clean && dead.contains(masters[usize::from(block.partition().0)]) || lost.contains(*block)
    };
    let clean = clean(records).collect();
    let lost = (0..blocks).map(BlockId).filter(is_unknown).collect();
    Some(Settled { run, lost, view: whole, clean })
}

fn clean(records: &BTreeMap<NodeId, Record>) -> impl Iterator<Item = (u8, u64, u32)> {
    records.iter().filter_map(|(node, record)| record.clean(*node))
}

/// What stands in `state/lost.json` now; changes nothing.
///
/// # Errors
/// The file is there and cannot be read.
pub fn settled(config: &Config) -> Result<Settled, StateError> {
    let path = config.dir.lost();
    Ok(durable::read_json(&path).map_err(StateError::reading(path))?.unwrap_or_default())
}

/// Settles the last run if it is over, and says which run is to be joined.
///
/// # Errors
/// A record cannot be read or written. Nothing was changed.
pub fn settle(config: &Config) -> Result<Settled, StateError> {
    let _lock = lock(config)?;
    settle_locked(config)
}

/// Settles, and then takes every lost block as it is on disk; the blocks that were lost until now.
///
/// # Errors
/// As [`settle`].
pub fn accept_lost(config: &Config) -> Result<Blocks, StateError> {
    let _lock = lock(config)?;
    let mut settled = settle_locked(config)?;
    let lost = std::mem::replace(&mut settled.lost, Blocks::EMPTY);
    settled.view = ACCEPTED;
    write(config, &settled)?;
    Ok(lost)
}

/// A node's part in a run: while this is held, no other process is this node.
#[derive(Debug)]
pub struct Entry {
    /// The run, and the blocks to be refused in it.
    pub settled: Settled,
    /// The node's life.
    pub incarnation: Incarnation,
    _lock: Lock,
}

/// As [`settle`], for the node called `name`, which is to take part: takes its lock.
///
/// # Errors
/// As [`settle`], and [`StateError::Running`] when the node lives already.
pub fn enter(config: &Config, name: &str) -> Result<Entry, StateError> {
    let _settling = lock(config)?;
    let path = config.dir.lock(name);
    let before = Lock::last(&path).map_err(StateError::io("looking at the lock", path.clone()))?;
    let recorded = state::record(&config.dir, name)?;
    // Lives are numbered upwards, also where these files were lost or the clock was set back.
    let before = before.map(|holder| holder.incarnation).max(recorded.map(|record| record.incarnation));
    let incarnation = before.map_or(1, |before| before.saturating_add(1)).max(seconds_since_1970());
    let lock = Lock::try_take(&path, incarnation).map_err(StateError::io("locking", path))?;
    let lock =
        lock.map_err(|holder| StateError::Running { name: name.into(), pid: holder.map(|h| h.pid) })?;
    let settled = settle_locked(config)?;
    if settled.view == ACCEPTED {
        // By this life only: what others lose while it is not there nobody has accepted.
        write(config, &Settled { view: 0, ..settled.clone() })?;
    }
    Ok(Entry { settled, incarnation: Incarnation(incarnation), _lock: lock })
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Every taking of a node's lock happens under this, and so does every look by which a run is settled. Nodes that run look
/// at the locks of others as they please.
fn lock(config: &Config) -> Result<Lock, StateError> {
    let path = config.dir.settle_lock();
    Lock::take(&path).map_err(StateError::io("locking", path))
}

fn settle_locked(config: &Config) -> Result<Settled, StateError> {
    let before = settled(config)?;
    let mut records = BTreeMap::new();
    for (index, node) in config.nodes.iter().enumerate() {
        if let Some(record) = state::record(&config.dir, &node.name)?
            && record.run == before.run
        {
            let path = config.dir.lock(&node.name);
            let look = Lock::look(&path).map_err(StateError::io("looking at the lock", path))?;
            // Another incarnation is a node that starts: it is not in this run.
            if let Look::Held(Some(holder)) = look
                && holder.incarnation == record.incarnation
            {
                return Ok(before);
            }
            records.insert(NodeId(index as u8), record);
        }
    }
    if records.is_empty() {
        return Ok(before);
    }
    let run = before.run + 1;
    let after = settlement(run, &records, config.blocks).unwrap_or_else(|| {
        let mut after = Settled { run, ..before };
        after.clean.extend(clean(&records));
        after
    });
    write(config, &after)?;
    Ok(after)
}

fn write(config: &Config, settled: &Settled) -> Result<(), StateError> {
    let path = config.dir.lost();
    durable::write_json(&path, settled).map_err(StateError::io("writing what is lost", path))
}

#[cfg(test)]
mod tests;
