//! A deterministic simulation engine: a clock, a network and faults from one seed; knows nothing of Plexus.
