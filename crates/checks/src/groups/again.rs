//! Explores a barrier whose name is used again, in every order of events. Callers of two nodes join
//! its group, come, pass and leave, one after the other; some end before.
//!
//! Steps are: a message arrives, a caller joins, comes, leaves or ends. The check runs where no
//! step is left. No caller may have passed alone, also not together with earlier callers that have
//! passed and not left yet. No two callers may still wait.

use std::collections::{BTreeMap, BTreeSet};

use plexus_membership::{
    groups::protocol::{Action, Deed, Groups, Happened, Message},
    protocol::partitions::Members,
};

use super::name;
use crate::harness::{
    Lane,
    explore::{Scope, World, Worlds, explore},
};

/// The number of callers that pass together.
const TOGETHER: u16 = 2;

/// The deliberate fault.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lie {
    /// No fault.
    Nothing,
    /// A caller counts the members that it sees and comes when they are enough, instead of stating
    /// the number to wait for.
    Counted,
}

/// The state of a caller.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stands {
    /// It has joined, with this number of members.
    Joined(usize),
    /// It has come to the barrier.
    Waits,
    /// It has passed, and has yet to leave.
    Passed,
}

#[derive(Clone, Hash)]
struct Node {
    groups: Groups,
    /// The callers that have yet to call.
    to_come: u8,
    /// The number of the last caller, and its state until it has left.
    last: u64,
    stands: Option<Stands>,
}

#[derive(Clone, Hash)]
struct Explored {
    scope: Scope<Node, Message>,
    /// The callers that passed, by position in the order.
    passed: BTreeMap<u64, BTreeSet<(usize, u64)>>,
    callers: u8,
    ends: u8,
    lie: Lie,
}

/// A step of the caller of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    Join(usize),
    Come(usize),
    Leave(usize),
    End(usize),
}

impl Explored {
    fn with(&mut self, at: usize, does: impl FnOnce(&mut Groups, &mut Vec<Action>)) -> Result<(), String> {
        let mut actions = Vec::new();
        does(&mut self.node(at).groups, &mut actions);
        for action in actions {
            match action {
                Action::Send { to, message } => self.scope.send(at, to.index(), message),
                Action::Tell { client, seq, what } => self.tell(at, client, seq, &what)?,
                Action::Opened(..) => {}
                Action::Fault { from, what } => return Err(format!("{at} says of {from}: {what}")),
            }
        }
        Ok(())
    }

    fn node(&mut self, at: usize) -> &mut Node {
        self.scope.cluster.node_mut(at).expect("no node ends here")
    }

    fn tell(&mut self, at: usize, client: u64, seq: u64, what: &Happened) -> Result<(), String> {
        let node = self.node(at);
        let last = node.last;
        let stands = node.stands.as_mut().filter(|_| client == last);
        match (what, stands) {
            (Happened::View { members, .. }, Some(Stands::Joined(told))) => *told = members.len(),
            (Happened::Passed(_), stands) => {
                // A caller that ended had come if its end has a later position.
                if let Some(stands) = stands {
                    *stands = Stands::Passed;
                }
                let again = self.passed.values().any(|passed| passed.contains(&(at, client)));
                self.passed.entry(seq).or_default().insert((at, client));
                if again {
                    return Err(format!("{client} of {at} passed twice"));
                }
            }
            (Happened::View { .. } | Happened::Left, _) => {}
            (what, _) => return Err(format!("{client} of {at} received {what:?}")),
        }
        Ok(())
    }
}

impl World for Explored {
    type Node = Node;
    type Message = Message;
    type Own = Act;

    fn scope(&mut self) -> &mut Scope<Node, Message> {
        &mut self.scope
    }

    fn seen(&self) -> &Scope<Node, Message> {
        &self.scope
    }

    fn own_steps(&self) -> Vec<Act> {
        let enough = usize::from(if self.lie == Lie::Counted { TOGETHER } else { 1 });
        let mut steps = Vec::new();
        for (at, node) in self.scope.cluster.up() {
            match node.stands {
                None if node.to_come > 0 => steps.push(Act::Join(at)),
                Some(Stands::Joined(told)) if told >= enough => steps.push(Act::Come(at)),
                Some(Stands::Passed) => steps.push(Act::Leave(at)),
                _ => {}
            }
            if self.ends > 0 && matches!(node.stands, Some(Stands::Joined(_) | Stands::Waits)) {
                steps.push(Act::End(at));
            }
        }
        steps
    }

    fn is_outside(act: &Act) -> bool {
        matches!(act, Act::End(_))
    }

    fn act(&mut self, act: Act) -> Result<(), String> {
        let (at, deed, stands) = match act {
            Act::Join(at) => {
                let node = self.node(at);
                (node.to_come, node.last) = (node.to_come - 1, node.last + 1);
                (at, Deed::Join, Some(Stands::Joined(0)))
            }
            Act::Come(at) => {
                let least = if self.lie == Lie::Counted { 1 } else { TOGETHER };
                (at, Deed::Arrive { barrier: name("here"), least, strict: false }, Some(Stands::Waits))
            }
            Act::Leave(at) => (at, Deed::Leave { died: false }, None),
            Act::End(at) => {
                self.ends -= 1;
                (at, Deed::Leave { died: true }, None)
            }
        };
        let client = self.node(at).last;
        self.node(at).stands = stands;
        self.with(at, |groups, out| {
            groups.submit(client, name("g"), deed, out).expect("there is room");
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
        let to_come = self.callers;
        self.scope.cluster.start(node, |instance| {
            let (me, incarnation) = instance.member();
            Node { groups: Groups::new(me, incarnation), to_come, last: 0, stands: None }
        });
    }

    fn rest(&self) -> Result<(), String> {
        if let Some((seq, alone)) =
            self.passed.iter().find(|(_, passed)| passed.len() < usize::from(TOGETHER))
        {
            return Err(format!("{alone:?} passed alone at position {seq}"));
        }
        let waiting = self.scope.cluster.up().filter(|(_, node)| node.stands.is_some()).count();
        match waiting < usize::from(TOGETHER) {
            true => Ok(()),
            false => Err("two wait for each other".into()),
        }
    }
}

/// Explores every world in which each of two nodes has `callers` callers, of which at most `ends`
/// end.
///
/// # Errors
/// The property that does not hold, and the steps that lead there.
pub fn explored(callers: u8, ends: u8, lie: Lie) -> Result<Worlds, String> {
    let scope = Scope::new(2, 0, Some(0), 0);
    let mut first = Explored { scope, passed: BTreeMap::new(), callers, ends, lie };
    first.boot();
    explore(first)
}
