//! The distributed lock manager: six modes, conversion, value blocks, deadlock detection, recovery after a death.
//!
//! [`protocol`] decides, purely. [`LockService`] connects it to a worker and its links, [`LockManager`] to the threads of a node.

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
pub use programs::{OF_PROGRAMS, ProgramNews};
pub use reply::LockError;
pub use service::{LockService, LockTask, Settings, wire};
pub use session::{NodeLock, NodeLockSession, PendingNodeLock, StopFlag};
pub use survey::{LockSurvey, SurveyedHolder, SurveyedResource, SurveyedWaiter};
