//! The traffic of links, by channel, direction and message size.
//!
//! This module only counts; [`crate::stat`] computes rates and sums.

use std::collections::BTreeMap;

use plexus_base::counters::{SIZE_BOUNDS, SIZES, SizeCounts};
use plexus_interconnect::{Channel, LinkInfo};
use serde::{Deserialize, Serialize};

/// The messages and bytes by size class, see [`SIZE_BOUNDS`].
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Sizes {
    /// The number of messages.
    pub messages: [u64; SIZES],
    /// The number of bytes.
    pub bytes: [u64; SIZES],
}

/// The traffic of one channel, over all links.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ChannelTraffic {
    /// The requests sent as client.
    pub client_out: Sizes,
    /// The replies received as client.
    pub client_in: Sizes,
    /// The requests and forwards received as server.
    pub server_in: Sizes,
    /// The replies and forwards sent as server.
    pub server_out: Sizes,
}

/// The traffic of a node since it started, for the channels that had any.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Traffic(pub BTreeMap<String, ChannelTraffic>);

impl From<SizeCounts> for Sizes {
    fn from(counts: SizeCounts) -> Self {
        Self { messages: counts.messages, bytes: counts.bytes }
    }
}

impl Sizes {
    fn combine(&self, other: &Self, with: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            messages: std::array::from_fn(|class| with(self.messages[class], other.messages[class])),
            bytes: std::array::from_fn(|class| with(self.bytes[class], other.bytes[class])),
        }
    }
}

impl ChannelTraffic {
    /// Returns the four directions, in the order of the fields.
    pub fn directions(&self) -> [&Sizes; 4] {
        [&self.client_out, &self.client_in, &self.server_in, &self.server_out]
    }

    /// Returns true if nothing was sent or received.
    pub fn is_idle(&self) -> bool {
        self.directions().iter().all(|sizes| sizes.messages.iter().all(|count| *count == 0))
    }

    fn combine(&self, other: &Self, with: impl Fn(u64, u64) -> u64 + Copy) -> Self {
        Self {
            client_out: self.client_out.combine(&other.client_out, with),
            client_in: self.client_in.combine(&other.client_in, with),
            server_in: self.server_in.combine(&other.server_in, with),
            server_out: self.server_out.combine(&other.server_out, with),
        }
    }
}

impl Traffic {
    /// Returns the counts of these links so far.
    pub fn of(links: &[LinkInfo]) -> Self {
        let mut traffic = Self::default();
        for link in links {
            for channel in Channel::ALL {
                let counts = link.counters[channel.index()].snapshot();
                let directions = [counts.client_out, counts.client_in, counts.server_in, counts.server_out];
                traffic.add(channel.name(), directions);
            }
        }
        traffic
    }

    /// Adds the counts of one link on one channel: client out, client in, server in and server out.
    pub fn add(&mut self, channel: &str, [client_out, client_in, server_in, server_out]: [SizeCounts; 4]) {
        let link = ChannelTraffic {
            client_out: client_out.into(),
            client_in: client_in.into(),
            server_in: server_in.into(),
            server_out: server_out.into(),
        };
        if !link.is_idle() {
            let sum = self.0.entry(channel.into()).or_default();
            *sum = sum.combine(&link, u64::wrapping_add);
        }
    }

    /// Adds the traffic of another node.
    pub fn merge(&mut self, other: &Self) {
        for (channel, traffic) in &other.0 {
            let sum = self.0.entry(channel.clone()).or_default();
            *sum = sum.combine(traffic, u64::wrapping_add);
        }
    }

    /// Returns the change since `earlier`. A node that restarted since counts as silent, not as
    /// negative.
    pub fn since(&self, earlier: &Self) -> Self {
        let none = ChannelTraffic::default();
        let changes = self.0.iter().map(|(channel, now)| {
            let before = earlier.0.get(channel).unwrap_or(&none);
            (channel.clone(), now.combine(before, u64::saturating_sub))
        });
        Self(changes.filter(|(_, traffic)| !traffic.is_idle()).collect())
    }
}

/// Returns the name of a size class: "to 64 B", "to 16 KiB", "over 1 MiB".
pub fn size_name(class: usize) -> String {
    let unit = |bytes: u64| match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / 1_048_576),
    };
    match SIZE_BOUNDS.get(class) {
        Some(bound) => format!("to {}", unit(*bound)),
        None => format!("over {}", unit(SIZE_BOUNDS[SIZES - 2])),
    }
}

#[cfg(test)]
mod tests {
    use plexus_base::counters::SizeCounters;

    use super::*;

    fn counted(sizes: &[u64]) -> SizeCounts {
        let counters = SizeCounters::default();
        sizes.iter().for_each(|bytes| counters.count(*bytes));
        counters.snapshot()
    }

    #[test]
    fn links_and_nodes_add_up_and_intervals_subtract() {
        let none = counted(&[]);
        let mut first = Traffic::default();
        first.add("locks", [none; 4]);
        assert!(first.0.is_empty(), "a channel without messages is not listed");
        first.add("cache-blocks", [counted(&[16384]), none, none, none]);
        let mut second = first.clone();
        second.add("cache-blocks", [counted(&[16384, 64]), none, none, none]);
        let delta = second.since(&first);
        assert_eq!(delta.0["cache-blocks"].client_out.messages.iter().sum::<u64>(), 2);
        assert!(first.since(&second).0.is_empty());
        second.merge(&first);
        assert_eq!(second.0["cache-blocks"].client_out.bytes.iter().sum::<u64>(), 3 * 16384 + 64);
    }

    #[test]
    fn sizes_are_called_by_their_bounds() {
        assert_eq!(
            [size_name(3), size_name(11), size_name(14), size_name(15)],
            ["to 64 B", "to 16 KiB", "to 1 MiB", "over 1 MiB"]
        );
    }
}
