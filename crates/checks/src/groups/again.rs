//! A barrier whose name is used again, in every order of events: callers of two nodes join its group, come, go on and leave, one after the other; some
//! end before.
//!
//! Steps are: a message arrives, a caller joins, comes, leaves, or ends. Seen where nothing follows any more: nobody has gone on alone, also not with
//! what is left of those who went on before and have not left yet; and no two wait.

use std::collections::{BTreeMap, BTreeSet};

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_membership::{
    groups::protocol::{Action, Deed, Groups, Happened, Message},
    protocol::partitions::Members,
};

use super::name;
use crate::explore::{Lanes, World, Worlds, explore};

/// How many have to come.
const TOGETHER: u16 = 2;

/// What is broken on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lie {
    /// Nothing is.
    Nothing,
    /// A caller counts the members that it is told of, and comes when they are enough, instead of saying how many it waits for.
    Counted,
}

/// Where a caller stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stands {
    /// It has joined, and was told of so many members.
    Joined(usize),
    /// It has come.
    Waits,
    /// It has gone on, and has yet to leave.
    Passed,
}

#[derive(Clone, Hash)]
struct Node {
    groups: Groups,
    /// Callers that have yet to call.
    to_come: u8,
    /// The number of the last one, and where it stands until it has left.
    last: u64,
    stands: Option<Stands>,
}

#[derive(Clone, Hash)]
struct Cluster {
    nodes: Vec<Node>,
    lanes: Lanes<Message>,
    /// Who went on, by place in the order.
    passed: BTreeMap<u64, BTreeSet<(usize, u64)>>,
    ends: u8,
    lie: Lie,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Deliver(usize, usize),
    Join(usize),
    Come(usize),
    Leave(usize),
    End(usize),
}

fn incarnation(at: usize) -> (NodeId, Incarnation) {
    (NodeId(at as u8), Incarnation(1))
}

impl Cluster {
    fn new(callers: u8, ends: u8, lie: Lie) -> Self {
        let node = |at| {
            let (me, incarnation) = incarnation(at);
            Node { groups: Groups::new(me, incarnation), to_come: callers, last: 0, stands: None }
        };
        let nodes = (0..2).map(node).collect();
        let mut cluster = Self { nodes, lanes: Lanes::default(), passed: BTreeMap::new(), ends, lie };
        let view = Members { epoch: Epoch(1), members: (0..2).map(incarnation).collect() };
        (0..2).for_each(|at| {
            cluster.with(at, |groups, out| groups.view(&view, out)).expect("no fault in a first view");
        });
        cluster
    }

    fn with(&mut self, at: usize, does: impl FnOnce(&mut Groups, &mut Vec<Action>)) -> Result<(), String> {
        let mut actions = Vec::new();
        does(&mut self.nodes[at].groups, &mut actions);
        for action in actions {
            match action {
                Action::Send { to, message } => self.lanes.push(at, to.index(), message),
                Action::Tell { client, seq, what } => self.tell(at, client, seq, &what)?,
                Action::Opened(..) => {}
                Action::Fault { from, what } => return Err(format!("{at} says of {from}: {what}")),
            }
        }
        Ok(())
    }

    fn tell(&mut self, at: usize, client: u64, seq: u64, what: &Happened) -> Result<(), String> {
        let node = &mut self.nodes[at];
        let stands = node.stands.as_mut().filter(|_| client == node.last);
        match (what, stands) {
            (Happened::View { members, .. }, Some(Stands::Joined(told))) => *told = members.len(),
            (Happened::Passed(_), stands) => {
                // One that ended had come, where its end has a later place.
                if let Some(stands) = stands {
                    *stands = Stands::Passed;
                }
                let again = self.passed.values().any(|passed| passed.contains(&(at, client)));
                self.passed.entry(seq).or_default().insert((at, client));
                if again {
                    return Err(format!("{client} of {at} goes on twice"));
                }
            }
            (Happened::View { .. } | Happened::Left, _) => {}
            (what, _) => return Err(format!("{client} of {at} is told {what:?}")),
        }
        Ok(())
    }

    /// The last caller of a node does something, and stands there from then on.
    fn act(&mut self, at: usize, deed: Deed, stands: Option<Stands>) -> Result<(), String> {
        let client = self.nodes[at].last;
        self.nodes[at].stands = stands;
        self.with(at, |groups, out| {
            groups.submit(client, name("g"), deed, out).expect("there is room");
        })
    }
}

impl World for Cluster {
    type Step = Step;

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<Step> = self.lanes.busy().map(|(from, to)| Step::Deliver(from, to)).collect();
        let enough = usize::from(if self.lie == Lie::Counted { TOGETHER } else { 1 });
        for (at, node) in self.nodes.iter().enumerate() {
            match node.stands {
                None if node.to_come > 0 => steps.push(Step::Join(at)),
                Some(Stands::Joined(told)) if told >= enough => steps.push(Step::Come(at)),
                Some(Stands::Passed) => steps.push(Step::Leave(at)),
                _ => {}
            }
            if self.ends > 0 && matches!(node.stands, Some(Stands::Joined(_) | Stands::Waits)) {
                steps.push(Step::End(at));
            }
        }
        steps
    }

    fn is_at_rest(steps: &[Step]) -> bool {
        steps.iter().all(|step| matches!(step, Step::End(_)))
    }

    fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Deliver(from, to) => {
                let message = self.lanes.pop(from, to);
                let (from, incarnation) = incarnation(from);
                self.with(to, |groups, out| groups.message(from, incarnation, message, out))
            }
            Step::Join(at) => {
                self.nodes[at].to_come -= 1;
                self.nodes[at].last += 1;
                self.act(at, Deed::Join, Some(Stands::Joined(0)))
            }
            Step::Come(at) => {
                let least = if self.lie == Lie::Counted { 1 } else { TOGETHER };
                let arrive = Deed::Arrive { barrier: name("here"), least, strict: false };
                self.act(at, arrive, Some(Stands::Waits))
            }
            Step::Leave(at) => self.act(at, Deed::Leave { died: false }, None),
            Step::End(at) => {
                self.ends -= 1;
                self.act(at, Deed::Leave { died: true }, None)
            }
        }
    }

    fn rest(&self) -> Result<(), String> {
        if let Some((seq, alone)) =
            self.passed.iter().find(|(_, passed)| passed.len() < usize::from(TOGETHER))
        {
            return Err(format!("{alone:?} has gone on alone at place {seq}"));
        }
        let waiting = self.nodes.iter().filter(|node| node.stands.is_some()).count();
        match waiting < usize::from(TOGETHER) {
            true => Ok(()),
            false => Err("two wait for each other".into()),
        }
    }
}

/// Every world in which each of two nodes has so many callers, of whom so many end at most.
///
/// # Errors
/// What does not hold, and the steps that lead to it.
pub fn explored(callers: u8, ends: u8, lie: Lie) -> Result<Worlds, String> {
    explore(Cluster::new(callers, ends, lie))
}
