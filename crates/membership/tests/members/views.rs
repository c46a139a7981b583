//! Nodes are lost and return, leave and join, with a shared voting file and with served files
//! alone.

use std::{collections::BTreeSet, sync::Arc, sync::atomic::Ordering};

use crate::common::{Cluster, DEADLINE, Node, Watcher, assert_agreed, epoch};
use plexus_base::{NodeId, NodeSet};
use plexus_membership::{
    protocol::{ConfigChange, ConfigChangeRefusal, StopReason},
    runtime::{ConfigChangeError, FencingProof, FencingState, Membership, MembershipEnd, StartError, Status},
};

/// Three nodes, one of which is lost and returns.
fn lost_and_back(cluster: &Cluster) {
    let mut nodes = cluster.start_all();
    let lost = nodes.remove(1);
    assert!(lost.membership.lease().is_held());
    let lease = lost.membership.lease();
    drop(lost.membership);
    assert!(!lease.is_held(), "a stopped node does not act");
    assert_eq!(lost.watcher.observed().ended, None);
    for node in &nodes {
        let observed = node.watcher.wait_with(&[0, 2]);
        assert!(observed.fenced.contains(&(NodeId(1), lost.incarnation)));
        let last = observed.transitions.last().unwrap();
        assert_eq!(last.gone, [(1, lost.incarnation.0)]);
        assert!(last.phases.detect > 0.0 && last.phases.rebuild.is_none());
        let fence = node.status().fencing.last().cloned().unwrap();
        assert_eq!((fence.node, fence.state), (1, FencingState::LeaseEnded));
    }
    let back = cluster.start(1);
    assert!(back.incarnation > lost.incarnation);
    nodes.push(back);
    for node in &nodes {
        let observed = node.watcher.wait("the new incarnation", |observed| {
            observed.is_with(&[0, 1, 2])
                && observed.view().unwrap().incarnation(NodeId(1)) > Some(lost.incarnation)
        });
        assert_eq!(observed.ended, None);
    }
    assert_agreed(nodes.iter().map(|node| &node.watcher).chain([&lost.watcher]));
}

#[test]
fn a_node_is_lost_and_comes_back_with_a_shared_file() {
    lost_and_back(&Cluster::new(3, &[None]));
}

#[test]
fn a_node_is_lost_and_comes_back_with_only_served_files() {
    lost_and_back(&Cluster::new(3, &[Some(0), Some(1), Some(2)]));
}

#[test]
fn two_paths_are_enough_although_one_is_cut() {
    let mut cluster = Cluster::new(3, &[Some(0), Some(1), Some(2)]);
    cluster.paths = 2;
    let start = |node: u8| {
        let mut settings = cluster.settings(node);
        for (_, addresses) in &mut settings.peers {
            // Each pair of nodes has a different path cut.
            let dead = usize::from(node.is_multiple_of(2));
            addresses[dead] = cluster.address(40, 0);
        }
        crate::common::start(settings)
    };
    let nodes: Vec<Node> = (0..3).map(start).collect();
    nodes.iter().for_each(|node| drop(node.watcher.wait_with(&[0, 1, 2])));
    assert_agreed(nodes.iter().map(|node| &node.watcher));
}

#[test]
fn the_lease_of_a_node_that_is_proved_dead_is_not_waited_for() {
    let mut cluster = Cluster::new(2, &[None]);
    // The lease is so long that no test waits for it.
    cluster.profile.lease.0 *= 1000;
    cluster.profile.disk_timeout = cluster.profile.lease;
    cluster.profile.evict.0 *= 1000;
    let nodes = cluster.start_all();
    let [left, lost] = <[Node; 2]>::try_from(nodes).ok().unwrap();
    left.watcher.proves.store(true, Ordering::Release);
    drop(lost.membership);
    left.membership.lost(lost.id, lost.incarnation);
    left.watcher.wait_with(&[0]);
    let fence = left.status().fencing.pop().unwrap();
    assert_eq!(
        (fence.incarnation, fence.state),
        (lost.incarnation.0, FencingState::Proved(FencingProof::Killed))
    );
    let status = left.status();
    let json = serde_json::to_string(&status).unwrap();
    assert_eq!(serde_json::from_str::<Status>(&json).unwrap(), status);
    left.membership.rebuilt(epoch(&left.watcher.observed()));
    left.wait_status("what was rebuilt", |status| {
        status.transitions.last().is_some_and(|last| last.phases.rebuild.is_some())
    });
}

#[test]
fn reports_are_ignored_after_the_links_are_lost() {
    let cluster = Cluster::new(2, &[None]);
    let nodes = cluster.start_all();
    let (a, b) = (&nodes[0], &nodes[1]);
    a.membership.lost(b.id, b.incarnation);
    b.membership.lost(a.id, a.incarnation);
    a.watcher.wait_with(&[0]);
    let observed = b.watcher.wait("its end", |observed| observed.ended.is_some());
    assert!(
        matches!(
            observed.ended,
            Some(MembershipEnd::Died { reason: StopReason::Evicted | StopReason::LeaseOver, .. })
        ),
        "{observed:?}"
    );
    assert!(!b.membership.lease().is_held());
    assert_eq!(b.membership.config_change(ConfigChange::RemoveNode(a.id)), Err(ConfigChangeError::Ended));
    assert!(b.membership.status().is_none());
}

#[test]
fn nodes_come_and_leave_twenty_times() {
    let cluster = Cluster::new(3, &[Some(0), Some(1), None]);
    let stays = cluster.start(0);
    stays.watcher.wait("a view", |observed| observed.is_with(&[0]));
    let mut watchers: Vec<Arc<Watcher>> = vec![Arc::clone(&stays.watcher)];
    for round in 0..20 {
        let node = cluster.start(1 + round % 2);
        let both = [0, node.id.0];
        node.watcher.wait_with(&both);
        stays.watcher.wait_with(&both);
        node.membership.leave(DEADLINE).unwrap().unwrap();
        assert_eq!(node.watcher.observed().ended, Some(MembershipEnd::Left));
        assert!(!node.membership.lease().is_held());
        stays.watcher.wait_with(&[0]);
        watchers.push(node.watcher);
    }
    let status = stays.status();
    assert!(status.fencing.iter().all(|fence| fence.state == FencingState::Reported), "{status:#?}");
    assert_eq!(stays.watcher.observed().fenced, [], "a leaving node is not fenced");
    let incarnations: BTreeSet<u64> = status.fencing.iter().map(|fence| fence.incarnation).collect();
    assert_eq!(incarnations.len(), status.fencing.len());
    assert_agreed(&watchers);
}

#[test]
fn a_node_returns_before_it_is_missed() {
    let cluster = Cluster::new(3, &[Some(0), None, Some(2)]);
    let mut nodes = cluster.start_all();
    let lost = nodes.remove(1);
    drop(lost.membership);
    nodes.push(cluster.start(1));
    let incarnation = nodes[2].incarnation;
    for node in &nodes {
        node.watcher.wait("the new incarnation", |observed| {
            observed.is_with(&[0, 1, 2]) && observed.view().unwrap().has(NodeId(1), incarnation)
        });
    }
    assert_agreed(nodes.iter().map(|node| &node.watcher).chain([&lost.watcher]));
}

#[test]
fn a_view_is_not_opened_while_an_observer_has_not_entered_the_previous_one() {
    let cluster = Cluster::new(2, &[None]);
    let first = cluster.start(0);
    first.watcher.wait_with(&[0]);
    let closed = first.watcher.gate.lock().unwrap();
    let second = cluster.start(1);
    let both = NodeSet::first(2);
    let observed = second
        .watcher
        .wait("the view", |observed| observed.decided.iter().any(|view| view.members() == both));
    let epoch = observed.decided.last().unwrap().epoch;
    first.wait_status("the view to be open", |status| status.opened == epoch.0);
    // Both have reported it in the file since, and have read each other's report.
    for node in [&first, &second, &first, &second] {
        node.membership.remember(1).unwrap();
    }
    assert_eq!(second.status().opened, 0);
    drop(closed);
    first.watcher.wait_with(&[0, 1]);
    second.watcher.wait_with(&[0, 1]);
}

#[test]
fn nodes_with_different_times_report_it_and_do_not_join() {
    let cluster = Cluster::new(2, &[None]);
    let first = cluster.start(0);
    first.watcher.wait_with(&[0]);
    let mut settings = cluster.settings(1);
    settings.profile.disk_timeout.0 -= 1_000_000;
    let second = crate::common::start(settings);
    first.wait_status("the other's times", |status| status.differing_times == [(1, 3000.0, 7999.0)]);
    second.wait_status("the other's times", |status| status.differing_times == [(0, 3000.0, 8000.0)]);
    assert!(first.watcher.observed().is_with(&[0]) && second.watcher.observed().view().is_none());
    drop(second);
    first.wait_status("no other times", |status| status.differing_times.is_empty());
}

#[test]
fn an_address_in_use_is_refused() {
    let cluster = Cluster::new(1, &[None]);
    let _first = cluster.start(0);
    let watcher = Arc::new(Watcher::default());
    let refused = Membership::start(cluster.settings(0), watcher).unwrap_err();
    assert!(matches!(refused, StartError::Listen { address, .. } if address == cluster.address(0, 0)));
}

#[test]
fn the_last_node_leaves_and_the_cluster_starts_again() {
    let cluster = Cluster::new(2, &[None]);
    for _ in 0..2 {
        let nodes = cluster.start_all();
        nodes.iter().for_each(|node| node.membership.leave(DEADLINE).unwrap().unwrap());
    }
}

#[test]
fn a_node_that_leaves_and_still_acts_is_waited_for_as_after_a_death() {
    let cluster = Cluster::new(3, &[Some(0), Some(1), None]);
    let (stays, leaves) = (cluster.start(0), cluster.start(1));
    stays.watcher.wait_with(&[0, 1]);
    leaves.watcher.wait_with(&[0, 1]);
    leaves.watcher.acts_on.store(true, Ordering::Release);
    assert_eq!(leaves.membership.leave(DEADLINE), Some(Err(ConfigChangeError::Ended)));
    assert_eq!(leaves.watcher.observed().ended, Some(MembershipEnd::Left));
    stays.watcher.wait_with(&[0]);
    let fencing = stays.status().fencing;
    let is_of_it = |incarnation: u64| incarnation == leaves.incarnation.0;
    let ended = fencing.iter().find(|fence| is_of_it(fence.incarnation)).map(|fence| &fence.state);
    assert_eq!(ended, Some(&FencingState::LeaseEnded), "{fencing:#?}");
}

#[test]
fn nodes_that_serve_the_voting_files_leave_one_after_the_other() {
    let cluster = Cluster::new(3, &[Some(0), Some(1), Some(2)]);
    let [first, second, third] = <[Node; 3]>::try_from(cluster.start_all()).ok().unwrap();
    first.membership.leave(DEADLINE).unwrap().unwrap();
    third.watcher.wait_with(&[1, 2]);
    // Without the second node no majority of the files is left, so the third leaves with it.
    let leaving = std::thread::spawn(move || {
        second.membership.leave(DEADLINE).unwrap().unwrap();
        second.watcher.observed().ended
    });
    third.watcher.wait("the order to leave", |observed| observed.leavers == NodeSet::from_iter([NodeId(1)]));
    third.membership.leave(DEADLINE).unwrap().unwrap();
    assert_eq!(third.watcher.observed().ended, Some(MembershipEnd::Left));
    assert_eq!(leaving.join().unwrap(), Some(MembershipEnd::Left));
}

#[test]
fn a_node_that_is_not_a_member_has_its_config_changes_refused() {
    let cluster = Cluster::new(3, &[Some(0), Some(1), Some(2)]);
    // Without a second file there is no majority.
    let alone = cluster.start(0);
    let refused = Err(ConfigChangeError::Refused(ConfigChangeRefusal::NoMember));
    assert_eq!(alone.membership.config_change(ConfigChange::RemoveNode(NodeId(2))), refused);
    assert_eq!(alone.membership.leave(DEADLINE), Some(refused));
    assert_eq!(alone.status().opened, 0);
}
