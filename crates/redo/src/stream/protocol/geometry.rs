//! Positions in a stream.
//!
//! An LSN is a byte position in the endless sequence of a stream, and no LSN is used twice. The
//! device has room for the last few segments of the sequence: segment `n` is at place `n %
//! segments`, behind the two headers. A segment is used again when the checkpoint has passed its
//! last contents.

use std::fmt;

use plexus_base::{aligned::ALIGN, wire};

/// The bytes of a page: batches begin and end at multiples of it.
pub const PAGE: u64 = ALIGN as u64;

/// The bytes in front of the first segment: two headers, a page each.
const DATA_START: u64 = 2 * PAGE;

/// The greatest LSN: no sum of positions overflows below it.
const LSN_MAX: u64 = 1 << 60;

/// The most bytes of a device, and of a segment.
const LENGTH_MAX: u64 = 1 << 48;

/// The most bytes of the records of a group: 64 images of the largest blocks.
const GROUP_MAX: u64 = 1 << 20;

/// The most blocks in the footer of a segment. With more, the scan reads the segment instead.
const FOOTER_MAX: u64 = 1 << 16;

/// The most bytes of a batch. More records do not make a write faster, and a torn batch is searched
/// for batches behind it.
const BATCH_MAX: u64 = 4 << 20;

/// The bytes of an entry of a footer.
pub(super) const FOOTER_ENTRY: u64 = 16;

/// The bytes in front of the footer and the records of a batch.
pub(super) const BATCH_HEAD: u64 = 64;

const _: () = assert!(BATCH_HEAD + FOOTER_MAX * FOOTER_ENTRY + GROUP_MAX <= BATCH_MAX);

wire::newtypes!(Lsn(u64));
wire::layout! { impl Geometry: 12 { segment_bytes: u64, segments: u32 } }

/// A byte position in a stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The position of the first batch of a stream. Position 0 stands for none, as in pages.
    pub const FIRST: Self = Self(PAGE);

    /// Returns true if a batch can begin here.
    #[must_use]
    pub fn is_valid(self) -> bool {
        (Self::FIRST.0..=LSN_MAX).contains(&self.0) && self.0.is_multiple_of(PAGE)
    }

    /// Returns the position `bytes` further on.
    #[must_use]
    pub fn after(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LSN {}", self.0)
    }
}

/// The segments of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    segment_bytes: u64,
    segments: u32,
}

impl Geometry {
    /// The usual segments: 64 MiB each.
    pub const SEGMENT_BYTES: u64 = 64 << 20;

    /// Returns the geometry of at least 2 segments of whole pages, at least 4 each, or `None` for
    /// other numbers.
    #[must_use]
    pub fn new(segment_bytes: u64, segments: u32) -> Option<Self> {
        let geometry = Self { segment_bytes, segments };
        geometry.is_possible().then_some(geometry)
    }

    /// Returns true for numbers that [`Self::new`] accepts.
    pub(super) fn is_possible(self) -> bool {
        self.segment_bytes.is_multiple_of(PAGE)
            && (4 * PAGE..=LENGTH_MAX).contains(&self.segment_bytes)
            && self.segments >= 2
            && self.segment_bytes.saturating_mul(self.segments.into()) <= LENGTH_MAX
    }

    /// Returns the bytes of the device.
    #[must_use]
    pub fn length(self) -> u64 {
        DATA_START + self.data_bytes()
    }

    /// Returns the bytes of all segments.
    fn data_bytes(self) -> u64 {
        self.segment_bytes * u64::from(self.segments)
    }

    /// Returns the bytes of a segment.
    #[must_use]
    pub fn segment_bytes(self) -> u64 {
        self.segment_bytes
    }

    /// Returns the number of segments.
    #[must_use]
    pub fn segments(self) -> u32 {
        self.segments
    }

    /// Returns the position below which a new device has zeros.
    #[must_use]
    pub fn first_zeros(self) -> Lsn {
        self.zeros_for(Lsn(0))
    }

    /// Returns the position up to which zeros are wanted for a stream that ends at `end`: half a
    /// segment ahead, as long as the device was not used as a whole.
    pub(super) fn zeros_for(self, end: Lsn) -> Lsn {
        let ahead = self.segment_bytes / 2 / PAGE * PAGE;
        end.after(ahead).min(self.second_round())
    }

    /// Returns the most bytes of zeros that are written at once.
    pub(super) fn zeros_max(self) -> u64 {
        whole_pages(self.segment_bytes / 8)
    }

    /// Returns the position at which the first segment is used again.
    pub(super) fn second_round(self) -> Lsn {
        Lsn(self.data_bytes())
    }

    /// Returns the offset of a position on the device.
    #[must_use]
    pub fn offset(self, lsn: Lsn) -> u64 {
        DATA_START + lsn.0 % self.data_bytes()
    }

    /// Returns the start of the segment behind the one of `lsn`.
    #[must_use]
    pub fn next_segment(self, lsn: Lsn) -> Lsn {
        Lsn((lsn.0 / self.segment_bytes + 1) * self.segment_bytes)
    }

    /// Returns true if a segment starts here.
    #[must_use]
    pub fn is_segment_start(self, lsn: Lsn) -> bool {
        lsn.0.is_multiple_of(self.segment_bytes)
    }

    /// Returns the first position whose place on the device still belongs to the segment of
    /// `checkpoint`.
    #[must_use]
    pub fn limit(self, checkpoint: Lsn) -> Lsn {
        Lsn(checkpoint.0 / self.segment_bytes * self.segment_bytes + self.data_bytes())
    }

    /// Returns the most bytes of the records of one group.
    #[must_use]
    pub fn group_max(self) -> u64 {
        GROUP_MAX.min(self.segment_bytes / 4)
    }

    /// Returns the most blocks in a footer.
    #[must_use]
    pub fn footer_max(self) -> usize {
        FOOTER_MAX.min(self.segment_bytes / 4 / FOOTER_ENTRY) as usize
    }

    /// Returns the most bytes of one batch with its padding.
    #[must_use]
    pub fn batch_max(self) -> u64 {
        BATCH_MAX.min(self.segment_bytes)
    }
}

/// Returns `bytes` rounded up to whole pages.
pub(super) fn whole_pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_repeat_after_the_last_segment_and_not_before() {
        let geometry = Geometry::new(4 * PAGE, 3).unwrap();
        assert_eq!(geometry.offset(Lsn::FIRST), DATA_START + PAGE);
        assert_eq!(geometry.offset(Lsn(12 * PAGE)), DATA_START);
        assert_eq!(geometry.length(), DATA_START + 12 * PAGE);
        // The last position that fits beside a checkpoint in the first segment.
        let limit = geometry.limit(Lsn(3 * PAGE));
        assert_eq!((limit, geometry.offset(limit)), (Lsn(12 * PAGE), geometry.offset(Lsn(0))));
        assert_eq!(geometry.limit(Lsn(4 * PAGE)), Lsn(16 * PAGE));
    }

    #[test]
    fn impossible_segments_are_refused() {
        let possible = |bytes, segments| Geometry::new(bytes, segments).is_some();
        assert!(possible(4 * PAGE, 2) && possible(Geometry::SEGMENT_BYTES, 1 << 16));
        assert!(!possible(4 * PAGE, 1) && !possible(3 * PAGE, 2) && !possible(4 * PAGE + 1, 2));
        assert!(!possible(0, 2) && !possible(u64::MAX - 4095, u32::MAX));
    }
}
