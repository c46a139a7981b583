//! The doorbell of a worker.
