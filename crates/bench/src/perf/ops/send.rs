//! A message that the peer is handed, and hands back as it came.

use plexus_interconnect::Net;

use super::Sending;

/// Who sends what is long, and leaves it as it is, says so.
const LONG: usize = 4 << 10;

#[inline]
pub(super) fn issue(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, kind, tag, shared, .. } = *sending;
    let _ = match shared.len() {
        ..LONG => net.send(to, channel, kind, tag, shared),
        LONG.. => net.send_shared(to, channel, kind, tag, shared),
    };
}
