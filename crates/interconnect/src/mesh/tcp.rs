//! The messages of a TCP connection after the hellos, and the rail over the lanes of one place.

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

/// The length of that message, sealed.
pub(super) const SEALED_GO: usize = GO.len() + TAG;

/// The length of the announced windows, sealed.
pub(super) const SEALED_SPANS: usize = SPANS + TAG;

/// A connection whose handshake is complete.
pub(super) struct Lane {
    pub(super) stream: TcpStream,
    /// The keys for sending and receiving.
    pub(super) keys: RailKeys,
}

/// Encodes this node's windows.
pub(super) fn our_spans(common: &MeshState) -> Vec<u8> {
    spans::encode(common.config.windows.iter().map(|window| window.span()))
}

/// Decodes the peer's windows.
pub(super) fn their_spans(bytes: &[u8]) -> Result<Vec<WindowSpan>, String> {
    spans::decode(bytes).map_err(|error| error.to_string())
}

/// Builds the rail over the connections of one place.
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
