//! The measuring side: goes through the trials, one after the other, driven by the answers alone.

use std::sync::Arc;

use plexus_base::{Nanos, NodeId, clock};
use plexus_fabric::Put;
use plexus_interconnect::{Channel, Kind, Message, Net};
use plexus_node::port::Port;

use super::{
    Cpu, IN_FLIGHT, Measured, Method, Pattern, PerfError, Plan, Trial, WINDOW, WINDOW_BYTES,
    progress::Progress, wire,
};
use crate::{Responses, Usage, responses::thousandths};

/// What a [`Client`] leaves behind.
pub(super) type Outcome = Result<Vec<Measured>, PerfError>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nobody has answered yet.
    Alone,
    /// The server has been told of the trial.
    Beginning,
    /// Messages flow, and are not counted.
    Warming,
    Measuring,
    /// The server has been asked for its CPU time.
    Ending,
}

pub(super) struct Client {
    peer: NodeId,
    trials: Vec<Trial>,
    trial: usize,
    phase: Phase,
    measure: Nanos,
    warm: Nanos,
    data: Box<[u8]>,
    sent: u64,
    answered: u64,
    /// When the phase began, and how many had been answered then.
    began: Nanos,
    answered_before: u64,
    last: Nanos,
    cpu_before_ns: u64,
    cpu_ns: u64,
    elapsed: Nanos,
    responses: Responses,
    measured: Vec<Measured>,
    progress: Arc<Progress<Outcome>>,
}

impl Client {
    pub(super) fn new(plan: &Plan, progress: Arc<Progress<Outcome>>) -> Self {
        let measure = Nanos::from_ms(u64::from(plan.trial_ms));
        Self {
            peer: NodeId(plan.peer),
            trials: plan.trials.clone(),
            trial: 0,
            phase: Phase::Alone,
            measure,
            warm: Nanos(measure.0 / 4),
            data: vec![0xa5; WINDOW_BYTES as usize].into_boxed_slice(),
            sent: 0,
            answered: 0,
            began: Nanos(0),
            answered_before: 0,
            last: Nanos(0),
            cpu_before_ns: 0,
            cpu_ns: 0,
            elapsed: Nanos(0),
            responses: Responses::new(),
            measured: Vec::with_capacity(plan.trials.len()),
            progress,
        }
    }

    fn say(&self, net: &mut Net, tag: u32, payload: &[u8]) {
        // No link: the port is told of that apart.
        let _ = net.send(self.peer, Channel::Benchmark, Kind::Request, tag, payload);
    }

    #[inline]
    fn send(&mut self, net: &mut Net) {
        self.sent += 1;
        let Trial { method, bytes, .. } = self.trials[self.trial];
        let len = bytes as usize;
        match method {
            Method::Send => {
                // Each message says which it is, so that an answer to another one is noticed.
                self.data[..8].copy_from_slice(&self.sent.to_le_bytes());
                let _ = net.send(self.peer, Channel::Benchmark, Kind::Request, wire::DATA, &self.data[..len]);
            }
            Method::Put => {
                let places = (u64::from(WINDOW_BYTES / bytes)).min(IN_FLIGHT);
                let offset = self.sent % places * u64::from(bytes);
                let put = Put { window: WINDOW, offset, generation: 0, data: &self.data[..len] };
                let number = self.sent.to_le_bytes();
                let _ = net.put(self.peer, Channel::Benchmark, Kind::Request, wire::DATA, put, &number);
            }
        }
    }

    fn begin(&mut self, net: &mut Net) {
        self.phase = Phase::Beginning;
        (self.sent, self.answered) = (0, 0);
        self.responses.clear();
        self.say(net, wire::BEGIN, &self.trials[self.trial].to_wire());
    }

    fn warm(&mut self, net: &mut Net) {
        self.phase = Phase::Warming;
        self.began = clock::now();
        self.last = self.began;
        let first = if self.trials[self.trial].pattern == Pattern::Latency { 1 } else { IN_FLIGHT };
        (0..first).for_each(|_| self.send(net));
    }

    #[inline]
    fn answer(&mut self, net: &mut Net, payload: &[u8]) {
        if !matches!(self.phase, Phase::Warming | Phase::Measuring) {
            return;
        }
        let now = clock::now();
        // The round that is under way when measuring begins does not count.
        let counts = self.phase == Phase::Measuring;
        match self.trials[self.trial].pattern {
            Pattern::Latency => {
                self.answered += 1;
                if wire::number(payload) != self.sent {
                    let bytes = self.trials[self.trial].bytes;
                    return self.progress.finish(Err(PerfError::Changed { bytes }));
                }
                let round = now.since(self.last);
                if !self.over(net, now) {
                    self.last = now;
                    self.send(net);
                }
                // After the next message left: what the harness does hides behind its way.
                if counts {
                    self.responses.record(round.0);
                }
            }
            Pattern::Stream => {
                self.answered = wire::number(payload).clamp(self.answered, self.sent);
                if !self.over(net, now) {
                    while self.sent - self.answered < IN_FLIGHT {
                        self.send(net);
                    }
                }
            }
        }
    }

    /// Moves to the next phase when this one has lasted long enough; whether messages are to stop.
    #[inline]
    fn over(&mut self, net: &mut Net, now: Nanos) -> bool {
        let spent = now.since(self.began);
        if self.phase == Phase::Warming && spent >= self.warm {
            self.phase = Phase::Measuring;
            self.say(net, wire::MARK, &[]);
            self.cpu_before_ns = Usage::cpu_ns();
            self.answered_before = self.answered;
            self.began = now;
            return false;
        }
        if self.phase == Phase::Measuring && spent >= self.measure {
            self.phase = Phase::Ending;
            self.cpu_ns = Usage::cpu_ns() - self.cpu_before_ns;
            self.elapsed = spent;
            self.say(net, wire::END, &[]);
            return true;
        }
        false
    }

    fn ended(&mut self, net: &mut Net, server_cpu_ns: u64) {
        let trial = self.trials[self.trial];
        let messages = self.answered - self.answered_before;
        let seconds = self.elapsed.0 as f64 / 1e9;
        let per_second = messages as f64 / seconds;
        let response_us = (trial.pattern == Pattern::Latency).then(|| self.responses.summary());
        self.measured.push(Measured {
            method: trial.method,
            pattern: trial.pattern,
            bytes: trial.bytes,
            messages,
            messages_per_s: thousandths(per_second),
            mb_per_s: thousandths(per_second * f64::from(trial.bytes) / 1e6),
            response_us,
            one_way_us: response_us.map(|us| thousandths(us.p50 / 2.0)),
            cpu_client: Cpu::of(self.cpu_ns, messages, self.elapsed.0),
            cpu_server: Cpu::of(server_cpu_ns, messages, self.elapsed.0),
        });
        self.trial += 1;
        if self.trial < self.trials.len() {
            self.begin(net);
        } else {
            self.say(net, wire::BYE, &[]);
            self.progress.finish(Ok(std::mem::take(&mut self.measured)));
        }
    }
}

impl Port for Client {
    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        if message.from != self.peer || self.progress.is_done() {
            return;
        }
        match (message.tag, self.phase) {
            (wire::ACK, _) => self.answer(net, message.payload),
            (wire::WELCOME, Phase::Alone) => {
                self.progress.begin();
                self.begin(net);
            }
            (wire::READY, Phase::Beginning) => self.warm(net),
            (wire::ENDED, Phase::Ending) => self.ended(net, wire::number(message.payload)),
            _ => {}
        }
    }

    fn peer_gone(&mut self, _: &mut Net, peer: NodeId) {
        if peer == self.peer {
            self.progress.finish(Err(PerfError::PeerGone(peer)));
        }
    }
}
