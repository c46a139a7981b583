//! Every pair of nodes and every rail between them: in use, or the reason why not.
//!
//! Both ends of a rail report it; this module joins the two. A value that only one end knows is
//! taken from that end, such as the counts of a lost end. If the ends disagree about the state,
//! both are shown, the first node's before the second's. Workers are summed unless each is
//! requested.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::{
    cluster::Reading,
    show::{Table, count, us},
    snapshot::{Rail, explain},
    stat::{amount, share},
};

/// One rail between two nodes, over all workers or of one.
#[derive(Clone, PartialEq, Debug)]
pub struct Line {
    /// The two nodes, in the order of the cluster.
    pub pair: [String; 2],
    /// The position among the rails of the pair.
    pub slot: u8,
    /// The worker, if each worker has a line.
    pub worker: Option<u8>,
    /// The report of each end, one [`Rail`] per worker; empty if the end does not answer.
    pub ends: [Vec<Rail>; 2],
}

/// A pair without a report from either node.
type Unseen = [String; 2];

/// Returns every reported rail in the order of the cluster, and the pairs without a report.
pub fn lines(reading: &Reading, workers: bool) -> (Vec<Line>, Vec<Unseen>) {
    let names: Vec<&str> = reading.nodes.iter().map(|(name, _)| name.as_str()).collect();
    let mut lines: BTreeMap<([usize; 2], u8, Option<u8>), [Vec<Rail>; 2]> = BTreeMap::new();
    for (from, snapshot) in
        reading.nodes.iter().enumerate().filter_map(|(at, (_, seen))| Some((at, seen.alive()?)))
    {
        for rail in &snapshot.rails {
            let Some(to) = names.iter().position(|name| *name == rail.peer) else { continue };
            let (pair, end) = if from < to { ([from, to], 0) } else { ([to, from], 1) };
            let line = lines.entry((pair, rail.slot, workers.then_some(rail.worker))).or_default();
            line[end].push(rail.clone());
        }
    }
    let seen: BTreeSet<[usize; 2]> = lines.keys().map(|(pair, ..)| *pair).collect();
    let named = |pair: [usize; 2]| pair.map(|at| names[at].to_owned());
    let pairs = (0..names.len()).flat_map(|a| (a + 1..names.len()).map(move |b| [a, b]));
    let unseen = pairs.filter(|pair| !seen.contains(pair)).map(named).collect();
    let lines =
        lines.into_iter().map(|((pair, slot, worker), ends)| Line { pair: named(pair), slot, worker, ends });
    (lines.collect(), unseen)
}

impl Line {
    fn all(&self) -> impl Iterator<Item = &Rail> {
        self.ends.iter().flatten()
    }

    fn sum(&self, end: usize, of: impl Fn(&Rail) -> u64) -> u64 {
        self.ends[end].iter().map(of).sum()
    }

    fn both(&self, of: impl Fn(&Rail) -> u64) -> u64 {
        self.all().map(of).sum()
    }

    fn most(&self, of: impl Fn(&Rail) -> u64) -> u64 {
        self.all().map(of).max().unwrap_or(0)
    }

    /// Returns a value that should be equal everywhere: once if it is, else the value of each end.
    fn word<'a>(&'a self, of: impl Fn(&'a Rail) -> &'a str) -> String {
        let end = |end: usize| {
            let words: BTreeSet<&str> = self.ends[end].iter().map(&of).collect();
            words.into_iter().collect::<Vec<_>>().join("+")
        };
        match [end(0), end(1)] {
            [one, other] if one == other || other.is_empty() => one,
            [one, other] if one.is_empty() => other,
            [one, other] => format!("{one}/{other}"),
        }
    }

    /// Returns the kind of transport.
    pub fn kind(&self) -> String {
        self.word(|rail| &rail.kind)
    }

    /// Returns the state; of both ends if they disagree.
    pub fn state(&self) -> String {
        self.word(|rail| &rail.state)
    }

    /// Returns the reason for the state.
    pub fn reason(&self) -> String {
        self.word(|rail| &rail.reason)
    }

    /// Returns true if an end uses the rail.
    pub fn is_active(&self) -> bool {
        self.all().any(Rail::is_active)
    }

    /// Returns the bytes from the first node to the second and back. If the sender does not answer,
    /// the receiver's count is used.
    pub fn bytes(&self) -> [u64; 2] {
        [0, 1].map(|end| match self.ends[end].is_empty() {
            true => self.sum(1 - end, |rail| rail.bytes_in),
            false => self.sum(end, |rail| rail.bytes_out),
        })
    }

    /// Returns the longest round trip that an end measured, in nanoseconds; 0 if unknown.
    pub fn rtt_ns(&self) -> u64 {
        self.most(|rail| rail.rtt_ns)
    }

    /// Returns the percentage of packets that the systems of both ends sent again; `None` if none
    /// were sent.
    pub fn loss_percent(&self) -> Option<f64> {
        let segments = self.both(|rail| rail.segments);
        (segments > 0).then(|| share(self.both(|rail| rail.retransmits), segments))
    }

    fn row(&self, workers: bool, seconds: Option<f64>) -> Vec<String> {
        let known = |value: u64, text: String| if value == 0 { "-".into() } else { text };
        let rtt = self.rtt_ns();
        let mtu = self.all().map(|rail| rail.mtu).filter(|mtu| *mtu > 0).min().unwrap_or(0);
        let path = self.all().map(|rail| rail.path.as_str()).find(|path| !path.is_empty()).unwrap_or("-");
        let paths: BTreeSet<&str> = self.ends[0].iter().map(|rail| rail.path.as_str()).collect();
        let more = if paths.len() > 1 { format!(" +{}", paths.len() - 1) } else { String::new() };
        let [there, back] = self.bytes();
        let mut row =
            vec![self.pair.join("-"), self.slot.to_string(), self.kind(), self.state(), self.reason()];
        if workers {
            row.insert(1, self.worker.map_or_else(String::new, |worker| worker.to_string()));
        }
        row.extend([
            known(rtt, format!("{} us", us(rtt as f64 / 1e3))),
            known(mtu.into(), mtu.to_string()),
            count(self.both(|rail| rail.retransmits)),
            self.loss_percent().map_or_else(|| "-".into(), |loss| format!("{loss:.2} %")),
            count(self.both(|rail| rail.frames_resent)),
            if self.all().all(|rail| rail.encrypted) { "yes" } else { "no" }.into(),
            self.most(|rail| rail.generation.into()).to_string(),
            count(self.most(|rail| rail.failures)),
            amount(there, seconds),
            amount(back, seconds),
            format!("{path}{more}"),
        ]);
        row
    }
}

/// Returns the table, the legend of its reasons and the missing nodes as text. In an interval,
/// bytes are per second.
pub fn text(reading: &Reading, workers: bool) -> String {
    let (lines, unseen) = lines(reading, workers);
    let mut text = String::new();
    if !lines.is_empty() {
        let mut heads = vec!["pair", "slot", "rail", "state", "why"];
        if workers {
            heads.insert(1, "worker");
        }
        let left = heads.len();
        heads.extend([
            "round trip",
            "MTU",
            "retransmits",
            "loss",
            "resent",
            "encrypted",
            "generation",
            "failures",
        ]);
        heads.extend(if reading.seconds.is_some() { ["there/s", "back/s"] } else { ["there", "back"] });
        heads.push("path");
        let mut table = Table::new(heads).left(left);
        lines.iter().for_each(|line| table.row(line.row(workers, reading.seconds)));
        text += &table.to_string();
        let reasons: BTreeSet<&str> =
            lines.iter().flat_map(Line::all).map(|rail| rail.reason.as_str()).collect();
        text += "\n";
        for reason in reasons {
            text += &format!("{reason}: {}\n", explain(reason).unwrap_or("not known to this version"));
        }
    }
    for [one, other] in unseen {
        text += &format!("{one}-{other}: neither says anything about rails between them\n");
    }
    for missing in reading.missing() {
        text += &format!("{missing}\n");
    }
    if text.is_empty() {
        text = "one node: there are no rails\n".into();
    }
    text
}

/// Returns every rail with the reports of both ends as JSON, in base units.
pub fn json(reading: &Reading, workers: bool) -> Value {
    let (lines, unseen) = lines(reading, workers);
    let per_second = |bytes: u64| reading.seconds.map(|seconds| bytes as f64 / seconds);
    let rails = lines.iter().map(|line| {
        let [there, back] = line.bytes();
        json!({
            "pair": line.pair, "slot": line.slot, "worker": line.worker, "rail": line.kind(),
            "state": line.state(), "reason": line.reason(),
            "active": line.is_active(), "rtt_ns": line.rtt_ns(), "bytes_there": there, "bytes_back": back,
            "bytes_there_per_s": per_second(there), "bytes_back_per_s": per_second(back), "loss_percent": line.loss_percent(),
            "ends": { &line.pair[0]: line.ends[0], &line.pair[1]: line.ends[1] },
        })
    });
    let nodes = reading.nodes.iter().map(|(name, seen)| json!({ "name": name, "state": seen.state() }));
    json!({
        "unix_ms": reading.unix_ms, "seconds": reading.seconds, "rails": rails.collect::<Vec<_>>(), "unseen": unseen,
        "nodes": nodes.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Snapshot,
        cluster::{
            Seen,
            tests::{alive, reading},
        },
    };

    fn rail(peer: &str, worker: u8, slot: u8, state: &str, reason: &str) -> Rail {
        Rail {
            peer: peer.into(),
            worker,
            slot,
            kind: if slot == 0 { "shm" } else { "tcp" }.into(),
            state: state.into(),
            reason: reason.into(),
            generation: 1,
            bytes_out: 1000,
            bytes_in: 20,
            ..Rail::default()
        }
    }

    fn node(name: &str, rails: Vec<Rail>) -> Seen {
        alive(Snapshot { node: name.into(), rails, ..Snapshot::default() })
    }

    fn three_nodes() -> Reading {
        let tcp = Rail {
            rtt_ns: 34_560,
            mtu: 1500,
            path: "a:1 -> b:2".into(),
            encrypted: true,
            ..rail("n2", 0, 1, "standby", "slower")
        };
        let lost = Rail { failures: 2, segments: 2800, retransmits: 7, ..rail("n1", 0, 1, "down", "reset") };
        let n1 = vec![rail("n2", 0, 0, "active", "best"), rail("n2", 1, 0, "active", "best"), tcp];
        let n2 = vec![rail("n1", 0, 0, "active", "best"), rail("n1", 1, 0, "active", "best"), lost];
        let gone = Seen::Silent("n3 does not answer to `snapshot`".into());
        reading(0, vec![("n1", node("n1", n1)), ("n2", node("n2", n2)), ("n3", gone)])
    }

    #[test]
    fn both_ends_are_one_line_and_disagreement_shows() {
        let text = text(&three_nodes(), false);
        let lines: Vec<&str> = text.lines().collect();
        let cells = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(
            cells(1),
            [
                "n1-n2", "0", "shm", "active", "best", "-", "-", "0", "-", "0", "no", "1", "0", "2.0", "KiB",
                "2.0", "KiB", "-"
            ]
        );
        assert_eq!(cells(2)[..5], ["n1-n2", "1", "tcp", "standby/down", "slower/reset"]);
        assert!(lines[2].contains("34.6 us  1500            7  0.25 %       0         no"), "{text}");
        assert!(lines[2].ends_with("a:1 -> b:2"), "{text}");
        assert!(text.contains("\nreset: the connection was closed or reset\n"), "{text}");
        assert!(
            text.contains("\nn1-n3: neither says anything") && text.contains("\nn3 does not answer"),
            "{text}"
        );
        assert_eq!(super::lines(&three_nodes(), true).0.len(), 3);
    }

    #[test]
    fn an_interval_shows_what_went_in_a_second() {
        let interval = Reading { seconds: Some(4.0), ..three_nodes() };
        let text = text(&interval, false);
        let [heads, row, ..] = &text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        let end = |line: &str, word: &str| line.find(word).unwrap() + word.len();
        assert_eq!((end(heads, "there/s"), heads.contains("back/s")), (end(row, "500 B"), true), "{text}");
        let value = json(&interval, false);
        assert_eq!(
            (&value["seconds"], &value["rails"][0]["bytes_there_per_s"]),
            (&json!(4.0), &json!(500.0))
        );
        assert_eq!(value["rails"][1]["loss_percent"], json!(0.25));
    }

    #[test]
    fn unreachable_node_is_reported_by_its_peers() {
        let n1 = node("n1", vec![rail("n2", 0, 0, "down", "peer-ended")]);
        let reading = reading(0, vec![("n1", n1), ("n2", Seen::Down)]);
        let (lines, unseen) = lines(&reading, false);
        assert_eq!((lines[0].bytes(), unseen.len()), ([1000, 20], 0));
        let value = json(&reading, false);
        assert_eq!(value["rails"][0]["reason"], "peer-ended");
        assert_eq!(value["rails"][0]["ends"]["n2"], json!([]));
        assert_eq!(value["nodes"][1], json!({ "name": "n2", "state": "down" }));
        assert!(text(&reading, false).contains("\nn2 is down\n"));
        assert!(text(&super::Reading::default(), false).contains("no rails"));
    }
}
