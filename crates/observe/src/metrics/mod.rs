//! What a node counts, for programs that scrape: the text of OpenMetrics, and who serves it.

mod server;
mod text;

pub use server::Server;
pub use text::{CONTENT_TYPE, text};
