//! The settings of a host that the study of Oracle RAC on Linux varied, with the effect of each in
//! the study and on this host.
//!
//! The study gives changes in the throughput of a database, not of a network: they show the
//! direction of an effect, not its size.

use serde::Serialize;

use crate::report::{Table, bytes, count, us};

/// A setting of the host's network.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Setting {
    /// The maximum receive buffer of a TCP connection in bytes (`net.ipv4.tcp_rmem`).
    ReceiveBuffer,
    /// The maximum length of a packet in bytes.
    Mtu,
    /// The number of packets that may wait for a CPU (`net.core.netdev_max_backlog`).
    Backlog,
}

plexus_base::named! {
    impl Setting { ReceiveBuffer "receive buffer", Mtu "MTU", Backlog "device backlog" }
}

impl Setting {
    /// Returns the values to try, each with the change that the study found. The first value is the
    /// reference. The study used 16, 64 and 128 receive buffers of a network card; these values
    /// have the same ratios.
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
    /// The setting.
    pub setting: Setting,
    /// Its value.
    pub value: u32,
    /// The change that the study found.
    pub published: &'static str,
    /// The bandwidth in 10^6 bytes per second and the median latency in microseconds of the same
    /// block, or the reason why they were not measured.
    pub outcome: Result<(f64, f64), String>,
}

/// Returns a table of all values, with the change in percent against the first measured value of
/// each setting.
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

/// Returns the change in percent; empty for the reference.
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
