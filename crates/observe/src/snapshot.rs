//! All counters of a node at one time.
//!
//! Counts only grow during an incarnation; [`Snapshot::same_incarnation`] tells whether two
//! snapshots belong to the same one. A snapshot has names instead of numbers, so that it can be
//! read without the node's configuration.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use plexus_admin::{control::Commands, status::ProgramsStatus};
use plexus_base::{Nanos, NodeId, clock};
use plexus_interconnect::{RailReport, RailState, Reason};
use plexus_node::runtime::NodeRuntime;
use serde::{Deserialize, Serialize};

use crate::Traffic;

/// The time that the workers have to report the counts of the cache, and then those of the locks. A
/// worker that takes longer hangs; the other counts are then needed even more.
const COUNTS_WITHIN: Duration = Duration::from_millis(500);

/// The counters of one node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// The name of the node.
    pub node: String,
    /// The identifier of its process.
    pub pid: u32,
    /// The time of the snapshot, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Nanoseconds since the process first read its clock. Intervals are measured with it.
    pub uptime_ns: u64,
    /// The counters of each link.
    pub links: Vec<LinkCounts>,
    /// The state of each rail.
    pub rails: Vec<Rail>,
    /// The counters of the cache by name; empty if its workers did not answer in time.
    pub cache: BTreeMap<String, u64>,
    /// The counters of the lock manager by name; empty if its workers did not answer in time.
    #[serde(default)]
    pub locks: BTreeMap<String, u64>,
    /// The counters of the other subsystems that have any, by the names of both.
    #[serde(default)]
    pub subsystems: BTreeMap<String, BTreeMap<String, u64>>,
    /// The number of blocks that the cache holds in any mode.
    pub blocks_held: u64,
    /// The number of refused connections from unauthenticated peers.
    pub unauthenticated: u64,
    /// The resources that attached programs use.
    pub programs: ProgramsStatus,
}

/// The counters of the link of one worker to one peer.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LinkCounts {
    /// The node at the other end.
    pub peer: String,
    /// The worker that owns the link.
    pub worker: u8,
    /// The traffic of the used channels.
    pub traffic: Traffic,
}

/// One rail of one worker's link to a peer, as one of its ends sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rail {
    /// The node at the other end.
    pub peer: String,
    /// The worker that owns the link.
    pub worker: u8,
    /// The position among the rails that the pair can have, the preferred first.
    pub slot: u8,
    /// The kind of transport.
    pub kind: String,
    /// `active`, `standby` or `down`.
    pub state: String,
    /// The code of the reason for the state; see [`explain`].
    pub reason: String,
    /// The endpoints of the path; empty if unknown.
    pub path: String,
    /// The number of times that it was connected.
    pub generation: u32,
    /// True if its traffic is encrypted.
    pub encrypted: bool,
    /// The bytes that its path takes in one packet; 0 if it has no packets or the number is
    /// unknown.
    pub mtu: u32,
    /// The smoothed round-trip time in nanoseconds; 0 if unknown.
    pub rtt_ns: u64,
    /// The bytes of frames and puts sent.
    pub bytes_out: u64,
    /// The bytes of frames received.
    pub bytes_in: u64,
    /// The number of frames sent again because another rail was lost with them.
    pub frames_resent: u64,
    /// The packets with data that the system sent on the current connections; 0 if unknown.
    pub segments: u64,
    /// The packets that the system sent again.
    pub retransmits: u64,
    /// The number of times that it was lost.
    pub failures: u64,
}

impl Rail {
    fn of(report: RailReport, name: impl Fn(NodeId) -> String) -> Self {
        Self {
            peer: name(report.peer),
            worker: report.worker.0,
            slot: report.slot,
            kind: report.kind.name().into(),
            state: report.state.name().into(),
            reason: report.reason.name().into(),
            path: report.path,
            generation: report.generation,
            encrypted: report.encrypted,
            mtu: report.mtu,
            rtt_ns: report.rtt.0,
            bytes_out: report.bytes_out,
            bytes_in: report.bytes_in,
            frames_resent: report.frames_resent,
            segments: report.segments,
            retransmits: report.retransmits,
            failures: report.failures,
        }
    }

    /// Returns the rail with its change since `earlier`, or with all its counts if `earlier` is
    /// `None`.
    fn since(&self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier else { return self.clone() };
        // The system's counts of a connection start again with the next connection.
        let since = |of: fn(&Self) -> u64| of(self).checked_sub(of(earlier)).unwrap_or(of(self));
        Self {
            bytes_out: since(|rail| rail.bytes_out),
            bytes_in: since(|rail| rail.bytes_in),
            frames_resent: since(|rail| rail.frames_resent),
            segments: since(|rail| rail.segments),
            retransmits: since(|rail| rail.retransmits),
            failures: since(|rail| rail.failures),
            ..self.clone()
        }
    }

    /// Returns true if the rail carries messages.
    pub fn is_active(&self) -> bool {
        self.state == RailState::Active.name()
    }

    /// Returns true if the rail is connected.
    pub fn is_up(&self) -> bool {
        self.state != RailState::Down.name()
    }
}

/// Returns the meaning of a reason code; `None` for an unknown code.
pub fn explain(reason: &str) -> Option<&'static str> {
    Reason::ALL.into_iter().find(|known| known.name() == reason).map(Reason::explain)
}

impl Snapshot {
    /// Takes a snapshot of a node.
    pub fn of(runtime: &NodeRuntime) -> Self {
        let name = |node: NodeId| runtime.config().name_of(node);
        let mut links: BTreeMap<(NodeId, u8), Vec<_>> = BTreeMap::new();
        for link in runtime.links() {
            links.entry((link.peer, link.worker.0)).or_default().push(link);
        }
        // A peer that returned has several links, one after the other.
        let links = links.into_iter().map(|((peer, worker), links)| LinkCounts {
            peer: name(peer),
            worker,
            traffic: Traffic::of(&links),
        });
        let mut subsystems = runtime.counts_within(COUNTS_WITHIN);
        let mut counts = |name| subsystems.remove(name).unwrap_or_default();
        let (cache, locks) = (counts("cache"), counts("locks"));
        let Nanos(uptime_ns) = clock::now();
        Self {
            node: name(runtime.me()),
            pid: std::process::id(),
            unix_ms: unix_ms(SystemTime::now()),
            uptime_ns,
            links: links.collect(),
            rails: runtime.rails().into_iter().map(|report| Rail::of(report, name)).collect(),
            cache,
            locks,
            subsystems,
            blocks_held: runtime.cache().occupied() as u64,
            unauthenticated: runtime.unauthenticated(),
            programs: runtime.programs(),
        }
    }

    /// Returns true if the node ran from `earlier` to this snapshot without a restart.
    pub fn same_incarnation(&self, earlier: &Self) -> bool {
        self.pid == earlier.pid && self.uptime_ns >= earlier.uptime_ns
    }

    /// Returns the traffic of all links.
    pub fn traffic(&self) -> Traffic {
        let mut sum = Traffic::default();
        self.links.iter().for_each(|link| sum.merge(&link.traffic));
        sum
    }

    /// Returns the change since `earlier`. Returns all counts if the node restarted since or
    /// `earlier` is `None`. Values that do not grow (states, blocks held) stay as they are.
    pub fn since(&self, earlier: Option<&Self>) -> Self {
        let Some(earlier) = earlier.filter(|earlier| self.same_incarnation(earlier)) else {
            return self.clone();
        };
        let before = |link: &LinkCounts| {
            earlier.links.iter().find(|other| (&other.peer, other.worker) == (&link.peer, link.worker))
        };
        let links = self.links.iter().map(|link| LinkCounts {
            traffic: before(link)
                .map_or_else(|| link.traffic.clone(), |before| link.traffic.since(&before.traffic)),
            ..link.clone()
        });
        let rails = self.rails.iter().map(|rail| {
            let place = |rail: &Rail| (rail.peer.clone(), rail.worker, rail.slot);
            rail.since(earlier.rails.iter().find(|other| place(other) == place(rail)))
        });
        Self {
            links: links.collect(),
            rails: rails.collect(),
            cache: counted_since(&self.cache, &earlier.cache),
            locks: counted_since(&self.locks, &earlier.locks),
            subsystems: (self.subsystems.iter())
                .map(|(name, counts)| {
                    let before = earlier.subsystems.get(name);
                    (name.clone(), before.map_or_else(BTreeMap::new, |before| counted_since(counts, before)))
                })
                .collect(),
            unauthenticated: self.unauthenticated.saturating_sub(earlier.unauthenticated),
            ..self.clone()
        }
    }
}

/// Registers the control command `snapshot` of an observed node.
pub fn register_snapshot(commands: &Commands, runtime: &Arc<NodeRuntime>) {
    let runtime = Arc::clone(runtime);
    commands.register("snapshot", move |_, _| {
        serde_json::to_value(Snapshot::of(&runtime)).map_err(|error| error.to_string())
    });
}

fn counted_since(counts: &BTreeMap<String, u64>, earlier: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    // Counts that were missing before would appear as new ones.
    if earlier.is_empty() {
        return BTreeMap::new();
    }
    let before = |name| earlier.get(name).copied().unwrap_or(0);
    counts.iter().map(|(name, count)| (name.clone(), count.saturating_sub(before(name)))).collect()
}

/// Returns milliseconds since 1970.
pub(crate) fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

#[cfg(test)]
pub(crate) mod tests {
    use plexus_base::counters::{SizeCounters, SizeCounts};

    use super::*;

    /// Returns the counts of messages of these sizes.
    pub(crate) fn counted(sizes: &[u64]) -> SizeCounts {
        let counters = SizeCounters::default();
        sizes.iter().for_each(|bytes| counters.count(*bytes));
        counters.snapshot()
    }

    /// Returns the snapshot of a node that sent these requests on a channel, each answered by 8
    /// bytes.
    pub(crate) fn snapshot(node: &str, uptime_s: u64, sent: &[(&str, &str, &[u64])]) -> Snapshot {
        let mut links: BTreeMap<&str, Traffic> = BTreeMap::new();
        for (peer, channel, sizes) in sent {
            let replies = vec![8; sizes.len()];
            let none = counted(&[]);
            links.entry(peer).or_default().add(channel, [counted(sizes), counted(&replies), none, none]);
        }
        let links =
            links.into_iter().map(|(peer, traffic)| LinkCounts { peer: peer.into(), worker: 0, traffic });
        Snapshot {
            node: node.into(),
            pid: 7,
            unix_ms: 1_795_000_000_000 + uptime_s * 1000,
            uptime_ns: uptime_s * 1_000_000_000,
            links: links.collect(),
            cache: [("disk_writes".to_owned(), uptime_s)].into(),
            locks: [("granted".to_owned(), 2 * uptime_s)].into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn what_came_since_is_counted_by_link_and_not_across_a_restart() {
        let first = snapshot("n1", 10, &[("n2", "locks", &[64])]);
        let second = snapshot("n1", 12, &[("n2", "locks", &[64, 64]), ("n3", "disks", &[4096])]);
        let delta = second.since(Some(&first));
        let messages = |index: usize, channel: &str| -> u64 {
            delta.links[index].traffic.0[channel].client_out.messages.iter().sum()
        };
        assert_eq!((messages(0, "locks"), messages(1, "disks"), delta.cache["disk_writes"]), (1, 1, 2));
        assert_eq!(delta.locks["granted"], 4);
        let restarted = Snapshot { pid: 8, ..second.clone() };
        assert_eq!(restarted.since(Some(&first)), restarted);
        assert_eq!(first.since(Some(&second)), first, "a clock that went back is another incarnation");
        assert_eq!(second.since(None), second);
        let blind = Snapshot { cache: BTreeMap::new(), ..first };
        assert!(second.since(Some(&blind)).cache.is_empty());
    }

    #[test]
    fn of_rails_what_was_counted_since_is_left() {
        let rail = |slot: u8, bytes_out: u64, segments: u64| Rail {
            peer: "n2".into(),
            slot,
            state: "active".into(),
            bytes_out,
            segments,
            ..Rail::default()
        };
        let at = |rails| Snapshot { rails, ..snapshot("n1", 1, &[]) };
        let delta = at(vec![rail(0, 150, 3), rail(1, 7, 2)]).since(Some(&at(vec![rail(0, 100, 9)])));
        let counts: Vec<_> = delta.rails.iter().map(|rail| (rail.bytes_out, rail.segments)).collect();
        assert_eq!(counts, [(50, 3), (7, 2)], "a connection that is new counts from its begin");
        assert!(delta.rails.iter().all(Rail::is_active));
    }

    #[test]
    fn a_snapshot_survives_json() {
        let snapshot = snapshot("n1", 1, &[("n2", "locks", &[64, 16384])]);
        let text = serde_json::to_string(&snapshot).unwrap();
        assert_eq!(serde_json::from_str::<Snapshot>(&text).unwrap(), snapshot);
    }

    #[test]
    fn every_reason_has_a_legend_of_its_own() {
        let legends: std::collections::BTreeSet<_> =
            Reason::ALL.into_iter().filter_map(|reason| explain(reason.name())).collect();
        assert_eq!(legends.len(), Reason::ALL.len(), "{legends:?}");
        assert!(legends.iter().all(|legend| legend.len() > 10), "{legends:?}");
        assert_eq!(explain("reset"), Some("the connection was closed or reset"));
        assert_eq!(explain("else"), None);
    }
}
