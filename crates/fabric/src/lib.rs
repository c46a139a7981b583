//! Rails: one path between two endpoints.
//!
//! A [`Rail`] carries *frames* and *puts*. A frame is small, delivered whole, and in order within a
//! [`Lane`]. A put writes bytes straight into a [`Window`] of the peer and is followed by a frame
//! that announces it; a *write* is a put without that frame. Where the peer's memory is mapped into
//! this process, a rail reads and changes it [directly](Rail::direct).
//!
//! A rail is built over descriptors that are already connected and authenticated: [`ShmRail`] over
//! mapped rings and [`TcpRail`] over two sockets. The rail over libfabric is a crate of its own,
//! `ofi`. The interconnect finds and authenticates peers; this crate does neither.
//!
//! One thread at a time uses a rail, so nothing here locks. No call blocks: a full ring or socket
//! is [`SendError::Full`]. A waiting thread sleeps on its worker's [`Bell`] and on the descriptors
//! that [`Rail::register`] adds to its epoll set.

mod bell;
mod event;
mod frame;
mod handover;
mod memory;
mod put_fields;
mod rail;
pub mod shm;
mod stream;
pub mod tcp;
mod window;
mod word;

pub use bell::{Bell, Notice, PeerBell};
pub use event::Event;
pub use frame::Frame;
pub use memory::SetupError;
pub use put_fields::PutTarget;
pub use rail::{Access, Flow, Health, LANES, Lane, Lost, MAX_FRAME, Put, Rail, RailKind, SendError};
pub use shm::ShmRail;
pub use tcp::TcpRail;
pub use window::{MAX_WORDWISE, PeerWindow, SeenWindow, Window, WindowId, WindowSpan, Windows};
pub use word::{PublishedWord, SeenWord};
