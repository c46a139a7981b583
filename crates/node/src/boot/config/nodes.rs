//! The nodes of a cluster as `cluster.toml` lists them. Nodes that run learn of those that are added at the end; none is ever taken out or changed,
//! so whoever has found one may keep the reference.

use std::{
    fmt,
    ops::{Index, IndexMut},
    sync::OnceLock,
};

use plexus_base::MAX_NODES;

use super::NodeConfig;

/// See the module. A node's id is its place.
#[derive(Default)]
pub struct Nodes {
    places: Box<[OnceLock<NodeConfig>; MAX_NODES]>,
}

impl Nodes {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.first().is_none()
    }

    /// In their order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &NodeConfig> + Clone {
        self.places.iter().filter_map(OnceLock::get)
    }

    /// The first.
    #[must_use]
    pub fn first(&self) -> Option<&NodeConfig> {
        self.get(0)
    }

    /// The one at `place`.
    #[must_use]
    pub fn get(&self, place: usize) -> Option<&NodeConfig> {
        self.places.get(place)?.get()
    }

    /// Takes in those that `longer` has behind the ones that are here.
    ///
    /// # Errors
    /// The name of the first one that is here and is missing there or is another.
    pub fn learn(&self, longer: &Self) -> Result<(), String> {
        for (place, node) in self.places.iter().enumerate() {
            match longer.get(place) {
                // Two that learn at once learn the same, or the second is told.
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
    /// More than 16 are left out.
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
    fn what_is_added_at_the_end_is_learnt_and_nothing_else() {
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
