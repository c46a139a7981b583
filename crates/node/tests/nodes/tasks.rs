//! Tasks that wait for blocks, many on each thread: groups of changes are whole, a task that ends
//! while it waits keeps nothing, and nothing is lost.

use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    task::Poll,
    thread,
    time::Duration,
};

use plexus_admin::{config::Config, create};
use plexus_base::{BlockId, Waiting};
use plexus_cache::{BlockChange, BlockRead, Blocks, Cache, Change, protocol::Mode as BlockMode};
use plexus_disks::{PageType, Version};
use plexus_fabric::RailKind;
use plexus_interconnect::executor;
use plexus_locks::{
    NodeLockSession,
    protocol::{Mode, Name},
};
use plexus_node::{Node, runtime::NodeRuntime};
use plexus_registry::protocol::Command;

use crate::{
    cluster,
    shared_blocks::{Shape, start},
};

/// The blocks of the accounts: more than there are frames.
const ACCOUNTS: u64 = 400;

/// The first accounts, which half of the tasks want.
const HOT: u64 = 8;

fn account(number: u64) -> BlockId {
    BlockId(number * 7)
}

fn balance(bytes: &[u8]) -> i64 {
    i64::from_le_bytes(bytes[..8].try_into().unwrap())
}

fn add(change: &mut Change<'_>, amount: i64) {
    let sum = balance(change) + amount;
    change.write(0, &sum.to_le_bytes());
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 20) % end
    }
}

/// Runs a future until it has waited this often, and drops it then.
async fn at_most<T>(waits: u64, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (pin!(future), waits);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending if left == 0 => Poll::Ready(None),
        Poll::Pending => {
            left -= 1;
            Poll::Pending
        }
    })
    .await
}

/// Moves amounts between accounts.
async fn transfer(cache: &Cache, seed: u64, rounds: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..rounds {
        let among = if random.below(2) == 0 { HOT } else { ACCOUNTS };
        let first = random.below(among);
        let accounts: Vec<_> =
            (0..2 + random.below(3)).map(|more| account((first + more * 13) % ACCOUNTS)).collect();
        // Some tasks give up, at any step.
        let waits = if random.below(3) == 0 { random.below(4) } else { u64::MAX };
        let Some(changes) = at_most(waits, cache.change_all(&accounts)).await else { continue };
        let mut changes = changes.unwrap();
        let amount = random.below(1000) as i64;
        let last = changes.len() as i64 - 1;
        add(&mut changes[0], -amount * last);
        changes[1..].iter_mut().for_each(|change| add(change, amount));
        if random.below(4) == 0 {
            cache.prefetch(&[account(random.below(ACCOUNTS))], BlockMode::X);
        }
        // Some give up with the blocks changed, which undoes the changes.
        if random.below(8) > 0 {
            let committed = cache.commit(changes);
            cache.durable(committed).await.unwrap();
        }
    }
}

fn total(node: &Node) -> i64 {
    let mut session = node.runtime().cache().session();
    (0..ACCOUNTS).map(|number| balance(&session.change(account(number)).unwrap())).sum()
}

#[test]
fn groups_of_changes_by_many_tasks_add_up_and_no_frame_stays_in_use() {
    for (rail, waiting) in [(RailKind::Shm, Waiting::Adaptive), (RailKind::Tcp, Waiting::Polling)] {
        let dir = tempfile::tempdir().unwrap();
        let nodes = start(dir.path(), &Shape { nodes: 3, workers: 2, rail, waiting, kib: 4 });
        std::thread::scope(|scope| {
            for (place, node) in nodes.iter().enumerate() {
                let cache = node.runtime().cache();
                scope.spawn(move || {
                    cache.run((0..24).map(|task| transfer(cache, place as u64 * 100 + task, 60)))
                });
            }
        });
        // Every block can be changed on every node.
        nodes.iter().for_each(|node| assert_eq!(total(node), 0, "{rail}"));
    }
}

/// Each reader keeps the block for a while and takes it again at once, so that it is almost never
/// without a reader.
#[test]
fn readers_do_not_keep_a_group_from_being_changed() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { nodes: 2, workers: 1, rail: RailKind::Shm, waiting: Waiting::Adaptive, kib: 4 };
    let nodes = start(dir.path(), &shape);
    let group = [BlockId(1), BlockId(2)];
    let (is_over, reads) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (mut session, is_over, reads) =
                (nodes[reader % 2].runtime().cache().session(), &is_over, &reads);
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    let read = session.read(group[1]).unwrap();
                    std::thread::sleep(Duration::from_micros(300));
                    drop(read);
                    reads.fetch_add(1, Relaxed);
                }
            });
        }
        let here = nodes[0].runtime().cache();
        let mut rounds = 0;
        here.block_on(async {
            // Both go on: each needs the other to let it in.
            while rounds < 50 || reads.load(Relaxed) < 100 {
                let mut changes = here.change_all(&group).await.unwrap();
                changes.iter_mut().for_each(|change| add(change, 1));
                here.commit(changes);
                rounds += 1;
            }
        });
        is_over.store(true, Relaxed);
        let mut session = nodes[1].runtime().cache().session();
        assert_eq!(group.map(|block| balance(&session.read(block).unwrap())), [rounds; 2]);
    });
}

#[test]
fn a_second_block_is_taken_only_if_it_is_here_and_free() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { nodes: 2, workers: 1, rail: RailKind::Shm, waiting: Waiting::Adaptive, kib: 4 };
    let nodes = start(dir.path(), &shape);
    let (here, there) = (nodes[0].runtime().cache(), nodes[1].runtime().cache());
    let (one, two) = (BlockId(1), BlockId(2));
    there.block_on(async { drop(there.change(two).await.unwrap()) });
    here.block_on(async {
        let first = here.change(one).await.unwrap();
        assert!(here.try_change(two).await.unwrap().is_none(), "it is on another node");
        assert!(here.try_change(one).await.unwrap().is_none(), "it is in use");
        drop(first);
        here.prefetch(&[two], BlockMode::X);
        let mut looks = 0;
        loop {
            if let Some(mut second) = here.try_change(two).await.unwrap() {
                add(&mut second, 5);
                second.commit();
                break;
            }
            looks += 1;
            assert!(looks < 10_000, "a block that was asked for comes");
            // The thread drives the worker while a task waits.
            drop(here.read(BlockId(100 + looks)).await.unwrap());
        }
        drop(here.change_all(&[two, one]).await.unwrap());
    });
    assert_eq!(balance(&there.session().read(two).unwrap()), 5);
}

#[test]
fn a_new_page_is_made_without_a_read_and_is_empty_if_it_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { nodes: 2, workers: 1, rail: RailKind::Shm, waiting: Waiting::Adaptive, kib: 4 };
    let nodes = start(dir.path(), &shape);
    let (here, there) = (nodes[0].runtime().cache(), nodes[1].runtime().cache());
    let (page_type, last) = (PageType(7), Version(40));
    // Here and in memory; on the other node; on disk only.
    let blocks = [1, 2, 3].map(BlockId);
    here.block_on(async { here.change(blocks[0]).await.unwrap().write(0, b"old") });
    there.block_on(async {
        let mut change = there.change(blocks[1]).await.unwrap();
        change.write(0, b"old");
        change.commit();
    });
    let reads = nodes[0].runtime().counts().disk_reads;
    here.block_on(async {
        for block in blocks {
            let mut change = here.create(block, page_type, last).await.unwrap();
            assert!(change.iter().all(|byte| *byte == 0) && change.version() > last);
            change.write(5, b"new");
            change.commit();
        }
        // A task that gives up at any step leaves an empty page.
        for (waits, block) in (0..200).map(|number| (number % 4, BlockId(100 + number))) {
            let made = at_most(waits, here.create(block, page_type, last)).await;
            made.into_iter().for_each(|change| change.unwrap().write(0, b"dropped"));
        }
    });
    let counts = nodes[0].runtime().counts();
    assert_eq!(counts.disk_reads, reads, "nothing was read");
    assert!(counts.blank_pages > 100, "{}", counts.blank_pages);
    there.block_on(async {
        for block in blocks {
            let page = there.read(block).await.unwrap();
            assert_eq!((&page[..8], page.page_type()), (&b"\0\0\0\0\0new"[..], Some(page_type)));
        }
        for block in (0..200).map(|number| BlockId(100 + number)) {
            let page = there.read(block).await.unwrap();
            assert!(page.iter().all(|byte| *byte == 0), "{block}");
            assert!([None, Some(page_type)].contains(&page.page_type()), "{block}");
        }
    });
}

/// Otherwise two tasks could wait for each other for ever.
#[test]
fn a_task_that_has_a_block_creates_others_and_panics_if_it_waits() {
    let dir = tempfile::tempdir().unwrap();
    let shape = Shape { nodes: 1, workers: 1, rail: RailKind::Shm, waiting: Waiting::Adaptive, kib: 4 };
    let nodes = start(dir.path(), &shape);
    let runtime = nodes[0].runtime();
    let cache = runtime.cache();
    let panics = |future: &dyn Fn() -> Pin<Box<dyn Future<Output = ()>>>| {
        let waits = catch_unwind(AssertUnwindSafe(|| {
            let has = async {
                let held = cache.change(BlockId(1)).await.unwrap();
                // Another task of the thread has nothing.
                drop(cache.create(BlockId(2), PageType::PLAIN, Version(0)).await.unwrap());
                future().await;
                drop(held);
            };
            let other = async { drop(cache.read(BlockId(3)).await.unwrap()) };
            cache.run([Box::pin(has) as Pin<Box<dyn Future<Output = ()>>>, Box::pin(other)]);
        }));
        waits.is_err()
    };
    assert!(!panics(&|| Box::pin(async {})));
    let other = cache.clone();
    assert!(panics(&move || {
        let cache = other.clone();
        Box::pin(async move { drop(cache.read(BlockId(3)).await) })
    }));
    let registry = runtime.registry().clone();
    assert!(panics(&move || {
        let asked = registry.ask(Command::Look);
        Box::pin(async move { drop(asked.await) })
    }));
    // The blocks were given back.
    cache.block_on(async { drop(cache.change_all(&[1, 2, 3].map(BlockId)).await.unwrap()) });
}

fn fill(change: &mut Change<'_>, byte: impl FnMut() -> u8) {
    let all = 0..change.len();
    change.bytes_mut(all).fill_with(byte);
}

/// Changes every byte of blocks, and waits until each change is durable.
async fn rewrite(cache: &Cache, seed: u64, rounds: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..rounds {
        let committed = if random.below(4) == 0 {
            let mut changes = cache.change_all(&[BlockId(random.below(32)), BlockId(40)]).await.unwrap();
            changes.iter_mut().for_each(|change| fill(change, || random.below(256) as u8));
            cache.commit(changes)
        } else {
            let mut change = cache.change(BlockId(random.below(32))).await.unwrap();
            fill(&mut change, || random.below(256) as u8);
            change.commit()
        };
        cache.durable(committed).await.unwrap();
    }
}

#[test]
fn changes_go_on_when_the_redo_stream_becomes_full_again_and_again() {
    let dir = tempfile::tempdir().unwrap();
    // A checkpoint is made only when it is due.
    let config = cluster::config(dir.path(), 2, RailKind::Shm, 30_000);
    let config = Config { redo_mib: 16, cache_mib: 1, checkpoint_seconds: 600, ..config };
    create::create(&config).unwrap();
    let nodes = cluster::start_all(&config);
    let (done, ended) = mpsc::channel();
    for (place, node) in nodes.iter().enumerate() {
        let (cache, done) = (node.runtime().cache().clone(), done.clone());
        thread::spawn(move || {
            cache.run((0..12).map(|task| rewrite(&cache, place as u64 * 100 + task, 400)));
            done.send(()).unwrap();
        });
    }
    for _ in &nodes {
        ended.recv_timeout(cluster::TIMEOUT).expect("every change is made and durable");
    }
    for node in &nodes {
        let written = node.runtime().redo_counts().batch_bytes;
        assert!(written > 16 << 20, "the stream was not used as a whole: {written} bytes");
        assert_eq!(node.runtime().status().redo_waits, None);
    }
}

/// The blocks that are changed under a lock.
const LOCKED: u64 = 8;

/// Adds 1 to a block under a lock with the name of the block, waits until that is durable and asks
/// the registry. Gives up after a random time, at whatever it waits for.
async fn add_under_lock(runtime: &NodeRuntime, session: &NodeLockSession, random: &RefCell<Random>) -> bool {
    let draw = |end| random.borrow_mut().below(end);
    // On slow and on fast machines some give up and some do not.
    let limit = match draw(3) {
        0 => Duration::from_secs(60),
        1 => Duration::from_micros(draw(100)),
        _ => Duration::from_micros(draw(10_000)),
    };
    let block = draw(LOCKED);
    let work = async {
        let name = Name::new(&block.to_le_bytes()).unwrap();
        let lock = session.ask(name, Mode::EX, None).await.unwrap();
        let committed = {
            let mut change = runtime.cache().change(account(block)).await.unwrap();
            add(&mut change, 1);
            change.commit()
        };
        // From here on the change is made, whether this task waits for it or not.
        let waits = async {
            runtime.cache().durable(committed).await.unwrap();
            runtime.registry().ask(Command::Look).await.unwrap();
            executor::sleep(Duration::from_micros(draw(100))).await;
        };
        let limit = Duration::from_micros(draw(2_000));
        executor::timeout(limit, waits).await;
        drop(lock);
    };
    executor::timeout(limit, work).await.is_some()
}

#[test]
fn waits_of_all_kinds_stop_one_task_and_a_task_that_gives_up_leaves_no_lock() {
    for (rail, waiting) in [(RailKind::Shm, Waiting::Adaptive), (RailKind::Tcp, Waiting::Polling)] {
        let dir = tempfile::tempdir().unwrap();
        let nodes = start(dir.path(), &Shape { nodes: 2, workers: 2, rail, waiting, kib: 4 });
        let counts = thread::scope(|scope| {
            let threads = nodes.iter().zip(1..).map(|(node, seed)| {
                scope.spawn(move || {
                    let runtime = node.runtime();
                    let random = &RefCell::new(Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed) | 1));
                    let works = (0..16).map(|_| async move {
                        let session = runtime.locks().session();
                        let (mut made, mut given_up) = (0, 0);
                        for _ in 0..40 {
                            match add_under_lock(runtime, &session, random).await {
                                true => made += 1,
                                false => given_up += 1,
                            }
                        }
                        (made, given_up)
                    });
                    runtime.cache().run(works)
                })
            });
            let threads: Vec<_> = threads.collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<(i64, i64)>>()
        });
        let (made, given_up) = counts.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert!(made > 100 && given_up > 100, "{rail}: {made} made, {given_up} given up");
        let mut session = nodes[0].runtime().cache().session();
        let sum: i64 = (0..LOCKED).map(|block| balance(&session.read(account(block)).unwrap())).sum();
        // A task may have given up between its commit and its end.
        assert!(sum >= made, "{rail}: {sum} of {made}");
        for node in &nodes {
            let locks = node.runtime().locks().survey(cluster::TIMEOUT).unwrap();
            assert_eq!(locks.resources.len(), 0, "{rail}: a lock is left behind");
        }
    }
}
