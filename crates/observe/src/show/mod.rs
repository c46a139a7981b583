//! How results are shown: tables in text, charts in SVG, numbers that people can read.

pub mod chart;
mod moment;
mod numbers;
mod table;

pub use moment::{date, duration, time};
pub use numbers::{bytes, count, rate, ratio, us};
pub use table::Table;
