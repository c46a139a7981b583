//! Two nodes change blocks and are killed at any moment, again and again; so is the process that
//! recovers their blocks. After each recovery every block is a sound page with all changes that
//! were reported as durable, and the blocks change owners.
//!
//! The test starts itself as the processes that are killed.

#[allow(dead_code, reason = "other tests use the rest")]
mod common;

use std::{
    collections::BTreeMap,
    env,
    io::{BufRead, BufReader, Lines, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::atomic::AtomicBool,
};

use common::{Files, TestBlock};
use plexus_base::BlockId;
use plexus_redo::stream::protocol::Lsn;
use plexus_sim::Random;

const BLOCKS: u64 = 40;
const ROUNDS: u64 = 12;
/// The pages of a segment; a stream has four.
const PAGES: u64 = 64;
/// The last changes of a block that its contents show.
const SHOWN: u64 = 16;

fn main() {
    let arguments: Vec<String> = env::args().collect();
    let root = || Path::new(&arguments[2]).to_owned();
    let number = |at: usize| arguments[at].parse::<u64>().expect("a number");
    match arguments.get(1).map(String::as_str) {
        Some("--node") => change(&Files::open(root(), BLOCKS), number(3) as u8, number(4)),
        Some("--recover") => recover(&Files::open(root(), BLOCKS), |block, version| say(&[block, version])),
        _ => {
            kill_nodes();
            println!("test nothing_durable_is_lost_when_nodes_and_recovery_are_killed ... ok");
        }
    }
}

fn say(numbers: &[u64]) {
    let line = numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ") + "\n";
    std::io::stdout().write_all(line.as_bytes()).expect("the parent reads");
}

/// Changes the blocks of a node, and prints block and version when they are durable.
fn change(files: &Files, node: u8, round: u64) {
    let mut random = Random::new(round * 10 + u64::from(node));
    let own = (0..BLOCKS).filter(|block| (block + round) % 2 == u64::from(node));
    let mut blocks: Vec<TestBlock> = own.map(|block| files.block(block)).collect();
    let node = files.node(node, round, PAGES);
    loop {
        let count = random.between(1, 5);
        let changed: Vec<usize> = (0..count).map(|_| random.below(blocks.len() as u64) as usize).collect();
        for at in &changed {
            let version = blocks[*at].version().0 + 1;
            node.change(&mut blocks[*at], |user| show(user, version));
        }
        node.flush(&blocks[changed[changed.len() - 1]]);
        for at in changed {
            say(&[blocks[at].block.0, blocks[at].version().0]);
        }
        if random.percent(20) {
            let at = random.below(blocks.len() as u64) as usize;
            blocks[at].write(&files.group);
        }
        if node.stream.fill().free < 2 * PAGES * 4096 {
            blocks.iter_mut().for_each(|block| block.write(&files.group));
            files.group.sync().expect("synced");
            node.stream.checkpoint(Lsn(u64::MAX));
        }
    }
}

/// Writes a version where the contents of a block show it.
fn show(user: &mut [u8], version: u64) {
    user[(version % SHOWN) as usize * 200..][..8].copy_from_slice(&version.to_le_bytes());
}

/// Recovers all blocks, and closes the streams.
fn recover(files: &Files, mut each: impl FnMut(u64, u64)) {
    let mut dead = files.dead();
    let scans: Vec<_> = dead.iter_mut().map(|dead| files.redo.scan(dead).expect("a scan")).collect();
    let all = (0..BLOCKS).map(BlockId);
    files.redo.replay(all, &dead, &[], &files.group, &AtomicBool::new(false), |block, result| {
        each(block.0, result.expect("it is recovered").0);
    });
    for (dead, highest) in dead.iter().zip(scans) {
        for (block, version) in highest {
            assert!(files.block(block.0).version() >= version, "{block} at {version}");
        }
        files.redo.close(dead).expect("it closes");
    }
}

fn kill_nodes() {
    let directory = tempfile::tempdir().expect("a directory");
    let files = Files::create(directory.path().into(), BLOCKS);
    let root = directory.path().to_str().expect("a path");
    let mut random = Random::new(1);
    let mut durable: BTreeMap<u64, u64> = BTreeMap::new();
    let mut recoveries = 0;
    for round in 1..=ROUNDS {
        let nodes = ["0", "1"].map(|node| start(&["--node", root, node, &round.to_string()]));
        for (mut child, mut lines) in nodes {
            lines.by_ref().take(random.between(1, 1500) as usize).for_each(|line| note(&mut durable, line));
            child.kill().expect("it lives");
            child.wait().expect("it ends");
            // Lines are written in one piece, so none is cut.
            lines.for_each(|line| note(&mut durable, line));
        }
        if round % 2 == 0 {
            let (mut child, mut lines) = start(&["--recover", root]);
            recoveries += lines.by_ref().take(random.between(1, BLOCKS) as usize).count();
            child.kill().expect("it was started");
            child.wait().expect("it ends");
        }
        recover(&files, |_, _| {});
        assert_eq!(files.dead(), []);
        for number in 0..BLOCKS {
            let block = files.block(number);
            let version = block.version().0;
            let least = durable.get(&number).copied().unwrap_or(0);
            assert!(version >= least, "block {number}: {version}, and {least} was durable");
            let mut expected = vec![0; block.user().len()];
            (version.saturating_sub(SHOWN)..=version).for_each(|version| show(&mut expected, version));
            assert!(block.user() == expected, "block {number} at version {version} in round {round}");
        }
    }
    let changes: u64 = durable.values().sum();
    println!("{changes} changes durable, {recoveries} blocks reported by recoveries that were killed");
    assert_eq!(files.redo.list().expect("a directory").len(), 2, "streams that were closed are used again");
}

fn note(durable: &mut BTreeMap<u64, u64>, line: std::io::Result<String>) {
    let line = line.expect("a line");
    let (block, version) = line.split_once(' ').expect("two numbers");
    durable.insert(block.parse().expect("a block"), version.parse().expect("a version"));
}

/// Starts this program.
fn start(arguments: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = Command::new(env::current_exe().expect("this program"))
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    (child, lines)
}
