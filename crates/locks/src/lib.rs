//! The distributed lock manager: six modes, conversion, value blocks, deadlock detection, recovery.
//!
//! [`protocol`] is the pure protocol. [`LockService`] connects it to a worker and its links.
//! [`LockManager`] connects it to the threads of a node.

mod clock;
mod manager;
mod notice;
mod programs;
pub mod protocol;
mod reply;
mod service;
mod session;
mod survey;

pub use manager::LockManager;
pub use notice::{LockNotice, LockNotices};
pub use programs::{OF_PROGRAMS, ProgramNotice};
pub use reply::LockError;
pub use service::{LockService, LockSettings, LockTask, wire};
pub use session::{NodeLock, NodeLockSession, PendingNodeLock, StopFlag};
pub use survey::{LockSurvey, SurveyedHolder, SurveyedResource, SurveyedWaiter};
