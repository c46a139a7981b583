//! A report, as the body of a heartbeat block and as a message to a peer:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 2 | format, 5 |
//! | 2 | 1 | node |
//! | 3 | 1 | bit 0: reaches a majority of the voting files; bit 1: wants to leave |
//! | 4 | 4 | epoch of the view that it acts in, 0 none |
//! | 8 | 8 | incarnation |
//! | 16 | 8 | counter |
//! | 24 | 8 | lease in nanoseconds |
//! | 32 | 2 | nodes that it hears, a bit each |
//! | 34 | 2 | nodes whose end must be proved, a bit each |
//! | 36 | 4 | zero |
//! | 40 | 8 | disk timeout in nanoseconds |
//! | 48 | 16 x 16 | by node: incarnation and counter of the last report heard over the interconnect, 0 none |
//! | 304 | 8 | greatest generation of the registry that is to be remembered |
//! | 312 | 16 x 8 | by node: last incarnation that is proved to be over, 0 none |
//! | 440 | 520 | the last view that it knows to be decided (as in a ballot) |

use std::sync::Arc;

use plexus_base::{
    Epoch, Incarnation, MAX_NODES, Nanos, NodeId, NodeSet,
    wire::{self, DecodeError, Fault, Fixed, Reader, Zeros, bits, require, require_version},
};

use super::{
    block::MAX_COUNTER,
    view::{self, ViewLayout},
};
use crate::protocol::{Report, ReportNumber};

/// The number of bytes of a message.
pub const MESSAGE: usize = Layout::LEN;

const FORMAT: u16 = 5;
const REACHES: u8 = 1;
const LEAVING: u8 = 2;

wire::layout! { impl ReportNumber: 16 { incarnation: Incarnation, counter: u64 } }

wire::layout! {
    pub(super) struct Layout: 960 {
        format: u16, node: NodeId, flags: u8, opened: Epoch, incarnation: Incarnation, counter: u64, lease: Nanos, hears: NodeSet,
        must_prove: NodeSet, zero: Zeros<4>, disk_timeout: Nanos, echo: [ReportNumber; MAX_NODES], registry: u64, dead: [u64; MAX_NODES],
        decided: ViewLayout
    }
}

/// Encodes a report as a message.
#[must_use]
pub fn message(report: &Report) -> Vec<u8> {
    wire::encode::<_, MESSAGE>(&encode(report)).to_vec()
}

/// Decodes a message.
///
/// # Errors
/// Returns an error if the bytes are not a report.
pub fn message_decoded(bytes: &[u8]) -> Result<Report, DecodeError> {
    wire::decode("report of a node", bytes, decode)
}

pub(super) fn encode(report: &Report) -> Layout {
    Layout {
        format: FORMAT,
        node: report.node,
        flags: bits([(report.reaches, REACHES), (report.leaving, LEAVING)]),
        opened: report.opened,
        incarnation: report.incarnation,
        counter: report.counter,
        lease: report.lease,
        hears: report.hears,
        must_prove: report.must_prove,
        zero: Zeros,
        disk_timeout: report.disk_timeout,
        echo: report.echo,
        registry: report.registry,
        dead: report.dead.map(|incarnation| incarnation.0),
        decided: view::encode(&report.decided),
    }
}

/// Decodes a report.
pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Report, Fault> {
    let layout: Layout = reader.take()?;
    require_version(layout.format, FORMAT)?;
    require(layout.flags & !(REACHES | LEAVING) == 0, "flags")?;
    require(layout.incarnation.0 > 0 && layout.counter < MAX_COUNTER, "incarnation or counter")?;
    let Layout {
        node,
        incarnation,
        counter,
        opened,
        hears,
        must_prove,
        lease,
        disk_timeout,
        echo,
        registry,
        ..
    } = layout;
    Ok(Report {
        node,
        incarnation,
        counter,
        opened,
        hears,
        reaches: layout.flags & REACHES != 0,
        leaving: layout.flags & LEAVING != 0,
        lease,
        disk_timeout,
        echo,
        registry,
        dead: layout.dead.map(Incarnation),
        must_prove,
        decided: Arc::new(view::decode(&layout.decided)?),
    })
}
