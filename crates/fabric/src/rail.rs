//! The interface that every rail offers.

use std::{fmt, io, os::fd::BorrowedFd, str::FromStr};

use bytes::Bytes;
use plexus_base::{Nanos, wire::DecodeError};

use crate::{Frame, WindowId};

/// Bytes of bulk that what is urgent may have to wait for.
pub(crate) const CHUNK: usize = 16 << 10;

/// Polls in a row that may leave the bulk lane alone because the prompt one had something: the answer to that need not wait,
/// bulk frames wait for no more than these.
pub(crate) const MOST_SKIPPED: u32 = 4;

/// Largest frame in bytes, head and body together: a 16 KiB message with its headers fits in one.
pub const MAX_FRAME: usize = 16 * 1024 + 128;

/// Ordered paths within a rail. Frames of one lane arrive in the order sent; between lanes there is no order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Lane {
    /// Small frames that someone waits for; polled first.
    Prompt = 0,
    /// Blocks and long transfers.
    Bulk = 1,
}

/// How many lanes a rail has.
pub const LANES: usize = 2;

impl Lane {
    /// Both lanes, the one that is polled first at the front.
    pub const ALL: [Self; LANES] = [Self::Prompt, Self::Bulk];

    /// The lane as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// What a rail runs over.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RailKind {
    /// Rings and windows in shared memory: both endpoints on one host.
    Shm,
    /// Endpoints of libfabric, which is loaded at run time.
    Ofi,
    /// Two TCP connections, one for each lane.
    Tcp,
}

impl RailKind {
    /// Every kind, fastest first.
    pub const ALL: [Self; 3] = [Self::Shm, Self::Ofi, Self::Tcp];

    /// Those that need nothing installed.
    pub const BUILT_IN: [Self; 2] = [Self::Shm, Self::Tcp];

    /// The name in configuration files, reports and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Ofi => "ofi",
            Self::Tcp => "tcp",
        }
    }

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Shm => 0,
            Self::Tcp => 1,
            Self::Ofi => 2,
        }
    }

    /// The kind with a number from the wire, if there is one.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }
}

impl RailKind {
    /// Checks that this build and this machine have what a rail of this kind needs.
    ///
    /// # Errors
    /// A line that says what is missing and what to do.
    pub fn available(self) -> Result<(), String> {
        #[cfg(feature = "libfabric")]
        if self == Self::Ofi {
            return crate::ofi::available().map_err(|why| why.to_string());
        }
        self.built()
    }

    /// Checks that this build has rails of this kind.
    fn built(self) -> Result<(), String> {
        if self == Self::Ofi && !cfg!(feature = "libfabric") {
            let others = Self::BUILT_IN.map(Self::name).join(" or ");
            return Err(format!(
                "rail `ofi` is not in this build: use {others}, or build with the feature `libfabric`"
            ));
        }
        Ok(())
    }
}

impl FromStr for RailKind {
    type Err = String;

    /// Finds the kind by its name; the error names those that there are.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(" or ");
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| format!("unknown rail `{name}`: use {}", known()))?;
        kind.built().map(|()| kind)
    }
}

impl fmt::Display for RailKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Bytes for a window of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// Which of the peer's windows.
    pub window: WindowId,
    /// Where in it, in bytes.
    pub offset: u64,
    /// The generation of the target granule that its owner announced when it asked for these bytes; a rail
    /// that passes the target's CPU refuses a put whose generation is no longer the granule's.
    pub generation: u32,
    /// The bytes.
    pub data: &'a [u8],
}

/// An access to the peer's window that brings something back. Words are 64 bits, little endian, at a multiple of 8.
#[derive(Debug)]
pub enum Access<'a> {
    /// Copies what stands in the window into all of `into`. A whole word is read in one go.
    Get {
        /// Which of the peer's windows.
        window: WindowId,
        /// Where in it, in bytes.
        offset: u64,
        /// Where the bytes go.
        into: &'a mut [u8],
    },
    /// Adds to a word, wrapping around.
    FetchAdd {
        /// Which of the peer's windows.
        window: WindowId,
        /// Where in it, in bytes.
        offset: u64,
        /// How much.
        add: u64,
    },
    /// Makes a word `new` if it is `expected`.
    CompareSwap {
        /// Which of the peer's windows.
        window: WindowId,
        /// Where in it, in bytes.
        offset: u64,
        /// What the word must be.
        expected: u64,
        /// What it becomes.
        new: u64,
    },
}

/// Why a frame was not taken. Nothing of it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// No room now; try again after the peer has read, see [`Rail::pending`].
    #[error("no room on the rail now")]
    Full,
    /// The frame is longer than [`MAX_FRAME`], or the put does not lie inside the peer's window.
    #[error("the frame or put does not fit")]
    TooLarge,
    /// The rail is dead; [`Rail::poll`] says why.
    #[error("the rail is lost")]
    Lost,
}

/// Why a rail is dead. It never comes back; a new one takes its place.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Lost {
    /// The process at the other end has ended.
    #[error("the peer's process has ended")]
    PeerDied,
    /// The connection was closed or reset.
    #[error("the connection was closed: {0}")]
    Closed(String),
    /// Nothing was heard from the peer's host for too long though something was sent.
    #[error("nothing was heard on it, not even acknowledgements")]
    Silent,
    /// Small frames are acknowledged, long ones are not.
    #[error("short frames pass, long ones do not")]
    Stalled,
    /// What arrived is not what a peer sends: wrong lengths, a checksum that does not match, a put outside
    /// every window or into a granule that does not expect it.
    #[error("the peer sent what it must not: {0}")]
    Corrupt(&'static str),
    /// As [`Lost::Corrupt`], where the bytes of a message are at fault.
    #[error("the peer sent what it must not: {0}")]
    Malformed(#[from] DecodeError),
}

/// What the system knows of a stream of frames on its path; everything 0 where it does not say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    /// Bytes sent, and what the rail adds to them, that the peer's system has acknowledged; it only grows, also within one
    /// long frame.
    pub acknowledged: u64,
    /// Such bytes that were sent and are not acknowledged, those left out that wait here; about as many.
    pub on_path: u64,
    /// Smoothed round trip.
    pub rtt: Nanos,
    /// The shortest that there was lately.
    pub least_rtt: Nanos,
}

/// What a rail knows of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Health {
    /// Bytes that fit in one packet; 0 where there are no packets or it is not known.
    pub mtu: u32,
    /// Smoothed round trip; 0 where not known.
    pub rtt: Nanos,
    /// The longest of the lanes' smoothed round trips, where each has a connection of its own: that of the path when its queues
    /// hold what is sent on the rail. 0 where not known.
    pub longest_rtt: Nanos,
    /// How long ago the system last heard from the peer's host, on whichever lane; 0 while that owes no answer on any, `None`
    /// where the system does not say.
    pub silent: Option<Nanos>,
    /// By [`Lane::index`], the same of one lane, where each has a connection of its own; `None` while no answer is owed there.
    pub lane_silent: [Option<Nanos>; LANES],
    /// Packets with data that the system sent, those it sent again among them; 0 where it does not say.
    pub segments: u64,
    /// Packets that the system sent again.
    pub retransmits: u64,
    /// Bytes that wait here for the path to take them.
    pub unsent: u64,
    /// Of [`Lane::Bulk`].
    pub bulk: Flow,
    /// Whether what it carries is encrypted.
    pub encrypted: bool,
}

/// One path between two endpoints. See the [crate] documentation for what holds for every kind.
pub trait Rail: Send {
    /// What it runs over.
    fn kind(&self) -> RailKind;

    /// Sends one frame, `head` followed by `body`. It may stay in a buffer until [`Rail::flush`].
    ///
    /// # Errors
    /// See [`SendError`]; on an error nothing was sent.
    fn send(&mut self, lane: Lane, head: &[u8], body: &[u8]) -> Result<(), SendError>;

    /// Like [`Rail::send`], for a body that others keep too: a rail that cannot pass it on at once need not copy it.
    ///
    /// # Errors
    /// See [`SendError`]; on an error nothing was sent.
    fn send_shared(&mut self, lane: Lane, head: &[u8], body: &Bytes) -> Result<(), SendError> {
        self.send(lane, head, body)
    }

    /// Writes `put.data` into the peer's window, then sends the frame `head` + `body` on `lane`: whoever
    /// receives the frame finds the data in place.
    ///
    /// # Errors
    /// See [`SendError`]; on an error nothing was sent.
    fn put(&mut self, lane: Lane, put: Put<'_>, head: &[u8], body: &[u8]) -> Result<(), SendError>;

    /// Like [`Rail::put`] without a frame: the peer finds the bytes in its window, and is told nothing; asleep, it is
    /// woken by the flush as for a frame. They are in place before any frame that is sent later on the same lane
    /// arrives. Eight bytes at a multiple of eight change at once: who looks at them sees the old or the new ones; in a
    /// [wordwise](crate::WindowSpan::wordwise) window this holds for every eight of a longer write or put.
    ///
    /// # Errors
    /// See [`SendError`]; on an error nothing was written.
    fn write(&mut self, lane: Lane, put: Put<'_>) -> Result<(), SendError>;

    /// Executes an access on the peer's window with this processor, where its memory is mapped here; what the word
    /// was before (0 for a get). Flush afterwards, as after a write. `None`: this kind of rail cannot, and
    /// the peer must be asked by message.
    ///
    /// # Errors
    /// [`SendError::TooLarge`]: not inside the window, or no whole word; nothing was done.
    fn direct(&mut self, access: Access<'_>) -> Option<Result<u64, SendError>> {
        let _ = access;
        None
    }

    /// What is known of the path now. Called on every tick of a link; also re-arms what must be re-armed.
    fn health(&mut self) -> Health {
        Health::default()
    }

    /// Bytes of bulk that go at once now, either way: what is urgent waits for the copying of so many, and fewer may not be
    /// worth a call.
    fn chunk(&self) -> usize {
        CHUNK
    }

    /// Whether there is urgent traffic: where that is so [`Rail::chunk`] may be shorter.
    fn hurry(&mut self, urgent: bool) {
        let _ = urgent;
    }

    /// It is given up and will be dropped next: nothing more of it is to be sent, not even a goodbye.
    fn abandon(&mut self) {}

    /// Hands over up to `limit` frames of each lane that have arrived, [`Lane::Prompt`] first, and of [`Lane::Bulk`] none
    /// after [`Rail::chunk`] bytes; how many.
    ///
    /// # Errors
    /// The rail is dead, and everything that arrived before was delivered.
    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost>;

    /// Pushes out what is buffered and wakes the peer if it sleeps. Call once after a batch of sends; a peer
    /// that polls sees shared-memory frames without it.
    ///
    /// # Errors
    /// The rail is dead.
    fn flush(&mut self) -> Result<(), Lost>;

    /// Whether [`Rail::poll`] or [`Rail::flush`] might get something done now. Called after the worker's bell
    /// was armed and before it sleeps; must not miss anything that the bell and the registered descriptors
    /// will not announce.
    fn pending(&mut self) -> bool;

    /// Adds what this rail's arrivals and freed room wake through to an epoll set, with `token` as its data;
    /// edge-triggered. Rails that wake through the bell alone add nothing.
    ///
    /// # Errors
    /// The system's refusal.
    fn register(&self, epoll: BorrowedFd<'_>, token: u64) -> io::Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_known_by_its_name_and_refused_where_it_is_not_built() {
        for kind in RailKind::ALL {
            match kind.name().parse::<RailKind>() {
                Ok(parsed) => assert_eq!(parsed, kind),
                Err(why) => {
                    assert!(kind == RailKind::Ofi && !cfg!(feature = "libfabric"), "{why}");
                    assert!(why.contains("use shm or tcp, or build with the feature `libfabric`"), "{why}");
                    assert_eq!(kind.available(), Err(why));
                }
            }
        }
        assert_eq!("rdma".parse::<RailKind>(), Err("unknown rail `rdma`: use shm or ofi or tcp".into()));
    }
}
