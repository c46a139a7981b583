//! The fields that describe a put on every rail that sends bytes: 24 bytes, little endian. The
//! tables of the messages that contain them give the layout (`tcp/wire.rs`, and `wire.rs` of the
//! crate `ofi`).
//!
//! Any 24 bytes decode. The owner of the window then checks that the window exists and accepts the
//! put.

use plexus_base::wire::{self, Fixed};

use crate::{Put, WindowId};

/// The length of the fields on the wire, in bytes.
pub(crate) const PUT_LEN: usize = PutTarget::LEN;

/// The place in a window where the data of a put are read from or written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PutTarget {
    /// The window of the receiver.
    pub window: WindowId,
    /// The offset in it, in bytes.
    pub offset: u64,
    /// The length of the data in bytes.
    pub len: u32,
    /// The generation of the target granule, as in [`Put`].
    pub generation: u32,
    /// The checksum of the data, 0 where a seal or the transport protects them.
    pub crc: u32,
}

wire::layout! { impl PutTarget: 24 { offset: u64, len: u32, crc: u32, generation: u32, window: WindowId; 2 } }

impl PutTarget {
    /// The fields of `put`, whose data fit a `u32` length and have the checksum `crc`.
    #[must_use]
    pub fn of(put: &Put<'_>, crc: u32) -> Self {
        let Put { window, offset, generation, data, .. } = *put;
        Self { window, offset, len: data.len() as u32, generation, crc }
    }

    /// Encodes the fields for the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; PUT_LEN] {
        wire::encode(self)
    }
}
