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

/// The bytes that are compared at once. Ranges with fewer equal bytes between them are joined.
const WORD: usize = size_of::<u64>();

/// The bytes that are passed over at once if they are equal.
const RUN: usize = 32 * WORD;

/// An encoder of a patch.
#[derive(Clone, Default, Debug)]
pub struct Patch(Writer);

impl Patch {
    /// Returns the patch that leads from `before` to `after`; it is empty if they are equal.
    ///
    /// # Panics
    /// If the lengths differ.
    #[must_use]
    pub fn difference(before: &[u8], after: &[u8]) -> Self {
        assert_eq!(before.len(), after.len(), "a change keeps the length of a page");
        let mut patch = Self::default();
        let mut range: Option<(usize, usize)> = None;
        let mut close = |range: &mut Option<(usize, usize)>| {
            if let Some((first, end)) = range.take() {
                patch.range(first, &after[first..end]);
            }
        };
        for (run, (old, new)) in before.chunks(RUN).zip(after.chunks(RUN)).enumerate() {
            if old == new {
                close(&mut range);
                continue;
            }
            for (index, (old, new)) in old.chunks(WORD).zip(new.chunks(WORD)).enumerate() {
                let (start, differs) = (run * RUN + index * WORD, word(old) ^ word(new));
                if differs == 0 {
                    close(&mut range);
                    continue;
                }
                let first = start + differs.trailing_zeros() as usize / 8;
                let end = start + WORD - differs.leading_zeros() as usize / 8;
                range = Some((range.map_or(first, |(first, _)| first), end));
            }
        }
        close(&mut range);
        patch
    }

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
    pub fn finish(self) -> Vec<u8> {
        self.0.finish()
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

/// Returns up to eight bytes as a number, the first one lowest.
fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or_else(
        || bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)),
        |whole| u64::from_le_bytes(*whole),
    )
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
    use plexus_sim::Random;

    use super::*;

    #[test]
    fn any_difference_leads_from_one_content_to_the_other() {
        let mut random = Random::new(1);
        for round in 0..3000 {
            let length = random.between(1, 300) as usize;
            let before: Vec<u8> = (0..length).map(|_| random.below(3) as u8).collect();
            let mut after = before.clone();
            for _ in 0..random.below(5) {
                let at = random.below(length as u64) as usize;
                let end = length.min(at + random.between(1, 20) as usize);
                after[at..end].iter_mut().for_each(|byte| *byte = random.below(3) as u8);
            }
            let patch = Patch::difference(&before, &after).finish();
            assert_eq!(patch.is_empty(), before == after, "round {round}");
            let mut applied = before;
            for _ in 0..2 {
                apply_patch(&mut applied, &patch).expect("a patch");
                assert_eq!(applied, after, "round {round}");
            }
        }
    }

    #[test]
    fn a_changed_counter_costs_a_few_bytes_and_near_ranges_are_joined() {
        let before = [0; 4024];
        let changed = |places: &[usize]| {
            let mut after = before;
            places.iter().for_each(|at| after[*at] = 1);
            Patch::difference(&before, &after).finish()
        };
        assert_eq!(changed(&[70]).len(), 5);
        assert_eq!(patch_ranges(&changed(&[70, 75])), Ok(vec![(70, &[1, 0, 0, 0, 0, 1][..])]));
        assert_eq!(patch_ranges(&changed(&[7, 16, 4023])).map(|ranges| ranges.len()), Ok(3));
    }

    #[test]
    fn a_patch_beyond_the_page_or_cut_off_changes_nothing() {
        let mut patch = Patch::default();
        patch.range(2, b"ab").range(5, b"cd");
        let patch = patch.finish();
        let mut user = *b"1234567";
        assert_eq!(apply_patch(&mut user, &patch), Ok(()));
        assert_eq!(&user, b"12ab5cd");
        let mut short = *b"123456";
        let error = apply_patch(&mut short, &patch).unwrap_err().to_string();
        assert_eq!(error, "malformed patch of a page: impossible end of a range");
        assert_eq!(apply_patch(&mut user, &patch[..11]), Err(Fault::CutOff.of(WHAT)));
        assert_eq!(apply_patch(&mut user, &[0; 4]), Err(Fault::Field("length of a range").of(WHAT)));
        assert_eq!((&short, &user), (b"123456", b"12ab5cd"));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let mut good = Patch::default();
        good.range(0, &[1; 30]).range(4000, &[2; 24]);
        let good = good.finish();
        assert!(patch_any(&good));
        plexus_sim::hostile(&[good], |bytes| {
            let _ = patch_any(bytes);
        });
    }
}
