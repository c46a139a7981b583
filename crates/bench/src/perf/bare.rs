//! A worker for measurements only, in a process without a node.

use plexus_base::NodeId;
use plexus_fabric::Lost;
use plexus_interconnect::{Channel, Message, Net, Service};
use plexus_node::{BenchmarkPort, service::MeasuredService};

/// A service that has only the place for a port.
#[derive(Default)]
pub struct Bare(BenchmarkPort);

impl MeasuredService for Bare {
    fn benchmark_port(&mut self) -> Option<&mut BenchmarkPort> {
        Some(&mut self.0)
    }
}

impl Service for Bare {
    type Task = ();

    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        if let Some(port) = self.0.get() {
            port.message(net, message);
        }
    }

    fn task(&mut self, _: &mut Net, (): ()) {}

    fn reply(&mut self, net: &mut Net, from: NodeId, _: Channel, token: u64, payload: &[u8]) {
        self.0.get().into_iter().for_each(|port| port.reply(net, from, token, payload));
    }

    #[inline]
    fn turn(&mut self, net: &mut Net) -> usize {
        self.0.get().map_or(0, |port| port.turn(net))
    }

    fn pending(&mut self) -> bool {
        self.0.get().is_some_and(|port| port.pending())
    }

    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, _: &Lost) {
        self.0.get().into_iter().for_each(|port| port.peer_gone(net, peer));
    }
}
