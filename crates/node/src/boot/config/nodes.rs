//! The nodes of a cluster as `cluster.toml` lists them. Running nodes learn of nodes that are added
//! at the end. No node is ever removed or changed, so a reference to one stays valid.

use std::{
    fmt,
    ops::{Index, IndexMut},
    sync::OnceLock,
};

use plexus_base::MAX_NODES;

use super::NodeConfig;

/// The list of nodes; the number of a node is its position.
#[derive(Default)]
pub struct Nodes {
    places: Box<[OnceLock<NodeConfig>; MAX_NODES]>,
}

impl Nodes {
    /// Returns the number of nodes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns true if there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// Returns the nodes in their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &NodeConfig> + Clone {
        self.places.iter().filter_map(OnceLock::get)
    }

    /// Returns the first node.
    #[must_use]
    pub fn first(&self) -> Option<&NodeConfig> {
        self.get(0)
    }

    /// Returns the node at `place`.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&NodeConfig> {
        self.places.get(place)?.get()
    }

    /// Adds the nodes that `longer` has behind the ones here.
    ///
    /// # Errors
    /// The name of the first node here that is missing or different there.
    pub fn learn(&self, longer: &Self) -> Result<(), String> {
        for (place, node) in self.places.iter().enumerate() {
            match longer.get(place) {
                // Two threads that learn at once learn the same; else the second gets the error.
                Some(other) if node.get_or_init(|| other.clone()) == other => {}
                other => match node.get().or(other) {
                    Some(differs) => return Err(differs.name.clone()),
                    None => return Ok(()),
                },
            }
        }
        Ok(())
    }
}

impl FromIterator<NodeConfig> for Nodes {
    /// Makes a list of at most 16 nodes; further ones are dropped.
    fn from_iter<T: IntoIterator<Item = NodeConfig>>(nodes: T) -> Self {
        let known = Self::default();
        for (place, node) in known.places.iter().zip(nodes) {
            let _ = place.set(node);
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

    fn index(&self, place: usize) -> &NodeConfig {
        self.get(place).expect("a node of the cluster")
    }
}

impl IndexMut<usize> for Nodes {
    fn index_mut(&mut self, place: usize) -> &mut NodeConfig {
        self.places[place].get_mut().expect("a node of the cluster")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> NodeConfig {
        let text = format!("name = \"{name}\"\nhost = \"h\"\naddress = \"127.0.0.1:7\"\nrails = [\"tcp\"]\n");
        toml::from_str(&text).unwrap()
    }

    fn nodes(names: &[&str]) -> Nodes {
        names.iter().map(|name| node(name)).collect()
    }

    #[test]
    fn only_nodes_added_at_the_end_are_learnt() {
        let known = nodes(&["a", "b"]);
        let first = &known[0];
        known.learn(&nodes(&["a", "b"])).unwrap();
        known.learn(&nodes(&["a", "b", "c"])).unwrap();
        assert_eq!((known.len(), known[2].name.as_str(), first.name.as_str()), (3, "c", "a"));
        assert_eq!(known.learn(&nodes(&["a", "b"])), Err("c".into()));
        assert_eq!(known.learn(&nodes(&["a", "x", "c", "d"])), Err("b".into()));
        assert_eq!(known, nodes(&["a", "b", "c"]));
    }

    #[test]
    fn there_is_room_for_as_many_as_a_cluster_has() {
        let all: Vec<String> = (0..MAX_NODES).map(|number| format!("n{number}")).collect();
        let all: Vec<&str> = all.iter().map(String::as_str).collect();
        let known = nodes(&all[..1]);
        known.learn(&nodes(&all)).unwrap();
        assert_eq!(known.len(), MAX_NODES);
        known.learn(&nodes(&all)).unwrap();
    }
}
