//! The place on each worker for the handler of a benchmark's messages.
//!
//! Benchmarks measure the links of a running node. One at a time puts its [`ChannelPort`] into the
//! [`BenchmarkPort`] of a worker. It gets all messages on the channels of benchmarks there and
//! follows the rules of a service: it never blocks, and answers through the [`Net`].

use std::sync::Arc;

use plexus_admin::config::BENCHMARK_WINDOW_BYTES;
use plexus_base::NodeId;
use plexus_fabric::Window;
use plexus_interconnect::{Channel, Message, Net};
use plexus_membership::subsystem::{Neighbours, Subsystem, WorkerPort};

use super::{Handle, Install, Installed, Making};
use crate::runtime::BENCHMARK_WINDOW;

/// The handler of the messages of benchmarks on one worker.
pub trait ChannelPort: Send {
    /// Handles a message. If it came behind a put, the data is in place.
    fn message(&mut self, net: &mut Net, message: Message<'_>);

    /// Handles the answer to a call of this port with `token`; the operation defines the payload.
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        let _ = (net, from, token, payload);
    }

    /// Does work that no message announces, in every turn of the worker; returns how much was done.
    fn turn(&mut self, net: &mut Net) -> usize {
        let _ = net;
        0
    }

    /// Returns true if [`ChannelPort::turn`] has work now that the worker's bell will not announce
    /// again.
    fn pending(&self) -> bool {
        false
    }

    /// Handles the final loss of the link to `peer`.
    fn peer_gone(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }
}

/// The place for the port on one worker.
#[derive(Default)]
pub struct BenchmarkPort(Option<Box<dyn ChannelPort>>);

impl BenchmarkPort {
    /// Sets or removes the port; returns the earlier one.
    pub fn set(&mut self, port: Option<Box<dyn ChannelPort>>) -> Option<Box<dyn ChannelPort>> {
        std::mem::replace(&mut self.0, port)
    }

    /// Returns the port, if there is one.
    #[inline]
    pub fn get(&mut self) -> Option<&mut dyn ChannelPort> {
        // As a match, because `map` would need the lifetime of the box.
        match &mut self.0 {
            Some(port) => Some(&mut **port),
            None => None,
        }
    }
}

impl Subsystem for BenchmarkPort {
    const NAME: &'static str = "benchmarks";
    const CHANNELS: &'static [Channel] = &[Channel::Benchmark, Channel::BenchmarkBulk];
    const HAS_TURN: bool = true;
    type Task = ();

    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        match self.get() {
            Some(port) => port.message(net, message),
            None => tracing::debug!(from = %message.from, "no benchmark receives a message"),
        }
    }

    fn task(&mut self, _: &mut Net, (): ()) {}

    #[inline]
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        self.get().into_iter().for_each(|port| port.reply(net, from, token, payload));
    }

    fn peer_lost(&mut self, net: &mut Net, peer: NodeId) {
        self.get().into_iter().for_each(|port| port.peer_gone(net, peer));
    }

    #[inline]
    fn turn(&mut self, net: &mut Net, _: &mut dyn Neighbours) -> usize {
        self.get().map_or(0, |port| port.turn(net))
    }

    #[inline]
    fn pending(&mut self) -> bool {
        self.get().is_some_and(|port| port.pending())
    }
}

/// The window into which the benchmarks of peers write. They reach the port through the worker.
pub(crate) struct BenchmarkHandle(pub(crate) Arc<Window>);

impl Handle for BenchmarkHandle {}

impl Install for BenchmarkPort {
    type Handle = BenchmarkHandle;

    fn install(node: &Making<'_>, _: Arc<dyn WorkerPort<Self>>) -> Result<Installed<Self>, String> {
        let window = Window::create(BENCHMARK_WINDOW, BENCHMARK_WINDOW_BYTES, 0);
        let window = Arc::new(window.map_err(|error| error.to_string())?);
        let parts = (0..node.parts.config.workers).map(|_| Self::default()).collect();
        let windows = vec![window.clone()];
        Ok(Installed { windows, ..Installed::new(parts, BenchmarkHandle(window)) })
    }
}
