//! Only nodes with the cluster's key are heard, also during a key replacement; and a node that is
//! not well ends.

use std::{
    net::UdpSocket,
    sync::{Arc, atomic::Ordering},
};

use crate::common::{Cluster, DEADLINE, Keys, Node, PROFILE, assert_agreed, start};
use plexus_base::NodeId;
use plexus_membership::{
    protocol::{ConfigChange, StopReason},
    runtime::{MembershipEnd, datagram_any},
};

#[test]
fn a_node_with_another_key_is_not_heard_and_not_served() {
    let cluster = Cluster::new(3, &[Some(0), Some(1), Some(2)]);
    let mut settings = cluster.settings(2);
    settings.keys = Arc::new(Keys::of(&[2]));
    let other = start(settings);
    let nodes = [cluster.start(0), cluster.start(1)];
    for node in &nodes {
        node.watcher.wait_with(&[0, 1]);
        node.wait_status("unauthenticated", |status| status.unauthenticated > 0);
    }
    let status = other.wait_status("unauthenticated", |status| status.unauthenticated > 0);
    assert_eq!((status.opened, status.decided), (0, 0));
    let errors = other.wait_status("no answers", |status| {
        status.files.iter().filter(|file| file.error.is_some()).count() == 2
    });
    assert!(errors.files[2].error.is_none(), "it reads its own file itself: {errors:#?}");
    assert!(nodes.iter().all(|node| node.watcher.observed().is_with(&[0, 1])));
}

#[test]
fn a_node_with_another_key_does_not_join_over_a_shared_file() {
    let cluster = Cluster::new(3, &[None]);
    let mut settings = cluster.settings(2);
    settings.keys = Arc::new(Keys::of(&[2]));
    let nodes = [cluster.start(0), cluster.start(1)];
    nodes.iter().for_each(|node| drop(node.watcher.wait_with(&[0, 1])));
    let other = start(settings);
    other.wait_status("the others' view", |status| status.decided > 0 && status.unauthenticated > 0);
    nodes[0].membership.config_change(ConfigChange::AddNode(NodeId(7))).unwrap();
    nodes[1]
        .wait_status("the config_change", |status| status.members.len() == 2 && status.unauthenticated > 0);
    assert!(nodes.iter().all(|node| node.watcher.observed().is_with(&[0, 1])));
    assert_eq!(other.status().opened, 0);
}

#[test]
fn a_key_is_replaced_while_the_cluster_runs() {
    let cluster = Cluster::new(2, &[Some(0), Some(1), Some(1)]);
    let keys = [Keys::of(&[1]), Keys::of(&[1])];
    let settings = [0, 1].map(|node| cluster.settings(node));
    let nodes = settings.into_iter().zip(&keys).map(|(mut settings, keys)| {
        settings.keys = Arc::new(keys.clone());
        start(settings)
    });
    let nodes: Vec<Node> = nodes.collect();
    nodes.iter().for_each(|node| drop(node.watcher.wait_with(&[0, 1])));
    let before = nodes[0].watcher.observed().opened.len();
    let names = |node: &Node| node.status().keys;
    let old = names(&nodes[0]);
    // On one node after the other; each step takes effect before the next.
    for (valid, count) in [(&[2, 1][..], 2), (&[2], 1)] {
        for (node, keys) in nodes.iter().zip(&keys) {
            let was = names(node);
            keys.set(valid);
            node.wait_status("its keys", |status| status.keys != was && status.keys.len() == count);
            nodes.iter().for_each(|node| assert_eq!(node.membership.remember(1), Ok(1)));
        }
    }
    assert!(names(&nodes[0]) == names(&nodes[1]) && names(&nodes[0]) != old);
    for node in &nodes {
        let heard = node.wait_status("the other", |status| {
            status
                .members
                .iter()
                .any(|member| member.heard_ms.is_some_and(|ms| ms < PROFILE.lease.0 / 1_000_000))
        });
        assert_eq!(heard.members.len(), 2);
        let observed = node.watcher.observed();
        assert_eq!((observed.opened.len(), observed.ended), (before, None), "no node was missed");
    }
    // A node with only the old key is unauthenticated.
    let mut settings = cluster.settings(1);
    (settings.keys, settings.listen) = (Arc::new(Keys::of(&[1])), vec![cluster.address(9, 0)]);
    let unauthenticated = nodes[0].status().unauthenticated;
    let _late = start(settings);
    nodes[0].wait_status("more datagrams", |status| status.unauthenticated > unauthenticated);
}

#[test]
fn unauthenticated_datagrams_are_counted_and_do_no_harm() {
    let cluster = Cluster::new(2, &[Some(0), Some(1), None]);
    let nodes = cluster.start_all();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    for length in [0, 1, 63, 64, 80, 100, 1400, 1500, 60_000] {
        let mut bytes = vec![0x5a; length];
        for magic in [false, true] {
            if magic && length > 5 {
                bytes[..5].copy_from_slice(b"PLXM\x02");
            }
            socket.send_to(&bytes, cluster.address(0, 0)).unwrap();
        }
    }
    nodes[0].wait_status("all of them", |status| status.unauthenticated == 18);
    nodes[0].membership.remember(1).unwrap();
    assert_agreed(nodes.iter().map(|node| &node.watcher));
}

#[test]
fn a_node_that_is_not_well_sends_nothing_and_ends() {
    let cluster = Cluster::new(3, &[None]);
    let nodes = cluster.start_all();
    nodes[2].watcher.is_unwell.store(true, Ordering::Release);
    let observed = nodes[2].watcher.wait("its end", |observed| observed.ended.is_some());
    assert!(matches!(observed.ended, Some(MembershipEnd::Died { .. })));
    nodes[..2].iter().for_each(|node| drop(node.watcher.wait_with(&[0, 1])));
}

#[test]
fn a_node_that_is_not_well_renews_no_lease() {
    let cluster = Cluster::new(1, &[None]);
    let node = cluster.start(0);
    node.watcher.wait_with(&[0]);
    node.watcher.is_unwell.store(true, Ordering::Release);
    let status = node.wait_status("why", |status| status.files[0].error.is_some());
    assert!(status.files[0].error.as_ref().unwrap().contains("not well"));
    let observed = node.watcher.wait("its end", |observed| observed.ended.is_some());
    assert!(matches!(observed.ended, Some(MembershipEnd::Died { reason: StopReason::LeaseOver, .. })));
}

#[test]
fn a_stuck_loop_is_ended_by_the_lease() {
    let cluster = Cluster::new(1, &[None]);
    let mut settings = cluster.settings(0);
    let device = cluster.dir.path().join("watchdog");
    std::fs::write(&device, "").unwrap();
    settings.watchdog = Some(device.clone());
    let node = start(settings);
    node.watcher.wait_with(&[0]);
    node.watcher.is_stuck.store(true, Ordering::Release);
    let observed = node.watcher.wait("its end", |observed| observed.ended.is_some());
    assert!(matches!(observed.ended, Some(MembershipEnd::Died { reason: StopReason::LeaseOver, .. })));
    assert!(!node.membership.lease().is_held());
    assert!(node.membership.status().is_none(), "the loop is stuck");
    node.watcher.unstick();
    drop(node.membership);
    let fed = std::fs::read(&device).unwrap();
    assert!(!fed.is_empty() && fed.iter().all(|byte| *byte == 0), "the device must reset the host");
}

#[test]
fn the_host_s_watchdog_is_stopped_by_a_leaving_node() {
    let cluster = Cluster::new(1, &[None]);
    let device = cluster.dir.path().join("watchdog");
    std::fs::write(&device, "").unwrap();
    let mut settings = cluster.settings(0);
    settings.watchdog = Some(device.clone());
    let node = start(settings);
    node.watcher.wait_with(&[0]);
    node.membership.leave(DEADLINE).unwrap().unwrap();
    drop(node.membership);
    let fed = std::fs::read(&device).unwrap();
    assert_eq!(fed.iter().filter(|byte| **byte == b'V').count(), 1);
    assert_eq!(fed.last(), Some(&b'V'));
    assert_eq!(node.watcher.observed().ended, Some(MembershipEnd::Left));
}

#[test]
fn a_missing_watchdog_is_an_error() {
    let cluster = Cluster::new(1, &[None]);
    let mut settings = cluster.settings(0);
    settings.watchdog = Some(cluster.dir.path().join("none"));
    let watcher = Arc::new(crate::common::Watcher::default());
    let refused = plexus_membership::runtime::Membership::start(settings, watcher);
    assert!(refused.unwrap_err().to_string().contains("watchdog"));
}

#[test]
fn hostile_bytes_do_no_harm() {
    let packed = [0, 0, 1, 0, 7];
    assert_eq!((datagram_any(&packed), datagram_any(&[7])), (1, 0));
    // The decoder returns for all of them.
    plexus_sim::hostile(&[packed.to_vec(), b"PLXM\x01\x02\x01\x02".repeat(12)], |bytes| {
        let _ = datagram_any(bytes);
    });
}
