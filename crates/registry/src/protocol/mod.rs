//! What decides, without files, clocks or threads: contents and changes, the image of a copy, how two copies are kept, watches.

mod change;
mod contents;
mod image;
mod key;
mod limits;
mod open;
mod store;
mod watch;

pub use change::{Change, Changed, Command, Edit, Origin, Refused, What};
pub use contents::{ClusterName, Contents, Entry};
#[doc(hidden)]
pub use image::image_any;
pub use image::{Bad, IMAGE_MAX, Kind, decode, encode};
pub use key::Key;
pub use limits::{
    EDITS_MAX, GENERATION_MAX, HISTORY_BYTES_MAX, HISTORY_MAX, KEY_MAX, KEYS_MAX, QUEUED_BYTES_MAX,
    QUEUED_MAX, TOTAL_MAX, VALUE_MAX, WATCHES_MAX,
};
pub use open::{Found, Unopened};
pub use store::{Action, COPIES, Event, Failed, Step, Store, Ticket};
pub use watch::{News, WatchId, Watches};
