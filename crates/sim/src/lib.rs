//! A deterministic simulation engine: a clock, a network and faults from one seed; knows nothing of Plexus.
//!
//! [`Engine`] holds the clock, the queue of what will happen, the one source of randomness and a running hash of
//! everything that happened. [`Network`] holds directed paths whose frames arrive late, in order within a lane, and
//! need room. A simulation is a loop: take the next event, let the code under test handle it, schedule what follows.
//! From the same seed everything happens again exactly; the hash shows it. [`hostile`] damages inputs for decoders.

mod engine;
mod mutation;
mod network;
mod random;

pub use engine::{Digest, Engine, Owner};
pub use mutation::{hostile, mutated};
pub use network::{Delay, Network, PathId, Refused};
pub use random::Random;
