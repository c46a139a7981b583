//! Nodes in one process that read and change the same blocks at once: nothing is lost, over every
//! rail, in every waiting mode, with more blocks than memory.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use plexus_admin::{
    config::Config,
    create,
    state::{self, Phase},
    status::Stage,
};
use plexus_base::{BlockId, Epoch, NodeId, Waiting};
use plexus_cache::{
    BlockChange, CacheError,
    protocol::{Message, MessageBody},
};
use plexus_disks::BlockSize;
use plexus_fabric::RailKind;
use plexus_interconnect::{Channel, Kind};
use plexus_node::{Node, lifecycle::Ending};

pub(crate) struct Shape {
    pub(crate) nodes: usize,
    pub(crate) workers: u8,
    pub(crate) rail: RailKind,
    pub(crate) waiting: Waiting,
    pub(crate) kib: u32,
}

pub(crate) fn start(place: &std::path::Path, shape: &Shape) -> Vec<Node> {
    let config = crate::cluster::config(place, shape.nodes, shape.rail, 4_000);
    let config = Config {
        workers: shape.workers,
        waiting: shape.waiting,
        block_size: BlockSize::from_kib(shape.kib).unwrap(),
        cache_mib: 64 * shape.kib * u32::from(shape.workers) / 1024 + 1,
        checkpoint_seconds: 1,
        blocks: 4096,
        disks: vec![config.dir.disks().join("0"), config.dir.disks().join("1")],
        ..config
    };
    create::create(&config).unwrap();
    crate::cluster::start_all(&config)
}

fn counter(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// Changes `blocks` at random by `clients` on each node, `rounds` times each; returns the number of
/// changes of each block.
fn work(nodes: &[Node], clients: u64, blocks: u64, rounds: u64, spread: u64) -> Vec<u64> {
    let changed: Arc<Vec<AtomicU64>> = Arc::new((0..blocks).map(|_| AtomicU64::new(0)).collect());
    std::thread::scope(|scope| {
        for (place, node) in nodes.iter().enumerate() {
            for client in 0..clients {
                let (changed, cache) = (changed.clone(), node.runtime().cache().clone());
                scope.spawn(move || {
                    let mut session = cache.session();
                    let mut random = (place as u64 * 100 + client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let mut seen = vec![0; blocks as usize];
                    for _ in 0..rounds {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        let number = (random >> 20) % blocks;
                        let block = BlockId(number * spread);
                        let before = match random % 4 {
                            0 => counter(&session.read(block).unwrap()),
                            1 => counter(&session.read_consistent(block).unwrap()),
                            _ => {
                                let mut page = session.change(block).unwrap();
                                let count = counter(&page);
                                page.write(0, &(count + 1).to_le_bytes());
                                // The end of the user's bytes belongs to the same version as their
                                // start.
                                let end = page.len() - 8;
                                assert_eq!(counter(&page[end..]), count, "half a change");
                                page.write(end, &(count + 1).to_le_bytes());
                                page.commit();
                                changed[number as usize].fetch_add(1, Relaxed);
                                count
                            }
                        };
                        assert!(before >= seen[number as usize], "time went back on block {number}");
                        seen[number as usize] = before;
                    }
                });
            }
        }
    });
    changed.iter().map(|count| count.load(Relaxed)).collect()
}

fn found(node: &Node, blocks: u64, spread: u64) -> Vec<u64> {
    let mut session = node.runtime().cache().session();
    (0..blocks).map(|number| counter(&session.read(BlockId(number * spread)).unwrap())).collect()
}

#[test]
fn changes_of_all_nodes_add_up_over_every_rail_in_every_waiting_mode() {
    for rail in RailKind::BUILT_IN {
        for waiting in Waiting::ALL {
            let dir = tempfile::tempdir().unwrap();
            let nodes = start(dir.path(), &Shape { nodes: 3, workers: 2, rail, waiting, kib: 8 });
            let changed = work(&nodes, 2, 5, 400, 1);
            for node in &nodes {
                assert_eq!(found(node, 5, 1), changed, "{rail}, {waiting}");
            }
        }
    }
}

#[test]
fn more_blocks_than_memory_go_through_the_disks() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { nodes: 3, workers: 1, rail: RailKind::Shm, waiting: Waiting::Adaptive, kib: 4 };
    let nodes = start(dir.path(), &shape);
    let changed = work(&nodes, 3, 800, 3_000, 5);
    assert_eq!(found(&nodes[1], 800, 5), changed);
    let counts = nodes[0].runtime().counts();
    assert!(counts.disk_reads > 0 && counts.disk_writes > 0 && counts.evictions > 0, "{counts:?}");
}

#[test]
fn handed_back_blocks_are_there_in_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { nodes: 2, workers: 2, rail: RailKind::Tcp, waiting: Waiting::Adaptive, kib: 16 };
    let nodes = start(dir.path(), &shape);
    let config = nodes[0].runtime().config().clone();
    let changed = work(&nodes, 2, 40, 500, 3);
    nodes.iter().for_each(|node| node.runtime().quiesce());
    let mut session = nodes[0].runtime().cache().session();
    assert!(matches!(session.read(BlockId(0)), Err(CacheError::ShuttingDown)));
    drop(session);
    for node in &nodes {
        node.runtime().hand_back(&mut |_| ()).unwrap();
        assert_eq!(node.runtime().status().blocks_held, 0);
    }
    drop(nodes);
    // The disks have everything: read them.
    let group = plexus_disks::Group::open(&config.disks, &config.shape()).unwrap();
    let mut buffer = plexus_disks::Buffer::zeroed(16 << 10);
    for (number, count) in changed.iter().enumerate() {
        group.read(BlockId(number as u64 * 3), &mut buffer).unwrap();
        let page = plexus_disks::Page::of(&buffer[..]);
        page.verify(BlockId(number as u64 * 3)).unwrap();
        assert_eq!(counter(page.user()), *count, "block {number}");
    }
}

/// Waits until a condition holds.
fn until(what: &str, is: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "waiting until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Checks blocks after these numbers of changes, without redo: each has its last content or an
/// earlier one. A block in `kept` must have its last.
fn check(node: &Node, changed: &[u64], spread: u64, kept: impl Fn(u64) -> bool) {
    let mut session = node.runtime().cache().session();
    for (number, count) in changed.iter().enumerate() {
        let number = number as u64;
        let found = counter(&session.read(BlockId(number * spread)).unwrap());
        assert!(found == *count || found < *count && !kept(number), "block {number}: {found} of {count}");
    }
}

#[test]
fn a_node_that_dies_takes_what_it_had_and_the_others_go_on() {
    for rail in RailKind::BUILT_IN {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape { nodes: 3, workers: 2, rail, waiting: Waiting::Adaptive, kib: 4 };
        let mut nodes = start(dir.path(), &shape);
        let mut changed = work(&nodes, 2, 30, 300, 7);
        // The failing node is the last to change these blocks, and a surviving node those of the
        // next range.
        for number in 0..12 {
            let mut session = nodes[if number < 6 { 2 } else { 0 }].runtime().cache().session();
            let mut page = session.change(BlockId(number * 7)).unwrap();
            changed[number as usize] += 1;
            page.write(0, &changed[number as usize].to_le_bytes());
            page.commit();
        }
        drop(nodes.pop());
        let kept = |number| (6..12).contains(&number);
        check(&nodes[0], &changed, 7, kept);
        check(&nodes[1], &changed, 7, kept);
        // Blocks can still be changed, and the next incarnation sees all of them.
        for number in 6..12 {
            let mut session = nodes[1].runtime().cache().session();
            let mut page = session.change(BlockId(number * 7)).unwrap();
            changed[number as usize] += 1;
            page.write(0, &changed[number as usize].to_le_bytes());
            page.commit();
        }
        nodes.push(crate::cluster::start(nodes[0].runtime().config(), "n3"));
        nodes.iter().for_each(|node| check(node, &changed, 7, kept));
        nodes.iter().for_each(|node| assert_eq!(node.lifecycle().stage(), (Stage::Running, None)));
    }
}

#[test]
fn a_node_that_leaves_alone_loses_nothing() {
    for rail in RailKind::BUILT_IN {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape { nodes: 3, workers: 2, rail, waiting: Waiting::Adaptive, kib: 4 };
        let mut nodes = start(dir.path(), &shape);
        let changed = work(&nodes, 2, 30, 300, 7);
        let leaver = nodes.pop().unwrap();
        leaver.runtime().quiesce();
        leaver.runtime().hand_back(&mut |_| ()).unwrap();
        leaver.runtime().leave(Ending::Leave).unwrap();
        let left = state::record(&leaver.runtime().config().dir, "n3").unwrap().unwrap();
        assert_eq!(left.phase, Phase::Left, "over {rail}");
        drop(leaver);
        assert_eq!(found(&nodes[0], 30, 7), changed, "over {rail}");
        assert_eq!(found(&nodes[1], 30, 7), changed, "over {rail}");
    }
}

#[test]
fn of_two_whose_link_is_lost_one_goes_on_with_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { nodes: 3, workers: 2, rail: RailKind::Tcp, waiting: Waiting::Adaptive, kib: 4 };
    let nodes = start(dir.path(), &shape);
    let changed = work(&nodes, 2, 30, 300, 7);
    // As after a reset of one connection: one of two workers has lost its link; the third node has
    // all.
    let lost = nodes[0].runtime().links().into_iter().find(|link| link.peer == NodeId(1)).unwrap();
    nodes[0].runtime().workers()[0].drop_link(lost.peer, lost.incarnation);
    until("one of them ends", || nodes[1].lifecycle().stage().0 == Stage::Stopped);
    check(&nodes[0], &changed, 7, |_| false);
    check(&nodes[2], &changed, 7, |_| false);
    assert!([0, 2].iter().all(|node| nodes[*node].lifecycle().stage().0 == Stage::Running));
}

#[test]
fn sender_of_a_protocol_violation_is_evicted_and_not_its_receiver() {
    // One message is malformed, and the other answers a request that was never made.
    for is_message in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let shape = Shape { nodes: 3, workers: 2, rail: RailKind::Tcp, waiting: Waiting::Adaptive, kib: 4 };
        let nodes = start(dir.path(), &shape);
        let changed = work(&nodes, 2, 30, 300, 7);
        let epoch = Epoch(nodes[0].runtime().status().epoch);
        let noted = Message { epoch, block: BlockId(0), body: MessageBody::Noted }.encode();
        let rubbish = if is_message { noted } else { [0xff; _] };
        nodes[2].runtime().workers()[0].with(|_, net| {
            net.send(NodeId(0), Channel::CacheRequests, Kind::Request, 0, &rubbish).unwrap();
        });
        until("it is evicted", || nodes[2].lifecycle().stage().0 == Stage::Stopped);
        for node in &nodes[..2] {
            check(node, &changed, 7, |_| false);
            assert_eq!(node.lifecycle().stage().0, Stage::Running);
        }
    }
}

#[test]
fn a_node_that_is_left_alone_says_when_its_cache_is_whole_again() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { nodes: 2, workers: 1, rail: RailKind::Shm, waiting: Waiting::Adaptive, kib: 4 };
    let mut nodes = start(dir.path(), &shape);
    work(&nodes, 2, 30, 300, 7);
    drop(nodes.pop());
    until("it is alone and whole", || {
        let status = nodes[0].runtime().membership().status().unwrap();
        let last = status.transitions.last().cloned().unwrap();
        nodes[0].runtime().status().members == ["n1"] && last.phases.rebuild.is_some()
    });
}
