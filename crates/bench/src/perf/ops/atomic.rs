//! One more on a word of the peer's window; the answer is what it was.

use plexus_interconnect::Net;

use super::Sending;
use crate::perf::{WINDOW, places, wire::Tag};

#[inline]
pub(super) fn issue(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, tag, .. } = *sending;
    let Some(Tag { stream, trial, .. }) = Tag::read(tag) else { return };
    let _ = net.fetch_add(to, channel, WINDOW, places::counter(stream, trial), 1, tag.into());
}
