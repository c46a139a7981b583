//! Bytes into the peer's window, and an empty message behind them that says so.

use plexus_fabric::Put;
use plexus_interconnect::Net;

use super::Sending;
use crate::perf::WINDOW;

#[inline]
pub(super) fn issue(net: &mut Net, sending: &Sending<'_>) {
    let Sending { to, channel, kind, tag, offset, data, .. } = *sending;
    let put = Put { window: WINDOW, offset, generation: 0, data };
    let _ = net.put(to, channel, kind, tag, put, &[]);
}
