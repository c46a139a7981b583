//! One rail as its link sees it: what was sent and received on it, and what must be kept until the peer has it.

use std::collections::VecDeque;

use plexus_base::Nanos;
use plexus_fabric::{LANES, Lane};

use super::{Closed, Violation, liveness::Liveness, speed::Speed};
use crate::{Channel, KINDS};

/// The slowness of the fastest rail.
pub(super) const AS_FAST: u64 = 1 << 16;

/// What a rail is worth to its link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Rails of a lower class are used before those of a higher one; rails of one class share bulk.
    pub class: u8,
    /// It can be lost while the peer lives, so what is sent is kept until the peer has it.
    pub retains: bool,
}

/// Bytes of a window of the peer that a frame changes on its arrival, whatever its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Which window.
    pub window: u16,
    /// The first byte.
    pub from: u64,
    /// The first one behind.
    pub to: u64,
}

impl Span {
    fn meets(&self, other: &Self) -> bool {
        self.window == other.window && self.from < other.to && other.from < self.to
    }
}

/// A frame with its place in its channel.
#[derive(Clone, Debug)]
pub(super) struct Numbered<F> {
    pub(super) channel: Channel,
    pub(super) sequence: u32,
    pub(super) span: Option<Span>,
    pub(super) frame: F,
}

impl<F> Numbered<F> {
    /// Whether a later put of `channel` to `span` must not land before this frame's.
    pub(super) fn stands_before(&self, channel: Channel, span: &Span) -> bool {
        self.channel == channel && self.span.is_some_and(|mine| mine.meets(span))
    }
}

#[derive(Clone, Debug)]
pub(super) enum What<F> {
    Frame(Numbered<F>),
    Closed(Closed),
    Note,
}

/// Something that was sent and may not have arrived.
#[derive(Clone, Debug)]
pub(super) struct Kept<F> {
    /// Credits that it returned.
    pub(super) credits: [u8; KINDS],
    pub(super) what: What<F>,
}

/// One lane of one rail.
#[derive(Debug)]
pub(super) struct Stream<F> {
    pub(super) sent: u64,
    pub(super) acknowledged: u64,
    pub(super) received: u64,
    /// How much of `received` the peer has been told.
    pub(super) noted: u64,
    kept: VecDeque<Kept<F>>,
}

impl<F> Default for Stream<F> {
    fn default() -> Self {
        Self { sent: 0, acknowledged: 0, received: 0, noted: 0, kept: VecDeque::new() }
    }
}

impl<F> Stream<F> {
    /// Sent and not known to have arrived.
    #[inline]
    pub(super) fn under_way(&self) -> u64 {
        self.sent - self.acknowledged
    }

    /// Whether a put under way here must land before one of `channel` to `span`.
    pub(super) fn holds_up(&self, channel: Channel, span: &Span) -> bool {
        self.kept.iter().any(|kept| match &kept.what {
            What::Frame(frame) => frame.stands_before(channel, span),
            What::Closed(_) | What::Note => false,
        })
    }

    /// The peer has received so many. Older news than what is known is no news.
    fn acknowledge(&mut self, received: u64) -> Result<(), Violation> {
        if received > self.sent {
            return Err(Violation::Acknowledged);
        }
        while self.acknowledged < received {
            self.kept.pop_front();
            self.acknowledged += 1;
        }
        Ok(())
    }
}

/// A rail that is up.
#[derive(Debug)]
pub(super) struct RailCore<F> {
    pub(super) generation: u32,
    pub(super) rank: Rank,
    pub(super) streams: [Stream<F>; LANES],
    pub(super) liveness: Liveness,
    pub(super) speed: Speed,
    /// How long a frame of bulk takes here, in parts of [`AS_FAST`] of what it takes on the fastest rail.
    pub(super) slowness: u64,
    /// Used before then only if there is nothing else.
    pub(super) trusted_from: Nanos,
}

impl<F> RailCore<F> {
    pub(super) fn new(generation: u32, rank: Rank, now: Nanos, trusted_from: Nanos) -> Self {
        Self {
            generation,
            rank,
            streams: Default::default(),
            liveness: Liveness::new(now),
            speed: Speed::default(),
            slowness: AS_FAST,
            trusted_from,
        }
    }

    #[inline]
    pub(super) fn sent(&mut self, lane: Lane, credits: [u8; KINDS], keep: impl FnOnce() -> What<F>) {
        let stream = &mut self.streams[lane.index()];
        stream.sent += 1;
        if self.rank.retains {
            stream.kept.push_back(Kept { credits, what: keep() });
        }
    }

    pub(super) fn received(&self) -> [u64; LANES] {
        [self.streams[0].received, self.streams[1].received]
    }

    pub(super) fn acknowledged(&mut self, received: [u64; LANES]) -> Result<(), Violation> {
        if !self.rank.retains {
            return Ok(());
        }
        self.streams.iter_mut().zip(received).try_for_each(|(stream, received)| stream.acknowledge(received))
    }

    /// Frames that arrived on either lane without the peer being told.
    #[inline]
    pub(super) fn untold(&self) -> u64 {
        if !self.rank.retains {
            return 0;
        }
        self.streams.iter().map(|stream| stream.received - stream.noted).sum()
    }

    /// News of other rails that may not have arrived.
    pub(super) fn news(&self) -> impl Iterator<Item = Closed> {
        let kept = self.streams.iter().flat_map(|stream| &stream.kept);
        kept.filter_map(|kept| if let What::Closed(closed) = kept.what { Some(closed) } else { None })
    }

    /// Frames and news of other rails that may not have arrived.
    pub(super) fn unsettled(&self) -> usize {
        let kept = self.streams.iter().flat_map(|stream| &stream.kept);
        kept.filter(|kept| !matches!(kept.what, What::Note)).count()
    }

    pub(super) fn told(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.noted = stream.received);
    }
}

/// A rail that is destroyed here, until the peer has said what it received on it.
#[derive(Debug)]
pub(super) struct Closing<F> {
    pub(super) slot: u8,
    pub(super) generation: u32,
    streams: [Stream<F>; LANES],
}

impl<F> Closing<F> {
    pub(super) fn new(slot: u8, rail: RailCore<F>) -> Self {
        Self { slot, generation: rail.generation, streams: rail.streams }
    }

    /// Whether a put whose fate is not known must land before one of `channel` to `span`.
    pub(super) fn holds_up(&self, channel: Channel, span: &Span) -> bool {
        self.streams.iter().any(|stream| stream.holds_up(channel, span))
    }

    /// What the peer, who received so many, did not get, by lane.
    pub(super) fn missing(mut self, received: [u64; LANES]) -> Result<[VecDeque<Kept<F>>; LANES], Violation> {
        for (stream, received) in self.streams.iter_mut().zip(received) {
            if received < stream.acknowledged {
                return Err(Violation::Acknowledged);
            }
            stream.acknowledge(received)?;
        }
        Ok(self.streams.map(|stream| stream.kept))
    }
}
