//! The examples of the client library, run against nodes of a real cluster.

#[path = "../../../client/examples/chat.rs"]
mod chat;
#[path = "../../../client/examples/counter.rs"]
mod counter;
#[path = "../../../client/examples/ping_pong.rs"]
mod ping_pong;

use std::thread;

use crate::cluster::Cluster;
use plexus_client::NodeId;
use plexus_fabric::RailKind;

#[test]
fn ping_pong_ends_after_its_rounds() {
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let port = cluster.client(0).bind(ping_pong::PORT).unwrap();
    thread::scope(|scope| {
        let answering = scope.spawn(|| ping_pong::answer(&port));
        assert!(ping_pong::ask(&cluster.client(1), NodeId(0), 300).unwrap() > 0.0);
        answering.join().unwrap().unwrap();
    });
}

#[test]
fn the_counter_loses_no_count() {
    let cluster = Cluster::start(2, 2, RailKind::Tcp);
    let made = counter::make(&cluster.client(0)).unwrap();
    thread::scope(|scope| {
        for node in [0, 0, 1, 1] {
            let client = cluster.client(node);
            scope.spawn(move || counter::count(&client, 100).unwrap());
        }
    });
    assert_eq!(made.load(0).unwrap(), 400);
}

#[test]
fn a_chat_reaches_who_listens_and_leaves_out_who_does_not() {
    let cluster = Cluster::start(2, 1, RailKind::Shm);
    let (one, two) = (cluster.client(0).bind(100).unwrap(), cluster.client(1).bind(100).unwrap());
    let unbound = plexus_client::Address::new(NodeId(1), 101);
    for line in ["good morning", "still there?"] {
        chat::say(&one, &[unbound, two.address()], line).unwrap();
        assert_eq!(chat::hear(&two).unwrap(), (one.address(), line.to_owned()));
    }
}
