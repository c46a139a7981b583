//! The header of a voting file: whose it is, and the view that its cluster began with. After what every block begins with:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 48 | 536 | the view that was the last when the file was made (as in a ballot) |

use plexus_base::{
    NodeId,
    wire::{Fault, Reader},
};

use super::{
    block::{self, BlockError, FileName, Kind, Place, seal},
    view,
};
use crate::protocol::View;

/// What the header says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Whose, and which.
    pub name: FileName,
    /// The view that was the last when the file was made.
    pub first: View,
}

impl Header {
    fn place(name: FileName) -> Place {
        Place { name, kind: Kind::Header, node: NodeId(0) }
    }

    /// The header's block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        seal(Self::place(self.name), 0, &view::encode(&self.first))
    }

    /// What a header says, if it is of this file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn decode(name: FileName, bytes: &[u8]) -> Result<Self, BlockError> {
        let (_, body) = block::open(Self::place(name), bytes)?.ok_or(Fault::Magic)?;
        let first = view::decode(&Reader::new(body).take()?)?;
        Ok(Self { name, first })
    }
}
