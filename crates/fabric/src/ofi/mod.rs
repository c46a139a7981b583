//! The rail over libfabric: whatever transport that has a provider for (InfiniBand and RoCE with `verbs`, EFA, TCP).
//!
//! libfabric is loaded at run time; a machine without it gets [`OfiError::Absent`] and does everything else. Each end opens an
//! [`OfiEndpoint`], the two exchange their [`Offer`]s over a connection that is authenticated already, and each makes
//! its [`OfiRail`] from its endpoint and the offer of the other.
//!
//! **What travels how.** A lane is an endpoint of its own, so that prompt frames do not queue behind bulk. Short puts
//! travel in the message of their frame; the peer's processor checks them and lets them in. Long ones are written by the
//! adapter into the registered window (`fi_write`), and their frame follows: at once where the provider keeps that
//! order, else when the write is complete at the peer. The checksum in the frame is compared with what stands in the
//! window before the frame is delivered, so that no provider's own checks are relied on. Into
//! [wordwise](crate::WindowSpan::wordwise) windows the adapter does not write: all data travel in messages.
//!
//! **What is not checked.** The adapter does not ask for a granule's generation, so a long put that comes late overwrites what is
//! there, and the rail ends when its frame is found to be late. A long write without a frame
//! is checked by nobody. Dropping the rail takes its windows from the provider before it returns: after that nothing comes any more
//! (with the `shm` provider of libfabric, which writes with the peer's own system calls, a peer could; it is here
//! for tests).
//!
//! **Waking.** Where the completion queue has a descriptor it is registered with the worker's epoll set. Where it
//! has none (`shm`), [`Rail::pending`](crate::Rail::pending) is always true: the worker polls and never sleeps.
//!
//! **The end of the peer.** An endpoint is not connected, so nothing tells that the peer is gone, unless something
//! is sent. Whoever makes the rail watches a connection or process of the peer and sets the flag.
//!
//! **Silence.** What counts is what came over the rail itself: [`Rail::health`](crate::Rail::health) asks the peer's program for an
//! answer when it owes one and nothing else comes. The program has to look for that, so whoever judges the path must
//! know that it does.
//!
//! **The end of this side.** Dropping a rail waits for nobody. Where the provider still holds something of it, a thread
//! closes it when that is through, after 100 ms at the latest; what only waited is not sent any more.
//!
//! **Encryption.** There is none: keys of windows and all data pass as they are. Where a cluster wants encryption
//! this rail must not be used over a network that others can read.
//!
//! **What libfabric brings along.** It reads `FI_*` from the environment; some providers start threads; `shm` installs
//! handlers for signals that end the process, and leaves a name in `/dev/shm` for each endpoint that was
//! not closed. Do not fork without `exec` while a rail exists. `tcp` and `shm` are tested; `verbs` and `efa` were
//! never run on hardware.

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

/// Whether libfabric is here, and what to do where it is not. It stays loaded.
///
/// # Errors
/// It is absent, or too old.
pub fn available() -> Result<(), OfiError> {
    library::Library::load().map(drop)
}

/// Why there is no rail over libfabric.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OfiError {
    /// It is not installed, or not whole.
    #[error(
        "libfabric cannot be loaded ({why}): install it (package libfabric1 of Debian and Ubuntu, libfabric of others) or use another rail than ofi"
    )]
    Absent {
        /// What the loader says.
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
    /// No such provider, or it cannot do what is needed.
    #[error(
        "libfabric has no provider `{wanted}` for a rail ({why}): compare with `fi_info -p {wanted} -t FI_EP_RDM`, and FI_PROVIDER in the environment"
    )]
    Provider {
        /// Its name.
        wanted: String,
        /// What libfabric says.
        why: String,
    },
    /// A call failed.
    #[error("libfabric cannot {what}: {why}")]
    Call {
        /// What was tried.
        what: &'static str,
        /// What libfabric says.
        why: String,
    },
    /// The two ends do not fit together.
    #[error("the peer uses provider {theirs}, this node {ours}: set the same `ofi_provider` on both")]
    Differs {
        /// Of this end.
        ours: String,
        /// Of the other.
        theirs: String,
    },
    /// More windows than an offer holds.
    #[error("{windows} windows are more than an offer holds")]
    Windows {
        /// How many there are.
        windows: usize,
    },
}
