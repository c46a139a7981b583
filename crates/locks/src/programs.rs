//! Notices about the locks of attached programs. They go to the worker that serves the program, not
//! to a thread.

use plexus_base::locks::Mode;

use crate::{protocol::LockId, reply::LockResult};

/// The first number for locks and owners of programs. Threads of the node use the numbers below.
pub const OF_PROGRAMS: u64 = 1 << 63;

/// A notice for a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProgramNotice {
    /// The result of a request or a conversion.
    Answer(LockId, LockResult),
    /// Other requests wait for a lock; the first of them wants this mode.
    Wanted(LockId, Mode),
    /// All locks are lost, and no request will be answered.
    Lost,
}

impl LockId {
    pub(crate) fn is_of_program(self) -> bool {
        self.0 >= OF_PROGRAMS
    }
}
