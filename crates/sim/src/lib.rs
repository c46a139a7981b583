//! A deterministic simulation engine: a clock, a network and faults from one seed. It knows nothing
//! of Plexus.
//!
//! - [`Engine`] holds the clock, the event queue, the only source of randomness and a running hash
//!   of all events.
//! - [`Network`] holds directed paths. Frames arrive late, in order within a lane, and need free
//!   slots.
//! - [`hostile`] damages inputs for decoders.
//!
//! A simulation is a loop: take the next event, let the code under test handle it, schedule the
//! resulting events. The same seed gives exactly the same run, which the hash shows.

mod engine;
mod mutation;
mod network;
mod random;

pub use engine::{Digest, Engine, Owner};
pub use mutation::{hostile, one_reading};
pub use network::{Delay, Network, PathId};
pub use random::Random;
