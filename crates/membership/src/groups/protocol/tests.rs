//! Tests of the encoding, the refusals and the limits.

use plexus_base::{Epoch, Incarnation, NodeId};
use plexus_sim::hostile;

use super::*;

const NODE: NodeId = NodeId(0);
const INCARNATION: Incarnation = Incarnation(3);

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).expect("a name")
}

/// Returns a node that is alone in its cluster.
fn alone() -> Groups {
    let mut groups = Groups::new(NODE, INCARNATION);
    groups.view(&Members { epoch: Epoch(1), members: vec![(NODE, INCARNATION)] }, &mut Vec::new());
    groups
}

/// Submits a deed and returns the events of its client.
fn told(groups: &mut Groups, client: u64, group: &str, deed: Deed) -> Vec<Happened> {
    let mut out = Vec::new();
    groups.submit(client, name(group), deed, &mut out).expect("there is room");
    let own = out.into_iter().filter_map(|action| match action {
        Action::Tell { client: of, what, .. } if of == client => Some(what),
        _ => None,
    });
    own.collect()
}

fn messages() -> Vec<Message> {
    let mut groups = alone();
    told(&mut groups, 1, "a", Deed::Join);
    told(&mut groups, 2, "a", Deed::Join);
    told(&mut groups, 2, "a", Deed::Arrive { barrier: name("here"), least: 2, strict: true });
    let state = groups.replica.clone().expect("it knows something");
    let command = |deed| Command { number: 7, client: 9, group: name("a group"), deed };
    let speaks = EntryContent::Command(NODE, INCARNATION, command(Deed::Send([1, 2, 3].as_slice().into())));
    let view = EntryContent::View(Members {
        epoch: Epoch(4),
        members: vec![(NODE, INCARNATION), (NodeId(2), Incarnation(1))],
    });
    let bodies = [
        GroupMessage::Command(command(Deed::Join)),
        GroupMessage::Command(command(Deed::Leave { died: true })),
        GroupMessage::Command(command(Deed::Arrive { barrier: name("here"), least: 2, strict: true })),
        GroupMessage::Ordered(3, Entry { seq: 8, what: speaks }),
        GroupMessage::Ack(5),
        GroupMessage::Stable(6),
        GroupMessage::Kept(Entry { seq: 9, what: view }),
        GroupMessage::Flushed(Flushed { knows: true, applied: 9, digest: 77 }),
        GroupMessage::State(Snapshot(Arc::new(state))),
    ];
    bodies.into_iter().map(|body| Message { epoch: Epoch(4), body }).collect()
}

#[test]
fn encoded_messages_are_decoded() {
    for message in messages() {
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
}

#[test]
fn hostile_bytes_do_no_harm() {
    let good: Vec<Vec<u8>> = messages().iter().map(Message::encode).collect();
    assert!(good.iter().all(|bytes| group_message_any(bytes)));
    let mut taken = 0;
    hostile(&good, |bytes| taken += u32::from(group_message_any(bytes)));
    assert!(taken > 100, "{taken}");
}

#[test]
fn a_name_has_1_to_64_bytes() {
    assert_eq!(Name::new(b""), Err(NameError(0)));
    assert_eq!(Name::new(&[7; 65]), Err(NameError(65)));
    assert!(Name::new(&[7; 64]).is_ok());
}

#[test]
fn requests_beyond_a_limit_are_refused_with_the_reason() {
    let mut groups = alone();
    let long = Deed::Send(vec![0; MAX_MESSAGE + 1].into());
    assert_eq!(groups.submit(1, name("a"), long, &mut Vec::new()), Err(Refused::Long(MAX_MESSAGE + 1)));
    assert_eq!(
        told(&mut groups, 1, "a", Deed::Send([1].as_slice().into())),
        [Happened::Refused(GroupRefusal::NoMember)]
    );
    for client in 1..=MAX_AT_NODE as u64 {
        assert!(matches!(told(&mut groups, client, "a", Deed::Join)[..], [Happened::View { .. }]));
    }
    assert_eq!(told(&mut groups, 0, "b", Deed::Join), [Happened::Refused(GroupRefusal::Node)]);
    let arrive = || Deed::Arrive { barrier: name("here"), least: 1, strict: false };
    assert_eq!(told(&mut groups, 1, "a", arrive()), []);
    assert_eq!(told(&mut groups, 1, "a", arrive()), [Happened::Refused(GroupRefusal::Waits)]);
    // Without a view only a limited number of deeds wait; leaving is always accepted.
    let mut waiting = Groups::new(NODE, INCARNATION);
    for client in 0..MOST_WAITING as u64 {
        assert_eq!(waiting.submit(client, name("a"), Deed::Join, &mut Vec::new()), Ok(()));
    }
    assert_eq!(waiting.submit(0, name("a"), arrive(), &mut Vec::new()), Err(Refused::Full));
    assert_eq!(waiting.submit(0, name("a"), Deed::Leave { died: true }, &mut Vec::new()), Ok(()));
}

#[test]
fn a_strict_barrier_fails_when_a_member_dies_and_another_goes_on() {
    for strict in [false, true] {
        let mut groups = alone();
        told(&mut groups, 1, "a", Deed::Join);
        told(&mut groups, 2, "a", Deed::Join);
        let mut out = Vec::new();
        let arrive = Deed::Arrive { barrier: name("here"), least: 1, strict };
        groups.submit(1, name("a"), arrive, &mut out).expect("there is room");
        groups.submit(2, name("a"), Deed::Leave { died: true }, &mut out).expect("there is room");
        let died = GroupMember { node: NODE, incarnation: INCARNATION, client: 2 };
        let comes =
            if strict { Happened::Failed(name("here"), died) } else { Happened::Passed(name("here")) };
        let is_told =
            |action: &Action| matches!(action, Action::Tell { client: 1, what, .. } if *what == comes);
        assert!(out.iter().any(is_told), "{out:?}");
    }
}

/// Submits a deed and returns the clients that get a passed barrier.
fn passed(groups: &mut Groups, client: u64, deed: Deed) -> Vec<u64> {
    let mut out = Vec::new();
    groups.submit(client, name("a"), deed, &mut out).expect("there is room");
    let passed = out.into_iter().filter_map(|action| match action {
        Action::Tell { client, what: Happened::Passed(_), .. } => Some(client),
        _ => None,
    });
    passed.collect()
}

#[test]
fn a_member_that_returns_before_others_have_left_does_not_pass_alone() {
    let mut groups = alone();
    let arrive = || Deed::Arrive { barrier: name("here"), least: 2, strict: false };
    let leave = Deed::Leave { died: false };
    told(&mut groups, 1, "a", Deed::Join);
    told(&mut groups, 2, "a", Deed::Join);
    assert_eq!(passed(&mut groups, 1, arrive()), []);
    assert_eq!(passed(&mut groups, 2, arrive()), [1, 2]);
    told(&mut groups, 1, "a", leave.clone());
    told(&mut groups, 3, "a", Deed::Join);
    assert_eq!(passed(&mut groups, 3, arrive()), []);
    assert_eq!(passed(&mut groups, 2, leave), [], "the other has not come again");
    told(&mut groups, 4, "a", Deed::Join);
    assert_eq!(passed(&mut groups, 4, arrive()), [3, 4]);
}

#[test]
fn a_member_does_not_pass_alone_when_another_died_on_the_way() {
    let mut groups = alone();
    let arrive = || Deed::Arrive { barrier: name("here"), least: 2, strict: false };
    told(&mut groups, 1, "a", Deed::Join);
    told(&mut groups, 2, "a", Deed::Join);
    assert_eq!(passed(&mut groups, 1, arrive()), []);
    assert_eq!(passed(&mut groups, 2, Deed::Leave { died: true }), [], "it requires two");
    told(&mut groups, 4, "a", Deed::Join);
    assert_eq!(passed(&mut groups, 4, arrive()), [1, 4]);
}

#[test]
fn members_that_require_different_numbers_do_not_meet() {
    let mut groups = alone();
    let arrive = |least| Deed::Arrive { barrier: name("here"), least, strict: false };
    told(&mut groups, 1, "a", Deed::Join);
    told(&mut groups, 2, "a", Deed::Join);
    assert_eq!(passed(&mut groups, 1, arrive(2)), []);
    assert_eq!(told(&mut groups, 2, "a", arrive(3)), [Happened::Refused(GroupRefusal::Differs(2))]);
    assert_eq!(passed(&mut groups, 2, arrive(2)), [1, 2]);
    assert_eq!(passed(&mut groups, 1, arrive(1)), [], "the number of a passed barrier does not count");
}

#[test]
fn the_bytes_stay_as_they_are() {
    let bytes = messages().iter().map(Message::encode).collect::<Vec<_>>().concat();
    assert_eq!((bytes.len(), plexus_base::crc32c(&bytes)), (480, 1_988_112_852));
}
