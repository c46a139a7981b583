//! The rail over libfabric, for every transport that it has a provider for (InfiniBand and RoCE
//! with `verbs`, EFA, TCP).
//!
//! libfabric is loaded at run time; a machine without it gets [`OfiError::Absent`], and everything
//! else works. Each end opens an [`OfiEndpoint`]. The two exchange their [`Offer`]s over a
//! connection that is already authenticated, and each builds its [`OfiRail`] from its endpoint and
//! the offer of the other.
//!
//! **Transport.** A lane is an endpoint of its own, so that prompt frames do not queue behind bulk.
//! Short puts travel in the message of their frame; the peer's processor checks them and writes
//! them. The adapter writes long puts into the registered window (`fi_write`), and their frame
//! follows: at once if the provider keeps that order, else when the write is complete at the peer.
//! Before the frame is delivered, its checksum is compared with the bytes in the window, so the
//! rail does not rely on the provider's checks. The adapter does not write into
//! [wordwise](plexus_fabric::WindowSpan::wordwise) windows: all their data travel in messages.
//!
//! **Not checked.** The adapter does not check a granule's generation. So a late long put
//! overwrites the bytes there, and the rail ends when its frame is found to be late. A long write
//! without a frame is not checked at all. Dropping the rail takes its windows from the provider
//! before it returns; after that nothing arrives. (The `shm` provider of libfabric writes with the
//! peer's own system calls, so a peer still could; it is for tests only.)
//!
//! **Waking.** If the completion queue has a descriptor it is registered with the worker's epoll
//! set. If it has none (`shm`), [`Rail::pending`](plexus_fabric::Rail::pending) is always true: the
//! worker polls and never sleeps.
//!
//! **The end of the peer.** An endpoint is not connected, so it does not report that the peer is
//! gone unless something is sent. The owner of the rail watches a connection or process of the peer
//! and sets the flag.
//!
//! **Silence.** Only arrivals over the rail itself count:
//! [`Rail::health`](plexus_fabric::Rail::health) requests an answer of the peer's program when the
//! peer owes one and nothing else arrives. The program must poll to answer, so the judge of the
//! path must know that it does.
//!
//! **The end of this side.** Dropping a rail does not block. If the provider still holds
//! operations, a thread closes them when they are complete, after 100 ms at the latest. Frames that
//! only waited are not sent.
//!
//! **Encryption.** There is none: keys of windows and all data travel in clear. A cluster that
//! needs encryption must not use this rail over a network that others can read.
//!
//! **Side effects of libfabric.** It reads `FI_*` from the environment, and some providers start
//! threads. `shm` installs handlers for signals that end the process, and leaves a name in
//! `/dev/shm` for each endpoint that was not closed. Do not fork without `exec` while a rail
//! exists. `tcp` and `shm` are tested; `verbs` and `efa` were never run on hardware.

mod buffer;
mod device;
mod endpoint;
mod library;
mod long;
mod offer;
mod opening;
mod operations;
mod outgoing;
mod parts;
mod port;
mod quiet;
mod rail;
mod reaper;
mod remains;
mod settle;
mod signals;
mod sys;
mod touched;
mod twins;
mod wire;

pub use offer::Offer;
pub use opening::OfiEndpoint;
pub use rail::OfiRail;
#[doc(hidden)]
pub use wire::decode_any;

/// Checks that libfabric can be loaded; the error gives the remedy. The library stays loaded.
///
/// # Errors
/// It is absent, or too old.
pub fn available() -> Result<(), OfiError> {
    library::Library::load().map(drop)
}

/// The reason why there is no rail over libfabric.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OfiError {
    /// It is not installed, or incomplete.
    #[error(
        "libfabric cannot be loaded ({why}): install it (package libfabric1 of Debian and Ubuntu, libfabric of others) or use another rail than ofi"
    )]
    Absent {
        /// The error of the loader.
        why: String,
    },
    /// It is too old.
    #[error(
        "libfabric {}.{} is too old: install 1.17 or later, or use another rail than ofi",
        .found >> 16,
        .found & 0xffff
    )]
    Version {
        /// Its version, major and minor in 16 bits each.
        found: u32,
    },
    /// There is no such provider, or it lacks a needed capability.
    #[error(
        "libfabric has no provider `{wanted}` for a rail ({why}): compare with `fi_info -p {wanted} -t FI_EP_RDM`, and FI_PROVIDER in the environment"
    )]
    Provider {
        /// The name of the provider.
        wanted: String,
        /// The reason that libfabric gives.
        why: String,
    },
    /// A call failed.
    #[error("libfabric cannot {what}: {why}")]
    Call {
        /// The operation that failed.
        what: &'static str,
        /// The reason that libfabric gives.
        why: String,
    },
    /// The two ends use different providers.
    #[error("the peer uses provider {theirs}, this node {ours}: set the same `ofi_provider` on both")]
    Differs {
        /// The provider of this end.
        ours: String,
        /// The provider of the other end.
        theirs: String,
    },
    /// There are more windows than an offer holds.
    #[error("{windows} windows are too many for a rail over libfabric")]
    Windows {
        /// The number of windows.
        windows: usize,
    },
}
