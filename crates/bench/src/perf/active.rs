//! The sending side of a measurement: keeps each stream's messages pending, and measures each
//! round.
//!
//! Answers alone drive it; only a load with a rate also needs a [turn](Active::turn). Both sides
//! have one if both directions are measured at once. A load is one more.

use std::sync::Arc;

use plexus_base::{Nanos, NodeId};
use plexus_fabric::Window;
use plexus_interconnect::{Channel, Kind, Net};

use super::{
    Load, Op, PerfError, Test, Trial,
    ops::{self, Sending},
    parameters::BULK,
    payload::{self, Payload},
    places::{self, Announced},
    wire::{self, MessageKind, Tag},
};
use crate::{Responses, clock};

/// The sender, which counts the answers.
pub(super) struct Active {
    trial: Trial,
    number: u32,
    what: MessageKind,
    channel: Channel,
    peer: NodeId,
    /// This side's window, for answers.
    window: Arc<Window>,
    /// The sent payload, which an answer with bytes must repeat.
    payload: Payload,
    streams: Vec<Stream>,
    /// The answers of each stream at the mark.
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

/// A limit of bytes per second since the start.
struct Pace {
    bytes_per_ns: f64,
    since: Nanos,
}

impl Pace {
    fn new(mb_per_s: f64) -> Self {
        Self { bytes_per_ns: mb_per_s * 1e6 / 1e9, since: Nanos::default() }
    }

    /// Returns how many messages of `bytes` bytes may have left by `now`.
    fn allows(&self, now: Nanos, bytes: u32) -> u64 {
        (now.since(self.since).0 as f64 * self.bytes_per_ns) as u64 / u64::from(bytes)
    }
}

impl Active {
    /// Creates the sender of `trial` to `peer`.
    pub(super) fn new(trial: Trial, number: u32, peer: NodeId, window: Arc<Window>) -> Self {
        Self::with((trial, number, MessageKind::Data), trial.channel(), peer, window, None)
    }

    /// Creates the sender of a background load.
    pub(super) fn load(load: Load, number: u32, peer: NodeId, window: Arc<Window>) -> Self {
        let trial = Trial::new(Test::Bandwidth, Op::Send, load.bytes);
        let pace = load.mb_per_s.map(Pace::new);
        Self::with((trial, number, MessageKind::Load), BULK, peer, window, pace)
    }

    fn with(
        (trial, number, what): (Trial, u32, MessageKind),
        channel: Channel,
        peer: NodeId,
        window: Arc<Window>,
        pace: Option<Pace>,
    ) -> Self {
        let streams = trial.streams as usize;
        Self {
            payload: trial.payload(number),
            window,
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

    /// Looks for answers without a message, and sends what the pace allows. Returns the number of
    /// answers.
    ///
    /// # Errors
    /// An answer differs from the expected one.
    #[inline]
    pub(super) fn turn(&mut self, net: &mut Net) -> Result<usize, PerfError> {
        if self.trial.op == Op::Write {
            return self.written(net);
        }
        if self.pace.is_some() && !self.stopped {
            let now = clock::now();
            (0..self.streams.len()).for_each(|stream| self.fill(net, stream, now));
        }
        Ok(0)
    }

    /// Returns true if there is such an answer.
    pub(super) fn pending(&self) -> bool {
        let mut streams = (0..).zip(&self.streams);
        self.trial.op == Op::Write && streams.any(|(index, stream)| self.answer(index) > stream.answered)
    }

    /// Returns the number of answered messages of a stream, from its word.
    #[inline]
    fn answer(&self, stream: u32) -> u64 {
        places::announced(&self.window, Announced::Answer, stream, self.number)
    }

    #[inline]
    fn written(&mut self, net: &mut Net) -> Result<usize, PerfError> {
        let mut answers = 0;
        for index in 0..self.trial.streams {
            let (answered, stream) = (self.answer(index), self.streams[index as usize]);
            if answered <= stream.answered {
                continue;
            }
            answers += 1;
            let tag =
                Tag { what: MessageKind::Ack, stream: index, trial: self.number, number: Tag::low(answered) };
            if self.trial.test == Test::Latency {
                let place = places::answer(&self.trial, index, answered);
                let look = places::look(&self.window, &self.trial, place);
                self.returned(net, tag, look, clock::now())?;
            } else {
                self.acknowledged(net, tag, answered, clock::now());
            }
        }
        Ok(answers)
    }

    /// Starts counting messages and times.
    pub(super) fn mark(&mut self, now: Nanos) {
        self.counting = true;
        self.marked_at = now;
        for (marked, stream) in self.marked.iter_mut().zip(&self.streams) {
            *marked = stream.answered;
        }
    }

    /// Stops sending new messages.
    pub(super) fn stop(&mut self) {
        self.stopped = true;
    }

    /// Returns the number of messages answered since the mark.
    pub(super) fn answered(&self) -> u64 {
        self.streams.iter().zip(&self.marked).map(|(stream, marked)| stream.answered - marked).sum()
    }

    /// Returns the number of messages answered since the mark, per stream.
    pub(super) fn answered_each(&self) -> Vec<u64> {
        self.streams.iter().zip(&self.marked).map(|(stream, marked)| stream.answered - marked).collect()
    }

    /// Returns the time of the mark.
    pub(super) fn marked_at(&self) -> Nanos {
        self.marked_at
    }

    /// Returns the round-trip times since the mark.
    pub(super) fn responses(&self) -> &Responses {
        &self.responses
    }

    /// Returns the length of the messages of one stream.
    pub(super) fn bytes(&self) -> u32 {
        self.trial.bytes
    }

    /// Handles the return of a round trip, whose bytes have the checksum `look` if it carries them.
    ///
    /// # Errors
    /// The bytes differ from the sent ones.
    #[inline]
    pub(super) fn returned(
        &mut self,
        net: &mut Net,
        tag: Tag,
        look: u64,
        now: Nanos,
    ) -> Result<(), PerfError> {
        let Some(stream) = self.streams.get_mut(tag.stream as usize) else { return Ok(()) };
        if tag.number != Tag::low(stream.sent) || look != self.payload.look_of(stream.sent) {
            return Err(PerfError::Changed { bytes: self.trial.bytes });
        }
        stream.answered += 1;
        let round = now.since(stream.last);
        if !self.stopped {
            stream.last = now;
            self.send(net, tag.stream as usize);
        }
        // This runs after the next message has left, so its cost is hidden.
        if self.counting {
            self.responses.record(round.0);
        }
        Ok(())
    }

    /// Handles the answer of an access.
    ///
    /// # Errors
    /// The value differs from the expected one.
    #[inline]
    pub(super) fn fetched(
        &mut self,
        net: &mut Net,
        tag: Tag,
        answer: &[u8],
        now: Nanos,
    ) -> Result<(), PerfError> {
        let Some(stream) = self.streams.get_mut(tag.stream as usize) else { return Ok(()) };
        let right = answer.len() == self.trial.bytes as usize
            && match self.trial.op {
                // This is the number of earlier additions. Accesses by this processor itself may
                // overtake waiting ones.
                Op::Atomic => {
                    let found = wire::number(answer);
                    found < stream.sent && found + u64::from(self.trial.depth) > stream.answered
                }
                // They arrive in any order, with the bytes that were put at their place.
                _ => {
                    let number = Tag::number_near(tag.number, stream.sent);
                    let place = self.trial.place(tag.stream, number);
                    payload::look(answer) == self.payload.look_of(place)
                }
            };
        if !right || stream.answered == stream.sent {
            return Err(PerfError::Changed { bytes: self.trial.bytes });
        }
        stream.answered += 1;
        let round = now.since(stream.last);
        stream.last = now;
        if !self.stopped {
            self.fill(net, tag.stream as usize, now);
        }
        if self.counting && self.trial.test == Test::Latency {
            self.responses.record(round.0);
        }
        Ok(())
    }

    /// Handles the report that the peer has `arrived` messages of a stream.
    #[inline]
    pub(super) fn acknowledged(&mut self, net: &mut Net, tag: Tag, arrived: u64, now: Nanos) {
        let Some(stream) = self.streams.get_mut(tag.stream as usize) else { return };
        stream.answered = arrived.clamp(stream.answered, stream.sent);
        if !self.stopped {
            self.fill(net, tag.stream as usize, now);
        }
    }

    /// Sends until the depth is reached.
    #[inline]
    fn fill(&mut self, net: &mut Net, stream: usize, now: Nanos) {
        let most = self.pace.as_ref().map_or(u64::MAX, |pace| pace.allows(now, self.trial.bytes));
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
        let data = self.payload.of(number);
        let sending = Sending {
            op: self.trial.op,
            to: self.peer,
            channel: self.channel,
            kind: Kind::Request,
            tag: Tag::of(self.what, stream as u32, self.number, number),
            number,
            offset: self.trial.place(stream as u32, number),
            data,
            shared: data,
        };
        ops::issue(net, &sending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_with_a_rate_keeps_to_it() {
        let start = Nanos::from_ms(7);
        let pace = Pace { since: start, ..Pace::new(2.0) };
        // 2 MB/s are 2000 messages of 1000 bytes per second.
        for (ms, messages) in [(0, 0), (1, 2), (250, 500), (60_000, 120_000)] {
            assert_eq!(pace.allows(start + Nanos::from_ms(ms), 1000), messages, "after {ms} ms");
        }
        assert_eq!(pace.allows(start + Nanos::from_ms(1), 2001), 0, "what is left over is no message");
        assert_eq!(pace.allows(Nanos::default(), 1), 0, "time never runs backwards for it");
    }
}
