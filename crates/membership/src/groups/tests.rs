//! Threads of two nodes in one group, over services that are connected by hand.

use std::{
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use plexus_base::{Epoch, Incarnation, NodeId, WorkerId};
use plexus_interconnect::Net;

use super::{
    Group, GroupError, GroupService, GroupTask, Groups, MOST_UNREAD,
    clients::GroupClients,
    protocol::{self, Deed, Happened, Name},
};
use crate::{protocol::partitions::Members, subsystem::WorkerPort};

/// Two connected nodes. The thread that submits a task also delivers all resulting messages.
struct Pair {
    nodes: Mutex<[GroupClients; 2]>,
    /// The number of arrivals at barriers.
    arrived: Mutex<usize>,
    comes: Condvar,
}

/// The port to one of the nodes.
struct TestPort(Arc<Pair>, usize);

impl WorkerPort<GroupService> for TestPort {
    fn submit(&self, _: WorkerId, task: GroupTask) {
        let arrives = matches!(task, GroupTask::Do { deed: Deed::Arrive { .. }, .. });
        let mut nodes = self.0.nodes.lock().expect("no thread panics");
        nodes[self.1].task(task);
        settle(&mut nodes);
        *self.0.arrived.lock().expect("no thread panics") += usize::from(arrives);
        self.0.comes.notify_all();
    }

    fn offer(&self, _: WorkerId, _: GroupTask) {
        unreachable!()
    }

    fn visit(&self, _: WorkerId, _: &mut dyn FnMut(&mut GroupService, &mut Net)) -> bool {
        unreachable!()
    }

    fn attend(&self, _: WorkerId) {
        unreachable!()
    }
}

fn incarnation(node: usize) -> (NodeId, Incarnation) {
    (NodeId(node as u8), Incarnation(7))
}

fn settle(nodes: &mut [GroupClients; 2]) {
    while nodes.iter().any(|clients| !clients.sends.is_empty()) {
        for node in 0..2 {
            for (to, message) in std::mem::take(&mut nodes[node].sends) {
                let bytes = message.encode();
                let message = protocol::Message::decode(&bytes).expect("what was encoded");
                if let Some(clients) = nodes.get_mut(to.index()) {
                    clients.message(incarnation(node).0, incarnation(node).1, message);
                }
            }
        }
    }
    assert!(nodes.iter().all(|clients| clients.faults.is_empty()));
}

fn pair() -> (Arc<Pair>, [Groups; 2]) {
    let nodes = [0, 1].map(|node| GroupClients::new(incarnation(node).0, incarnation(node).1));
    let pair = Pair { nodes: Mutex::new(nodes), arrived: Mutex::new(0), comes: Condvar::new() };
    let pair = Arc::new(pair);
    pair.view(1, &[0, 1]);
    let groups = [0, 1].map(|node| Groups::new(Arc::new(TestPort(Arc::clone(&pair), node))));
    (pair, groups)
}

impl Pair {
    /// Waits until there were `count` arrivals at barriers.
    fn wait_arrived(&self, count: usize) {
        let arrived = self.arrived.lock().expect("no thread panics");
        drop(self.comes.wait_while(arrived, |arrived| *arrived < count).expect("no thread panics"));
    }

    fn view(&self, epoch: u32, members: &[usize]) {
        let mut nodes = self.nodes.lock().expect("no thread panics");
        let view =
            Members { epoch: Epoch(epoch), members: members.iter().map(|node| incarnation(*node)).collect() };
        members.iter().for_each(|node| nodes[*node].view(&view));
        settle(&mut nodes);
    }
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).expect("a name")
}

fn members(happened: Happened) -> Vec<NodeId> {
    match happened {
        Happened::View { members, .. } => members.iter().map(|who| who.node).collect(),
        other => panic!("{other:?} is no view"),
    }
}

#[test]
fn members_get_the_same_events_and_pass_a_barrier_together() {
    let (_, [zero, one]) = pair();
    let mut a = zero.join(name("g")).expect("a member");
    let mut b = one.join(name("g")).expect("a member");
    assert_eq!(members(a.next_event().expect("a view")), [NodeId(0)]);
    assert_eq!(members(a.next_event().expect("a view")), [NodeId(0), NodeId(1)]);
    assert_eq!(members(b.next_event().expect("a view")), [NodeId(0), NodeId(1)]);
    a.send(b"first").expect("taken");
    b.send(b"second").expect("taken");
    let mut told = |_: usize| (a.next_event().expect("a message"), b.next_event().expect("a message"));
    let order = [told(0), told(1)];
    assert!(order.iter().all(|(a, b)| a == b));
    assert!(
        matches!(&order[1].0, Happened::Message { from, bytes } if from.node == NodeId(1) && **bytes == *b"second")
    );
    let waits = std::thread::spawn(move || b.barrier(name("here"), true).map(|()| b));
    a.barrier(name("here"), true).expect("both have come");
    let b = waits.join().expect("it does not panic").expect("both have come");
    b.leave(Duration::from_secs(60));
    assert_eq!(members(a.next_event().expect("a view")), [NodeId(0)]);
}

#[test]
fn a_barrier_waits_neither_for_a_dead_member_nor_for_members_of_a_lost_node() {
    let (pair, [zero, one]) = pair();
    let mut a = zero.join(name("g")).expect("a member");
    let b = one.join(name("g")).expect("a member");
    let waits = std::thread::spawn(move || {
        a.barrier(name("here"), false).expect("no other member is left");
        a
    });
    pair.wait_arrived(1);
    drop(b);
    let mut a = waits.join().expect("it does not panic");
    let stays = one.join(name("g")).expect("a member");
    pair.view(2, &[0]);
    let views = std::iter::from_fn(|| a.next_within(Duration::ZERO).expect("a member"));
    let views: Vec<Vec<NodeId>> = views.map(members).collect();
    let (zero, both) = (vec![NodeId(0)], vec![NodeId(0), NodeId(1)]);
    assert_eq!(views, [zero.clone(), both.clone(), zero.clone(), both, zero]);
    drop(stays);
}

#[test]
fn a_member_that_does_not_read_is_removed() {
    let (_, [zero, one]) = pair();
    let mut reads = zero.join(name("g")).expect("a member");
    let sleeps = one.join(name("g")).expect("a member");
    for _ in 0..=MOST_UNREAD {
        reads.send(b"again").expect("taken");
        reads.next_event().expect("something");
    }
    assert_eq!(sleeps.send(b"late"), Err(GroupError::Removed));
    let told: Vec<_> = std::iter::from_fn(|| reads.next_within(Duration::ZERO).expect("a member")).collect();
    assert!(told.iter().any(|what| matches!(what, Happened::View { members, .. } if members.len() == 1)));
}

#[test]
fn a_member_with_too_many_unread_events_at_a_barrier_is_removed() {
    let (pair, [zero, one]) = pair();
    let mut sleeps = zero.join(name("g")).expect("a member");
    let mut reads = one.join(name("g")).expect("a member");
    let said = |reads: &mut Group, count: usize| {
        for _ in 0..count {
            reads.send(b"again").expect("taken");
            while reads.next_within(Duration::ZERO).expect("a member").is_some() {}
        }
    };
    said(&mut reads, MOST_UNREAD / 2);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| reads.barrier(name("first"), false).expect("both come"));
        pair.wait_arrived(1);
        sleeps.barrier(name("first"), false).expect("both have come");
        waits.join().expect("it does not panic");
    });
    said(&mut reads, MOST_UNREAD / 2);
    assert_eq!(sleeps.barrier(name("second"), false), Err(GroupError::Removed));
    assert_eq!(sleeps.send(b"late"), Err(GroupError::Removed), "its node has not stopped");
    let told: Vec<_> = std::iter::from_fn(|| reads.next_within(Duration::ZERO).expect("a member")).collect();
    assert!(matches!(told.last(), Some(Happened::View { members, .. }) if members.len() == 1), "{told:?}");
    let end = std::iter::repeat_with(|| sleeps.next_event()).find_map(Result::err);
    assert_eq!(end, Some(GroupError::Removed), "behind all that it had not read");
}

#[test]
fn a_node_that_stops_ends_its_members() {
    let (pair, [zero, _]) = pair();
    let mut member = zero.join(name("g")).expect("a member");
    pair.nodes.lock().expect("no thread panics")[0].stop();
    assert!(matches!(member.next_event(), Ok(Happened::View { .. })));
    assert_eq!(member.next_event(), Err(GroupError::Stopped));
    assert!(matches!(zero.join(name("g")), Err(GroupError::Stopped)));
}
