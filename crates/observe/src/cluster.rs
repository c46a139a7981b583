//! The snapshots of all nodes of a cluster, taken nearly at once, and the change between two
//! readings.
//!
//! Nodes of other hosts are asked through nodes of this one. A node that is down or does not answer
//! is part of a reading, not an error: an observer wants to see exactly that. All nodes of this
//! host are asked at the same time, and then all others. A hanging node delays a reading by at most
//! two [timeouts](TIMEOUT) and a bit.

use std::time::{Duration, SystemTime};

use plexus_admin::{
    config::{Config, ConfigError},
    control,
};

use crate::{Snapshot, Traffic, snapshot::unix_ms};

/// The time that a node has to answer.
const TIMEOUT: Duration = Duration::from_secs(3);

/// The state of one node in a reading.
pub type Seen = control::Seen<Snapshot>;

/// The state of all nodes at one time, or their change in an interval.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reading {
    /// The end of the reading, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The length of the interval; `None` for counts since each node started.
    pub seconds: Option<f64>,
    /// The name and state of each node that was asked.
    pub nodes: Vec<(String, Seen)>,
}

impl Reading {
    /// Asks every node, or only the node called `only`.
    ///
    /// # Errors
    /// There is no node of that name.
    pub fn take(config: &Config, only: Option<&str>) -> Result<Self, ConfigError> {
        let names: Vec<&str> = match only {
            Some(name) => vec![&config.node(name)?.1.name],
            None => config.nodes.iter().map(|node| node.name.as_str()).collect(),
        };
        let unix_ms = unix_ms(SystemTime::now());
        let nodes = Seen::of_cluster(config, &names, "snapshot", TIMEOUT);
        Ok(Self { unix_ms, seconds: None, nodes })
    }

    /// Returns the change since `earlier`. Seconds are those of the nodes' own clocks. A node that
    /// did not answer earlier shows no change, because the time of its counts is unknown.
    pub fn since(&self, earlier: &Self) -> Self {
        let before = |name: &str| earlier.nodes.iter().find(|(other, _)| other == name).map(|(_, seen)| seen);
        let mut elapsed = Vec::new();
        let nodes = self.nodes.iter().map(|(name, now)| {
            let Seen::Alive(now) = now else { return (name.clone(), now.clone()) };
            let delta = match before(name) {
                Some(Seen::Alive(before)) => {
                    if now.same_incarnation(before) {
                        elapsed.push((now.uptime_ns - before.uptime_ns) as f64 / 1e9);
                    }
                    now.since(Some(before))
                }
                Some(Seen::Down | Seen::Removed) => now.since(None),
                Some(Seen::Silent(_) | Seen::Unreachable(_)) | None => now.since(Some(now)),
            };
            (name.clone(), Seen::Alive(Box::new(delta)))
        });
        let nodes: Vec<_> = nodes.collect();
        let seconds = match elapsed.len() {
            0 => self.unix_ms.saturating_sub(earlier.unix_ms) as f64 / 1e3,
            count => elapsed.iter().sum::<f64>() / count as f64,
        };
        // Two readings at the same time have no rate; this avoids a division by zero.
        Self { unix_ms: self.unix_ms, seconds: Some(seconds.max(1e-3)), nodes }
    }

    /// Returns the snapshots of the nodes that answered.
    pub fn alive(&self) -> impl Iterator<Item = &Snapshot> {
        self.nodes.iter().filter_map(|(_, seen)| seen.alive())
    }

    /// Returns one line for each missing node, with the reason.
    pub fn missing(&self) -> impl Iterator<Item = String> {
        self.nodes.iter().filter_map(|(name, seen)| match seen {
            Seen::Alive(_) => None,
            Seen::Silent(why) | Seen::Unreachable(why) => Some(why.clone()),
            Seen::Down => Some(format!("{name} is down")),
            Seen::Removed => Some(format!("{name} does not belong to the cluster")),
        })
    }

    /// Returns the traffic of all links of all nodes.
    pub fn traffic(&self) -> Traffic {
        let mut sum = Traffic::default();
        self.alive().for_each(|snapshot| sum.merge(&snapshot.traffic()));
        sum
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::snapshot::tests::snapshot;

    /// Returns a reading of these nodes.
    pub(crate) fn reading(unix_ms: u64, nodes: Vec<(&str, Seen)>) -> Reading {
        let nodes = nodes.into_iter().map(|(name, seen)| (name.to_owned(), seen)).collect();
        Reading { unix_ms, seconds: None, nodes }
    }

    pub(crate) fn alive(snapshot: Snapshot) -> Seen {
        Seen::Alive(Box::new(snapshot))
    }

    #[test]
    fn an_interval_takes_its_seconds_from_the_nodes_and_its_counts_from_whom_it_knows() {
        let busy = |uptime| alive(snapshot("n", uptime, &[("m", "locks", &vec![8; uptime as usize])]));
        let first = reading(
            0,
            vec![
                ("n1", busy(10)),
                ("n2", busy(20)),
                ("n3", Seen::Down),
                ("n4", Seen::Silent("n4: ?".into())),
                ("n5", busy(1)),
            ],
        );
        let second = reading(
            9000,
            vec![("n1", busy(12)), ("n2", busy(24)), ("n3", busy(1)), ("n4", busy(30)), ("n5", Seen::Down)],
        );
        let interval = second.since(&first);
        assert_eq!(interval.seconds, Some(3.0));
        let sent = |node: usize| -> u64 {
            let traffic = interval.nodes[node].1.alive().unwrap().traffic();
            traffic.0.values().map(|channel| channel.client_out.messages.iter().sum::<u64>()).sum()
        };
        assert_eq!([sent(0), sent(1), sent(2), sent(3)], [2, 4, 1, 0]);
        assert_eq!(interval.missing().collect::<Vec<_>>(), ["n5 is down"]);
        assert_eq!(first.missing().collect::<Vec<_>>(), ["n3 is down", "n4: ?"]);
        assert_eq!(reading(5000, vec![]).since(&reading(3000, vec![])).seconds, Some(2.0));
    }
}
