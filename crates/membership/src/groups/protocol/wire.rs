//! Messages about groups as bytes, little endian; there is one encoding of each, and hostile bytes give an error, never a panic.
//!
//! ```text
//! at  size  field
//!  0     1  version, 2
//!  1     1  tag
//!  2     2  zero
//!  4     4  epoch
//!  8        as the tag has it:
//!     1 Command   a command
//!     2 Ordered   stable 8, an entry
//!     3 Ack       applied 8
//!     4 Stable    stable 8
//!     5 Kept      an entry
//!     6 Flushed   1 if it knows anything, else 0: 8; applied 8, digest 8
//!     7 State     a snapshot
//!
//! command, 24: number 8, client 8, bytes sent or, arriving, how many there must be 4, length of the group's name 1, of the barrier's 1, zero 1,
//!     deed 1 (1 join, 2 leave, 3 leave: died, 4 send, 5 arrive, 6 arrive: strict); then group, barrier, bytes
//! entry, 24: place 8, incarnation 8, epoch 4, members 2, node 1, kind 1 (1 command, 2 view); then a command, or members of 16
//! member of the cluster, 16: incarnation 8, node 1, zero 7
//! snapshot, 24: applied 8, digest 8, lives 4, groups 4; then these
//! incarnation of a node, 24: incarnation 8, number of its last command 8, node 1, zero 7
//! group, 16: views 8, members 4, barriers 2, length of its name 1, zero 1; then name, members, barriers
//! member of a group, 24: incarnation 8, client 8, node 1, zero 5, 2: at a barrier how many there must be for it to go on, else zero
//! barrier, 8: arrived 4, length of its name 1, 1 if strict 1, zero 2; then name, members of the group
//! ```

use std::{collections::BTreeMap, sync::Arc};

use plexus_base::{Epoch, Incarnation, MAX_NODES, NodeId};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    Body, Command, Deed, Entry, Flushed, Groups, MAX_GROUPS, MAX_MEMBERS, MAX_MESSAGE, Message, Name,
    Snapshot, What, Who,
    replica::{Barrier, Group, Replica},
};
use crate::protocol::partitions::Members;

const VERSION: u8 = 2;

/// A counter above this could not be counted on from.
const MOST: u64 = u64::MAX / 2;

/// Why bytes are not a message about groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// They end too early or too late.
    #[error("a message about groups is cut off, or longer than it says")]
    Length,
    /// Another version.
    #[error("version {0} of the messages about groups; this node speaks {VERSION}")]
    Version(u8),
    /// What no message says.
    #[error("impossible {0} in a message about groups")]
    Field(&'static str),
}

macro_rules! layouts {
    ($($name:ident $size:literal { $($field:ident: $type:ty),* })*) => { $(
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Default)]
        #[repr(C)]
        struct $name { $($field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    )* };
}

layouts! {
    Head 8 { version: u8, tag: u8, zero: U16, epoch: U32 }
    CommandWire 24 { number: U64, client: U64, count: U32, group: u8, barrier: u8, zero: u8, deed: u8 }
    EntryWire 24 { seq: U64, incarnation: U64, epoch: U32, members: U16, node: u8, kind: u8 }
    MemberWire 16 { incarnation: U64, node: u8, zero: [u8; 7] }
    FlushedWire 24 { knows: U64, applied: U64, digest: U64 }
    SnapshotWire 24 { applied: U64, digest: U64, lives: U32, groups: U32 }
    IncarnationWire 24 { incarnation: U64, done: U64, node: u8, zero: [u8; 7] }
    GroupWire 16 { views: U64, members: U32, barriers: U16, name: u8, zero: u8 }
    WhoWire 24 { incarnation: U64, client: U64, node: u8, zero: [u8; 5], least: U16 }
    BarrierWire 8 { arrived: U32, name: u8, strict: u8, zero: U16 }
}

impl Message {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let tag = match &self.body {
            Body::Command(_) => 1,
            Body::Ordered(..) => 2,
            Body::Ack(_) => 3,
            Body::Stable(_) => 4,
            Body::Kept(_) => 5,
            Body::Flushed(_) => 6,
            Body::State(_) => 7,
        };
        let head = Head { version: VERSION, tag, zero: U16::ZERO, epoch: U32::new(self.epoch.0) };
        let mut out = head.as_bytes().to_vec();
        match &self.body {
            Body::Command(command) => put_command(&mut out, command),
            Body::Ordered(stable, entry) => {
                put(&mut out, &U64::new(*stable));
                put_entry(&mut out, entry);
            }
            Body::Ack(number) | Body::Stable(number) => put(&mut out, &U64::new(*number)),
            Body::Kept(entry) => put_entry(&mut out, entry),
            Body::Flushed(Flushed { knows, applied, digest }) => {
                let knows = U64::new(u64::from(*knows));
                put(&mut out, &FlushedWire { knows, applied: U64::new(*applied), digest: U64::new(*digest) });
            }
            Body::State(Snapshot(replica)) => put_replica(&mut out, replica),
        }
        out
    }

    /// What bytes say.
    ///
    /// # Errors
    /// They are no message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut rest = bytes;
        let head: Head = take(&mut rest)?;
        if head.version != VERSION {
            return Err(DecodeError::Version(head.version));
        }
        let body = match head.tag {
            1 => Body::Command(take_command(&mut rest)?),
            2 => {
                let stable = counter(take(&mut rest)?)?;
                Body::Ordered(stable, take_entry(&mut rest)?)
            }
            3 => Body::Ack(counter(take(&mut rest)?)?),
            4 => Body::Stable(counter(take(&mut rest)?)?),
            5 => Body::Kept(take_entry(&mut rest)?),
            6 => {
                let FlushedWire { knows, applied, digest } = take(&mut rest)?;
                let knows = flag(knows.get())?;
                Body::Flushed(Flushed { knows, applied: counter(applied)?, digest: digest.get() })
            }
            7 => Body::State(Snapshot(Arc::new(take_replica(&mut rest)?))),
            _ => return Err(DecodeError::Field("tag")),
        };
        if !rest.is_empty() {
            return Err(DecodeError::Length);
        }
        let message = Self { epoch: Epoch(head.epoch.get()), body };
        // What is not said is zero, and what has an order is in it.
        if message.encode() != bytes {
            return Err(DecodeError::Field("order or filling"));
        }
        Ok(message)
    }
}

fn put<T: IntoBytes + Immutable>(out: &mut Vec<u8>, what: &T) {
    out.extend_from_slice(what.as_bytes());
}

fn put_command(out: &mut Vec<u8>, Command { number, client, group, deed }: &Command) {
    let none = &[] as &[u8];
    let (deed, barrier, bytes, count) = match deed {
        Deed::Join => (1, none, none, 0),
        Deed::Leave { died: false } => (2, none, none, 0),
        Deed::Leave { died: true } => (3, none, none, 0),
        Deed::Send(bytes) => (4, none, &**bytes, bytes.len() as u32),
        Deed::Arrive { barrier, least, strict } => {
            (5 + u8::from(*strict), barrier.bytes(), none, u32::from(*least))
        }
    };
    let wire = CommandWire {
        number: U64::new(*number),
        client: U64::new(*client),
        count: U32::new(count),
        group: group.bytes().len() as u8,
        barrier: barrier.len() as u8,
        zero: 0,
        deed,
    };
    put(out, &wire);
    [group.bytes(), barrier, bytes].iter().for_each(|part| out.extend_from_slice(part));
}

fn put_entry(out: &mut Vec<u8>, Entry { seq, what }: &Entry) {
    let seq = U64::new(*seq);
    match what {
        What::Command(node, incarnation, command) => {
            put(
                out,
                &EntryWire {
                    seq,
                    incarnation: U64::new(incarnation.0),
                    node: node.0,
                    kind: 1,
                    ..EntryWire::default()
                },
            );
            put_command(out, command);
        }
        What::View(view) => {
            let (epoch, members) = (U32::new(view.epoch.0), U16::new(view.members.len() as u16));
            put(out, &EntryWire { seq, epoch, members, kind: 2, ..EntryWire::default() });
            for (node, incarnation) in &view.members {
                put(out, &MemberWire { incarnation: U64::new(incarnation.0), node: node.0, zero: [0; 7] });
            }
        }
    }
}

fn put_replica(out: &mut Vec<u8>, Replica { applied, digest, done, groups }: &Replica) {
    let (lives, count) = (U32::new(done.len() as u32), U32::new(groups.len() as u32));
    put(out, &SnapshotWire { applied: U64::new(*applied), digest: U64::new(*digest), lives, groups: count });
    for ((node, incarnation), done) in done {
        put(
            out,
            &IncarnationWire {
                incarnation: U64::new(incarnation.0),
                done: U64::new(*done),
                node: node.0,
                zero: [0; 7],
            },
        );
    }
    for (name, Group { number, members, barriers }) in groups {
        let wire = GroupWire {
            views: U64::new(*number),
            members: U32::new(members.len() as u32),
            barriers: U16::new(barriers.len() as u16),
            name: name.bytes().len() as u8,
            zero: 0,
        };
        put(out, &wire);
        out.extend_from_slice(name.bytes());
        members.iter().for_each(|who| put_who(out, *who, 0));
        for (name, Barrier { strict, arrived }) in barriers {
            let (arrives, strict) = (U32::new(arrived.len() as u32), u8::from(*strict));
            let len = name.bytes().len() as u8;
            put(out, &BarrierWire { arrived: arrives, name: len, strict, zero: U16::ZERO });
            out.extend_from_slice(name.bytes());
            arrived.iter().for_each(|(who, least)| put_who(out, *who, *least));
        }
    }
}

fn put_who(out: &mut Vec<u8>, Who { node, incarnation, client }: Who, least: u16) {
    let (incarnation, client, least) = (U64::new(incarnation.0), U64::new(client), U16::new(least));
    put(out, &WhoWire { incarnation, client, node: node.0, zero: [0; 5], least });
}

fn take<T: FromBytes + KnownLayout + Immutable>(rest: &mut &[u8]) -> Result<T, DecodeError> {
    let (what, behind) = T::read_from_prefix(rest).map_err(|_| DecodeError::Length)?;
    *rest = behind;
    Ok(what)
}

fn take_bytes<'a>(rest: &mut &'a [u8], len: usize) -> Result<&'a [u8], DecodeError> {
    let (bytes, behind) = rest.split_at_checked(len).ok_or(DecodeError::Length)?;
    *rest = behind;
    Ok(bytes)
}

fn take_name(rest: &mut &[u8], len: u8) -> Result<Name, DecodeError> {
    Name::new(take_bytes(rest, usize::from(len))?).map_err(|_| DecodeError::Field("name"))
}

fn counter(number: U64) -> Result<u64, DecodeError> {
    (number.get() < MOST).then_some(number.get()).ok_or(DecodeError::Field("counter"))
}

fn flag(number: u64) -> Result<bool, DecodeError> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Field("flag")),
    }
}

fn node(number: u8) -> Result<NodeId, DecodeError> {
    (usize::from(number) < MAX_NODES).then_some(NodeId(number)).ok_or(DecodeError::Field("node"))
}

fn take_command(rest: &mut &[u8]) -> Result<Command, DecodeError> {
    let CommandWire { number, client, count, group, barrier, deed, .. } = take(rest)?;
    let group = take_name(rest, group)?;
    let len = count.get() as usize;
    let deed = match deed {
        1 => Deed::Join,
        2 | 3 => Deed::Leave { died: deed == 3 },
        4 if len <= MAX_MESSAGE => Deed::Send(take_bytes(rest, len)?.into()),
        5 | 6 => Deed::Arrive {
            barrier: take_name(rest, barrier)?,
            least: u16::try_from(count.get()).map_err(|_| DecodeError::Field("count"))?,
            strict: deed == 6,
        },
        _ => return Err(DecodeError::Field("deed")),
    };
    Ok(Command { number: counter(number)?, client: client.get(), group, deed })
}

fn take_entry(rest: &mut &[u8]) -> Result<Entry, DecodeError> {
    let EntryWire { seq, incarnation, epoch, members, node: from, kind } = take(rest)?;
    let seq = counter(seq)?;
    let what = match kind {
        1 => What::Command(node(from)?, Incarnation(incarnation.get()), take_command(rest)?),
        2 if usize::from(members.get()) <= MAX_NODES => {
            let members = (0..members.get()).map(|_| {
                let MemberWire { incarnation, node: member, .. } = take(rest)?;
                Ok((node(member)?, Incarnation(incarnation.get())))
            });
            What::View(Members { epoch: Epoch(epoch.get()), members: members.collect::<Result<_, _>>()? })
        }
        _ => return Err(DecodeError::Field("kind")),
    };
    Ok(Entry { seq, what })
}

fn take_replica(rest: &mut &[u8]) -> Result<Replica, DecodeError> {
    let SnapshotWire { applied, digest, lives, groups } = take(rest)?;
    if lives.get() as usize > MAX_NODES || groups.get() as usize > MAX_GROUPS {
        return Err(DecodeError::Field("count"));
    }
    let mut replica = Replica { applied: counter(applied)?, digest: digest.get(), ..Replica::default() };
    for _ in 0..lives.get() {
        let IncarnationWire { incarnation, done, node: of, .. } = take(rest)?;
        replica.done.insert((node(of)?, Incarnation(incarnation.get())), counter(done)?);
    }
    for _ in 0..groups.get() {
        let GroupWire { views, members, barriers, name, .. } = take(rest)?;
        let name = take_name(rest, name)?;
        let number = counter(views)?;
        let members = take_members(rest, members, |who, _| who)?;
        let mut group = Group { number, members, barriers: BTreeMap::new() };
        for _ in 0..barriers.get() {
            let BarrierWire { arrived, name, strict, .. } = take(rest)?;
            let name = take_name(rest, name)?;
            let strict = flag(u64::from(strict))?;
            let arrived = take_members(rest, arrived, |who, least| (who, least))?;
            group.barriers.insert(name, Barrier { strict, arrived });
        }
        replica.groups.insert(name, group);
    }
    Ok(replica)
}

fn take_members<T, C: FromIterator<T>>(
    rest: &mut &[u8],
    count: U32,
    one: impl Fn(Who, u16) -> T,
) -> Result<C, DecodeError> {
    if count.get() as usize > MAX_MEMBERS {
        return Err(DecodeError::Field("count"));
    }
    let members = (0..count.get()).map(|_| {
        let WhoWire { incarnation, client, node: of, least, .. } = take(rest)?;
        let who = Who { node: node(of)?, incarnation: Incarnation(incarnation.get()), client: client.get() };
        Ok(one(who, least.get()))
    });
    members.collect()
}

/// Reads any bytes as a message of another member, as a fuzz target would, and takes it in; whether it is one. What is taken has only this
/// encoding.
#[doc(hidden)]
#[must_use]
pub fn group_message_any(bytes: &[u8]) -> bool {
    let Ok(message) = Message::decode(bytes) else { return false };
    assert_eq!(message.encode(), bytes);
    let (other, me, incarnation) = (NodeId(0), NodeId(1), Incarnation(3));
    let mut groups = Groups::new(me, incarnation);
    let members = vec![(other, incarnation), (me, incarnation)];
    groups.view(&Members { epoch: message.epoch, members }, &mut Vec::new());
    groups.message(other, incarnation, message, &mut Vec::new());
    true
}
