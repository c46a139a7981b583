//! Voting files that fail, return, are older copies, are added and removed; nodes that are added
//! and removed.

use std::os::unix::fs::PermissionsExt;

use crate::common::{Cluster, Node, PROFILE, assert_agreed, epoch, replace};
use plexus_base::{NodeId, NodeSet};
use plexus_membership::{
    protocol::{ConfigChange, ConfigChangeRefusal, FileId, StopReason, View},
    runtime::{ConfigChangeError, MembershipEnd},
    voting::{self, FileError, format::FILE},
};

fn all_end(nodes: &[Node]) {
    for node in nodes {
        let observed = node.watcher.wait("its end", |observed| observed.ended.is_some());
        assert!(matches!(observed.ended, Some(MembershipEnd::Died { reason: StopReason::LeaseOver, .. })));
        assert!(!node.membership.lease().is_held());
    }
}

#[test]
fn nodes_go_on_without_a_minority_of_files_and_end_without_a_majority() {
    let cluster = Cluster::new(3, &[None, None, None]);
    let nodes = cluster.start_all();
    let before = epoch(&nodes[0].watcher.observed());
    std::fs::remove_file(cluster.path(FileId(1))).unwrap();
    for node in &nodes {
        let status = node.wait_status("a file that is gone", |status| status.quorum.answering == 2);
        let gone = &status.files[0];
        assert!(gone.votes && gone.error.as_ref().is_some_and(|error| error.contains("vote1")), "{gone:?}");
        assert_eq!(status.decided, before.0, "a missing file leads to no new view");
    }
    // The lease is still renewed: a config change is decided.
    nodes[0].membership.config_change(ConfigChange::AddNode(NodeId(3))).unwrap();
    nodes.iter().for_each(|node| {
        node.watcher
            .wait("the config_change", |observed| observed.view().unwrap().cluster() == NodeSet::first(4));
    });
    // A truncated file does not count.
    std::fs::OpenOptions::new().write(true).open(cluster.path(FileId(2))).unwrap().set_len(9000).unwrap();
    all_end(&nodes);
}

#[test]
fn of_served_files_a_majority_of_the_nodes_goes_on() {
    let cluster = Cluster::new(3, &[Some(0), Some(1), Some(2)]);
    let mut nodes = cluster.start_all();
    drop(nodes.pop().unwrap().membership);
    nodes.iter().for_each(|node| drop(node.watcher.wait_with(&[0, 1])));
    drop(nodes.pop().unwrap().membership);
    all_end(&nodes);
}

#[test]
fn an_older_copy_of_a_file_is_set_aside_and_added_again() {
    let cluster = Cluster::new(2, &[None, None, None]);
    let path = cluster.path(FileId(2));
    let nodes = cluster.start_all();
    let older = std::fs::read(&path).unwrap();
    // The config change has led to newer reports in the file.
    nodes[0].membership.config_change(ConfigChange::AddNode(NodeId(5))).unwrap();
    nodes[0].membership.remember(7).unwrap();
    replace(&path, &older);
    for node in &nodes {
        let observed = node.watcher.wait("the file to be in again", |observed| {
            let file = observed.view().and_then(|view| view.file(FileId(2)).copied());
            file.is_some_and(|file| file.since.0 > 0)
        });
        let without = observed.decided.iter().any(|view| view.file(FileId(2)).is_none());
        assert!(without, "a view without it comes first: {observed:#?}");
    }
    for node in &nodes {
        node.wait_status("all files to answer", |status| {
            status.quorum.answering == 3 && !status.files[1].set_aside
        });
    }
    assert_agreed(nodes.iter().map(|node| &node.watcher));
}

#[test]
fn a_file_of_another_cluster_does_not_count() {
    let cluster = Cluster::new(1, &[None, None, None]);
    let other = Cluster::new(1, &[None]);
    replace(&cluster.path(FileId(3)), &std::fs::read(other.path(FileId(1))).unwrap());
    let nodes = cluster.start_all();
    let status = nodes[0].wait_status("the wrong file", |status| status.files[2].error.is_some());
    let error = status.files[2].error.as_ref().unwrap();
    assert!(error.contains("belongs to voting file 0000000000000001"), "{error}");
    assert_eq!((status.quorum.files, status.quorum.needed), (3, 2));
}

#[test]
fn files_are_added_and_removed_as_requested() {
    let cluster = Cluster::new(2, &[None]);
    let nodes = cluster.start_all();
    let config_change = |config_change: ConfigChange| nodes[0].membership.config_change(config_change);
    let refused = |why: ConfigChangeRefusal| Err(ConfigChangeError::Refused(why));
    let (shared, served) = (FileId(8), FileId(9));
    assert_eq!(config_change(ConfigChange::AddFile(shared, None)), refused(ConfigChangeRefusal::Unreachable));
    for file in [shared, served] {
        cluster.make_file(file);
    }
    for node in &nodes {
        node.membership.set_file_path(shared, cluster.path(shared));
    }
    nodes[1].membership.set_file_path(served, cluster.path(served));
    config_change(ConfigChange::AddFile(shared, None)).unwrap();
    config_change(ConfigChange::AddFile(served, Some(NodeId(1)))).unwrap();
    nodes[0].wait_status("all of them to answer", |status| status.quorum.answering == 3);
    config_change(ConfigChange::RemoveFile(FileId(1))).unwrap();
    for node in &nodes {
        let is_so = |view: &View| view.files.iter().map(|file| file.id).eq([shared, served]);
        node.watcher.wait("the files", |observed| observed.view().is_some_and(|view| is_so(view)));
        let status = node.wait_status("both to answer", |status| status.quorum.answering == 2);
        let hosts: Vec<_> = status.files.iter().filter(|file| file.votes).map(|file| file.host).collect();
        assert_eq!(hosts, [None, Some(1)]);
    }
    assert_eq!(config_change(ConfigChange::AddFile(shared, None)), refused(ConfigChangeRefusal::Done));
    config_change(ConfigChange::RemoveFile(served)).unwrap();
    assert_eq!(config_change(ConfigChange::RemoveFile(shared)), refused(ConfigChangeRefusal::LastFile));
}

/// Returns the number of threads of this process whose name has this prefix.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|found| found.starts_with(name)).count()
}

#[test]
fn a_removed_file_has_no_thread_until_it_is_added_again() {
    let cluster = Cluster::new(1, &[None]);
    let nodes = cluster.start_all();
    // The system keeps 15 letters of a thread's name, which include three digits of the file's
    // identifier. No other test uses these digits.
    let (file, thread) = (FileId(0xabc0), "plexus-vote-abc");
    cluster.make_file(file);
    nodes[0].membership.set_file_path(file, cluster.path(file));
    for _ in 0..2 {
        nodes[0].membership.config_change(ConfigChange::AddFile(file, None)).unwrap();
        nodes[0].wait_status("the file to answer", |status| status.quorum.answering == 2);
        assert_eq!(threads(thread), 1);
        nodes[0].membership.config_change(ConfigChange::RemoveFile(file)).unwrap();
        nodes[0]
            .wait_status("its thread to end", |status| status.quorum.answering == 1 && threads(thread) == 0);
    }
}

#[test]
fn a_node_is_added_and_removed_as_requested() {
    let cluster = Cluster::new(2, &[None]);
    let nodes = cluster.start_all();
    let new = NodeId(2);
    nodes[0].membership.config_change(ConfigChange::AddNode(new)).unwrap();
    nodes.iter().for_each(|node| node.membership.set_peer_addresses(new, cluster.addresses(new.0)));
    let third = cluster.start(new.0);
    for node in nodes.iter().chain([&third]) {
        node.watcher.wait_with(&[0, 1, 2]);
    }
    nodes[1].membership.config_change(ConfigChange::RemoveNode(new)).unwrap();
    nodes.iter().for_each(|node| drop(node.watcher.wait_with(&[0, 1])));
    let observed = third.watcher.wait("its end", |observed| observed.ended.is_some());
    assert!(matches!(observed.ended, Some(MembershipEnd::Died { reason: StopReason::Evicted, .. })));
    assert_eq!(
        nodes[0].membership.config_change(ConfigChange::RemoveNode(NodeId(0))),
        Err(ConfigChangeError::Refused(ConfigChangeRefusal::Itself))
    );
}

#[test]
fn a_remembered_generation_is_returned_to_every_node() {
    let cluster = Cluster::new(2, &[Some(0), Some(1), None]);
    let nodes = cluster.start_all();
    assert_eq!(nodes[0].membership.remember(4), Ok(4));
    assert_eq!(nodes[1].membership.remember(0), Ok(4));
    nodes[0].membership.registry(6);
    let observed = nodes[0].membership.remember(5);
    assert_eq!(observed, Ok(6));
}

#[test]
fn a_file_is_created_once_and_whole() {
    let cluster = Cluster::new(1, &[None]);
    let path = cluster.path(FileId(1));
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (FILE as u64, 0o600));
    let name = voting::format::FileName { cluster: voting::format::ClusterId(1), file: FileId(1) };
    let again = voting::create(&path, name, &cluster.first);
    assert!(matches!(again, Err(FileError::Io { doing: "create", .. })), "{again:?}");
    assert!(std::fs::metadata(&path).is_ok(), "the existing file stays");
    let nowhere = voting::create(&cluster.dir.path().join("no/where"), name, &cluster.first);
    assert!(nowhere.unwrap_err().to_string().contains("no/where"));
}

#[test]
fn a_profile_that_does_not_fit_is_refused() {
    let mut cluster = Cluster::new(1, &[None]);
    cluster.profile.lease = PROFILE.heartbeat;
    let watcher = std::sync::Arc::new(crate::common::Watcher::default());
    let refused = plexus_membership::runtime::Membership::start(cluster.settings(0), watcher);
    assert!(refused.unwrap_err().to_string().contains("does not outlast"));
}
