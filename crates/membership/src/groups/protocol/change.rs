//! A view change of groups: all survivors share what each of them knows before the new view begins.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use plexus_base::NodeId;

use super::{Entry, EntryContent, Flushed, GroupMessage, Groups, Replica, Snapshot};
use crate::protocol::partitions::Members;

/// A view that has not begun here.
#[derive(Clone, Hash, Debug, Default)]
pub(super) struct Change {
    /// The members whose state is missing.
    awaited: BTreeSet<NodeId>,
    said: BTreeMap<NodeId, Flushed>,
    /// The kept entries of all members, by number.
    kept: BTreeMap<u64, Entry>,
    state: Option<Snapshot>,
}

impl Groups {
    /// Sends this node's state to all members and waits for theirs.
    pub(super) fn begin_change(&mut self, view: Members) {
        self.view = Some(view);
        // Messages of the view before are void, and commands without a place are sent again.
        (self.early, self.sent) = (Vec::new(), 0);
        let others = self.others();
        let flushed =
            self.replica.as_ref().map_or(Flushed { knows: false, applied: 0, digest: 0 }, |replica| {
                Flushed { knows: true, applied: replica.applied, digest: replica.digest }
            });
        for to in &others {
            let kept: Vec<GroupMessage> = self.log.iter().cloned().map(GroupMessage::Kept).collect();
            kept.into_iter().chain([GroupMessage::Flushed(flushed)]).for_each(|body| self.send(*to, body));
        }
        self.change = Some(Change {
            awaited: others.into_iter().collect(),
            said: BTreeMap::from([(self.me, flushed)]),
            kept: self.log.iter().map(|entry| (entry.seq, entry.clone())).collect(),
            state: None,
        });
    }

    /// Handles a message of a view change from another member.
    pub(super) fn changing(&mut self, from: NodeId, body: GroupMessage) {
        let fault = match (&mut self.change, body) {
            (Some(change), GroupMessage::Kept(entry)) if change.awaited.contains(&from) => {
                let known = change.kept.entry(entry.seq).or_insert_with(|| entry.clone());
                (*known != entry).then_some("another entry in the place of one")
            }
            (Some(change), GroupMessage::Flushed(flushed)) if change.awaited.contains(&from) => {
                change.awaited.remove(&from);
                let mut said = change.said.values().filter(|said| said.knows && flushed.knows);
                let differs =
                    said.any(|said| said.applied == flushed.applied && said.digest != flushed.digest);
                change.said.insert(from, flushed);
                differs.then_some("it knows something else of groups")
            }
            (Some(change), GroupMessage::State(state))
                if change.state.is_none() && self.replica.is_none() =>
            {
                change.state = Some(state);
                None
            }
            _ => Some("a word of a change that it does not owe"),
        };
        if let Some(what) = fault {
            self.fault(from, what);
        }
    }

    /// Begins the view when the state of all members is known.
    pub(super) fn complete(&mut self) {
        let Some(change) = self.change.take_if(|change| change.awaited.is_empty()) else { return };
        let knowing: Vec<(NodeId, Flushed)> =
            change.said.iter().filter(|(_, said)| said.knows).map(|(node, said)| (*node, *said)).collect();
        // All members with state know every kept entry up to this one.
        let least = knowing.iter().map(|(_, said)| said.applied).min().unwrap_or_default();
        match (&self.replica, knowing.first(), change.state.clone()) {
            (Some(_), ..) => self.catch_up(change.kept),
            (None, None, _) => self.replica = Some(Replica::default()),
            (None, Some(_), None) => {
                self.change = Some(change);
                return;
            }
            (None, Some(_), Some(Snapshot(state))) => {
                self.replica = Some(Arc::unwrap_or_clone(state));
                self.log = change.kept.into_values().filter(|entry| entry.seq <= self.applied()).collect();
            }
        }
        let Some(view) = self.view.clone() else { return };
        let gives = knowing.first().is_some_and(|(node, _)| *node == self.me);
        let new = change.said.iter().filter(|(_, said)| gives && !said.knows).map(|(node, _)| *node);
        for node in new.collect::<Vec<_>>() {
            let state = Snapshot(Arc::new(self.replica.clone().unwrap_or_default()));
            self.send(node, GroupMessage::State(state));
        }
        let base = self.applied() + 1;
        self.apply(Entry { seq: base, what: EntryContent::View(view) });
        let has =
            |node: &NodeId| change.said.get(node).filter(|said| said.knows).map_or(base, |said| said.applied);
        self.acks = self.others().into_iter().map(|node| (node, has(&node))).collect();
        self.forget(least);
        (self.told_stable, self.acked) = (self.stable, base);
        match self.sequencer() {
            Some(sequencer) if sequencer != self.me => self.send(sequencer, GroupMessage::Ack(base)),
            _ => self.settle_stable(),
        }
        for (from, body) in std::mem::take(&mut self.early) {
            self.current(from, body);
        }
    }

    /// Applies the entries that others keep and this node lacks.
    fn catch_up(&mut self, kept: BTreeMap<u64, Entry>) {
        for (seq, entry) in kept.into_iter().filter(|(seq, _)| *seq > self.applied()).collect::<Vec<_>>() {
            if seq == self.applied() + 1 {
                self.apply(entry);
            } else {
                self.fault(self.me, "an entry that no member kept");
            }
        }
    }
}
