//! One end of a trial: its sender, its receiver, and the background load, as far as the trial has
//! them.

use std::sync::Arc;

use plexus_base::{Nanos, NodeId};
use plexus_fabric::Window;
use plexus_interconnect::{Message, Net};

use super::{
    PerfError, Test, Trial,
    active::Active,
    ops,
    passive::Passive,
    places,
    wire::{self, MessageKind, Tag},
};
use crate::clock;

/// One end of a trial.
pub(super) struct Side {
    pub(super) trial: Trial,
    /// The trial's number in its tags.
    number: u32,
    window: Arc<Window>,
    pub(super) active: Option<Active>,
    passive: Option<Passive>,
    pub(super) load: Option<Active>,
    load_in: Option<Passive>,
}

impl Side {
    /// Creates the end that begins.
    pub(super) fn client(trial: Trial, number: u32, peer: NodeId, window: Arc<Window>) -> Self {
        places::prepare(&window, &trial, number, &trial.payload(number));
        Self {
            trial,
            number,
            active: Some(Active::new(trial, number, peer, window.clone())),
            passive: trial.bidirectional.then(|| Passive::new(trial, number, peer, window.clone())),
            load: trial.load.map(|load| Active::load(load, number, peer, window.clone())),
            load_in: None,
            window,
        }
    }

    /// Creates the end that serves.
    pub(super) fn server(trial: Trial, number: u32, peer: NodeId, window: Arc<Window>) -> Self {
        places::prepare(&window, &trial, number, &trial.payload(number));
        Self {
            trial,
            number,
            active: trial.bidirectional.then(|| Active::new(trial, number, peer, window.clone())),
            passive: Some(Passive::new(trial, number, peer, window.clone())),
            load: None,
            load_in: trial.load.map(|load| Passive::load(load.bytes, number, peer, window.clone())),
            window,
        }
    }

    /// Sends the first messages.
    pub(super) fn start(&mut self, net: &mut Net) {
        self.sending().for_each(|active| active.start(net));
    }

    /// Handles accesses without a message. Returns how much was done, and the time if a measured
    /// answer was among it.
    ///
    /// # Errors
    /// Bytes differ from those that were sent.
    #[inline]
    pub(super) fn turn(&mut self, net: &mut Net) -> Result<(usize, Option<Nanos>), PerfError> {
        let answers = self.active.as_mut().map_or(Ok(0), |active| active.turn(net))?;
        let arrived = self.passive.as_mut().map_or(Ok(0), |passive| passive.turn(net))?;
        if let Some(load) = &mut self.load {
            load.turn(net)?;
        }
        Ok((answers + arrived, (answers > 0).then(clock::now)))
    }

    /// Returns true if there are such accesses to handle.
    pub(super) fn pending(&self) -> bool {
        self.active.as_ref().is_some_and(Active::pending)
            || self.passive.as_ref().is_some_and(Passive::pending)
    }

    /// Handles the answer to an access. Returns the time if it was a measured one.
    ///
    /// # Errors
    /// The value differs from the expected one.
    #[inline]
    pub(super) fn reply(
        &mut self,
        net: &mut Net,
        tag: Tag,
        answer: &[u8],
    ) -> Result<Option<Nanos>, PerfError> {
        let Some(active) = self.active.as_mut().filter(|_| tag.trial == self.number) else { return Ok(None) };
        let now = clock::now();
        active.fetched(net, tag, answer, now)?;
        Ok(Some(now))
    }

    /// Starts counting in both directions.
    pub(super) fn mark(&mut self, now: Nanos) {
        self.sending().for_each(|active| active.mark(now));
    }

    /// Stops sending in both directions.
    pub(super) fn stop(&mut self) {
        self.sending().for_each(Active::stop);
    }

    fn sending(&mut self) -> impl Iterator<Item = &mut Active> {
        self.active.iter_mut().chain(&mut self.load)
    }

    /// Handles a measured message or an answer. Returns the time if it was a measured answer.
    ///
    /// # Errors
    /// The bytes differ from those that were sent.
    #[inline]
    pub(super) fn message(
        &mut self,
        net: &mut Net,
        tag: Tag,
        message: &Message<'_>,
    ) -> Result<Option<Nanos>, PerfError> {
        if tag.trial != self.number {
            return Ok(None);
        }
        match tag.what {
            MessageKind::Data => {
                if let Some(passive) = &mut self.passive {
                    passive.data(net, tag, message)?;
                }
            }
            MessageKind::Ack => {
                let Some(active) = &mut self.active else { return Ok(None) };
                if self.trial.test == Test::Latency {
                    // The bytes count as returned only after they were read.
                    let place = places::answer(&self.trial, tag.stream, 0);
                    let look = ops::look(&self.trial, &self.window, place, message);
                    let now = clock::now();
                    active.returned(net, tag, look, now)?;
                    return Ok(Some(now));
                }
                let now = clock::now();
                active.acknowledged(net, tag, wire::number(message.payload), now);
                return Ok(Some(now));
            }
            MessageKind::Load => {
                if let Some(load) = &mut self.load_in {
                    load.data(net, tag, message)?;
                }
            }
            MessageKind::LoadAck => {
                if let Some(load) = &mut self.load {
                    load.acknowledged(net, tag, wire::number(message.payload), clock::now());
                }
            }
            _ => {}
        }
        Ok(None)
    }
}
