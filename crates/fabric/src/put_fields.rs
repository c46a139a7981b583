//! What a message says of a put, the same on every rail that sends bytes: 24 bytes, little endian. The layout stands in the tables of
//! the messages that it is part of (`tcp/wire.rs`, `ofi/wire.rs`).
//!
//! Any bytes are such fields: whether the window is there and takes the put is for its owner to say.

use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::{Put, WindowId};

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct PutFields {
    offset: U64,
    len: U32,
    crc: U32,
    generation: U32,
    window: U16,
    zero: U16,
}

/// Bytes on the wire.
pub(crate) const PUT_LEN: usize = size_of::<PutFields>();

const _: () = assert!(PUT_LEN == 24);

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

impl PutFields {
    /// Of a put whose data, no longer than a `u32` says, have this checksum.
    pub(crate) fn of(put: &Put<'_>, crc: u32) -> Self {
        Self {
            offset: U64::new(put.offset),
            len: U32::new(put.data.len() as u32),
            crc: U32::new(crc),
            generation: U32::new(put.generation),
            window: U16::new(put.window.0),
            zero: U16::new(0),
        }
    }

    pub(crate) fn target(&self) -> Target {
        Target {
            window: WindowId(self.window.get()),
            offset: self.offset.get(),
            len: self.len.get(),
            generation: self.generation.get(),
            crc: self.crc.get(),
        }
    }
}
