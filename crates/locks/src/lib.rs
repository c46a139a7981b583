//! The distributed lock manager: six modes, conversion, value blocks, deadlock detection, recovery after a death.
//!
//! [`protocol`] decides, purely. [`LockService`] connects it to a worker and its links, [`Locks`] to the threads of a node.

mod clock;
mod locks;
mod notice;
mod programs;
pub mod protocol;
mod service;
mod survey;

pub use locks::{Ask, Asked, Grant, Lock, LockError, Locks, Session, State, Waiting};
pub use notice::{Notice, Notices};
pub use programs::{OF_PROGRAMS, ProgramNews};
pub use service::{LockService, LockTask, Settings, wire};
pub use survey::{Held, Survey, Surveyed, Wanted};
