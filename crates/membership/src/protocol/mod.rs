//! The pure membership protocol: events and the time go in, actions come out. It has no clock,
//! file, socket or thread.
//!
//! [`Member`] is one node's part. [`View`]s are numbered, and [`Paxos`] decides view `e + 1` over a
//! majority of the voting files of view `e`. A [`Report`] names the nodes that its sender hears and
//! says whether it reaches the files. From all reports, [`Connectivity`] finds the nodes that stay
//! members when not all hear each other.

mod files;
pub mod member;
pub mod partitions;
pub mod paxos;
mod profile;
mod record;
mod split;
mod view;

pub use files::{MAX_UNDURABLE_REPORTS, SYNC_LAG, SYNC_WAIT_LAG, Writes};
pub use member::{Action, ConfigChange, ConfigChangeRefusal, Event, Member, StopReason, TurnFailed};
pub use paxos::{Paxos, PaxosProgress};
pub use profile::{FINAL_LOG_TIME, Profile, ProfileError};
pub use record::{Ballot, Block, Contents, NodeBlocks, Report, ReportNumber};
pub use split::Connectivity;
pub use view::{FileId, InvalidFileId, MAX_FILES, Seat, View, VotingFile};
