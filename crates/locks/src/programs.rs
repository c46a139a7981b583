//! What the lock manager has to say about locks of programs that are attached to the node: to nobody's thread, but to the worker that serves them.

use plexus_base::locks::Mode;

use crate::{protocol::LockId, reply::LockResult};

/// Numbers of locks and owners from here on are programs'; threads of the node have those below.
pub const OF_PROGRAMS: u64 = 1 << 63;

/// News for programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramNews {
    /// What becomes of a request or a conversion.
    Answer(LockId, LockResult),
    /// Others wait for a lock, the first of them for this mode.
    Wanted(LockId, Mode),
    /// No lock protects anything any more, and no request will be answered.
    Lost,
}

impl LockId {
    pub(crate) fn is_of_program(self) -> bool {
        self.0 >= OF_PROGRAMS
    }
}
