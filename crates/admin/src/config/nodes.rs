//! The nodes of a cluster as `cluster.toml` lists them. Running nodes learn of nodes that are
//! added. They forget and change none, so a reference to one stays valid.

use std::{
    fmt,
    ops::{Index, IndexMut},
    sync::OnceLock,
};

use plexus_base::MAX_NODES;

use super::NodeConfig;

/// The nodes by their numbers. Numbers may be missing.
#[derive(Default)]
pub struct Nodes {
    places: Box<[OnceLock<NodeConfig>; MAX_NODES]>,
}

impl Nodes {
    /// Returns the number of nodes.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns true if there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Returns the nodes in the order of their numbers.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &NodeConfig> + Clone {
        self.places.iter().filter_map(OnceLock::get)
    }

    /// Returns the first node.
    pub fn first(&self) -> Option<&NodeConfig> {
        self.iter().next()
    }

    /// Returns the node with this number.
    pub fn get(&self, number: usize) -> Option<&NodeConfig> {
        self.places.get(number)?.get()
    }

    /// Adds the nodes of `list` that are not known. Nodes that it lacks stay known.
    ///
    /// # Errors
    /// A node here has another number or other settings there, and none is added. The text says
    /// what to change.
    pub fn learn(&self, list: &Self) -> Result<(), String> {
        self.agrees(list)?;
        for other in list.iter() {
            // Two threads that learn at once learn the same; else the second gets the error.
            self.places[other.number.index()].get_or_init(|| other.clone());
        }
        self.agrees(list)
    }

    /// Checks that no node here has another number or other settings in `list`.
    ///
    /// # Errors
    /// The text says what to change.
    pub fn agrees(&self, list: &Self) -> Result<(), String> {
        for other in list.iter() {
            let number = other.number;
            match self.iter().find(|node| node.number == number || node.name == other.name) {
                Some(node) if node.name != other.name => {
                    return Err(format!(
                        "number {} is that of {}; give {} a number that no node had before",
                        number.0, node.name, other.name
                    ));
                }
                Some(node) if node != other => {
                    return Err(format!(
                        "{} was changed, and running nodes know it as it was (number {}, {}); undo the change",
                        node.name, node.number.0, node.address
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

impl FromIterator<NodeConfig> for Nodes {
    /// Makes a list of nodes with different numbers below 16; others are dropped.
    fn from_iter<T: IntoIterator<Item = NodeConfig>>(nodes: T) -> Self {
        let known = Self::default();
        for node in nodes {
            if let Some(place) = known.places.get(node.number.index()) {
                let _ = place.set(node);
            }
        }
        known
    }
}

impl Clone for Nodes {
    fn clone(&self) -> Self {
        self.iter().cloned().collect()
    }
}

impl PartialEq for Nodes {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Index<usize> for Nodes {
    type Output = NodeConfig;

    fn index(&self, number: usize) -> &NodeConfig {
        self.get(number).expect("a node of the cluster")
    }
}

impl IndexMut<usize> for Nodes {
    fn index_mut(&mut self, number: usize) -> &mut NodeConfig {
        self.places[number].get_mut().expect("a node of the cluster")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(number: u8, name: &str) -> NodeConfig {
        NodeConfig::new(number, name, ([127, 0, 0, 1], 7).into(), Vec::new())
    }

    fn nodes(list: &[(u8, &str)]) -> Nodes {
        list.iter().map(|(number, name)| node(*number, name)).collect()
    }

    #[test]
    fn numbers_and_not_positions_identify_nodes() {
        let known = nodes(&[(4, "e"), (1, "b")]);
        let names = |nodes: &Nodes| nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&known), ["b", "e"]);
        assert_eq!(known, nodes(&[(1, "b"), (4, "e")]));
        assert_eq!((known.len(), known[4].name.as_str(), known.get(0)), (2, "e", None));
        assert_eq!(known.first().unwrap().name, "b");
    }

    #[test]
    fn added_nodes_are_learnt_and_known_ones_neither_change_nor_go() {
        let known = nodes(&[(0, "a"), (2, "c")]);
        let first = &known[0];
        known.learn(&nodes(&[(2, "c")])).unwrap();
        known.learn(&nodes(&[(5, "f"), (1, "b")])).unwrap();
        let all = nodes(&[(0, "a"), (1, "b"), (2, "c"), (5, "f")]);
        assert_eq!((&known, first.name.as_str()), (&all, "a"));
        let refusal = known.learn(&nodes(&[(3, "d"), (2, "x")])).unwrap_err();
        assert!(refusal.contains("number 2 is that of c; give x a number"), "{refusal}");
        let refusal = known.learn(&nodes(&[(3, "c")])).unwrap_err();
        assert!(refusal.contains("c was changed"), "{refusal}");
        let moved = NodeConfig { host: "elsewhere".into(), ..node(1, "b") };
        let refusal = known.learn(&[node(3, "d"), moved].into_iter().collect()).unwrap_err();
        assert!(refusal.contains("b was changed"), "{refusal}");
        assert_eq!(known, all, "nothing of a refused list is learnt");
    }

    #[test]
    fn there_is_room_for_as_many_as_a_cluster_has() {
        let all: Nodes = (0..MAX_NODES as u8).map(|number| node(number, &format!("n{number}"))).collect();
        let known = nodes(&[(0, "n0")]);
        known.learn(&all).unwrap();
        assert_eq!(known.len(), MAX_NODES);
        known.learn(&all).unwrap();
    }
}
