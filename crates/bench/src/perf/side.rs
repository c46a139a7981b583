//! One end of a trial: what it sends, what it receives, and the load beside it, each where the trial has it.

use std::sync::Arc;

use plexus_base::{Nanos, NodeId, clock};
use plexus_fabric::Window;
use plexus_interconnect::{Message, Net};

use super::{
    PerfError, Test, Trial,
    active::Active,
    ops,
    passive::Passive,
    wire::{self, Tag, What},
};

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
        Self {
            trial,
            number,
            active: Some(Active::new(trial, number, peer)),
            passive: trial.bidirectional.then(|| Passive::new(trial, window.clone())),
            load: trial.load.map(|load| Active::load(load, number, peer)),
            load_in: None,
            window,
        }
    }

    /// The end that serves.
    pub(super) fn server(trial: Trial, number: u32, peer: NodeId, window: Arc<Window>) -> Self {
        Self {
            trial,
            number,
            active: trial.bidirectional.then(|| Active::new(trial, number, peer)),
            passive: Some(Passive::new(trial, window.clone())),
            load: None,
            load_in: trial.load.map(|load| Passive::load(load.bytes, window.clone())),
            window,
        }
    }

    /// Sends the first messages.
    pub(super) fn start(&mut self, net: &mut Net) {
        self.sending().for_each(|active| active.start(net));
    }

    /// Looks after what no answer drives.
    pub(super) fn tick(&mut self, net: &mut Net) {
        self.sending().for_each(|active| active.tick(net));
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

    /// Handles a message that is measured, or the answer to one; the time, where it was an answer to what is measured.
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
                    let look = ops::look(&self.trial, &self.window, self.trial.place(tag.stream, 0), message);
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
