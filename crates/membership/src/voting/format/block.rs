//! How every block of a voting file begins:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, `PLXV` |
//! | 4 | 2 | format, 4 |
//! | 6 | 1 | kind: 1 header, 2 heartbeat, 3 ballot |
//! | 7 | 1 | the node that writes it; 0 in the header |
//! | 8 | 16 | the cluster's random name |
//! | 24 | 8 | the file's id |
//! | 32 | 8 | counter: higher in every block that a node writes to the file, each kind for itself; 0 in the header |
//! | 40 | 4 | CRC-32C of the 4096 bytes with this field zero |
//! | 44 | 4 | zero |
//! | 48 | | the body of its kind, then zeros |

use std::fmt;

use plexus_base::{
    NodeId,
    wire::{self, DecodeError, Fault, Fixed, Reader, Writer, require, require_magic, require_version},
};

use crate::protocol::FileId;

/// Larger counters are refused, so that a writer can always count on from the value it reads.
pub(super) const MAX_COUNTER: u64 = u64::MAX / 2;

/// The number of bytes of a block.
pub const BLOCK: usize = 4096;

const MAGIC: [u8; 4] = *b"PLXV";
const FORMAT: u16 = 4;

wire::newtypes!(ClusterId(u128));

wire::layout! {
    struct Prefix: 48 {
        magic: [u8; 4], format: u16, kind: u8, node: u8, cluster: ClusterId, file: FileId, counter: u64, crc: u32, zero: u32
    }
}

/// The offset of the checksum.
const CRC: usize = 40;

/// The random identifier of a cluster, chosen when it is created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The identity of a voting file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileName {
    /// The cluster.
    pub cluster: ClusterId,
    /// The file.
    pub file: FileId,
}

/// The reason why a block is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// The block is torn, damaged, of a newer version, or not a block of a voting file.
    #[error("{0}")]
    Malformed(#[from] DecodeError),
    /// The block belongs to another cluster.
    #[error("it belongs to cluster {0}; correct the path of the voting file")]
    Cluster(ClusterId),
    /// The block belongs to another voting file.
    #[error("it belongs to voting file {0}; correct the path of the voting file")]
    File(FileId),
    /// The block belongs to another position in the file.
    #[error("the block belongs elsewhere in the file")]
    Misplaced,
}

impl From<Fault> for BlockError {
    fn from(fault: Fault) -> Self {
        Self::Malformed(fault.of("block of a voting file"))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Header = 1,
    Heartbeat = 2,
    Ballot = 3,
}

/// The position of a block.
#[derive(Clone, Copy)]
pub(super) struct BlockPosition {
    pub(super) name: FileName,
    pub(super) kind: Kind,
    pub(super) node: NodeId,
}

/// Returns a whole block with this body.
pub(super) fn seal(at: BlockPosition, counter: u64, body: &impl Fixed) -> Vec<u8> {
    let prefix = Prefix {
        magic: MAGIC,
        format: FORMAT,
        kind: at.kind as u8,
        node: at.node.0,
        cluster: at.name.cluster,
        file: at.name.file,
        counter,
        crc: 0,
        zero: 0,
    };
    let mut block = Writer::with(&prefix, BLOCK);
    block.put(body).fill(BLOCK);
    let mut block = block.finish();
    mend(&mut block);
    block
}

/// Sets the checksum of a whole block.
pub(super) fn mend(block: &mut [u8]) {
    wire::seal(block, CRC);
}

/// Returns the counter and body of a block, or `None` if it was never written.
pub(super) fn open(at: BlockPosition, bytes: &[u8]) -> Result<Option<(u64, &[u8])>, BlockError> {
    if bytes.len() != BLOCK {
        return Err(Fault::CutOff.into());
    }
    let mut reader = Reader::new(bytes);
    let prefix: Prefix = reader.take()?;
    // Most blocks of a small cluster are empty, and each turn looks at all: compare whole words.
    if prefix.magic == [0; 4] && *bytes == [0; BLOCK] {
        return Ok(None);
    }
    require_magic(prefix.magic, MAGIC)?;
    wire::verify(bytes, CRC)?;
    require_version(prefix.format, FORMAT)?;
    if prefix.cluster != at.name.cluster {
        return Err(BlockError::Cluster(prefix.cluster));
    }
    if prefix.file != at.name.file {
        return Err(BlockError::File(prefix.file));
    }
    if prefix.kind != at.kind as u8 || prefix.node != at.node.0 {
        return Err(BlockError::Misplaced);
    }
    require(prefix.counter < MAX_COUNTER, "counter")?;
    Ok(Some((prefix.counter, reader.rest())))
}

/// Returns the counter that a block claims.
pub(super) fn counter(bytes: &[u8]) -> u64 {
    prefix(bytes).counter
}

/// Returns the file and node that a block claims.
pub(super) fn claimed(bytes: &[u8]) -> (FileName, NodeId) {
    let Prefix { cluster, file, node, .. } = prefix(bytes);
    (FileName { cluster, file }, NodeId(node % plexus_base::MAX_NODES as u8))
}

fn prefix(bytes: &[u8]) -> Prefix {
    Reader::new(bytes).take().expect("a whole block")
}
