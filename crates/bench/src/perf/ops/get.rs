//! Bytes out of the peer's window: the peer's program has no part in it.

use plexus_interconnect::Net;

use super::Sending;
use crate::perf::WINDOW;

#[inline]
pub(super) fn issue(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, tag, offset, data, .. } = *sending;
    let _ = net.get(to, channel, WINDOW, offset, data.len() as u32, tag.into());
}
