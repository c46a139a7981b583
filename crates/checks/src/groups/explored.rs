//! Explores groups in every order of events in a small scope. Two or three nodes have a client each
//! that joins a group, sends and meets at a barrier. Nodes end, with the views that follow, and
//! start again.
//!
//! Steps are: a message arrives, a client acts, a node receives or misses a view, a node ends, a
//! node starts. When a node ends, any first part of its last messages was sent. At every step,
//! clients must receive the same at each position of the order, and nothing twice. When a client
//! passes a barrier, every member of its view must have come to it. Where no step is left, all
//! members must have received the same since they joined and each its own messages, and no barrier
//! to which all members came may still block.

use std::collections::{BTreeSet, VecDeque};

use plexus_membership::{
    groups::protocol::{Action, Deed, GroupMember, GroupMessage, Groups, Happened, Message, Name},
    protocol::partitions::Members,
};

use super::name;
use crate::harness::{
    Instance, Lane,
    explore::{Scope, World, Worlds, explore},
};

/// The deliberate fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lie {
    /// No fault.
    Nothing,
    /// The messages that a node keeps are not exchanged at a view change.
    NotKept,
    /// Nodes report that their clients come to the barrier as soon as they join.
    Early,
}

fn arrive() -> Deed {
    Deed::Arrive { barrier: name("here"), least: 1, strict: false }
}

/// Returns the actions of the client of each node, the same in each incarnation.
fn script(node: usize) -> Vec<Deed> {
    match node {
        0 => vec![Deed::Join, Deed::Send([0].into()), arrive()],
        1 => vec![Deed::Join, arrive()],
        _ => vec![Deed::Join, Deed::Send([2].into()), arrive()],
    }
}

#[derive(Clone, Hash)]
struct Node {
    instance: Instance,
    groups: Groups,
    todo: VecDeque<Deed>,
    /// The events that its client received, by position.
    told: Vec<(u64, Happened)>,
}

impl Node {
    fn who(&self) -> GroupMember {
        let (node, incarnation) = self.instance.member();
        GroupMember { node, incarnation, client: 1 }
    }

    /// Returns the members of the last view that its client received.
    fn members(&self) -> &[GroupMember] {
        let view = self.told.iter().rev().find_map(|(_, what)| match what {
            Happened::View { members, .. } => Some(&members[..]),
            _ => None,
        });
        view.unwrap_or_default()
    }

    fn passed(&self) -> usize {
        self.told.iter().filter(|(_, what)| matches!(what, Happened::Passed(_))).count()
    }
}

#[derive(Clone, Hash)]
struct Explored {
    scope: Scope<Node, Message>,
    /// The clients that have come to the barrier; others may still learn of one that has ended.
    came: BTreeSet<GroupMember>,
    lie: Lie,
}

fn group() -> Name {
    name("g")
}

impl Explored {
    fn with(&mut self, at: usize, does: impl FnOnce(&mut Groups, &mut Vec<Action>)) -> Result<(), String> {
        let mut actions = Vec::new();
        if let Some(node) = self.scope.cluster.node_mut(at) {
            does(&mut node.groups, &mut actions);
        }
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    if self.lie != Lie::NotKept || !matches!(message.body, GroupMessage::Kept(_)) {
                        self.scope.send(at, to.index(), message);
                    }
                }
                Action::Tell { seq, what, .. } => self.tell(at, seq, what)?,
                Action::Opened(..) => {}
                Action::Fault { from, what } => return Err(format!("{at} says of {from}: {what}")),
            }
        }
        Ok(())
    }

    fn tell(&mut self, at: usize, seq: u64, what: Happened) -> Result<(), String> {
        if matches!(what, Happened::Refused(_) | Happened::Failed(..)) {
            return Err(format!("{at} is told {what:?}"));
        }
        let Some(own) = self.scope.cluster.node(at) else { return Ok(()) };
        if own.told.contains(&(seq, what.clone())) || own.told.last().is_some_and(|(last, _)| *last > seq) {
            return Err(format!("{at} received {what:?} of position {seq} twice or late"));
        }
        if let Happened::Passed(_) = what
            && let Some(late) = own.members().iter().find(|who| !self.came.contains(who))
        {
            return Err(format!("{at} passed the barrier, but {late:?} has not come"));
        }
        for (other, node) in self.scope.cluster.up().filter(|(other, _)| *other != at) {
            let there: Vec<&Happened> =
                node.told.iter().filter(|(place, _)| *place == seq).map(|(_, what)| what).collect();
            if !there.is_empty() && !there.contains(&&what) {
                return Err(format!("{at} received {what:?} at position {seq}, but {other} {there:?}"));
            }
        }
        if let Some(node) = self.scope.cluster.node_mut(at) {
            node.told.push((seq, what));
        }
        Ok(())
    }
}

impl World for Explored {
    type Node = Node;
    type Message = Message;
    /// The client of a node takes its next action.
    type Own = usize;

    fn scope(&mut self) -> &mut Scope<Node, Message> {
        &mut self.scope
    }

    fn seen(&self) -> &Scope<Node, Message> {
        &self.scope
    }

    fn own_steps(&self) -> Vec<usize> {
        self.scope.cluster.up().filter(|(_, node)| !node.todo.is_empty()).map(|(at, _)| at).collect()
    }

    fn act(&mut self, at: usize) -> Result<(), String> {
        let Some(node) = self.scope.cluster.node_mut(at) else { return Ok(()) };
        let deed = node.todo.pop_front().expect("a deed");
        if matches!(deed, Deed::Arrive { .. }) {
            self.came.insert(node.who());
        }
        let said = match (self.lie, &deed) {
            (Lie::Early, Deed::Join) => vec![deed, arrive()],
            (Lie::Early, Deed::Arrive { .. }) => vec![],
            _ => vec![deed],
        };
        self.with(at, |groups, out| {
            for deed in said {
                groups.submit(1, group(), deed, out).expect("there is room");
            }
        })
    }

    fn hear(&mut self, lane: Lane, message: Message) -> Result<(), String> {
        let (from, incarnation) = lane.from.member();
        self.with(lane.to.node, |groups, out| groups.message(from, incarnation, message, out))
    }

    fn learn(&mut self, node: usize, view: &Members) -> Result<(), String> {
        self.with(node, |groups, out| groups.view(view, out))
    }

    fn start(&mut self, node: usize) {
        self.scope.cluster.start(node, |instance| {
            let (me, incarnation) = instance.member();
            Node {
                instance,
                groups: Groups::new(me, incarnation),
                todo: script(node).into(),
                told: Vec::new(),
            }
        });
    }

    fn rest(&self) -> Result<(), String> {
        let living: Vec<(usize, &Node)> = self.scope.cluster.up().collect();
        // A client that has passed, or comes to no barrier, blocks later ones.
        let has_not_passed =
            |who: &GroupMember| living.iter().any(|(_, node)| node.who() == *who && node.passed() == 0);
        let waits = |who: &GroupMember| self.came.contains(who) && has_not_passed(who);
        for (at, node) in &living {
            let Some((joined, Happened::View { .. })) = node.told.first() else {
                return Err(format!("{at} did not learn that it has joined"));
            };
            if node.members().iter().all(waits) {
                return Err(format!("all of {:?} are at the barrier", node.members()));
            }
            let me = node.who();
            let own = node
                .told
                .iter()
                .filter(|(_, what)| matches!(what, Happened::Message { from, .. } if *from == me))
                .count();
            let says = script(*at).iter().filter(|deed| matches!(deed, Deed::Send(_))).count();
            if own != says {
                return Err(format!("{at} received {own} of its own {says} messages"));
            }
            if node.passed() > 1 {
                return Err(format!("{at} has passed the barrier {} times", node.passed()));
            }
            for (other, theirs) in &living {
                let since = *joined.max(&theirs.told.first().map_or(0, |(seq, _)| *seq));
                let told = |node: &Node| -> BTreeSet<u64> {
                    node.told.iter().map(|(seq, _)| *seq).filter(|seq| *seq >= since).collect()
                };
                if told(node) != told(theirs) {
                    return Err(format!("{at} received {:?}, {other} {:?}", node.told, theirs.told));
                }
            }
        }
        Ok(())
    }
}

/// Explores every world of `nodes` nodes with at most `ends` ends and `starts` restarts.
///
/// # Errors
/// The property that does not hold, and the steps that lead there.
pub fn explored(nodes: usize, ends: u8, starts: u8, lie: Lie) -> Result<Worlds, String> {
    let scope = Scope::new(nodes, ends, Some(starts), 1);
    let mut first = Explored { scope, came: BTreeSet::new(), lie };
    first.boot();
    explore(first)
}
