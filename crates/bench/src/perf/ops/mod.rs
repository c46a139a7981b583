//! The operations, a module each: how one of it leaves, and what the receiver finds of it.
//!
//! All leave the same way ([`Sending`]), so that whoever keeps count of them ([`active`](super::active)) knows nothing of how.

mod atomic;
mod get;
mod put;
mod send;
mod write;

use plexus_base::NodeId;
use plexus_fabric::Window;
use plexus_interconnect::{Bytes, Channel, Kind, Message, Net};

use super::{Op, Trial, payload};

/// One message that is to leave.
pub(super) struct Sending<'a> {
    pub(super) op: Op,
    pub(super) to: NodeId,
    pub(super) channel: Channel,
    pub(super) kind: Kind,
    pub(super) tag: u32,
    /// Which of its stream it is.
    pub(super) number: u64,
    /// Where in the peer's window it goes, if it goes there.
    pub(super) offset: u64,
    pub(super) data: &'a [u8],
    /// What that is a part of.
    pub(super) shared: &'a Bytes,
}

/// Sends it. Where there is no link nothing happens: the port is told of that apart.
#[inline]
pub(super) fn issue(net: &mut Net, sending: &Sending<'_>) {
    match sending.op {
        Op::Send => send::issue(net, sending),
        Op::Put => put::issue(net, sending),
        Op::Get => get::issue(net, sending),
        Op::Write => write::issue(net, sending),
        Op::Atomic => atomic::issue(net, sending),
        Op::Datagram => unreachable!("refused by `Trial::check_between_nodes`"),
    }
}

/// Looks at all bytes of a message of `trial` that has come; what was seen. `place` is where in this side's window
/// its sender puts.
#[inline]
pub(super) fn look(trial: &Trial, window: &Window, place: u64, message: &Message<'_>) -> u64 {
    match trial.op {
        Op::Send => payload::look(message.payload),
        Op::Put => payload::look_at(window, place as usize, trial.bytes as usize),
        // Nothing of these comes as a message.
        Op::Get | Op::Write | Op::Atomic | Op::Datagram => 0,
    }
}
