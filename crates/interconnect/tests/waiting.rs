//! Threads that wait for answers and for words, over both sorts of rail and in every waiting mode: none sleeps for ever.

#[allow(dead_code, reason = "the suite of the rails uses the rest")]
#[path = "../../fabric/tests/conformance/pairs.rs"]
mod pairs;
#[allow(dead_code, reason = "the benchmark uses the rest")]
#[path = "common/workers.rs"]
mod workers;

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Acquire, Release, SeqCst},
        },
    },
    thread,
    time::Duration,
};

use pairs::{End, Kind, Own, WHOLE, pair_of};
use plexus_base::{NodeId, Waiting};
use plexus_fabric::{Lane, Put, SendError};
use plexus_interconnect::Signal;
use workers::{Node, mesh};

const KINDS: [Kind; 2] = [Kind::Shm, Kind::Tcp];

/// Longer than any test takes: who waits so long has missed a wake-up.
const LOST: Duration = Duration::from_secs(60);

/// A node, and the bare other end of its link.
fn node_and_peer(kind: Kind, waiting: Waiting) -> (Node, End) {
    let mut node = Node::new(0, waiting);
    let (a, peer) = pair_of(kind, node.own(), Own::new());
    node.worker.add_rail(NodeId(1), 0, 1, a.rail, String::new());
    node.start(|| {});
    (node, peer)
}

fn write(peer: &mut End, offset: u64, value: u64) {
    let data = value.to_le_bytes();
    while let Err(error) =
        peer.rail.write(Lane::Prompt, Put { window: WHOLE, offset, generation: 0, data: &data })
    {
        assert_eq!(error, SendError::Full);
        peer.rail.flush().unwrap();
    }
    peer.rail.flush().unwrap();
}

fn over_everything(check: impl Fn(Kind, Waiting)) {
    for kind in KINDS {
        for waiting in Waiting::ALL {
            check(kind, waiting);
        }
    }
}

#[test]
fn a_word_that_a_peer_writes_wakes_who_waits_for_it() {
    over_everything(|kind, waiting| {
        const ROUNDS: u64 = 1000;
        let (node, mut peer) = node_and_peer(kind, waiting);
        let window = node.windows.find(WHOLE).unwrap();
        let (seen, waits) = (AtomicU64::new(0), thread::current());
        thread::scope(|scope| {
            let (seen, node) = (&seen, &node);
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    let word = node.worker.wait_word(window, 64, |word| word >= round, Some(LOST));
                    assert_eq!(word, Some(round), "{kind:?} {waiting}: a wake-up was lost");
                    seen.store(round, Release);
                    waits.unpark();
                }
            });
            for round in 1..=ROUNDS {
                // At every point of its going to sleep.
                (0..round % 64 * 8).for_each(|_| std::hint::spin_loop());
                write(&mut peer, 64, round);
                while seen.load(Acquire) < round {
                    thread::park_timeout(LOST);
                }
            }
        });
    });
}

#[test]
fn many_threads_wait_for_words_of_one_worker() {
    const THREADS: u64 = 4;
    over_everything(|kind, waiting| {
        const ROUNDS: u64 = 200;
        let (node, mut peer) = node_and_peer(kind, waiting);
        let window = node.windows.find(WHOLE).unwrap();
        let done = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (node, done) = (&node, &done);
                scope.spawn(move || {
                    for round in 1..=ROUNDS {
                        let word =
                            node.worker.wait_word(window, thread * 8, |word| word >= round, Some(LOST));
                        assert!(word >= Some(round), "{kind:?} {waiting}: a wake-up was lost");
                        // The next thread's word is changed here and not by the peer every fourth time.
                        if thread + 1 < THREADS && round % 4 == 0 {
                            window.word((thread + 1) * 8).unwrap().fetch_max(round, SeqCst);
                            node.worker.words_changed();
                        }
                    }
                    done.fetch_add(1, SeqCst);
                });
            }
            for round in 1..=ROUNDS {
                for thread in 0..THREADS {
                    if thread == 0 || round % 4 != 0 {
                        write(&mut peer, thread * 8, round);
                    } else {
                        let mine =
                            node.worker.wait_word(window, thread * 8, |word| word >= round, Some(LOST));
                        assert!(mine >= Some(round));
                    }
                }
            }
        });
        assert_eq!(done.load(SeqCst), THREADS);
    });
}

#[test]
fn a_word_that_nobody_changes_is_given_up_at_the_limit() {
    over_everything(|kind, waiting| {
        let (node, _peer) = node_and_peer(kind, waiting);
        let window = node.windows.find(WHOLE).unwrap();
        let limit = Some(Duration::from_millis(2));
        assert_eq!(node.worker.wait_word(window, 0, |word| word != 0, limit), None);
        assert_eq!(node.worker.wait_word(window, 0, |word| word == 0, limit), Some(0), "there already");
    });
}

#[test]
fn calls_of_many_threads_of_many_nodes_are_all_answered() {
    const NODES: usize = 3;
    over_everything(|kind, waiting| {
        let mut nodes = mesh(NODES, kind, waiting);
        nodes.iter_mut().for_each(|node| node.start(|| {}));
        thread::scope(|scope| {
            for (me, node) in nodes.iter().enumerate() {
                for session in 0..3 {
                    scope.spawn(move || {
                        let signal = Arc::new(Signal::new());
                        for number in 0..150u64 {
                            let to = (me + 1 + (number as usize + session) % (NODES - 1)) % NODES;
                            node.call(to, 8 + number as usize % 3 * 700, number, &signal);
                        }
                    });
                }
            }
        });
    });
}
