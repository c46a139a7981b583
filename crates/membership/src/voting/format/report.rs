//! A report, as the body of a heartbeat block and as a message to a peer:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 2 | format, 2 |
//! | 2 | 1 | node |
//! | 3 | 1 | bit 0: reaches a majority of the voting files; bit 1: wants to leave |
//! | 4 | 4 | epoch of the view that it acts in, 0 none |
//! | 8 | 8 | incarnation |
//! | 16 | 8 | counter |
//! | 24 | 8 | lease in nanoseconds |
//! | 32 | 2 | nodes that it hears, a bit each |
//! | 34 | 6 | zero |
//! | 40 | 8 | greatest generation of the registry that is to be remembered |
//! | 48 | 16 x 8 | by node: last incarnation that is proved to be over, 0 none |
//! | 176 | 16 x 8 | by node: last incarnation that is known to have handed back all that it held, 0 none |
//! | 304 | 16 x 4 | by node: epoch of the view as of which that incarnation knew nothing to be lost, 0 none |
//! | 368 | 536 | the last view that it knows to be decided (as in a ballot) |

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, MAX_NODES, Nanos, NodeId};
use zerocopy::{
    FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use super::{
    block::MAX_COUNTER,
    view::{self, VIEW},
};
use crate::protocol::{Clean, Report};

/// Bytes of a message.
pub const MESSAGE: usize = 904;

const FORMAT: u16 = 2;
const REACHES: u8 = 1;
const LEAVING: u8 = 2;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    format: U16,
    node: u8,
    flags: u8,
    opened: U32,
    incarnation: U64,
    counter: U64,
    lease: U64,
    hears: U16,
    zero: [u8; 6],
    registry: U64,
    dead: [U64; MAX_NODES],
    clean: [U64; MAX_NODES],
    intact: [U32; MAX_NODES],
    decided: [u8; VIEW],
}

const _: () = assert!(size_of::<Layout>() == MESSAGE);

/// Why a message is no report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// Of another length.
    #[error("a report has {MESSAGE} bytes, not {0}")]
    Length(usize),
    /// What it says cannot be, or is of a later program.
    #[error("the report says what cannot be")]
    Meaningless,
}

/// A report as a message.
#[must_use]
pub fn message(report: &Report) -> Vec<u8> {
    encode(report).to_vec()
}

/// What a message says.
///
/// # Errors
/// It is no report.
pub fn message_decoded(bytes: &[u8]) -> Result<Report, MessageError> {
    if bytes.len() != MESSAGE {
        return Err(MessageError::Length(bytes.len()));
    }
    decode(bytes).ok_or(MessageError::Meaningless)
}

pub(super) fn encode(report: &Report) -> [u8; MESSAGE] {
    let flag = |is: bool, flag: u8| if is { flag } else { 0 };
    let layout = Layout {
        format: U16::new(FORMAT),
        node: report.node.0,
        flags: flag(report.reaches, REACHES) | flag(report.leaving, LEAVING),
        opened: U32::new(report.opened.0),
        incarnation: U64::new(report.incarnation.0),
        counter: U64::new(report.counter),
        lease: U64::new(report.lease.0),
        hears: view::bits(report.hears),
        zero: [0; 6],
        registry: U64::new(report.registry),
        dead: report.dead.map(|incarnation| U64::new(incarnation.0)),
        clean: report.clean.map(|clean| U64::new(clean.incarnation.0)),
        intact: report.clean.map(|clean| U32::new(clean.intact.0)),
        decided: view::encode(&report.decided),
    };
    zerocopy::transmute!(layout)
}

/// What stands at the beginning of `bytes`, if it can be a report.
pub(super) fn decode(bytes: &[u8]) -> Option<Report> {
    let (layout, _) = Layout::ref_from_prefix(bytes).ok()?;
    let sound = layout.format.get() == FORMAT
        && usize::from(layout.node) < MAX_NODES
        && layout.flags & !(REACHES | LEAVING) == 0
        && layout.incarnation.get() > 0
        && layout.counter.get() < MAX_COUNTER;
    if !sound {
        return None;
    }
    Some(Report {
        node: NodeId(layout.node),
        incarnation: Incarnation(layout.incarnation.get()),
        counter: layout.counter.get(),
        opened: Epoch(layout.opened.get()),
        hears: view::nodes(layout.hears),
        reaches: layout.flags & REACHES != 0,
        leaving: layout.flags & LEAVING != 0,
        lease: Nanos(layout.lease.get()),
        registry: layout.registry.get(),
        dead: layout.dead.map(|incarnation| Incarnation(incarnation.get())),
        clean: std::array::from_fn(|node| Clean {
            incarnation: Incarnation(layout.clean[node].get()),
            intact: Epoch(layout.intact[node].get()),
        }),
        decided: Arc::new(view::decode(&layout.decided)?),
    })
}
