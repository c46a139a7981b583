//! The traffic of a reading as tables, lines and JSON: by node, peer, worker, channel and message
//! size.
//!
//! A reading since the start shows counts; a reading of an interval shows rates per second. An
//! *operation* is a request that a node sent as client. A *message* is anything that a node sent.

use std::collections::BTreeMap;

use plexus_base::counters::SIZES;
use plexus_interconnect::Channel;
use serde_json::{Value, json};

use crate::{
    Snapshot,
    cluster::Reading,
    show::{Table, bytes, count, rate},
    traffic::{ChannelTraffic, size_name},
};

/// The key by which rows are grouped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum By {
    /// The node that counted.
    Node,
    /// The node at the other end.
    Peer,
    /// The worker of the link.
    Worker,
    /// The channel of the messages.
    Channel,
    /// The size class of the messages.
    Size,
}

/// The messages and bytes in one direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    /// The number of messages.
    pub messages: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// One row: its keys in the requested order, and its counts.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// The value of each [`By`].
    pub keys: Vec<String>,
    /// The counts of client out, client in, server in and server out.
    pub flows: [Flow; 4],
}

/// The names of the directions, in the order of [`ChannelTraffic::directions`].
pub const DIRECTIONS: [&str; 4] = ["client out", "client in", "server in", "server out"];

impl By {
    /// All keys, in the default order of columns.
    pub const ALL: [Self; 5] = [Self::Node, Self::Peer, Self::Worker, Self::Channel, Self::Size];

    /// Returns the name of the key, as an option and as a column head.
    pub fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Peer => "peer",
            Self::Worker => "worker",
            Self::Channel => "channel",
            Self::Size => "size",
        }
    }
}

impl Row {
    /// Returns the sent messages and bytes.
    pub fn outward(&self) -> Flow {
        self.flows[0].plus(self.flows[3])
    }

    /// Returns the received messages and bytes.
    pub fn inward(&self) -> Flow {
        self.flows[1].plus(self.flows[2])
    }
}

impl Flow {
    /// Adds another flow.
    pub(crate) fn add(&mut self, other: Self) {
        *self = self.plus(other);
    }

    fn plus(self, other: Self) -> Self {
        // Numbers may come from files, so additions saturate.
        Self {
            messages: self.messages.saturating_add(other.messages),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// Returns the rows of a reading, of one channel or of all. Nodes are in the order of the cluster,
/// channels in the order of the wire.
pub fn rows(reading: &Reading, by: &[By], only: Option<Channel>) -> Vec<Row> {
    let mut groups: BTreeMap<Vec<(usize, String)>, [Flow; 4]> = BTreeMap::new();
    let place = |name: &str| reading.nodes.iter().position(|(node, _)| node == name).unwrap_or(usize::MAX);
    for snapshot in reading.alive() {
        each(snapshot, |peer, worker, channel, class, flows| {
            if only.is_some_and(|only| only.name() != channel) {
                return;
            }
            let key = |by: &By| match by {
                By::Node => (place(&snapshot.node), snapshot.node.clone()),
                By::Peer => (place(peer), peer.to_owned()),
                By::Worker => (usize::from(worker), worker.to_string()),
                By::Channel => (order(channel), channel.to_owned()),
                By::Size => (class, size_name(class)),
            };
            let sum = groups.entry(by.iter().map(key).collect()).or_default();
            *sum = std::array::from_fn(|direction| sum[direction].plus(flows[direction]));
        });
    }
    let row = |(keys, flows): (Vec<(usize, String)>, _)| Row {
        keys: keys.into_iter().map(|(_, name)| name).collect(),
        flows,
    };
    groups.into_iter().map(row).collect()
}

/// Returns the number of a channel on the wire.
fn order(name: &str) -> usize {
    Channel::ALL.into_iter().position(|channel| channel.name() == name).unwrap_or(usize::MAX)
}

/// Calls `with` for every non-empty size class of every channel of every link.
fn each(snapshot: &Snapshot, mut with: impl FnMut(&str, u8, &str, usize, [Flow; 4])) {
    for link in &snapshot.links {
        for (channel, traffic) in &link.traffic.0 {
            for class in 0..SIZES {
                let flows = flows(traffic, class);
                if flows.iter().any(|flow| flow.messages > 0) {
                    with(&link.peer, link.worker, channel, class, flows);
                }
            }
        }
    }
}

fn flows(traffic: &ChannelTraffic, class: usize) -> [Flow; 4] {
    traffic.directions().map(|sizes| Flow { messages: sizes.messages[class], bytes: sizes.bytes[class] })
}

/// Returns the rows as a table of counts or rates. Repeated keys are shown once.
pub fn table(rows: &[Row], by: &[By], seconds: Option<f64>) -> Table {
    let unit = if seconds.is_some() { "/s" } else { "" };
    let counted = DIRECTIONS.into_iter().chain(["bytes out", "bytes in"]).map(|head| format!("{head}{unit}"));
    let heads: Vec<String> = by.iter().map(|by| by.name().to_owned()).chain(counted).collect();
    let mut table = Table::new(heads.iter().map(String::as_str)).left(by.len());
    let mut above: &[String] = &[];
    for row in rows {
        let same = row.keys.iter().zip(above).take_while(|(key, above)| key == above).count();
        let same = same.min(by.len().saturating_sub(1));
        let keys = row.keys.iter().enumerate().map(|(at, key)| if at < same { "" } else { key }.to_owned());
        let messages = row.flows.iter().map(|flow| number(flow.messages, seconds));
        let sizes = [row.outward().bytes, row.inward().bytes].map(|sum| amount(sum, seconds));
        table.row(keys.chain(messages).chain(sizes));
        above = &row.keys;
    }
    table
}

fn number(value: u64, seconds: Option<f64>) -> String {
    match seconds.map(|seconds| value as f64 / seconds) {
        None => count(value),
        // A rate below one is shown with a decimal, because it is not zero.
        Some(few) if few < 9.95 && value > 0 => format!("{few:.1}"),
        Some(many) => rate(many),
    }
}

pub(crate) fn amount(value: u64, seconds: Option<f64>) -> String {
    bytes(seconds.map_or(value, |seconds| (value as f64 / seconds).round() as u64))
}

/// The width of each column of [`line()`], wide enough for the fastest cluster.
const WIDTHS: [usize; 7] = [8, 13, 13, 13, 11, 11, 9];

/// Returns the column heads of [`line()`].
pub fn line_heads() -> String {
    let heads = ["time", "operations/s", "served/s", "messages/s", "out/s", "in/s", "mean"];
    columns(heads.map(str::to_owned)) + "  busiest channel"
}

/// Returns an interval as one line; `time` is the text of its end.
pub fn line(interval: &Reading, time: &str, only: Option<Channel>) -> String {
    let seconds = interval.seconds.unwrap_or(1.0);
    let channels = rows(interval, &[By::Channel], only);
    let total = rows(interval, &[], only).pop().unwrap_or_default();
    let busiest = channels.iter().max_by_key(|row| row.outward().bytes);
    let busiest = busiest.map_or_else(
        || "-".to_owned(),
        |row| format!("{} {:.0} %", row.keys[0], share(row.outward().bytes, total.outward().bytes)),
    );
    let out = total.outward();
    let cells = [
        time.to_owned(),
        number(total.flows[0].messages, Some(seconds)),
        number(total.flows[2].messages, Some(seconds)),
        number(out.messages, Some(seconds)),
        amount(out.bytes, Some(seconds)),
        amount(total.inward().bytes, Some(seconds)),
        out.bytes.checked_div(out.messages).map_or_else(|| "-".into(), bytes),
    ];
    format!("{}  {busiest}", columns(cells))
}

fn columns(cells: [String; 7]) -> String {
    let cells = cells.iter().zip(WIDTHS).enumerate();
    cells.fold(String::new(), |line, (index, (cell, width))| match index {
        0 => format!("{cell:<width$}"),
        _ => format!("{line} {cell:>width$}"),
    })
}

/// Returns a part as percent of a whole.
pub(crate) fn share(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

/// Returns a reading as a JSON object: the channels with every size class, the requested rows, and
/// the nodes.
pub fn json(reading: &Reading, by: &[By], only: Option<Channel>) -> Value {
    let mut channels = reading.traffic();
    channels.0.retain(|name, _| only.is_none_or(|only| only.name() == name));
    let seconds = reading.seconds;
    let per_second = |value: u64| seconds.map(|seconds| value as f64 / seconds);
    let rows = rows(reading, by, only).into_iter().map(|row| {
        let keys = by.iter().zip(&row.keys).map(|(by, key)| (by.name().to_owned(), json!(key)));
        let mut object: serde_json::Map<String, Value> = keys.collect();
        for (name, flow) in DIRECTIONS.into_iter().zip(row.flows) {
            let flow = json!({ "messages": flow.messages, "bytes": flow.bytes });
            object.insert(name.replace(' ', "_"), flow);
        }
        object.insert("operations_per_s".into(), json!(per_second(row.flows[0].messages)));
        object.insert("bytes_out_per_s".into(), json!(per_second(row.outward().bytes)));
        object.insert("bytes_in_per_s".into(), json!(per_second(row.inward().bytes)));
        Value::Object(object)
    });
    let nodes = reading.nodes.iter().map(|(name, seen)| match seen.alive() {
        Some(snapshot) => json!({
            "name": name, "state": seen.state(), "cache": snapshot.cache, "locks": snapshot.locks,
            "subsystems": snapshot.subsystems, "blocks_held": snapshot.blocks_held,
            "unauthenticated": snapshot.unauthenticated, "programs": snapshot.programs,
        }),
        None => json!({ "name": name, "state": seen.state() }),
    });
    json!({
        "unix_ms": reading.unix_ms, "seconds": seconds, "channels": channels,
        "rows": rows.collect::<Vec<_>>(), "nodes": nodes.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{
            Seen,
            tests::{alive, reading},
        },
        snapshot::tests::snapshot,
    };

    fn two_nodes() -> Reading {
        let n1 = snapshot("n1", 10, &[("n2", "locks", &[64, 64, 100]), ("n2", "cache-blocks", &[16384])]);
        let n2 = snapshot("n2", 10, &[("n1", "locks", &[8])]);
        reading(0, vec![("n2", alive(n2)), ("n1", alive(n1)), ("n3", Seen::Down)])
    }

    #[test]
    fn a_table_sums_by_what_is_asked_for() {
        let reading = two_nodes();
        let by = [By::Node, By::Channel];
        let table = table(&rows(&reading, &by, None), &by, None).to_string();
        let expected = "\
node  channel       client out  client in  server in  server out  bytes out  bytes in
n2    locks                  1          1          0           0        8 B       8 B
n1    locks                  3          3          0           0      228 B      24 B
      cache-blocks           1          1          0           0     16 KiB       8 B
";
        assert_eq!(table, expected);
        let sizes = rows(&reading, &[By::Size], Some(Channel::Locks));
        let names: Vec<_> = sizes.iter().map(|row| (row.keys[0].as_str(), row.outward().messages)).collect();
        assert_eq!(names, [("to 8 B", 1), ("to 64 B", 2), ("to 128 B", 1)]);
        for by in By::ALL {
            let sum: u64 = rows(&reading, &[by], None).iter().map(|row| row.outward().bytes).sum();
            assert_eq!(sum, 8 + 228 + 16384, "{by:?}");
        }
    }

    #[test]
    fn an_interval_is_shown_for_a_second_and_lines_stand_under_their_heads() {
        let interval = Reading { seconds: Some(2.0), ..two_nodes() };
        let table =
            table(&rows(&interval, &[By::Channel], None), &[By::Channel], interval.seconds).to_string();
        assert!(table.lines().next().unwrap().contains("client out/s"), "{table}");
        assert!(table.lines().any(|line| line.ends_with("8 KiB         4 B")), "{table}");
        let (heads, line) = (line_heads(), line(&interval, "12:00:01", None));
        assert_eq!(
            line,
            "12:00:01           2.5             0           2.5     8.1 KiB        20 B   3.2 KiB  cache-blocks 99 %"
        );
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!(end(&heads, "mean"), end(&line, "3.2 KiB"));
        let idle = Reading { seconds: Some(1.0), ..Reading::default() };
        assert!(super::line(&idle, "12:00:02", None).ends_with("         -  -"));
    }

    #[test]
    fn json_has_counts_rates_and_who_is_missing() {
        let value = json(&two_nodes(), &[By::Channel], None);
        assert_eq!(value["channels"]["locks"]["client_out"]["messages"][3], 2);
        assert_eq!(value["rows"][0]["client_out"], json!({ "messages": 4, "bytes": 236 }));
        assert_eq!((&value["rows"][0]["operations_per_s"], &value["seconds"]), (&Value::Null, &Value::Null));
        assert_eq!(value["nodes"][2], json!({ "name": "n3", "state": "down" }));
        let interval = Reading { seconds: Some(2.0), ..two_nodes() };
        let value = json(&interval, &[By::Peer], Some(Channel::CacheBlocks));
        assert_eq!(value["rows"][0]["bytes_out_per_s"], 8192.0);
        assert_eq!(value["channels"].as_object().unwrap().len(), 1);
    }
}
