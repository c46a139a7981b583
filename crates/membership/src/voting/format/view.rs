//! A view, as a part of other layouts:
//!
//! | byte | size | field |
//! |---|---|---|
//! | 0 | 4 | epoch |
//! | 4 | 1 | number of voting files, 1 to 16 |
//! | 5 | 3 | zero |
//! | 8 | 16 x 16 | by node: incarnation (8), 0 no such node, 1 no member (of both the incarnation is the last that was one), 2 member (1), zero (7) |
//! | 264 | 16 x 16 | voting files by id, then zeros: id (8), epoch of the view that took it in (4), node that serves it or 255 (1), zero (3) |

use plexus_base::{
    Epoch, Incarnation, MAX_NODES, NodeId,
    wire::{self, Fault, Fixed, Zeros, require},
};

use crate::protocol::{FileId, MAX_FILES, Seat, View, VotingFile};

/// Larger epochs are refused, so that a node can always count on from the value it reads.
const MAX_EPOCH: u32 = u32::MAX / 2;

wire::newtypes!(FileId(u64));

wire::layout! {
    #[derive(Default)]
    pub(super) struct SeatLayout: 16 { incarnation: u64, state: u8, zero: Zeros<7> }

    #[derive(Default)]
    pub(super) struct FileLayout: 16 { id: u64, since: u32, host: u8, zero: Zeros<3> }

    /// A view as it is laid out: zeros by default.
    #[derive(Default)]
    pub(super) struct ViewLayout: 520 {
        epoch: u32, count: u8, zero: Zeros<3>,
        seats: [SeatLayout; MAX_NODES], files: [FileLayout; MAX_FILES]
    }
}

/// Returns a view's layout.
pub(super) fn encode(view: &View) -> ViewLayout {
    let mut layout =
        ViewLayout { epoch: view.epoch.0, count: view.files.len() as u8, ..ViewLayout::default() };
    for (place, seat) in layout.seats.iter_mut().zip(view.seats) {
        (place.state, place.incarnation) = match seat {
            Seat::Free(incarnation) => (0, incarnation.0),
            Seat::Out(incarnation) => (1, incarnation.0),
            Seat::In(incarnation) => (2, incarnation.0),
        };
    }
    for (place, file) in layout.files.iter_mut().zip(&view.files) {
        (place.id, place.since, place.host) = (file.id.0, file.since.0, file.host.to_raw());
    }
    layout
}

/// Decodes a view's layout.
pub(super) fn decode(layout: &ViewLayout) -> Result<View, Fault> {
    let mut seats = [Seat::default(); MAX_NODES];
    for (seat, place) in seats.iter_mut().zip(&layout.seats) {
        let incarnation = Incarnation(place.incarnation);
        *seat = match place.state {
            0 => Seat::Free(incarnation),
            1 => Seat::Out(incarnation),
            2 if incarnation.0 > 0 => Seat::In(incarnation),
            _ => return Err(Fault::Field("seat")),
        };
    }
    let count = usize::from(layout.count);
    require((1..=MAX_FILES).contains(&count), "number of voting files")?;
    let file = |place: &FileLayout| {
        let host = <Option<NodeId>>::from_raw(place.host)?;
        Ok(VotingFile { id: FileId(place.id), since: Epoch(place.since), host })
    };
    let files = layout.files[..count].iter().map(file).collect::<Result<Vec<_>, _>>()?;
    let ordered = files.windows(2).all(|pair| pair[0].id < pair[1].id);
    let view = View { epoch: Epoch(layout.epoch), seats, files };
    // A valid view leaves room for later views, and has zeros behind its files.
    let can_be = ordered && view.epoch.0 < MAX_EPOCH && encode(&view) == *layout;
    require(can_be, "view")?;
    Ok(view)
}
