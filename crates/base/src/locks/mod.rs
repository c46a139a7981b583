//! The words of the lock manager, for those who grant locks and those who ask for them alike.

mod mode;
mod value;
mod why;

pub use mode::{MODES, Mode};
pub use value::{Token, VALUE_LEN, Validity, Value};
pub use why::Why;

/// What comes with a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The mode it is held in.
    pub mode: Mode,
    /// Greater than those of all grants that it excludes; see [`Token`].
    pub token: Token,
    /// The value block.
    pub value: Value,
}

/// Most bytes of the name of what is locked: its length is one byte on the wire.
pub const MAX_NAME: usize = 255;
