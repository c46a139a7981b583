//! What all nodes know of all groups: each applies the same entries in the same order, so all know the same.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use plexus_base::{Incarnation, NodeId, hash::mix};

use super::command::{Command, Deed, Entry, Happened, Name, What, Who, Why};

/// Most groups of a cluster.
pub const MAX_GROUPS: usize = 1024;

/// Most members of a group.
pub const MAX_MEMBERS: usize = 256;

/// Most members of groups at one node.
pub const MAX_AT_NODE: usize = 256;

/// A group.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Group {
    /// How many views it had.
    pub(super) number: u64,
    pub(super) members: BTreeSet<Who>,
    pub(super) barriers: BTreeMap<Name, Barrier>,
}

/// Where members wait; somebody does.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Barrier {
    pub(super) strict: bool,
    /// Each with how many there must be for it to go on.
    pub(super) arrived: BTreeMap<Who, u16>,
}

/// All groups.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Replica {
    /// The last entry that it knows.
    pub(super) applied: u64,
    /// A hash over all entries so far: nodes that know the same have the same.
    pub(super) digest: u64,
    /// By node and incarnation: the number of its last command.
    pub(super) done: BTreeMap<(NodeId, Incarnation), u64>,
    pub(super) groups: BTreeMap<Name, Group>,
}

impl Replica {
    /// The last command of a node's incarnation that has its place.
    pub(super) fn done(&self, node: NodeId, incarnation: Incarnation) -> u64 {
        self.done.get(&(node, incarnation)).copied().unwrap_or_default()
    }

    /// Takes the next entry; who is told what goes to `tell`.
    pub(super) fn apply(&mut self, entry: &Entry, tell: &mut impl FnMut(Who, Happened)) {
        self.applied = entry.seq;
        self.digest = mix(self.digest ^ mix(entry.seq));
        match &entry.what {
            What::Command(node, incarnation, command) => {
                self.digest =
                    mix(self.digest ^ u64::from(node.0) ^ mix(incarnation.0) ^ mix(command.number << 8));
                self.done.insert((*node, *incarnation), command.number);
                self.act(
                    Who { node: *node, incarnation: *incarnation, client: command.client },
                    command,
                    tell,
                );
            }
            What::View(view) => {
                self.digest = mix(self.digest ^ u64::from(view.epoch.0));
                let is_in =
                    |node: NodeId, incarnation: Incarnation| view.incarnation(node) == Some(incarnation);
                self.done.retain(|(node, incarnation), _| is_in(*node, *incarnation));
                let names: Vec<Name> = self.groups.keys().cloned().collect();
                for name in names {
                    let members = self.groups[&name].members.iter();
                    let gone = members.filter(|who| !is_in(who.node, who.incarnation)).copied().collect();
                    self.remove(&name, gone, true, tell);
                }
            }
        }
    }

    fn act(&mut self, who: Who, command: &Command, tell: &mut impl FnMut(Who, Happened)) {
        let name = &command.group;
        if command.deed == Deed::Join {
            return match self.join(who, name) {
                Ok(()) => self.groups.get_mut(name).into_iter().for_each(|group| group.next_view(tell)),
                Err(why) => tell(who, Happened::Refused(why)),
            };
        }
        let Some(group) = self.groups.get_mut(name).filter(|group| group.members.contains(&who)) else {
            return tell(who, Happened::Refused(Why::NoMember));
        };
        match &command.deed {
            Deed::Join => {}
            Deed::Leave { died } => {
                self.remove(name, BTreeSet::from([who]), *died, tell);
                tell(who, Happened::Left);
            }
            Deed::Send(bytes) => {
                let message = Happened::Message { from: who, bytes: Arc::clone(bytes) };
                group.members.iter().for_each(|member| tell(*member, message.clone()));
            }
            Deed::Arrive { barrier, least, strict } => {
                if group.barriers.values().any(|barrier| barrier.arrived.contains_key(&who)) {
                    return tell(who, Happened::Refused(Why::Waits));
                }
                let at = group.barriers.entry(barrier.clone()).or_default();
                at.strict |= strict;
                at.arrived.insert(who, *least);
                group.pass(tell);
            }
        }
    }

    fn join(&mut self, who: Who, name: &Name) -> Result<(), Why> {
        let at_node = |group: &Group| group.members.iter().filter(|member| member.node == who.node).count();
        if self.groups.values().map(at_node).sum::<usize>() >= MAX_AT_NODE {
            return Err(Why::Node);
        }
        if !self.groups.contains_key(name) && self.groups.len() >= MAX_GROUPS {
            return Err(Why::Groups);
        }
        let group = self.groups.entry(name.clone()).or_default();
        if group.members.len() >= MAX_MEMBERS {
            return Err(Why::Members);
        }
        group.members.insert(who);
        Ok(())
    }

    /// These are members no more.
    fn remove(&mut self, name: &Name, gone: BTreeSet<Who>, died: bool, tell: &mut impl FnMut(Who, Happened)) {
        let Some(first) = gone.first().copied() else { return };
        let Some(group) = self.groups.get_mut(name) else { return };
        group.members.retain(|member| !gone.contains(member));
        if group.members.is_empty() {
            self.groups.remove(name);
            return;
        }
        group.next_view(tell);
        group.barriers.retain(|name, barrier| {
            barrier.arrived.retain(|who, _| !gone.contains(who));
            let fails = died && barrier.strict;
            if fails {
                barrier.arrived.keys().for_each(|who| tell(*who, Happened::Failed(name.clone(), first)));
            }
            !fails && !barrier.arrived.is_empty()
        });
        group.pass(tell);
    }
}

impl Group {
    fn next_view(&mut self, tell: &mut impl FnMut(Who, Happened)) {
        self.number += 1;
        let members: Arc<[Who]> = self.members.iter().copied().collect();
        for member in &self.members {
            tell(*member, Happened::View { number: self.number, members: Arc::clone(&members) });
        }
    }

    /// Opens barriers to which all have come, where they are enough for each of them.
    fn pass(&mut self, tell: &mut impl FnMut(Who, Happened)) {
        let members = &self.members;
        self.barriers.retain(|name, barrier| {
            let few = |least: &u16| usize::from(*least) > members.len();
            let waits = barrier.arrived.len() < members.len() || barrier.arrived.values().any(few);
            if !waits {
                members.iter().for_each(|who| tell(*who, Happened::Passed(name.clone())));
            }
            waits
        });
    }
}
