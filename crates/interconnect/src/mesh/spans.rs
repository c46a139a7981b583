//! What a node's windows are, as told to its peers: how many (one byte), then for each a span of 16 bytes, little endian
//! (id 2, flags 2: 1 = wordwise, granule 4, length 8), and zeros up to [`SPANS`] bytes.

use plexus_fabric::{WindowId, WindowSpan};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout,
    little_endian::{U16, U32, U64},
};

/// Most windows of a node.
pub(super) const WINDOWS: usize = 16;

const FLAG_WORDWISE: u16 = 1;

/// Bytes on the wire.
pub(super) const SPANS: usize = 1 + WINDOWS * size_of::<Wire>();

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Wire {
    id: U16,
    flags: U16,
    granule: U32,
    len: U64,
}

pub(super) fn encode(spans: impl ExactSizeIterator<Item = WindowSpan>) -> [u8; SPANS] {
    assert!(spans.len() <= WINDOWS, "more windows than fit");
    let mut bytes = [0; SPANS];
    bytes[0] = spans.len() as u8;
    for (place, span) in bytes[1..].chunks_exact_mut(size_of::<Wire>()).zip(spans) {
        let wire = Wire {
            id: span.id.0.into(),
            flags: if span.wordwise { FLAG_WORDWISE } else { 0 }.into(),
            granule: span.granule.into(),
            len: span.len.into(),
        };
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
    spans
        .map(|wire| match wire.flags.get() {
            flags @ (0 | FLAG_WORDWISE) => Ok(WindowSpan {
                id: WindowId(wire.id.get()),
                granule: wire.granule.get(),
                len: wire.len.get(),
                wordwise: flags == FLAG_WORDWISE,
            }),
            _ => Err("it has a window of a kind that there is not".into()),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_an_unknown_flag_refused() {
        let span = |id, granule, wordwise| WindowSpan { id: WindowId(id), len: 1 << 33, granule, wordwise };
        let spans = [span(1, 4096, false), span(0x101, 0, true)];
        let mut bytes = encode(spans.into_iter());
        assert_eq!(decode(&bytes), Ok(spans.to_vec()));
        bytes[3] = 2;
        assert!(decode(&bytes).is_err());
    }
}
