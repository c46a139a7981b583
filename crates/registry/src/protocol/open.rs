//! Which of two copies is believed when the registry is opened.
//!
//! Guarantees: the newest whole copy of this cluster is chosen, and none that is older than what is known; what belongs to
//! another cluster or a newer program is not overwritten, and two that contradict each other are not chosen between.

use super::{Bad, ClusterName, Contents, Kind, Refused, decode, store::COPIES};

/// What stands at the place of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// These bytes.
    Bytes(Vec<u8>),
    /// No file.
    Missing,
    /// A file that cannot be read.
    Unreadable,
}

/// Why the registry is not opened. Nothing was written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unopened {
    /// A copy belongs to somebody else.
    #[error("copy {} of the registry {bad}", copy + 1)]
    NotOurs {
        /// Which of the two, from 0.
        copy: usize,
        /// Whose it is.
        bad: Bad,
    },
    /// No copy is whole.
    #[error("no copy of the registry is usable: the first {}, the second {}; restore a backup", why[0], why[1])]
    NoCopy {
        /// What is wrong with each.
        why: [String; COPIES],
    },
    /// Two whole copies of one generation say different things.
    #[error(
        "both copies of the registry have generation {generation} and differ: find out which is right and remove the other"
    )]
    Contradiction {
        /// Their generation.
        generation: u64,
    },
    /// The newest copy is older than what was written.
    #[error(
        "the newest copy of the registry has generation {found}, but {known} was written: put the newer copy back, or restore a backup"
    )]
    Old {
        /// The newest generation found.
        found: u64,
        /// The newest generation that is known.
        known: u64,
    },
    /// A backup does not fit.
    #[error(transparent)]
    Refused(#[from] Refused),
}

/// The contents to go on from, and which copies say just that.
pub(super) fn choose(
    cluster: ClusterName,
    known: u64,
    found: [Found; COPIES],
) -> Result<(Contents, [bool; COPIES]), Unopened> {
    let read = ours(cluster, &found)?;
    let whole = read.each_ref().map(|read| read.as_ref().ok());
    if let [Some(one), Some(other)] = whole
        && one.generation == other.generation
        && one != other
    {
        return Err(Unopened::Contradiction { generation: one.generation });
    }
    let Some(newest) = whole.into_iter().flatten().max_by_key(|contents| contents.generation) else {
        return Err(Unopened::NoCopy { why: read.map(|read| read.err().unwrap_or_default()) });
    };
    if newest.generation < known {
        return Err(Unopened::Old { found: newest.generation, known });
    }
    let same = whole.map(|copy| copy == Some(newest));
    Ok((newest.clone(), same))
}

/// The newest generation of the copies that are whole; 0: none is.
pub(super) fn newest(cluster: ClusterName, found: &[Found; COPIES]) -> Result<u64, Unopened> {
    let read = ours(cluster, found)?;
    Ok(read.iter().flatten().map(|contents| contents.generation).max().unwrap_or(0))
}

/// What each copy says, or what is wrong with it, unless it belongs to somebody else.
fn ours(
    cluster: ClusterName,
    found: &[Found; COPIES],
) -> Result<[Result<Contents, String>; COPIES], Unopened> {
    let mut read = [const { Err(String::new()) }; COPIES];
    for (copy, found) in found.iter().enumerate() {
        read[copy] = match found {
            Found::Missing => Err("is missing".into()),
            Found::Unreadable => Err("cannot be read".into()),
            Found::Bytes(bytes) => match decode(Kind::Copy, cluster, bytes) {
                Ok(contents) => Ok(contents),
                Err(bad @ Bad::Damaged(_)) => Err(bad.to_string()),
                Err(bad @ (Bad::Newer(_) | Bad::Foreign(_))) => return Err(Unopened::NotOurs { copy, bad }),
            },
        };
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Change, Command, Key, encode};

    const CLUSTER: ClusterName = ClusterName(1);

    fn copy(generation: u64, value: &str) -> Found {
        let mut contents = Contents::new(CLUSTER);
        let command = Command::Change(Change::set(Key::new("a").unwrap(), value.as_bytes()));
        contents.apply(generation, None, &command).unwrap();
        Found::Bytes(encode(Kind::Copy, &contents))
    }

    fn open(known: u64, found: [Found; 2]) -> Result<(u64, [bool; 2]), Unopened> {
        choose(CLUSTER, known, found).map(|(contents, same)| (contents.generation, same))
    }

    #[test]
    fn the_newest_whole_copy_wins_in_either_place() {
        for other in [Found::Missing, Found::Unreadable, Found::Bytes(vec![0; 99]), copy(3, "x")] {
            assert_eq!(open(4, [copy(4, "y"), other.clone()]), Ok((4, [true, false])));
            assert_eq!(open(0, [other, copy(4, "y")]), Ok((4, [false, true])));
        }
        assert_eq!(open(0, [copy(4, "y"), copy(4, "y")]), Ok((4, [true, true])));
    }

    #[test]
    fn what_must_not_be_guessed_is_refused() {
        let foreign = Found::Bytes(encode(Kind::Copy, &Contents::new(ClusterName(2))));
        let bad = Bad::Foreign(ClusterName(2));
        assert_eq!(open(0, [copy(4, "y"), foreign]), Err(Unopened::NotOurs { copy: 1, bad }));
        let differ = open(0, [copy(4, "y"), copy(4, "x")]);
        assert_eq!(differ, Err(Unopened::Contradiction { generation: 4 }));
        assert_eq!(open(5, [Found::Missing, copy(4, "x")]), Err(Unopened::Old { found: 4, known: 5 }));
        let none = open(0, [Found::Missing, Found::Bytes(Vec::new())]).unwrap_err();
        assert!(none.to_string().contains("missing") && none.to_string().contains("cut off"), "{none}");
    }
}
