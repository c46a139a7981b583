//! Settings of a host that the study of Oracle RAC on Linux varied, and what each was worth there
//! and here.
//!
//! The study's figures are changes of a database's throughput, not of a network's: they say which
//! way to look, not how far.

use serde::Serialize;

use crate::report::{Table, bytes, count, us};

/// Something about a host's network that can be set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// The most that a TCP connection may buffer on receipt (`net.ipv4.tcp_rmem`), in bytes.
    ReceiveBuffer,
    /// The longest packet, in bytes.
    Mtu,
    /// Packets that wait for a CPU before they are dropped (`net.core.netdev_max_backlog`).
    Backlog,
}

impl Setting {
    /// Every setting.
    pub const ALL: [Self; 3] = [Self::ReceiveBuffer, Self::Mtu, Self::Backlog];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ReceiveBuffer => "receive buffer",
            Self::Mtu => "MTU",
            Self::Backlog => "device backlog",
        }
    }

    /// The values tried, the first being what others are compared with, each with the change that
    /// the study found. Its receive buffers were 16, 64 and 128 of a network card; the same
    /// multiples stand here.
    #[must_use]
    pub fn values(self) -> &'static [(u32, &'static str)] {
        match self {
            Self::ReceiveBuffer => &[(256 << 10, ""), (1 << 20, "-10 %"), (2 << 20, "-22 %")],
            Self::Mtu => &[(1492, ""), (8192, "+4.1 %"), (65_535, "not tried")],
            Self::Backlog => &[(1000, ""), (2000, "+40 %"), (2500, "worse than 2000")],
        }
    }

    fn show(self, value: u32) -> String {
        match self {
            Self::ReceiveBuffer => bytes(u64::from(value)),
            Self::Mtu | Self::Backlog => count(u64::from(value)),
        }
    }
}

/// The result with one value.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Tried {
    /// The value that was set.
    pub setting: Setting,
    /// To what.
    pub value: u32,
    /// The study's change.
    pub published: &'static str,
    /// 10^6 bytes a second, and microseconds of latency (median), of the same block; or why nothing
    /// was measured.
    pub outcome: Result<(f64, f64), String>,
}

/// A table of all: change in percent against the first value of each setting that could be
/// measured.
#[must_use]
pub fn text(tried: &[Tried]) -> String {
    let heads = ["setting", "value", "MB/s", "change", "latency us", "change", "published (throughput)"];
    let mut table = Table::new(heads).indent(2);
    for one in tried {
        let first = tried
            .iter()
            .filter(|other| other.setting == one.setting)
            .find_map(|other| other.outcome.clone().ok());
        let name = one.setting.name().to_owned();
        let value = one.setting.show(one.value);
        let cells = match (&one.outcome, first) {
            (Ok((mb, latency)), Some((first_mb, first_latency))) => {
                [us(*mb), change(*mb, first_mb), us(*latency), change(*latency, first_latency)]
            }
            (Err(why), _) => [why.clone(), String::new(), String::new(), String::new()],
            (Ok(_), None) => Default::default(),
        };
        table.row([name, value].into_iter().chain(cells).chain([one.published.to_owned()]));
    }
    table.to_string()
}

/// Empty for the value that others are compared with.
fn change(value: f64, first: f64) -> String {
    if value == first { String::new() } else { format!("{:+.1} %", (value / first - 1.0) * 100.0) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_against_the_first_value_that_was_measured() {
        let one = |value, published, outcome| Tried { setting: Setting::Mtu, value, published, outcome };
        let table = text(&[
            one(1492, "", Ok((200.0, 50.0))),
            one(8192, "+4.1 %", Ok((300.0, 40.0))),
            one(65_535, "not tried", Err("refused".into())),
        ]);
        for part in ["+50.0 %", "-20.0 %", "+4.1 %", "refused", "8,192"] {
            assert!(table.contains(part), "{part} in\n{table}");
        }
        for setting in Setting::ALL {
            assert!(setting.values().len() > 1 && setting.values()[0].1.is_empty());
        }
    }
}
