//! What a message says of a put, the same on every rail that sends bytes: 24 bytes, little endian. The layout stands in the tables of
//! the messages that it is part of (`tcp/wire.rs`, `ofi/wire.rs`).
//!
//! Any bytes are such fields: whether the window is there and takes the put is for its owner to say.

use plexus_base::wire::{self, Fixed};

use crate::{Put, WindowId};

/// Bytes on the wire.
pub(crate) const PUT_LEN: usize = Target::LEN;

/// Where the data of a put are or go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Target {
    pub(crate) window: WindowId,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) generation: u32,
    /// Of the data, where nothing else vouches for them.
    pub(crate) crc: u32,
}

wire::layout! { impl Target: 24 { offset: u64, len: u32, crc: u32, generation: u32, window: WindowId; 2 } }

impl Target {
    /// Of a put whose data, no longer than a `u32` says, have this checksum.
    pub(crate) fn of(put: &Put<'_>, crc: u32) -> Self {
        let Put { window, offset, generation, data, .. } = *put;
        Self { window, offset, len: data.len() as u32, generation, crc }
    }

    pub(crate) fn encode(&self) -> [u8; PUT_LEN] {
        wire::encode(self)
    }
}
