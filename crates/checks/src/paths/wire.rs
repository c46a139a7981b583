//! A path with a rate, a queue and a delay, and the connection state at its ends.
//!
//! Both lanes share the queue of a direction, so prompt frames wait behind bulk sent before.
//! Acknowledgements share the queue of the other direction. A connection has a limited number of
//! bytes of a lane under way. A dropped item holds up all later ones on its lane, as in TCP. The
//! module does not know the meaning of the items.

use plexus_base::Nanos;
use plexus_fabric::{Flow, LANES, Lane};
use plexus_interconnect::link::protocol::Signs;

/// The length of an acknowledgement on the wire.
pub(super) const ACKNOWLEDGEMENT: u32 = 60;

/// The longest frame that passes a path for short packets only.
const SHORT: u32 = 700;

/// The initial window of a connection, also after a pause (RFC 6928, RFC 2861). It grows by each
/// acknowledged byte while at least half of it is used (slow start as in Linux,
/// `tcp_is_cwnd_limited`).
const FIRST_WINDOW: u64 = 14_600;
/// The pause after which the window shrinks again.
const IDLE: u64 = 200_000_000;

/// A fault of a path.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Fault {
    /// Both ends are told at once.
    Reset,
    /// Everything is dropped.
    BlackHole,
    /// Everything from the first end is dropped.
    There,
    /// Everything from the second end is dropped.
    Back,
    /// Long frames are dropped.
    Long,
    /// Prompt frames and their acknowledgements are dropped.
    Prompt,
}

plexus_base::named! {
    impl Fault {
        Reset "reset",
        BlackHole "black hole",
        There "black hole, there",
        Back "black hole, back",
        Long "long frames swallowed",
        Prompt "prompt lane dead",
    }
}

impl Fault {
    /// Returns true if the fault drops an item of `from` on a lane.
    fn takes(self, from: usize, lane: Lane, bytes: u32) -> bool {
        match self {
            Self::Reset | Self::BlackHole => true,
            Self::There => from == 0,
            Self::Back => from == 1,
            Self::Long => bytes > SHORT,
            Self::Prompt => lane == Lane::Prompt,
        }
    }
}

/// One path with both directions.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub(super) ns_per_byte: u64,
    pub(super) delay_ns: u64,
    pub(super) fault: Option<Fault>,
    /// The time at which the queue of each direction is empty.
    free_at: [u64; 2],
}

impl Path {
    pub(super) fn new(ns_per_byte: u64, delay_ns: u64) -> Self {
        Self { ns_per_byte, delay_ns, fault: None, free_at: [0; 2] }
    }

    /// Returns the time to carry the initial burst of a new connection.
    pub(super) fn burst(&self) -> u64 {
        FIRST_WINDOW * self.ns_per_byte
    }

    /// Returns the round-trip time of a short item.
    pub(super) fn round_trip(&self, now: u64) -> u64 {
        2 * self.delay_ns + self.free_at.iter().map(|free_at| free_at.saturating_sub(now)).sum::<u64>()
    }

    /// Sends bytes; returns their travel time, or `None` if they are dropped.
    pub(super) fn pass(&mut self, from: usize, lane: Lane, bytes: u32, now: u64) -> Option<u64> {
        let free_at = &mut self.free_at[from];
        *free_at = (*free_at).max(now) + u64::from(bytes) * self.ns_per_byte;
        let swallowed = self.fault.is_some_and(|fault| fault.takes(from, lane, bytes));
        (!swallowed).then_some(*free_at - now + self.delay_ns)
    }
}

/// One lane of one end of a connection, as its system sees it.
#[derive(Clone, Debug)]
struct Socket {
    under_way: u32,
    /// True after a drop: no later item is received.
    holed: bool,
    heard: u64,
    rtt: u64,
    least_rtt: u64,
    acknowledged: u64,
    /// The window as far as it has grown.
    window: u64,
    /// The time of the last transmission.
    sent_at: u64,
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    window: u32,
    sockets: [Socket; LANES],
}

impl Connection {
    /// Creates a connection end whose lanes may each have `window` bytes under way.
    pub(super) fn new(window: u32, rtt: u64, now: u64) -> Self {
        let socket = Socket {
            under_way: 0,
            holed: false,
            heard: now,
            rtt,
            least_rtt: rtt,
            acknowledged: 0,
            window: FIRST_WINDOW,
            sent_at: now,
        };
        Self { window, sockets: [socket.clone(), socket] }
    }

    pub(super) fn has_room(&mut self, lane: Lane, bytes: u32, now: u64) -> bool {
        let socket = &mut self.sockets[lane.index()];
        if socket.under_way == 0 && now - socket.sent_at > IDLE {
            socket.window = FIRST_WINDOW;
        }
        u64::from(socket.under_way + bytes) <= socket.window.min(self.window.into())
    }

    /// Notes bytes given to the path; returns true if they will be received.
    pub(super) fn sent(&mut self, lane: Lane, bytes: u32, passes: bool, now: u64) -> bool {
        let socket = &mut self.sockets[lane.index()];
        socket.under_way += bytes;
        socket.sent_at = now;
        socket.holed |= !passes;
        !socket.holed
    }

    /// Notes a sign of the other end on a lane.
    pub(super) fn heard(&mut self, lane: Lane, now: u64) {
        self.sockets[lane.index()].heard = now;
    }

    /// Notes the acknowledgement of bytes that were sent `ago` nanoseconds ago.
    pub(super) fn acknowledged(&mut self, lane: Lane, bytes: u32, ago: u64, now: u64) {
        let socket = &mut self.sockets[lane.index()];
        if u64::from(socket.under_way) * 2 >= socket.window {
            socket.window += u64::from(bytes);
        }
        socket.under_way -= bytes;
        socket.acknowledged += u64::from(bytes);
        socket.rtt = socket.rtt - socket.rtt / 8 + ago / 8;
        socket.least_rtt = socket.least_rtt.min(ago);
        socket.heard = now;
    }

    /// Returns the acknowledged bytes of bulk.
    pub(super) fn bulk(&self) -> u64 {
        self.sockets[Lane::Bulk.index()].acknowledged
    }

    /// Returns the longest of the lanes' smoothed round trips.
    pub(super) fn longest_rtt(&self) -> u64 {
        self.sockets.iter().map(|socket| socket.rtt).max().unwrap_or_default()
    }

    /// Returns the signs that a rail over TCP would report.
    pub(super) fn signs(&self, now: u64) -> Signs {
        let owes = |socket: &Socket| socket.under_way > 0;
        let ago = |socket: &Socket| Nanos(now - socket.heard);
        let heard = self.sockets.iter().map(ago).min().unwrap_or_default();
        let [prompt, bulk] = &self.sockets;
        Signs {
            silent: Some(if self.sockets.iter().any(owes) { heard } else { Nanos(0) }),
            lane_silent: [prompt, bulk].map(|socket| owes(socket).then(|| ago(socket))),
            rtt: Nanos(prompt.rtt.min(bulk.rtt)),
            longest_rtt: Nanos(self.longest_rtt()),
            bulk: Flow {
                acknowledged: bulk.acknowledged,
                on_path: bulk.under_way.into(),
                rtt: Nanos(bulk.rtt),
                least_rtt: Nanos(bulk.least_rtt),
            },
        }
    }
}
