//! One end of a trial: what it sends, what it receives, and the load beside it, each where the
//! trial has it.

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
    wire::{self, Tag, What},
};
use crate::clock;

/// See the module.
pub(super) struct Side {
    pub(super) trial: Trial,
    /// What the tags of this trial have.
    number: u32,
    window: Arc<Window>,
    pub(super) active: Option<Active>,
    passive: Option<Passive>,
    pub(super) load: Option<Active>,
    load_in: Option<Passive>,
}

impl Side {
    /// The end that begins.
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

    /// The end that serves.
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

    /// Looks after what no message announces: how much was done, and the time, where some of it was
    /// an answer to what is measured.
    ///
    /// # Errors
    /// Something is not what was sent.
    #[inline]
    pub(super) fn turn(&mut self, net: &mut Net) -> Result<(usize, Option<Nanos>), PerfError> {
        let answers = self.active.as_mut().map_or(Ok(0), |active| active.turn(net))?;
        let arrived = self.passive.as_mut().map_or(Ok(0), |passive| passive.turn(net))?;
        if let Some(load) = &mut self.load {
            load.turn(net)?;
        }
        Ok((answers + arrived, (answers > 0).then(clock::now)))
    }

    /// Whether that would get something done.
    pub(super) fn pending(&self) -> bool {
        self.active.as_ref().is_some_and(Active::pending)
            || self.passive.as_ref().is_some_and(Passive::pending)
    }

    /// Handles the answer to an access; the time, where it was one of those that are measured.
    ///
    /// # Errors
    /// It is not what must have been there.
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

    /// From now on everything counts.
    pub(super) fn mark(&mut self, now: Nanos) {
        self.sending().for_each(|active| active.mark(now));
    }

    /// Sends no more.
    pub(super) fn stop(&mut self) {
        self.sending().for_each(Active::stop);
    }

    fn sending(&mut self) -> impl Iterator<Item = &mut Active> {
        self.active.iter_mut().chain(&mut self.load)
    }

    /// Handles a message that is measured, or the answer to one; the time, where it was an answer
    /// to what is measured.
    ///
    /// # Errors
    /// It is not what was sent.
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
            What::Data => {
                if let Some(passive) = &mut self.passive {
                    passive.data(net, tag, message)?;
                }
            }
            What::Ack => {
                let Some(active) = &mut self.active else { return Ok(None) };
                if self.trial.test == Test::Latency {
                    // The bytes are back only when they have been looked at.
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
            What::Load => {
                if let Some(load) = &mut self.load_in {
                    load.data(net, tag, message)?;
                }
            }
            What::LoadAck => {
                if let Some(load) = &mut self.load {
                    load.acknowledged(net, tag, wire::number(message.payload), clock::now());
                }
            }
            _ => {}
        }
        Ok(None)
    }
}
