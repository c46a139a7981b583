//! Numbered traffic between two members, and the check that it arrives as it was sent.
//!
//! Both members keep a fixed number of messages under way, and send the next when one is
//! acknowledged. A receiver checks that the number of each message on a channel is the next one,
//! and that its bytes match the number. It checks that a put is in place when its message comes.
//! The put must still be unchanged half a lap later; a late older put for the same place would
//! overwrite it. A sender checks that acknowledgements and replies come once each and in order.
//! When the peer is gone, both start again from zero.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{
        AtomicBool, AtomicU64,
        Ordering::{AcqRel, Acquire, Relaxed, Release},
    },
};

use plexus_base::{Nanos, NodeId, clock};
use plexus_fabric::{Lost, Put, Window, WindowId};
use plexus_interconnect::{Channel, Kind, Message, Net, Service};

/// A channel of each class, and the one that puts are announced on.
const CHANNELS: [Channel; 4] =
    [Channel::Membership, Channel::Datagrams, Channel::Files, Channel::CacheBlocks];

/// The position of the channel of puts.
const PUTS: usize = 3;

/// The channel of calls.
const CALLS: Channel = Channel::Services;

/// The unacknowledged messages of each channel; a quarter of a lap of the places.
const IN_FLIGHT: u64 = 16;

/// The limit for [`Channel::Files`] after `bulk`: most of a megabyte, so that slow paths never run
/// dry.
const BULK_IN_FLIGHT: u64 = 256;

/// The calls without a reply.
const CALLS_IN_FLIGHT: u64 = 8;

/// The window that puts go to, its places and their length.
pub(super) const WINDOW: WindowId = WindowId(1);
const PLACES: u64 = 4 * IN_FLIGHT;
const PLACE: usize = 4096;

/// Bytes of [`WINDOW`].
pub(super) const WINDOW_BYTES: usize = PLACES as usize * PLACE;

const DATA: u32 = 1;
const ACKNOWLEDGED: u32 = 2;

/// The observations of a member; any thread may read them.
#[derive(Debug, Default)]
pub struct Observed {
    /// The number of times that the peer came up.
    pub ups: AtomicU64,
    /// The number of times that the peer was gone.
    pub gone: AtomicU64,
    /// The messages and puts sent in this incarnation of the link.
    pub sent: AtomicU64,
    /// The messages and puts checked in this incarnation of the link.
    pub received: AtomicU64,
    /// The acknowledgements of the channel with the fewest in this incarnation of the link; replies
    /// count too.
    pub least: AtomicU64,
    /// The longest wait of a channel for an acknowledgement since the last
    /// [`Observed::take_stall`].
    pub stall_ns: AtomicU64,
    /// True when stopped, with all messages acknowledged.
    pub idle: AtomicBool,
    /// The first error.
    pub wrong: Mutex<Option<String>>,
}

impl Observed {
    fn wrong(&self, what: String) {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(what);
    }

    /// Returns the longest stall since the last call.
    pub fn take_stall(&self) -> Nanos {
        Nanos(self.stall_ns.swap(0, AcqRel))
    }
}

/// A request of another thread of the member.
#[derive(Debug)]
pub enum Task {
    /// Keep more bulk under way.
    Bulk,
    /// Send nothing new.
    Stop,
}

/// One numbered stream in both directions.
#[derive(Clone, Copy, Default)]
struct Stream {
    sent: u64,
    acknowledged: u64,
    received: u64,
    /// The time of the last acknowledgement.
    last: Nanos,
}

/// The mesh service that exchanges the traffic.
pub struct Traffic {
    peer: NodeId,
    up: bool,
    stopped: bool,
    bulk: bool,
    window: Arc<Window>,
    streams: [Stream; CHANNELS.len()],
    calls: Stream,
    bytes: Vec<u8>,
    expected: Vec<u8>,
    observed: Arc<Observed>,
}

impl Traffic {
    /// Creates traffic with `peer`, whose puts arrive in `window`.
    pub fn new(peer: NodeId, window: Arc<Window>, observed: Arc<Observed>) -> Self {
        Self {
            peer,
            up: false,
            stopped: false,
            bulk: false,
            window,
            streams: Default::default(),
            calls: Stream::default(),
            bytes: Vec::new(),
            expected: Vec::new(),
            observed,
        }
    }

    fn fill(&mut self, net: &mut Net) {
        if !self.up {
            return;
        }
        for (index, channel) in CHANNELS.into_iter().enumerate() {
            let more = self.bulk && channel == Channel::Files;
            let most = if more { BULK_IN_FLIGHT } else { IN_FLIGHT };
            while !self.stopped && self.streams[index].sent - self.streams[index].acknowledged < most {
                self.send(net, index);
            }
        }
        while !self.stopped && self.calls.sent - self.calls.acknowledged < CALLS_IN_FLIGHT {
            let token = self.calls.sent;
            self.calls.sent += 1;
            if net.call(self.peer, CALLS, &token.to_le_bytes(), token).is_err() {
                return;
            }
        }
        let done = |stream: &Stream| stream.sent == stream.acknowledged;
        let idle = self.stopped && self.streams.iter().all(done) && done(&self.calls);
        self.observed.idle.store(idle, Release);
        let all = self.streams.iter().map(|stream| stream.sent).sum::<u64>();
        self.observed.sent.store(all, Relaxed);
        let least = self.streams.iter().chain([&self.calls]).map(|stream| stream.acknowledged).min();
        self.observed.least.store(least.unwrap_or(0), Relaxed);
    }

    fn send(&mut self, net: &mut Net, index: usize) {
        let number = self.streams[index].sent;
        self.streams[index].sent += 1;
        let channel = CHANNELS[index];
        // Without a link a separate event reports the loss, and all streams start again.
        let _ = if index == PUTS {
            content(&mut self.bytes, channel, number, PLACE);
            let offset = number % PLACES * PLACE as u64;
            let put = Put { window: WINDOW, offset, generation: 0, data: &self.bytes };
            net.put(self.peer, channel, Kind::Request, DATA, put, &number.to_le_bytes())
        } else {
            content(&mut self.bytes, channel, number, length(channel, number));
            self.bytes[..8].copy_from_slice(&number.to_le_bytes());
            net.send(self.peer, channel, Kind::Request, DATA, &self.bytes)
        };
    }

    fn data(&mut self, net: &mut Net, index: usize, payload: &[u8]) {
        let (channel, due) = (CHANNELS[index], self.streams[index].received);
        let number = payload.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        if number != Some(due) {
            let what = format!("{}: message {number:?} came where {due} was due", channel.name());
            return self.observed.wrong(what);
        }
        if index == PUTS {
            self.check_place(due, "is not in place");
            // The peer must not write there before this put is acknowledged half a lap later.
            if let Some(older) = due.checked_sub(PLACES / 2) {
                self.check_place(older, "was overwritten by an older one");
            }
        } else {
            content(&mut self.expected, channel, due, length(channel, due));
            self.expected[..8].copy_from_slice(&due.to_le_bytes());
            if payload != self.expected {
                self.observed.wrong(format!("{}: message {due} came changed", channel.name()));
            }
        }
        self.streams[index].received += 1;
        self.observed.received.fetch_add(1, Relaxed);
        let _ = net.send(self.peer, channel, Kind::Reply, ACKNOWLEDGED, &due.to_le_bytes());
    }

    fn check_place(&mut self, number: u64, what: &str) {
        content(&mut self.expected, CHANNELS[PUTS], number, PLACE);
        self.bytes.resize(PLACE, 0);
        self.window.read((number % PLACES) as usize * PLACE, &mut self.bytes);
        if self.bytes != self.expected {
            self.observed.wrong(format!("put {number} {what}"));
        }
    }

    fn progress(observed: &Observed, stream: &mut Stream) {
        let now = clock::now();
        stream.acknowledged += 1;
        observed.stall_ns.fetch_max(now.since(stream.last).0, AcqRel);
        stream.last = now;
    }
}

impl Service for Traffic {
    type Task = Task;

    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        if message.channel == CALLS {
            let _ = net.answer(message, message.payload);
            return;
        }
        let Some(index) = CHANNELS.iter().position(|channel| *channel == message.channel) else {
            return self.observed.wrong(format!("a message on channel {}", message.channel.name()));
        };
        match (message.kind, message.tag) {
            (Kind::Request, DATA) => self.data(net, index, message.payload),
            (Kind::Reply, ACKNOWLEDGED) => {
                let stream = &mut self.streams[index];
                let due = stream.acknowledged.to_le_bytes();
                if message.payload != due || stream.acknowledged >= stream.sent {
                    let what = format!("{}: an acknowledgement that is not due", message.channel.name());
                    return self.observed.wrong(what);
                }
                Self::progress(&self.observed, stream);
            }
            other => self.observed.wrong(format!("a message of kind and tag {other:?}")),
        }
        self.fill(net);
    }

    fn task(&mut self, net: &mut Net, task: Task) {
        match task {
            Task::Bulk => self.bulk = true,
            Task::Stop => self.stopped = true,
        }
        self.fill(net);
    }

    fn reply(&mut self, net: &mut Net, _: NodeId, _: Channel, token: u64, payload: &[u8]) {
        if token != self.calls.acknowledged || payload != token.to_le_bytes() {
            self.observed.wrong(format!("reply {token} came where {} was due", self.calls.acknowledged));
        }
        Self::progress(&self.observed, &mut self.calls);
        self.fill(net);
    }

    fn peer_up(&mut self, net: &mut Net, _: NodeId) {
        let now = clock::now();
        let fresh = Stream { last: now, ..Stream::default() };
        self.streams = [fresh; CHANNELS.len()];
        self.calls = fresh;
        self.up = true;
        for counter in [&self.observed.sent, &self.observed.received, &self.observed.least] {
            counter.store(0, Relaxed);
        }
        self.observed.ups.fetch_add(1, Relaxed);
        self.fill(net);
    }

    fn peer_gone(&mut self, _: &mut Net, _: NodeId, _: &Lost) {
        self.up = false;
        self.observed.gone.fetch_add(1, Relaxed);
    }
}

impl Observed {
    /// Returns the first error, if there was one.
    pub fn first_wrong(&self) -> Option<String> {
        self.wrong.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns true if the traffic is stopped and nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.idle.load(Acquire)
    }
}

/// Returns the length of a message. Most are small; some bulk messages span several frames.
fn length(channel: Channel, number: u64) -> usize {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    let longest = match channel {
        Channel::Files if number % 16 == 7 => 40_000,
        Channel::Files => 4_000,
        _ => 300,
    };
    8 + mixed as usize % longest
}

/// Fills `bytes` with the content of message `number` of a channel.
fn content(bytes: &mut Vec<u8>, channel: Channel, number: u64, len: usize) {
    bytes.clear();
    let mut word = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ channel.index() as u64;
    while bytes.len() < len {
        // xorshift64: Marsaglia, "Xorshift RNGs".
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(len);
}

#[cfg(test)]
mod tests;
