//! The service that runs on a worker, and the errors of its sends.

use plexus_base::NodeId;
use plexus_fabric::Lost;

use crate::{Channel, Message, Net, calls::MOST_CALLS};

/// The message handlers that a worker runs. The worker makes one call at a time, from the thread
/// that drives it. No handler may block.
pub trait Service: Send + 'static {
    /// The requests that local threads hand in through [`crate::Worker::submit`].
    type Task: Send + 'static;

    /// Handles a message that has arrived. If it came behind a put, the data is in place.
    fn message(&mut self, net: &mut Net, message: Message<'_>);

    /// Handles a request of a local thread.
    fn task(&mut self, net: &mut Net, task: Self::Task);

    /// Handles the reply to a call or an access on `channel`. `token` is the one given to
    /// [`Net::call`], [`Net::get`] and so on.
    fn reply(&mut self, net: &mut Net, from: NodeId, channel: Channel, token: u64, payload: &[u8]) {
        let _ = (net, from, channel, token, payload);
    }

    /// Notes that the reply to a call on `channel` will never come.
    fn call_failed(&mut self, net: &mut Net, peer: NodeId, channel: Channel, token: u64) {
        let _ = (net, peer, channel, token);
    }

    /// Notes that the link to `peer` is up.
    fn peer_up(&mut self, net: &mut Net, peer: NodeId) {
        let _ = (net, peer);
    }

    /// Notes that the link to `peer` is gone for good. Everything that the peer sent before has
    /// been handled.
    fn peer_gone(&mut self, net: &mut Net, peer: NodeId, why: &Lost);

    /// Runs once in every turn of the worker, for work that does not come over its links. Returns
    /// how much was done. The source of such work rings [`crate::Worker::bell`] afterwards.
    #[inline]
    fn turn(&mut self, net: &mut Net) -> usize {
        let _ = net;
        0
    }

    /// Returns whether [`Service::turn`] has work now. The worker calls it after arming its bell
    /// and before it sleeps. It must find all work that the bell will not announce.
    fn pending(&mut self) -> bool {
        false
    }
}

/// The error of an operation on a node without a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no link to {0}")]
pub struct NoLink(pub NodeId);

/// The reason why there will be no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CallError {
    /// There is no link to that node.
    #[error(transparent)]
    NoLink(#[from] NoLink),
    /// All tags are in use by calls that wait for their replies; take some replies first.
    #[error("{MOST_CALLS} calls wait for their replies")]
    Full,
}
