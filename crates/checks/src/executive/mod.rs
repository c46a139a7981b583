//! The cluster executive as programs see it: real nodes under real faults, and whether what clients were told can be true.
//!
//! [`history`] judges what clients saw.

pub mod history;
