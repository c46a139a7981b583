//! What the two ends of a TCP connection say to each other after their hellos, and the rail over the lanes of one place.

use std::net::TcpStream;

use plexus_base::NodeId;
use plexus_fabric::{
    LANES, Rail, TcpRail, WindowSpan,
    tcp::{Seal, TcpParts},
};

use super::{
    common::MeshState,
    noise::{RailKeys, TAG},
    spans::{self, SPANS},
};

/// The last message of a handshake.
pub(super) const GO: [u8; 1] = [0x47];

/// Its length, sealed.
pub(super) const SEALED_GO: usize = GO.len() + TAG;

/// Length of what an end's windows are, sealed.
pub(super) const SEALED_SPANS: usize = SPANS + TAG;

/// A connection whose handshake is over.
pub(super) struct Lane {
    pub(super) stream: TcpStream,
    /// For what is sent and what is received.
    pub(super) keys: RailKeys,
}

/// What this node's windows are.
pub(super) fn our_spans(common: &MeshState) -> Vec<u8> {
    spans::encode(common.config.windows.iter().map(|window| window.span()))
}

/// What the peer's windows are.
pub(super) fn their_spans(bytes: &[u8]) -> Result<Vec<WindowSpan>, String> {
    spans::decode(bytes).map_err(|error| error.to_string())
}

/// The rail over the connections of one place.
pub(super) fn rail(
    common: &MeshState,
    peer: NodeId,
    lanes: [Lane; LANES],
    peer_windows: Vec<WindowSpan>,
) -> Result<Box<dyn Rail>, String> {
    let mut seals = Vec::with_capacity(LANES);
    let streams = lanes.map(|lane| {
        let (send, receive) = lane.keys;
        seals.push(Seal::new(send, receive));
        lane.stream
    });
    let encrypt = common.peer(peer).is_none_or(|peer| peer.encrypt);
    let seals = if encrypt { <[Seal; LANES]>::try_from(seals).ok() } else { None };
    let parts = TcpParts { streams, windows: common.windows.clone(), peer_windows, seals };
    Ok(Box::new(TcpRail::new(parts).map_err(|error| error.to_string())?))
}
