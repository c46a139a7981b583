//! Groups in every order of events in a small scope: two or three nodes with a client each, that join a group, speak and meet at a barrier; nodes
//! that end, with the views that follow, and start again.
//!
//! Steps are: a message arrives, a client does its next deed, a node is told a view or misses it, a node ends (any first part of what it said to each
//! other has left it), a node starts. Seen at every step: who is told something at a place of the order is told the same as every other who lives,
//! and nothing twice; who passes a barrier knows that every member of its view has come to it. Where nothing follows any more: all members were told the same
//! since they joined, each heard what it said, and nobody waits at a barrier to which all members have come.

use std::collections::{BTreeSet, VecDeque};

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_membership::{
    groups::protocol::{Action, Body, Deed, Groups, Happened, Message, Name, Who},
    protocol::partitions::Members,
};

use super::name;
use crate::explore::{Lanes, World, Worlds, explore};

/// What is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lie {
    /// Nothing is.
    Nothing,
    /// What a node keeps is not told at a change of view.
    NotKept,
    /// Nodes say of their clients that they come to the barrier as soon as they join.
    Early,
}

fn arrive() -> Deed {
    Deed::Arrive { barrier: name("here"), least: 1, strict: false }
}

/// What the client of each node does in each of its incarnations, one after the other.
fn script(node: usize) -> Vec<Deed> {
    match node {
        0 => vec![Deed::Join, Deed::Send([0].into()), arrive()],
        1 => vec![Deed::Join, arrive()],
        _ => vec![Deed::Join, Deed::Send([2].into()), arrive()],
    }
}

#[derive(Clone, Hash)]
struct Node {
    incarnation: u64,
    groups: Option<Groups>,
    todo: VecDeque<Deed>,
    /// Views that it was not told yet.
    views: VecDeque<Members>,
    /// What its client was told, by place.
    told: Vec<(u64, Happened)>,
    /// Lives in which its client has come to the barrier: of one that has ended others may still hear it.
    came: BTreeSet<Incarnation>,
}

impl Node {
    fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }

    /// The members of the last view that its client was told.
    fn members(&self) -> &[Who] {
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
struct Cluster {
    nodes: Vec<Node>,
    lanes: Lanes<Message>,
    epoch: u32,
    ends: u8,
    starts: u8,
    lie: Lie,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Deliver(usize, usize),
    Do(usize),
    Learn(usize),
    Miss(usize),
    /// Of what it said to each other so much has left it.
    End(usize, [usize; 3]),
    Start(usize),
}

fn group() -> Name {
    name("g")
}

impl Cluster {
    fn new(nodes: usize, ends: u8, starts: u8, lie: Lie) -> Self {
        let node = |_| Node {
            incarnation: 0,
            groups: None,
            todo: VecDeque::new(),
            views: VecDeque::new(),
            told: Vec::new(),
            came: BTreeSet::new(),
        };
        let nodes = (0..nodes).map(node).collect();
        let mut cluster = Self { nodes, lanes: Lanes::default(), epoch: 0, ends, starts, lie };
        (0..cluster.nodes.len()).for_each(|node| cluster.start(node));
        cluster.decide();
        cluster
    }

    fn start(&mut self, at: usize) {
        let node = &mut self.nodes[at];
        node.incarnation += 1;
        node.groups = Some(Groups::new(NodeId(at as u8), node.incarnation()));
        (node.todo, node.told) = (script(at).into(), Vec::new());
    }

    /// A view of all who live.
    fn decide(&mut self) {
        self.epoch += 1;
        let living = self.nodes.iter().enumerate().filter(|(_, node)| node.groups.is_some());
        let members = living.map(|(at, node)| (NodeId(at as u8), node.incarnation())).collect();
        let view = Members { epoch: Epoch(self.epoch), members };
        for (node, _) in &view.members {
            self.nodes[node.index()].views.push_back(view.clone());
        }
    }

    fn with(&mut self, at: usize, does: impl FnOnce(&mut Groups, &mut Vec<Action>)) -> Result<(), String> {
        let mut actions = Vec::new();
        if let Some(groups) = &mut self.nodes[at].groups {
            does(groups, &mut actions);
        }
        for action in actions {
            match action {
                Action::Send { to, message } => {
                    let is_lost = self.lie == Lie::NotKept && matches!(message.body, Body::Kept(_));
                    if self.nodes[to.index()].groups.is_some() && !is_lost {
                        self.lanes.push(at, to.index(), message);
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
        let told = &self.nodes[at].told;
        if told.contains(&(seq, what.clone())) || told.last().is_some_and(|(last, _)| *last > seq) {
            return Err(format!("{at} is told {what:?} of place {seq} again, or late"));
        }
        if let Happened::Passed(_) = what {
            let has_come = |who: &&Who| self.nodes[who.node.index()].came.contains(&who.incarnation);
            if let Some(late) = self.nodes[at].members().iter().find(|who| !has_come(who)) {
                return Err(format!("{at} passes the barrier, and {late:?} has not come"));
            }
        }
        for (other, node) in self.nodes.iter().enumerate() {
            let there: Vec<&Happened> =
                node.told.iter().filter(|(place, _)| *place == seq).map(|(_, what)| what).collect();
            if other != at && node.groups.is_some() && !there.is_empty() && !there.contains(&&what) {
                return Err(format!("{at} is told {what:?} at place {seq}, and {other} {there:?}"));
            }
        }
        self.nodes[at].told.push((seq, what));
        Ok(())
    }
}

impl World for Cluster {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self.lanes.busy().map(|(from, to)| Step::Deliver(from, to)).collect();
        let living = self.nodes.iter().filter(|node| node.groups.is_some()).count();
        for (at, node) in self.nodes.iter().enumerate() {
            if node.groups.is_none() {
                if self.starts > 0 {
                    steps.push(Step::Start(at));
                }
                continue;
            }
            if !node.todo.is_empty() {
                steps.push(Step::Do(at));
            }
            if !node.views.is_empty() {
                steps.push(Step::Learn(at));
            }
            if node.views.len() > 1 {
                steps.push(Step::Miss(at));
            }
            if self.ends > 0 && living > 1 {
                let said = |to: usize| self.lanes.len(at, to);
                for (a, b, c) in (0..=said(0))
                    .flat_map(|a| (0..=said(1)).flat_map(move |b| (0..=said(2)).map(move |c| (a, b, c))))
                {
                    steps.push(Step::End(at, [a, b, c]));
                }
            }
        }
        steps
    }

    fn is_at_rest(steps: &[Step]) -> bool {
        steps.iter().all(|step| matches!(step, Step::End(..) | Step::Start(_)))
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Deliver(from, to) => {
                let message = self.lanes.pop(from, to);
                let incarnation = self.nodes[from].incarnation();
                self.with(to, |groups, out| groups.message(NodeId(from as u8), incarnation, message, out))
            }
            Step::Do(at) => {
                let node = &mut self.nodes[at];
                let deed = node.todo.pop_front().expect("a deed");
                if matches!(deed, Deed::Arrive { .. }) {
                    node.came.insert(node.incarnation());
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
            Step::Learn(at) => {
                let view = self.nodes[at].views.pop_front().expect("a view");
                self.with(at, |groups, out| groups.view(&view, out))
            }
            Step::Miss(at) => {
                self.nodes[at].views.pop_front();
                Ok(())
            }
            Step::End(at, left) => {
                self.ends -= 1;
                let node = &mut self.nodes[at];
                node.groups = None;
                (node.told, node.todo, node.views) = (Vec::new(), VecDeque::new(), VecDeque::new());
                self.lanes.end(at, |to| left[to]);
                self.decide();
                Ok(())
            }
            Step::Start(at) => {
                self.starts -= 1;
                self.lanes.silence(at);
                self.start(at);
                self.decide();
                Ok(())
            }
        }
    }

    fn rest(&self) -> Result<(), String> {
        let living: Vec<(usize, &Node)> =
            self.nodes.iter().enumerate().filter(|(_, node)| node.groups.is_some()).collect();
        // Who has passed, or comes to no barrier, holds those up who come after.
        let waits = |who: &Who| {
            let node = &self.nodes[who.node.index()];
            node.incarnation() == who.incarnation
                && node.came.contains(&who.incarnation)
                && node.passed() == 0
        };
        for (at, node) in &living {
            let Some((joined, Happened::View { .. })) = node.told.first() else {
                return Err(format!("{at} is not told that it has joined"));
            };
            if node.members().iter().all(waits) {
                return Err(format!("all of {:?} are at the barrier", node.members()));
            }
            let me = Who { node: NodeId(*at as u8), incarnation: node.incarnation(), client: 1 };
            let own = node
                .told
                .iter()
                .filter(|(_, what)| matches!(what, Happened::Message { from, .. } if *from == me))
                .count();
            let says = script(*at).iter().filter(|deed| matches!(deed, Deed::Send(_))).count();
            if own != says {
                return Err(format!("{at} hears {own} of the {says} that it said"));
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
                    return Err(format!("{at} is told {:?}, {other} {:?}", node.told, theirs.told));
                }
            }
        }
        Ok(())
    }
}

/// Every world of so many nodes that end and start again so often at most.
///
/// # Errors
/// What does not hold, and the steps that lead to it.
pub fn explored(nodes: usize, ends: u8, starts: u8, lie: Lie) -> Result<Worlds, String> {
    explore(Cluster::new(nodes, ends, starts, lie))
}
