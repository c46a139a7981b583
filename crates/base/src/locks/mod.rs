//! The words of the lock manager, for those who grant locks and those who ask for them alike.

mod mode;
mod value;
mod why;

pub use mode::{MODES, Mode};
pub use value::{Token, VALUE_LEN, Validity, Value};
pub use why::Why;

/// Most bytes of the name of what is locked: its length is one byte on the wire.
pub const MAX_NAME: usize = 255;
