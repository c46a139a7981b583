//! The measuring side: runs the trials in order.

use std::sync::Arc;

use plexus_base::{Nanos, NodeId};
use plexus_fabric::Window;
use plexus_interconnect::{Kind, Message, Net};
use plexus_node::ChannelPort;

use super::{
    Measured, PerfError, Plan, Trial, Until,
    parameters::PROMPT,
    progress::Progress,
    result::{Demand, Flow, ServerReport},
    side::Side,
    wire::{DRAINS, MessageKind, Tag, drain},
};
use crate::{Usage, clock, responses::thousandths};

/// The result of a [`Client`].
pub(super) type Outcome = Result<Vec<Measured>, PerfError>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The server has not answered yet.
    Alone,
    /// The server has been told of the trial.
    Beginning,
    /// Messages flow and are not counted.
    Warming,
    Measuring,
    /// The server has been asked for its report.
    Ending,
    /// The server has reported; pending messages must arrive before the next trial.
    Draining,
}

pub(super) struct Client {
    peer: NodeId,
    window: Arc<Window>,
    trials: Vec<Trial>,
    until: Until,
    trial: usize,
    phase: Phase,
    /// The number of directions that the server has reported as drained.
    drained: usize,
    side: Option<Side>,
    began: Nanos,
    elapsed: Nanos,
    cpu_before_ns: u64,
    cpu_ns: u64,
    measured: Vec<Measured>,
    progress: Arc<Progress<Outcome>>,
}

impl Client {
    pub(super) fn new(plan: &Plan, window: Arc<Window>, progress: Arc<Progress<Outcome>>) -> Self {
        Self {
            peer: NodeId(plan.peer),
            window,
            trials: plan.trials.clone(),
            until: plan.until,
            trial: 0,
            phase: Phase::Alone,
            drained: 0,
            side: None,
            began: Nanos::default(),
            elapsed: Nanos::default(),
            cpu_before_ns: 0,
            cpu_ns: 0,
            measured: Vec::with_capacity(plan.trials.len()),
            progress,
        }
    }

    fn say(&self, net: &mut Net, what: MessageKind, payload: &[u8]) {
        // Without a link this fails; the port is notified separately.
        let _ = net.send(self.peer, PROMPT, Kind::Request, Tag::plain(what), payload);
    }

    fn begin(&mut self, net: &mut Net) {
        let trial = self.trials[self.trial];
        self.phase = Phase::Beginning;
        clock::calibrate();
        let number = Tag::next_trial();
        self.side = Some(Side::client(trial, number, self.peer, self.window.clone()));
        self.progress.reach(self.trial, 0);
        let trial = serde_json::to_vec(&trial).expect("a trial has no map and no failing part");
        // Without a link this fails; the port is notified separately.
        let _ = net.send(self.peer, PROMPT, Kind::Request, Tag::of(MessageKind::Begin, 0, number, 0), &trial);
    }

    fn warm(&mut self, net: &mut Net) {
        self.phase = Phase::Warming;
        self.began = clock::now();
        if let Some(side) = &mut self.side {
            side.start(net);
        }
    }

    /// Moves to the next phase when this one has lasted long enough.
    #[inline]
    fn after_answer(&mut self, net: &mut Net, now: Nanos) {
        let Some(side) = &mut self.side else { return };
        let answered = side.active.as_ref().map_or(0, |active| active.answered());
        let spent = now.since(self.began);
        let reached = |until| match until {
            Until::Ms(ms) => spent.0 >= u64::from(ms) * 1_000_000,
            Until::Count(count) => answered >= count,
        };
        match self.phase {
            Phase::Warming if reached(self.until.warm_up()) => {
                self.phase = Phase::Measuring;
                clock::calibrate();
                let now = clock::now();
                side.mark(now);
                self.began = now;
                self.say(net, MessageKind::Mark, &[]);
                self.cpu_before_ns = Usage::cpu_ns();
            }
            Phase::Measuring => {
                if reached(self.until) {
                    self.phase = Phase::Ending;
                    self.cpu_ns = Usage::cpu_ns() - self.cpu_before_ns;
                    self.elapsed = spent;
                    side.stop();
                    self.say(net, MessageKind::End, &[]);
                }
                self.progress.reach(self.trial, answered);
            }
            _ => {}
        }
    }

    fn ended(&mut self, net: &mut Net, report: ServerReport) {
        let Some(Side { trial, active: Some(active), load, .. }) = self.side.take() else { return };
        let elapsed = self.elapsed.0.max(1);
        let flow = Flow::of(&trial, &active.answered_each(), elapsed, active.responses());
        let messages = flow.messages + report.reverse.as_ref().map_or(0, |reverse| reverse.messages);
        let bytes = messages * u64::from(trial.bytes);
        let load_mb = |load: &super::active::Active| {
            load.answered() as f64 * f64::from(load.bytes()) * 1e3 / elapsed as f64
        };
        self.measured.push(Measured {
            trial,
            flow,
            reverse: report.reverse,
            load_mb_per_s: load.as_ref().map(|load| thousandths(load_mb(load))),
            seconds: thousandths(elapsed as f64 / 1e9),
            client: Demand::of(self.cpu_ns, messages, bytes, elapsed),
            server: Demand::of(report.cpu_ns, messages, bytes, elapsed),
        });
        self.phase = Phase::Draining;
        // Without a link this fails; the port is notified separately.
        self.drained = 0;
        drain(net, self.peer);
    }

    fn drained(&mut self, net: &mut Net) {
        self.trial += 1;
        if self.trial < self.trials.len() {
            self.begin(net);
        } else {
            self.say(net, MessageKind::Bye, &[]);
            self.progress.finish(Ok(std::mem::take(&mut self.measured)));
        }
    }
}

impl ChannelPort for Client {
    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        let Some(tag) = Tag::read(message.tag) else { return };
        if message.from != self.peer || self.progress.is_done() {
            return;
        }
        match (tag.what, self.phase) {
            (MessageKind::Welcome, Phase::Alone) => {
                self.progress.begin();
                self.begin(net);
            }
            (MessageKind::Ready, Phase::Beginning) if message.payload.is_empty() => self.warm(net),
            (MessageKind::Ready, Phase::Beginning) => {
                let why = String::from_utf8_lossy(message.payload).into_owned();
                self.progress.finish(Err(PerfError::Refused(why)));
            }
            (MessageKind::Failed, _) => {
                let why = String::from_utf8_lossy(message.payload);
                self.progress.finish(Err(PerfError::Refused(format!("the other side gave up: {why}"))));
            }
            (MessageKind::Ended, Phase::Ending) => match serde_json::from_slice(message.payload) {
                Ok(report) => self.ended(net, report),
                Err(error) => self.progress.finish(Err(PerfError::Nonsense(error.to_string()))),
            },
            (MessageKind::Drain, Phase::Draining) => {
                self.drained += 1;
                if self.drained == DRAINS {
                    self.drained(net);
                }
            }
            _ => {
                let Some(side) = &mut self.side else { return };
                match side.message(net, tag, &message) {
                    Ok(Some(now)) => self.after_answer(net, now),
                    Ok(None) => {}
                    Err(error) => self.progress.finish(Err(error)),
                }
            }
        }
    }

    #[inline]
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        let (Some(tag), Some(side)) = (Tag::read(token as u32), &mut self.side) else { return };
        if from != self.peer || self.progress.is_done() {
            return;
        }
        match side.reply(net, tag, payload) {
            Ok(now) => now.into_iter().for_each(|now| self.after_answer(net, now)),
            Err(error) => self.progress.finish(Err(error)),
        }
    }

    #[inline]
    fn turn(&mut self, net: &mut Net) -> usize {
        let Some(side) = &mut self.side else { return 0 };
        if self.phase == Phase::Beginning || self.progress.is_done() {
            return 0;
        }
        match side.turn(net) {
            Ok((done, now)) => {
                now.into_iter().for_each(|now| self.after_answer(net, now));
                done
            }
            Err(error) => {
                self.progress.finish(Err(error));
                0
            }
        }
    }

    fn pending(&self) -> bool {
        self.phase != Phase::Beginning
            && !self.progress.is_done()
            && self.side.as_ref().is_some_and(Side::pending)
    }

    fn peer_gone(&mut self, _: &mut Net, peer: NodeId) {
        if peer == self.peer {
            self.progress.finish(Err(PerfError::PeerGone(peer)));
        }
    }
}
