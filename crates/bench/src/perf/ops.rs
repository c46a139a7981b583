//! The operations: how a message of each kind is sent, and what the receiver reads of it.
//!
//! All are sent the same way ([`Sending`]), so that the module that counts them
//! ([`active`](super::active)) does not depend on how.

use plexus_base::NodeId;
use plexus_fabric::{Put, Window};
use plexus_interconnect::{Bytes, Channel, Kind, Message, Net};

use super::{
    Op, Trial, WINDOW, payload,
    places::{self, Announced, WORD},
    wire::{MessageKind, Tag},
};

/// The length from which a message is shared with the link instead of copied.
const LONG: usize = 4 << 10;

/// A message to send.
pub(super) struct Sending<'a> {
    pub(super) op: Op,
    pub(super) to: NodeId,
    pub(super) channel: Channel,
    pub(super) kind: Kind,
    pub(super) tag: u32,
    /// The number of the message in its stream.
    pub(super) number: u64,
    /// The offset in the peer's window, for operations that write or read there.
    pub(super) offset: u64,
    pub(super) data: &'a [u8],
    /// The buffer that `data` is a part of.
    pub(super) shared: &'a Bytes,
}

/// Sends the message. Without a link this does nothing; the port is notified separately.
#[inline]
pub(super) fn issue(net: &mut Net, sending: &Sending<'_>) {
    match sending.op {
        Op::Send => send(net, sending),
        Op::Put => put(net, sending),
        Op::Get => get(net, sending),
        Op::Write => write(net, sending),
        Op::Atomic => atomic(net, sending),
        Op::Datagram => unreachable!("refused by `Trial::check_between_nodes`"),
    }
}

/// Sends a message that the peer receives and returns unchanged.
#[inline]
fn send(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, kind, tag, shared, .. } = *sending;
    let _ = match shared.len() {
        ..LONG => net.send(to, channel, kind, tag, shared),
        LONG.. => net.send_shared(to, channel, kind, tag, shared),
    };
}

/// Puts bytes into the peer's window, followed by an empty message that announces them.
#[inline]
fn put(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, kind, tag, offset, data, .. } = *sending;
    let put = Put { window: WINDOW, offset, generation: 0, data };
    let _ = net.put(to, channel, kind, tag, put, &[]);
}

/// Gets bytes from the peer's window without its program.
#[inline]
fn get(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, tag, offset, data, .. } = *sending;
    let _ = net.get(to, channel, WINDOW, offset, data.len() as u32, tag.into());
}

/// Writes bytes into the peer's window without a message. The peer polls the last word, which
/// announces them.
#[inline]
fn write(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, tag, number, offset, data, .. } = *sending;
    let Some(tag) = Tag::read(tag) else { return };
    let put = |offset, data| Put { window: WINDOW, offset, generation: 0, data };
    let front = &data[..data.len().saturating_sub(WORD as usize)];
    if !front.is_empty() {
        let _ = net.write(to, channel, put(offset, front));
    }
    let which = if tag.what == MessageKind::Data { Announced::Data } else { Announced::Answer };
    let word = places::announcement(tag.trial, number);
    let _ = net.write(to, channel, put(places::word(which, tag.stream), &word));
}

/// Adds one to a word of the peer's window; the answer is the earlier value.
#[inline]
fn atomic(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, tag, .. } = *sending;
    let Some(Tag { stream, trial, .. }) = Tag::read(tag) else { return };
    let _ = net.fetch_add(to, channel, WINDOW, places::counter(stream, trial), 1, tag.into());
}

/// Returns the checksum of a received message of `trial`. `place` is the offset in this side's
/// window at which its sender puts.
#[inline]
pub(super) fn look(trial: &Trial, window: &Window, place: u64, message: &Message<'_>) -> u64 {
    match trial.op {
        Op::Send => payload::look(message.payload),
        Op::Put => payload::look_at(window, place as usize, trial.bytes as usize),
        // These operations deliver no message.
        Op::Get | Op::Write | Op::Atomic | Op::Datagram => 0,
    }
}
