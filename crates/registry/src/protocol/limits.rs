//! The limits of the registry, each with its reason.

use plexus_base::MAX_NODES;

/// The most bytes of a key: its length is one byte in a copy.
pub const KEY_MAX: usize = 255;

/// The most bytes of a value: the registry holds descriptions, not data.
pub const VALUE_MAX: usize = 64 * 1024;

/// The most keys. Each change is made on a clone, which shares all chunks but one and still has to
/// count each of them.
pub const KEYS_MAX: usize = 65_536;

/// The most bytes that all entries take in a copy: every save writes a whole copy.
pub const TOTAL_MAX: usize = 16 << 20;

/// The keys that the nodes keep about the disks. A restore leaves them as they are, and a value
/// that replaces another has the same length.
pub const DISKS: &str = "disks/";

/// The most edits of one change; it bounds the memory of waiting commands.
pub const EDITS_MAX: usize = 1024;

/// The most commands that wait at a node.
pub const QUEUED_MAX: usize = 1024;

/// The most bytes of the commands that wait at a node: a restore and a large change.
pub const QUEUED_BYTES_MAX: usize = 2 * TOTAL_MAX;

/// The most messages of one member that wait for their view: the start of the view, and one command
/// of each node. No more is sent before the waiting node has made these durable.
pub const PARKED_MAX: usize = MAX_NODES + 4;

/// The bytes that the copies of a node keep free for growth. Each node has one command under way
/// when the coordinator learns that a copy cannot grow further, normally of one value.
pub const RESERVE: u64 = (MAX_NODES * (VALUE_MAX + 1024)) as u64;

/// The greatest generation that is accepted. It leaves so much room that counting cannot overflow.
pub const GENERATION_MAX: u64 = u64::MAX / 2;

/// The most changes that are kept for watches.
pub const HISTORY_MAX: usize = 4096;

/// The most bytes of keys and values in the changes kept for watches.
pub const HISTORY_BYTES_MAX: usize = 4 << 20;

/// The most watches: each keeps its prefix, and each reader looks through the history.
pub const WATCHES_MAX: usize = 4096;

const _: () = assert!(KEY_MAX <= u8::MAX as usize && VALUE_MAX <= u32::MAX as usize);
const _: () = assert!(TOTAL_MAX >= VALUE_MAX + KEY_MAX, "one value of full length has room");
