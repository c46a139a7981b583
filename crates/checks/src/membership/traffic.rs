//! Counts the messages of an idle cluster and of a death, in a steady cluster
//! ([`Membership::steady`]).

use plexus_base::NodeSet;

use super::Membership;
use crate::failure::Broken;

/// The heartbeats over which idle traffic is counted.
const IDLE_HEARTBEATS: u64 = 100;

/// The membership traffic of a whole cluster.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Traffic {
    /// Reports per heartbeat in an idle cluster, counted per receiver.
    pub reports: f64,
    /// Turns at voting files per heartbeat in an idle cluster.
    pub turns: f64,
    /// Reports from the end of a process until all others act in a view without it, beyond those of
    /// the heartbeats.
    pub reports_of_death: f64,
    /// Turns in that time, beyond those of the heartbeats.
    pub turns_of_death: f64,
    /// That time in simulated nanoseconds.
    pub death_ns: u64,
}

impl Membership {
    /// Counts the traffic.
    ///
    /// # Errors
    /// A property does not hold, or an expected view does not come.
    pub fn traffic(&mut self) -> Result<Traffic, Broken> {
        let heartbeat = self.world.profile.heartbeat.0;
        self.all_start()?;
        self.rest_a_while()?;
        let before = (self.world.sent, self.world.turns);
        self.run(IDLE_HEARTBEATS * heartbeat)?;
        let [reports, turns] = [self.world.sent - before.0, self.world.turns - before.1]
            .map(|count| count as f64 / IDLE_HEARTBEATS as f64);
        self.rest_a_while()?;
        let node = self.nodes() - 1;
        let before = (self.world.sent, self.world.turns);
        self.world.nodes[node].down = true;
        self.world.crash(node);
        let death_ns = self.until(NodeSet::first(node as u8))?;
        let passed = death_ns as f64 / heartbeat as f64;
        Ok(Traffic {
            reports,
            turns,
            reports_of_death: (self.world.sent - before.0) as f64 - passed * reports,
            turns_of_death: (self.world.turns - before.1) as f64 - passed * turns,
            death_ns,
        })
    }
}
