//! The layout of lock messages on the wire.
//!
//! All messages begin with the same 32 bytes, little endian. Unused fields are zero, which the
//! decoder checks, so each message has one encoding. Hostile bytes give an error, never a panic.
//!
//! ```text
//! at  size  field
//!  0     1  version, 1
//!  1     1  tag
//!  2     1  mode (Request, Convert, Granted, Blocking), or reason (Cancel, Refused)
//!  3     1  flags: bit 0 attempt, 1 notify, 2 again, 3 died, 4 a value follows, 5 confirming; bits 6-7 validity of the value
//!  4     4  epoch
//!  8     8  lock
//! 16     4  seq, or (Chase) number of blockers, at most 1,024, or (Records, Values) number of entries
//! 20     1  length of the name, 0: none
//! 21     1  zero
//! 22     2  (Probe, Chase) number of hops
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

use plexus_base::{
    Epoch, NodeId, WorkerId,
    wire::{self, DecodeError, Fault, Fixed, Reader, Writer, Zeros, bits, require, require_version},
};

use super::{
    LockId, LockRefusal, Mode, Name, PartitionSlots, Token, VALUE_LEN, Validity, Value,
    message::{
        Blocking, Cancel, Chased, Granted, Handover, Hop, LockMessage, MAX_CHASED, MAX_HOPS, MasterRequest,
        MasterRequestKind, Message, Origin, Probe, Record, Refused, Unlock,
    },
};

/// The version of the layout above.
const VERSION: u8 = 1;

wire::newtypes!(LockId(u64));

wire::layout! {
    #[derive(Default)]
    struct Head: 32 {
        version: u8, tag: u8, mode: u8, flags: u8, epoch: u32, lock: u64, seq: u32, name: u8, zero: Zeros<1>, hops: u16, number: u64
    }
    impl Origin: 28 { start_time: u64, lock: LockId, seq: u32, round: u32, node: NodeId, worker: WorkerId; 2 }
    struct ProbeWire: 32 { origin: Origin, confirming: u16, zero: Zeros<2> }
    struct HopWire: 32 {
        lock: LockId, blocker: LockId, seq: u32, blocker_seq: u32, node: NodeId, worker: WorkerId, queued: bool, zero: Zeros<5>
    }
    impl Chased: 16 { lock: LockId, seq: u32, queued: bool; 3 }
    struct RecordWire: 64 {
        lock: LockId, token: Token, seq: u32, mode: Mode, name: u8, notify: bool, validity: Validity, zero: Zeros<8>,
        value: [u8; VALUE_LEN]
    }
    struct HandoverWire: 40 {
        name: u8, validity: Validity, writer: bool, zero: Zeros<5>, value: [u8; VALUE_LEN]
    }
}

const ATTEMPT: u8 = 1;
const NOTIFY: u8 = 2;
const AGAIN: u8 = 4;
const DIED: u8 = 8;
const VALUE: u8 = 16;
const CONFIRMING: u8 = 32;
const VALIDITY_SHIFT: u8 = 6;

/// The bytes that most messages have behind their head, at most.
const BEHIND: usize = 64;

impl Message {
    /// Returns the encoding of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with(&self.head(), BEHIND);
        match &self.body {
            LockMessage::Request(MasterRequest { name, kind: MasterRequestKind::New { .. }, .. })
            | LockMessage::Cancel(Cancel { name, .. }) => _ = writer.bytes(name.bytes()),
            LockMessage::Request(MasterRequest {
                name,
                kind: MasterRequestKind::Conversion { value },
                ..
            })
            | LockMessage::Unlock(Unlock { name, value, .. }) => {
                writer.bytes(name.bytes()).bytes(value.as_ref().map_or(&[], |value| value));
            }
            LockMessage::Probe(name, probe) => {
                writer.bytes(name.bytes());
                put_probe(&mut writer, probe);
            }
            LockMessage::Records(records) => {
                records.iter().for_each(|record| put_record(&mut writer, record))
            }
            LockMessage::Values(values) => values.iter().for_each(|value| put_handover(&mut writer, value)),
            LockMessage::Granted(granted) => _ = writer.bytes(&granted.value.bytes),
            LockMessage::Chase(blockers, probe) => {
                put_probe(&mut writer, probe);
                blockers.iter().for_each(|blocker| _ = writer.put(blocker));
            }
            LockMessage::Ask(places) => _ = writer.bytes(places.bytes()),
            LockMessage::Done | LockMessage::Refused(_) | LockMessage::Blocking(_) => {}
        }
        writer.finish()
    }

    fn head(&self) -> Head {
        let base = Head { version: VERSION, epoch: self.epoch.0, ..Head::default() };
        let about = |tag, lock: LockId, seq: u32| Head { tag, lock: lock.0, seq, ..base };
        let len = |name: &Name| name.bytes().len() as u8;
        let hops = |probe: &Probe| probe.path.len() as u16;
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
                let (tag, of_kind) = match kind {
                    MasterRequestKind::New { notify } => (1, (*notify, NOTIFY)),
                    MasterRequestKind::Conversion { value } => (2, (value.is_some(), VALUE)),
                };
                Head {
                    mode: *mode as u8,
                    flags: bits([(*attempt, ATTEMPT), (*again, AGAIN), of_kind]),
                    name: len(name),
                    number: *waited_ns,
                    ..about(tag, *lock, *seq)
                }
            }
            LockMessage::Unlock(Unlock { lock, name, died, value }) => Head {
                flags: bits([(*died, DIED), (value.is_some(), VALUE)]),
                name: len(name),
                ..about(3, *lock, 0)
            },
            LockMessage::Cancel(Cancel { lock, seq, name, why }) => {
                Head { mode: *why as u8, name: len(name), ..about(4, *lock, *seq) }
            }
            LockMessage::Probe(name, probe) => Head {
                tag: 5,
                flags: bits([(probe.confirming.is_some(), CONFIRMING)]),
                name: len(name),
                hops: hops(probe),
                ..base
            },
            LockMessage::Records(records) => Head { tag: 6, seq: records.len() as u32, ..base },
            LockMessage::Values(values) => Head { tag: 7, seq: values.len() as u32, ..base },
            LockMessage::Done => Head { tag: 8, ..base },
            LockMessage::Granted(Granted { lock, seq, mode, token, value }) => Head {
                mode: *mode as u8,
                flags: (value.validity as u8) << VALIDITY_SHIFT,
                number: token.0,
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
                flags: bits([(probe.confirming.is_some(), CONFIRMING)]),
                seq: blockers.len() as u32,
                hops: hops(probe),
                ..base
            },
            LockMessage::Ask(_) => Head { tag: 13, ..base },
        }
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The bytes are not the encoding of any message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("message of the lock manager", bytes, |reader| {
            let head: Head = reader.take()?;
            require_version(head.version, VERSION)?;
            let message = Self { epoch: Epoch(head.epoch), body: body(&head, reader)? };
            // Unused fields must be as the encoder leaves them.
            require(message.head() == head, "unused field")?;
            Ok(message)
        })
    }
}

fn body(head: &Head, reader: &mut Reader<'_>) -> Result<LockMessage, Fault> {
    let (lock, seq) = (LockId(head.lock), head.seq);
    let is = |bit: u8| head.flags & bit != 0;
    let mode = || Mode::from_raw(head.mode);
    let value = |reader: &mut Reader<'_>| is(VALUE).then(|| reader.take()).transpose();
    Ok(match head.tag {
        1 | 2 => LockMessage::Request(MasterRequest {
            lock,
            seq,
            name: name(reader, head.name)?,
            mode: mode()?,
            attempt: is(ATTEMPT),
            again: is(AGAIN),
            waited_ns: head.number,
            kind: match head.tag {
                1 => MasterRequestKind::New { notify: is(NOTIFY) },
                _ => MasterRequestKind::Conversion { value: value(reader)? },
            },
        }),
        3 => LockMessage::Unlock(Unlock {
            lock,
            name: name(reader, head.name)?,
            died: is(DIED),
            value: value(reader)?,
        }),
        4 => {
            let why = why(head.mode)?;
            require(
                matches!(why, LockRefusal::TimedOut | LockRefusal::Cancelled | LockRefusal::Deadlock),
                "reason to cancel",
            )?;
            LockMessage::Cancel(Cancel { lock, seq, name: name(reader, head.name)?, why })
        }
        5 => LockMessage::Probe(name(reader, head.name)?, Box::new(probe(reader, head)?)),
        6 => LockMessage::Records(reader.list(seq, record)?),
        7 => LockMessage::Values(reader.list(seq, handover)?),
        8 => LockMessage::Done,
        9 => {
            let validity = Validity::from_raw(head.flags >> VALIDITY_SHIFT)?;
            let value = Value { bytes: reader.take()?, validity };
            LockMessage::Granted(Granted { lock, seq, mode: mode()?, token: Token(head.number), value })
        }
        10 => LockMessage::Refused(Refused { lock, seq, why: why(head.mode)? }),
        11 => LockMessage::Blocking(Blocking { lock, seq, wanted: mode()? }),
        12 => {
            let probe = probe(reader, head)?;
            require(seq as usize <= MAX_CHASED, "number of blockers")?;
            LockMessage::Chase(reader.list(seq, Reader::take)?, Box::new(probe))
        }
        13 => LockMessage::Ask(PartitionSlots::from_wire(reader.take()?)),
        _ => return Err(Fault::Field("tag")),
    })
}

fn name(reader: &mut Reader<'_>, len: u8) -> Result<Name, Fault> {
    Name::new(reader.bytes(len)?).map_err(|_| Fault::Field("name"))
}

/// Returns a reason that masters give; the others are given at home.
fn why(number: u8) -> Result<LockRefusal, Fault> {
    let why = LockRefusal::from_raw(number)?;
    require(why as u8 <= LockRefusal::TooManyWaiting as u8, "reason")?;
    Ok(why)
}

fn put_probe(writer: &mut Writer, Probe { origin, path, confirming }: &Probe) {
    writer.put(&ProbeWire { origin: *origin, confirming: confirming.unwrap_or(0), zero: Zeros });
    for Hop { node, worker, lock, seq, blocker } in path {
        writer.put(&HopWire {
            lock: *lock,
            blocker: blocker.lock,
            seq: *seq,
            blocker_seq: blocker.seq,
            node: *node,
            worker: *worker,
            queued: blocker.queued,
            zero: Zeros,
        });
    }
}

fn probe(reader: &mut Reader<'_>, head: &Head) -> Result<Probe, Fault> {
    require((1..=MAX_HOPS).contains(&usize::from(head.hops)), "number of hops")?;
    let ProbeWire { origin, confirming, .. } = reader.take()?;
    let is_confirming = head.flags & CONFIRMING != 0;
    require(confirming < head.hops && (is_confirming || confirming == 0), "hop being confirmed")?;
    let path = reader.list(head.hops, |reader| {
        let HopWire { lock, blocker, seq, blocker_seq, node, worker, queued, .. } = reader.take()?;
        Ok(Hop { node, worker, lock, seq, blocker: Chased { lock: blocker, seq: blocker_seq, queued } })
    })?;
    Ok(Probe { origin, path, confirming: is_confirming.then_some(confirming) })
}

fn put_record(writer: &mut Writer, record: &Record) {
    let Record { lock, seq, ref name, mode, notify, token, value: Value { bytes: value, validity } } =
        *record;
    let len = name.bytes().len() as u8;
    writer.put(&RecordWire { lock, token, seq, mode, name: len, notify, validity, zero: Zeros, value });
    writer.bytes(name.bytes());
}

fn record(reader: &mut Reader<'_>) -> Result<Record, Fault> {
    let RecordWire { lock, token, seq, mode, name: len, notify, validity, value, .. } = reader.take()?;
    let value = Value { bytes: value, validity };
    Ok(Record { lock, seq, name: name(reader, len)?, mode, notify, token, value })
}

fn put_handover(writer: &mut Writer, Handover { name, value, writer: is_writer }: &Handover) {
    let Value { bytes: value, validity } = *value;
    let len = name.bytes().len() as u8;
    writer.put(&HandoverWire { name: len, validity, writer: *is_writer, zero: Zeros, value });
    writer.bytes(name.bytes());
}

fn handover(reader: &mut Reader<'_>) -> Result<Handover, Fault> {
    let HandoverWire { name: len, validity, writer, value, .. } = reader.take()?;
    Ok(Handover { name: name(reader, len)?, value: Value { bytes: value, validity }, writer })
}
