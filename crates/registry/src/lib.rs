//! The registry: what the cluster knows about itself, as versioned keys, in two copies.
//!
//! [`protocol::Store`] decides how changes become durable and [`Registry`] does it with two files; [`protocol::Watches`] tells who watches.
//! What keys mean is their users' business; who may change them when, that of the members' view.

mod files;
pub mod protocol;
mod registry;

pub use files::Files;
pub use registry::{Registry, RegistryError};
