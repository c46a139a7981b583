//! The side of a measurement that receives: looks at every message and answers it.

use std::sync::Arc;

use plexus_fabric::Window;
use plexus_interconnect::{Kind, Message, Net};

use super::{
    Op, PerfError, Test, Trial, USUAL_DEPTH,
    ops::{self, Sending},
    payload,
    wire::{Tag, What},
};

/// Receives one trial's messages, or those of a load.
pub(super) struct Passive {
    trial: Trial,
    window: Arc<Window>,
    answer: What,
    /// What is sent back, and what must arrive.
    data: Box<[u8]>,
    look: u64,
    arrived: Vec<u64>,
    acknowledge_every: u64,
}

impl Passive {
    /// For `trial`; `window` is this side's.
    pub(super) fn new(trial: Trial, window: Arc<Window>) -> Self {
        Self::with(trial, window, What::Ack)
    }

    /// For a load of messages of so many bytes.
    pub(super) fn load(bytes: u32, window: Arc<Window>) -> Self {
        Self::with(Trial::new(Test::Bandwidth, Op::Send, bytes), window, What::LoadAck)
    }

    fn with(trial: Trial, window: Arc<Window>, answer: What) -> Self {
        let data = payload::pattern(trial.bytes as usize);
        Self {
            look: payload::look(&data),
            data,
            window,
            answer,
            arrived: vec![0; trial.streams as usize],
            // Often enough that the sender never runs dry.
            acknowledge_every: u64::from(trial.depth.min(4 * USUAL_DEPTH) / 4).max(1),
            trial,
        }
    }

    /// A message has come.
    ///
    /// # Errors
    /// It is not what was sent.
    #[inline]
    pub(super) fn data(&mut self, net: &mut Net, tag: Tag, message: &Message<'_>) -> Result<(), PerfError> {
        let Some(arrived) = self.arrived.get_mut(tag.stream as usize) else { return Ok(()) };
        *arrived += 1;
        let number = *arrived;
        let place = self.trial.place(tag.stream, number);
        if tag.number != Tag::low(number) || ops::look(&self.trial, &self.window, place, message) != self.look
        {
            return Err(PerfError::Changed { bytes: self.trial.bytes });
        }
        if self.trial.test == Test::Latency {
            let sending = Sending {
                op: self.trial.op,
                to: message.from,
                channel: message.channel,
                kind: Kind::Reply,
                tag: Tag::of(self.answer, tag.stream, tag.trial, number),
                offset: place,
                data: &self.data,
            };
            ops::issue(net, &sending);
        } else if number.is_multiple_of(self.acknowledge_every) {
            let tag = Tag::of(self.answer, tag.stream, tag.trial, 0);
            // No link: the port is told of that apart.
            let _ = net.send(message.from, message.channel, Kind::Reply, tag, &number.to_le_bytes());
        }
        Ok(())
    }
}
