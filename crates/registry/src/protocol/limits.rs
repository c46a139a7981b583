//! How much there may be of everything, each with its reason.

use plexus_base::MAX_NODES;

/// Bytes of a key, at most: its length is one byte in a copy.
pub const KEY_MAX: usize = 255;

/// Bytes of a value, at most: the registry holds descriptions, not data.
pub const VALUE_MAX: usize = 64 * 1024;

/// Keys, at most: each change is made on a copy, which shares all but a chunk of them but still counts each chunk.
pub const KEYS_MAX: usize = 65_536;

/// Bytes that all entries take in a copy, at most: every save writes a whole copy.
pub const TOTAL_MAX: usize = 16 << 20;

/// Edits of one change, at most: what waits is bounded by it.
pub const EDITS_MAX: usize = 1024;

/// Commands that wait at a node for those before them, at most.
pub const QUEUED_MAX: usize = 1024;

/// Bytes of the commands that wait at a node, at most: a restoration and a large change.
pub const QUEUED_BYTES_MAX: usize = 2 * TOTAL_MAX;

/// Messages of one member that wait for their view, at most: how the view begins, and one command of each node, for none is committed without
/// who waits.
pub const PARKED_MAX: usize = MAX_NODES + 4;

/// The last generation that is believed: so far away that counting cannot reach the end of the number behind it.
pub const GENERATION_MAX: u64 = u64::MAX / 2;

/// Changes that are kept for watches, at most.
pub const HISTORY_MAX: usize = 4096;

/// Bytes of keys and values in the changes kept for watches, at most.
pub const HISTORY_BYTES_MAX: usize = 4 << 20;

/// Watches, at most: each keeps its prefix, and whoever reads looks through the history.
pub const WATCHES_MAX: usize = 4096;

const _: () = assert!(KEY_MAX <= u8::MAX as usize && VALUE_MAX <= u32::MAX as usize);
const _: () = assert!(TOTAL_MAX >= VALUE_MAX + KEY_MAX, "one value of full length has room");
