//! The serving side: answers what it is sent, and counts its CPU time.

use std::sync::Arc;

use plexus_base::NodeId;
use plexus_fabric::Put;
use plexus_interconnect::{Channel, Kind, Message, Net};
use plexus_node::port::Port;

use super::{Method, Pattern, PerfError, Trial, WINDOW, progress::Progress, wire};
use crate::Usage;

/// Streams are acknowledged every so many messages: often enough that the client never runs dry.
const ACKNOWLEDGE_EVERY: u64 = 4;

pub(super) struct Server {
    client: Option<NodeId>,
    trial: Option<Trial>,
    /// What is put back.
    data: Box<[u8]>,
    arrived: u64,
    cpu_at_mark_ns: u64,
    progress: Arc<Progress<Result<(), PerfError>>>,
}

impl Server {
    pub(super) fn new(progress: Arc<Progress<Result<(), PerfError>>>) -> Self {
        let data = vec![0x5a; super::WINDOW_BYTES as usize].into_boxed_slice();
        Self { client: None, trial: None, data, arrived: 0, cpu_at_mark_ns: 0, progress }
    }

    #[inline]
    fn data(&mut self, net: &mut Net, message: Message<'_>) {
        let Some(trial) = self.trial else { return };
        self.arrived += 1;
        match (trial.pattern, trial.method) {
            (Pattern::Latency, Method::Send) => reply(net, message.from, wire::ACK, message.payload),
            (Pattern::Latency, Method::Put) => {
                let put = Put {
                    window: WINDOW,
                    offset: 0,
                    generation: 0,
                    data: &self.data[..trial.bytes as usize],
                };
                // No link: the port is told of that apart.
                let _ =
                    net.put(message.from, Channel::Benchmark, Kind::Reply, wire::ACK, put, message.payload);
            }
            (Pattern::Stream, _) => {
                if self.arrived.is_multiple_of(ACKNOWLEDGE_EVERY) {
                    reply(net, message.from, wire::ACK, &self.arrived.to_le_bytes());
                }
            }
        }
    }
}

#[inline]
fn reply(net: &mut Net, to: NodeId, tag: u32, payload: &[u8]) {
    // No link: the port is told of that apart.
    let _ = net.send(to, Channel::Benchmark, Kind::Reply, tag, payload);
}

impl Port for Server {
    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        if self.client.is_some_and(|client| client != message.from) {
            return;
        }
        match message.tag {
            wire::DATA => self.data(net, message),
            wire::HELLO => {
                self.client = Some(message.from);
                reply(net, message.from, wire::WELCOME, &[]);
            }
            wire::BEGIN => {
                self.trial = Trial::from_wire(message.payload);
                self.arrived = 0;
                reply(net, message.from, wire::READY, &[]);
            }
            wire::MARK => self.cpu_at_mark_ns = Usage::cpu_ns(),
            wire::END => {
                let used = Usage::cpu_ns() - self.cpu_at_mark_ns;
                reply(net, message.from, wire::ENDED, &used.to_le_bytes());
            }
            wire::BYE => self.progress.finish(Ok(())),
            _ => {}
        }
    }

    fn peer_gone(&mut self, _: &mut Net, peer: NodeId) {
        if self.client.is_none_or(|client| client == peer) {
            self.progress.finish(Err(PerfError::PeerGone(peer)));
        }
    }
}
