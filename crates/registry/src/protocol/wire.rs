//! Messages as bytes, and as frames.
//!
//! A message goes in frames of [`FRAME`] bytes at most, so that what is large neither exceeds what the interconnect carries nor holds up others. All
//! frames of one follow each other. Little endian; hostile bytes give an error, never a panic, and each message has one encoding.
//!
//! A frame:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | bytes of the whole message, 40 to [`MESSAGE_MAX`] |
//! | 4 | 4 | where in it the frame's bytes belong: behind those of the frame before |
//! | 8 | | the bytes |
//!
//! A message:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 1 | version, 1 |
//! | 1 | 1 | tag |
//! | 2 | 1 | (Ask, Do) what: 0 look, 1 change, 2 restore; (Have) whether it is lost |
//! | 3 | 1 | (Ask, Do) node that asks |
//! | 4 | 4 | epoch |
//! | 8 | 8 | (Have) generation; (Closed) found; (Do, Durable, Committed) place in the order |
//! | 16 | 8 | (Ask, Do, Closed) number of what is asked |
//! | 24 | 8 | (Ask, Do) incarnation of who asks; (Closed) known |
//! | 32 | 4 | (change) how many edits |
//! | 36 | 4 | zero |
//! | 40 | | (Whole) the image of a copy; (restore) that of a backup; (change) the edits |
//!
//! Tags: 1 Have, 2 Fetch, 3 Whole, 4 Begin, 5 Closed, 6 Ask, 7 Do, 8 Durable, 9 Committed. What a message does not use is zero.
//!
//! An edit:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 8 | version that the key must have; 0 also where any will do |
//! | 8 | 4 | bytes of the value |
//! | 12 | 1 | bytes of the key |
//! | 13 | 1 | what: 0 keep, 1 delete, 2 set |
//! | 14 | 1 | whether the version matters |
//! | 15 | 1 | zero |
//! | 16 | | the key, the value |

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, MAX_NODES, NodeId};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U32, U64},
};

use super::{
    Bad, Change, ClusterName, Command, Edit, Key, Kind, Origin, What, decode, encode,
    image::{IMAGE_MAX, mend},
    limits::{EDITS_MAX, VALUE_MAX},
    message::{Body, Message},
};

/// Bytes of a frame, at most.
pub const FRAME: usize = 256 << 10;

/// Bytes of a message, at most: all contents, or a change of as much with the greater heads of its edits.
pub const MESSAGE_MAX: usize = HEAD + IMAGE_MAX + EDITS_MAX * EDIT;

const VERSION: u8 = 1;
const HEAD: usize = 40;
const EDIT: usize = 16;
const FRAME_HEAD: usize = 8;

/// Why bytes are not a message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WireError {
    /// They end too early or too late.
    #[error("a message of the registry of {0} bytes, which do not fit what it says")]
    Length(usize),
    /// Another version.
    #[error("version {0} of the registry's messages; this node speaks {VERSION}")]
    Version(u8),
    /// A frame that does not follow the one before.
    #[error("a frame of the registry that does not belong behind the one before")]
    Frame,
    /// A value that the field cannot have.
    #[error("impossible {0} in a message of the registry")]
    Field(&'static str),
    /// An image that is none.
    #[error("contents of the registry in a message: {0}")]
    Image(#[from] Bad),
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Default, PartialEq)]
#[repr(C)]
struct Head {
    version: u8,
    tag: u8,
    what: u8,
    node: u8,
    epoch: U32,
    at: U64,
    number: U64,
    incarnation: U64,
    edits: U32,
    zero: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct EditHead {
    version: U64,
    value: U32,
    key: u8,
    what: u8,
    matters: u8,
    zero: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
struct FrameHead {
    whole: U32,
    at: U32,
}

const _: () = assert!(size_of::<Head>() == HEAD && size_of::<EditHead>() == EDIT);
const _: () = assert!(size_of::<FrameHead>() == FRAME_HEAD && MESSAGE_MAX <= u32::MAX as usize);

const LOOK: u8 = 0;
const CHANGE: u8 = 1;
const RESTORE: u8 = 2;

impl Message {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.head().as_bytes().to_vec();
        match &self.body {
            Body::Whole(contents) => bytes.append(&mut encode(Kind::Copy, contents)),
            Body::Ask(_, Command::Restore(backup)) | Body::Do(_, _, Command::Restore(backup)) => {
                bytes.append(&mut encode(Kind::Backup, backup));
            }
            Body::Ask(_, Command::Change(Change(edits))) | Body::Do(_, _, Command::Change(Change(edits))) => {
                edits.iter().for_each(|edit| put_edit(&mut bytes, edit));
            }
            _ => {}
        }
        bytes
    }

    /// The frames that carry it.
    #[must_use]
    pub fn frames(&self) -> Vec<Vec<u8>> {
        let bytes = self.encode();
        let whole = U32::new(bytes.len() as u32);
        let parts = bytes.chunks(FRAME - FRAME_HEAD).enumerate();
        let frame = |(number, part): (usize, &[u8])| {
            let at = U32::new((number * (FRAME - FRAME_HEAD)) as u32);
            [FrameHead { whole, at }.as_bytes(), part].concat()
        };
        parts.map(frame).collect()
    }

    /// What the bytes say, about the registry of `cluster`.
    ///
    /// # Errors
    /// They are no message.
    pub fn decode(cluster: ClusterName, bytes: &[u8]) -> Result<Self, WireError> {
        let length = WireError::Length(bytes.len());
        let Ok((head, mut rest)) = Head::ref_from_prefix(bytes) else { return Err(length) };
        if head.version != VERSION {
            return Err(WireError::Version(head.version));
        }
        let (at, number) = (head.at.get(), head.number.get());
        let body = match head.tag {
            1 => Body::Have { generation: at, is_lost: boolean(head.what)? },
            2 => Body::Fetch,
            3 => Body::Whole(Arc::new(decode(Kind::Copy, cluster, std::mem::take(&mut rest))?)),
            4 => Body::Begin,
            5 => Body::Closed { number, found: at, known: head.incarnation.get() },
            6 => Body::Ask(origin(head)?, command(cluster, head, &mut rest)?),
            7 => Body::Do(at, origin(head)?, command(cluster, head, &mut rest)?),
            8 => Body::Durable(at),
            9 => Body::Committed(at),
            _ => return Err(WireError::Field("tag")),
        };
        if !rest.is_empty() {
            return Err(length);
        }
        let message = Self { epoch: Epoch(head.epoch.get()), body };
        if message.head() != *head {
            return Err(WireError::Field("unused field"));
        }
        Ok(message)
    }

    fn head(&self) -> Head {
        let head = Head { version: VERSION, epoch: self.epoch.0.into(), ..Head::default() };
        match &self.body {
            Body::Have { generation, is_lost } => {
                Head { tag: 1, at: (*generation).into(), what: u8::from(*is_lost), ..head }
            }
            Body::Fetch => Head { tag: 2, ..head },
            Body::Whole(_) => Head { tag: 3, ..head },
            Body::Begin => Head { tag: 4, ..head },
            Body::Closed { number, found, known } => {
                let (number, at, incarnation) = ((*number).into(), (*found).into(), (*known).into());
                Head { tag: 5, number, at, incarnation, ..head }
            }
            Body::Ask(origin, command) => Head { tag: 6, ..asked(head, *origin, command) },
            Body::Do(order, origin, command) => {
                Head { tag: 7, at: (*order).into(), ..asked(head, *origin, command) }
            }
            Body::Durable(order) => Head { tag: 8, at: (*order).into(), ..head },
            Body::Committed(order) => Head { tag: 9, at: (*order).into(), ..head },
        }
    }
}

fn asked(head: Head, origin: Origin, command: &Command) -> Head {
    let (what, edits) = match command {
        Command::Look => (LOOK, 0),
        Command::Change(Change(edits)) => (CHANGE, edits.len() as u32),
        Command::Restore(_) => (RESTORE, 0),
    };
    let (number, incarnation) = (origin.number.into(), origin.incarnation.0.into());
    Head { what, node: origin.node.0, number, incarnation, edits: edits.into(), ..head }
}

fn origin(head: &Head) -> Result<Origin, WireError> {
    if usize::from(head.node) >= MAX_NODES {
        return Err(WireError::Field("node"));
    }
    let (node, incarnation) = (NodeId(head.node), Incarnation(head.incarnation.get()));
    Ok(Origin { node, incarnation, number: head.number.get() })
}

/// What is asked for: only what could be done to some contents.
fn command(cluster: ClusterName, head: &Head, rest: &mut &[u8]) -> Result<Command, WireError> {
    let command = match head.what {
        LOOK => Command::Look,
        CHANGE => {
            let edits = head.edits.get() as usize;
            if edits > EDITS_MAX {
                return Err(WireError::Field("number of edits"));
            }
            Command::Change(Change((0..edits).map(|_| edit(rest)).collect::<Result<_, _>>()?))
        }
        RESTORE => Command::Restore(Arc::new(decode(Kind::Backup, cluster, std::mem::take(rest))?)),
        _ => return Err(WireError::Field("command")),
    };
    command.check(cluster).map_err(|_| WireError::Field("change"))?;
    Ok(command)
}

fn put_edit(bytes: &mut Vec<u8>, Edit { key, expect, what }: &Edit) {
    let (tag, value) = match what {
        What::Keep => (0, &[][..]),
        What::Delete => (1, &[][..]),
        What::Set(value) => (2, &value[..]),
    };
    let head = EditHead {
        version: expect.unwrap_or(0).into(),
        value: (value.len() as u32).into(),
        key: key.as_str().len() as u8,
        what: tag,
        matters: u8::from(expect.is_some()),
        zero: 0,
    };
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(key.as_str().as_bytes());
    bytes.extend_from_slice(value);
}

fn edit(rest: &mut &[u8]) -> Result<Edit, WireError> {
    let short = WireError::Length(rest.len());
    let Ok((head, behind)) = EditHead::ref_from_prefix(rest) else { return Err(short) };
    let (version, len) = (head.version.get(), head.value.get() as usize);
    let Some((key, behind)) = behind.split_at_checked(usize::from(head.key)) else { return Err(short) };
    let key = std::str::from_utf8(key).ok().and_then(|text| Key::new(text).ok());
    let key = key.ok_or(WireError::Field("key"))?;
    let matters = boolean(head.matters)?;
    if head.zero != 0 || len > VALUE_MAX || !matters && version != 0 || head.what != 2 && len != 0 {
        return Err(WireError::Field("edit"));
    }
    let Some((value, behind)) = behind.split_at_checked(len) else { return Err(short) };
    *rest = behind;
    let what = match head.what {
        0 => What::Keep,
        1 => What::Delete,
        2 => What::Set(value.into()),
        _ => return Err(WireError::Field("edit")),
    };
    Ok(Edit { key, expect: matters.then_some(version), what })
}

fn boolean(byte: u8) -> Result<bool, WireError> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Field("yes or no")),
    }
}

/// Puts the frames of one sender together again.
#[derive(Default)]
pub struct Gathered(Vec<u8>);

impl Gathered {
    /// Takes the next frame; the bytes of the message, when it was the last of one.
    ///
    /// # Errors
    /// It is no frame, or not the next one.
    pub fn take(&mut self, frame: &[u8]) -> Result<Option<Vec<u8>>, WireError> {
        let Ok((head, part)) = FrameHead::ref_from_prefix(frame) else {
            return Err(WireError::Length(frame.len()));
        };
        let (whole, at) = (head.whole.get() as usize, head.at.get() as usize);
        if at != self.0.len() || part.is_empty() || whole > MESSAGE_MAX || at + part.len() > whole {
            return Err(WireError::Frame);
        }
        self.0.extend_from_slice(part);
        Ok((self.0.len() == whole).then(|| std::mem::take(&mut self.0)))
    }
}

/// Reads any bytes as a message, as a fuzz target would, and as one with the checksum of its image made right; how many were taken.
/// What is taken has only this encoding, and comes through frames as it was.
#[doc(hidden)]
#[must_use]
pub fn message_any(bytes: &[u8]) -> usize {
    let cluster = ClusterName(1);
    let mut mended = bytes.to_vec();
    if let Some(image) = mended.get_mut(HEAD..) {
        mend(image);
    }
    let mut taken = 0;
    for bytes in [bytes, &mended] {
        // As a frame it must only do no harm.
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
    use crate::protocol::Contents;

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
            Edit { key: key("a"), expect: None, what: What::Set(b"value".as_slice().into()) },
            Edit { key: key("b"), expect: Some(0), what: What::Delete },
            Edit { key: key("c"), expect: Some(9), what: What::Keep },
        ];
        let bodies = [
            Body::Have { generation: 3, is_lost: true },
            Body::Fetch,
            Body::Whole(Arc::clone(contents)),
            Body::Begin,
            Body::Closed { number: 4, found: 5, known: 6 },
            Body::Ask(origin, Command::Look),
            Body::Ask(origin, Command::Restore(Arc::clone(contents))),
            Body::Do(8, origin, Command::Change(Change(edits))),
            Body::Durable(8),
            Body::Committed(9),
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
        assert_eq!(gathered.take(&frames[0]), Err(WireError::Frame));
        let endless = FrameHead { whole: U32::MAX_VALUE, at: U32::ZERO };
        assert_eq!(Gathered::default().take(&[endless.as_bytes(), b"x"].concat()), Err(WireError::Frame));
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
}
