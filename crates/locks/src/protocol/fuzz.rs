//! One shard against faulty members: it answers any message with faults at most and never panics.
//!
//! The messages are well-formed and mostly nearly right: messages that another shard really sent,
//! with something changed, mostly from correct incarnations and views. The local driver keeps its
//! contract.

use plexus_base::{Epoch, Incarnation, WorkerId};
use plexus_sim::Random;

use super::*;

const ME: NodeId = NodeId(0);
const SEEDS: u64 = 3_000;
const STEPS: u64 = 120;

/// Returns a view of three nodes; others join, leave, and come back in another incarnation.
fn view(epoch: u32, random: &mut Random) -> Members {
    let mut members = vec![(ME, Incarnation(1))];
    for node in 1..3 {
        if random.percent(80) {
            members.push((NodeId(node), Incarnation(1 + u64::from(random.percent(10)))));
        }
    }
    Members { epoch: Epoch(epoch), members }
}

fn name(random: &mut Random) -> Name {
    Name::new(&[b'a' + random.below(4) as u8]).expect("a name")
}

fn lock(random: &mut Random) -> LockId {
    LockId(random.below(12))
}

fn mode(random: &mut Random) -> Mode {
    *random.pick(&Mode::ALL)
}

fn value(random: &mut Random) -> Value {
    let validity = *random.pick(&[Validity::Unwritten, Validity::Valid, Validity::Lost]);
    Value { bytes: [random.bits() as u8; VALUE_LEN], validity }
}

fn probe(random: &mut Random) -> Box<Probe> {
    let hop = |random: &mut Random| Hop {
        node: NodeId(random.below(4) as u8),
        worker: WorkerId(random.below(3) as u8),
        lock: lock(random),
        seq: random.below(3) as u32,
        blocker: Chased { lock: lock(random), seq: random.below(3) as u32, queued: random.percent(50) },
    };
    let first = hop(random);
    let Hop { node, worker, lock, seq, .. } = first;
    let origin =
        Origin { start_time: random.below(9), node, worker, lock, seq, round: random.below(3) as u32 };
    let path: Vec<Hop> = std::iter::once(first).chain((0..random.below(3)).map(|_| hop(random))).collect();
    let confirming = random.percent(50).then(|| random.below(path.len() as u64) as u16);
    Box::new(Probe { origin, path, confirming })
}

fn body(random: &mut Random) -> LockMessage {
    let (lock, seq, name, mode) = (lock(random), random.below(4) as u32, name(random), mode(random));
    let (yes, no, waited_ns) = (random.percent(50), random.percent(50), random.bits());
    let written = yes.then_some([3; VALUE_LEN]);
    let token = Token(random.below(3) << 40 | random.below(9));
    match random.below(14) {
        kind @ (0 | 1 | 13) => {
            let (attempt, kind) = match kind {
                1 => (no, MasterRequestKind::Conversion { value: written }),
                _ => (yes, MasterRequestKind::New { notify: no }),
            };
            LockMessage::Request(MasterRequest {
                lock,
                seq,
                name,
                mode,
                attempt,
                again: yes,
                waited_ns,
                kind,
            })
        }
        2 => LockMessage::Unlock(Unlock { lock, name, died: no, value: written }),
        3 => LockMessage::Cancel(Cancel { lock, seq, name, why: LockRefusal::Cancelled }),
        4 => LockMessage::Probe(name, probe(random)),
        5 => LockMessage::Records(vec![Record {
            lock,
            seq,
            name,
            mode,
            notify: no,
            token,
            value: value(random),
        }]),
        6 => LockMessage::Values(vec![Handover { name, value: value(random), writer: yes }]),
        7 => LockMessage::Done,
        8 => LockMessage::Granted(Granted { lock, seq, mode, token, value: value(random) }),
        9 => LockMessage::Refused(Refused {
            lock,
            seq,
            why: *random.pick(&[LockRefusal::NotGranted, LockRefusal::Deadlock]),
        }),
        10 => LockMessage::Blocking(Blocking { lock, seq, wanted: mode }),
        11 => LockMessage::Chase(vec![Chased { lock, seq, queued: yes }; 2], probe(random)),
        _ => LockMessage::Ask((0..random.below(4)).map(|at| PartitionSlot(at as u16)).collect()),
    }
}

fn local(random: &mut Random, step: u64, now: u64) -> Event {
    let timeout = *random.pick(&[WaitLimit::Try, WaitLimit::Forever, WaitLimit::Until(Nanos(now + 50))]);
    let (lock, mode, owner) = (lock(random), mode(random), Owner(random.below(3)));
    let value = random.percent(50).then_some([9; VALUE_LEN]);
    match random.below(7) {
        0 | 1 => {
            let (name, start_time) = (name(random), random.below(9));
            // Numbers are unique; members guess small ones and are sometimes right.
            let kind = RequestKind::New(NewLock { owner, start_time, name, notify: true });
            Event::Request(LockRequest { lock: LockId(step), mode, timeout, kind })
        }
        2 => Event::Request(LockRequest { lock, mode, timeout, kind: RequestKind::Conversion { value } }),
        3 => Event::Unlock { lock, value },
        4 => Event::Cancel { lock },
        5 => Event::ClientGone { locks: vec![lock, self::lock(random)] },
        _ => Event::Tick,
    }
}

fn run(seed: u64, counts: &mut Counts) {
    let mut random = Random::new(seed);
    let config = Config {
        me: ME,
        incarnation: Incarnation(1),
        worker: WorkerId(0),
        workers: 1 + random.below(2) as u8,
        deadlock_ns: 20,
        waiting_max: 3,
        locks_max: 9,
    };
    let (mut epoch, mut out) = (1, Vec::new());
    let mut shard = Shard::new(config, view(epoch, &mut random), &mut out);
    let mut said: Vec<(NodeId, Message)> = Vec::new();
    for step in 0..STEPS {
        let now = step * 10;
        let event = match random.below(100) {
            0..30 => local(&mut random, step, now),
            30..33 => {
                epoch += 1 + random.below(2) as u32;
                Event::View(view(epoch, &mut random))
            }
            // Its own messages come back from a member, so they mostly fit.
            33..50 if !said.is_empty() => {
                let (from, message) = random.pick(&said).clone();
                Event::Message { from, incarnation: Incarnation(1), message }
            }
            50..60 if epoch > 0 => {
                let from = NodeId(1 + random.below(2) as u8);
                let message = Message { epoch: Epoch(epoch), body: LockMessage::Done };
                Event::Message { from, incarnation: Incarnation(1), message }
            }
            _ => {
                let epoch =
                    Epoch((epoch + random.below(3) as u32).saturating_sub(1 - random.below(2) as u32));
                let message = Message { epoch, body: body(&mut random) };
                let message = Message::decode(&message.encode()).expect("a message");
                let incarnation = Incarnation(1 + u64::from(random.percent(5)));
                Event::Message { from: NodeId(random.below(4) as u8), incarnation, message }
            }
        };
        let before = shard.counts().faults;
        shard.handle(Nanos(now), event, &mut out);
        let mut faults = 0;
        for action in out.drain(..) {
            match action {
                Action::Send { to, message } => {
                    assert!(to != ME && to.0 < 3, "sent to {to}");
                    said.push((to, message));
                }
                Action::Tell { worker, errand } => {
                    assert!(
                        worker != config.worker && worker.0 < config.workers,
                        "told {worker:?} {errand:?}"
                    );
                }
                Action::Fault { from, .. } => {
                    assert!(from.0 < 4);
                    faults += 1;
                }
                _ => {}
            }
        }
        assert_eq!(shard.counts().faults - before, faults);
    }
    counts.add(shard.counts());
}

#[test]
fn arbitrary_messages_cause_faults_and_no_panic() {
    let mut counts = Counts::default();
    for seed in 0..SEEDS {
        run(seed, &mut counts);
    }
    // Every counter is used: nearly every path was taken.
    let zero: Vec<_> =
        counts.named().into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect();
    assert_eq!(zero, [""; 0]);
}
