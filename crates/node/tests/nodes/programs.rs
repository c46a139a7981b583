//! Programs attached to nodes of a real cluster: their exchanges with each other, and the rest
//! after a program or its node ends.

use std::{thread, time::Duration};

use crate::cluster::Cluster;
use plexus_base::{NodeId, Waiting};
use plexus_client::{Address, Client, Error, Operation, wire::limits::MAX_MESSAGE};
use plexus_fabric::RailKind;

/// The timeout of these tests, longer than any correct step; its end is a failure.
const LONG: Option<Duration> = Some(Duration::from_secs(60));

fn both() -> [Cluster; 2] {
    [Cluster::start(2, 1, RailKind::Shm), Cluster::start(2, 2, RailKind::Tcp)]
}

fn bytes(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

#[test]
fn datagrams_arrive_whole_once_and_in_order() {
    for cluster in both() {
        let (one, two) = (cluster.client(0), cluster.client(1));
        let lengths = [0, 1, 7, 64, 1000, 16_000, 17_000, 40_000, MAX_MESSAGE];
        let port = two.bind(70).unwrap();
        assert_eq!(port.address(), Address::new(NodeId(1), 70));
        thread::scope(|scope| {
            scope.spawn(|| {
                let port = one.bind(0).unwrap();
                for number in 0..500 {
                    let message = bytes(number, lengths[number % lengths.len()]);
                    port.send(Address::new(NodeId(1), 70), &message, LONG).unwrap();
                }
                port.settle(LONG).unwrap();
            });
            for number in 0..500 {
                let got = port.receive(LONG).unwrap();
                assert_eq!(got.from.node, NodeId(0));
                assert!(got.bytes == bytes(number, lengths[number % lengths.len()]), "message {number}");
            }
            // The last one counts as taken when its receiver calls again.
            assert_eq!(port.try_receive().unwrap(), None);
        });
        // To a program of the same node, and to the sender itself.
        let third = cluster.client(1);
        let other = third.bind(3).unwrap();
        port.send(other.address(), b"neighbour", LONG).unwrap();
        assert_eq!(other.receive(LONG).unwrap().bytes, b"neighbour");
        port.send(port.address(), b"myself", LONG).unwrap();
        assert_eq!(port.receive(LONG).unwrap().from, port.address());
    }
}

#[test]
fn slow_receiver_delays_only_its_own_senders() {
    for cluster in both() {
        let (one, two) = (cluster.client(0), cluster.client(1));
        let (slow, quick) = (two.bind(2).unwrap(), two.bind(4).unwrap());
        let port = one.bind(0).unwrap();
        let mut sent = 0;
        while port.send(slow.address(), &bytes(sent, 9000), Some(Duration::ZERO)).is_ok() {
            sent += 1;
        }
        assert_eq!(sent, 256 * 1024 / 9000, "as much as may be under way, and no more");
        let refused = port.send(slow.address(), &bytes(sent, 9000), Some(Duration::from_millis(1)));
        assert!(matches!(refused, Err(Error::TimedOut)), "{refused:?}");
        for number in 0..300 {
            port.send(quick.address(), &bytes(number, 500), LONG).unwrap();
            assert_eq!(quick.receive(LONG).unwrap().bytes, bytes(number, 500));
        }
        for number in 0..sent {
            assert_eq!(slow.receive(LONG).unwrap().bytes, bytes(number, 9000));
        }
        assert_eq!(slow.try_receive().unwrap(), None);
        port.send(slow.address(), b"again", LONG).unwrap();
        assert_eq!(slow.receive(LONG).unwrap().bytes, b"again");
    }
}

#[test]
fn a_slow_receiver_with_many_senders_is_not_cut_off() {
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let (one, two) = (cluster.client(0), cluster.client(1));
    let slow = two.bind(1).unwrap();
    // 37 MiB, the most that may be under way from so many; the receiver does not call the library.
    let message = bytes(1, MAX_MESSAGE);
    let senders: Vec<_> = (0..150).map(|_| one.bind(0).unwrap()).collect();
    for _ in 0..4 {
        for sender in &senders {
            sender.send(slow.address(), &message, LONG).unwrap();
        }
    }
    for _ in 0..4 * senders.len() {
        assert!(slow.receive(LONG).unwrap().bytes == message);
    }
}

#[test]
fn sender_learns_of_untaken_messages_and_a_new_flow_starts_clean() {
    for cluster in both() {
        let (one, two) = (cluster.client(0), cluster.client(1));
        let port = one.bind(0).unwrap();
        let to = Address::new(NodeId(1), 9);
        port.send(to, b"nobody is there", LONG).unwrap();
        let lost = port.settle(LONG).unwrap_err();
        assert!(matches!(lost, Error::Undelivered { lost: 1, .. }), "{lost}");

        let first = two.bind(9).unwrap();
        for _ in 0..3 {
            port.send(to, b"old", LONG).unwrap();
        }
        assert_eq!(first.receive(LONG).unwrap().bytes, b"old");
        drop(first);
        let lost = port.settle(LONG).unwrap_err();
        assert!(matches!(lost, Error::Undelivered { lost: 2, .. }), "{lost}");
        let second = two.bind(9).unwrap();
        port.send(to, b"new", LONG).unwrap();
        assert_eq!(second.receive(LONG).unwrap().bytes, b"new");
        assert!(matches!(two.bind(9), Err(Error::Taken(_))));

        // A node without a link counts as lost; a number outside the cluster is no node.
        port.settle(LONG).unwrap();
        port.send(Address::new(NodeId(7), 9), b"?", LONG).unwrap();
        let lost = port.settle(LONG).unwrap_err();
        assert!(matches!(&lost, Error::Undelivered { lost: 1, .. }), "{lost}");
        let nowhere = port.send(Address::new(NodeId(16), 9), b"?", LONG);
        assert!(matches!(nowhere, Err(Error::NodeGone(NodeId(16)))), "{nowhere:?}");
    }
}

#[test]
fn calls_are_answered_or_say_why_not() {
    for cluster in both() {
        let (one, two) = (cluster.client(0), cluster.client(1));
        let server = two.serve(5).unwrap();
        let to = server.address();
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    let request = server.next(LONG).unwrap();
                    let mut answer = request.bytes().to_vec();
                    answer.reverse();
                    request.reply(&answer).unwrap();
                }
            });
            // Several threads of one program call at a time.
            for caller in 0..4 {
                let one = one.clone();
                scope.spawn(move || {
                    for number in 0..50 {
                        let request = bytes(caller * 100 + number, number * 1200);
                        let mut expected = request.clone();
                        expected.reverse();
                        assert_eq!(one.call(to, &request, LONG).unwrap(), expected);
                    }
                });
            }
        });
        // Cancelled by the server, then by the caller.
        thread::scope(|scope| {
            let call = scope.spawn(|| one.call(to, b"x", LONG));
            drop(server.next(LONG).unwrap());
            assert!(matches!(call.join().unwrap(), Err(Error::PortClosed(_))));
        });
        assert!(matches!(one.call(to, b"x", Some(Duration::from_millis(1))), Err(Error::TimedOut)));
        // The server knows of the cancellation once later calls of both over the same worker are
        // refused.
        let unbound = Address::new(to.node, to.port + 2);
        for client in [&one, &two] {
            assert!(matches!(client.call(unbound, b"x", LONG), Err(Error::PortClosed(_))));
        }
        let next = server.next(Some(Duration::ZERO)).map(drop);
        assert!(matches!(next, Err(Error::TimedOut)), "{next:?}");
        // The server may answer a call that was taken before its cancellation; that has no effect.
        thread::scope(|scope| {
            let server = &server;
            let answering = scope.spawn(move || server.next(LONG).unwrap().reply(b"late").unwrap());
            while !answering.is_finished() {
                let _ = one.call(to, b"x", Some(Duration::from_micros(100)));
            }
        });
        thread::scope(|scope| {
            let call = scope.spawn(|| one.call(to, b"x", LONG));
            let request = server.next(LONG).unwrap();
            drop(server);
            assert!(matches!(call.join().unwrap(), Err(Error::PortClosed(_))));
            drop(request);
        });
        assert!(matches!(one.call(to, b"x", LONG), Err(Error::PortClosed(_))));
        assert!(matches!(one.call(Address::new(NodeId(9), 1), b"x", LONG), Err(Error::NodeGone(NodeId(9)))));
    }
}

#[test]
fn windows_are_changed_at_home_and_read_in_place_everywhere() {
    for cluster in both() {
        let clients: Vec<Client> = (0..2).map(|node| cluster.client(node)).collect();
        let made = clients[0].create_window("board", 80_000).unwrap();
        made.put(16, &bytes(1, 70_000)).unwrap();
        let far = clients[1].find_window("board").unwrap();
        assert_eq!((far.len(), far.home()), (80_000, NodeId(0)));
        let mut got = vec![0; 70_000];
        far.get(16, &mut got).unwrap();
        assert_eq!(got, bytes(1, 70_000));

        // A copy has the earlier content and every later change.
        assert!(matches!(far.read(16, &mut got), Err(Error::Argument(_))));
        far.map().unwrap();
        got.fill(0);
        far.read(16, &mut got).unwrap();
        assert_eq!(got, bytes(1, 70_000));
        far.put(79_000, b"from afar").unwrap();
        made.put(20, b"from home").unwrap();
        for window in [&made, &far] {
            let (mut one, mut two) = ([0; 9], [0; 9]);
            window.read(79_000, &mut one).unwrap();
            window.read(20, &mut two).unwrap();
            assert_eq!((&one, &two), (b"from afar", b"from home"));
        }

        // Atomic operations of both nodes at once count exactly, and no reader sees a number
        // decrease.
        thread::scope(|scope| {
            for window in [&made, &far] {
                scope.spawn(move || {
                    let mut last = 0;
                    for _ in 0..300 {
                        window.fetch_add(8, 1).unwrap();
                        let seen = window.load(8).unwrap();
                        assert!(seen > last, "{seen} after {last}");
                        last = seen;
                    }
                });
            }
            let seen = far.wait_word(8, LONG, |word| word == 600).unwrap();
            assert_eq!(seen, 600);
        });
        assert_eq!(far.compare_swap(8, 600, 7).unwrap(), 600);
        assert_eq!(made.compare_swap(8, 600, 9).unwrap(), 7);
        assert_eq!((made.load(8).unwrap(), far.load(8).unwrap()), (7, 7));

        for wrong in [far.put(79_999, b"ab"), far.put(u64::MAX, b"ab"), far.fetch_add(4, 1).map(drop)] {
            assert!(matches!(wrong, Err(Error::OutOfRange)), "{wrong:?}");
        }
        assert!(matches!(clients[0].create_window("board", 8), Err(Error::Taken(_))));
        assert!(matches!(clients[0].create_window("vast", 1 << 30), Err(Error::NoRoom(_))));
        assert!(matches!(clients[1].open_window(NodeId(1), "board"), Err(Error::NoWindow)));

        // Its users see its end, and its memory can be used again.
        thread::scope(|scope| {
            let waiting = scope.spawn(|| far.wait_word(8, LONG, |word| word == 0));
            drop(made);
            assert!(matches!(waiting.join().unwrap(), Err(Error::NoWindow)));
        });
        assert!(matches!(far.put(0, b"x"), Err(Error::NoWindow)));
        assert_eq!(far.load(8).unwrap(), 7, "what it was last");
        drop(far);
        for _ in 0..40 {
            let window = clients[0].create_window("board", 4 << 20).unwrap();
            let copy = clients[1].find_window("board").unwrap();
            copy.map().unwrap();
            assert_eq!(copy.load(4096).unwrap(), 0, "new windows are empty");
            window.put(4096, &[0xff; 64]).unwrap();
            assert_eq!(copy.load(4096).unwrap(), u64::MAX);
        }
    }
}

#[test]
fn reader_of_a_window_learns_of_its_end_and_never_reads_another() {
    for cluster in both() {
        // A node tells its programs in the order in which they attached.
        let readers = [0, 1].map(|node| cluster.client(node));
        let others = [0, 1].map(|node| cluster.client(node));
        let made = others[0].create_window("short", 4096).unwrap();
        made.put(0, &[7; 4096]).unwrap();
        let map = |client: &Client| {
            let window = client.find_window("short").unwrap();
            window.map().unwrap();
            window
        };
        let (views, witnesses) = (readers.each_ref().map(map), others.each_ref().map(map));
        drop(made);
        for witness in witnesses {
            let told = witness.wait_word(0, LONG, |word| word == 0);
            assert!(matches!(told, Err(Error::NoWindow)), "{told:?}");
        }
        for (view, other) in views.iter().zip(&others) {
            // Enough windows that one of them would get the memory, on any worker, if it were free.
            let create = |number: usize| other.create_window(&number.to_string(), 4096).unwrap();
            let _next: Vec<_> = (0..8).map(create).collect();
            assert_eq!(view.load(64).unwrap(), u64::from_le_bytes([7; 8]), "what it was last");
            assert!(matches!(view.read(0, &mut [0; 64]), Err(Error::NoWindow)));
        }
    }
}

#[test]
fn posted_work_completes_with_its_cookie() {
    for cluster in both() {
        let (one, two) = (cluster.client(0), cluster.client(1));
        let queue = one.completion_queue(Waiting::Adaptive);
        let far_queue = two.completion_queue(Waiting::Event);
        let endpoint = one.endpoint(0, &queue).unwrap();
        let far = two.endpoint(12, &far_queue).unwrap();
        assert!(matches!(endpoint.post_send(1, b"x"), Err(Error::Argument(_))));
        endpoint.connect(far.address());
        // More than may be under way, before there is a receiver.
        for number in 0..200 {
            endpoint.post_send(number, &bytes(number as usize, 3000)).unwrap();
        }
        let mut sent = Vec::new();
        for number in 0..200 {
            far.post_receive(1000 + number, 4000).unwrap();
            // Two programs in one thread: each proceeds only while the thread polls it.
            let done = loop {
                sent.extend(queue.poll().unwrap());
                if let Some(done) = far_queue.poll().unwrap() {
                    break done;
                }
            };
            assert_eq!((done.cookie, done.operation), (1000 + number, Operation::Receive));
            assert!(done.result.is_ok() && done.bytes == bytes(number as usize, 3000));
            assert_eq!(done.from, Some(endpoint.address()));
        }
        assert!(far_queue.poll().unwrap().is_none());
        while sent.len() < 200 {
            sent.push(queue.wait(LONG).unwrap());
        }
        for (done, number) in sent.iter().zip(0..) {
            let expected = (number, Operation::Send, endpoint.address().port);
            assert_eq!((done.cookie, done.operation, done.endpoint), expected);
            assert!(done.result.is_ok());
        }
        far.post_receive(7, 2).unwrap();
        endpoint.post_send(8, b"longer").unwrap();
        let done = far_queue.wait(LONG).unwrap();
        assert!(matches!(done.result, Err(Error::TooLong { len: 6 })) && done.bytes == b"lo");

        let window = two.create_window("target", 4096).unwrap();
        let there = one.open_window(NodeId(1), "target").unwrap();
        endpoint.post_put(20, &there, 64, b"put there").unwrap();
        endpoint.post_fetch_add(21, &there, 0, 5).unwrap();
        endpoint.post_compare_swap(22, &there, 0, 5, 6).unwrap();
        endpoint.post_get(23, &there, 64, 9).unwrap();
        endpoint.post_get(24, &there, 4090, 9).unwrap();
        assert!(far_queue.poll().unwrap().is_none());
        let done: Vec<_> = (0..6).map(|_| queue.wait(LONG).unwrap()).collect();
        let of = |cookie| done.iter().find(|done| done.cookie == cookie).unwrap();
        assert!(of(8).result.is_ok() && of(20).result.is_ok());
        assert_eq!((of(21).value, of(22).value, window.load(0).unwrap()), (0, 5, 6));
        assert_eq!(of(23).bytes, b"put there");
        assert!(matches!(of(24).result, Err(Error::OutOfRange)));

        for cookie in 30..33 {
            endpoint.post_send(cookie, b"never taken").unwrap();
        }
        drop(far);
        for cookie in 30..33 {
            let done = queue.wait(LONG).unwrap();
            assert!(
                done.cookie == cookie && matches!(done.result, Err(Error::Undelivered { .. })),
                "{done:?}"
            );
        }
    }
}

#[test]
fn unread_completions_end_in_busy() {
    let cluster = Cluster::start(1, 1, RailKind::Shm);
    let client = cluster.client(0);
    let queue = client.completion_queue(Waiting::Polling);
    let endpoints: Vec<_> = (0..3).map(|_| client.endpoint(0, &queue).unwrap()).collect();
    let window = client.create_window("w", 64).unwrap();
    let mut put = 0;
    // Each put completes, and the program takes none of the completions.
    while endpoints[0].post_put(1, &window, 0, b"x").is_ok() {
        put += 1;
        window.fetch_add(8, 1).unwrap();
        assert!(put < 100_000, "it goes on for ever");
    }
    assert!(matches!(endpoints[1].post_receive(1, 8), Err(Error::Busy(_))));
    assert!(matches!(endpoints[1].post_send_to(1, endpoints[2].address(), b"x"), Err(Error::Busy(_))));
    for _ in 0..put {
        assert!(queue.poll().unwrap().expect("a completion for each").result.is_ok());
    }
    assert!(queue.poll().unwrap().is_none());
    // Operations on an endpoint that is gone are not waited for.
    for _ in 0..5 {
        let endpoint = client.endpoint(0, &queue).unwrap();
        for cookie in 0..4096 {
            endpoint.post_receive(cookie, 8).unwrap();
        }
        assert!(matches!(endpoint.post_receive(1, 8), Err(Error::Busy(_))));
    }
}

#[test]
fn wait_for_the_descriptor_ends_beside_a_thread_that_waits_in_a_call() {
    let cluster = Cluster::start(1, 1, RailKind::Shm);
    let (one, two) = (cluster.client(0), cluster.client(0));
    one.set_waiting(Waiting::Event);
    let (watched, waited) = (one.bind(1).unwrap(), one.bind(2).unwrap());
    let sender = two.bind(0).unwrap();
    const ROUNDS: u32 = 2000;
    thread::scope(|scope| {
        // The thread sleeps, wakes also for messages to the other one, and sleeps again.
        scope.spawn(|| {
            for round in 0..ROUNDS {
                assert_eq!(waited.receive(LONG).unwrap().bytes, round.to_le_bytes());
            }
        });
        for round in 0..ROUNDS {
            sender.send(watched.address(), &round.to_le_bytes(), LONG).unwrap();
            let got = loop {
                match watched.try_receive().unwrap() {
                    Some(got) => break got,
                    None if one.arm() => {
                        let fd = rustix::event::PollFlags::IN;
                        let mut events = [rustix::event::PollFd::from_borrowed_fd(one.fd(), fd)];
                        let limit = rustix::time::Timespec { tv_sec: 60, tv_nsec: 0 };
                        let ready = rustix::event::poll(&mut events, Some(&limit)).unwrap();
                        assert_eq!(ready, 1, "the descriptor did not become readable for message {round}");
                    }
                    None => {}
                }
            };
            assert_eq!(got.bytes, round.to_le_bytes());
            sender.send(waited.address(), &round.to_le_bytes(), LONG).unwrap();
        }
    });
}

#[test]
fn a_program_can_wait_for_a_descriptor() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let (one, two) = (cluster.client(0), cluster.client(1));
    let port = one.bind(1).unwrap();
    let ready = |timeout: i64| {
        let mut events = [rustix::event::PollFd::from_borrowed_fd(one.fd(), rustix::event::PollFlags::IN)];
        let limit = rustix::time::Timespec { tv_sec: timeout, tv_nsec: 0 };
        rustix::event::poll(&mut events, Some(&limit)).unwrap() == 1
    };
    while !one.arm() {
        assert_eq!(port.try_receive().unwrap(), None);
    }
    let sender = two.bind(0).unwrap();
    sender.send(port.address(), b"wake", LONG).unwrap();
    assert!(ready(30), "the descriptor becomes readable");
    assert_eq!(port.receive(LONG).unwrap().bytes, b"wake");
    // A new wait releases what the last one returned.
    let _ = one.arm();
    sender.settle(LONG).unwrap();
    sender.send(port.address(), b"two", LONG).unwrap();
    sender.send(port.address(), b"three", LONG).unwrap();
    assert_eq!(port.receive(LONG).unwrap().bytes, b"two");
    assert_eq!(port.receive(LONG).unwrap().bytes, b"three");
    drop(cluster);
    // The end of the node ends the wait too.
    while one.arm() {
        assert!(ready(30));
    }
    assert!(matches!(port.receive(LONG), Err(Error::NodeLost(_))));
}

#[test]
fn all_that_a_program_had_is_free_when_it_has_left() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    for _ in 0..150 {
        // Twice as many in all as a node serves at a time.
        let (one, two) = (cluster.client(0), cluster.client(1));
        let _port = one.bind(11).unwrap();
        let _server = one.serve(12).unwrap();
        let queue = one.completion_queue(Waiting::Polling);
        let _endpoint = one.endpoint(13, &queue).unwrap();
        let _window = one.create_window("all of it", 7 << 20).unwrap();
        let far = two.find_window("all of it").unwrap();
        far.map().unwrap();
    }
    let held: Vec<Client> = (0..64).map(|_| cluster.client(0)).collect();
    let refused = Client::attach(cluster.socket(0)).err().expect("a node takes 64 programs");
    assert!(refused.to_string().contains("maximum of attached programs"), "{refused}");
    drop(held);
    cluster.client(0).bind(1).unwrap();
    let nowhere = Client::attach(cluster.directory().join("nothing")).err().expect("no socket there");
    assert!(nowhere.to_string().contains("cannot attach"), "{nowhere}");
    assert_eq!(Client::attach(cluster.directory()).unwrap().node(), NodeId(0), "the first that lives");
}

#[test]
fn the_end_of_a_node_is_said_to_programs_of_the_others() {
    for rail in [RailKind::Shm, RailKind::Tcp] {
        let mut cluster = Cluster::start(2, 1, rail);
        let (one, two) = (cluster.client(0), cluster.client(1));
        let window = two.create_window("gone soon", 64).unwrap();
        let copy = one.find_window("gone soon").unwrap();
        copy.map().unwrap();
        let (server, target) = (two.serve(1).unwrap(), two.bind(1).unwrap());
        let port = one.bind(0).unwrap();
        port.send(target.address(), b"never taken", LONG).unwrap();
        let to = server.address();
        thread::scope(|scope| {
            let call = scope.spawn(|| one.call(to, b"?", LONG));
            let word = scope.spawn(|| copy.wait_word(0, LONG, |word| word == 1));
            let request = server.next(LONG).unwrap();
            cluster.end(1);
            assert!(matches!(call.join().unwrap(), Err(Error::NodeGone(NodeId(1)))));
            assert!(matches!(word.join().unwrap(), Err(Error::NodeGone(NodeId(1)))));
            drop(request);
        });
        let lost = port.settle(LONG).unwrap_err();
        assert!(matches!(lost, Error::Undelivered { lost: 1, .. }), "{lost}");
        assert!(matches!(copy.put(0, b"x"), Err(Error::NodeGone(NodeId(1)))));
        assert_eq!(target.receive(LONG).unwrap().bytes, b"never taken", "what has come is there");
        assert!(matches!(target.receive(LONG), Err(Error::NodeLost(_))));
        assert!(matches!(two.bind(3), Err(Error::NodeLost(_))));
        drop(window);
    }
}

#[test]
fn a_node_says_what_programs_have_of_it() {
    let cluster = Cluster::start(2, 2, RailKind::Shm);
    let size = 16 << 20;
    let is = |node: usize, attached: u64, ports: u64, windows: u64, window_bytes: u64| {
        let start = std::time::Instant::now();
        loop {
            let now = cluster.programs(node);
            let said = (now.attached, now.ports, now.windows, now.window_bytes);
            if said == (attached, ports, windows, window_bytes) {
                return assert_eq!((now.attached_most, now.window_bytes_most), (64, size));
            }
            assert!(start.elapsed() < LONG.unwrap(), "node {node}: {now:?}");
            thread::yield_now();
        }
    };
    is(0, 0, 0, 0, 0);
    let (one, two) = (cluster.client(0), cluster.client(1));
    let ports = [one.bind(1).unwrap(), one.bind(2).unwrap()];
    let window = one.create_window("board", 100_000).unwrap();
    is(0, 1, 2, 1, 100_032);
    let theirs = two.open_window(NodeId(0), "board").unwrap();
    theirs.map().unwrap();
    is(1, 1, 0, 1, 100_032);
    drop((ports, window, theirs));
    is(0, 1, 0, 0, 0);
    drop((one, two));
    is(0, 0, 0, 0, 0);
    is(1, 0, 0, 0, 0);
}
