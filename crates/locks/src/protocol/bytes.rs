//! Tests of the encoding: every message survives a round trip, and damaged bytes have no second
//! reading.

use plexus_base::{Epoch, NodeId, WorkerId, wire::Fault};

use super::*;

fn value(validity: Validity) -> Value {
    Value { bytes: std::array::from_fn(|at| at as u8 + 1), validity }
}

fn probe(hops: u64, confirming: Option<u16>) -> Box<Probe> {
    let hop = |lock| Hop {
        node: NodeId(15),
        worker: WorkerId(7),
        lock: LockId(lock),
        seq: 2,
        blocker: Chased { lock: LockId(lock + 1), seq: 3, queued: lock % 2 == 0 },
    };
    let (node, worker, lock) = (NodeId(3), WorkerId(1), LockId(u64::MAX));
    let origin = Origin { start_time: 77, node, worker, lock, seq: 1, round: 9 };
    Box::new(Probe { origin, path: (0..hops).map(hop).collect(), confirming })
}

fn every_shape() -> Vec<Message> {
    let names = [vec![0], b"accounts".to_vec(), vec![0xff; MAX_NAME]];
    let names = names.map(|bytes| Name::new(&bytes).expect("a name"));
    let (lock, seq) = (LockId(0x0102_0304_0506_0708), 0x1112_1314);
    let mut bodies =
        vec![LockMessage::Done, LockMessage::Ask([0u16, 9, 4095].map(PartitionSlot).into_iter().collect())];
    let (mut records, mut values) = (Vec::new(), Vec::new());
    for (at, name) in names.into_iter().enumerate() {
        let yes = at % 2 == 0;
        let mode = Mode::ALL[at * 2];
        let (name, waited_ns) = (|| name.clone(), u64::MAX);
        let written = yes.then_some([7; VALUE_LEN]);
        let request = |attempt, kind| {
            let (name, again) = (name(), yes);
            LockMessage::Request(MasterRequest { lock, seq, name, mode, attempt, again, waited_ns, kind })
        };
        bodies.push(request(yes, MasterRequestKind::New { notify: !yes }));
        bodies.push(request(!yes, MasterRequestKind::Conversion { value: written }));
        let value_of = [Validity::Unwritten, Validity::Valid, Validity::Lost][at];
        bodies.push(LockMessage::Unlock(Unlock { lock, name: name(), died: !yes, value: written }));
        let why = [LockRefusal::TimedOut, LockRefusal::Cancelled, LockRefusal::Deadlock][at];
        bodies.push(LockMessage::Cancel(Cancel { lock, seq, name: name(), why }));
        bodies.push(LockMessage::Refused(Refused { lock, seq, why }));
        bodies.push(LockMessage::Probe(name(), probe(1 + at as u64, yes.then_some(at as u16))));
        let blockers = (0..at as u64).map(|lock| Chased { lock: LockId(lock), seq, queued: yes }).collect();
        bodies.push(LockMessage::Chase(blockers, probe(MAX_HOPS as u64, None)));
        let (token, value) = (Token(u64::MAX), value(value_of));
        bodies.push(LockMessage::Granted(Granted { lock, seq, mode, token, value }));
        bodies.push(LockMessage::Blocking(Blocking { lock, seq, wanted: mode }));
        records.push(Record { lock, seq, name: name(), mode, notify: yes, token, value });
        values.push(Handover { name: name(), value, writer: yes });
        bodies.push(LockMessage::Records(records.clone()));
        bodies.push(LockMessage::Values(values.clone()));
    }
    bodies.extend([LockMessage::Records(Vec::new()), LockMessage::Values(Vec::new())]);
    bodies.into_iter().map(|body| Message { epoch: Epoch(0x2122_2324), body }).collect()
}

#[test]
fn encoded_messages_are_decoded_and_no_other_bytes() {
    let encoded = every_shape().into_iter().map(|message| {
        assert_eq!(Message::decode(&message.encode()).as_ref(), Ok(&message));
        message.encode()
    });
    plexus_sim::one_reading(&encoded.collect::<Vec<_>>(), |bytes| {
        Some(Message::decode(bytes).ok()?.encode())
    });
}

#[test]
fn a_request_and_its_grant_are_short() {
    let len = |wanted: fn(&LockMessage) -> bool| {
        let found = every_shape().into_iter().find(|message| wanted(&message.body));
        found.map(|message| message.encode().len())
    };
    assert_eq!(len(|body| matches!(body, LockMessage::Request(_))), Some(32 + 1));
    assert_eq!(len(|body| matches!(body, LockMessage::Granted(_))), Some(32 + 32));
}

#[test]
fn another_version_is_named() {
    let mut bytes = every_shape()[0].encode();
    bytes[0] = 2;
    let error = Message::decode(&bytes).expect_err("another version");
    assert_eq!(error.fault, Fault::Version { found: 2, known: 1 });
}

#[test]
fn the_bytes_stay_as_they_are() {
    let bytes = every_shape().iter().map(Message::encode).collect::<Vec<_>>().concat();
    assert_eq!((bytes.len(), plexus_base::crc32c(&bytes)), (17132, 1_853_632_323));
}
