//! The side of a measurement that sends: keeps each stream's messages under way, and the time of each round.
//!
//! Driven by the answers alone; only a load with a rate needs a [tick](Active::tick) besides. Both sides have one when
//! both directions are measured at once, and a load is one more.

use plexus_base::{Nanos, NodeId, clock};
use plexus_interconnect::{Channel, Kind, Net};

use super::{
    Load, Op, PerfError, Test, Trial,
    ops::{self, Sending},
    parameters::BULK,
    payload,
    wire::{Tag, What},
};
use crate::Responses;

/// Sends, and counts what was answered.
pub(super) struct Active {
    trial: Trial,
    number: u32,
    what: What,
    channel: Channel,
    peer: NodeId,
    data: Box<[u8]>,
    /// What an answer that carries the bytes back must look like.
    look: u64,
    streams: Vec<Stream>,
    /// Answered at the mark, of each stream.
    marked: Vec<u64>,
    marked_at: Nanos,
    pace: Option<Pace>,
    counting: bool,
    stopped: bool,
    responses: Responses,
}

#[derive(Clone, Copy, Default)]
struct Stream {
    sent: u64,
    answered: u64,
    last: Nanos,
}

/// At most so many bytes a second since the start.
struct Pace {
    bytes_per_ns: f64,
    since: Nanos,
}

impl Active {
    /// For `trial`, towards `peer`.
    pub(super) fn new(trial: Trial, number: u32, peer: NodeId) -> Self {
        Self::with(trial, number, What::Data, trial.channel(), peer, None)
    }

    /// For a load beside something else.
    pub(super) fn load(load: Load, number: u32, peer: NodeId) -> Self {
        let trial = Trial::new(Test::Bandwidth, Op::Send, load.bytes);
        let pace = load.mb_per_s.map(|rate| Pace { bytes_per_ns: rate * 1e6 / 1e9, since: Nanos::default() });
        Self::with(trial, number, What::Load, BULK, peer, pace)
    }

    fn with(
        trial: Trial,
        number: u32,
        what: What,
        channel: Channel,
        peer: NodeId,
        pace: Option<Pace>,
    ) -> Self {
        let data = payload::pattern(trial.bytes as usize);
        let streams = trial.streams as usize;
        Self {
            look: payload::look(&data),
            data,
            trial,
            number,
            what,
            channel,
            peer,
            streams: vec![Stream::default(); streams],
            marked: vec![0; streams],
            marked_at: Nanos::default(),
            pace,
            counting: false,
            stopped: false,
            responses: Responses::new(),
        }
    }

    /// Sends the first messages.
    pub(super) fn start(&mut self, net: &mut Net) {
        let now = clock::now();
        if let Some(pace) = &mut self.pace {
            pace.since = now;
        }
        for stream in 0..self.streams.len() {
            self.streams[stream].last = now;
            self.fill(net, stream, now);
        }
    }

    /// Sends what a pace allows by now.
    pub(super) fn tick(&mut self, net: &mut Net) {
        if self.pace.is_some() && !self.stopped {
            let now = clock::now();
            (0..self.streams.len()).for_each(|stream| self.fill(net, stream, now));
        }
    }

    /// From now on everything counts.
    pub(super) fn mark(&mut self, now: Nanos) {
        self.counting = true;
        self.marked_at = now;
        for (marked, stream) in self.marked.iter_mut().zip(&self.streams) {
            *marked = stream.answered;
        }
    }

    /// Sends no more.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Messages answered since the mark.
    pub(super) fn answered(&self) -> u64 {
        self.streams.iter().zip(&self.marked).map(|(stream, marked)| stream.answered - marked).sum()
    }

    /// The same for each stream.
    pub(super) fn answered_each(&self) -> Vec<u64> {
        self.streams.iter().zip(&self.marked).map(|(stream, marked)| stream.answered - marked).collect()
    }

    /// When it was marked.
    pub(super) fn marked_at(&self) -> Nanos {
        self.marked_at
    }

    /// The times of the rounds since the mark.
    pub(super) fn responses(&self) -> &Responses {
        &self.responses
    }

    /// How many bytes messages of one stream are.
    pub(super) fn bytes(&self) -> u32 {
        self.trial.bytes
    }

    /// One message of a round trip is back and looked like `look` (where it carried the bytes back).
    ///
    /// # Errors
    /// It is not what was sent.
    #[inline]
    pub(super) fn returned(
        &mut self,
        net: &mut Net,
        tag: Tag,
        look: u64,
        now: Nanos,
    ) -> Result<(), PerfError> {
        let Some(stream) = self.streams.get_mut(tag.stream as usize) else { return Ok(()) };
        if tag.number != Tag::low(stream.sent) || look != self.look {
            return Err(PerfError::Changed { bytes: self.trial.bytes });
        }
        stream.answered += 1;
        let round = now.since(stream.last);
        if !self.stopped {
            stream.last = now;
            self.send(net, tag.stream as usize);
        }
        // After the next message left: what the harness does hides behind its way.
        if self.counting {
            self.responses.record(round.0);
        }
        Ok(())
    }

    /// The peer has `arrived` messages of a stream.
    #[inline]
    pub(super) fn acknowledged(&mut self, net: &mut Net, tag: Tag, arrived: u64, now: Nanos) {
        let Some(stream) = self.streams.get_mut(tag.stream as usize) else { return };
        stream.answered = arrived.clamp(stream.answered, stream.sent);
        if !self.stopped {
            self.fill(net, tag.stream as usize, now);
        }
    }

    /// Sends until as much is under way as may be.
    #[inline]
    fn fill(&mut self, net: &mut Net, stream: usize, now: Nanos) {
        let most = match &self.pace {
            None => u64::MAX,
            Some(pace) => {
                (now.since(pace.since).0 as f64 * pace.bytes_per_ns) as u64 / u64::from(self.trial.bytes)
            }
        };
        while self.streams[stream].sent - self.streams[stream].answered < u64::from(self.trial.depth)
            && self.streams[stream].sent < most
        {
            self.send(net, stream);
        }
    }

    #[inline]
    fn send(&mut self, net: &mut Net, stream: usize) {
        self.streams[stream].sent += 1;
        let number = self.streams[stream].sent;
        let sending = Sending {
            op: self.trial.op,
            to: self.peer,
            channel: self.channel,
            kind: Kind::Request,
            tag: Tag::of(self.what, stream as u32, self.number, number),
            offset: self.trial.place(stream as u32, number),
            data: &self.data,
        };
        ops::issue(net, &sending);
    }
}
