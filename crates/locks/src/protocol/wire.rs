//! Messages as bytes.
//!
//! All begin with the same 32 bytes, little endian. What a message does not use is zero and the decoder insists on it, so there is one encoding of
//! each; hostile bytes give an error, never a panic.
//!
//! ```text
//! at  size  field
//!  0     1  version, 1
//!  1     1  tag
//!  2     1  mode (Request, Convert, Granted, Blocking), or why (Cancel, Refused)
//!  3     1  flags: bit 0 attempt, 1 notify, 2 again, 3 died, 4 a value follows, 5 confirming; bits 6-7 validity of the value
//!  4     4  epoch
//!  8     8  lock
//! 16     4  seq, or (Chase) how many blockers, at most 1,024, or (Records, Values) how many
//! 20     1  length of the name, 0: none
//! 21     1  zero
//! 22     2  (Probe, Chase) how many hops
//! 24     8  nanoseconds waited (Request, Convert) or token (Granted)
//! 32        the name; then, as the tag has it:
//!     1 Request   -
//!     2 Convert   32 bytes of value, if the flag says so
//!     3 Unlock    32 bytes of value, if the flag says so
//!     4 Cancel    -
//!     5 Probe     an origin, then hops
//!     6 Records   records, each with its name behind it
//!     7 Values    handovers, each with its name behind it
//!     8 Done      -
//!     9 Granted   32 bytes of value
//!    10 Refused   -
//!    11 Blocking  -
//!    12 Chase     an origin, then hops, then blockers
//!    13 Ask       512 bytes: a bit for each partition of the worker, the lowest first, number partition / workers
//!
//! origin, 32: start_time 8, lock 8, seq 4, round 4, node 1, worker 1, zero 2, hop being confirmed 2, zero 2
//! hop, 32: lock 8, blocking lock 8, seq 4, blocking lock's seq 4, node 1, worker 1, queued 1, zero 5
//! blocker, 16: lock 8, seq 4, queued 1, zero 3
//! record, 64: lock 8, token 8, seq 4, mode 1, length of the name 1, notify 1, validity 1, zero 8, value 32
//! handover, 40: length of the name 1, validity 1, writer 1, zero 5, value 32
//! ```

use plexus_base::{Epoch, MAX_NODES, MAX_WORKERS, NodeId, WorkerId};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    LockId, MasterSlots, Mode, Name, Token, VALUE_LEN, Validity, Value, Why,
    message::{
        Blocking, Cancel, Chased, Granted, Handover, Hop, LockMessage, MAX_CHASED, MAX_HOPS, MasterRequest,
        MasterRequestKind, Message, Origin, Probe, Record, Refused, Unlock,
    },
};

/// The layout above.
const VERSION: u8 = 1;

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// They end too early or too late.
    #[error("a message of the lock manager of {0} bytes, which do not fit what it says")]
    Length(usize),
    /// Another version.
    #[error("version {0} of the lock manager's messages; this node speaks {VERSION}")]
    Version(u8),
    /// A tag that no message has.
    #[error("unknown tag {0} of a message of the lock manager")]
    Tag(u8),
    /// A value that the field cannot have in this message.
    #[error("impossible {0} in a message of the lock manager")]
    Field(&'static str),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
struct Head {
    version: u8,
    tag: u8,
    mode: u8,
    flags: u8,
    epoch: U32,
    lock: U64,
    seq: U32,
    name: u8,
    zero: u8,
    hops: U16,
    number: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
struct OriginWire {
    start_time: U64,
    lock: U64,
    seq: U32,
    round: U32,
    node: u8,
    worker: u8,
    zero: U16,
    confirming: U16,
    zero_too: U16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
struct HopWire {
    lock: U64,
    blocker: U64,
    seq: U32,
    blocker_seq: U32,
    node: u8,
    worker: u8,
    queued: u8,
    zero: [u8; 5],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
struct BlockerWire {
    lock: U64,
    seq: U32,
    queued: u8,
    zero: [u8; 3],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
struct RecordWire {
    lock: U64,
    token: U64,
    seq: U32,
    mode: u8,
    name: u8,
    notify: u8,
    validity: u8,
    zero: [u8; 8],
    value: [u8; VALUE_LEN],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
struct HandoverWire {
    name: u8,
    validity: u8,
    writer: u8,
    zero: [u8; 5],
    value: [u8; VALUE_LEN],
}

const ATTEMPT: u8 = 1;
const NOTIFY: u8 = 2;
const AGAIN: u8 = 4;
const DIED: u8 = 8;
const VALUE: u8 = 16;
const CONFIRMING: u8 = 32;
const VALIDITY_SHIFT: u8 = 6;

fn flag(on: bool, bit: u8) -> u8 {
    if on { bit } else { 0 }
}

impl Message {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = self.head();
        let mut bytes = head.as_bytes().to_vec();
        match &self.body {
            LockMessage::Request(MasterRequest { name, kind: MasterRequestKind::New { .. }, .. })
            | LockMessage::Cancel(Cancel { name, .. }) => bytes.extend_from_slice(name.bytes()),
            LockMessage::Request(MasterRequest {
                name,
                kind: MasterRequestKind::Conversion { value },
                ..
            })
            | LockMessage::Unlock(Unlock { name, value, .. }) => {
                bytes.extend_from_slice(name.bytes());
                bytes.extend(value.iter().flatten());
            }
            LockMessage::Probe(name, probe) => {
                bytes.extend_from_slice(name.bytes());
                put_probe(&mut bytes, probe);
            }
            LockMessage::Records(records) => records.iter().for_each(|record| put_record(&mut bytes, record)),
            LockMessage::Values(values) => values.iter().for_each(|value| put_handover(&mut bytes, value)),
            LockMessage::Granted(granted) => bytes.extend_from_slice(&granted.value.bytes),
            LockMessage::Chase(blockers, probe) => {
                put_probe(&mut bytes, probe);
                for Chased { lock, seq, queued } in blockers {
                    let (lock, seq) = (lock.0.into(), (*seq).into());
                    let wire = BlockerWire { lock, seq, queued: u8::from(*queued), zero: [0; 3] };
                    bytes.extend_from_slice(wire.as_bytes());
                }
            }
            LockMessage::Ask(places) => bytes.extend_from_slice(places.bytes()),
            LockMessage::Done | LockMessage::Refused(_) | LockMessage::Blocking(_) => {}
        }
        bytes
    }

    fn head(&self) -> Head {
        let base = Head { version: VERSION, epoch: self.epoch.0.into(), ..Head::default() };
        let about = |tag, lock: LockId, seq: u32| Head { tag, lock: lock.0.into(), seq: seq.into(), ..base };
        let len = |name: &Name| name.bytes().len() as u8;
        let hops = |probe: &Probe| (probe.path.len() as u16).into();
        match &self.body {
            LockMessage::Request(MasterRequest {
                lock,
                seq,
                name,
                mode,
                attempt,
                again,
                waited_ns,
                kind,
            }) => {
                let (tag, flags) = match kind {
                    MasterRequestKind::New { notify } => (1, flag(*notify, NOTIFY)),
                    MasterRequestKind::Conversion { value } => (2, flag(value.is_some(), VALUE)),
                };
                Head {
                    mode: *mode as u8,
                    flags: flags | flag(*attempt, ATTEMPT) | flag(*again, AGAIN),
                    name: len(name),
                    number: (*waited_ns).into(),
                    ..about(tag, *lock, *seq)
                }
            }
            LockMessage::Unlock(Unlock { lock, name, died, value }) => Head {
                flags: flag(*died, DIED) | flag(value.is_some(), VALUE),
                name: len(name),
                ..about(3, *lock, 0)
            },
            LockMessage::Cancel(Cancel { lock, seq, name, why }) => {
                Head { mode: *why as u8, name: len(name), ..about(4, *lock, *seq) }
            }
            LockMessage::Probe(name, probe) => Head {
                tag: 5,
                flags: flag(probe.confirming.is_some(), CONFIRMING),
                name: len(name),
                hops: hops(probe),
                ..base
            },
            LockMessage::Records(records) => Head { tag: 6, seq: (records.len() as u32).into(), ..base },
            LockMessage::Values(values) => Head { tag: 7, seq: (values.len() as u32).into(), ..base },
            LockMessage::Done => Head { tag: 8, ..base },
            LockMessage::Granted(Granted { lock, seq, mode, token, value }) => Head {
                mode: *mode as u8,
                flags: (value.validity as u8) << VALIDITY_SHIFT,
                number: token.0.into(),
                ..about(9, *lock, *seq)
            },
            LockMessage::Refused(Refused { lock, seq, why }) => {
                Head { mode: *why as u8, ..about(10, *lock, *seq) }
            }
            LockMessage::Blocking(Blocking { lock, seq, wanted }) => {
                Head { mode: *wanted as u8, ..about(11, *lock, *seq) }
            }
            LockMessage::Chase(blockers, probe) => Head {
                tag: 12,
                flags: flag(probe.confirming.is_some(), CONFIRMING),
                seq: (blockers.len() as u32).into(),
                hops: hops(probe),
                ..base
            },
            LockMessage::Ask(_) => Head { tag: 13, ..base },
        }
    }

    /// Reads a message.
    ///
    /// # Errors
    /// The bytes are not the encoding of any message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut rest = Reader { rest: bytes, all: bytes.len() };
        let head: Head = rest.take()?;
        if head.version != VERSION {
            return Err(DecodeError::Version(head.version));
        }
        let body = body(&head, &mut rest)?;
        if !rest.rest.is_empty() {
            return Err(DecodeError::Length(bytes.len()));
        }
        let message = Self { epoch: Epoch(head.epoch.get()), body };
        // What the message does not use must be as the encoder leaves it.
        if message.head() != head {
            return Err(DecodeError::Field("unused field"));
        }
        Ok(message)
    }
}

fn body(head: &Head, rest: &mut Reader<'_>) -> Result<LockMessage, DecodeError> {
    let (lock, seq) = (LockId(head.lock.get()), head.seq.get());
    let is = |bit: u8| head.flags & bit != 0;
    let count = head.seq.get() as usize;
    Ok(match head.tag {
        1 | 2 => LockMessage::Request(MasterRequest {
            lock,
            seq,
            name: rest.name(head.name)?,
            mode: mode(head.mode)?,
            attempt: is(ATTEMPT),
            again: is(AGAIN),
            waited_ns: head.number.get(),
            kind: match head.tag {
                1 => MasterRequestKind::New { notify: is(NOTIFY) },
                _ => {
                    let value = is(VALUE).then(|| rest.take()).transpose()?;
                    MasterRequestKind::Conversion { value }
                }
            },
        }),
        3 => LockMessage::Unlock(Unlock {
            lock,
            name: rest.name(head.name)?,
            died: is(DIED),
            value: is(VALUE).then(|| rest.take()).transpose()?,
        }),
        4 => {
            let why = why(head.mode)?;
            if !matches!(why, Why::TimedOut | Why::Cancelled | Why::Deadlock) {
                return Err(DecodeError::Field("reason to cancel"));
            }
            LockMessage::Cancel(Cancel { lock, seq, name: rest.name(head.name)?, why })
        }
        5 => {
            let name = rest.name(head.name)?;
            LockMessage::Probe(name, Box::new(rest.probe(head)?))
        }
        6 => LockMessage::Records((0..count).map(|_| rest.record()).collect::<Result<_, _>>()?),
        7 => LockMessage::Values((0..count).map(|_| rest.handover()).collect::<Result<_, _>>()?),
        8 => LockMessage::Done,
        9 => {
            let validity = validity(head.flags >> VALIDITY_SHIFT)?;
            let value = Value { bytes: rest.take()?, validity };
            LockMessage::Granted(Granted {
                lock,
                seq,
                mode: mode(head.mode)?,
                token: Token(head.number.get()),
                value,
            })
        }
        10 => LockMessage::Refused(Refused { lock, seq, why: why(head.mode)? }),
        11 => LockMessage::Blocking(Blocking { lock, seq, wanted: mode(head.mode)? }),
        12 => {
            let probe = rest.probe(head)?;
            if count > MAX_CHASED {
                return Err(DecodeError::Field("number of blockers"));
            }
            LockMessage::Chase((0..count).map(|_| rest.blocker()).collect::<Result<_, _>>()?, Box::new(probe))
        }
        13 => LockMessage::Ask(MasterSlots::from_wire(rest.take()?)),
        tag => return Err(DecodeError::Tag(tag)),
    })
}

/// The bytes that are left.
struct Reader<'a> {
    rest: &'a [u8],
    all: usize,
}

impl Reader<'_> {
    fn take<T: FromBytes>(&mut self) -> Result<T, DecodeError> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| DecodeError::Length(self.all))?;
        self.rest = rest;
        Ok(value)
    }

    fn name(&mut self, len: u8) -> Result<Name, DecodeError> {
        let (name, rest) =
            self.rest.split_at_checked(usize::from(len)).ok_or(DecodeError::Length(self.all))?;
        self.rest = rest;
        Name::new(name).map_err(|_| DecodeError::Field("name"))
    }

    fn probe(&mut self, head: &Head) -> Result<Probe, DecodeError> {
        let hops = usize::from(head.hops.get());
        if hops == 0 || hops > MAX_HOPS {
            return Err(DecodeError::Field("number of hops"));
        }
        let wire: OriginWire = self.take()?;
        let (node, worker) = place(wire.node, wire.worker)?;
        let origin = Origin {
            start_time: wire.start_time.get(),
            node,
            worker,
            lock: LockId(wire.lock.get()),
            seq: wire.seq.get(),
            round: wire.round.get(),
        };
        let confirming = (head.flags & CONFIRMING != 0).then(|| wire.confirming.get());
        if confirming.is_some_and(|at| usize::from(at) >= hops) {
            return Err(DecodeError::Field("hop being confirmed"));
        }
        let path = (0..hops).map(|_| self.hop()).collect::<Result<_, _>>()?;
        let probe = Probe { origin, path, confirming };
        if probe.wire() != wire {
            return Err(DecodeError::Field("unused field"));
        }
        Ok(probe)
    }

    fn hop(&mut self) -> Result<Hop, DecodeError> {
        let wire: HopWire = self.take()?;
        let (node, worker) = place(wire.node, wire.worker)?;
        let blocker = Chased {
            lock: LockId(wire.blocker.get()),
            seq: wire.blocker_seq.get(),
            queued: boolean(wire.queued)?,
        };
        let hop = Hop { node, worker, lock: LockId(wire.lock.get()), seq: wire.seq.get(), blocker };
        if hop.wire() != wire {
            return Err(DecodeError::Field("unused field"));
        }
        Ok(hop)
    }

    fn blocker(&mut self) -> Result<Chased, DecodeError> {
        let wire: BlockerWire = self.take()?;
        if wire.zero != [0; 3] {
            return Err(DecodeError::Field("unused field"));
        }
        Ok(Chased { lock: LockId(wire.lock.get()), seq: wire.seq.get(), queued: boolean(wire.queued)? })
    }

    fn record(&mut self) -> Result<Record, DecodeError> {
        let wire: RecordWire = self.take()?;
        if wire.zero != [0; 8] {
            return Err(DecodeError::Field("unused field"));
        }
        Ok(Record {
            lock: LockId(wire.lock.get()),
            seq: wire.seq.get(),
            mode: mode(wire.mode)?,
            notify: boolean(wire.notify)?,
            token: Token(wire.token.get()),
            value: Value { bytes: wire.value, validity: validity(wire.validity)? },
            name: self.name(wire.name)?,
        })
    }

    fn handover(&mut self) -> Result<Handover, DecodeError> {
        let wire: HandoverWire = self.take()?;
        if wire.zero != [0; 5] {
            return Err(DecodeError::Field("unused field"));
        }
        let value = Value { bytes: wire.value, validity: validity(wire.validity)? };
        Ok(Handover { value, writer: boolean(wire.writer)?, name: self.name(wire.name)? })
    }
}

impl Probe {
    fn wire(&self) -> OriginWire {
        let Origin { start_time, node, worker, lock, seq, round } = self.origin;
        OriginWire {
            start_time: start_time.into(),
            lock: lock.0.into(),
            seq: seq.into(),
            round: round.into(),
            node: node.0,
            worker: worker.0,
            confirming: self.confirming.unwrap_or(0).into(),
            ..OriginWire::default()
        }
    }
}

impl Hop {
    fn wire(&self) -> HopWire {
        let Chased { lock: blocker, seq: blocker_seq, queued } = self.blocker;
        HopWire {
            lock: self.lock.0.into(),
            blocker: blocker.0.into(),
            seq: self.seq.into(),
            blocker_seq: blocker_seq.into(),
            node: self.node.0,
            worker: self.worker.0,
            queued: u8::from(queued),
            zero: [0; 5],
        }
    }
}

fn put_probe(bytes: &mut Vec<u8>, probe: &Probe) {
    bytes.extend_from_slice(probe.wire().as_bytes());
    for hop in &probe.path {
        bytes.extend_from_slice(hop.wire().as_bytes());
    }
}

fn put_record(bytes: &mut Vec<u8>, record: &Record) {
    let wire = RecordWire {
        lock: record.lock.0.into(),
        token: record.token.0.into(),
        seq: record.seq.into(),
        mode: record.mode as u8,
        name: record.name.bytes().len() as u8,
        notify: u8::from(record.notify),
        validity: record.value.validity as u8,
        zero: [0; 8],
        value: record.value.bytes,
    };
    bytes.extend_from_slice(wire.as_bytes());
    bytes.extend_from_slice(record.name.bytes());
}

fn put_handover(bytes: &mut Vec<u8>, handover: &Handover) {
    let wire = HandoverWire {
        name: handover.name.bytes().len() as u8,
        validity: handover.value.validity as u8,
        writer: u8::from(handover.writer),
        zero: [0; 5],
        value: handover.value.bytes,
    };
    bytes.extend_from_slice(wire.as_bytes());
    bytes.extend_from_slice(handover.name.bytes());
}

fn mode(byte: u8) -> Result<Mode, DecodeError> {
    Mode::from_wire(byte).ok_or(DecodeError::Field("mode"))
}

fn boolean(byte: u8) -> Result<bool, DecodeError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Field("yes or no")),
    }
}

fn validity(byte: u8) -> Result<Validity, DecodeError> {
    Validity::from_wire(byte).ok_or(DecodeError::Field("validity"))
}

/// A reason that masters give: the others are given at home.
fn why(byte: u8) -> Result<Why, DecodeError> {
    let all = [Why::NotGranted, Why::TimedOut, Why::Cancelled, Why::Deadlock, Why::TooManyWaiting];
    all.into_iter().find(|why| *why as u8 == byte).ok_or(DecodeError::Field("reason"))
}

fn place(node: u8, worker: u8) -> Result<(NodeId, WorkerId), DecodeError> {
    if usize::from(node) >= MAX_NODES || usize::from(worker) >= MAX_WORKERS {
        return Err(DecodeError::Field("node or worker"));
    }
    Ok((NodeId(node), WorkerId(worker)))
}
