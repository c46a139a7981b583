//! Requester and server over a network that loses, duplicates and delays datagrams.

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Epoch, Incarnation, Nanos, NodeId, NodeSet};
use plexus_sim::{Random, hostile};

use super::*;
use crate::{
    protocol::{Ballot, FileId, Profile, Report, View},
    runtime::network::{Route, datagram::Kind},
    voting::{
        format::{self, BLOCK, ClusterId, FILE, FileName},
        packed,
    },
};

const HOST: NodeId = NodeId(0);
const REQUESTER: NodeId = NodeId(3);
const INCARNATION: Incarnation = Incarnation(4);
const CLUSTER: ClusterId = ClusterId(77);
const SERVED: FileId = FileId(8);
const TIMEOUT: Nanos = Nanos(10);
const LIMIT: Nanos = Nanos(2000);

fn heartbeat(node: NodeId, counter: u64) -> (usize, Vec<u8>) {
    let view = Arc::new(View::first(NodeSet::first(4), [(SERVED, Some(HOST))]));
    let report = Report { counter, ..Report::first(node, INCARNATION, &Profile::LAN, view) };
    (format::heartbeat_at(node), format::heartbeat(FileName { cluster: CLUSTER, file: SERVED }, &report))
}

/// Returns the longest possible ballot.
fn ballot(node: NodeId, counter: u64) -> (usize, Vec<u8>) {
    let files = (1..=16).map(|id| (FileId(id), Some(NodeId(id as u8 - 1))));
    let decided = View::first(NodeSet::first(16), files);
    let proposed = Some(Arc::new(View { epoch: Epoch(1), ..decided.clone() }));
    let ballot = Ballot { counter, mbal: 16, bal: 16, proposed, decided: Arc::new(decided) };
    let name = FileName { cluster: CLUSTER, file: SERVED };
    (format::ballot_at(node, 0), format::ballot(name, node, &ballot))
}

/// Returns the turn and the answers that a piece of a request leads to.
fn handle_request(
    server: &mut TurnServer,
    incarnation: Incarnation,
    body: &[u8],
) -> (Option<TurnRequest>, Vec<Vec<u8>>) {
    let mut out = Vec::new();
    let request = server.handle_piece(
        (REQUESTER, incarnation),
        body,
        Route::default(),
        |file| file == SERVED,
        &mut out,
    );
    (request, out)
}

fn request_turn(requester: &mut TurnRequester, writes: &[(usize, Vec<u8>)], now: Nanos) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    requester.request(HOST, SERVED, writes, now, &mut out);
    assert!(out.iter().all(|(to, kind, _)| (*to, *kind) == (HOST, Kind::TurnRequest)));
    out.into_iter().map(|(_, _, body)| body).collect()
}

#[test]
fn every_turn_is_executed_once_and_in_order_despite_losses() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let (mut requester, mut server) = (TurnRequester::new(TIMEOUT, LIMIT), TurnServer::new(CLUSTER));
        let mut file = vec![0; FILE];
        // As much as a file can hold.
        (0..FILE).for_each(|at| file[at] = random.bits() as u8);
        let lost = random.below(40);
        let (mut now, mut taken, mut came, mut given_up) = (Nanos(0), Vec::new(), 0, 0);
        // Messages by time of arrival, in both directions.
        let mut wire: BTreeMap<(Nanos, u64), (Kind, Vec<u8>)> = BTreeMap::new();
        let mut sent = 0;
        for turn in 1..=12 {
            let mut out = Vec::new();
            requester.request(HOST, SERVED, &[heartbeat(REQUESTER, turn)], now, &mut out);
            let mut waits = true;
            while waits {
                for (_, kind, body) in out.drain(..) {
                    for _ in 0..=u64::from(random.percent(10)) {
                        if !random.percent(lost) {
                            sent += 1;
                            wire.insert((now + Nanos(1 + random.below(30)), sent), (kind, body.clone()));
                        }
                    }
                }
                now = now + Nanos(1);
                while let Some(entry) = wire.first_entry().filter(|entry| entry.key().0 <= now) {
                    let (kind, body) = entry.remove();
                    let answers = match kind {
                        Kind::TurnRequest => {
                            let (request, mut answers) = handle_request(&mut server, INCARNATION, &body);
                            if let Some(TurnRequest { turn, writes, .. }) = request {
                                taken.push(turn);
                                let (number, block) = &writes[0];
                                file[number * BLOCK..(number + 1) * BLOCK].copy_from_slice(block);
                                let read = Some(Arc::from(packed::packed(&file)));
                                answers =
                                    server.over((REQUESTER, INCARNATION), SERVED, turn, read).unwrap().1;
                            }
                            answers
                        }
                        Kind::Missing => server.missing((REQUESTER, INCARNATION), &body),
                        _ => {
                            if let Some((which, read)) = requester.answered(HOST, &body, now) {
                                assert_eq!((which, read.as_ref()), (SERVED, Some(&file)), "seed {seed}");
                                (came, waits) = (came + 1, false);
                            }
                            Vec::new()
                        }
                    };
                    out.extend(answers.into_iter().map(|body| (REQUESTER, Kind::Answer, body)));
                }
                if !requester.remind(now, &mut out).is_empty() {
                    (given_up, waits) = (given_up + 1, false);
                }
            }
        }
        assert!(taken.is_sorted_by(|a, b| a < b), "seed {seed}: {taken:?}");
        assert_eq!(came + given_up, 12);
        assert!(given_up < 4, "seed {seed}: {given_up} of 12 turns were given up, {lost}% lost");
    }
}

#[test]
fn an_older_turn_or_incarnation_is_never_executed_after_a_later_one() {
    let (mut requester, mut server) = (TurnRequester::new(TIMEOUT, LIMIT), TurnServer::new(CLUSTER));
    let first = request_turn(&mut requester, &[heartbeat(REQUESTER, 1)], Nanos(0)).remove(0);
    let second = request_turn(&mut requester, &[heartbeat(REQUESTER, 2)], Nanos(1)).remove(0);
    assert_eq!(handle_request(&mut server, INCARNATION, &second).0.unwrap().turn, 2);
    assert!(handle_request(&mut server, INCARNATION, &first).0.is_none(), "it is older than the last turn");
    assert!(handle_request(&mut server, INCARNATION, &second).0.is_none(), "it is under way");
    let next = Incarnation(INCARNATION.0 + 1);
    assert_eq!(handle_request(&mut server, next, &first).0.unwrap().turn, 1);
    let third = request_turn(&mut requester, &[heartbeat(REQUESTER, 3)], Nanos(2)).remove(0);
    assert!(
        handle_request(&mut server, INCARNATION, &third).0.is_none(),
        "a later incarnation has requested a turn"
    );
    assert!(server.over((REQUESTER, INCARNATION), SERVED, 2, None).is_none(), "it is not awaited any more");
    assert!(server.over((REQUESTER, next), SERVED, 1, None).is_some());
    // Pieces of two requests are never mixed.
    let both = |counter| [heartbeat(REQUESTER, counter), ballot(REQUESTER, counter)];
    let (older, newer) =
        (request_turn(&mut requester, &both(4), Nanos(3)), request_turn(&mut requester, &both(5), Nanos(4)));
    assert_eq!((older.len(), newer.len()), (2, 2));
    for piece in [&newer[0], &older[0], &older[1]] {
        assert!(handle_request(&mut server, next, piece).0.is_none());
    }
    let request = handle_request(&mut server, next, &newer[1]).0.unwrap();
    assert_eq!((request.turn, request.writes), (5, both(5).to_vec()));
}

#[test]
fn a_node_writes_only_its_own_blocks() {
    let mut server = TurnServer::new(CLUSTER);
    let (place, block) = heartbeat(REQUESTER, 1);
    let other = heartbeat(NodeId(2), 1);
    let bad = [
        other.clone(),
        (place, other.1),
        (format::ballot_at(REQUESTER, 0), block.clone()),
        (0, block.clone()),
        (place, vec![1; BLOCK]),
    ];
    for (number, write) in bad.into_iter().enumerate() {
        let mut requester = TurnRequester::new(TIMEOUT, LIMIT);
        let mut pieces = Vec::new();
        (0..=number)
            .for_each(|_| pieces = request_turn(&mut requester, std::slice::from_ref(&write), Nanos(0)));
        let mut answers = Vec::new();
        for piece in pieces {
            let (request, out) = handle_request(&mut server, INCARNATION, &piece);
            assert!(request.is_none(), "{number}");
            answers.extend(out);
        }
        assert_eq!(requester.answered(HOST, &answers[0], Nanos(1)), Some((SERVED, None)));
    }
}

#[test]
fn a_file_that_is_not_served_and_one_that_fails_are_reported_at_once() {
    let (mut requester, mut server) = (TurnRequester::new(TIMEOUT, LIMIT), TurnServer::new(CLUSTER));
    let piece = request_turn(&mut requester, &[], Nanos(0)).remove(0);
    let mut out = Vec::new();
    let request =
        server.handle_piece((REQUESTER, INCARNATION), &piece, Route::default(), |_| false, &mut out);
    assert!(request.is_none());
    assert_eq!(requester.answered(NodeId(1), &out[0], Nanos(0)), None, "this node does not serve the file");
    assert_eq!(requester.answered(HOST, &out[0], Nanos(0)), Some((SERVED, None)));
    assert_eq!(requester.wake(), None);
    let piece = request_turn(&mut requester, &[], Nanos(0)).remove(0);
    let turn = handle_request(&mut server, INCARNATION, &piece).0.unwrap().turn;
    let (_, pieces) = server.over((REQUESTER, INCARNATION), SERVED, turn, None).unwrap();
    assert_eq!(handle_request(&mut server, INCARNATION, &piece).1, pieces, "the answer was lost");
    assert_eq!(requester.answered(HOST, &pieces[0], Nanos(0)), Some((SERVED, None)));
}

#[test]
fn a_turn_without_an_answer_is_given_up() {
    let mut requester = TurnRequester::new(TIMEOUT, LIMIT);
    let first = request_turn(&mut requester, &[heartbeat(REQUESTER, 1)], Nanos(5));
    let mut out = Vec::new();
    assert_eq!(requester.wake(), Some(Nanos(5) + TIMEOUT));
    assert!(requester.remind(Nanos(5), &mut out).is_empty() && out.is_empty());
    assert!(requester.remind(Nanos(5) + TIMEOUT, &mut out).is_empty());
    assert_eq!(out.iter().map(|(_, _, body)| body).collect::<Vec<_>>(), first.iter().collect::<Vec<_>>());
    assert_eq!(requester.remind(Nanos(5) + LIMIT, &mut out), [SERVED]);
    assert_eq!(requester.wake(), None);
}

#[test]
fn hostile_pieces_do_no_harm() {
    let (mut requester, mut server) = (TurnRequester::new(TIMEOUT, LIMIT), TurnServer::new(CLUSTER));
    let request = request_turn(&mut requester, &[heartbeat(REQUESTER, 1)], Nanos(0)).remove(0);
    let turn = handle_request(&mut server, INCARNATION, &request).0.unwrap().turn;
    let read: Arc<[u8]> = Arc::from(packed::packed(&vec![7; FILE]));
    let answer =
        server.over((REQUESTER, INCARNATION), SERVED, turn, Some(Arc::clone(&read))).unwrap().1.remove(1);
    hostile(&[request, answer], |bytes| {
        let _ = piece_any(bytes);
        let _ = server.missing((REQUESTER, INCARNATION), bytes);
        let _ = handle_request(&mut server, INCARNATION, bytes);
        if let Some((file, _)) = requester.answered(HOST, bytes, Nanos(0)) {
            assert_eq!(file, SERVED);
            request_turn(&mut requester, &[], Nanos(0));
        }
    });
}
