//! The header of a voting file: its identity, and the view that was decided last when the file was
//! created. It follows the common prefix of all blocks:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 48 | 520 | the view that was the last when the file was made (as in a ballot) |

use plexus_base::{
    NodeId,
    wire::{Fault, Reader},
};

use super::{
    block::{self, BlockError, BlockPosition, FileName, Kind, seal},
    view,
};
use crate::protocol::View;

/// The content of the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// The identity of the file.
    pub name: FileName,
    /// The view that was decided last when the file was created.
    pub first: View,
}

impl Header {
    fn position(name: FileName) -> BlockPosition {
        BlockPosition { name, kind: Kind::Header, node: NodeId(0) }
    }

    /// Returns the header's block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        seal(Self::position(self.name), 0, &view::encode(&self.first))
    }

    /// Returns the name of the file whose header this is, if it is one.
    #[must_use]
    pub fn name(bytes: &[u8]) -> Option<FileName> {
        let (name, _) = block::claimed(bytes);
        Self::decode(name, bytes).is_ok().then_some(name)
    }

    /// Decodes the header of the file `name`.
    ///
    /// # Errors
    /// Returns the reason why the header is refused.
    pub fn decode(name: FileName, bytes: &[u8]) -> Result<Self, BlockError> {
        let (_, body) = block::open(Self::position(name), bytes)?.ok_or(Fault::Magic)?;
        let first = view::decode(&Reader::new(body).take()?)?;
        Ok(Self { name, first })
    }
}
