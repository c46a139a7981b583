//! A view of the cluster: its members with their incarnations, and the voting files that decide the
//! next view.

use std::{fmt, str::FromStr};

use plexus_base::{Epoch, Incarnation, MAX_NODES, NodeId, NodeSet, hex};

/// The most voting files of a cluster: one on a disk of each node.
pub const MAX_FILES: usize = MAX_NODES;

/// The random identifier of a voting file, chosen when the file is created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// An error for text that is not a voting file identifier.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is not a voting file identifier (16 hexadecimal digits)")]
pub struct InvalidFileId(String);

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for FileId {
    type Err = InvalidFileId;

    fn from_str(text: &str) -> Result<Self, InvalidFileId> {
        hex::number(text, 16).map(|number| Self(number as u64)).ok_or_else(|| InvalidFileId(text.into()))
    }
}

/// A voting file of a view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VotingFile {
    /// The identifier of the file.
    pub id: FileId,
    /// The epoch of the view that added it. A file that was removed and added again starts without
    /// remembered state.
    pub since: Epoch,
    /// The node that serves the file from its own disk; `None` if every node opens it directly.
    pub host: Option<NodeId>,
}

/// A node's state in a view. Incarnation numbers of a node only grow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Seat {
    /// The node is not in the cluster. If it was, its last member incarnation (0: none) can never
    /// be a member again, even if the node is added again.
    Free(Incarnation),
    /// The node is in the cluster but not a member. Its last member incarnation (0: none yet) can
    /// never be a member again.
    Out(Incarnation),
    /// The node is a member in this incarnation.
    In(Incarnation),
}

impl Default for Seat {
    fn default() -> Self {
        Self::Free(Incarnation(0))
    }
}

impl Seat {
    /// Returns the last incarnation of the node that was a member; 0 if none was.
    #[must_use]
    pub fn last(self) -> Incarnation {
        match self {
            Self::Free(incarnation) | Self::Out(incarnation) | Self::In(incarnation) => incarnation,
        }
    }
}

/// The members, and the voting files that decide the next view.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// The number of the view; 0 for the initial view without members.
    pub epoch: Epoch,
    /// The state of each node.
    pub seats: [Seat; MAX_NODES],
    /// The voting files, ordered by identifier; at most [`MAX_FILES`].
    pub files: Vec<VotingFile>,
}

impl View {
    /// Returns the initial view of a cluster of these nodes, without members.
    ///
    /// # Panics
    /// Panics without voting files or with more than [`MAX_FILES`].
    #[must_use]
    pub fn first(nodes: NodeSet, files: impl IntoIterator<Item = (FileId, Option<NodeId>)>) -> Self {
        let mut seats = [Seat::default(); MAX_NODES];
        nodes.iter().for_each(|node| seats[node.index()] = Seat::Out(Incarnation(0)));
        let file = |(id, host)| VotingFile { id, since: Epoch(0), host };
        let mut files: Vec<VotingFile> = files.into_iter().map(file).collect();
        files.sort_unstable();
        assert!((1..=MAX_FILES).contains(&files.len()), "{} voting files", files.len());
        Self { epoch: Epoch(0), seats, files }
    }

    /// Returns the next view with these seats and files.
    #[must_use]
    pub fn next(&self, seats: [Seat; MAX_NODES], files: Vec<VotingFile>) -> Self {
        Self { epoch: Epoch(self.epoch.0 + 1), seats, files }
    }

    /// Returns the members.
    #[must_use]
    pub fn members(&self) -> NodeSet {
        self.nodes(|seat| matches!(seat, Seat::In(_)))
    }

    /// Returns the nodes of the cluster, members or not.
    #[must_use]
    pub fn cluster(&self) -> NodeSet {
        self.nodes(|seat| !matches!(seat, Seat::Free(_)))
    }

    fn nodes(&self, wanted: impl Fn(Seat) -> bool) -> NodeSet {
        (0..MAX_NODES as u8).map(NodeId).filter(|node| wanted(self.seats[node.index()])).collect()
    }

    /// Returns the incarnation in which `node` is a member.
    #[must_use]
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        match self.seats[node.index()] {
            Seat::In(incarnation) => Some(incarnation),
            Seat::Free(_) | Seat::Out(_) => None,
        }
    }

    /// Returns true if this incarnation of `node` is a member.
    #[must_use]
    pub fn has(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.incarnation(node) == Some(incarnation)
    }

    /// Returns true if this incarnation of `node` can never be a member again.
    #[must_use]
    pub fn is_past(&self, node: NodeId, incarnation: Incarnation) -> bool {
        match self.seats[node.index()] {
            Seat::Free(last) | Seat::Out(last) => incarnation <= last,
            Seat::In(now) => incarnation < now,
        }
    }

    /// Iterates over all nodes that were ever members, with the last member incarnation of each.
    pub fn incarnations(&self) -> impl Iterator<Item = (NodeId, Incarnation)> {
        let last = |node: NodeId| (node, self.seats[node.index()].last());
        (0..MAX_NODES as u8).map(NodeId).map(last).filter(|(_, incarnation)| incarnation.0 > 0)
    }

    /// Returns the file with this identifier.
    #[must_use]
    pub fn file(&self, id: FileId) -> Option<&VotingFile> {
        self.files.iter().find(|file| file.id == id)
    }

    /// Returns the number of files that are a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.files.len() / 2 + 1
    }

    /// Iterates over the members of this view that are not in `next`, with their incarnations here.
    pub fn gone(&self, next: &Self) -> impl Iterator<Item = (NodeId, Incarnation)> {
        let incarnations = self.members().iter().filter_map(|node| Some((node, self.incarnation(node)?)));
        incarnations
            .filter(|(node, incarnation)| !next.has(*node, *incarnation))
            .collect::<Vec<_>>()
            .into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incarnation_that_was_a_member_is_past() {
        let mut view = View::first(NodeSet::first(3), [(FileId(1), None)]);
        let node = NodeId(1);
        assert!(!view.is_past(node, Incarnation(1)) && !view.has(node, Incarnation(1)));
        view.seats[1] = Seat::In(Incarnation(4));
        assert!(view.has(node, Incarnation(4)) && view.is_past(node, Incarnation(3)));
        assert!(!view.is_past(node, Incarnation(4)) && !view.is_past(node, Incarnation(5)));
        let before = view.clone();
        view.seats[1] = Seat::Out(Incarnation(4));
        assert!(view.is_past(node, Incarnation(4)) && !view.is_past(node, Incarnation(5)));
        view.seats[1] = Seat::Free(Incarnation(4));
        assert!(view.is_past(node, Incarnation(4)) && !view.is_past(node, Incarnation(5)));
        assert!(!view.cluster().contains(node));
        assert_eq!(before.gone(&view).collect::<Vec<_>>(), [(node, Incarnation(4))]);
        view.seats[2] = Seat::In(Incarnation(5));
        assert_eq!(
            view.incarnations().collect::<Vec<_>>(),
            [(node, Incarnation(4)), (NodeId(2), Incarnation(5))]
        );
    }

    #[test]
    fn a_majority_is_more_than_half() {
        for (files, majority) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            let view = View::first(NodeSet::first(1), (0..files).map(|id| (FileId(id), None)));
            assert_eq!(view.majority(), majority);
        }
    }
}
