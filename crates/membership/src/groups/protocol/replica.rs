//! The state of all groups, which is the same on all nodes: each applies the same entries in the
//! same order.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use plexus_base::{Incarnation, NodeId, hash::mix};

use super::command::{Command, Deed, Entry, EntryContent, GroupMember, GroupRefusal, Happened, Name};

/// The most groups of a cluster.
pub const MAX_GROUPS: usize = 1024;

/// The most members of a group.
pub const MAX_MEMBERS: usize = 256;

/// The most members of groups at one node.
pub const MAX_AT_NODE: usize = 256;

/// The state of one group.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Group {
    /// The number of its last view.
    pub(super) number: u64,
    pub(super) members: BTreeSet<GroupMember>,
    pub(super) barriers: BTreeMap<Name, Barrier>,
}

/// A barrier at which at least one member waits.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Barrier {
    pub(super) strict: bool,
    /// The members that have arrived, each with the fewest members that it requires.
    pub(super) arrived: BTreeMap<GroupMember, u16>,
}

/// The state of all groups.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Replica {
    /// The number of the last applied entry.
    pub(super) applied: u64,
    /// The hash over all entries so far: nodes with the same entries have the same hash.
    pub(super) digest: u64,
    /// The number of the last command of each node and incarnation.
    pub(super) done: BTreeMap<(NodeId, Incarnation), u64>,
    pub(super) groups: BTreeMap<Name, Group>,
}

impl Replica {
    /// Returns the last command of a node's incarnation that has its place.
    pub(super) fn done(&self, node: NodeId, incarnation: Incarnation) -> u64 {
        self.done.get(&(node, incarnation)).copied().unwrap_or_default()
    }

    /// Applies the next entry; the events for members go to `tell`.
    pub(super) fn apply(&mut self, entry: &Entry, tell: &mut impl FnMut(GroupMember, Happened)) {
        self.applied = entry.seq;
        self.digest = mix(self.digest ^ mix(entry.seq));
        match &entry.what {
            EntryContent::Command(node, incarnation, command) => {
                self.digest =
                    mix(self.digest ^ u64::from(node.0) ^ mix(incarnation.0) ^ mix(command.number << 8));
                self.done.insert((*node, *incarnation), command.number);
                self.act(
                    GroupMember { node: *node, incarnation: *incarnation, client: command.client },
                    command,
                    tell,
                );
            }
            EntryContent::View(view) => {
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

    fn act(&mut self, who: GroupMember, command: &Command, tell: &mut impl FnMut(GroupMember, Happened)) {
        let name = &command.group;
        if command.deed == Deed::Join {
            return match self.join(who, name) {
                Ok(()) => self.groups.get_mut(name).into_iter().for_each(|group| group.next_view(tell)),
                Err(why) => tell(who, Happened::Refused(why)),
            };
        }
        let Some(group) = self.groups.get_mut(name).filter(|group| group.members.contains(&who)) else {
            return tell(who, Happened::Refused(GroupRefusal::NoMember));
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
                    return tell(who, Happened::Refused(GroupRefusal::Waits));
                }
                let at = group.barriers.entry(barrier.clone()).or_default();
                if let Some(other) = at.arrived.values().find(|other| *other != least) {
                    return tell(who, Happened::Refused(GroupRefusal::Differs(*other)));
                }
                at.strict |= strict;
                at.arrived.insert(who, *least);
                group.pass(tell);
            }
        }
    }

    fn join(&mut self, who: GroupMember, name: &Name) -> Result<(), GroupRefusal> {
        let at_node = |group: &Group| group.members.iter().filter(|member| member.node == who.node).count();
        if self.groups.values().map(at_node).sum::<usize>() >= MAX_AT_NODE {
            return Err(GroupRefusal::Node);
        }
        if !self.groups.contains_key(name) && self.groups.len() >= MAX_GROUPS {
            return Err(GroupRefusal::Groups);
        }
        let group = self.groups.entry(name.clone()).or_default();
        if group.members.len() >= MAX_MEMBERS {
            return Err(GroupRefusal::Members);
        }
        group.members.insert(who);
        Ok(())
    }

    /// Removes members from a group.
    fn remove(
        &mut self,
        name: &Name,
        gone: BTreeSet<GroupMember>,
        died: bool,
        tell: &mut impl FnMut(GroupMember, Happened),
    ) {
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
    fn next_view(&mut self, tell: &mut impl FnMut(GroupMember, Happened)) {
        self.number += 1;
        let members: Arc<[GroupMember]> = self.members.iter().copied().collect();
        for member in &self.members {
            tell(*member, Happened::View { number: self.number, members: Arc::clone(&members) });
        }
    }

    /// Opens the barriers at which all members have arrived, if they are enough for each of them.
    fn pass(&mut self, tell: &mut impl FnMut(GroupMember, Happened)) {
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
