//! What is lost after which end, by the rule and through the files.

use std::fs;

use plexus_base::{Epoch, WorkerId};
use plexus_membership::partitions::Members;

use super::*;
use crate::{
    boot::layout::ClusterDir,
    records::state::{LastView, Phase, Recorder},
};

const BLOCKS: u64 = 3000;

fn set(list: impl IntoIterator<Item = u64>) -> Blocks {
    list.into_iter().map(BlockId).collect()
}

/// Three nodes, each in the incarnation of its number and ten.
fn view(epoch: u32, nodes: &[u8]) -> LastView {
    LastView { epoch, members: nodes.iter().map(|node| (*node, u64::from(*node) + 10)).collect() }
}

/// A node that acted in `view` last.
fn record(node: u8, phase: Phase, view: LastView) -> (NodeId, Record) {
    let incarnation = u64::from(node) + 10;
    (
        NodeId(node),
        Record { run: 0, incarnation, phase, known_as_of: view.epoch, view: Some(view), lost: Vec::new() },
    )
}

#[test]
fn what_the_last_members_had_on_record_is_what_is_known() {
    let known = |node, phase, (view, as_of): (LastView, u32), blocks: &[u64]| {
        let (node, record) = record(node, phase, view);
        let lost = blocks.iter().map(|block| (BlockId(*block).partition().0, *block, *block)).collect();
        (node, Record { lost, known_as_of: as_of, ..record })
    };
    let last = || view(6, &[0, 2]);
    let settled = |records: [(NodeId, Record); 3]| settlement(1, &records.into(), BLOCKS).unwrap();
    // Who was evicted before knows less, and perhaps what was accepted since.
    let earlier = known(1, Phase::Running, (view(5, &[0, 1, 2]), 9), &[1, 5]);
    let both = [
        known(0, Phase::Left, (last(), 5), &[5]),
        earlier.clone(),
        known(2, Phase::Running, (last(), 6), &[7]),
    ];
    assert_eq!(settled(both), Settled { run: 1, lost: set([5, 7]), known_as_of: 6, clean: vec![(0, 10, 0)] });
    // Who began another incarnation and did not act in it has nothing to say of the one before.
    let (node, mut again) = known(2, Phase::Running, (last(), 6), &[7]);
    (again.incarnation, again.view) = (99, None);
    let one = [known(0, Phase::Left, (last(), 5), &[]), earlier, (node, again)];
    assert_eq!(
        settled(one),
        Settled { run: 1, lost: Blocks::EMPTY, known_as_of: 5, clean: vec![(0, 10, 5), (2, 99, 0)] }
    );
}

#[test]
fn run_without_acting_nodes_proves_nothing() {
    assert_eq!(settlement(1, &BTreeMap::new(), BLOCKS), None);
    let (node, waiting) = record(0, Phase::Running, view(1, &[0]));
    assert_eq!(settlement(1, &[(node, Record { view: None, ..waiting })].into(), BLOCKS), None);
}

#[test]
fn a_fingerprint_tells_what_differs() {
    let cluster = cluster();
    let (one, two) = (NodeId(0), NodeId(1));
    let base = Settled::fingerprint(&cluster.config, one, two);
    assert_eq!(base, Settled::fingerprint(&cluster.config.clone(), two, one));
    let mut other = cluster.config.clone();
    other.nodes[0].address.set_port(9);
    assert_ne!(base, Settled::fingerprint(&other, one, two));
    let mut other = cluster.config.clone();
    other.interconnect.ofi_provider = Some("tcp".into());
    assert_ne!(base, Settled::fingerprint(&other, one, two));
    // A third node is none of their concern, and may be missing in the list of one of them.
    let third = NodeId(2);
    let with_third = Settled::fingerprint(&cluster.config, one, third);
    let mut other = cluster.config.clone();
    other.nodes[1].address.set_port(9);
    assert_eq!(with_third, Settled::fingerprint(&other, one, third));
    assert_ne!(base, Settled::fingerprint(&other, one, two));
    other.nodes = other.nodes.iter().filter(|node| node.number != two).cloned().collect();
    assert_eq!(with_third, Settled::fingerprint(&other, third, one));
}

struct Cluster {
    config: Config,
    _directory: tempfile::TempDir,
}

fn cluster() -> Cluster {
    let directory = tempfile::tempdir().unwrap();
    let dir = ClusterDir::new(directory.path());
    fs::create_dir(dir.run()).unwrap();
    fs::create_dir(dir.state()).unwrap();
    let node = |number: u8| {
        NodeConfig::new(number - 1, &format!("n{number}"), ([127, 0, 0, 1], u16::from(number)).into(), vec![])
    };
    let config = Config::new(dir, "c", (1..=3).map(node).collect()).unwrap();
    Cluster { config: Config { blocks: BLOCKS, ..config }, _directory: directory }
}

impl Cluster {
    fn start(&self, name: &str) -> (Entry, Recorder) {
        let entry = enter(&self.config, name).unwrap();
        let recorder = Recorder::new(&self.config.dir, name, entry.incarnation, 1, &entry.settled);
        recorder.write(Phase::Running).unwrap();
        (entry, recorder)
    }

    /// Starts nodes that act in one view.
    fn together(&self, names: &[&str]) -> Vec<(Entry, Recorder)> {
        let nodes: Vec<_> = names.iter().map(|name| self.start(name)).collect();
        let incarnation = |(name, (entry, _)): (&&str, &(Entry, Recorder))| {
            (self.config.node(name).unwrap().0, entry.incarnation)
        };
        let members = names.iter().zip(&nodes).map(incarnation).collect();
        let view = Members { epoch: Epoch(1), members };
        for (_, recorder) in &nodes {
            recorder.opened(&view).unwrap();
            recorder.complete(WorkerId(0), view.epoch);
        }
        nodes
    }
}

#[test]
fn node_has_one_process_and_growing_incarnations() {
    let cluster = cluster();
    let (first, _) = cluster.start("n1");
    let line = enter(&cluster.config, "n1").unwrap_err().to_string();
    assert_eq!(line, format!("n1 is already running (pid {})", std::process::id()));
    let incarnation = first.incarnation;
    drop(first);
    // Soon after, and even if what it left is gone.
    let (second, _) = cluster.start("n1");
    assert!(second.incarnation > incarnation);
    let incarnation = second.incarnation;
    drop(second);
    fs::remove_file(cluster.config.dir.record("n1")).unwrap();
    assert!(cluster.start("n1").0.incarnation > incarnation);
}

#[test]
fn clean_runs_follow_each_other() {
    let cluster = cluster();
    for run in 0..3 {
        for (entry, recorder) in cluster.together(&["n1", "n2", "n3"]) {
            assert_eq!((entry.settled.run, entry.settled.clean.len()), (run, if run == 0 { 0 } else { 3 }));
            recorder.write(Phase::Left).unwrap();
        }
    }
}

#[test]
fn the_first_who_starts_settles_and_the_others_join() {
    let cluster = cluster();
    let mut nodes = cluster.together(&["n1", "n2"]);
    let (second, _) = nodes.pop().unwrap();
    drop(second);
    // n1 incarnations: the run is not over, and n2, which died in it, comes back.
    let (again, _) = cluster.start("n2");
    assert_eq!(again.settled.run, 0);
    let incarnation = again.incarnation.0;
    drop((nodes, again));

    let (third, _) = cluster.start("n3");
    // Of the incarnation in which it did not act.
    assert_eq!((third.settled.run, &third.settled.clean), (1, &vec![(1, incarnation, 0)]));
    let (first, _) = cluster.start("n1");
    assert_eq!(first.settled, third.settled);
    let (second, _) = cluster.start("n2");
    assert_eq!(second.settled, third.settled);
}

#[test]
fn nodes_that_start_together_after_a_crash_agree() {
    let cluster = cluster();
    drop(cluster.together(&["n1", "n2", "n3"]));
    // All hold their locks before any has a record of the new run.
    let entries = ["n1", "n2", "n3"].map(|name| enter(&cluster.config, name).unwrap());
    for entry in &entries {
        assert_eq!((entry.settled.run, &entry.settled.clean), (1, &Vec::new()), "no node has handed back");
    }
}

#[test]
fn lost_blocks_stay_lost() {
    let cluster = cluster();
    let entry = enter(&cluster.config, "n1").unwrap();
    let lost = set([3, 9]);
    let found = Settled { lost: lost.clone(), ..entry.settled.clone() };
    let recorder = Recorder::new(&cluster.config.dir, "n1", entry.incarnation, 1, &found);
    recorder.opened(&Members { epoch: Epoch(1), members: vec![(NodeId(0), entry.incarnation)] }).unwrap();
    drop(entry);
    for run in 1..4 {
        let settled = settle(&cluster.config).unwrap();
        // The first incarnation died before it had looked at all that others knew.
        assert_eq!((settled.run, &settled.lost, settled.known_as_of), (run, &lost, u32::from(run > 1)));
        for (entry, recorder) in cluster.together(&["n1"]) {
            recorder.write(Phase::Left).unwrap();
            drop(entry);
        }
    }
}

#[test]
fn hand_back_is_known_until_a_node_acts_again() {
    let cluster = cluster();
    let nodes = cluster.together(&["n1", "n2"]);
    let incarnations: Vec<_> =
        (0..).zip(&nodes).map(|(node, (entry, _))| (node, entry.incarnation.0, 1)).collect();
    // Of itself alone: another may have come meanwhile that was not asked.
    nodes.iter().for_each(|(_, recorder)| recorder.write(Phase::Left).unwrap());
    drop(nodes);
    // One starts, and ends before it acts: the last incarnation that did is the one that counts.
    for run in 1..4 {
        let (entry, _) = cluster.start("n2");
        assert_eq!((entry.settled.run, &entry.settled.clean), (run, &incarnations));
    }
    drop(cluster.together(&["n2"]));
    assert_eq!(settle(&cluster.config).unwrap().clean, []);
}

#[test]
fn node_that_left_alone_reports_that_on_its_return() {
    let cluster = cluster();
    let first = cluster.together(&["n2"]);
    first[0].1.write(Phase::Left).unwrap();
    drop(first);
    let mut nodes = cluster.together(&["n1", "n2"]);
    let (second, recorder) = nodes.pop().unwrap();
    assert_eq!(second.settled.clean.len(), 1, "the incarnation before");
    recorder.write(Phase::Left).unwrap();
    let left = (1, second.incarnation.0, 1);
    drop(second);
    assert_eq!(cluster.start("n2").0.settled.clean, [left]);
}

#[test]
fn what_is_known_as_of_a_view_to_come_is_worth_nothing() {
    let cluster = cluster();
    for (epoch, expected) in [(9, 0), (10, 9)] {
        let (entry, _) = cluster.start("n1");
        let settled = Settled { known_as_of: 9, ..entry.settled.clone() };
        let recorder = Recorder::new(&cluster.config.dir, "n1", entry.incarnation, 1, &settled);
        let view = Members { epoch: Epoch(epoch), members: vec![(NodeId(0), entry.incarnation)] };
        recorder.opened(&view).unwrap();
        drop(entry);
        let found = settle(&cluster.config).unwrap();
        assert_eq!(found.known_as_of, expected, "in view {epoch}");
    }
}
