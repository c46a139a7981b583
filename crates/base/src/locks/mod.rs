//! The lock types that masters, clients and their libraries share.

mod mode;
mod refusal;
mod value;

pub use mode::{MODES, Mode};
pub use refusal::LockRefusal;
pub use value::{Token, VALUE_LEN, Validity, Value};

/// The content of a lock grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The mode of the granted lock.
    pub mode: Mode,
    /// The fencing token, greater than those of all earlier grants that this one excludes; see
    /// [`Token`].
    pub token: Token,
    /// The resource's value block.
    pub value: Value,
}

/// The most bytes of a resource name; its length is one byte on the wire.
pub const MAX_NAME: usize = 255;
