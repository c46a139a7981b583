//! The receiving side of a measurement: checks every message and answers it.

use std::sync::Arc;

use plexus_base::NodeId;
use plexus_fabric::Window;
use plexus_interconnect::{Kind, Message, Net};

use super::{
    Op, PerfError, Test, Trial, USUAL_DEPTH,
    ops::{self, Sending},
    payload::Payload,
    places::{self, Announced, WORD},
    wire::{MessageKind, Tag},
};

/// The receiver of the messages of one trial or load.
pub(super) struct Passive {
    trial: Trial,
    /// The number of the trial in its tags and words.
    number: u32,
    peer: NodeId,
    window: Arc<Window>,
    answer: MessageKind,
    /// The payload that must arrive, and is sent back.
    payload: Payload,
    arrived: Vec<u64>,
    acknowledge_every: u64,
}

impl Passive {
    /// Creates the receiver of `trial` from `peer`; `window` is this side's.
    pub(super) fn new(trial: Trial, number: u32, peer: NodeId, window: Arc<Window>) -> Self {
        Self::with(trial, number, peer, window, MessageKind::Ack)
    }

    /// Creates the receiver of a load with messages of `bytes` bytes.
    pub(super) fn load(bytes: u32, number: u32, peer: NodeId, window: Arc<Window>) -> Self {
        Self::with(Trial::new(Test::Bandwidth, Op::Send, bytes), number, peer, window, MessageKind::LoadAck)
    }

    fn with(trial: Trial, number: u32, peer: NodeId, window: Arc<Window>, answer: MessageKind) -> Self {
        Self {
            payload: trial.payload(number),
            number,
            peer,
            window,
            answer,
            arrived: vec![0; trial.streams as usize],
            // Acknowledgements are frequent enough that the sender never stalls.
            acknowledge_every: u64::from(trial.depth.min(4 * USUAL_DEPTH) / 4).max(1),
            trial,
        }
    }

    /// Looks for the peer's writes. Returns the number of new messages.
    ///
    /// # Errors
    /// A message differs from the one that was sent.
    #[inline]
    pub(super) fn turn(&mut self, net: &mut Net) -> Result<usize, PerfError> {
        let mut found = 0;
        if self.trial.op == Op::Write {
            for stream in 0..self.trial.streams {
                found += self.written(net, stream)?;
            }
        }
        Ok(found)
    }

    /// Returns true if there is a write that was not checked yet.
    pub(super) fn pending(&self) -> bool {
        let mut streams = (0..).zip(&self.arrived);
        self.trial.op == Op::Write && streams.any(|(stream, arrived)| self.announced(stream) > *arrived)
    }

    #[inline]
    fn announced(&self, stream: u32) -> u64 {
        places::announced(&self.window, Announced::Data, stream, self.number)
    }

    #[inline]
    fn written(&mut self, net: &mut Net, stream: u32) -> Result<usize, PerfError> {
        let (before, now) = (self.arrived[stream as usize], self.announced(stream));
        if now <= before {
            return Ok(0);
        }
        let right = |number| {
            let place = self.trial.place(stream, number);
            places::look(&self.window, &self.trial, place) == self.payload.look_of(number)
        };
        if now - before > u64::from(self.trial.depth) || !(before + 1..=now).all(right) {
            return Err(PerfError::Changed { bytes: self.trial.bytes });
        }
        self.arrived[stream as usize] = now;
        let latency = self.trial.test == Test::Latency;
        if latency || now / self.acknowledge_every > before / self.acknowledge_every {
            let data = self.payload.of(now);
            let sending = Sending {
                op: Op::Write,
                to: self.peer,
                channel: self.trial.channel(),
                kind: Kind::Reply,
                tag: Tag::of(self.answer, stream, self.number, now),
                number: now,
                offset: places::answer(&self.trial, stream, now),
                // The word alone gives the number of messages.
                data: if latency { data } else { &data[data.len() - WORD as usize..] },
                shared: data,
            };
            ops::issue(net, &sending);
        }
        Ok((now - before) as usize)
    }

    /// Handles a message.
    ///
    /// # Errors
    /// The message differs from the one that was sent.
    #[inline]
    pub(super) fn data(&mut self, net: &mut Net, tag: Tag, message: &Message<'_>) -> Result<(), PerfError> {
        let Some(arrived) = self.arrived.get_mut(tag.stream as usize) else { return Ok(()) };
        *arrived += 1;
        let number = *arrived;
        let place = self.trial.place(tag.stream, number);
        let look = ops::look(&self.trial, &self.window, place, message);
        if tag.number != Tag::low(number) || look != self.payload.look_of(number) {
            return Err(PerfError::Changed { bytes: self.trial.bytes });
        }
        if self.trial.test == Test::Latency {
            let data = self.payload.of(number);
            let sending = Sending {
                op: self.trial.op,
                to: message.from,
                channel: message.channel,
                kind: Kind::Reply,
                tag: Tag::of(self.answer, tag.stream, tag.trial, number),
                number,
                offset: places::answer(&self.trial, tag.stream, number),
                data,
                shared: data,
            };
            ops::issue(net, &sending);
        } else if number.is_multiple_of(self.acknowledge_every) {
            let tag = Tag::of(self.answer, tag.stream, tag.trial, 0);
            // Without a link this fails; the port is notified separately.
            let _ = net.send(message.from, message.channel, Kind::Reply, tag, &number.to_le_bytes());
        }
        Ok(())
    }
}
