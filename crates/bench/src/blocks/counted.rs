//! The user bytes of a block that counts its changes, little endian:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | changes of the block, by anybody |
//! | 8 + 8 s | 8 | changes of it by the client with slot s |
//!
//! A client's slot is `place * clients + client`; the place is that of its node among the members.
//! The first field is always the sum of all others: a reader that finds another sum has found a
//! torn block, or one with other content.

use plexus_cache::BlockChange;

/// Returns the number of clients that a block with `user_bytes` has room for.
#[must_use]
pub(super) const fn slots(user_bytes: usize) -> usize {
    (user_bytes / 8).saturating_sub(1)
}

#[inline]
fn field(user: &[u8], index: usize) -> u64 {
    user.get(index * 8..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Returns how often the client with `slot` has changed the block.
#[inline]
pub(super) fn of_slot(user: &[u8], slot: usize) -> u64 {
    field(user, slot + 1)
}

/// Counts a change by the client with `slot`.
#[inline]
pub(super) fn change(page: &mut impl BlockChange, slot: usize) {
    write(page, counts(page, slot));
}

/// Writes fields of [`counts`].
#[inline]
pub(super) fn write(page: &mut impl BlockChange, counts: [(usize, [u8; 8]); 2]) {
    counts.iter().for_each(|(offset, bytes)| page.write(*offset, bytes));
}

/// Returns the offsets of the fields that count a change by the client with `slot`, with their new
/// bytes.
#[inline]
pub(super) fn counts(user: &[u8], slot: usize) -> [(usize, [u8; 8]); 2] {
    [0, slot + 1].map(|index| (index * 8, field(user, index).wrapping_add(1).to_le_bytes()))
}

/// Returns the changes of the block if its fields add up.
#[inline]
pub(super) fn total(user: &[u8]) -> Option<u64> {
    let (fields, _) = user.as_chunks::<8>();
    let (first, slots) = fields.split_first()?;
    let sum = slots.iter().fold(0, |sum: u64, bytes| sum.wrapping_add(u64::from_le_bytes(*bytes)));
    (u64::from_le_bytes(*first) == sum).then_some(sum)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn apply(user: &mut [u8], counts: [(usize, [u8; 8]); 2]) {
        counts.iter().for_each(|(offset, bytes)| user[*offset..][..8].copy_from_slice(bytes));
    }

    #[test]
    fn changes_add_up_and_what_is_torn_is_seen() {
        let mut user = vec![0; 4096 - 72];
        assert_eq!(total(&user), Some(0));
        let last = slots(user.len()) - 1;
        for slot in [0, 0, 0, last] {
            let counts = counts(&user, slot);
            apply(&mut user, counts);
        }
        assert_eq!((total(&user), of_slot(&user, 0), of_slot(&user, last)), (Some(4), 3, 1));
        user[9] ^= 1;
        assert_eq!(total(&user), None);
    }
}
