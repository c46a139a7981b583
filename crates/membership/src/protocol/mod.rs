//! The pure protocol of membership: no clock, file, socket or thread; events in with the time, actions out.
//!
//! [`Member`] is one node's part. [`View`]s are numbered; view `e + 1` is decided by [`Paxos`] over a majority of the voting files of
//! view `e`. A [`Report`] says what a node hears and reaches; from these [`Sight`] finds who goes on when not all see each other.

mod files;
pub mod member;
pub mod partitions;
pub mod paxos;
mod profile;
mod record;
mod split;
mod view;

pub use files::{AWAITED, SETTLED, UNSETTLED, Writes};
pub use member::{Action, ConfigChange, Event, Failed, Member, Reason, Refused};
pub use paxos::{Paxos, Progress};
pub use profile::{LAST_WORDS, Profile, ProfileError};
pub use record::{Ballot, Block, Contents, Place, Report};
pub use split::Sight;
pub use view::{Before, Clean, FileId, MAX_FILES, NoFileId, Seat, View, VotingFile};
