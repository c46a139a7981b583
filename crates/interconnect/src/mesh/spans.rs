//! The windows of a node, as announced to its peers: their number (one byte), then for each a span
//! of 16 bytes, little endian (id 2, flags 2: 1 = wordwise, granule 4, length 8), and zeros up to
//! [`SPANS`] bytes.

use plexus_base::wire::{self, DecodeError, Fixed, Reader, Writer, require};
use plexus_fabric::WindowSpan;

/// The maximum number of windows of a node.
pub(super) const WINDOWS: usize = 16;

/// The bytes on the wire.
pub(super) const SPANS: usize = 1 + WINDOWS * WindowSpan::LEN;

pub(super) fn encode(spans: impl ExactSizeIterator<Item = WindowSpan>) -> Vec<u8> {
    assert!(spans.len() <= WINDOWS, "too many windows");
    let mut writer = Writer::with(&(spans.len() as u8), SPANS);
    spans.for_each(|span| _ = writer.put(&span));
    writer.fill(SPANS);
    writer.finish()
}

pub(super) fn decode(bytes: &[u8]) -> Result<Vec<WindowSpan>, DecodeError> {
    wire::decode("windows of a node", bytes, |reader| {
        let count: u8 = reader.take()?;
        require(bytes.len() == SPANS && usize::from(count) <= WINDOWS, "number of windows")?;
        let spans = reader.list(count, Reader::take)?;
        reader.rest();
        Ok(spans)
    })
}

#[cfg(test)]
mod tests {
    use plexus_fabric::WindowId;

    use super::*;

    #[test]
    fn spans_are_decoded_as_encoded_and_unknown_flags_refused() {
        let span = |id, granule, wordwise| WindowSpan { id: WindowId(id), len: 1 << 33, granule, wordwise };
        let spans = [span(1, 4096, false), span(0x101, 0, true)];
        let mut bytes = encode(spans.into_iter());
        assert_eq!(decode(&bytes), Ok(spans.to_vec()));
        bytes[3] = 2;
        assert!(decode(&bytes).is_err());
    }
}
