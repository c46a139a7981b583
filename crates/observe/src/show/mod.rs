//! The presentation of results: text tables, SVG charts, readable numbers.

mod bars;
pub mod chart;
mod graph;
mod moment;
mod numbers;
mod plane;
mod raster;
mod sizes;
mod stack;
mod table;

pub use bars::Bars;
pub use graph::{Edge, Graph, Vertex};
pub use moment::{date, duration, time};
pub use numbers::{bytes, count, rate, ratio, us};
pub use raster::png;
pub use sizes::{BySize, Panel};
pub use stack::Stack;
pub use table::Table;
