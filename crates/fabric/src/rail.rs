//! The interface of every rail.

use std::{io, os::fd::BorrowedFd, str::FromStr};

use bytes::Bytes;
use plexus_base::{Nanos, wire::DecodeError};

use crate::{Frame, WindowId};

/// The bytes of bulk for which urgent traffic may have to wait.
pub(crate) const CHUNK: usize = 16 << 10;

/// The polls in a row that may skip the bulk lane because the prompt one had frames. The answer to
/// a prompt frame need not wait, and bulk frames wait for no more than these polls.
pub(crate) const MOST_SKIPPED: u32 = 4;

/// The largest frame in bytes, head and body together: a 16 KiB message with its headers fits in
/// one.
pub const MAX_FRAME: usize = 16 * 1024 + 128;

/// The ordered paths within a rail. Frames of one lane arrive in the order sent; between lanes
/// there is no order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Lane {
    /// Small frames that a thread waits for; polled first.
    Prompt = 0,
    /// Blocks and long transfers.
    Bulk = 1,
}

/// The number of lanes of a rail.
pub const LANES: usize = 2;

impl Lane {
    /// Both lanes, in the order of polling.
    pub const ALL: [Self; LANES] = [Self::Prompt, Self::Bulk];

    /// The lane as an index.
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The transport of a rail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RailKind {
    /// Rings and windows in shared memory: both endpoints on one host.
    Shm,
    /// Endpoints of libfabric. A build or a machine may lack it.
    Ofi,
    /// Two TCP connections, one for each lane.
    Tcp,
}

// The fastest first.
plexus_base::named! { impl RailKind { Shm "shm", Ofi "ofi", Tcp "tcp" } }

impl RailKind {
    /// The kinds that need nothing installed.
    pub const BUILT_IN: [Self; 2] = [Self::Shm, Self::Tcp];

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

impl FromStr for RailKind {
    type Err = String;

    /// Finds the kind by its name; the error lists the valid names.
    fn from_str(name: &str) -> Result<Self, String> {
        let known = || Self::ALL.map(Self::name).join(" or ");
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| format!("unknown rail `{name}`: use {}", known()))
    }
}

/// The bytes to write into a window of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Put<'a> {
    /// The window of the peer.
    pub window: WindowId,
    /// The offset in it, in bytes.
    pub offset: u64,
    /// The generation of the target granule that its owner announced when it requested these bytes.
    /// A rail that bypasses the target's CPU refuses a put with another generation.
    pub generation: u32,
    /// The bytes.
    pub data: &'a [u8],
}

/// An access to the peer's window that returns something. Words are 64 bits, little endian, at a
/// multiple of 8.
#[derive(Debug)]
pub enum Access<'a> {
    /// Copies bytes of the window into all of `into`. A whole word is read at once.
    Get {
        /// The window of the peer.
        window: WindowId,
        /// The offset in it, in bytes.
        offset: u64,
        /// The target of the bytes.
        into: &'a mut [u8],
    },
    /// Adds to a word, wrapping around.
    FetchAdd {
        /// The window of the peer.
        window: WindowId,
        /// The offset in it, in bytes.
        offset: u64,
        /// The number to add.
        add: u64,
    },
    /// Makes a word `new` if it is `expected`.
    CompareSwap {
        /// The window of the peer.
        window: WindowId,
        /// The offset in it, in bytes.
        offset: u64,
        /// The expected word.
        expected: u64,
        /// The new word.
        new: u64,
    },
}

/// The reason why a frame was not taken. No part of it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// There is no room now; try again after the peer has read, see [`Rail::pending`].
    #[error("no room on the rail now")]
    Full,
    /// The frame is longer than [`MAX_FRAME`], or the put does not lie inside the peer's window.
    #[error("the frame or put does not fit")]
    TooLarge,
    /// The rail is dead; [`Rail::poll`] returns the reason.
    #[error("the rail is lost")]
    Lost,
}

/// The reason why a rail is dead. It never comes back; a new one takes its place.
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
    /// The peer violated the protocol: wrong lengths, a wrong checksum, a put outside every window
    /// or into a granule that does not expect it.
    #[error("the peer violated the protocol: {0}")]
    Corrupt(&'static str),
    /// As [`Lost::Corrupt`], for the bytes of a message.
    #[error("the peer violated the protocol: {0}")]
    Malformed(#[from] DecodeError),
}

/// The system's view of a stream of frames on its path; every field is 0 if the system does not
/// report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flow {
    /// The bytes sent, with those that the rail adds, that the peer's system has acknowledged. The
    /// count only grows, also within one long frame.
    pub acknowledged: u64,
    /// The bytes in flight on the path, approximately: sent and not acknowledged, without those
    /// that wait on this host.
    pub on_path: u64,
    /// The smoothed round-trip time.
    pub rtt: Nanos,
    /// The shortest recent round-trip time.
    pub least_rtt: Nanos,
}

/// A rail's view of its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Health {
    /// The bytes that fit in one packet; 0 if there are no packets or it is not known.
    pub mtu: u32,
    /// The smoothed round-trip time; 0 if not known.
    pub rtt: Nanos,
    /// The longest of the lanes' smoothed round-trip times, where each has a connection of its own.
    /// It is that of the path when its queues hold the rail's own frames. 0 if not known.
    pub longest_rtt: Nanos,
    /// The time since the system last heard from the peer's host, on any lane; 0 while the host
    /// owes no answer, `None` if the system does not report it.
    pub silent: Option<Nanos>,
    /// By [`Lane::index`], the same of one lane, where each has a connection of its own; `None`
    /// while no answer is owed there.
    pub lane_silent: [Option<Nanos>; LANES],
    /// The packets with data that the system sent, including repeated ones; 0 if it does not report
    /// them.
    pub segments: u64,
    /// The packets that the system sent again.
    pub retransmits: u64,
    /// The bytes that wait on this host for the path to take them.
    pub unsent: u64,
    /// The flow of [`Lane::Bulk`].
    pub bulk: Flow,
    /// True if the traffic is encrypted.
    pub encrypted: bool,
}

/// One path between two endpoints. The [crate] documentation gives the guarantees of every kind.
pub trait Rail: Send {
    /// The transport of this rail.
    fn kind(&self) -> RailKind;

    /// Sends one frame, `head` followed by `body`. It may stay in a buffer until [`Rail::flush`].
    ///
    /// # Errors
    /// See [`SendError`]; on an error nothing was sent.
    fn send(&mut self, lane: Lane, head: &[u8], body: &[u8]) -> Result<(), SendError>;

    /// Like [`Rail::send`], for a shared body, which a rail that cannot send it at once need not
    /// copy.
    ///
    /// # Errors
    /// See [`SendError`]; on an error nothing was sent.
    fn send_shared(&mut self, lane: Lane, head: &[u8], body: &Bytes) -> Result<(), SendError> {
        self.send(lane, head, body)
    }

    /// Writes `put.data` into the peer's window, then sends the frame `head` + `body` on `lane`.
    /// The data are in place when the peer receives the frame.
    ///
    /// # Errors
    /// See [`SendError`]; on an error nothing was sent.
    fn put(&mut self, lane: Lane, put: Put<'_>, head: &[u8], body: &[u8]) -> Result<(), SendError>;

    /// Like [`Rail::put`] without a frame: the bytes arrive in the peer's window without a notice;
    /// the flush wakes a sleeping peer as for a frame. They are in place before any later frame on
    /// the same lane arrives.
    ///
    /// Eight bytes at a multiple of eight change at once: a reader sees the old or the new ones. In
    /// a [wordwise](crate::WindowSpan::wordwise) window this holds for every eight bytes of a
    /// longer write or put.
    ///
    /// # Errors
    /// See [`SendError`]; on an error nothing was written.
    fn write(&mut self, lane: Lane, put: Put<'_>) -> Result<(), SendError>;

    /// Executes an access on the peer's window with this processor, if the peer's memory is mapped
    /// here. Returns the earlier word (0 for a get). Flush afterwards, as after a write. `None`:
    /// this kind of rail cannot, and the caller must request the access by message.
    ///
    /// # Errors
    /// [`SendError::TooLarge`]: the access is not inside the window or not on a whole word; nothing
    /// was done.
    fn direct(&mut self, access: Access<'_>) -> Option<Result<u64, SendError>> {
        let _ = access;
        None
    }

    /// The current view of the path. A link calls this on every tick; it also re-arms what must be
    /// re-armed.
    fn health(&mut self) -> Health {
        Health::default()
    }

    /// The bytes of bulk that go at once now, in either direction. Urgent traffic waits for the
    /// copying of so many, and fewer may not be worth a call.
    fn chunk(&self) -> usize {
        CHUNK
    }

    /// Tells the rail whether there is urgent traffic, for which [`Rail::chunk`] may be shorter.
    fn hurry(&mut self, urgent: bool) {
        let _ = urgent;
    }

    /// Announces that the rail is given up and will be dropped next: nothing more is to be sent,
    /// not even a goodbye.
    fn abandon(&mut self) {}

    /// Hands over up to `limit` arrived frames of each lane, [`Lane::Prompt`] first, and of
    /// [`Lane::Bulk`] none after [`Rail::chunk`] bytes. Returns their number.
    ///
    /// # Errors
    /// The rail is dead, and everything that arrived before was delivered.
    fn poll(&mut self, limit: usize, deliver: &mut dyn FnMut(Lane, Frame<'_>)) -> Result<usize, Lost>;

    /// Sends the buffered bytes and wakes the peer if it sleeps. Call it once after a batch of
    /// sends; a polling peer sees shared-memory frames without it.
    ///
    /// # Errors
    /// The rail is dead.
    fn flush(&mut self) -> Result<(), Lost>;

    /// Returns true if [`Rail::poll`] or [`Rail::flush`] might do something now. It is called after
    /// the worker's bell was armed and before it sleeps. It must not miss anything that the bell
    /// and the registered descriptors do not announce.
    fn pending(&mut self) -> bool;

    /// Adds the descriptors that announce this rail's arrivals and freed room to an epoll set, with
    /// `token` as their data; edge-triggered. Rails that wake through the bell alone add nothing.
    ///
    /// # Errors
    /// A system call fails.
    fn register(&self, epoll: BorrowedFd<'_>, token: u64) -> io::Result<()>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_found_by_name() {
        for kind in RailKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!("rdma".parse::<RailKind>(), Err("unknown rail `rdma`: use shm or ofi or tcp".into()));
    }
}
