//! The fields that describe a put on every rail that sends bytes: 24 bytes, little endian. The
//! tables of the messages that contain them give the layout (`tcp/wire.rs`, `ofi/wire.rs`).
//!
//! Any 24 bytes decode. The owner of the window then checks that the window exists and accepts the
//! put.

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

/// The length of the fields on the wire, in bytes.
pub(crate) const PUT_LEN: usize = size_of::<PutFields>();

const _: () = assert!(PUT_LEN == 24);

/// The place in a window where the data of a put are read from or written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PutTarget {
    pub(crate) window: WindowId,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    pub(crate) generation: u32,
    /// The checksum of the data, 0 where a seal or the transport protects them.
    pub(crate) crc: u32,
}

impl PutFields {
    /// The fields of `put`, whose data fit a `u32` length and have the checksum `crc`.
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

    pub(crate) fn target(&self) -> PutTarget {
        PutTarget {
            window: WindowId(self.window.get()),
            offset: self.offset.get(),
            len: self.len.get(),
            generation: self.generation.get(),
            crc: self.crc.get(),
        }
    }
}
