//! The choice of the nodes that stay members when not all hear each other: the largest set in which
//! all do, and of equal sets the one with the lowest node.
//!
//! The search is exact: branch and bound over at most 16 nodes.

use plexus_base::{MAX_NODES, NodeId, NodeSet};

/// The record of which nodes hear which.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Connectivity {
    sees: [NodeSet; MAX_NODES],
}

impl Connectivity {
    /// Records the peers that `node` hears.
    pub fn hears(&mut self, node: NodeId, peers: NodeSet) {
        self.sees[node.index()] = peers;
    }

    /// Returns true if each node hears the other.
    #[must_use]
    pub fn mutual(&self, a: NodeId, b: NodeId) -> bool {
        self.sees[a.index()].contains(b) && self.sees[b.index()].contains(a)
    }

    /// Returns true if `node` and each of `others` hear each other.
    #[must_use]
    pub fn mutual_with_all(&self, node: NodeId, others: NodeSet) -> bool {
        others.iter().all(|other| other == node || self.mutual(node, other))
    }

    /// Returns the largest subset of `candidates` that contains `must` and in which all nodes hear
    /// each other. Of equal sets it is the one with the lowest node in which they differ. The set
    /// is empty if the nodes in `must` do not hear each other.
    #[must_use]
    pub fn largest(&self, candidates: NodeSet, must: NodeSet) -> NodeSet {
        if must.iter().any(|node| !candidates.contains(node) || !self.mutual_with_all(node, must)) {
            return NodeSet::EMPTY;
        }
        let rest = candidates
            .iter()
            .filter(|node| !must.contains(*node) && self.mutual_with_all(*node, must))
            .collect();
        let mut best = must;
        self.grow(must, rest, &mut best);
        best
    }

    fn grow(&self, set: NodeSet, candidates: NodeSet, best: &mut NodeSet) {
        if is_before(set, *best) {
            *best = set;
        }
        if set.len() + candidates.len() < best.len() {
            return;
        }
        let mut left = candidates;
        while let Some(node) = left.lowest() {
            let seen: NodeSet = left.iter().filter(|other| self.mutual(node, *other)).collect();
            let mut with = set;
            with.insert(node);
            self.grow(with, seen, best);
            // A set without a node that hears all the rest is smaller than the same set with it.
            if seen.len() + 1 == left.len() {
                return;
            }
            left.remove(node);
        }
    }
}

/// Returns true if `a` has precedence over `b`.
fn is_before(a: NodeSet, b: NodeSet) -> bool {
    let differ = (0..MAX_NODES as u8).map(NodeId).find(|node| a.contains(*node) != b.contains(*node));
    a.len() > b.len() || a.len() == b.len() && differ.is_some_and(|node| a.contains(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plexus_sim::Random;

    fn connectivity(nodes: u8, cut: &[(u8, u8)]) -> Connectivity {
        let mut connectivity = Connectivity::default();
        for a in 0..nodes {
            let heard = (0..nodes).filter(|b| *b != a && !cut.contains(&(a, *b)));
            connectivity.hears(NodeId(a), heard.map(NodeId).collect());
        }
        connectivity
    }

    fn set(nodes: &[u8]) -> NodeSet {
        nodes.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn the_largest_set_stays_and_of_equal_sets_the_one_with_the_lowest_node() {
        let cases: [(u8, &[(u8, u8)], &[u8]); 6] = [
            (3, &[], &[0, 1, 2]),
            (3, &[(0, 1), (0, 2)], &[1, 2]),
            (2, &[(0, 1)], &[0]),
            (4, &[(0, 2), (0, 3), (1, 2), (1, 3)], &[0, 1]),
            // Only one direction is cut.
            (3, &[(2, 1)], &[0, 1]),
            (5, &[(0, 1), (0, 2), (3, 4)], &[1, 2, 3]),
        ];
        for (nodes, cut, expected) in cases {
            assert_eq!(
                connectivity(nodes, cut).largest(NodeSet::first(nodes), NodeSet::EMPTY),
                set(expected)
            );
        }
        let connectivity = connectivity(3, &[(0, 1)]);
        assert_eq!(connectivity.largest(NodeSet::first(3), set(&[1])), set(&[1, 2]));
        assert_eq!(connectivity.largest(NodeSet::first(3), set(&[0, 1])), NodeSet::EMPTY);
    }

    #[test]
    fn the_result_equals_that_of_an_exhaustive_search() {
        for seed in 0..300 {
            let mut random = Random::new(seed);
            let nodes = random.between(1, 8) as u8;
            let mut cut = Vec::new();
            let percent = random.below(60);
            for a in 0..nodes {
                cut.extend((0..nodes).filter(|_| random.percent(percent)).map(|b| (a, b)));
            }
            let connectivity = connectivity(nodes, &cut);
            let all = (0..1u32 << nodes)
                .map(|bits| (0..nodes).filter(|node| bits & (1 << node) != 0).map(NodeId).collect());
            let sound = |set: &NodeSet| set.iter().all(|node| connectivity.mutual_with_all(node, *set));
            let expected = all.filter(sound).reduce(|a, b| if is_before(b, a) { b } else { a });
            assert_eq!(
                Some(connectivity.largest(NodeSet::first(nodes), NodeSet::EMPTY)),
                expected,
                "seed {seed}"
            );
        }
    }

    #[test]
    fn sixteen_nodes_are_searched_in_few_steps() {
        // Eight pairs that do not hear each other: the largest possible number of equal sets of
        // pairs.
        let cut: Vec<(u8, u8)> = (0..8).map(|pair| (2 * pair, 2 * pair + 1)).collect();
        let found = connectivity(16, &cut).largest(NodeSet::first(16), NodeSet::EMPTY);
        assert_eq!(found, set(&[0, 2, 4, 6, 8, 10, 12, 14]));
    }
}
