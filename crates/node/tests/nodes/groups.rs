//! Groups on real nodes, used by threads inside them.

use std::time::Duration;

use crate::cluster::Cluster;
use plexus_fabric::RailKind;
use plexus_membership::groups::{
    Group,
    protocol::{Happened, Name},
};

const LONG: Duration = Duration::from_secs(60);

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).unwrap()
}

/// Returns the next event of a member.
fn next(group: &mut Group) -> Happened {
    group.next_within(LONG).unwrap().expect("it is told something")
}

/// Returns the next messages, as many as asked for.
fn said(group: &mut Group, count: usize) -> Vec<(u8, Vec<u8>)> {
    let mut said = Vec::new();
    while said.len() < count {
        if let Happened::Message { from, bytes } = next(group) {
            said.push((from.node.0, bytes.to_vec()));
        }
    }
    said
}

/// Reads events until the group has this number of members.
fn until_members(group: &mut Group, count: usize) {
    while !matches!(next(group), Happened::View { members, .. } if members.len() == count) {}
}

#[test]
fn messages_come_in_one_order_and_survivors_learn_of_a_failure() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        let mut cluster = Cluster::start(3, 2, rail);
        let mut members: Vec<Group> =
            (0..3).map(|node| cluster.groups(node).join(name("g")).unwrap()).collect();
        members.iter_mut().for_each(|member| until_members(member, 3));
        std::thread::scope(|scope| {
            for (node, member) in members.iter_mut().enumerate() {
                scope.spawn(move || (0..50u8).for_each(|number| member.send(&[node as u8, number]).unwrap()));
            }
        });
        let told: Vec<_> = members.iter_mut().map(|member| said(member, 150)).collect();
        assert!(told.iter().all(|order| *order == told[0]), "over {rail}");
        for node in 0..3 {
            let of_one = told[0].iter().filter(|(from, _)| *from == node).map(|(_, bytes)| bytes[1]);
            assert!(of_one.eq(0..50), "over {rail}: {told:?}");
        }
        std::thread::scope(|scope| {
            for member in &mut members {
                scope.spawn(|| member.barrier(name("all"), true).unwrap());
            }
        });
        cluster.end(0);
        members.remove(0);
        members.iter_mut().for_each(|member| until_members(member, 2));
        members[0].send(b"on").unwrap();
        for member in &mut members {
            assert_eq!(said(member, 1), [(1, b"on".to_vec())]);
        }
    }
}
