//! The output of the demonstration, for a terminal of 90 columns.

use plexus_base::counters::SIZES;
use plexus_bench::{
    blocks::{DeathReport, Report, Workload},
    perf::Row,
    report::{Table, bytes, count, rate, ratio, us},
};
use plexus_observe::traffic::{ChannelTraffic, Traffic, size_name};

use super::{
    DemoResult, GIGABIT, GOAL_BLOCKS, GOAL_CPU,
    transfers::{CLIENTS, TransfersReport},
};
use crate::output;

/// Prints the demonstration for a person, or nothing but progress with `--json`.
pub(crate) struct DemoPrinter {
    json: bool,
}

impl DemoPrinter {
    /// Creates a printer. With `json` it prints only progress; the caller prints the result.
    pub(crate) fn new(json: bool) -> Self {
        Self { json }
    }

    fn line(&self, text: &str) -> anyhow::Result<()> {
        if self.json { Ok(()) } else { output::line(text) }
    }

    pub(super) fn transfers_begin(&self) -> anyhow::Result<()> {
        self.line(
            "1. Bank transfers through SQL on three nodes over the same tables; one is killed with SIGKILL",
        )?;
        output::progress(&format!("   ... 3 nodes, {CLIENTS} clients on each, 6 s"));
        Ok(())
    }

    pub(super) fn transfers(&self, found: &TransfersReport) -> anyhow::Result<()> {
        self.line(&format!(
            "\n   {} transactions/s, each durable on disk: two accounts changed and a row inserted;\n   response time p50 {} us, p99 {} us",
            rate(found.per_s),
            us(found.p50_us),
            us(found.p99_us)
        ))?;
        self.line(&format!(
            "   {} is killed: the first commit on another node after {:.0} ms; all clients of the others\n   go on after {:.0} ms, with {} transactions/s",
            found.victim,
            found.first_ms,
            found.all_ms,
            rate(found.per_s_after)
        ))?;
        self.line(&format!(
            "   Transactions acknowledged {}, found {}: none was lost.\n   The sum of all balances is {}, as at the start.",
            count(found.acknowledged),
            count(found.found),
            count(found.sum)
        ))
    }

    pub(super) fn pair_begins(&self, no_1gbit: Option<&str>) -> anyhow::Result<()> {
        self.line("\n2. Two nodes, a core each, polling: 16 KiB blocks passed back and forth")?;
        match no_1gbit {
            Some(why) => self.line(&format!("   Without the comparison with 1 Gbit/s: {why}.")),
            None => Ok(()),
        }
    }

    pub(super) fn cluster_begins(&self) -> anyhow::Result<()> {
        self.line("\n3. Three nodes, 4 clients on each, adaptive waiting: half of the work changes one of 16 blocks")
    }

    pub(super) fn sweep_begins(&self) -> anyhow::Result<()> {
        self.line("\n6. Two nodes by the number of clients, half of the operations change one of 64 blocks")
    }

    pub(super) fn starting(&self, rail: &str, nodes: usize, workloads: &[Workload]) {
        let ms: u64 = workloads.iter().map(|workload| workload.warm_ms + workload.measured_ms).sum();
        let clients: Vec<String> = workloads.iter().map(|workload| workload.clients.to_string()).collect();
        let noun = if clients == ["1"] { "client" } else { "clients" };
        output::progress(&format!(
            "   ... {rail}: {nodes} nodes, {} {noun} on each, {:.1} s",
            clients.join(", "),
            ms as f64 / 1000.0
        ));
    }

    pub(super) fn pair(
        &self,
        reports: &[Report],
        perf: &[Row],
        ratio_or_load: Result<(f64, f64), f64>,
        slow: Option<f64>,
    ) -> anyhow::Result<()> {
        self.figures(reports)?;
        self.line("")?;
        let mut table = Table::new(["one way, microseconds", "64 B message", "16 KiB put"]).indent(3);
        for report in reports {
            let of_rail = perf.iter().filter(|row| row.rail == report.rail);
            let times = of_rail.map(|row| us(row.measured.latency_us("p50").unwrap_or_default()));
            table.row(std::iter::once(report.rail.clone()).chain(times));
        }
        self.line(table.to_string().trim_end())?;
        let (blocks, cpu) = match ratio_or_load {
            Ok(ratios) => ratios,
            Err(load) => return self.line(&format!("\n{}", indented(&loaded(load)))),
        };
        let met = |met: bool| if met { "met" } else { "NOT met" };
        self.line(&format!(
            "\n   shm over tcp:   {} the blocks/s (goal: {GOAL_BLOCKS:.0}x or more: {})",
            ratio(blocks),
            met(blocks >= GOAL_BLOCKS)
        ))?;
        self.line(&format!(
            "                   {} the CPU time for each block (goal: {GOAL_CPU}x or less: {})",
            ratio(cpu),
            met(cpu <= GOAL_CPU)
        ))?;
        match slow {
            Some(slow) => self.line(&format!("   shm over tcp at 1 Gbit/s:  {} the blocks/s", ratio(slow))),
            None => Ok(()),
        }
    }

    pub(super) fn cluster(&self, reports: &[Report]) -> anyhow::Result<()> {
        self.figures(reports)?;
        let mut table =
            Table::new(["rail", "changes/s", "local", "2-message", "3-message", "MB/s"]).indent(3);
        for report in reports {
            table.row([
                report.rail.clone(),
                rate(report.changes_per_s),
                count(report.local_hits),
                count(report.counts.two_message),
                count(report.counts.three_message),
                rate(report.bytes as f64 / 1e6 / report.seconds.max(1e-9)),
            ]);
        }
        self.line(&format!("\n{}", table.to_string().trim_end()))
    }

    fn figures(&self, reports: &[Report]) -> anyhow::Result<()> {
        self.line("")?;
        let heads = ["rail", "blocks/s", "p50 us", "p99 us", "p99.9 us", "CPU us/block", "cores", "switches"];
        let mut table = Table::new(heads).indent(3);
        for report in reports {
            let mut row = report.row().to_vec();
            row.remove(1);
            table.row(row);
        }
        self.line(table.to_string().trim_end())
    }

    pub(super) fn traffic(&self, traffic: &Traffic) -> anyhow::Result<()> {
        self.line("\n4. What went over the interconnect (shm): messages sent, by channel and size\n")?;
        let mut table =
            Table::new(["channel", "size", "requests", "replies, forwards", "bytes", "share"]).indent(3);
        let sent = |channel: &ChannelTraffic, class: usize| {
            channel.client_out.bytes[class] + channel.server_out.bytes[class]
        };
        let all: u64 =
            traffic.0.values().map(|channel| (0..SIZES).map(|class| sent(channel, class)).sum::<u64>()).sum();
        for (name, channel) in &traffic.0 {
            let mut name = name.as_str();
            for class in 0..SIZES {
                let (requests, replies) =
                    (channel.client_out.messages[class], channel.server_out.messages[class]);
                if requests + replies == 0 {
                    continue;
                }
                let sent = sent(channel, class);
                table.row([
                    std::mem::take(&mut name).to_owned(),
                    size_name(class),
                    count(requests),
                    count(replies),
                    bytes(sent),
                    format!("{:.1} %", sent as f64 * 100.0 / all.max(1) as f64),
                ]);
            }
        }
        self.line(table.to_string().trim_end())
    }

    pub(super) fn death_begins(&self) -> anyhow::Result<()> {
        self.line(
            "\n5. Three nodes with redo (shm): one is killed with SIGKILL under load, and started again",
        )
    }

    pub(super) fn death(&self, death: &DeathReport) -> anyhow::Result<()> {
        self.line("")?;
        let mut table = Table::new(["clients of the other nodes go on with", "after"]).indent(3);
        for (what, ms) in [
            ("locks and all that needs only the new view", death.view_ms),
            ("blocks that the other nodes hold", death.held_ms),
            ("blocks that no node holds, not changed by the dead node", death.unchanged_ms),
            ("blocks that the dead node had changed, the last of them", death.all_ms),
        ] {
            table.row([what.to_owned(), format!("{ms:.0} ms")]);
        }
        self.line(table.to_string().trim_end())?;
        self.line(&format!(
            "\n   Durable changes acknowledged {}, found in the blocks {}: none was lost.\n   {} was started again and serves.",
            count(death.load.changes_acknowledged + death.changes_made),
            count(death.load.changes_found + death.changes_found),
            death.victim
        ))
    }

    pub(super) fn end(&self, found: &DemoResult) -> anyhow::Result<()> {
        self.line("")?;
        let mut table =
            Table::new(["rail", "clients", "blocks/s", "p50 us", "p99 us", "CPU us/block"]).indent(3);
        for report in &found.sweep {
            table.row([
                report.rail.clone(),
                report.workload.clients.to_string(),
                rate(report.blocks_per_s),
                us(report.response_us.p50),
                us(report.response_us.p99),
                us(report.cpu_us_per_block),
            ]);
        }
        self.line(table.to_string().trim_end())?;
        self.line(&format!(
            "\n7. Changes acknowledged to clients in the other parts {}, found in the blocks {}:\n   none was lost, none was applied twice.",
            count(found.changes_acknowledged),
            count(found.changes_found)
        ))?;
        self.line(&format!("\n   Chart: {}", found.svg.display()))?;
        let last = worth(found).unwrap_or_else(|| loaded(found.load_of_others));
        self.line(&format!("\n{}\n", wrapped(&last, 90)))
    }
}

/// Returns the reason why the rails are not compared.
fn loaded(load: f64) -> String {
    format!(
        "The machine was loaded: other programs used {} of its CPU time. The figures therefore say little, and shm and tcp \
         are not compared. Run the demo again when the machine is idle.",
        percent(load)
    )
}

/// Breaks a text into indented lines.
fn indented(text: &str) -> String {
    format!("   {}", wrapped(text, 87).replace('\n', "\n   "))
}

/// Returns the measured benefit of the interconnect in one sentence, if it was measured.
fn worth(found: &DemoResult) -> Option<String> {
    let rate_of =
        |rail: &str| found.pair.iter().find(|report| report.rail == rail).map(|report| report.blocks_per_s);
    let shm = found.pair.iter().find(|report| report.rail == "shm");
    let (shm, tcp) = (shm?, rate_of("tcp")?);
    let (blocks, cpu) = found.ratio_blocks_per_s.zip(found.ratio_cpu_per_block)?;
    let slow = match (rate_of(GIGABIT), found.ratio_blocks_per_s_1gbit) {
        (Some(rate_slow), Some(times)) => {
            format!(" and {} a 1 Gbit/s network ({}/s)", ratio(times), rate(rate_slow))
        }
        _ => String::new(),
    };
    Some(format!(
        "What the interconnect is worth here: a changed 16 KiB block reaches the other node's program in {} us, {} blocks/s, \
         {} TCP over loopback ({}/s){slow}, for {} of TCP's CPU time.",
        us(shm.response_us.p50),
        rate(shm.blocks_per_s),
        ratio(blocks),
        rate(tcp),
        percent(cpu),
    ))
}

fn percent(ratio: f64) -> String {
    format!("{:.0} %", ratio * 100.0)
}

/// Breaks a text into lines of at most `width` columns.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if !lines[last].is_empty() && lines[last].chars().count() + 1 + word.chars().count() > width {
            lines.push(word.into());
        } else {
            if !lines[last].is_empty() {
                lines[last].push(' ');
            }
            lines[last].push_str(word);
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrapped("one two three four", 9), "one two\nthree\nfour");
        assert_eq!(wrapped("", 9), "");
    }
}
