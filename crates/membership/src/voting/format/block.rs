//! How every block of a voting file begins:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | magic, `PLXV` |
//! | 4 | 2 | format, 2 |
//! | 6 | 1 | kind: 1 header, 2 heartbeat, 3 ballot |
//! | 7 | 1 | the node that writes it; 0 in the header |
//! | 8 | 16 | the cluster's random name |
//! | 24 | 8 | the file's id |
//! | 32 | 8 | counter: higher in every block that a node writes to the file, each kind for itself; 0 in the header |
//! | 40 | 4 | CRC-32C of the 4096 bytes with this field zero |
//! | 44 | 4 | zero |
//! | 48 | | the body of its kind, then zeros |

use std::fmt;

use plexus_base::{NodeId, crc32c_without};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64, U128},
};

use crate::protocol::FileId;

/// No node writes so many blocks; from bytes that say so nobody could count on.
pub(super) const MAX_COUNTER: u64 = u64::MAX / 2;

/// Bytes of a block.
pub const BLOCK: usize = 4096;

const MAGIC: [u8; 4] = *b"PLXV";
const FORMAT: u16 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Prefix {
    magic: [u8; 4],
    format: U16,
    kind: u8,
    node: u8,
    cluster: U128,
    file: U64,
    counter: U64,
    crc: U32,
    zero: U32,
}

const PREFIX: usize = 48;
const CRC: usize = 40;
const _: () = assert!(size_of::<Prefix>() == PREFIX);

/// Names a cluster; random, made once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClusterId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Whose file, and which.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileName {
    /// The cluster.
    pub cluster: ClusterId,
    /// The file.
    pub file: FileId,
}

/// Why a block is not taken for what should stand in its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BlockError {
    /// Too few bytes.
    #[error("the block is cut off")]
    CutOff,
    /// Something else.
    #[error("it is not a block of a voting file")]
    NotVoting,
    /// Torn by a crash, or changed since.
    #[error("the block is torn or damaged")]
    Damaged,
    /// From a later program.
    #[error("the block has format {0}, which this program does not read")]
    Format(u16),
    /// Another cluster's.
    #[error("it belongs to cluster {0}; correct the path of the voting file")]
    Cluster(ClusterId),
    /// Another file's.
    #[error("it belongs to voting file {0}; correct the path of the voting file")]
    File(FileId),
    /// Another place's.
    #[error("the block belongs elsewhere in the file")]
    Misplaced,
    /// A sound checksum over what cannot be.
    #[error("the block says what cannot be")]
    Meaningless,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Header = 1,
    Heartbeat = 2,
    Ballot = 3,
}

/// What stands where.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) name: FileName,
    pub(super) kind: Kind,
    pub(super) node: NodeId,
}

/// A whole block with this body.
pub(super) fn seal(at: Place, counter: u64, body: &[u8]) -> Vec<u8> {
    let prefix = Prefix {
        magic: MAGIC,
        format: U16::new(FORMAT),
        kind: at.kind as u8,
        node: at.node.0,
        cluster: U128::new(at.name.cluster.0),
        file: U64::new(at.name.file.0),
        counter: U64::new(counter),
        crc: U32::ZERO,
        zero: U32::ZERO,
    };
    let mut block = prefix.as_bytes().to_vec();
    block.extend_from_slice(body);
    block.resize(BLOCK, 0);
    mend(&mut block);
    block
}

/// Sets the checksum of a whole block.
pub(super) fn mend(block: &mut [u8]) {
    let crc = crc32c_without(block, CRC);
    block[CRC..CRC + 4].copy_from_slice(&crc.to_le_bytes());
}

/// The counter and body of what stands there, `None` where nothing was written yet.
pub(super) fn open(at: Place, bytes: &[u8]) -> Result<Option<(u64, &[u8])>, BlockError> {
    if bytes.len() != BLOCK {
        return Err(BlockError::CutOff);
    }
    let (prefix, body) = Prefix::ref_from_prefix(bytes).map_err(|_| BlockError::CutOff)?;
    if prefix.magic != MAGIC {
        let never = bytes.iter().all(|byte| *byte == 0);
        return if never { Ok(None) } else { Err(BlockError::NotVoting) };
    }
    if crc32c_without(bytes, CRC) != prefix.crc.get() {
        return Err(BlockError::Damaged);
    }
    if prefix.format.get() != FORMAT {
        return Err(BlockError::Format(prefix.format.get()));
    }
    if prefix.cluster.get() != at.name.cluster.0 {
        return Err(BlockError::Cluster(ClusterId(prefix.cluster.get())));
    }
    if prefix.file.get() != at.name.file.0 {
        return Err(BlockError::File(FileId(prefix.file.get())));
    }
    if prefix.kind != at.kind as u8 || prefix.node != at.node.0 {
        return Err(BlockError::Misplaced);
    }
    let counter = prefix.counter.get();
    if counter >= MAX_COUNTER {
        return Err(BlockError::Meaningless);
    }
    Ok(Some((counter, body)))
}

/// The counter that a block says it has.
pub(super) fn counter(bytes: &[u8]) -> u64 {
    Prefix::ref_from_prefix(bytes).expect("a whole block").0.counter.get()
}

/// Where a block says that it belongs.
pub(super) fn claimed(bytes: &[u8]) -> (FileName, NodeId) {
    let (prefix, _) = Prefix::ref_from_prefix(bytes).expect("a whole block");
    let name = FileName { cluster: ClusterId(prefix.cluster.get()), file: FileId(prefix.file.get()) };
    (name, NodeId(prefix.node % plexus_base::MAX_NODES as u8))
}
