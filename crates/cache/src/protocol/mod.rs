//! The global cache's protocol, pure.

mod counts;
mod interface;
mod message;
pub mod stop;

pub use counts::Counts;
pub use interface::{
    Action, Ask, Config, Contents, Event, Frames, Granted, Mode, ReadFault, Slot, Ticket, WaitError, Why,
};
pub use message::{Body, DecodeError, Kind, Message, Source, Target};
pub use stop::Report;

/// All blocks of one worker of one node, in every role.
pub struct Shard {
    config: Config,
    counts: Counts,
}

impl Shard {
    /// A shard that holds nothing.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, counts: Counts::default() }
    }

    /// What was counted.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// What it was created with.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Handles one event to its end; what is to be done is appended to `out`.
    pub fn handle(
        &mut self,
        _now: plexus_base::Nanos,
        _event: Event,
        _frames: &mut impl Frames,
        _out: &mut Vec<Action>,
    ) {
    }

    /// What this node holds and what may be lost, after [`Action::Halted`].
    #[must_use]
    pub fn report(&self) -> Report {
        Report { held: Vec::new(), lost: Vec::new(), unwritten: Vec::new() }
    }
}
