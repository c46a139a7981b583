//! What is lost after which end, by the rule and through the files.

use std::fs;

use super::*;
use crate::{layout::ClusterDir, state::Recorder};

const BLOCKS: u64 = 3000;

fn set(list: impl IntoIterator<Item = u64>) -> Blocks {
    list.into_iter().map(BlockId).collect()
}

fn stopped(held: &[u64], lost: &[u64]) -> Phase {
    Phase::Stopped { held: set(held.iter().copied()), gone: vec![], lost: set(lost.iter().copied()) }
}

fn lost(phases: &[(u8, Phase)]) -> Blocks {
    lost_blocks(&phases.iter().map(|(node, phase)| (NodeId(*node), phase.clone())).collect(), 3, BLOCKS)
}

/// The blocks that `node` of three masters.
fn mastered(node: u8) -> Blocks {
    (0..BLOCKS).map(BlockId).filter(|block| block.partition().master(3) == NodeId(node)).collect()
}

#[test]
fn a_clean_end_loses_nothing() {
    assert_eq!(lost(&[(0, Phase::Clean), (1, Phase::Clean), (2, Phase::Clean)]), Blocks::EMPTY);
    // Clean is written when all have handed back, so who dies after that takes nothing along.
    assert_eq!(lost(&[(0, Phase::Clean), (1, Phase::Running), (2, Phase::Running)]), Blocks::EMPTY);
}

#[test]
fn a_run_that_nobody_took_part_in_loses_nothing() {
    assert_eq!(lost(&[]), Blocks::EMPTY);
}

#[test]
fn when_all_died_everything_may_be_lost() {
    let all = lost(&[(0, Phase::Running), (1, Phase::Running), (2, Phase::Running)]);
    assert_eq!(all, set(0..BLOCKS));
}

#[test]
fn who_took_no_part_mastered_nothing() {
    assert_eq!(lost(&[(1, Phase::Running)]), mastered(1));
}

#[test]
fn the_dead_take_what_they_mastered_unless_a_survivor_held_it() {
    let of_dead: Vec<u64> = mastered(2).iter().map(|block| block.0).collect();
    let phases = [(0, stopped(&of_dead[..3], &[])), (1, stopped(&of_dead[5..6], &[])), (2, Phase::Running)];
    assert_eq!(lost(&phases), set(of_dead[3..5].iter().chain(&of_dead[6..]).copied()));
}

#[test]
fn survivors_name_what_was_with_the_dead() {
    let of_first: Vec<u64> = mastered(0).iter().map(|block| block.0).collect();
    let of_dead = mastered(2);
    let phases = [(0, stopped(&[], &of_first[..4])), (1, stopped(&of_first[1..2], &[])), (2, Phase::Running)];
    let expected = set([of_first[0], of_first[2], of_first[3]]).union(&of_dead);
    assert_eq!(lost(&phases), expected);
}

#[test]
fn who_left_alone_and_wrote_everything_loses_nothing() {
    // Its peers saw it go while it had X, but it recorded that it holds them on disk.
    let phases = [(0, stopped(&[5, 6], &[])), (1, stopped(&[1], &[5])), (2, stopped(&[], &[6]))];
    assert_eq!(lost(&phases), Blocks::EMPTY);
}

#[test]
fn who_was_seen_going_and_has_no_record_here_is_dead() {
    let seen = |gone: u8| Phase::Stopped { held: Blocks::EMPTY, gone: vec![gone], lost: Blocks::EMPTY };
    assert_eq!(lost(&[(0, seen(2)), (1, seen(2))]), mastered(2));
    // One that recorded its own end is not, and a number that no node has is nobody.
    assert_eq!(lost(&[(0, seen(2)), (1, seen(99)), (2, stopped(&[], &[]))]), Blocks::EMPTY);
}

#[test]
fn a_fingerprint_tells_what_differs() {
    let cluster = cluster();
    let print = |settled: &Settled, config: &Config| settled.fingerprint(config);
    let base = print(&Settled::default(), &cluster.config);
    assert_eq!(base, print(&Settled { run: 9, lost: Blocks::EMPTY }, &cluster.config));
    assert_ne!(base, print(&Settled { run: 0, lost: set([1]) }, &cluster.config));
    let mut other = cluster.config.clone();
    other.nodes[0].address.set_port(9);
    assert_ne!(base, print(&Settled::default(), &other));
    let mut other = cluster.config.clone();
    other.interconnect.ofi_provider = Some("tcp".into());
    assert_ne!(base, print(&Settled::default(), &other));
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
        let recorder = Recorder::new(&self.config.dir, name, entry.settled.run, entry.incarnation);
        recorder.write(Phase::Running).unwrap();
        (entry, recorder)
    }
}

#[test]
fn a_node_has_one_process() {
    let cluster = cluster();
    let _entry = cluster.start("n1");
    let line = enter(&cluster.config, "n1").unwrap_err().to_string();
    assert_eq!(line, format!("n1 is already running (pid {})", std::process::id()));
}

#[test]
fn clean_runs_follow_each_other() {
    let cluster = cluster();
    for run in 0..3 {
        let nodes: Vec<_> = ["n1", "n2", "n3"].map(|name| cluster.start(name)).into();
        for (entry, recorder) in nodes {
            assert_eq!(entry.settled, Settled { run, lost: Blocks::EMPTY });
            recorder.write(Phase::Clean).unwrap();
        }
    }
}

#[test]
fn the_first_who_starts_settles_and_the_others_join() {
    let cluster = cluster();
    let (first, one) = cluster.start("n1");
    let (second, _) = cluster.start("n2");
    one.write(stopped(&[], &[])).unwrap();
    drop(second);
    // n1 has stopped but lives: the run is not over, and n2, which died in it, comes back and leaves what its death meant as it is.
    let (again, two) = cluster.start("n2");
    assert_eq!((again.settled.run, &again.before), (0, &Some(Phase::Running)));
    two.with_earlier_life(again.before.clone()).write(Phase::Clean).unwrap();
    assert_eq!(state::record(&cluster.config.dir, "n2").unwrap().unwrap().phase, Phase::Running);
    drop((first, again));

    let (third, _) = cluster.start("n3");
    assert_eq!(third.settled, Settled { run: 1, lost: mastered(1) });
    let (first, _) = cluster.start("n1");
    assert_eq!(first.settled, third.settled);
    let (second, _) = cluster.start("n2");
    assert_eq!(second.settled, third.settled);
}

#[test]
fn nodes_that_start_together_after_a_crash_agree() {
    let cluster = cluster();
    drop(["n1", "n2", "n3"].map(|name| cluster.start(name)));
    // All hold their locks before any has a record of the new run.
    let entries = ["n1", "n2", "n3"].map(|name| enter(&cluster.config, name).unwrap());
    for entry in &entries {
        assert_eq!(entry.settled, Settled { run: 1, lost: set(0..BLOCKS) });
    }
}

#[test]
fn lost_blocks_stay_lost_until_they_are_accepted() {
    let cluster = cluster();
    drop(cluster.start("n2"));
    assert_eq!(settle(&cluster.config).unwrap().lost, mastered(1));
    let (entry, recorder) = cluster.start("n1");
    recorder.write(Phase::Clean).unwrap();
    drop(entry);
    assert_eq!(settle(&cluster.config).unwrap(), Settled { run: 2, lost: mastered(1) });
    assert_eq!(accept_lost(&cluster.config).unwrap(), mastered(1));
    assert_eq!(settled(&cluster.config).unwrap(), Settled { run: 2, lost: Blocks::EMPTY });
}

#[test]
fn a_damaged_record_is_not_guessed_at() {
    let cluster = cluster();
    drop(cluster.start("n2"));
    fs::write(cluster.config.dir.record("n2"), "{\"run\": 0").unwrap();
    let line = settle(&cluster.config).unwrap_err().to_string();
    assert!(line.contains("n2.json: not readable") && !line.contains('\n'), "{line}");
}
