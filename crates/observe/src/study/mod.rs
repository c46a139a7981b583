//! The evaluation of a recording: the spread of message sizes, the traffic of channels, and both
//! over time.
//!
//! Every message is counted once, at its sender. The time axis has slots of one length, and an
//! interval is drawn over all slots in which it was: a longer one as its mean. A slot without a
//! report of any node stays empty and does not count as idle.

mod page;

use std::{collections::BTreeMap, io, time::Duration};

use plexus_base::counters::SIZES;

use crate::{
    recording::{Head, NodeState, Record, Recording, Tail},
    show::{Bars, DrawError, Stack, Table, bytes, count, date, duration, rate, time},
    stat::{DIRECTIONS, Flow, share},
    traffic::size_name,
};

/// The maximum of slots on the time axis, for which a picture has room.
const PLACES: u64 = 240;

/// The layers of a picture over time; the remaining channels are one more.
const LAYERS: usize = 7;

/// The evaluation of a recording.
pub struct Study {
    head: Head,
    from_ms: u64,
    to_ms: u64,
    records: u64,
    end: u64,
    tail: Tail,
    /// The time in which at least one node answered.
    watched: Duration,
    sizes: [Flow; SIZES],
    channels: BTreeMap<usize, Channel>,
    places: Vec<TimeSlot>,
    nodes: Vec<Node>,
}

/// The counts of a channel over the whole time.
#[derive(Clone, Copy, Default)]
struct Channel {
    sent: Flow,
    /// The highest rate of one interval, in bytes per second.
    peak: f64,
}

/// The counts of a node over the whole time.
#[derive(Clone, Default)]
struct Node {
    sent: Flow,
    requests: u64,
    /// The numbers of intervals in which it answered, did not answer, and did not run.
    states: [u64; 3],
}

/// One slot of the time axis: the parts of intervals in it.
#[derive(Clone, Default)]
struct TimeSlot {
    seconds: f64,
    bytes: BTreeMap<usize, f64>,
}

/// The pictures and the page that contains them.
pub struct Files {
    /// The spread of message sizes.
    pub sizes_svg: String,
    /// Each channel's share over time.
    pub shares_svg: String,
    /// Bytes per second over time.
    pub rates_svg: String,
    /// The page with all of them.
    pub html: String,
}

impl Study {
    /// Evaluates a recording, or only its last part. Returns `None` if it holds no interval.
    ///
    /// # Errors
    /// The recording cannot be read.
    pub fn of(recording: &Recording, last: Option<Duration>) -> io::Result<Option<Self>> {
        // This reads the file three times instead of keeping it in memory: it may cover a month.
        let mut to_ms = None;
        for record in recording.records() {
            to_ms = to_ms.max(Some(record?.unix_ms));
        }
        let Some(to_ms) = to_ms else { return Ok(None) };
        let earliest = last.map_or(0, |last| to_ms.saturating_sub(last.as_millis() as u64));
        let taken = || {
            let late = |record: &io::Result<Record>| {
                record.as_ref().map_or(true, |record| record.unix_ms > earliest)
            };
            recording.records().filter(late)
        };
        let (mut from_ms, mut shortest) = (to_ms, u64::MAX);
        for record in taken() {
            let Record { unix_ms, interval_ms, .. } = record?;
            from_ms = from_ms.min(unix_ms.saturating_sub(interval_ms));
            shortest = shortest.min(interval_ms.max(1));
        }
        let from_ms = from_ms.max(earliest);
        let count = ((to_ms - from_ms) / shortest).clamp(1, PLACES);
        let mut study = Self {
            head: recording.head.clone(),
            from_ms,
            to_ms,
            records: 0,
            end: recording.end(),
            tail: recording.tail(),
            watched: Duration::ZERO,
            sizes: [Flow::default(); SIZES],
            channels: BTreeMap::new(),
            places: vec![TimeSlot::default(); count as usize],
            nodes: vec![Node::default(); recording.head.nodes.len()],
        };
        for record in taken() {
            study.add(&record?);
        }
        Ok(Some(study))
    }

    fn add(&mut self, record: &Record) {
        self.records += 1;
        let seconds = record.interval_ms as f64 / 1e3;
        let is_watched = record.nodes.iter().any(|node| node.state == NodeState::Alive);
        if is_watched {
            self.watched = self.watched.saturating_add(Duration::from_millis(record.interval_ms));
        }
        let mut bytes: BTreeMap<usize, u64> = BTreeMap::new();
        for node in &record.nodes {
            let about = &mut self.nodes[node.node];
            about.states[node.state as usize] += 1;
            for entry in node.entries.iter().filter(|entry| is_sent(entry.direction)) {
                let flow = Flow { messages: entry.messages, bytes: entry.bytes };
                about.sent.add(flow);
                if entry.direction == 0 {
                    about.requests = about.requests.saturating_add(entry.messages);
                }
                self.sizes[entry.class].add(flow);
                self.channels.entry(entry.channel).or_default().sent.add(flow);
                let sum = bytes.entry(entry.channel).or_default();
                *sum = sum.saturating_add(entry.bytes);
            }
        }
        for (channel, bytes) in &bytes {
            let about = self.channels.entry(*channel).or_default();
            about.peak = about.peak.max(*bytes as f64 / seconds.max(1e-3));
        }
        for (place, part) in self.parts(record) {
            let place = &mut self.places[place];
            place.seconds += if is_watched { seconds * part } else { 0.0 };
            for (channel, bytes) in &bytes {
                *place.bytes.entry(*channel).or_default() += *bytes as f64 * part;
            }
        }
    }

    /// Returns the slots in which an interval was, each with the part of the interval in it.
    fn parts(&self, record: &Record) -> Vec<(usize, f64)> {
        // Times are counted from the first slot, in so small units that a slot has a whole number.
        let count = self.places.len() as u128;
        let slot = u128::from(self.to_ms - self.from_ms).max(1);
        let since = |ms: u64| u128::from(ms.clamp(self.from_ms, self.to_ms) - self.from_ms) * count;
        let (begin, end) = (since(record.unix_ms.saturating_sub(record.interval_ms)), since(record.unix_ms));
        let first = (begin / slot).min(count - 1);
        if begin == end {
            return vec![(first as usize, 1.0)];
        }
        let whole = record.interval_ms as f64 * count as f64;
        let part = |at: u128| (end.min((at + 1) * slot) - begin.max(at * slot)) as f64 / whole;
        (first..end.div_ceil(slot)).map(|at| (at as usize, part(at))).collect()
    }

    fn sent(&self) -> Flow {
        let mut all = Flow::default();
        self.sizes.iter().for_each(|flow| all.add(*flow));
        all
    }

    fn seconds(&self) -> f64 {
        self.watched.as_secs_f64().max(1e-3)
    }

    /// Returns the channels, those with most bytes first.
    fn by_bytes(&self) -> Vec<(usize, Channel)> {
        let mut channels: Vec<_> = self.channels.iter().map(|(place, channel)| (*place, *channel)).collect();
        channels.sort_by_key(|(place, channel)| (std::cmp::Reverse(channel.sent.bytes), *place));
        channels
    }

    /// Returns the title: the cluster and the time range.
    fn title(&self) -> String {
        let (from, to) = (self.from_ms, self.to_ms);
        format!(
            "{}: {} {} to {} {} UTC, {}, {} intervals of about {}",
            self.head.cluster,
            date(from),
            time(from),
            date(to),
            time(to),
            duration((to - from) as f64 / 1e3),
            count(self.records),
            duration(self.head.interval_ms as f64 / 1e3),
        )
    }

    /// Returns the main findings, one line each.
    fn findings(&self) -> Vec<String> {
        let mut findings = self.sent_findings();
        findings.extend(match self.tail {
            Tail::None => None,
            Tail::Torn(left) => {
                Some(format!("{} at the end of the file are no whole record and were left out.", bytes(left)))
            }
            Tail::Damaged(left) => Some(format!(
                "The file is damaged at byte {}; {} from there to its end were left out.",
                self.end,
                bytes(left)
            )),
        });
        findings
    }

    fn sent_findings(&self) -> Vec<String> {
        let all = self.sent();
        if all.messages == 0 {
            return vec!["Nothing was sent.".into()];
        }
        let mut findings = vec![format!(
            "{} messages with {} were sent, {} and {} a second; {} a message.",
            count(all.messages),
            bytes(all.bytes),
            rate(all.messages as f64 / self.seconds()),
            bytes((all.bytes as f64 / self.seconds()) as u64),
            bytes(all.bytes / all.messages),
        )];
        let most = |of: fn(&Flow) -> u64| (0..SIZES).max_by_key(|class| of(&self.sizes[*class])).unwrap_or(0);
        let (class, heavy) = (most(|flow| flow.messages), most(|flow| flow.bytes));
        findings.push(format!(
            "{:.0} % of the messages are {} long; {:.0} % of the bytes are in messages {}.",
            share(self.sizes[class].messages, all.messages),
            size_name(class).replacen("to", "up to", 1),
            share(self.sizes[heavy].bytes, all.bytes),
            size_name(heavy).replacen("to", "up to", 1),
        ));
        if let Some((channel, about)) = self.by_bytes().first() {
            findings.push(format!(
                "{} carries {:.0} % of the bytes and {:.0} % of the messages.",
                self.head.channels[*channel],
                share(about.sent.bytes, all.bytes),
                share(about.sent.messages, all.messages),
            ));
        }
        for (name, node) in self.head.nodes.iter().zip(&self.nodes) {
            let [_, silent, down] = node.states;
            if silent + down > 0 {
                findings.push(format!(
                    "{name} did not answer in {} of {} intervals and was down in {}.",
                    count(silent),
                    count(self.records),
                    count(down)
                ));
            }
        }
        findings
    }

    /// Returns the tables of channels, sizes and nodes.
    fn tables(&self) -> [(&'static str, Vec<Vec<String>>); 3] {
        let all = self.sent();
        let percent = |part, whole| format!("{:.1} %", share(part, whole));
        let heads = |heads: &[&str]| heads.iter().map(|head| (*head).to_owned()).collect::<Vec<_>>();
        let flow = |flow: Flow| {
            let messages = [count(flow.messages), percent(flow.messages, all.messages)];
            messages.into_iter().chain([bytes(flow.bytes), percent(flow.bytes, all.bytes)])
        };
        let per_second = |value: u64| bytes((value as f64 / self.seconds()) as u64);
        let mut channels = vec![heads(&[
            "channel",
            "messages",
            "share",
            "bytes",
            "share",
            "mean size",
            "bytes/s",
            "peak/s",
        ])];
        for (place, channel) in self.by_bytes() {
            let sent = channel.sent;
            let more = [
                bytes(sent.bytes / sent.messages.max(1)),
                per_second(sent.bytes),
                bytes(channel.peak as u64),
            ];
            channels.push(
                [self.head.channels[place].clone()].into_iter().chain(flow(sent)).chain(more).collect(),
            );
        }
        let mut sizes = vec![heads(&["size", "messages", "share", "bytes", "share"])];
        for (class, sent) in self.sizes.iter().enumerate().filter(|(_, sent)| sent.messages > 0) {
            sizes.push([size_name(class)].into_iter().chain(flow(*sent)).collect());
        }
        let mut nodes =
            vec![heads(&["node", "messages", "share", "bytes", "share", "requests/s", "answered"])];
        for (name, node) in self.head.nodes.iter().zip(&self.nodes) {
            let more = [
                rate(node.requests as f64 / self.seconds()),
                percent(node.states[0], node.states.iter().sum()),
            ];
            nodes.push([name.clone()].into_iter().chain(flow(node.sent)).chain(more).collect());
        }
        [("Channels", channels), ("Sizes", sizes), ("Nodes", nodes)]
    }

    /// Returns the evaluation as text.
    pub fn text(&self) -> String {
        let mut text = self.title() + "\n";
        self.findings().iter().for_each(|finding| text += &format!("{finding}\n"));
        for (_, rows) in self.tables().iter().filter(|(_, rows)| rows.len() > 1) {
            let mut table = Table::new(rows[0].iter().map(String::as_str));
            rows[1..].iter().for_each(|row| table.row(row.iter().cloned()));
            text += &format!("\n{table}");
        }
        text
    }

    /// Draws the pictures and their page.
    ///
    /// # Errors
    /// A picture cannot be drawn.
    pub fn files(&self) -> Result<Files, DrawError> {
        let [sizes_svg, shares_svg, rates_svg] = [self.sizes()?, self.shares()?, self.rates()?];
        let html = page::html(
            &self.title(),
            &self.findings(),
            &[&*sizes_svg, &*shares_svg, &*rates_svg],
            &self.tables(),
        );
        Ok(Files { sizes_svg, shares_svg, rates_svg, html })
    }

    fn sizes(&self) -> Result<String, DrawError> {
        let all = self.sent();
        let part = |of: fn(&Flow) -> u64| self.sizes.iter().map(|flow| share(of(flow), of(&all))).collect();
        // Names are short, so that sixteen fit beside each other; the axis label explains them.
        let name = |class| size_name(class).replace("to ", "").replace("over ", ">").replace("iB", "");
        Bars {
            title: "How messages are spread over sizes".into(),
            note: format!("{}; {} messages, {}", self.head.cluster, count(all.messages), bytes(all.bytes)),
            horizontal: "message size: up to so many bytes, K is 1024".into(),
            classes: (0..SIZES).map(name).map(|name| name.replace(" B", "").replace(' ', "")).collect(),
            series: [
                ("of the messages".into(), part(|flow| flow.messages)),
                ("of the bytes".into(), part(|flow| flow.bytes)),
            ],
        }
        .draw()
    }

    fn shares(&self) -> Result<String, DrawError> {
        let all = self.sent();
        let of = |place: &TimeSlot, bytes: Vec<f64>| {
            let sum: f64 = bytes.iter().sum();
            (place.seconds > 0.0 && sum > 0.0)
                .then(|| bytes.iter().map(|bytes| 100.0 * bytes / sum).collect())
        };
        let legend = |bytes: u64| format!("{:.1} %", share(bytes, all.bytes));
        let title = "What share of the bytes each channel has";
        self.stack(title, "percent of the bytes sent; white: none were", of, legend, Some(100.0))
    }

    fn rates(&self) -> Result<String, DrawError> {
        let legend = |sent: u64| format!("{}/s", bytes((sent as f64 / self.seconds()) as u64));
        let title = "How much each channel carries";
        self.stack(title, "MiB sent in a second, all nodes", mib_per_s, legend, None)
    }

    /// Returns the values that are drawn in each slot: those of the channels with most bytes, then
    /// that of the others.
    fn drawn(&self, of: impl Fn(&TimeSlot, Vec<f64>) -> Option<Vec<f64>>) -> Vec<Option<Vec<f64>>> {
        let by_bytes = self.by_bytes();
        let (shown, rest) = by_bytes.split_at(by_bytes.len().min(LAYERS));
        let layers = |place: &TimeSlot| {
            let bytes = |channel: usize| place.bytes.get(&channel).copied().unwrap_or(0.0);
            let mut layers: Vec<f64> = shown.iter().map(|(channel, _)| bytes(*channel)).collect();
            layers.extend(
                (!rest.is_empty()).then(|| rest.iter().map(|(channel, _)| bytes(*channel)).sum::<f64>()),
            );
            layers
        };
        self.places.iter().map(|place| of(place, layers(place))).collect()
    }

    fn stack(
        &self,
        title: &str,
        vertical: &str,
        of: impl Fn(&TimeSlot, Vec<f64>) -> Option<Vec<f64>>,
        legend: impl Fn(u64) -> String,
        most: Option<f64>,
    ) -> Result<String, DrawError> {
        let by_bytes = self.by_bytes();
        let (shown, rest) = by_bytes.split_at(by_bytes.len().min(LAYERS));
        let mut names: Vec<_> = shown
            .iter()
            .map(|(channel, about)| (self.head.channels[*channel].clone(), legend(about.sent.bytes)))
            .collect();
        if !rest.is_empty() {
            names.push(("others".into(), legend(sum(rest.iter().map(|(_, about)| about.sent.bytes)))));
        }
        let each = duration((self.to_ms - self.from_ms) as f64 / 1e3 / self.places.len() as f64);
        Stack {
            title: title.into(),
            note: format!("{}, {} nodes, means over {each}", self.head.cluster, self.head.nodes.len()),
            vertical: vertical.into(),
            from_ms: self.from_ms,
            to_ms: self.to_ms.max(self.from_ms + 1),
            places: self.drawn(of),
            layers: names,
            most,
        }
        .draw()
    }
}

/// Returns the rates of a slot in MiB per second; `None` if no node answered in it.
fn mib_per_s(place: &TimeSlot, bytes: Vec<f64>) -> Option<Vec<f64>> {
    const MIB: f64 = 1024.0 * 1024.0;
    (place.seconds > 0.0).then(|| bytes.iter().map(|bytes| bytes / place.seconds / MIB).collect())
}

/// Adds numbers and saturates, because numbers of a file may be arbitrarily large.
fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::saturating_add)
}

/// Returns true if a direction is one of sending.
fn is_sent(direction: usize) -> bool {
    DIRECTIONS[direction].ends_with("out")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{
            Reading, Seen,
            tests::{alive, reading},
        },
        recording::Recorder,
        snapshot::tests::snapshot,
    };

    /// Records ten intervals of one second. The locks are busy in the second half; n2 is away in
    /// the fourth interval.
    fn recording(directory: &std::path::Path) -> Recording {
        let path = directory.join("r");
        let nodes = ["n1".to_owned(), "n2".to_owned()];
        let mut recorder = Recorder::open(&path, Head::new("c1", "00", &nodes, 1000)).unwrap();
        for second in 0..10u64 {
            let locks = vec![250; if second < 5 { 1 } else { 100 }];
            let n1 = snapshot("n1", 1, &[("n2", "cache-blocks", &[16384; 4]), ("n2", "locks", &locks)]);
            let n2 = if second == 3 { Seen::Down } else { alive(snapshot("n2", 1, &[])) };
            let mut interval =
                reading(1_795_266_480_000 + second * 1000, vec![("n1", alive(n1)), ("n2", n2)]);
            interval.seconds = Some(1.0);
            recorder.append(&interval).unwrap();
        }
        Recording::read(&path).unwrap()
    }

    #[test]
    fn a_study_counts_what_was_sent_once() {
        let directory = tempfile::tempdir().unwrap();
        let recording = recording(directory.path());
        let study = Study::of(&recording, None).unwrap().unwrap();
        let sent = study.sent();
        assert_eq!((sent.messages, sent.bytes), (40 + 505, 40 * 16384 + 505 * 250));
        assert_eq!(study.places.len(), 10);
        let text = study.text();
        assert!(
            text.contains(
                "93 % of the messages are up to 256 B long; 84 % of the bytes are in messages up to 16 KiB."
            ),
            "{text}"
        );
        assert!(text.contains("cache-blocks carries 84 % of the bytes and 7 % of the messages."), "{text}");
        assert!(text.contains("n2 did not answer in 0 of 10 intervals and was down in 1."), "{text}");
        let last = Study::of(&recording, Some(Duration::from_secs(5))).unwrap().unwrap();
        assert_eq!((last.records, last.sent().messages), (5, 20 + 500));
    }

    #[test]
    fn the_pictures_and_the_page_have_what_was_found() {
        let directory = tempfile::tempdir().unwrap();
        let files = Study::of(&recording(directory.path()), None).unwrap().unwrap().files().unwrap();
        for svg in [&files.shares_svg, &files.rates_svg] {
            assert!(svg.contains("cache-blocks") && svg.contains("locks"), "{svg}");
        }
        assert_eq!(files.html.matches("<svg").count(), 3);
        assert!(files.html.contains("93 % of the messages") && files.html.contains("<td>cache-blocks</td>"));
        if let Ok(keep) = std::env::var("PLEXUS_KEEP_PICTURES") {
            let keep = std::path::Path::new(&keep);
            let pictures =
                [("sizes", &files.sizes_svg), ("shares", &files.shares_svg), ("rates", &files.rates_svg)];
            for (name, svg) in pictures {
                std::fs::write(keep.join(name).with_extension("svg"), svg).unwrap();
            }
        }
    }

    #[test]
    fn intervals_are_drawn_as_recorded_if_they_became_longer_or_some_are_missing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let mut recorder =
            Recorder::open(&path, Head::new("c1", "00", &["n1".into(), "n2".into()], 1000)).unwrap();
        // The end of each interval, its seconds and MiB; nothing was recorded from 9 s to 11 s.
        for (end, seconds, mib) in [(1, 1, 3), (2, 1, 6), (6, 4, 4), (9, 3, 0), (12, 1, 5)] {
            let n1 = snapshot("n1", 1, &[("n2", "locks", &vec![1 << 20; mib])]);
            let nodes = vec![("n1", alive(n1)), ("n2", alive(snapshot("n2", 1, &[])))];
            let mut interval = reading(1_795_266_480_000 + end * 1000, nodes);
            interval.seconds = Some(f64::from(seconds));
            recorder.append(&interval).unwrap();
        }
        let recording = Recording::read(&path).unwrap();
        let drawn = |last: Option<u64>| {
            let study = Study::of(&recording, last.map(Duration::from_secs)).unwrap().unwrap();
            let rates = study.drawn(mib_per_s).into_iter();
            rates.map(|rates| rates.map(|rates| rates.iter().sum::<f64>())).collect::<Vec<_>>()
        };
        let all = [3.0, 6.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0].map(Some).into_iter();
        let all: Vec<_> = all.chain([None, None, Some(5.0)]).collect();
        assert_eq!(drawn(None), all);
        // The first half of the long interval is before the time that is drawn.
        assert_eq!(drawn(Some(8)), all[4..]);
    }

    #[test]
    fn numbers_that_no_node_counts_are_shown_like_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let mut recorder =
            Recorder::open(&path, Head::new("c1", "00", &["n1".into(), "n2".into()], u64::MAX)).unwrap();
        let mut n1 = snapshot("n1", 1, &[("n2", "locks", &[8]), ("n2", "disks", &[8])]);
        for traffic in n1.links[0].traffic.0.values_mut() {
            traffic.client_out.messages = [u64::MAX; SIZES];
            traffic.client_out.bytes = [u64::MAX; SIZES];
        }
        for (unix_ms, seconds) in [(0, 0.0), (1, 200_000_000_000.0), (250_000_000_000_000, 0.001)] {
            let interval = reading(unix_ms, vec![("n1", alive(n1.clone())), ("n2", alive(n1.clone()))]);
            recorder.append(&Reading { seconds: Some(seconds), ..interval }).unwrap();
        }
        let study = Study::of(&Recording::read(&path).unwrap(), None).unwrap().unwrap();
        assert!(study.files().is_ok() && study.text().contains("9892-"), "{}", study.text());
    }

    #[test]
    fn a_damaged_recording_says_from_where_on_nothing_was_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let whole = recording(directory.path());
        let mut bytes = std::fs::read(directory.path().join("r")).unwrap();
        bytes.extend_from_slice(&[0; 2048]);
        let study = Study::of(&Recording::of(bytes).unwrap(), None).unwrap().unwrap();
        let said = format!("damaged at byte {}; 2 KiB from there", whole.end());
        assert!(study.records == 10 && study.text().contains(&said), "{}", study.text());
    }

    #[test]
    fn a_recording_without_intervals_shows_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        drop(Recorder::open(&path, Head::new("c1", "00", &["n1".into()], 1000)).unwrap());
        assert!(Study::of(&Recording::read(&path).unwrap(), None).unwrap().is_none());
    }
}
