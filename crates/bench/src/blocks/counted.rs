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

/// Returns the number of clients that a block with `user_bytes` has room for.
#[must_use]
pub(super) const fn slots(user_bytes: usize) -> usize {
    (user_bytes / 8).saturating_sub(1)
}

#[inline]
fn field(user: &[u8], index: usize) -> u64 {
    user.get(index * 8..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[inline]
fn set(user: &mut [u8], index: usize, value: u64) {
    if let Some(place) = user.get_mut(index * 8..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value.to_le_bytes();
    }
}

/// Returns how often the client with `slot` has changed the block.
#[inline]
pub(super) fn of_slot(user: &[u8], slot: usize) -> u64 {
    field(user, slot + 1)
}

/// Counts a change by the client with `slot`.
#[inline]
pub(super) fn change(user: &mut [u8], slot: usize) {
    set(user, 0, field(user, 0).wrapping_add(1));
    set(user, slot + 1, field(user, slot + 1).wrapping_add(1));
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
mod tests {
    use super::*;

    #[test]
    fn changes_add_up_and_what_is_torn_is_seen() {
        let mut user = vec![0; 4096 - 72];
        assert_eq!(total(&user), Some(0));
        let last = slots(user.len()) - 1;
        (0..3).for_each(|_| change(&mut user, 0));
        change(&mut user, last);
        assert_eq!((total(&user), of_slot(&user, 0), of_slot(&user, last)), (Some(4), 3, 1));
        user[9] ^= 1;
        assert_eq!(total(&user), None);
    }
}
