//! A view of the cluster: its members, each with the incarnation in which it is one, and the voting files that decide the next view.

use std::{fmt, str::FromStr};

use plexus_base::{Epoch, Incarnation, MAX_NODES, NodeId, NodeSet, hex};

/// Most voting files of a cluster: one on a disk of each node.
pub const MAX_FILES: usize = MAX_NODES;

/// Names a voting file; random, made with it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u64);

/// A text that is no name of a voting file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} names no voting file: that is 16 hexadecimal digits")]
pub struct NoFileId(String);

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for FileId {
    type Err = NoFileId;

    fn from_str(text: &str) -> Result<Self, NoFileId> {
        hex::number(text, 16).map(|number| Self(number as u64)).ok_or_else(|| NoFileId(text.into()))
    }
}

/// A voting file of a view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct VotingFile {
    /// Which file.
    pub id: FileId,
    /// The view that took it in: one that was out and is in again has nothing to do with what is remembered of it.
    pub since: Epoch,
    /// The node that serves it from a disk of its own; `None` where every node opens it itself.
    pub host: Option<NodeId>,
}

/// A node's place in a view. The lives of a node are numbered upwards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Seat {
    /// No such node belongs to the cluster. If one did, its last incarnation that was a member (0: none) never is again, should it be added once more.
    Free(Incarnation),
    /// It belongs to the cluster and is no member; its last incarnation that was one (0: none yet) never is again.
    Out(Incarnation),
    /// A member, in this incarnation.
    In(Incarnation),
}

impl Default for Seat {
    fn default() -> Self {
        Self::Free(Incarnation(0))
    }
}

impl Seat {
    /// The last incarnation of the node that was a member; 0: none.
    #[must_use]
    pub fn last(self) -> Incarnation {
        match self {
            Self::Free(incarnation) | Self::Out(incarnation) | Self::In(incarnation) => incarnation,
        }
    }
}

/// Who is a member, and what decides the next view.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// Its number; 0 for the view without members that a cluster is made with.
    pub epoch: Epoch,
    /// By node.
    pub seats: [Seat; MAX_NODES],
    /// By id; at most [`MAX_FILES`].
    pub files: Vec<VotingFile>,
    /// Members since the cluster began anew, which is when no member of the view before was left.
    pub founders: NodeSet,
    /// In every view since this one, whoever was a member and is none any more had handed back all that it held (it was *clean*).
    pub sound: Epoch,
    /// [`View::sound`] as the cluster began anew.
    pub basis: Epoch,
    /// As of this view nothing was lost, so far as members that are gone knew, and they had handed back.
    pub intact: Epoch,
}

/// An incarnation that has handed back all that it held, and begins nothing more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Clean {
    /// Which; 0: none.
    pub incarnation: Incarnation,
    /// As of this view it knew that nothing was lost; 0: something was.
    pub intact: Epoch,
}

impl Clean {
    /// None has.
    pub const NONE: Self = Self { incarnation: Incarnation(0), intact: Epoch(0) };
}

/// What a view says to a member of the time before it was one. What members hold in memory is on the disks when they have handed it back; else others know who
/// were members with them, and what these left on record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Before {
    /// Who knows what was lost as of this view or a later one knows all that was lost before it was a member.
    pub needs: Epoch,
    /// As of this view nothing was.
    pub intact: Epoch,
}

impl View {
    /// The view that a cluster of these nodes begins with: nobody is a member.
    ///
    /// # Panics
    /// With no file or more than [`MAX_FILES`].
    #[must_use]
    pub fn first(nodes: NodeSet, files: impl IntoIterator<Item = (FileId, Option<NodeId>)>) -> Self {
        let mut seats = [Seat::default(); MAX_NODES];
        nodes.iter().for_each(|node| seats[node.index()] = Seat::Out(Incarnation(0)));
        let file = |(id, host)| VotingFile { id, since: Epoch(0), host };
        let mut files: Vec<VotingFile> = files.into_iter().map(file).collect();
        files.sort_unstable();
        assert!((1..=MAX_FILES).contains(&files.len()), "{} voting files", files.len());
        let none = Epoch(0);
        Self { epoch: none, seats, files, founders: NodeSet::EMPTY, sound: none, basis: none, intact: none }
    }

    /// The next view, with these seats and files. `clean`: by node, the last incarnation that is known to have been.
    #[must_use]
    pub fn next(&self, seats: [Seat; MAX_NODES], files: Vec<VotingFile>, clean: &[Clean; MAX_NODES]) -> Self {
        let epoch = Epoch(self.epoch.0 + 1);
        let mut next = Self { epoch, seats, files, ..self.clone() };
        let gone = || self.gone(&next).map(|(node, incarnation)| (incarnation, clean[node.index()]));
        // A view that has not been was one of the time before voting files were replaced by older ones.
        let knew = |clean: Clean| clean.intact > Epoch(0) && (self.sound..epoch).contains(&clean.intact);
        if gone().any(|(incarnation, clean)| clean.incarnation != incarnation) {
            next.sound = epoch;
        } else if gone().any(|(_, clean)| knew(clean)) {
            next.intact = epoch;
        }
        let stays = |node: &NodeId| self.incarnation(*node) == next.incarnation(*node);
        if self.members().iter().any(|node| stays(&node)) {
            next.founders = self.founders.iter().filter(stays).collect();
        } else {
            (next.founders, next.basis) = (next.members(), next.sound);
        }
        next
    }

    /// What the view says to `node` of the time before it.
    #[must_use]
    pub fn before(&self, node: NodeId) -> Before {
        let needs = if self.founders.contains(node) { self.basis } else { self.sound };
        Before { needs, intact: self.intact }
    }

    /// The members.
    #[must_use]
    pub fn members(&self) -> NodeSet {
        self.nodes(|seat| matches!(seat, Seat::In(_)))
    }

    /// The nodes that belong to the cluster, members or not.
    #[must_use]
    pub fn cluster(&self) -> NodeSet {
        self.nodes(|seat| !matches!(seat, Seat::Free(_)))
    }

    fn nodes(&self, wanted: impl Fn(Seat) -> bool) -> NodeSet {
        (0..MAX_NODES as u8).map(NodeId).filter(|node| wanted(self.seats[node.index()])).collect()
    }

    /// The incarnation in which `node` is a member.
    #[must_use]
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        match self.seats[node.index()] {
            Seat::In(incarnation) => Some(incarnation),
            Seat::Free(_) | Seat::Out(_) => None,
        }
    }

    /// Whether this incarnation of `node` is a member.
    #[must_use]
    pub fn has(&self, node: NodeId, incarnation: Incarnation) -> bool {
        self.incarnation(node) == Some(incarnation)
    }

    /// Whether this incarnation of `node` was a member once and never is again.
    #[must_use]
    pub fn is_past(&self, node: NodeId, incarnation: Incarnation) -> bool {
        match self.seats[node.index()] {
            Seat::Free(last) | Seat::Out(last) => incarnation <= last,
            Seat::In(now) => incarnation < now,
        }
    }

    /// Of each node that was a member, now or in any view before, the last incarnation that was one.
    pub fn incarnations(&self) -> impl Iterator<Item = (NodeId, Incarnation)> {
        let last = |node: NodeId| (node, self.seats[node.index()].last());
        (0..MAX_NODES as u8).map(NodeId).map(last).filter(|(_, incarnation)| incarnation.0 > 0)
    }

    /// The file of this name.
    #[must_use]
    pub fn file(&self, id: FileId) -> Option<&VotingFile> {
        self.files.iter().find(|file| file.id == id)
    }

    /// How many of the view's files are a majority.
    #[must_use]
    pub fn majority(&self) -> usize {
        self.files.len() / 2 + 1
    }

    /// Members of this view that are none in `next`, each in its incarnation here.
    pub fn gone(&self, next: &Self) -> impl Iterator<Item = (NodeId, Incarnation)> {
        let lives = self.members().iter().filter_map(|node| Some((node, self.incarnation(node)?)));
        lives.filter(|(node, incarnation)| !next.has(*node, *incarnation)).collect::<Vec<_>>().into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_incarnation_that_was_a_member_is_past() {
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
    fn who_ends_without_a_word_is_remembered_and_founders_have_missed_nothing() {
        let none = [Clean::NONE; MAX_NODES];
        let clean = |incarnation, intact| {
            let mut clean = none;
            clean[0] = Clean { incarnation: Incarnation(incarnation), intact: Epoch(intact) };
            clean
        };
        let step = |view: &View, node: usize, seat: Seat, clean: &[Clean; MAX_NODES]| {
            let mut seats = view.seats;
            seats[node] = seat;
            view.next(seats, view.files.clone(), clean)
        };
        let needs = |view: &View| [0, 1].map(|node| view.before(NodeId(node)).needs.0);
        let first = View::first(NodeSet::first(2), [(FileId(1), None)]);
        let (a, b) = (Seat::In(Incarnation(1)), Seat::In(Incarnation(7)));
        let (left, again) = (Seat::Out(Incarnation(1)), Seat::In(Incarnation(2)));
        let alone = step(&first, 0, a, &none);
        let both = step(&alone, 1, b, &none);
        assert_eq!((both.epoch, needs(&both)), (Epoch(2), [0, 0]));

        assert_eq!(needs(&step(&both, 0, left, &none)), [3, 3], "who was there from the beginning is gone");
        let died = step(&both, 1, Seat::Out(Incarnation(7)), &none);
        assert_eq!(needs(&died), [0, 3], "who was there from the beginning is left");
        assert_eq!(needs(&step(&both, 0, left, &clean(1, 0))), [0, 0]);

        // Another incarnation of a node is another member.
        assert_eq!(needs(&step(&died, 0, again, &none)), [4, 4]);
        let ended = step(&died, 0, again, &clean(1, 0));
        assert_eq!(
            (needs(&ended), ended.intact),
            ([3, 3], Epoch(0)),
            "who was there then knows what was lost"
        );
        let empty = step(&ended, 0, Seat::Out(Incarnation(2)), &clean(2, 4));
        let next = step(&empty, 1, b, &none);
        assert_eq!((needs(&next), next.intact), ([3, 3], Epoch(5)), "nothing was");
        let late = step(&ended, 0, Seat::Out(Incarnation(2)), &clean(2, 2));
        assert_eq!(late.intact, Epoch(0), "what it knew is from before somebody died");
        let other = step(&ended, 0, Seat::Out(Incarnation(2)), &clean(2, 5));
        assert_eq!(other.intact, Epoch(0), "what it knew is of a view that has not been");
    }

    #[test]
    fn a_majority_is_more_than_half() {
        for (files, majority) in [(1, 1), (2, 2), (3, 2), (4, 3), (5, 3)] {
            let view = View::first(NodeSet::first(1), (0..files).map(|id| (FileId(id), None)));
            assert_eq!(view.majority(), majority);
        }
    }
}
