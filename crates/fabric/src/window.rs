//! Windows: memory that peers write into.

/// Names a window of a node to its peers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WindowId(pub u16);
