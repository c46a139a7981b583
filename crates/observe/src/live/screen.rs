//! The content of the live screen: pure, from readings and keys to cells.

use std::{collections::VecDeque, time::Duration};

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Block, Cell, Paragraph, Row as Cells, Sparkline, Table},
};

use crate::{
    cluster::{Reading, Seen},
    rails,
    show::{bytes, count, duration, rate, time, us},
    stat::{self, By, Row, share},
};

/// The maximum of intervals in the history line.
const PAST: usize = 400;

/// The maximum of rows for rails, so that a large mesh leaves room for the rest.
const MOST_RAILS: u16 = 10;

/// The readings, and how they are shown.
pub(super) struct Screen {
    cluster: String,
    interval: Duration,
    last: Option<Reading>,
    shown: Option<Reading>,
    past: VecDeque<u64>,
    paused: bool,
    by_messages: bool,
    workers: bool,
}

impl Screen {
    pub(super) fn new(cluster: &str, interval: Duration) -> Self {
        Self {
            cluster: cluster.into(),
            interval,
            last: None,
            shown: None,
            past: VecDeque::new(),
            paused: false,
            by_messages: false,
            workers: false,
        }
    }

    /// Takes a new reading.
    pub(super) fn take(&mut self, reading: Reading) {
        if let Some(last) = self.last.replace(reading.clone()) {
            let interval = reading.since(&last);
            let total = total(&interval);
            let seconds = interval.seconds.unwrap_or(1.0);
            self.past.push_back((total.outward().bytes as f64 / seconds) as u64);
            self.past.drain(..self.past.len().saturating_sub(PAST));
            if !self.paused {
                self.shown = Some(interval);
            }
        }
    }

    /// Pauses or resumes updates.
    pub(super) fn pause(&mut self) {
        self.paused = !self.paused;
    }

    /// Toggles the order of channels between bytes and messages.
    pub(super) fn sort(&mut self) {
        self.by_messages = !self.by_messages;
    }

    /// Toggles between rails per worker and their sum.
    pub(super) fn workers(&mut self) {
        self.workers = !self.workers;
    }

    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let Some(reading) = &self.shown else {
            let words = format!("{}: the first interval is under way; q quits", self.cluster);
            return frame.render_widget(Paragraph::new(words), frame.area());
        };
        let (rails, unseen) = rails::lines(reading, self.workers);
        let rails_height = (rails.len() + unseen.len()).min(usize::from(MOST_RAILS)) as u16 + 3;
        let nodes_height = reading.nodes.len() as u16 + 3;
        let [head, nodes, middle, below, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(nodes_height),
            Constraint::Min(5),
            Constraint::Length(rails_height),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let halves = Layout::horizontal([Constraint::Percentage(65), Constraint::Percentage(35)]);
        let [nodes, past] = halves.areas(nodes);
        let [channels, right] = halves.areas(middle);
        let [sizes, cache] =
            Layout::vertical([Constraint::Percentage(55), Constraint::Percentage(45)]).areas(right);
        self.head(frame, head, reading);
        Self::nodes(frame, nodes, reading);
        self.past(frame, past);
        self.channels(frame, channels, reading);
        Self::sizes(frame, sizes, reading);
        Self::cache(frame, cache, reading);
        Self::rails(frame, below, reading, &rails, &unseen);
        let help = " q quit   p pause   s sort by messages or bytes   w rails of each worker";
        frame.render_widget(Paragraph::new(help).style(Style::new().add_modifier(Modifier::DIM)), foot);
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect, reading: &Reading) {
        let answered = reading.alive().count();
        let paused = if self.paused { "   PAUSED" } else { "" };
        let words = format!(
            " {}   {} UTC   every {}   {answered} of {} nodes answer{paused}",
            self.cluster,
            time(reading.unix_ms),
            duration(self.interval.as_secs_f64()),
            reading.nodes.len(),
        );
        frame.render_widget(Paragraph::new(words).style(bold()), area);
    }

    fn nodes(frame: &mut Frame<'_>, area: Rect, reading: &Reading) {
        let rows = stat::rows(reading, &[By::Node], None);
        let cells = reading.nodes.iter().map(|(name, seen)| {
            let Seen::Alive(snapshot) = seen else {
                return Cells::new([name.clone(), seen.state().to_owned()])
                    .style(Style::new().fg(Color::Red));
            };
            let row = rows.iter().find(|row| row.keys[0] == *name).cloned().unwrap_or_default();
            let flows = per_second(reading, &row);
            let [requests, served, out, into] = flows;
            Cells::new(vec![
                Cell::from(name.clone()),
                Cell::from("alive"),
                right(requests),
                right(served),
                right(out),
                right(into),
                right(count(snapshot.blocks_held)),
                right(count(snapshot.unauthenticated)),
            ])
        });
        let heads = ["node", "", "requests/s", "served/s", "out/s", "in/s", "held", "refused"];
        let widths = [8, 6, 10, 9, 9, 9, 7, 9].map(Constraint::Length);
        table(frame, area, "Nodes", heads, cells.collect(), &widths);
    }

    fn past(&self, frame: &mut Frame<'_>, area: Rect) {
        let room = usize::from(area.width.saturating_sub(2));
        let from = self.past.len().saturating_sub(room);
        let past: Vec<u64> = self.past.iter().skip(from).copied().collect();
        let most = past.iter().copied().max().unwrap_or(0);
        let title =
            format!(" Sent by all: {}/s, most {}/s ", bytes(past.last().copied().unwrap_or(0)), bytes(most));
        let line = Sparkline::default().block(Block::bordered().title(title)).data(&past).style(Color::Cyan);
        frame.render_widget(line, area);
    }

    fn channels(&self, frame: &mut Frame<'_>, area: Rect, reading: &Reading) {
        let mut rows = stat::rows(reading, &[By::Channel], None);
        let weight = |row: &Row| if self.by_messages { row.outward().messages } else { row.outward().bytes };
        rows.sort_by_key(|row| std::cmp::Reverse(weight(row)));
        let all: u64 = rows.iter().map(weight).sum();
        let cells = rows.iter().map(|row| {
            let part = share(weight(row), all);
            let [requests, served, out, into] = per_second(reading, row);
            Cells::new(vec![
                Cell::from(row.keys[0].clone()),
                right(requests),
                right(served),
                right(out),
                right(into),
                right(format!("{part:.0} %")),
                Cell::from(bar(part, 10)).style(Style::new().fg(Color::Cyan)),
            ])
        });
        let title = if self.by_messages { "Channels, by messages" } else { "Channels, by bytes" };
        let heads = ["channel", "requests/s", "served/s", "out/s", "in/s", "share", ""];
        let widths = [15, 10, 9, 9, 9, 5, 10].map(Constraint::Length);
        table(frame, area, title, heads, cells.collect(), &widths);
    }

    fn sizes(frame: &mut Frame<'_>, area: Rect, reading: &Reading) {
        let rows = stat::rows(reading, &[By::Size], None);
        let all: u64 = rows.iter().map(|row| row.outward().messages).sum();
        let cells = rows.iter().filter(|row| row.outward().messages > 0).map(|row| {
            let part = share(row.outward().messages, all);
            let bar = Cell::from(bar(part, 14)).style(Style::new().fg(Color::Cyan));
            Cells::new(vec![Cell::from(row.keys[0].clone()), right(format!("{part:.1} %")), bar])
        });
        let widths = [13, 7, 14].map(Constraint::Length);
        table(frame, area, "Sizes of messages sent", ["size", "share", ""], cells.collect(), &widths);
    }

    fn cache(frame: &mut Frame<'_>, area: Rect, reading: &Reading) {
        let seconds = reading.seconds.unwrap_or(1.0);
        let mut counts = std::collections::BTreeMap::<&str, u64>::new();
        for (name, value) in reading.alive().flat_map(|snapshot| &snapshot.cache) {
            *counts.entry(name).or_default() += value;
        }
        // This is a time, not a number of events; it is shown as the mean per request.
        let asked = counts.remove("asked_ns").unwrap_or(0);
        let requests = counts.get("requests").copied().unwrap_or(0);
        let mut rows: Vec<_> = counts.into_iter().filter(|(_, value)| *value > 0).collect();
        rows.sort_by_key(|(name, value)| (std::cmp::Reverse(*value), *name));
        let mut cells: Vec<Cells<'_>> = Vec::new();
        if requests > 0 {
            let mean = format!("{} us", us(asked as f64 / requests as f64 / 1e3));
            cells.push(Cells::new(vec![Cell::from("request to grant"), right(mean)]));
        }
        cells.extend(rows.into_iter().map(|(name, value)| {
            Cells::new(vec![Cell::from(name.replace('_', " ")), right(rate(value as f64 / seconds))])
        }));
        table(frame, area, "Cache", ["event", "a second"], cells, &[16, 12].map(Constraint::Length));
    }

    fn rails(
        frame: &mut Frame<'_>,
        area: Rect,
        reading: &Reading,
        lines: &[rails::Line],
        unseen: &[[String; 2]],
    ) {
        let rails = lines.iter().map(|line| {
            let style = if line.is_active() { Style::new() } else { Style::new().fg(Color::Yellow) };
            let rtt = line.rtt_ns();
            let [there, back] = line.bytes();
            let worker = line.worker.map_or_else(String::new, |worker| format!(" w{worker}"));
            Cells::new(vec![
                Cell::from(line.pair.join("-") + &worker),
                Cell::from(format!("{} {}", line.slot, line.kind())),
                Cell::from(line.state()),
                Cell::from(line.reason()),
                right(if rtt == 0 { "-".into() } else { format!("{} us", us(rtt as f64 / 1e3)) }),
                right(stat::amount(there, reading.seconds)),
                right(stat::amount(back, reading.seconds)),
            ])
            .style(style)
        });
        let unseen = unseen.iter().map(|pair| {
            Cells::new([pair.join("-"), "-".into(), "unknown".into(), "neither node says anything".into()])
                .style(Style::new().fg(Color::Red))
        });
        let all = lines.len() + unseen.len();
        let more = all.saturating_sub(usize::from(MOST_RAILS));
        let title = if more > 0 { format!("Rails ({more} more: plexus rails)") } else { "Rails".into() };
        let heads = ["pair", "rail", "state", "why", "round trip", "there/s", "back/s"];
        let widths = [14, 8, 16, 26, 11, 10, 10].map(Constraint::Length);
        table(frame, area, &title, heads, rails.chain(unseen).collect(), &widths);
    }
}

fn table<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    heads: [&str; N],
    rows: Vec<Cells<'_>>,
    widths: &[Constraint],
) {
    // Heads of numbers are aligned to the right, like the numbers.
    let numbers = |head: &&str| {
        head.ends_with("/s") || ["held", "refused", "share", "round trip", "a second"].contains(head)
    };
    let heads =
        heads.map(|head| if numbers(&head) { right(head.to_owned()) } else { Cell::from(head.to_owned()) });
    let table = Table::new(rows, widths.iter().copied())
        .header(Cells::new(heads).style(bold()))
        .block(Block::bordered().title(format!(" {title} ")));
    frame.render_widget(table, area);
}

fn total(reading: &Reading) -> Row {
    stat::rows(reading, &[], None).pop().unwrap_or_default()
}

/// Returns the requests sent and served, and the bytes sent and received.
fn per_second(reading: &Reading, row: &Row) -> [String; 4] {
    let seconds = reading.seconds.unwrap_or(1.0);
    let per = |value: u64| value as f64 / seconds;
    [
        rate(per(row.flows[0].messages)),
        rate(per(row.flows[2].messages)),
        bytes(per(row.outward().bytes) as u64),
        bytes(per(row.inward().bytes) as u64),
    ]
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Returns a percentage as a bar of `cells` cells, in eighths.
fn bar(part: f64, cells: u32) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (part / 100.0 * f64::from(cells) * 8.0).round() as usize;
    "█".repeat(eighths / 8) + EIGHTHS[eighths % 8]
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::{
        cluster::tests::{alive, reading},
        snapshot::{Rail, tests::snapshot},
    };

    fn drawn(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn at(second: u64, blocks: usize) -> Reading {
        let mut n1 = snapshot(
            "n1",
            second,
            &[("n2", "cache-blocks", &vec![16384; blocks]), ("n2", "locks", &vec![64; 4 * blocks])],
        );
        n1.rails = vec![Rail {
            peer: "n2".into(),
            kind: "shm".into(),
            state: "active".into(),
            reason: "best".into(),
            ..Rail::default()
        }];
        reading(
            1_795_266_479_000 + second * 1000,
            vec![("n1", alive(n1)), ("n2", Seen::Down), ("n3", Seen::Down)],
        )
    }

    #[test]
    fn the_screen_shows_what_came_in_the_interval() {
        let mut screen = Screen::new("c1", Duration::from_secs(1));
        screen.take(at(1, 10));
        assert!(drawn(&screen, 120, 40).contains("the first interval is under way"));
        screen.take(at(2, 30));
        let text = drawn(&screen, 120, 40);
        for words in [
            "c1   13:08:01 UTC",
            "1 of 3 nodes answer",
            "cache-blocks",
            "shm",
            "best",
            "neither node",
            "q quit",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
        let row = |name: &str| text.lines().position(|line| line.contains(name)).unwrap();
        assert!(row("cache-blocks") < row("│locks "), "by bytes: {text}");
        assert!(text.lines().nth(row("cache-blocks")).unwrap().contains("320 KiB"), "{text}");
        assert!(text.contains("to 64 B        80.0 %"), "{text}");

        screen.sort();
        let text = drawn(&screen, 120, 40);
        let row = |name: &str| text.lines().position(|line| line.contains(name)).unwrap();
        assert!(row("│locks ") < row("cache-blocks"), "by messages: {text}");
        screen.pause();
        screen.take(at(3, 30));
        assert!(drawn(&screen, 120, 40).contains("PAUSED") && drawn(&screen, 120, 40).contains("13:08:01"));
    }

    #[test]
    fn no_size_of_a_terminal_is_too_small_or_too_large() {
        let mut screen = Screen::new("c1", Duration::from_secs(1));
        screen.take(at(1, 1));
        screen.take(at(2, 2));
        for (width, height) in [(1, 1), (10, 3), (80, 24), (500, 200)] {
            drawn(&screen, width, height);
        }
    }

    #[test]
    fn bars_are_as_long_as_their_part() {
        assert_eq!([bar(0.0, 4), bar(100.0, 4), bar(50.0, 3)], ["", "████", "█▌"]);
    }
}
