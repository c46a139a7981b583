//! The edits of a block under a change: the ranges that are changed, with their bytes before.
//!
//! They give the patch that redo needs, and undo the change, without a copy of the page and without
//! a comparison of pages. Only the first change after a write to the disk keeps the page before it,
//! because its redo needs that page as an image.

use std::{cell::Cell, ops::Range};

use plexus_disks::{HEADER, Page, Patch};

/// Two ranges with fewer bytes between them are logged as one: each range costs a head.
const NEAR: usize = 8;

/// A range that is changed, in user bytes.
struct Edit {
    range: Range<usize>,
    /// The place of its bytes before the change among all that are kept.
    kept_at: usize,
}

/// The ranges that a change has touched so far.
pub struct Edits {
    /// In the order in which they were made.
    made: Vec<Edit>,
    /// The bytes before each of them, one after the other.
    kept: Vec<u8>,
    /// The whole page before the first of them, if it was kept.
    image: Vec<u8>,
    /// The patch that makes them, once they are final.
    patch: Patch,
}

thread_local! {
    /// Empty edits with room, for the next change of this thread.
    static SPARE: Cell<Edits> = const { Cell::new(Edits::NONE) };
}

impl Edits {
    pub(crate) const NONE: Self =
        Self { made: Vec::new(), kept: Vec::new(), image: Vec::new(), patch: Patch::EMPTY };

    /// Returns empty edits, with the room of earlier ones of this thread.
    #[must_use]
    pub fn spare() -> Self {
        SPARE.replace(Self::NONE)
    }

    /// Keeps the room of these edits for the next change of this thread.
    pub fn recycle(&mut self) {
        let mut spare = std::mem::replace(self, Self::NONE);
        spare.made.clear();
        spare.kept.clear();
        spare.image.clear();
        spare.patch.clear();
        SPARE.set(spare);
    }

    /// Returns true if no range was touched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.made.is_empty()
    }

    /// Keeps the bytes of a range that will be changed, and the page if `keeps_image`. `page` is as
    /// the edits so far have left it.
    pub fn touch(&mut self, page: &[u8], range: Range<usize>, keeps_image: bool) {
        let is_known = |edit: &Edit| edit.range.start <= range.start && range.end <= edit.range.end;
        if range.is_empty() || self.made.iter().any(is_known) {
            return;
        }
        if self.made.is_empty() && keeps_image {
            self.image.extend_from_slice(page);
        }
        let kept_at = self.kept.len();
        self.kept.extend_from_slice(&Page::of(page).user()[range.clone()]);
        self.made.push(Edit { range, kept_at });
    }

    /// Gives the page its bytes before the edits, and forgets them.
    pub fn undo(&mut self, page: &mut [u8]) {
        // The latest first: a range may cover parts of an earlier one.
        for Edit { range, kept_at } in self.made.drain(..).rev() {
            let kept = &self.kept[kept_at..kept_at + range.len()];
            page[HEADER + range.start..HEADER + range.end].copy_from_slice(kept);
        }
        self.kept.clear();
        self.image.clear();
    }

    /// Returns the page before the edits, if it was kept.
    pub fn image(&self) -> Option<&[u8]> {
        (!self.image.is_empty()).then_some(&self.image)
    }

    /// Makes the edits final: `user` is as they have left it, and they cannot be undone any more.
    pub fn finish(&mut self, user: &[u8]) {
        // The first range that has a byte keeps what it was, so no byte that differs is left out.
        for Edit { range, kept_at } in &mut self.made {
            let kept = &self.kept[*kept_at..*kept_at + range.len()];
            let differs = |(at, kept): (usize, &u8)| (user[range.start + at] != *kept).then_some(at);
            let first = kept.iter().enumerate().find_map(differs);
            let last = kept.iter().enumerate().rev().find_map(differs);
            *range = match (first, last) {
                (Some(first), Some(last)) => range.start + first..range.start + last + 1,
                _ => range.start..range.start,
            };
        }
        self.made.retain(|edit| !edit.range.is_empty());
        self.made.sort_unstable_by_key(|edit| edit.range.start);
        let mut ranges = self.made.iter().map(|edit| edit.range.clone());
        let Some(mut joined) = ranges.next() else { return };
        for range in ranges {
            if range.start < joined.end + NEAR {
                joined.end = joined.end.max(range.end);
            } else {
                self.patch.range(joined.start, &user[joined]);
                joined = range;
            }
        }
        self.patch.range(joined.start, &user[joined]);
    }

    /// Returns the encoded [`Patch`] that makes the edits, once they are final.
    pub fn patch(&self) -> &[u8] {
        self.patch.encoded()
    }
}

#[cfg(test)]
mod tests {
    use plexus_disks::{TRAILER, apply_patch};
    use plexus_sim::Random;

    use super::*;

    const USER: u64 = 300;

    fn edited(random: &mut Random, page: &mut [u8], keeps_image: bool) -> Edits {
        let mut edits = Edits::spare();
        for _ in 0..random.below(8) {
            let start = random.below(USER) as usize;
            let end = random.between(start as u64, USER.min(start as u64 + 40)) as usize;
            edits.touch(page, start..end, keeps_image);
            page[HEADER + start..HEADER + end].fill_with(|| random.below(3) as u8);
        }
        edits
    }

    #[test]
    fn edits_that_are_undone_leave_the_page_as_it_was() {
        let mut random = Random::new(1);
        let mut page: Vec<u8> =
            (0..HEADER + USER as usize + TRAILER).map(|_| random.below(256) as u8).collect();
        for round in 0..3000 {
            let before = page.clone();
            let keeps_image = random.percent(50);
            let mut edits = edited(&mut random, &mut page, keeps_image);
            let image = edits.image().map(<[u8]>::to_vec);
            assert_eq!(image.is_some(), keeps_image && !edits.is_empty());
            assert!(image.is_none_or(|image| image == before), "round {round}");
            edits.undo(&mut page);
            assert!(page == before && edits.is_empty() && edits.image().is_none(), "round {round}");
        }
    }

    #[test]
    fn the_patch_of_edits_makes_them_and_is_no_longer_than_the_page() {
        let mut random = Random::new(2);
        let mut page = vec![0; HEADER + USER as usize + TRAILER];
        for round in 0..3000 {
            let mut before = page.clone();
            let mut edits = edited(&mut random, &mut page, false);
            edits.finish(Page::of(&page).user());
            let patch = edits.patch();
            assert_eq!(patch.is_empty(), page == before);
            assert!(patch.len() <= USER as usize + 4, "round {round}: {} bytes", patch.len());
            for _ in 0..2 {
                apply_patch(Page::of(&mut before).user_mut(), patch).unwrap();
                assert_eq!(before, page, "round {round}");
            }
        }
    }
}
