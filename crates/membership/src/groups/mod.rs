//! Named groups of processes: who is in one, what they say to each other, and where they wait for each other, in one order everywhere.

pub mod protocol;
