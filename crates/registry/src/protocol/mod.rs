//! The pure protocol, without files, clocks or threads: contents and changes, the image of a copy,
//! the two copies of a node, replication within a view, and watches.

mod change;
mod contents;
mod entries;
mod image;
mod key;
mod limits;
mod message;
mod open;
mod replica;
mod store;
mod watch;
mod wire;

pub use change::{Change, Changed, Command, Edit, EditKind, Origin, Refused};
pub use contents::{ClusterName, Contents, Entry};
#[doc(hidden)]
pub use image::image_any;
pub use image::{IMAGE_MAX, ImageError, Kind, decode, encode};
pub use key::Key;
pub use limits::{
    DISKS, EDITS_MAX, GENERATION_MAX, HISTORY_BYTES_MAX, HISTORY_MAX, KEY_MAX, KEYS_MAX, PARKED_MAX,
    QUEUED_BYTES_MAX, QUEUED_MAX, RESERVE, TOTAL_MAX, VALUE_MAX, WATCHES_MAX,
};
pub use message::{Message, RegistryMessage};
pub use open::{Found, OpenError, Opened, open};
pub use replica::{Act, Happened, Replica, Ticket, View};
pub use store::{Action, COPIES, Event, Step, Store};
pub use watch::{WatchEvent, WatchId, Watches};
#[doc(hidden)]
pub use wire::message_any;
pub use wire::{FRAME, Gathered, MESSAGE_MAX};
