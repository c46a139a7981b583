//! The layout of group messages on the wire, little endian.
//!
//! Each message has one encoding. Hostile bytes give an error, never a panic.
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
//!     6 Flushed   1 if the node has state, else 0: 8; applied 8, digest 8
//!     7 State     a snapshot
//!
//! command, 24: number 8, client 8, bytes of the message or fewest arrivals 4, length of the group's name 1, of the barrier's 1, zero 1,
//!     deed 1 (1 join, 2 leave, 3 leave: died, 4 send, 5 arrive, 6 arrive: strict); then group, barrier, bytes
//! entry, 24: number 8, incarnation 8, epoch 4, members 2, node 1, kind 1 (1 command, 2 view); then a command, or members of 16
//! member of the cluster, 16: incarnation 8, node 1, zero 7
//! snapshot, 24: applied 8, digest 8, incarnations 4, groups 4; then these
//! incarnation of a node, 24: incarnation 8, number of its last command 8, node 1, zero 7
//! group, 16: views 8, members 4, barriers 2, length of its name 1, zero 1; then name, members, barriers
//! member of a group, 24: incarnation 8, client 8, node 1, zero 5, 2: the fewest arrivals at its barrier, else zero
//! barrier, 8: arrived 4, length of its name 1, 1 if strict 1, zero 2; then name, members of the group
//! ```

use std::sync::Arc;

use plexus_base::{
    Epoch, Incarnation, MAX_NODES, NodeId,
    wire::{self, DecodeError, Fault, Fixed, Reader, Writer, Zeros, require, require_version},
};

use super::{
    Command, Deed, Entry, EntryContent, Flushed, GroupMember, GroupMessage, Groups, MAX_GROUPS, MAX_MEMBERS,
    MAX_MESSAGE, Message, Name, Snapshot,
    replica::{Barrier, Group, Replica},
};
use crate::protocol::partitions::Members;

const VERSION: u8 = 2;

/// Counters above this are refused, so that counting on cannot overflow.
const MOST: u64 = u64::MAX / 2;

/// The bytes that most messages have behind their head, at most.
const BEHIND: usize = 120;

wire::layout! {
    struct Head: 8 { version: u8, tag: u8, zero: Zeros<2>, epoch: Epoch }
    struct CommandWire: 24 { number: u64, client: u64, count: u32, group: u8, barrier: u8, zero: Zeros<1>, deed: u8 }
    #[derive(Default)]
    struct EntryWire: 24 { seq: u64, incarnation: u64, epoch: u32, members: u16, node: u8, kind: u8 }
    struct MemberWire: 16 { incarnation: Incarnation, node: NodeId, zero: Zeros<7> }
    struct FlushedWire: 24 { knows: bool, zero: Zeros<7>, applied: u64, digest: u64 }
    struct SnapshotWire: 24 { applied: u64, digest: u64, incarnations: u32, groups: u32 }
    struct IncarnationWire: 24 { incarnation: Incarnation, done: u64, node: NodeId, zero: Zeros<7> }
    struct GroupWire: 16 { views: u64, members: u32, barriers: u16, name: u8, zero: Zeros<1> }
    struct WhoWire: 24 { incarnation: Incarnation, client: u64, node: NodeId, zero: Zeros<5>, least: u16 }
    struct BarrierWire: 8 { arrived: u32, name: u8, strict: bool, zero: Zeros<2> }
}

impl Message {
    /// Returns the encoding of the message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let tag = match &self.body {
            GroupMessage::Command(_) => 1,
            GroupMessage::Ordered(..) => 2,
            GroupMessage::Ack(_) => 3,
            GroupMessage::Stable(_) => 4,
            GroupMessage::Kept(_) => 5,
            GroupMessage::Flushed(_) => 6,
            GroupMessage::State(_) => 7,
        };
        let mut out = Writer::with(&Head { version: VERSION, tag, zero: Zeros, epoch: self.epoch }, BEHIND);
        match &self.body {
            GroupMessage::Command(command) => put_command(&mut out, command),
            GroupMessage::Ordered(stable, entry) => put_entry(out.put(stable), entry),
            GroupMessage::Ack(number) | GroupMessage::Stable(number) => _ = out.put(number),
            GroupMessage::Kept(entry) => put_entry(&mut out, entry),
            GroupMessage::Flushed(Flushed { knows, applied, digest }) => {
                out.put(&FlushedWire { knows: *knows, zero: Zeros, applied: *applied, digest: *digest });
            }
            GroupMessage::State(Snapshot(replica)) => put_replica(&mut out, replica),
        }
        out.finish()
    }

    /// Decodes a message.
    ///
    /// # Errors
    /// The bytes are not a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("message about groups", bytes, |reader| {
            let Head { version, tag, epoch, .. } = reader.take()?;
            require_version(version, VERSION)?;
            let message = Self { epoch, body: take_body(reader, tag)? };
            // Unused fields are zero, and sorted parts are in order.
            require(message.encode() == bytes, "order or filling")?;
            Ok(message)
        })
    }
}

fn take_body(reader: &mut Reader<'_>, tag: u8) -> Result<GroupMessage, Fault> {
    Ok(match tag {
        1 => GroupMessage::Command(take_command(reader)?),
        2 => GroupMessage::Ordered(take_counter(reader)?, take_entry(reader)?),
        3 => GroupMessage::Ack(take_counter(reader)?),
        4 => GroupMessage::Stable(take_counter(reader)?),
        5 => GroupMessage::Kept(take_entry(reader)?),
        6 => {
            let FlushedWire { knows, applied, digest, .. } = reader.take()?;
            GroupMessage::Flushed(Flushed { knows, applied: counter(applied)?, digest })
        }
        7 => GroupMessage::State(Snapshot(Arc::new(take_replica(reader)?))),
        _ => return Err(Fault::Field("tag")),
    })
}

fn put_command(out: &mut Writer, Command { number, client, group, deed }: &Command) {
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
    out.put(&CommandWire {
        number: *number,
        client: *client,
        count,
        group: group.bytes().len() as u8,
        barrier: barrier.len() as u8,
        zero: Zeros,
        deed,
    });
    out.bytes(group.bytes()).bytes(barrier).bytes(bytes);
}

fn put_entry(out: &mut Writer, Entry { seq, what }: &Entry) {
    let head = EntryWire { seq: *seq, ..EntryWire::default() };
    match what {
        EntryContent::Command(node, incarnation, command) => {
            out.put(&EntryWire { incarnation: incarnation.0, node: node.0, kind: 1, ..head });
            put_command(out, command);
        }
        EntryContent::View(view) => {
            let members = view.members.len() as u16;
            out.put(&EntryWire { epoch: view.epoch.0, members, kind: 2, ..head });
            for &(node, incarnation) in &view.members {
                out.put(&MemberWire { incarnation, node, zero: Zeros });
            }
        }
    }
}

fn put_replica(out: &mut Writer, Replica { applied, digest, done, groups }: &Replica) {
    let (incarnations, count) = (done.len() as u32, groups.len() as u32);
    out.put(&SnapshotWire { applied: *applied, digest: *digest, incarnations, groups: count });
    for (&(node, incarnation), &done) in done {
        out.put(&IncarnationWire { incarnation, done, node, zero: Zeros });
    }
    for (name, Group { number, members, barriers }) in groups {
        out.put(&GroupWire {
            views: *number,
            members: members.len() as u32,
            barriers: barriers.len() as u16,
            name: name.bytes().len() as u8,
            zero: Zeros,
        });
        out.bytes(name.bytes());
        members.iter().for_each(|who| put_who(out, *who, 0));
        for (name, Barrier { strict, arrived }) in barriers {
            let (arrives, len) = (arrived.len() as u32, name.bytes().len() as u8);
            out.put(&BarrierWire { arrived: arrives, name: len, strict: *strict, zero: Zeros });
            out.bytes(name.bytes());
            arrived.iter().for_each(|(who, least)| put_who(out, *who, *least));
        }
    }
}

fn put_who(out: &mut Writer, GroupMember { node, incarnation, client }: GroupMember, least: u16) {
    out.put(&WhoWire { incarnation, client, node, zero: Zeros, least });
}

fn take_name(reader: &mut Reader<'_>, len: u8) -> Result<Name, Fault> {
    Name::new(reader.bytes(len)?).map_err(|_| Fault::Field("name"))
}

fn take_counter(reader: &mut Reader<'_>) -> Result<u64, Fault> {
    counter(reader.take()?)
}

fn counter(number: u64) -> Result<u64, Fault> {
    require(number < MOST, "counter")?;
    Ok(number)
}

fn take_command(reader: &mut Reader<'_>) -> Result<Command, Fault> {
    let CommandWire { number, client, count, group, barrier, deed, .. } = reader.take()?;
    let group = take_name(reader, group)?;
    let deed = match deed {
        1 => Deed::Join,
        2 | 3 => Deed::Leave { died: deed == 3 },
        4 if count as usize <= MAX_MESSAGE => Deed::Send(reader.bytes(count as usize)?.into()),
        5 | 6 => Deed::Arrive {
            barrier: take_name(reader, barrier)?,
            least: u16::try_from(count).map_err(|_| Fault::Field("count"))?,
            strict: deed == 6,
        },
        _ => return Err(Fault::Field("deed")),
    };
    Ok(Command { number: counter(number)?, client, group, deed })
}

fn take_entry(reader: &mut Reader<'_>) -> Result<Entry, Fault> {
    let EntryWire { seq, incarnation, epoch, members, node, kind } = reader.take()?;
    let what = match kind {
        1 => EntryContent::Command(NodeId::from_raw(node)?, Incarnation(incarnation), take_command(reader)?),
        2 if usize::from(members) <= MAX_NODES => {
            let members = reader.list(members, |reader| {
                let MemberWire { incarnation, node, .. } = reader.take()?;
                Ok((node, incarnation))
            })?;
            EntryContent::View(Members { epoch: Epoch(epoch), members })
        }
        _ => return Err(Fault::Field("kind")),
    };
    Ok(Entry { seq: counter(seq)?, what })
}

fn take_replica(reader: &mut Reader<'_>) -> Result<Replica, Fault> {
    let SnapshotWire { applied, digest, incarnations, groups } = reader.take()?;
    require(incarnations as usize <= MAX_NODES && groups as usize <= MAX_GROUPS, "count")?;
    let done = reader.list(incarnations, |reader| {
        let IncarnationWire { incarnation, done, node, .. } = reader.take()?;
        Ok(((node, incarnation), counter(done)?))
    })?;
    let groups = reader.list(groups, |reader| {
        let GroupWire { views, members, barriers, name, .. } = reader.take()?;
        let name = take_name(reader, name)?;
        let members = take_members(reader, members, |who, _| who)?;
        let barriers = reader.list(barriers, |reader| {
            let BarrierWire { arrived, name, strict, .. } = reader.take()?;
            let name = take_name(reader, name)?;
            Ok((name, Barrier { strict, arrived: take_members(reader, arrived, |who, least| (who, least))? }))
        })?;
        Ok((name, Group { number: counter(views)?, members, barriers }))
    })?;
    Ok(Replica { applied: counter(applied)?, digest, done, groups })
}

fn take_members<T, C: FromIterator<T>>(
    reader: &mut Reader<'_>,
    count: u32,
    one: impl Fn(GroupMember, u16) -> T,
) -> Result<C, Fault> {
    require(count as usize <= MAX_MEMBERS, "count")?;
    reader.list(count, |reader| {
        let WhoWire { incarnation, client, node, least, .. } = reader.take()?;
        Ok(one(GroupMember { node, incarnation, client }, least))
    })
}

/// Decodes any bytes as a message of another member, like a fuzz target, and handles it. Returns
/// whether it was accepted. An accepted message has only this encoding.
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
