//! The counters of a node for scrapers: OpenMetrics text and its HTTP server.

mod server;
mod text;

pub use server::Server;
pub use text::{CONTENT_TYPE, text};
