//! The bytes of a recording.
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 8 | magic, `PLEXSTAT` |
//! | 8 | 4 | format, 1 |
//! | 12 | 4 | length of the text |
//! | 16 | 4 | CRC-32C of the text |
//! | 20 | | the text: JSON with `cluster`, `id`, `nodes`, `channels`, `directions`, `size_bounds`, `interval_ms` |
//! | | | records, one behind the other: |
//! | 0 | 4 | length of the body |
//! | 4 | 4 | CRC-32C of the body |
//! | 8 | | the body: varints (LEB128): time in ms since 1970, length of the interval in ms, nodes; for each its place in `nodes`, its state (0 alive, 1 silent, 2 down), entries; for each peer, worker, channel, direction, size class, messages, bytes |
//!
//! Numbers of nodes, peers, channels, directions and classes are places in the lists of the text,
//! so a file says itself what it holds. An entry is there only if something was counted.

use plexus_base::{
    counters::{SIZE_BOUNDS, SIZES},
    crc32c,
    wire::{self, Fault, Fixed, Reader, Writer, require, require_magic, require_version},
};
use plexus_interconnect::Channel;
use serde::{Deserialize, Serialize};

use super::varint::{put, take};
use crate::{
    cluster::{Reading, Seen},
    stat::DIRECTIONS,
};

const MAGIC: [u8; 8] = *b"PLEXSTAT";

const FORMAT: u32 = 1;

/// The maximum length of a text and of a body: far above the need of sixteen nodes.
pub(super) const MAX_LENGTH: usize = 16 << 20;

/// The length of the fields before the text of a head.
pub(super) const BEFORE_TEXT: usize = HeadBytes::LEN;

/// The length of the fields before the body of a record.
pub(super) const BEFORE_BODY: usize = RecordBytes::LEN;

/// The end of the year 9999. A recording with later times or longer intervals is invalid.
const MAX_MS: u64 = 253_402_300_799_999;

wire::layout! {
    struct HeadBytes: 20 { magic: [u8; 8], format: u32, length: u32, crc: u32 }
    struct RecordBytes: 8 { length: u32, crc: u32 }
}

/// The meaning of the numbers in a recording.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Head {
    /// The name of the cluster.
    pub cluster: String,
    /// The identifier of the cluster.
    pub id: String,
    /// The names of its nodes.
    pub nodes: Vec<String>,
    /// The names of the channels.
    pub channels: Vec<String>,
    /// The names of the directions.
    pub directions: Vec<String>,
    /// The longest message of each size class; the last class has no bound.
    pub size_bounds: Vec<u64>,
    /// The intended length of an interval, in milliseconds.
    pub interval_ms: u64,
}

/// The record of one interval.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The end of the interval, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The length of the interval in milliseconds.
    pub interval_ms: u64,
    /// The nodes that were asked.
    pub nodes: Vec<NodeRecord>,
}

/// The record of one node in an interval.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeRecord {
    /// The index of the node.
    pub node: usize,
    /// The state of the node.
    pub state: NodeState,
    /// The counts of the node.
    pub entries: Vec<Entry>,
}

/// The state of a node in an interval.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeState {
    /// The node answered.
    Alive,
    /// The node ran and did not answer.
    Silent,
    /// The node did not run.
    Down,
}

/// A count of one peer, worker, channel, direction and size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The index of the node at the other end.
    pub peer: usize,
    /// The worker of the link.
    pub worker: u8,
    /// The index of the channel.
    pub channel: usize,
    /// The index of the direction.
    pub direction: usize,
    /// The index of the size class.
    pub class: usize,
    /// The number of messages.
    pub messages: u64,
    /// The number of their bytes.
    pub bytes: u64,
}

impl Head {
    /// Returns the head for a recording of this cluster by this program.
    pub fn new(cluster: &str, id: &str, nodes: &[String], interval_ms: u64) -> Self {
        Self {
            cluster: cluster.into(),
            id: id.into(),
            nodes: nodes.into(),
            channels: Channel::ALL.iter().map(|channel| channel.name().into()).collect(),
            directions: DIRECTIONS.map(str::to_owned).into(),
            size_bounds: SIZE_BOUNDS.into(),
            interval_ms,
        }
    }

    /// Returns true if records under `other` can follow those under this head: only the interval
    /// may differ.
    pub(super) fn goes_on_with(&self, other: &Self) -> bool {
        Self { interval_ms: other.interval_ms, ..self.clone() } == *other
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let text = serde_json::to_vec(self).expect("strings and numbers are JSON");
        let (length, crc) = (text.len() as u32, crc32c(&text));
        let mut writer = Writer::with(&HeadBytes { magic: MAGIC, format: FORMAT, length, crc }, text.len());
        writer.bytes(&text);
        writer.finish()
    }

    /// Returns the length of the text after these bytes, or the reason why this is no recording.
    pub(super) fn text_length(front: &[u8]) -> Result<usize, &'static str> {
        let front = front.get(..BEFORE_TEXT).unwrap_or_default();
        let head = wire::decode("head of a recording", front, |reader| {
            let head: HeadBytes = reader.take()?;
            require_magic(head.magic, MAGIC)?;
            require_version(head.format, FORMAT)?;
            require(head.length as usize <= MAX_LENGTH, "length")?;
            Ok(head.length as usize)
        });
        head.map_err(|error| match error.fault {
            Fault::CutOff | Fault::Magic => "it is not a recording",
            Fault::Version { .. } => {
                "it was recorded by a newer plexus, in a format that this one does not know"
            }
            _ => DAMAGED_HEAD,
        })
    }

    /// Decodes a head, or returns the reason why it is invalid.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let length = Self::text_length(bytes)?;
        let mut reader = Reader::new(bytes);
        let HeadBytes { crc, .. } = reader.take().map_err(|_| DAMAGED_HEAD)?;
        let text = Some(reader.rest()).filter(|text| text.len() == length && crc32c(text) == crc);
        let parsed: Self = text.and_then(|text| serde_json::from_slice(text).ok()).ok_or(DAMAGED_HEAD)?;
        if parsed.size_bounds.len() + 1 != SIZES || parsed.directions.len() != DIRECTIONS.len() {
            return Err("its size classes or directions are others than those of this plexus");
        }
        Ok(parsed)
    }
}

const DAMAGED_HEAD: &str = "its head is damaged";

impl Record {
    /// Returns the record of an interval under `head`. Unknown names are left out: the nodes do not
    /// change during a recording.
    pub(super) fn of(interval: &Reading, head: &Head) -> Self {
        let place = |names: &[String], name: &str| names.iter().position(|known| known == name);
        let nodes = interval.nodes.iter().filter_map(|(name, seen)| {
            let node = place(&head.nodes, name)?;
            let (state, snapshot) = match seen {
                Seen::Alive(snapshot) => (NodeState::Alive, Some(snapshot)),
                Seen::Silent(_) | Seen::Unreachable(_) => (NodeState::Silent, None),
                Seen::Down | Seen::Removed => (NodeState::Down, None),
            };
            let mut entries = Vec::new();
            for link in snapshot.iter().flat_map(|snapshot| &snapshot.links) {
                let Some(peer) = place(&head.nodes, &link.peer) else { continue };
                for (name, traffic) in &link.traffic.0 {
                    let Some(channel) = place(&head.channels, name) else { continue };
                    for (direction, sizes) in traffic.directions().into_iter().enumerate() {
                        for class in (0..SIZES).filter(|class| sizes.messages[*class] > 0) {
                            let (messages, bytes) = (sizes.messages[class], sizes.bytes[class]);
                            let worker = link.worker;
                            entries.push(Entry { peer, worker, channel, direction, class, messages, bytes });
                        }
                    }
                }
            }
            Some(NodeRecord { node, state, entries })
        });
        let interval_ms = (interval.seconds.unwrap_or_default() * 1e3).round() as u64;
        Self { unix_ms: interval.unix_ms, interval_ms, nodes: nodes.collect() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        for number in [self.unix_ms, self.interval_ms, self.nodes.len() as u64] {
            put(&mut body, number);
        }
        for node in &self.nodes {
            let state = match node.state {
                NodeState::Alive => 0,
                NodeState::Silent => 1,
                NodeState::Down => 2,
            };
            for number in [node.node as u64, state, node.entries.len() as u64] {
                put(&mut body, number);
            }
            for entry in &node.entries {
                let Entry { peer, worker, channel, direction, class, messages, bytes } = *entry;
                let places = [peer, worker.into(), channel, direction, class].map(|place| place as u64);
                places.into_iter().chain([messages, bytes]).for_each(|number| put(&mut body, number));
            }
        }
        sealed(&body)
    }

    /// Returns the length of the body after these bytes; `None` if this is no beginning of a
    /// record.
    pub(super) fn body_length(front: &[u8; BEFORE_BODY]) -> Option<usize> {
        let RecordBytes { length, .. } = wire::decode("record", front, Reader::take).ok()?;
        Some(length as usize).filter(|length| *length <= MAX_LENGTH)
    }

    /// Decodes a record; `None` if the bytes are damaged.
    pub(super) fn decode(front: &[u8; BEFORE_BODY], body: &[u8], head: &Head) -> Option<Self> {
        let RecordBytes { length, crc } = wire::decode("record", front, Reader::take).ok()?;
        let whole = length as usize == body.len() && crc32c(body) == crc;
        Self::parse(body, head).ok().filter(|_| whole)
    }

    /// Returns true if `body` is a valid beginning of a longer body. If its record is complete or
    /// malformed, the announced length is wrong, and other records may follow.
    pub(super) fn is_begun(body: &[u8], head: &Head) -> bool {
        Self::parse(body, head) == Err(Fault::CutOff)
    }

    fn parse(body: &[u8], head: &Head) -> Result<Self, Fault> {
        let body = &mut Reader::new(body);
        let (unix_ms, interval_ms, count) = (take(body)?, take(body)?, take(body)?);
        require(unix_ms.max(interval_ms) <= MAX_MS, "time")?;
        // Counts are not trusted for allocations: each element is read before there is room for it.
        let mut nodes = Vec::new();
        for _ in 0..count {
            let node = below(take(body)?, head.nodes.len())?;
            let state = match take(body)? {
                0 => NodeState::Alive,
                1 => NodeState::Silent,
                2 => NodeState::Down,
                _ => return Err(Fault::Field("state")),
            };
            let mut entries = Vec::new();
            for _ in 0..take(body)? {
                entries.push(Entry {
                    peer: below(take(body)?, head.nodes.len())?,
                    worker: below(take(body)?, 256)? as u8,
                    channel: below(take(body)?, head.channels.len())?,
                    direction: below(take(body)?, head.directions.len())?,
                    class: below(take(body)?, SIZES)?,
                    messages: take(body)?,
                    bytes: take(body)?,
                });
            }
            nodes.push(NodeRecord { node, state, entries });
        }
        require(body.is_empty(), "length")?;
        Ok(Self { unix_ms, interval_ms, nodes })
    }
}

fn below(place: u64, length: usize) -> Result<usize, Fault> {
    usize::try_from(place).ok().filter(|place| *place < length).ok_or(Fault::Field("place"))
}

/// Returns a body after its length and checksum.
pub(super) fn sealed(body: &[u8]) -> Vec<u8> {
    let mut writer = Writer::with(&RecordBytes { length: body.len() as u32, crc: crc32c(body) }, body.len());
    writer.bytes(body);
    writer.finish()
}
