//! Rails: one path between two endpoints.
//!
//! A [`Rail`] carries *frames* (small, delivered whole, in order within a [`Lane`]) and *puts* (bytes written
//! straight into a [`Window`] of the peer, followed by a frame that says so; or by none, a *write*). Where the peer's
//! memory is mapped here it reads and changes it [directly](Rail::direct). It is built over descriptors that
//! are connected and authenticated already ([`ShmRail`] over mapped rings, [`TcpRail`] over two sockets, with the feature
//! `libfabric` also the rail in `ofi`); how peers find and trust each other is the interconnect's business, not this crate's.
//!
//! One thread at a time uses a rail; nothing here locks. No call blocks: a full ring or socket is
//! [`SendError::Full`], and a waiting thread sleeps on its worker's [`Bell`] and on the descriptors that
//! [`Rail::register`] adds to its epoll set.

mod bell;
mod event;
mod frame;
mod handover;
mod memory;
#[cfg(feature = "libfabric")]
pub mod ofi;
mod put_fields;
mod rail;
pub mod shm;
mod stream;
pub mod tcp;
mod window;

pub use bell::{Bell, Notice, PeerBell};
pub use event::Event;
pub use frame::Frame;
pub use memory::SetupError;
pub use rail::{Access, Flow, Health, LANES, Lane, Lost, MAX_FRAME, Put, Rail, RailKind, SendError};
pub use shm::ShmRail;
pub use tcp::TcpRail;
pub use window::{MAX_WORDWISE, PeerWindow, SeenWindow, Window, WindowId, WindowSpan, Windows};
