//! Between two runs of a cluster: what do the nodes of this machine know of blocks that the last
//! one lost?
//!
//! Until redo exists, a changed block lives only in the cache of its holder until it is written
//! back. So when a node dies, some blocks on disk are older than what was acknowledged. The other
//! nodes find out which, record them, and refuse them until an operator accepts their old content.
//!
//! Of the records of one run those of the latest view count: the blocks that its members knew to be
//! lost, and as of which view. They may be incomplete, because nodes may have died since, here or
//! on another machine. Membership knows the nodes that ended without a leave. At a cold start the
//! cache decides how much a record proves ([`plexus_cache::protocol::Witness`]).
//!
//! Nodes that start at the same time agree through a lock and the number of the run. If no node of
//! the last run lives, the first node that starts settles that run and opens the next one. The
//! other nodes join the run that is open.

use std::{collections::BTreeMap, time::SystemTime};

use plexus_base::{BlockId, Incarnation, NodeId, crc32c};
use plexus_cache::protocol::Lost;
use serde::{Deserialize, Serialize};

use crate::{
    boot::config::{Config, NodeConfig},
    records::blocks::Blocks,
    records::durable::{self, Lock, Look},
    records::state::{self, Record, StateError},
};

/// The content of `state/lost.json`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settled {
    /// The number of the run that nodes start or are in.
    pub run: u64,
    /// The blocks that were known to be lost when the run began.
    pub lost: Blocks,
    /// The view as of which these are all that were; 0: not all may be known.
    #[serde(default)]
    pub known_as_of: u32,
    /// Nodes, each with its last incarnation that acted, or one that did not, if nothing was lost
    /// with it, and the view as of which that knew of nothing lost, or 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clean: Vec<(u8, u64, u32)>,
}

impl Settled {
    /// Takes up whether the last incarnation of `node` was clean. One that did not act does not
    /// hide the one that did before it.
    fn add_clean(&mut self, node: NodeId, record: &Record) {
        let Some(clean) = record.clean(node) else { return };
        match self.clean.iter_mut().find(|(known, ..)| *known == node.0) {
            Some(known) if record.view.is_some() => *known = clean,
            Some(_) => {}
            None => self.clean.push(clean),
        }
    }

    /// Changes with what two nodes of one cluster must agree on before they serve each other: the
    /// settings that are the same for all, and these two nodes. The lists of the two may differ in
    /// other nodes: ones that were added or removed since one of the two has started.
    pub fn fingerprint(config: &Config, one: NodeId, other: NodeId) -> u64 {
        let addresses = |node: &NodeConfig| node.all_addresses().collect::<Vec<_>>();
        let nodes = config.nodes.iter().filter(|node| [one, other].contains(&node.number));
        let nodes: Vec<_> =
            nodes.map(|node| (node.number, &node.name, &node.host, addresses(node), &node.rails)).collect();
        let settings = format!(
            "{} {} {:?} {} {} {:?} {nodes:?}",
            config.id,
            config.workers,
            config.block_size,
            config.blocks,
            config.redo_mib > 0,
            config.interconnect
        );
        u64::from(crc32c(settings.as_bytes()))
    }
}

/// Returns the start of the next run, from the records of the nodes that took part in the last one;
/// `None` if none of them acted.
pub fn settlement(run: u64, records: &BTreeMap<NodeId, Record>, blocks: u64) -> Option<Settled> {
    let views = records.values().filter_map(|record| record.view.as_ref());
    let last = views.max_by_key(|view| view.epoch)?;
    let members = last.members();
    let mut lost = Lost::default();
    let mut known_as_of = 0;
    for (node, record) in records {
        if members.incarnation(*node) == Some(Incarnation(record.incarnation)) {
            lost.join(&record.known_lost());
            known_as_of = known_as_of.max(record.known_as_of);
        }
    }
    let lost = (0..blocks).map(BlockId).filter(|block| lost.contains(*block)).collect();
    let mut settled = Settled { run, lost, known_as_of, clean: Vec::new() };
    records.iter().for_each(|(node, record)| settled.add_clean(*node, record));
    Some(settled)
}

/// Returns the result that the next start would find on disk now; changes nothing.
///
/// # Errors
/// A record is there and cannot be read.
pub fn settled(config: &Config) -> Result<Settled, StateError> {
    next(config, on_disk(config)?)
}

fn on_disk(config: &Config) -> Result<Settled, StateError> {
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

/// A node's part in a run: while this is held, no other process is this node.
#[derive(Debug)]
pub struct Entry {
    /// The run, and what is known of those before it.
    pub settled: Settled,
    /// The node's incarnation.
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
    let before = before.map(|holder| holder.incarnation);
    let before = before.max(recorded.as_ref().map(|record| record.incarnation));
    let incarnation = before.map_or(1, |before| before.saturating_add(1)).max(seconds_since_1970());
    let lock = Lock::try_take(&path, incarnation).map_err(StateError::io("locking", path))?;
    let lock =
        lock.map_err(|holder| StateError::Running { name: name.into(), pid: holder.map(|h| h.pid) })?;
    let mut settled = settle_locked(config)?;
    if let (Ok((node, _)), Some(record)) = (config.node(name), &recorded) {
        settled.add_clean(node, record);
    }
    Ok(Entry { settled, incarnation: Incarnation(incarnation), _lock: lock })
}

fn seconds_since_1970() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Every taking of a node's lock happens under this, and so does every look by which a run is
/// settled. Nodes that run look at the locks of others as they please.
fn lock(config: &Config) -> Result<Lock, StateError> {
    let path = config.dir.settle_lock();
    Lock::take(&path).map_err(StateError::io("locking", path))
}

fn settle_locked(config: &Config) -> Result<Settled, StateError> {
    let before = on_disk(config)?;
    let run = before.run;
    let settled = next(config, before)?;
    let path = config.dir.lost();
    // A file that exists can be replaced on a full disk.
    if settled.run != run || !path.exists() {
        durable::write_json(&path, &settled).map_err(StateError::io("writing what is lost", path))?;
    }
    Ok(settled)
}

/// Returns the next settlement; it is the same if its run continues or no node took part in it.
fn next(config: &Config, before: Settled) -> Result<Settled, StateError> {
    let mut records = BTreeMap::new();
    for node in config.nodes.iter() {
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
            records.insert(node.number, record);
        }
    }
    if records.is_empty() {
        return Ok(before);
    }
    let run = before.run + 1;
    Ok(settlement(run, &records, config.blocks).unwrap_or_else(|| {
        let mut after = Settled { run, ..before };
        records.iter().for_each(|(node, record)| after.add_clean(*node, record));
        after
    }))
}

#[cfg(test)]
mod tests;
