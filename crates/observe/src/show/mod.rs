//! The presentation of results: text tables, SVG charts, readable numbers.

mod bars;
mod chart;
mod graph;
mod moment;
mod numbers;
mod panels;
mod plane;
mod raster;
mod stack;
mod table;

pub use bars::Bars;
pub use chart::DrawError;
pub use graph::{Edge, Graph, Vertex};
pub use moment::{date, duration, time};
pub use numbers::{bytes, count, rate, ratio, us};
pub use panels::{Panel, Panels};
pub use raster::png;
pub use stack::Stack;
pub use table::Table;
