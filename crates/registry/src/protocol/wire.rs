//! Messages as bytes, and as frames.
//!
//! A message is divided into frames of at most [`FRAME`] bytes. So a large message neither exceeds
//! the limit of the interconnect nor delays others. All frames of a message follow each other.
//! Numbers are little endian. Hostile bytes give an error, never a panic, and each message has one
//! encoding.
//!
//! A frame:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | bytes of the whole message, 40 to [`MESSAGE_MAX`] |
//! | 4 | 4 | offset of the frame's bytes: the end of the frame before |
//! | 8 | | the bytes |
//!
//! A message:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 2 |
//! | 1 | 1 | tag |
//! | 2 | 1 | (Ask, Do) command: 0 look, 1 change, 2 restore; (Have) 1 if the copies are lost; (Room, CanWrite) 1 if there is space, or if the copies can be written; (Full) node without space |
//! | 3 | 1 | (Ask, Do, Full) node that asks |
//! | 4 | 4 | epoch |
//! | 8 | 8 | (Have) generation; (Closed) found; (Do, Durable, Committed, Full) number in the order; (Unwritable) a bit for each node |
//! | 16 | 8 | (Ask, Do, Closed, Full) number of the command |
//! | 24 | 8 | (Ask, Do, Full) incarnation of the origin; (Closed) known |
//! | 32 | 4 | (change) how many edits |
//! | 36 | 4 | zero |
//! | 40 | | (Whole) the image of a copy; (restore) that of a backup; (change) the edits |
//!
//! Tags: 1 Have, 2 Fetch, 3 Whole, 4 Begin, 5 Closed, 6 Ask, 7 Do, 8 Durable, 9 Committed,
//! 10 Room, 11 Full, 12 CanWrite, 13 Unwritable. What a message does not use is zero.
//!
//! An edit:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 8 | version that the key must have; 0 also if any is accepted |
//! | 8 | 4 | bytes of the value |
//! | 12 | 1 | bytes of the key |
//! | 13 | 1 | kind: 0 keep, 1 delete, 2 set |
//! | 14 | 1 | 1 if the version is checked |
//! | 15 | 1 | zero |
//! | 16 | | the key, the value |

use std::sync::Arc;

use plexus_base::{
    Epoch, Incarnation, NodeId, NodeSet,
    wire::{self, DecodeError, Fault, Fixed, Reader, Writer, Zeros, require, require_version},
};

use super::{
    Change, ClusterName, Command, Contents, Edit, EditKind, ImageError, Kind, Origin, decode, encode,
    image::{IMAGE_MAX, mend, take_key},
    limits::{EDITS_MAX, VALUE_MAX},
    message::{Message, RegistryMessage},
};

/// The most bytes of a frame.
pub const FRAME: usize = 256 << 10;

/// The most bytes of a message: all contents, or a change of the same size with the larger heads of
/// its edits.
pub const MESSAGE_MAX: usize = HEAD + IMAGE_MAX + EDITS_MAX * EDIT;

const VERSION: u8 = 2;
const HEAD: usize = Head::LEN;
const EDIT: usize = EditHead::LEN;
const FRAME_HEAD: usize = FrameHead::LEN;

wire::layout! {
    #[derive(Default)]
    struct Head: 40 {
        version: u8, tag: u8, what: u8, node: u8, epoch: u32, at: u64, number: u64, incarnation: u64, edits: u32, zero: Zeros<4>
    }
    struct EditHead: 16 { version: u64, value: u32, key: u8, what: u8, matters: bool, zero: Zeros<1> }
    struct FrameHead: 8 { whole: u32, at: u32 }
}

const _: () = assert!(MESSAGE_MAX <= u32::MAX as usize);

const LOOK: u8 = 0;
const CHANGE: u8 = 1;
const RESTORE: u8 = 2;

impl Message {
    /// Returns the encoding of the message.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with(&self.head(), 0);
        match &self.body {
            RegistryMessage::Whole(contents) => _ = writer.bytes(&encode(Kind::Copy, contents)),
            RegistryMessage::Ask(_, Command::Restore(backup))
            | RegistryMessage::Do(_, _, Command::Restore(backup)) => {
                writer.bytes(&encode(Kind::Backup, backup));
            }
            RegistryMessage::Ask(_, Command::Change(Change(edits)))
            | RegistryMessage::Do(_, _, Command::Change(Change(edits))) => {
                edits.iter().for_each(|edit| put_edit(&mut writer, edit));
            }
            _ => {}
        }
        writer.finish()
    }

    /// Returns the frames that carry the message.
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let bytes = self.encode();
        let parts = bytes.chunks(FRAME - FRAME_HEAD).enumerate();
        let frame = |(number, part): (usize, &[u8])| {
            let at = (number * (FRAME - FRAME_HEAD)) as u32;
            let mut writer = Writer::with(&FrameHead { whole: bytes.len() as u32, at }, part.len());
            writer.bytes(part);
            writer.finish()
        };
        parts.map(frame).collect()
    }

    /// Decodes a message about the registry of `cluster`.
    ///
    /// # Errors
    /// The bytes are not a message.
    pub fn decode(cluster: ClusterName, bytes: &[u8]) -> Result<Self, DecodeError> {
        wire::decode("message of the registry", bytes, |reader| {
            let head: Head = reader.take()?;
            require_version(head.version, VERSION)?;
            let message = Self { epoch: Epoch(head.epoch), body: body(cluster, &head, reader)? };
            require(message.head() == head, "unused field")?;
            Ok(message)
        })
    }

    fn head(&self) -> Head {
        let head = Head { version: VERSION, epoch: self.epoch.0, ..Head::default() };
        match &self.body {
            RegistryMessage::Have { generation, is_lost } => {
                Head { tag: 1, at: *generation, what: u8::from(*is_lost), ..head }
            }
            RegistryMessage::Fetch => Head { tag: 2, ..head },
            RegistryMessage::Whole(_) => Head { tag: 3, ..head },
            RegistryMessage::Begin => Head { tag: 4, ..head },
            RegistryMessage::Closed { number, found, known } => {
                Head { tag: 5, number: *number, at: *found, incarnation: *known, ..head }
            }
            RegistryMessage::Ask(origin, command) => Head { tag: 6, ..asked(head, *origin, command) },
            RegistryMessage::Do(order, origin, command) => {
                Head { tag: 7, at: *order, ..asked(head, *origin, command) }
            }
            RegistryMessage::Durable(order) => Head { tag: 8, at: *order, ..head },
            RegistryMessage::Committed(order) => Head { tag: 9, at: *order, ..head },
            RegistryMessage::Room(has_room) => Head { tag: 10, what: u8::from(*has_room), ..head },
            RegistryMessage::Full(order, origin, full) => {
                Head { tag: 11, at: *order, what: full.0, ..asked(head, *origin, &Command::Look) }
            }
            RegistryMessage::CanWrite(can_write) => Head { tag: 12, what: u8::from(*can_write), ..head },
            RegistryMessage::Unwritable(nodes) => Head { tag: 13, at: nodes.to_raw().get().into(), ..head },
        }
    }
}

fn asked(head: Head, origin: Origin, command: &Command) -> Head {
    let (what, edits) = match command {
        Command::Look => (LOOK, 0),
        Command::Change(Change(edits)) => (CHANGE, edits.len() as u32),
        Command::Restore(_) => (RESTORE, 0),
    };
    let Origin { node, incarnation, number } = origin;
    Head { what, node: node.0, number, incarnation: incarnation.0, edits, ..head }
}

fn body(cluster: ClusterName, head: &Head, reader: &mut Reader<'_>) -> Result<RegistryMessage, Fault> {
    let (at, number) = (head.at, head.number);
    Ok(match head.tag {
        1 => RegistryMessage::Have { generation: at, is_lost: bool::from_raw(head.what)? },
        2 => RegistryMessage::Fetch,
        3 => RegistryMessage::Whole(contents(Kind::Copy, cluster, reader)?),
        4 => RegistryMessage::Begin,
        5 => RegistryMessage::Closed { number, found: at, known: head.incarnation },
        6 => RegistryMessage::Ask(origin(head)?, command(cluster, head, reader)?),
        7 => RegistryMessage::Do(at, origin(head)?, command(cluster, head, reader)?),
        8 => RegistryMessage::Durable(at),
        9 => RegistryMessage::Committed(at),
        10 => RegistryMessage::Room(bool::from_raw(head.what)?),
        11 => RegistryMessage::Full(at, origin(head)?, NodeId::from_raw(head.what)?),
        12 => RegistryMessage::CanWrite(bool::from_raw(head.what)?),
        13 => RegistryMessage::Unwritable(NodeSet::from_raw(
            u16::try_from(at).map_err(|_| Fault::Field("nodes"))?.into(),
        )?),
        _ => return Err(Fault::Field("tag")),
    })
}

fn contents(kind: Kind, cluster: ClusterName, reader: &mut Reader<'_>) -> Result<Arc<Contents>, Fault> {
    decode(kind, cluster, reader.rest()).map(Arc::new).map_err(|bad| match bad {
        ImageError::Damaged(fault) => fault,
        ImageError::Format(_) | ImageError::Foreign(_) => Fault::Field("contents"),
    })
}

fn origin(head: &Head) -> Result<Origin, Fault> {
    let (node, incarnation) = (NodeId::from_raw(head.node)?, Incarnation(head.incarnation));
    Ok(Origin { node, incarnation, number: head.number })
}

/// Reads a command; it must be valid for some contents.
fn command(cluster: ClusterName, head: &Head, reader: &mut Reader<'_>) -> Result<Command, Fault> {
    let command = match head.what {
        LOOK => Command::Look,
        CHANGE => {
            require(head.edits as usize <= EDITS_MAX, "number of edits")?;
            Command::Change(Change(reader.list(head.edits, edit)?))
        }
        RESTORE => Command::Restore(contents(Kind::Backup, cluster, reader)?),
        _ => return Err(Fault::Field("command")),
    };
    command.check(cluster).map_err(|_| Fault::Field("change"))?;
    Ok(command)
}

fn put_edit(writer: &mut Writer, Edit { key, expect, what }: &Edit) {
    let (what, value) = match what {
        EditKind::Keep => (0, &[][..]),
        EditKind::Delete => (1, &[][..]),
        EditKind::Set(value) => (2, &value[..]),
    };
    let key = key.as_str().as_bytes();
    writer.put(&EditHead {
        version: expect.unwrap_or(0),
        value: value.len() as u32,
        key: key.len() as u8,
        what,
        matters: expect.is_some(),
        zero: Zeros,
    });
    writer.bytes(key).bytes(value);
}

fn edit(reader: &mut Reader<'_>) -> Result<Edit, Fault> {
    let EditHead { version, value, key, what, matters, .. } = reader.take()?;
    let (key, len) = (take_key(reader, key)?, value as usize);
    require(len <= VALUE_MAX && (matters || version == 0) && (what == 2 || len == 0), "edit")?;
    let what = match what {
        0 => EditKind::Keep,
        1 => EditKind::Delete,
        2 => EditKind::Set(reader.bytes(len)?.into()),
        _ => return Err(Fault::Field("edit")),
    };
    Ok(Edit { key, expect: matters.then_some(version), what })
}

/// The assembly of one sender's frames into messages.
#[derive(Default)]
pub struct Gathered(Vec<u8>);

impl Gathered {
    /// Takes the next frame. Returns the bytes of the message if the frame was its last.
    ///
    /// # Errors
    /// The bytes are not a frame, or not the next one.
    pub fn take(&mut self, frame: &[u8]) -> Result<Option<Vec<u8>>, DecodeError> {
        let is_whole = wire::decode("frame of the registry", frame, |reader| {
            let FrameHead { whole, at } = reader.take()?;
            let (part, whole, at) = (reader.rest(), whole as usize, at as usize);
            require(at == self.0.len() && !part.is_empty(), "place behind the frame before")?;
            require(whole <= MESSAGE_MAX && at + part.len() <= whole, "length of the message")?;
            self.0.extend_from_slice(part);
            Ok(self.0.len() == whole)
        });
        is_whole.map(|is_whole| is_whole.then(|| std::mem::take(&mut self.0)))
    }
}

/// Decodes any bytes as a message, like a fuzz target, also with the checksum of its image
/// corrected. Returns how many were accepted. An accepted message has only this encoding and
/// survives division into frames.
#[doc(hidden)]
pub fn message_any(bytes: &[u8]) -> usize {
    let cluster = ClusterName(1);
    let mut mended = bytes.to_vec();
    if let Some(image) = mended.get_mut(HEAD..) {
        mend(image);
    }
    let mut taken = 0;
    for bytes in [bytes, &mended] {
        // As a frame the bytes must only do no harm.
        let _ = Gathered::default().take(bytes);
        let Ok(message) = Message::decode(cluster, bytes) else { continue };
        assert_eq!(message.encode(), bytes, "one encoding of each message");
        let mut gathered = Gathered::default();
        let frames = message.frames();
        let whole: Vec<_> =
            frames.iter().filter_map(|frame| gathered.take(frame).expect("in order")).collect();
        assert_eq!(whole, [bytes]);
        taken += 1;
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Key;

    const CLUSTER: ClusterName = ClusterName(1);

    fn large() -> Contents {
        let mut contents = Contents::new(CLUSTER);
        for key in ["a", "b/c", "d", "e", "f", "g"] {
            let change = Change::set(Key::new(key).unwrap(), &[7; VALUE_MAX]);
            contents.change(contents.generation() + 1, None, &change).unwrap();
        }
        contents
    }

    fn messages(contents: &Arc<Contents>) -> Vec<Message> {
        let origin = Origin { node: NodeId(2), incarnation: Incarnation(77), number: 5 };
        let key = |text| Key::new(text).unwrap();
        let edits = vec![
            Edit { key: key("a"), expect: None, what: EditKind::Set(b"value".as_slice().into()) },
            Edit { key: key("b"), expect: Some(0), what: EditKind::Delete },
            Edit { key: key("c"), expect: Some(9), what: EditKind::Keep },
        ];
        let bodies = [
            RegistryMessage::Have { generation: 3, is_lost: true },
            RegistryMessage::Fetch,
            RegistryMessage::Whole(Arc::clone(contents)),
            RegistryMessage::Begin,
            RegistryMessage::Closed { number: 4, found: 5, known: 6 },
            RegistryMessage::Ask(origin, Command::Look),
            RegistryMessage::Ask(origin, Command::Restore(Arc::clone(contents))),
            RegistryMessage::Do(8, origin, Command::Change(Change(edits))),
            RegistryMessage::Durable(8),
            RegistryMessage::Committed(9),
            RegistryMessage::Room(true),
            RegistryMessage::Full(9, origin, NodeId(1)),
            RegistryMessage::CanWrite(false),
            RegistryMessage::Unwritable([NodeId(0), NodeId(3)].into_iter().collect()),
        ];
        bodies.map(|body| Message { epoch: Epoch(7), body }).into()
    }

    #[test]
    fn every_message_comes_through_frames_as_it_was() {
        let mut gathered = Gathered::default();
        for message in messages(&Arc::new(large())) {
            let frames = message.frames();
            assert!(frames.iter().all(|frame| frame.len() <= FRAME));
            let got: Vec<_> = frames.iter().filter_map(|frame| gathered.take(frame).unwrap()).collect();
            assert_eq!(got.len(), 1);
            assert_eq!(Message::decode(CLUSTER, &got[0]), Ok(message));
        }
    }

    #[test]
    fn a_frame_out_of_turn_is_refused() {
        let frames = messages(&Arc::new(large()))[2].frames();
        let mut gathered = Gathered::default();
        assert!(frames.len() > 1 && gathered.take(&frames[1]).is_err());
        assert_eq!(gathered.take(&frames[0]), Ok(None));
        let fault = |gathered: &mut Gathered, frame: &[u8]| gathered.take(frame).map_err(|error| error.fault);
        let misplaced = Fault::Field("place behind the frame before");
        assert_eq!(fault(&mut gathered, &frames[0]), Err(misplaced));
        let endless = [&[0xff; 4][..], &[0; 4], b"x"].concat();
        let too_long = Fault::Field("length of the message");
        assert_eq!(fault(&mut Gathered::default(), &endless), Err(too_long));
    }

    #[test]
    fn hostile_bytes_do_no_harm() {
        let mut contents = Contents::new(CLUSTER);
        contents.change(2, None, &Change::set(Key::new("a").unwrap(), b"1")).unwrap();
        let good: Vec<_> = messages(&Arc::new(contents)).iter().map(Message::encode).collect();
        assert!(good.iter().all(|bytes| message_any(bytes) > 0));
        let mut taken = 0;
        plexus_sim::hostile(&good, |bytes| taken += message_any(bytes));
        assert!(taken > 100, "{taken}");
    }

    #[test]
    fn the_bytes_stay_as_they_are() {
        let bytes = messages(&Arc::new(large())).iter().map(Message::encode).collect::<Vec<_>>().concat();
        assert_eq!((bytes.len(), plexus_base::crc32c(&bytes)), (787_348, 3_443_474_734));
    }
}
