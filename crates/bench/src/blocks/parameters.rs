//! The parameters of the block workload.

use plexus_cache::GROUP_BLOCKS;
use serde::{Deserialize, Serialize};

use super::counted;
use crate::{
    named,
    workload::{check_clients, check_times},
};

/// The maximum number of blocks of a workload: every client keeps a number for each.
pub(super) const MAX_HOT: u64 = 1 << 20;

named! {
    /// How a client chooses its next block.
    #[derive(Default)]
    Order, "order" {
        /// Any of the hot blocks, with equal chances.
        #[default]
        Random "random",
        /// One after the other. With equal numbers of clients on each node, a block is nearly
        /// always on another node.
        Round "round",
    }
}

named! {
    /// When a change counts as acknowledged.
    #[derive(Default)]
    Durability, "durability" {
        /// When its redo is durable. In a cluster without redo, as `none`.
        #[default]
        Commit "commit",
        /// When it is made.
        None "none",
    }
}

/// A workload, the same on every node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Clients on each node.
    pub clients: u32,
    /// The number of blocks, from the first, that clients choose among.
    pub hot: u64,
    /// The number of blocks behind these that a scan on each node reads over and over, beside the
    /// clients; 0: there is no scan.
    #[serde(default)]
    pub scan: u64,
    /// The percentage of operations that change the block; the others read it.
    pub writes_percent: u32,
    /// Reads take a consistent copy and leave the block where it is.
    pub consistent_reads: bool,
    /// How the next block is chosen.
    pub order: Order,
    /// When a change counts as acknowledged.
    pub durability: Durability,
    /// The number of neighbouring blocks that a client changes in one group.
    #[serde(default = "one")]
    pub group: u32,
    /// The threads on each node that run the clients; 0: as many as the node has workers, or one
    /// for each client if clients pause.
    #[serde(default)]
    pub threads: u32,
    /// Microseconds that a client sleeps after each operation.
    #[serde(default)]
    pub pause_us: u64,
    /// Milliseconds before measuring begins.
    pub warm_ms: u64,
    /// Milliseconds that are measured.
    pub measured_ms: u64,
    /// The seed of the random numbers.
    pub seed: u64,
}

fn one() -> u32 {
    1
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            clients: 4,
            hot: 64,
            scan: 0,
            writes_percent: 50,
            consistent_reads: false,
            order: Order::Random,
            durability: Durability::Commit,
            group: 1,
            threads: 0,
            pause_us: 0,
            warm_ms: 300,
            measured_ms: 3000,
            seed: 1,
        }
    }
}

impl Workload {
    /// Returns the number of threads that run the clients of a node with `workers` workers.
    pub(super) fn threads(&self, workers: usize) -> usize {
        let clients = self.clients as usize;
        match self.threads {
            0 if self.pause_us > 0 => clients,
            0 => workers.min(clients),
            threads => threads as usize,
        }
    }

    /// Checks that `nodes` nodes can run the workload on `blocks` blocks of `user_bytes` user
    /// bytes.
    ///
    /// # Errors
    /// One line that names the parameter to change.
    pub fn check(&self, nodes: usize, user_bytes: usize, blocks: u64) -> Result<(), String> {
        check_clients(self.clients)?;
        check_times(self.warm_ms, self.measured_ms)?;
        if self.threads > self.clients {
            return Err(format!(
                "{} threads for {} clients: use at most one for each",
                self.threads, self.clients
            ));
        }
        if self.group == 0
            || self.group as usize > GROUP_BLOCKS
            || !self.hot.is_multiple_of(self.group.into())
        {
            return Err(format!(
                "groups of {} blocks: use 1 to {GROUP_BLOCKS}, and a multiple of it for the hot blocks ({})",
                self.group, self.hot
            ));
        }
        if self.pause_us > 1_000_000 {
            return Err(format!("a pause of {} us: use at most 1000000", self.pause_us));
        }
        if self.writes_percent > 100 {
            return Err(format!("{} % writes: use 0 to 100", self.writes_percent));
        }
        let most = blocks.min(MAX_HOT);
        if !(1..=most).contains(&self.hot) {
            return Err(format!("{} hot blocks: use 1 to {most}", self.hot));
        }
        if self.scan > blocks - self.hot {
            let most = blocks - self.hot;
            return Err(format!("a scan of {} blocks: use at most {most}, or a larger disk", self.scan));
        }
        let (slots, room) = (self.clients as usize * nodes, counted::slots(user_bytes));
        if slots > room {
            let most = room / nodes.max(1);
            return Err(format!(
                "{slots} clients in all, but a block has room to count {room}: use at most {most} on each node, or longer blocks"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_what_to_do() {
        let good = Workload::default();
        let user = 4096 - 72;
        assert_eq!(good.check(3, user, 4096), Ok(()));
        for (bad, part) in [
            (Workload { clients: 0, ..good.clone() }, "0 clients"),
            (Workload { clients: 256, ..good.clone() }, "use at most 167"),
            (Workload { writes_percent: 101, ..good.clone() }, "101 % writes"),
            (Workload { pause_us: 1_000_001, ..good.clone() }, "1000001 us"),
            (Workload { hot: 4097, ..good.clone() }, "use 1 to 4096"),
            (Workload { scan: 4096, ..good.clone() }, "use at most 4032"),
            (Workload { measured_ms: 1, ..good.clone() }, "measure for"),
            (Workload { group: 9, ..good.clone() }, "groups of 9 blocks"),
            (Workload { group: 3, ..good.clone() }, "a multiple of it"),
            (Workload { threads: 5, ..good.clone() }, "5 threads for 4 clients"),
        ] {
            let why = bad.check(3, user, 4096).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }
}
