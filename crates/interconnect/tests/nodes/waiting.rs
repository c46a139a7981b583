//! Threads that wait for answers, over every kind of rail and in every waiting mode: none sleeps
//! forever.

use std::{sync::Arc, thread};

use plexus_base::Waiting;
use plexus_interconnect::Signal;

use crate::{pairs::Kind, workers::mesh};

const KINDS: [Kind; 2] = [Kind::Shm, Kind::Tcp];

fn over_everything(check: impl Fn(Kind, Waiting)) {
    for kind in KINDS {
        for waiting in Waiting::ALL {
            check(kind, waiting);
        }
    }
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
