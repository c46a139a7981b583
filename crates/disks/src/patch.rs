//! A patch: the change of the user bytes of a page, as a change record of redo carries it.
//!
//! It is a list of ranges. Applying a patch to the bytes before a change gives those after it.
//! Applying it again changes nothing more. All integers are little endian; for each range:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 2 | offset in the user bytes |
//! | 2 | 2 | length, at least 1 |
//! | 4 | length | the new bytes |

use plexus_base::wire::{self, DecodeError, Fault, Reader, Writer, require};

const WHAT: &str = "patch of a page";

wire::layout! {
    struct RangeHead: 4 { offset: u16, length: u16 }
}

/// An encoder of a patch.
#[derive(Clone, Default, Debug)]
pub struct Patch(Writer);

impl Patch {
    /// A patch without ranges.
    pub const EMPTY: Self = Self(Writer::EMPTY);

    /// Appends a range: `bytes` replace those at `offset`. Later ranges win where they overlap.
    ///
    /// # Panics
    /// If the range is empty, or beyond the longest page.
    pub fn range(&mut self, offset: usize, bytes: &[u8]) -> &mut Self {
        assert!(!bytes.is_empty(), "a range has bytes");
        let fits = |number: usize| u16::try_from(number).expect("a page is shorter than 64 KiB");
        self.0.put(&RangeHead { offset: fits(offset), length: fits(bytes.len()) }).bytes(bytes);
        self
    }

    /// Returns the encoded patch.
    #[must_use]
    pub fn encoded(&self) -> &[u8] {
        self.0.so_far()
    }

    /// Forgets all ranges, and keeps their memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Returns the ranges of an encoded patch: offset and new bytes.
///
/// # Errors
/// The bytes are not a patch.
pub fn patch_ranges(encoded: &[u8]) -> Result<Vec<(usize, &[u8])>, DecodeError> {
    let mut ranges = Vec::new();
    let mut reader = Reader::new(encoded);
    while !reader.is_empty() {
        ranges.push(range(&mut reader).map_err(|fault| fault.of(WHAT))?);
    }
    Ok(ranges)
}

/// Applies an encoded patch to the user bytes of a page.
///
/// # Errors
/// The bytes are not a patch of a page of this length. Then nothing was changed.
pub fn apply_patch(user: &mut [u8], encoded: &[u8]) -> Result<(), DecodeError> {
    let ranges = patch_ranges(encoded)?;
    let fits = ranges.iter().all(|(offset, bytes)| offset + bytes.len() <= user.len());
    require(fits, "end of a range").map_err(|fault| fault.of(WHAT))?;
    ranges.iter().for_each(|(offset, bytes)| user[*offset..offset + bytes.len()].copy_from_slice(bytes));
    Ok(())
}

fn range<'a>(reader: &mut Reader<'a>) -> Result<(usize, &'a [u8]), Fault> {
    let RangeHead { offset, length } = reader.take()?;
    require(length > 0, "length of a range")?;
    Ok((usize::from(offset), reader.bytes(length)?))
}

/// Applies any bytes as a patch to a page of 4 KiB for a fuzz target. Returns true if they are one.
#[doc(hidden)]
#[must_use]
pub fn patch_any(bytes: &[u8]) -> bool {
    let mut user = vec![0; 4096 - crate::HEADER - crate::TRAILER];
    let is_patch = apply_patch(&mut user, bytes).is_ok();
    assert!(is_patch || user.iter().all(|byte| *byte == 0), "a refused patch changes nothing");
    is_patch
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_beyond_the_page_or_cut_off_changes_nothing() {
        let mut patch = Patch::default();
        patch.range(2, b"ab").range(5, b"cd");
        let patch = patch.encoded();
        let mut user = *b"1234567";
        assert_eq!(apply_patch(&mut user, patch), Ok(()));
        assert_eq!(&user, b"12ab5cd");
        let mut short = *b"123456";
        let error = apply_patch(&mut short, patch).unwrap_err().to_string();
        assert_eq!(error, "malformed patch of a page: impossible end of a range");
        assert_eq!(apply_patch(&mut user, &patch[..11]), Err(Fault::CutOff.of(WHAT)));
        assert_eq!(apply_patch(&mut user, &[0; 4]), Err(Fault::Field("length of a range").of(WHAT)));
        assert_eq!((&short, &user), (b"123456", b"12ab5cd"));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let mut good = Patch::default();
        good.range(0, &[1; 30]).range(4000, &[2; 24]);
        let good = good.encoded().to_vec();
        assert!(patch_any(&good));
        plexus_sim::hostile(&[good], |bytes| {
            let _ = patch_any(bytes);
        });
    }
}
