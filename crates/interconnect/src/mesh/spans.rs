//! What a node's windows are, as told to its peers: how many (one byte), then for each a span of 16 bytes, little endian
//! (id 2, zero 2, granule 4, length 8), and zeros up to [`SPANS`] bytes.

use plexus_fabric::{WindowId, WindowSpan};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

/// Most windows of a node.
pub(super) const WINDOWS: usize = 16;

/// Bytes on the wire.
pub(super) const SPANS: usize = 1 + WINDOWS * size_of::<Wire>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Wire {
    id: U16,
    zero: U16,
    granule: U32,
    len: U64,
}

pub(super) fn encode(spans: impl ExactSizeIterator<Item = WindowSpan>) -> [u8; SPANS] {
    assert!(spans.len() <= WINDOWS, "more windows than fit");
    let mut bytes = [0; SPANS];
    bytes[0] = spans.len() as u8;
    for (place, span) in bytes[1..].chunks_exact_mut(size_of::<Wire>()).zip(spans) {
        let wire =
            Wire { id: span.id.0.into(), zero: 0.into(), granule: span.granule.into(), len: span.len.into() };
        place.copy_from_slice(wire.as_bytes());
    }
    bytes
}

pub(super) fn decode(bytes: &[u8; SPANS]) -> Result<Vec<WindowSpan>, String> {
    let (count, rest) = bytes.split_first().expect("it has a length");
    if usize::from(*count) > WINDOWS {
        return Err("it has more windows than any node".into());
    }
    let spans = rest.chunks_exact(size_of::<Wire>()).take(usize::from(*count));
    let spans = spans.filter_map(|bytes| Wire::read_from_bytes(bytes).ok());
    Ok(spans
        .map(|wire| WindowSpan {
            id: WindowId(wire.id.get()),
            granule: wire.granule.get(),
            len: wire.len.get(),
        })
        .collect())
}
