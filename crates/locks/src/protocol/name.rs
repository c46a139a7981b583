//! Names of resources; the hash of a name selects its master.

use std::{cmp::Ordering, fmt, sync::Arc};

use plexus_base::{Partition, hash::hash, locks::MAX_NAME};

/// The reason why bytes are not a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NameError {
    /// The name is empty.
    #[error("a lock needs a name of 1 to {MAX_NAME} bytes; this one is empty")]
    Empty,
    /// The name has more than [`MAX_NAME`] bytes.
    #[error("a lock needs a name of 1 to {MAX_NAME} bytes; this one has {0}")]
    Long(usize),
}

/// The name of a resource: 1 to 255 bytes of any value. It is cheap to clone.
///
/// Names are ordered by partition, then by hash, then by bytes. So most comparisons end at once,
/// and resources with one master are adjacent.
#[derive(Clone, PartialEq, Eq)]
pub struct Name {
    /// The hash, with the bits of the partition in front.
    rank: u64,
    bytes: Bytes,
}

/// The bits of a hash that select the partition: the low ones.
const PARTITION_BITS: u32 = Partition::COUNT.trailing_zeros();

const _: () = assert!(Partition::COUNT.is_power_of_two());

/// The bytes of a name that are kept in place; most names fit.
const SHORT: usize = 30;

#[derive(Clone, PartialEq, Eq)]
enum Bytes {
    /// The length and the bytes; the rest is zero.
    Short(u8, [u8; SHORT]),
    /// A longer name.
    Long(Arc<[u8]>),
}

impl Bytes {
    fn new(bytes: &[u8]) -> Self {
        let mut short = [0; SHORT];
        match short.get_mut(..bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                Self::Short(bytes.len() as u8, short)
            }
            None => Self::Long(bytes.into()),
        }
    }
}

impl Name {
    /// Creates the name with these bytes.
    ///
    /// # Errors
    /// The name is empty or too long.
    pub fn new(bytes: &[u8]) -> Result<Self, NameError> {
        match bytes.len() {
            0 => Err(NameError::Empty),
            1..=MAX_NAME => {
                Ok(Self { rank: hash(bytes).rotate_right(PARTITION_BITS), bytes: Bytes::new(bytes) })
            }
            len => Err(NameError::Long(len)),
        }
    }

    /// Returns the bytes of the name.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Short(len, bytes) => &bytes[..usize::from(*len)],
            Bytes::Long(bytes) => bytes,
        }
    }

    /// Returns the hash partition that the resource belongs to.
    #[must_use]
    pub fn partition(&self) -> Partition {
        Partition::of(self.rank.rotate_left(PARTITION_BITS))
    }

    /// Returns the number that orders names, except for the few with equal hashes.
    pub(super) fn rank(&self) -> u64 {
        self.rank
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.rank.cmp(&other.rank).then_with(|| self.bytes().cmp(other.bytes()))
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_1_to_255_bytes() {
        assert_eq!(Name::new(b""), Err(NameError::Empty));
        assert!(Name::new(&[0]).is_ok() && Name::new(&[0xff; 255]).is_ok());
        assert_eq!(Name::new(&[b'x'; 10_000]), Err(NameError::Long(10_000)));
        let why = NameError::Long(10_000).to_string();
        assert_eq!(why, "a lock needs a name of 1 to 255 bytes; this one has 10000");
    }

    #[test]
    fn names_of_all_lengths_keep_their_bytes_and_their_order() {
        let all: Vec<Vec<u8>> = (1..=MAX_NAME).map(|len| vec![7; len]).collect();
        let name = |bytes: &Vec<u8>| Name::new(bytes).expect("a name");
        for (one, other) in all.iter().zip(&all[1..]) {
            assert_eq!((name(one).bytes(), name(one)), (&one[..], name(one).clone()));
            assert_ne!(name(one), name(other));
            // Names with the same rank are ordered by their bytes.
            let alike = |bytes| Name { rank: 0, ..name(bytes) };
            assert!(alike(one) < alike(other));
        }
    }

    #[test]
    fn names_of_a_partition_are_together_in_the_order() {
        let names = (0..20_000u32).map(|number| Name::new(&number.to_le_bytes()).expect("a name"));
        let mut names: Vec<Name> = names.collect();
        names.sort();
        assert!(names.is_sorted_by_key(|name| name.partition()), "by partition first");
        assert!(names.is_sorted_by_key(Name::rank));
    }

    #[test]
    fn names_are_spread_over_partitions() {
        let mut share = vec![0u32; usize::from(Partition::COUNT)];
        for number in 0..200_000u32 {
            let name = Name::new(format!("accounts/{number}").as_bytes()).expect("a name");
            share[usize::from(name.partition().0)] += 1;
        }
        let (least, most) = (share.iter().min(), share.iter().max());
        assert!(least > Some(&15) && most < Some(&100), "{least:?} to {most:?} of 49 each");
    }
}
