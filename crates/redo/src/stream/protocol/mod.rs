//! The pure protocol of a redo stream: its formats, its writer, and the replay of blocks.
//!
//! | file | concept |
//! |---|---|
//! | `geometry.rs` | positions: LSNs, segments, offsets on the device |
//! | `header.rs` | the two headers of a stream |
//! | `batch.rs` | the unit of writing |
//! | `footer.rs` | the blocks that a segment touches |
//! | `record.rs` | records of changes and images, and groups of them |
//! | `writer.rs` | events in, writes and syncs out |
//! | `room.rs` | reservations, waits for room, and when a checkpoint is due |
//! | `replay.rs` | one block over the records of several streams |

mod batch;
mod footer;
mod geometry;
mod header;
mod record;
pub mod replay;
mod room;
mod writer;

#[doc(hidden)]
pub use batch::batch_any;
pub use batch::{Batch, BatchHead, UnsealedBatch};
pub use footer::TouchedBlocks;
pub use geometry::{Geometry, Lsn, PAGE};
#[doc(hidden)]
pub use header::header_any;
pub use header::{HEADERS, StreamHeader, newest};
pub use record::{Group, Record, RecordKind};
pub use room::{Fill, Reserved, Room, RoomEvent};
pub use writer::{Action, AppendError, Appended, Event, StreamCounts, StreamTail, StreamWriter};
