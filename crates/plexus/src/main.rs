//! The command line of Plexus.
fn main() {}
