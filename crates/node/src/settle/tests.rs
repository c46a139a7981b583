//! What is lost after which end, by the rule and through the files.

use std::fs;

use plexus_base::Epoch;
use plexus_membership::partitions::Members;

use super::*;
use crate::{
    layout::ClusterDir,
    state::{LastView, Recorder},
};

const BLOCKS: u64 = 3000;

fn set(list: impl IntoIterator<Item = u64>) -> Blocks {
    list.into_iter().map(BlockId).collect()
}

/// Three nodes, each in the life of its number and ten.
fn view(epoch: u32, nodes: &[u8]) -> LastView {
    LastView { epoch, members: nodes.iter().map(|node| (*node, u64::from(*node) + 10)).collect() }
}

/// A node that acted in `view` last.
fn record(node: u8, phase: Phase, view: LastView) -> (NodeId, Record) {
    let incarnation = u64::from(node) + 10;
    (
        NodeId(node),
        Record { run: 0, incarnation, phase, whole: view.epoch, view: Some(view), lost: Vec::new() },
    )
}

fn lost<const NODES: usize>(records: [(NodeId, Record); NODES]) -> Blocks {
    settlement(1, &records.into(), BLOCKS).unwrap().lost
}

/// The blocks that `node` masters where these are members.
fn mastered(node: u8, members: &[u8]) -> Blocks {
    let members = view(1, members).members();
    (0..BLOCKS).map(BlockId).filter(|block| members.master(block.partition()) == NodeId(node)).collect()
}

#[test]
fn a_clean_end_loses_nothing() {
    let all = || view(7, &[0, 1, 2]);
    let clean = [0, 1, 2].map(|node| record(node, Phase::Clean, all()));
    assert_eq!(lost(clean), Blocks::EMPTY);
    // Clean is written when all have handed back, so who dies after that takes nothing along.
    let some =
        [record(0, Phase::Clean, all()), record(1, Phase::Running, all()), record(2, Phase::Running, all())];
    assert_eq!(lost(some), Blocks::EMPTY);
    // Of an earlier view it says nothing about the members of the last.
    let left = [record(0, Phase::Clean, all()), record(1, Phase::Running, view(8, &[1]))];
    assert_eq!(lost(left), set(0..BLOCKS));
}

#[test]
fn a_run_in_which_nobody_acted_loses_nothing() {
    assert_eq!(settlement(1, &BTreeMap::new(), BLOCKS), None);
    let (node, waiting) = record(0, Phase::Running, view(1, &[0]));
    assert_eq!(settlement(1, &[(node, Record { view: None, ..waiting })].into(), BLOCKS), None);
}

#[test]
fn when_all_died_everything_may_be_lost() {
    let all = [0, 1, 2].map(|node| record(node, Phase::Running, view(3, &[0, 1, 2])));
    assert_eq!(lost(all), set(0..BLOCKS));
}

#[test]
fn the_dead_of_the_last_view_take_what_they_mastered() {
    let one_died = [
        record(0, Phase::Left, view(4, &[0, 1])),
        record(1, Phase::Running, view(5, &[1, 2])),
        record(2, Phase::Left, view(5, &[1, 2])),
    ];
    assert_eq!(lost(one_died), mastered(1, &[1, 2]));
    // The others had gone on without it, and know what was lost with it.
    let handled = |node| {
        let (node, known) = record(node, Phase::Left, view(6, &[0, 2]));
        (node, Record { lost: vec![(BlockId(5).partition().0, 5, 5)], ..known })
    };
    assert_eq!(lost([handled(0), record(1, Phase::Running, view(5, &[0, 1, 2])), handled(2)]), set([5]));
}

#[test]
fn who_began_another_life_died_in_the_one_that_acted() {
    let (node, mut again) = record(1, Phase::Running, view(5, &[0, 1]));
    (again.incarnation, again.view) = (99, None);
    assert_eq!(lost([record(0, Phase::Left, view(5, &[0, 1])), (node, again)]), mastered(1, &[0, 1]));
}

#[test]
fn members_of_other_machines_settle_for_themselves() {
    assert_eq!(lost([record(0, Phase::Left, view(5, &[0, 1]))]), Blocks::EMPTY);
    assert_eq!(lost([record(0, Phase::Running, view(5, &[0, 1]))]), mastered(0, &[0, 1]));
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
    // A node behind the later of two is none of their concern.
    let third = NodeId(2);
    let with_third = Settled::fingerprint(&cluster.config, one, third);
    let mut other = cluster.config.clone();
    other.nodes[2].address.set_port(9);
    assert_eq!(base, Settled::fingerprint(&other, one, two));
    assert_ne!(with_third, Settled::fingerprint(&other, one, third));
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
    let mut text = String::from(
        "format = 1\nname = \"c\"\nid = \"000102030405060708090a0b0c0d0e0f\"\nworkers = 1\nwaiting = \"event\"\n\
         block_size_kib = 4\ncache_mib = 4\ncheckpoint_seconds = 1\n[group]\nblocks = 3000\ndisks = [\"d\"]\n",
    );
    for n in 1..=3 {
        text += &format!(
            "[[node]]\nname = \"n{n}\"\nhost = \"a\"\naddress = \"127.0.0.1:{n}\"\nrails = [\"shm\"]\n"
        );
    }
    text += "[[voting]]\nid = \"0000000000000001\"\npath = \"v\"\n";
    Cluster { config: Config::parse(&dir, &text).unwrap(), _directory: directory }
}

impl Cluster {
    fn start(&self, name: &str) -> (Entry, Recorder) {
        let entry = enter(&self.config, name).unwrap();
        let recorder = Recorder::new(&self.config.dir, name, entry.incarnation, &entry.settled);
        recorder.write(Phase::Running).unwrap();
        (entry, recorder)
    }

    /// Starts nodes that act in one view.
    fn together(&self, names: &[&str]) -> Vec<(Entry, Recorder)> {
        let nodes: Vec<_> = names.iter().map(|name| self.start(name)).collect();
        let life = |(name, (entry, _)): (&&str, &(Entry, Recorder))| {
            (self.config.node(name).unwrap().0, entry.incarnation)
        };
        let members = names.iter().zip(&nodes).map(life).collect();
        let view = Members { epoch: Epoch(1), members };
        for (_, recorder) in &nodes {
            recorder.opened(&view).unwrap();
            recorder.rebuilt(view.epoch);
        }
        nodes
    }
}

#[test]
fn a_node_has_one_process_and_lives_that_grow() {
    let cluster = cluster();
    let (first, _) = cluster.start("n1");
    let line = enter(&cluster.config, "n1").unwrap_err().to_string();
    assert_eq!(line, format!("n1 is already running (pid {})", std::process::id()));
    let life = first.incarnation;
    drop(first);
    // Soon after, and even if what it left is gone.
    let (second, _) = cluster.start("n1");
    assert!(second.incarnation > life);
    let life = second.incarnation;
    drop(second);
    fs::remove_file(cluster.config.dir.record("n1")).unwrap();
    assert!(cluster.start("n1").0.incarnation > life);
}

#[test]
fn clean_runs_follow_each_other() {
    let cluster = cluster();
    for run in 0..3 {
        for (entry, recorder) in cluster.together(&["n1", "n2", "n3"]) {
            assert_eq!((entry.settled.run, &entry.settled.lost), (run, &Blocks::EMPTY));
            recorder.write(Phase::Clean).unwrap();
        }
    }
}

#[test]
fn the_first_who_starts_settles_and_the_others_join() {
    let cluster = cluster();
    let mut nodes = cluster.together(&["n1", "n2"]);
    let (second, _) = nodes.pop().unwrap();
    drop(second);
    // n1 lives: the run is not over, and n2, which died in it, comes back.
    let (again, _) = cluster.start("n2");
    assert_eq!(again.settled.run, 0);
    drop((nodes, again));

    let (third, _) = cluster.start("n3");
    let (run, lost) = (third.settled.run, &third.settled.lost);
    assert_eq!((run, lost), (1, &set(0..BLOCKS)));
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
        assert_eq!(entry.settled, Settled { run: 1, lost: set(0..BLOCKS), view: 0, clean: Vec::new() });
    }
}

#[test]
fn lost_blocks_stay_lost_until_they_are_accepted() {
    let cluster = cluster();
    let nodes = cluster.together(&["n1", "n2"]);
    nodes[0].1.write(Phase::Left).unwrap();
    drop(nodes);
    let mut masters = Members { epoch: Epoch(1), members: Vec::new() };
    masters.members.extend([0, 1].map(|node| (NodeId(node), Incarnation(1))));
    let by_second = |block: &BlockId| masters.master(block.partition()) == NodeId(1);
    let lost: Blocks = (0..BLOCKS).map(BlockId).filter(by_second).collect();
    assert_eq!(settle(&cluster.config).unwrap().lost, lost);
    for (entry, recorder) in cluster.together(&["n1"]) {
        recorder.write(Phase::Clean).unwrap();
        drop(entry);
    }
    let after = settle(&cluster.config).unwrap();
    assert_eq!((after.run, &after.lost, after.view, after.clean.len()), (2, &lost, 1, 1));
    assert_eq!(accept_lost(&cluster.config).unwrap(), lost);
    assert_eq!(settled(&cluster.config).unwrap(), Settled { lost: Blocks::EMPTY, view: ACCEPTED, ..after });
}

#[test]
fn who_had_handed_back_is_known_until_somebody_acts_again() {
    let cluster = cluster();
    let nodes = cluster.together(&["n1", "n2"]);
    let lives: Vec<_> = (0..).zip(&nodes).map(|(node, (entry, _))| (node, entry.incarnation.0, 1)).collect();
    // Of itself alone: another may have come meanwhile that was not asked.
    nodes.iter().for_each(|(_, recorder)| recorder.write(Phase::Clean).unwrap());
    drop(nodes);
    // One starts, and ends before it acts: nothing is lost with that life either.
    let mut known = lives;
    for run in 1..4 {
        let (entry, _) = cluster.start("n2");
        assert_eq!((entry.settled.run, &entry.settled.clean), (run, &known));
        known.push((1, entry.incarnation.0, 0));
    }
    drop(cluster.together(&["n2"]));
    assert_eq!(settle(&cluster.config).unwrap().clean, []);
}

#[test]
fn what_is_accepted_is_so_for_one_start() {
    let cluster = cluster();
    drop(cluster.together(&["n1", "n2"]));
    accept_lost(&cluster.config).unwrap();
    for expected in [ACCEPTED, 0] {
        let (entry, _) = cluster.start("n1");
        assert_eq!((entry.settled.view, entry.settled.lost.len()), (expected, 0));
    }
}
