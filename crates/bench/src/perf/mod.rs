//! The interconnect between two nodes.
