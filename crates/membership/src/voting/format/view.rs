//! A view, as a part of other layouts:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | epoch |
//! | 4 | 1 | number of voting files, 1 to 16 |
//! | 5 | 1 | zero |
//! | 6 | 2 | members since the cluster began anew, a bit each |
//! | 8 | 4 | epoch of the view since which all who ended had handed back, 0 ever |
//! | 12 | 4 | the same as the cluster began anew |
//! | 16 | 4 | epoch of the view as of which nothing was lost, 0 none |
//! | 20 | 4 | zero |
//! | 24 | 16 x 16 | by node: incarnation (8), 0 no such node, 1 no member (of both the incarnation is the last that was one), 2 member (1), zero (7) |
//! | 280 | 16 x 16 | voting files by id, then zeros: id (8), epoch of the view that took it in (4), node that serves it or 255 (1), zero (3) |

use plexus_base::{Epoch, Incarnation, MAX_NODES, NodeId, NodeSet};
use zerocopy::{
    FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned,
    little_endian::{U16, U32, U64},
};

use crate::protocol::{FileId, MAX_FILES, Seat, View, VotingFile};

/// Bytes of a view.
pub(super) const VIEW: usize = 536;

/// No cluster comes to so many views; from bytes that say so nobody could count on.
const MAX_EPOCH: u32 = u32::MAX / 2;

/// Every node opens the file itself.
const SHARED: u8 = 255;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SeatLayout {
    incarnation: U64,
    state: u8,
    zero: [u8; 7],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct FileLayout {
    id: U64,
    since: U32,
    host: u8,
    zero: [u8; 3],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    epoch: U32,
    count: u8,
    zero: u8,
    founders: U16,
    sound: U32,
    basis: U32,
    intact: U32,
    more: [u8; 4],
    seats: [SeatLayout; MAX_NODES],
    files: [FileLayout; MAX_FILES],
}

const _: () = assert!(size_of::<Layout>() == VIEW);

/// A bit for each node, the lowest for the first.
pub(super) fn bits(nodes: NodeSet) -> U16 {
    U16::new(nodes.iter().fold(0, |bits, node| bits | 1 << node.0))
}

pub(super) fn nodes(bits: U16) -> NodeSet {
    (0..MAX_NODES as u8).map(NodeId).filter(|node| bits.get() & 1 << node.0 != 0).collect()
}

/// A view's bytes.
pub(super) fn encode(view: &View) -> [u8; VIEW] {
    let mut layout = Layout::new_zeroed();
    (layout.epoch, layout.count) = (U32::new(view.epoch.0), view.files.len() as u8);
    layout.founders = bits(view.founders);
    (layout.sound, layout.basis) = (U32::new(view.sound.0), U32::new(view.basis.0));
    layout.intact = U32::new(view.intact.0);
    for (place, seat) in layout.seats.iter_mut().zip(view.seats) {
        let (state, incarnation) = match seat {
            Seat::Free(incarnation) => (0, incarnation.0),
            Seat::Out(incarnation) => (1, incarnation.0),
            Seat::In(incarnation) => (2, incarnation.0),
        };
        (place.state, place.incarnation) = (state, U64::new(incarnation));
    }
    for (place, file) in layout.files.iter_mut().zip(&view.files) {
        (place.id, place.since) = (U64::new(file.id.0), U32::new(file.since.0));
        place.host = file.host.map_or(SHARED, |host| host.0);
    }
    zerocopy::transmute!(layout)
}

/// What a view's bytes say, if it can be.
pub(super) fn decode(bytes: &[u8]) -> Option<View> {
    let layout = Layout::ref_from_bytes(bytes).ok()?;
    let mut seats = [Seat::default(); MAX_NODES];
    for (seat, place) in seats.iter_mut().zip(&layout.seats) {
        let incarnation = Incarnation(place.incarnation.get());
        *seat = match place.state {
            0 => Seat::Free(incarnation),
            1 => Seat::Out(incarnation),
            2 if incarnation.0 > 0 => Seat::In(incarnation),
            _ => return None,
        };
    }
    let count = usize::from(layout.count);
    if !(1..=MAX_FILES).contains(&count) {
        return None;
    }
    let mut files = Vec::with_capacity(count);
    for place in &layout.files[..count] {
        let host = (place.host != SHARED).then_some(NodeId(place.host));
        if host.is_some_and(|host| host.index() >= MAX_NODES) {
            return None;
        }
        files.push(VotingFile { id: FileId(place.id.get()), since: Epoch(place.since.get()), host });
    }
    let ordered = files.windows(2).all(|pair| pair[0].id < pair[1].id);
    let epochs = [layout.epoch, layout.sound, layout.basis, layout.intact];
    let [epoch, sound, basis, intact] = epochs.map(|epoch| Epoch(epoch.get()));
    let view = View { epoch, seats, files, founders: nodes(layout.founders), sound, basis, intact };
    // There is room for all views to come, and what stands behind is nothing.
    let can_be = ordered
        && view.epoch.0 < MAX_EPOCH
        && view.basis <= view.sound
        && view.sound.max(view.intact) <= view.epoch
        && view.founders.iter().all(|node| view.members().contains(node))
        && encode(&view) == *bytes;
    can_be.then_some(view)
}
