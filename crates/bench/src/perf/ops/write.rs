//! Bytes into the peer's window, and no message: the last word says that they are there, and the peer keeps looking at it.

use plexus_fabric::Put;
use plexus_interconnect::Net;

use super::Sending;
use crate::perf::{
    WINDOW,
    places::{self, Announced, WORD},
    wire::{Tag, What},
};

#[inline]
pub(super) fn issue(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, tag, number, offset, data, .. } = *sending;
    let Some(tag) = Tag::read(tag) else { return };
    let put = |offset, data| Put { window: WINDOW, offset, generation: 0, data };
    let front = &data[..data.len().saturating_sub(WORD as usize)];
    if !front.is_empty() {
        let _ = net.write(to, channel, put(offset, front));
    }
    let which = if tag.what == What::Data { Announced::Data } else { Announced::Answer };
    let word = places::announcement(tag.trial, number);
    let _ = net.write(to, channel, put(places::word(which, tag.stream), &word));
}
