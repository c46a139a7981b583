//! Snapshots as OpenMetrics text.
//!
//! | family | type | labels besides `node` |
//! |---|---|---|
//! | `plexus_message_size_bytes` | histogram: messages, their bytes, by size | `peer`, `channel`, `role`, `direction` |
//! | `plexus_rail_up`, `_active`, `_encrypted` | gauge, 0 or 1 | `peer`, `worker`, `slot`, `rail` |
//! | `plexus_rail_round_trip_seconds`, `_mtu_bytes` | gauge, where known | the same |
//! | `plexus_rail_bytes` | counter | the same, `direction` |
//! | `plexus_rail_frames_resent`, `_segments`, `_retransmits`, `_failures`, `_connects` | counter | the same |
//! | `plexus_cache_events` | counter | `event` |
//! | `plexus_lock_events` | counter | `event` |
//! | `plexus_subsystem_events` | counter: what further subsystems count | `subsystem`, `event` |
//! | `plexus_cache_asked_seconds` | counter: time from requests to their grants | |
//! | `plexus_cache_blocks_held` | gauge | |
//! | `plexus_unauthenticated` | counter | |
//! | `plexus_programs`, `plexus_programs_most` | gauge: how many are attached, how many may be | |
//! | `plexus_program_ports`, `_windows` | gauge: what they have | |
//! | `plexus_program_memory_bytes` | gauge: memory for windows of programs | `what`: `used`, `most` |
//! | `plexus_uptime_seconds` | gauge | |
//!
//! Series exist for what was used, so their number is bounded by nodes, channels and rails, never
//! by traffic.

use std::{collections::BTreeMap, fmt};

use plexus_admin::status::ProgramsStatus;
use plexus_base::counters::SIZE_BOUNDS;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

use crate::{
    Snapshot, Traffic,
    snapshot::Rail,
    traffic::{ChannelTraffic, Sizes},
};

/// The content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The name of the cache counter that is a time in nanoseconds, not a number of events.
const ASKED: &str = "asked_ns";

type Labels = Vec<(&'static str, String)>;

/// Writes these snapshots, each of another node, as one exposition.
///
/// # Errors
/// Writing to a `String` does not fail.
pub fn text(snapshots: Vec<Snapshot>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("plexus");
    registry.register_collector(Box::new(Snapshots(snapshots)));
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Snapshots(Vec<Snapshot>);

impl Collector for Snapshots {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.messages(&mut encoder)?;
        self.rails(&mut encoder)?;
        self.programs(&mut encoder)?;
        self.rest(&mut encoder)
    }
}

impl Snapshots {
    fn messages(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let mut points = Vec::new();
        for snapshot in &self.0 {
            for (peer, traffic) in by_peer(snapshot) {
                for (channel, counts) in &traffic.0 {
                    for (role, direction, sizes) in directions(counts) {
                        let labels = vec![
                            ("node", snapshot.node.clone()),
                            ("peer", peer.clone()),
                            ("channel", channel.clone()),
                            ("role", role.to_owned()),
                            ("direction", direction.to_owned()),
                        ];
                        points.push((labels, MessageSizes(sizes)));
                    }
                }
            }
        }
        let help = "Messages by size, put data included";
        family(encoder, ("message_size", help, Some(Unit::Bytes)), points)
    }

    fn rails(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let gauge = |encoder: &mut DescriptorEncoder<'_>, head, of: &dyn Fn(&Rail) -> Option<f64>| {
            let points =
                self.each_rail().filter_map(|(labels, rail)| Some((labels, ConstGauge::new(of(rail)?))));
            family(encoder, head, points.collect())
        };
        let counter = |encoder: &mut DescriptorEncoder<'_>, head, of: &dyn Fn(&Rail) -> u64| {
            let points = self.each_rail().map(|(labels, rail)| (labels, ConstCounter::new(of(rail))));
            family(encoder, head, points.collect())
        };
        let known = |value: f64| (value > 0.0).then_some(value);
        let yes = |is: bool| Some(f64::from(u8::from(is)));
        gauge(encoder, ("rail_up", "Whether the rail is connected", None), &|rail| yes(rail.is_up()))?;
        gauge(encoder, ("rail_active", "Whether the rail carries messages", None), &|rail| {
            yes(rail.is_active())
        })?;
        gauge(encoder, ("rail_encrypted", "Whether what the rail carries is encrypted", None), &|rail| {
            yes(rail.encrypted)
        })?;
        let head = ("rail_round_trip", "Round trip on the rail, smoothed", Some(Unit::Seconds));
        gauge(encoder, head, &|rail| known(rail.rtt_ns as f64 / 1e9))?;
        gauge(encoder, ("rail_mtu", "Longest packet on the path", Some(Unit::Bytes)), &|rail| {
            known(rail.mtu.into())
        })?;
        let bytes = self.each_rail().flat_map(|(labels, rail)| {
            [("out", rail.bytes_out), ("in", rail.bytes_in)].map(|(direction, bytes)| {
                let mut labels = labels.clone();
                labels.push(("direction", direction.to_owned()));
                (labels, ConstCounter::new(bytes))
            })
        });
        family(
            encoder,
            ("rail", "Bytes of frames and puts on the rail", Some(Unit::Bytes)),
            bytes.collect(),
        )?;
        let head = ("rail_frames_resent", "Frames sent again because another rail was lost with them", None);
        counter(encoder, head, &|rail| rail.frames_resent)?;
        counter(encoder, ("rail_segments", "Packets with data that the system sent", None), &|rail| {
            rail.segments
        })?;
        counter(encoder, ("rail_retransmits", "Packets that the system sent again", None), &|rail| {
            rail.retransmits
        })?;
        counter(encoder, ("rail_failures", "How often the rail was lost", None), &|rail| rail.failures)?;
        counter(encoder, ("rail_connects", "How often the rail was connected", None), &|rail| {
            rail.generation.into()
        })
    }

    fn programs(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let each =
            || self.0.iter().map(|snapshot| (vec![("node", snapshot.node.clone())], snapshot.programs));
        let gauges: [(Head, fn(&ProgramsStatus) -> u64); 4] = [
            (("programs", "Programs that are attached", None), |programs| programs.attached),
            (("programs_most", "Programs that may be attached", None), |programs| programs.attached_most),
            (("program_ports", "Ports of programs", None), |programs| programs.ports),
            (
                ("program_windows", "Windows of programs, and copies of those of other nodes", None),
                |programs| programs.windows,
            ),
        ];
        for (head, of) in gauges {
            let points = each().map(|(labels, programs)| (labels, ConstGauge::new(of(&programs))));
            family(encoder, head, points.collect())?;
        }
        let memory = each().flat_map(|(labels, programs)| {
            [("used", programs.window_bytes), ("most", programs.window_bytes_most)].map(|(what, bytes)| {
                let mut labels = labels.clone();
                labels.push(("what", what.to_owned()));
                (labels, ConstGauge::new(bytes))
            })
        });
        let head = ("program_memory", "Memory for windows of programs", Some(Unit::Bytes));
        family(encoder, head, memory.collect())
    }

    fn rest(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let each = || self.0.iter().map(|snapshot| (vec![("node", snapshot.node.clone())], snapshot));
        let events = each().flat_map(|(labels, snapshot)| {
            let events = snapshot.cache.iter().filter(|(name, _)| *name != ASKED);
            events.map(move |(name, count)| {
                let mut labels = labels.clone();
                labels.push(("event", name.clone()));
                (labels, ConstCounter::new(*count))
            })
        });
        family(encoder, ("cache_events", "What the shared cache did", None), events.collect())?;
        let events = each().flat_map(|(labels, snapshot)| {
            snapshot.locks.iter().map(move |(name, count)| {
                let mut labels = labels.clone();
                labels.push(("event", name.clone()));
                (labels, ConstCounter::new(*count))
            })
        });
        family(encoder, ("lock_events", "What the lock manager did", None), events.collect())?;
        let events = each().flat_map(|(labels, snapshot)| {
            snapshot.subsystems.iter().flat_map(move |(subsystem, counts)| {
                let labels = labels.clone();
                counts.iter().map(move |(name, count)| {
                    let own = [("subsystem", subsystem.clone()), ("event", name.clone())];
                    (labels.iter().cloned().chain(own).collect(), ConstCounter::new(*count))
                })
            })
        });
        family(encoder, ("subsystem_events", "What further subsystems did", None), events.collect())?;
        let asked = each().filter_map(|(labels, snapshot)| {
            Some((labels, ConstCounter::new(*snapshot.cache.get(ASKED)? as f64 / 1e9)))
        });
        let head = ("cache_asked", "Time from requests for blocks to their grants", Some(Unit::Seconds));
        family(encoder, head, asked.collect())?;
        let held = each().map(|(labels, snapshot)| (labels, ConstGauge::new(snapshot.blocks_held)));
        family(encoder, ("cache_blocks_held", "Blocks that the cache holds", None), held.collect())?;
        let unauthenticated =
            each().map(|(labels, snapshot)| (labels, ConstCounter::new(snapshot.unauthenticated)));
        let head = ("unauthenticated", "Refused connections from unauthenticated peers", None);
        family(encoder, head, unauthenticated.collect())?;
        let uptime =
            each().map(|(labels, snapshot)| (labels, ConstGauge::new(snapshot.uptime_ns as f64 / 1e9)));
        family(encoder, ("uptime", "Time since the node started", Some(Unit::Seconds)), uptime.collect())
    }

    fn each_rail(&self) -> impl Iterator<Item = (Labels, &Rail)> {
        self.0.iter().flat_map(|snapshot| {
            snapshot.rails.iter().map(|rail| {
                let labels = vec![
                    ("node", snapshot.node.clone()),
                    ("peer", rail.peer.clone()),
                    ("worker", rail.worker.to_string()),
                    ("slot", rail.slot.to_string()),
                    ("rail", rail.kind.clone()),
                ];
                (labels, rail)
            })
        })
    }
}

/// The name, help and unit of a family.
type Head = (&'static str, &'static str, Option<Unit>);

/// Writes a family, unless it has no points.
fn family<M: EncodeMetric>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): Head,
    points: Vec<(Labels, M)>,
) -> fmt::Result {
    let Some((_, first)) = points.first() else { return Ok(()) };
    let mut metric = encoder.encode_descriptor(name, help, unit.as_ref(), first.metric_type())?;
    points.iter().try_for_each(|(labels, point)| point.encode(metric.encode_family(labels)?))
}

/// A histogram that was counted elsewhere.
#[derive(Debug)]
struct MessageSizes(Sizes);

impl EncodeMetric for MessageSizes {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let bounds = SIZE_BOUNDS.iter().map(|bound| *bound as f64).chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds.zip(self.0.messages).collect();
        let (messages, bytes) = (self.0.messages.iter().sum(), self.0.bytes.iter().sum::<u64>());
        encoder.encode_histogram::<NoLabelSet>(bytes as f64, messages, &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Returns the traffic with each peer, over all workers.
fn by_peer(snapshot: &Snapshot) -> BTreeMap<String, Traffic> {
    let mut peers = BTreeMap::<String, Traffic>::new();
    snapshot.links.iter().for_each(|link| peers.entry(link.peer.clone()).or_default().merge(&link.traffic));
    peers
}

fn directions(counts: &ChannelTraffic) -> impl Iterator<Item = (&'static str, &'static str, Sizes)> {
    let all = [
        ("client", "out", &counts.client_out),
        ("client", "in", &counts.client_in),
        ("server", "in", &counts.server_in),
        ("server", "out", &counts.server_out),
    ];
    let used = all.into_iter().filter(|(.., sizes)| sizes.messages.iter().any(|count| *count > 0));
    used.map(|(role, direction, sizes)| (role, direction, sizes.clone()))
}

#[cfg(test)]
#[path = "strict.rs"]
mod strict;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::tests::snapshot;

    fn two_nodes() -> Vec<Snapshot> {
        let mut first = snapshot("n1", 10, &[("n2", "locks", &[8, 8, 100]), ("n3", "disks", &[2_000_000])]);
        let rail = |slot| Rail {
            peer: "n2".into(),
            kind: "tcp".into(),
            state: "active".into(),
            slot,
            rtt_ns: 1500,
            bytes_out: 7,
            ..Rail::default()
        };
        first.rails = vec![rail(0), Rail { state: "down".into(), rtt_ns: 0, ..rail(1) }];
        first.programs = ProgramsStatus { attached: 2, ports: 5, window_bytes: 4096, ..first.programs };
        first.cache.insert(ASKED.into(), 2_500_000_000);
        first.subsystems.insert("echo".into(), [("returned".to_owned(), 4)].into());
        vec![first, snapshot("n2", 3, &[])]
    }

    #[test]
    fn the_text_is_strict_and_has_every_count() {
        let samples = strict::parse(&text(two_nodes()).unwrap()).unwrap();
        let value = |name: &str, has: &[(&str, &str)]| {
            let matching: Vec<f64> =
                samples.iter().filter(|sample| sample.is(name, has)).map(|s| s.value).collect();
            assert_eq!(matching.len(), 1, "{name} {has:?}: {matching:?}");
            matching[0]
        };
        let locks =
            [("node", "n1"), ("peer", "n2"), ("channel", "locks"), ("role", "client"), ("direction", "out")];
        assert_eq!(value("plexus_message_size_bytes_count", &locks), 3.0);
        assert_eq!(value("plexus_message_size_bytes_sum", &locks), 116.0);
        let with = |le| [&locks[..], &[("le", le)]].concat();
        assert_eq!(value("plexus_message_size_bytes_bucket", &with("8.0")), 2.0);
        assert_eq!(value("plexus_message_size_bytes_bucket", &with("64.0")), 2.0);
        assert_eq!(value("plexus_message_size_bytes_bucket", &with("128.0")), 3.0);
        assert_eq!(value("plexus_rail_up", &[("slot", "0")]), 1.0);
        assert_eq!(value("plexus_rail_up", &[("slot", "1")]), 0.0);
        assert_eq!(value("plexus_rail_round_trip_seconds", &[]), 1.5e-6);
        assert_eq!(value("plexus_rail_bytes_total", &[("slot", "1"), ("direction", "out")]), 7.0);
        assert_eq!(value("plexus_cache_events_total", &[("node", "n2"), ("event", "disk_writes")]), 3.0);
        assert_eq!(value("plexus_lock_events_total", &[("node", "n2"), ("event", "granted")]), 6.0);
        let n1 = ("node", "n1");
        let returned = [n1, ("subsystem", "echo"), ("event", "returned")];
        assert_eq!(value("plexus_subsystem_events_total", &returned), 4.0);
        assert_eq!(value("plexus_programs", &[n1]), 2.0);
        assert_eq!(value("plexus_program_ports", &[n1]), 5.0);
        assert_eq!(value("plexus_program_memory_bytes", &[n1, ("what", "used")]), 4096.0);
        assert_eq!(value("plexus_rail_segments_total", &[("slot", "0")]), 0.0);
        assert_eq!(value("plexus_cache_asked_seconds_total", &[]), 2.5);
        assert_eq!(value("plexus_unauthenticated_total", &[("node", "n2")]), 0.0);
        assert_eq!(value("plexus_uptime_seconds", &[("node", "n1")]), 10.0);
    }

    #[test]
    fn nothing_is_an_exposition_too_and_names_cannot_break_it() {
        assert!(strict::parse(&text(Vec::new()).unwrap()).unwrap().is_empty());
        let odd = snapshot("a\"b\\c\nd", 1, &[("n2", "locks", &[1])]);
        let samples = strict::parse(&text(vec![odd]).unwrap()).unwrap();
        assert!(samples.iter().all(|sample| sample.is(&sample.name, &[("node", "a\"b\\c\nd")])));
    }

    #[test]
    fn the_parser_of_the_tests_is_strict() {
        let good = "# HELP a_b x\n# TYPE a_b counter\na_b_total{c=\"d\"} 1\n# EOF\n";
        assert_eq!(strict::parse(good).unwrap().len(), 1);
        let bad = [
            ("# EOF\n", ""),
            ("# EOF\n", "# EOF\n\n"),
            ("a_b_total", "a_b"),
            ("a_b_total", "a_c_total"),
            ("{c=\"d\"} 1\n", "{c=\"d\"} 1\na_b_total{c=\"d\"} 1\n"),
            (" 1\n", " -1\n"),
            (" 1\n", " one\n"),
            ("\"d\"", "\"d"),
            ("\"d\"", "\"\\d\""),
            ("# TYPE a_b counter\n", ""),
            ("# TYPE a_b counter\n", "# TYPE a_b counter\n# TYPE a_b counter\n"),
            (
                "a_b counter\na_b_total{c=\"d\"} 1",
                "a_b histogram\na_b_bucket{le=\"1.0\"} 1\na_b_count 1\na_b_sum 1",
            ),
            (
                "a_b counter\na_b_total{c=\"d\"} 1",
                "a_b histogram\na_b_bucket{le=\"1.0\"} 2\na_b_bucket{le=\"+Inf\"} 1\na_b_count 1\na_b_sum 1",
            ),
        ];
        for (from, to) in bad {
            let text = good.replacen(from, to, 1);
            assert!(strict::parse(&text).is_err(), "{text}");
        }
    }
}
