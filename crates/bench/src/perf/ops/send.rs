//! A message that the peer is handed, and hands back as it came.

use plexus_interconnect::Net;

use super::Sending;

#[inline]
pub(super) fn issue(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, kind, tag, data, .. } = *sending;
    let _ = net.send(to, channel, kind, tag, data);
}
