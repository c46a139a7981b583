//! Links between nodes: handshake, channels, credits, calls, and the worker loop with its
//! [`Service`].
//!
//! A node runs [`Worker`]s; worker `i` has a link to worker `i` of every peer. A [`Service`]
//! handles the messages that arrive and sends its own through [`Net`]: messages on [`Channel`]s,
//! puts into a peer's windows, and calls. [`mesh`] connects the nodes of a cluster and hands each
//! worker its links. [`executor`] runs code that waits for workers, times and descriptors.
//!
//! The rules of a link (credits, resending) are in [`link::protocol`], which is pure and simulated.
//! This crate also holds the drivers of that protocol.

mod any;
mod calls;
mod channel;
pub mod executor;
mod inbox;
pub mod link;
mod links;
pub mod mesh;
mod message;
mod net;
mod reply;
mod report;
mod service;
mod signal;
mod spares;
mod spin;
mod sync;
mod worker;

#[doc(hidden)]
pub use any::link_any;
/// Shared bytes, as [`Net::send_shared`] takes them.
pub use bytes::Bytes;
pub use channel::{CHANNELS, Channel, ChannelCounters, ChannelCounts, Class};
pub use link::{LinkCounters, LinkInfo, MAX_MESSAGE, Settings as LinkSettings};
#[doc(hidden)]
pub use message::header_any;
pub use message::{KINDS, Kind, Message};
pub use net::Net;
pub use reply::{Answer, Reply};
pub use report::{RailReport, RailState, Reason};
pub use service::{CallError, NoLink, Service};
pub use signal::Signal;
pub use worker::{Events, LinkEvent, Listening, Worker, WorkerParts};
