//! Selects the copy that a node uses when it starts.
//!
//! Guarantees: the newest whole copy of this cluster is chosen. A copy of another cluster or a
//! newer program is not overwritten, and two copies that contradict each other are an error.
//! Whether other nodes have newer ones is not known here.

use super::{ClusterName, Contents, ImageError, Kind, decode, store::COPIES};

/// The state of one copy on disk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// The bytes of the file.
    Bytes(Vec<u8>),
    /// The file does not exist.
    Missing,
    /// The file cannot be read, for this reason.
    Unreadable(String),
}

/// The reason why the registry cannot be opened. Nothing was written.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// A copy belongs to another cluster or a newer program.
    #[error("copy {} of the registry {bad}", copy + 1)]
    NotOurs {
        /// The number of the copy, from 0.
        copy: usize,
        /// The reason.
        bad: ImageError,
    },
    /// Two whole copies of one generation differ.
    #[error(
        "both copies of the registry have generation {generation} and differ: find out which is right and remove the other"
    )]
    Contradiction {
        /// Their generation.
        generation: u64,
    },
}

/// The contents with which a node starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The contents of the newest whole copy; empty at generation 0 if none is whole.
    pub contents: Contents,
    /// True if there were copies and none is whole: only other nodes can have the contents.
    pub is_lost: bool,
    /// The generation of each whole copy.
    pub holds: [Option<u64>; COPIES],
    /// The problem of each other copy, unless neither was ever written.
    pub trouble: [Option<String>; COPIES],
}

/// Selects the contents to start with.
///
/// # Errors
/// A copy must not be overwritten, or the copies contradict each other.
pub fn open(cluster: ClusterName, found: &[Found; COPIES]) -> Result<Opened, OpenError> {
    let read = ours(cluster, found)?;
    if let [Ok(one), Ok(other)] = &read
        && one.generation == other.generation
        && one != other
    {
        return Err(OpenError::Contradiction { generation: one.generation });
    }
    let newest = read.iter().flatten().max_by_key(|contents| contents.generation).cloned();
    let is_new = found.iter().all(|found| *found == Found::Missing);
    let holds = read.each_ref().map(|copy| copy.as_ref().ok().map(|contents| contents.generation));
    Ok(Opened {
        is_lost: newest.is_none() && !is_new,
        contents: newest.unwrap_or_else(|| Contents::new(cluster)),
        holds,
        trouble: read.map(|copy| copy.err().filter(|_| !is_new)),
    })
}

/// Decodes each copy or returns its problem. A copy of another cluster or another format is an
/// error.
fn ours(
    cluster: ClusterName,
    found: &[Found; COPIES],
) -> Result<[Result<Contents, String>; COPIES], OpenError> {
    let mut read = [const { Err(String::new()) }; COPIES];
    for (copy, found) in found.iter().enumerate() {
        read[copy] = match found {
            Found::Missing => Err("is missing".into()),
            Found::Unreadable(why) => Err(format!("cannot be read: {why}")),
            Found::Bytes(bytes) => match decode(Kind::Copy, cluster, bytes) {
                Ok(contents) => Ok(contents),
                Err(bad @ ImageError::Damaged(_)) => Err(bad.to_string()),
                Err(bad @ (ImageError::Format(_) | ImageError::Foreign(_))) => {
                    return Err(OpenError::NotOurs { copy, bad });
                }
            },
        };
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Change, Key, encode};

    const CLUSTER: ClusterName = ClusterName(1);

    fn copy(generation: u64, value: &str) -> Found {
        let mut contents = Contents::new(CLUSTER);
        contents.change(generation, None, &Change::set(Key::new("a").unwrap(), value.as_bytes())).unwrap();
        Found::Bytes(encode(Kind::Copy, &contents))
    }

    fn unreadable() -> Found {
        Found::Unreadable("Permission denied".into())
    }

    #[test]
    fn the_newest_whole_copy_wins_and_the_other_is_known_to_lack_it() {
        for (other, holds) in [
            (Found::Missing, None),
            (unreadable(), None),
            (Found::Bytes(vec![0; 99]), None),
            (copy(3, "x"), Some(3)),
        ] {
            let [here, there] = [[copy(4, "y"), other.clone()], [other, copy(4, "y")]]
                .map(|found| open(CLUSTER, &found).unwrap());
            assert!(here.contents.generation == 4 && there.contents == here.contents && !here.is_lost);
            assert_eq!((here.holds, there.holds), ([Some(4), holds], [holds, Some(4)]));
            assert_eq!((here.trouble[1].is_some(), here.trouble[0].is_some()), (holds.is_none(), false));
        }
    }

    #[test]
    fn a_node_that_never_had_a_copy_is_not_taken_for_one_that_lost_both() {
        let new = open(CLUSTER, &[Found::Missing, Found::Missing]).unwrap();
        assert_eq!((new.contents.generation, new.is_lost, new.trouble), (0, false, [None, None]));
        let lost = open(CLUSTER, &[unreadable(), Found::Bytes(Vec::new())]).unwrap();
        assert!(lost.contents.generation == 0 && lost.is_lost);
        let trouble = lost.trouble.map(Option::unwrap);
        assert!(trouble[0].contains("Permission denied") && trouble[1].contains("cut off"), "{trouble:?}");
    }

    #[test]
    fn contradicting_or_foreign_copies_are_refused() {
        let foreign = Found::Bytes(encode(Kind::Copy, &Contents::new(ClusterName(2))));
        let bad = ImageError::Foreign(ClusterName(2));
        assert_eq!(open(CLUSTER, &[copy(4, "y"), foreign]), Err(OpenError::NotOurs { copy: 1, bad }));
        let differ = open(CLUSTER, &[copy(4, "y"), copy(4, "x")]);
        assert_eq!(differ, Err(OpenError::Contradiction { generation: 4 }));
    }
}
