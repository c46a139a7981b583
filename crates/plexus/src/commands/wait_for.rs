//! The wait-for graph, made from the locks that masters report.
//!
//! A request waits for the holders whose mode excludes its own; if there are none, for the first
//! request of the queue. All locks of one session belong to one vertex.

use std::collections::BTreeMap;

use plexus_node::locking::{LockHolder, LockWaiter, LockedResource, mode};
use plexus_observe::show::{Edge, Graph, Vertex};

/// The vertices: sessions by node and name, or locks whose session is unknown.
#[derive(Default)]
struct Sessions {
    places: BTreeMap<(String, String), usize>,
    vertices: Vec<Vertex>,
}

impl Sessions {
    fn key(node: &str, owner: Option<&String>, lock: u64) -> (String, String) {
        (node.to_owned(), owner.cloned().unwrap_or_else(|| format!("lock {lock}")))
    }

    fn place(&mut self, node: &str, owner: Option<&String>, lock: u64) -> usize {
        let key = Self::key(node, owner, lock);
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let name = format!("{}: {}", key.0, key.1);
        self.vertices.push(Vertex { name, note: String::new() });
        self.places.insert(key, self.vertices.len() - 1);
        self.vertices.len() - 1
    }

    fn note(&mut self, place: usize, text: &str) {
        let note = &mut self.vertices[place].note;
        if !note.is_empty() {
            note.push_str(", ");
        }
        note.push_str(text);
    }
}

/// Returns the graph of the waiting requests and the locks that they wait for.
pub(crate) fn graph(resources: &[LockedResource]) -> Graph {
    let mut sessions = Sessions::default();
    let mut edges: Vec<Edge> = Vec::new();
    for resource in resources {
        let Some(first) = resource.waiting.first() else { continue };
        for waiter in &resource.waiting {
            let from = sessions.place(&waiter.node, waiter.owner.as_ref(), waiter.lock);
            let label = format!("{} {}, {:.1} s", resource.name, waiter.mode, waiter.waited_ms as f64 / 1e3);
            let excluding = resource.granted.iter().filter(|held| excludes(held, waiter));
            let mut blockers: Vec<_> = excluding.map(|held| (&held.node, &held.owner, held.lock)).collect();
            if blockers.is_empty() && (&first.node, first.lock) != (&waiter.node, waiter.lock) {
                blockers.push((&first.node, &first.owner, first.lock));
            }
            for (node, owner, lock) in blockers {
                let to = sessions.place(node, owner.as_ref(), lock);
                edges.push(Edge { from, to, label: label.clone() });
            }
        }
    }
    for resource in resources {
        for held in &resource.granted {
            let key = Sessions::key(&held.node, held.owner.as_ref(), held.lock);
            if let Some(place) = sessions.places.get(&key).copied() {
                sessions.note(place, &format!("{} {}", resource.name, held.mode));
            }
        }
    }
    for vertex in &mut sessions.vertices {
        vertex.note = if vertex.note.is_empty() { "has none".into() } else { format!("has {}", vertex.note) };
    }
    Graph { vertices: sessions.vertices, edges }
}

/// Returns whether a held lock excludes a request.
fn excludes(held: &LockHolder, waiter: &LockWaiter) -> bool {
    let same = (&held.node, held.lock) == (&waiter.node, waiter.lock);
    // An unknown mode excludes all others.
    let compatible =
        mode(&held.mode).and_then(|held| Ok(mode(&waiter.mode)?.is_compatible_with(held))).unwrap_or(false);
    !same && !compatible
}

/// Returns a summary of the graph in one line.
pub(crate) fn note(graph: &Graph) -> String {
    if graph.edges.is_empty() {
        return "no request waits".into();
    }
    let circles = graph.circles().into_iter().filter(|circle| *circle).count();
    let waits = match graph.edges.len() {
        1 => "1 wait".into(),
        many => format!("{many} waits"),
    };
    match circles {
        0 => format!("{waits}, no cycle"),
        _ => format!("{waits}, {circles} of them in a cycle"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(owner: &str, lock: u64, mode: &str) -> LockHolder {
        LockHolder { node: "n1".into(), lock, owner: Some(owner.into()), mode: mode.into(), token: 1 }
    }

    fn wanted(owner: &str, lock: u64, mode: &str, converts: bool) -> LockWaiter {
        let (node, waited_ms) = ("n1".into(), 1500);
        LockWaiter { node, lock, owner: Some(owner.into()), mode: mode.into(), waited_ms, converts }
    }

    fn resource(name: &str, granted: Vec<LockHolder>, waiting: Vec<LockWaiter>) -> LockedResource {
        LockedResource { name: name.into(), master: "n1".into(), value: "valid".into(), granted, waiting }
    }

    /// Returns the edges as pairs of vertex names.
    fn edges(graph: &Graph) -> Vec<(&str, &str)> {
        let name = |place: usize| graph.vertices[place].name.as_str();
        graph.edges.iter().map(|edge| (name(edge.from), name(edge.to))).collect()
    }

    #[test]
    fn requests_wait_for_excluding_holders_and_else_for_the_first_request() {
        let queue = vec![wanted("b", 2, "EX", false), wanted("c", 3, "PR", false)];
        let graph = graph(&[resource("r", vec![held("a", 1, "PR"), held("d", 4, "NL")], queue)]);
        assert_eq!(edges(&graph), [("n1: b", "n1: a"), ("n1: c", "n1: b")]);
        assert_eq!(
            (graph.vertices[1].note.as_str(), graph.vertices[0].note.as_str()),
            ("has r PR", "has none")
        );
        assert_eq!(graph.edges[0].label, "r EX, 1.5 s");
        assert_eq!(note(&graph), "2 waits, no cycle");
    }

    #[test]
    fn locks_of_one_session_close_a_cycle() {
        let one = resource("x", vec![held("a", 1, "EX")], vec![wanted("b", 4, "EX", false)]);
        let other = resource("y", vec![held("b", 2, "EX")], vec![wanted("a", 3, "CR", false)]);
        let graph = graph(&[one, other, resource("z", vec![held("c", 9, "EX")], vec![])]);
        assert_eq!(edges(&graph), [("n1: b", "n1: a"), ("n1: a", "n1: b")]);
        assert_eq!(note(&graph), "2 waits, 2 of them in a cycle");
    }

    #[test]
    fn two_conversions_wait_for_each_other_and_not_for_themselves() {
        let (a, b) = (held("a", 1, "PR"), held("b", 2, "PR"));
        let both = vec![wanted("a", 1, "EX", true), wanted("b", 2, "EX", true)];
        let graph = graph(&[resource("r", vec![a, b], both)]);
        assert_eq!(edges(&graph), [("n1: a", "n1: b"), ("n1: b", "n1: a")]);
    }
}
