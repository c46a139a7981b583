//! The block workload.
