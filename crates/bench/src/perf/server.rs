//! The serving side: takes part in what the client begins, and reports its own CPU time.

use std::sync::Arc;

use plexus_base::NodeId;
use plexus_fabric::Window;
use plexus_interconnect::{Kind, Message, Net};
use plexus_node::port::Port;

use super::{
    PerfError, Trial,
    parameters::PROMPT,
    progress::Progress,
    result::{Flow, ServerReport},
    side::Side,
    wire::{DRAINS, Tag, What, drain},
};
use crate::{Usage, clock};

pub(super) struct Server {
    client: Option<NodeId>,
    window: Arc<Window>,
    side: Option<Side>,
    cpu_at_mark_ns: u64,
    /// Drains that have come.
    drained: usize,
    progress: Arc<Progress<Result<(), PerfError>>>,
}

impl Server {
    pub(super) fn new(window: Arc<Window>, progress: Arc<Progress<Result<(), PerfError>>>) -> Self {
        Self { client: None, window, side: None, cpu_at_mark_ns: 0, drained: 0, progress }
    }

    fn begin(&mut self, net: &mut Net, from: NodeId, number: u32, payload: &[u8]) {
        let trial = serde_json::from_slice::<Trial>(payload).map_err(|error| error.to_string());
        let checked = trial
            .and_then(|trial| trial.check_between_nodes().map(|()| trial).map_err(|error| error.to_string()));
        match checked {
            Ok(trial) => {
                let side = self.side.insert(Side::server(trial, number, from, self.window.clone()));
                reply(net, from, What::Ready, &[]);
                side.start(net);
            }
            Err(why) => reply(net, from, What::Ready, format!("the other side cannot: {why}").as_bytes()),
        }
    }

    /// Gives up. The client is told, for it would wait until its timeout ends.
    #[cold]
    fn fail(&mut self, net: &mut Net, error: PerfError) {
        if let Some(client) = self.client {
            reply(net, client, What::Failed, error.to_string().as_bytes());
        }
        self.progress.finish(Err(error));
    }

    fn report(&mut self) -> ServerReport {
        let cpu_ns = Usage::cpu_ns() - self.cpu_at_mark_ns;
        let now = clock::now();
        let Some(side) = &mut self.side else { return ServerReport { cpu_ns, reverse: None } };
        side.stop();
        let reverse = side.active.as_ref().map(|active| {
            let elapsed = now.since(active.marked_at()).0;
            Flow::of(&side.trial, &active.answered_each(), elapsed, active.responses())
        });
        ServerReport { cpu_ns, reverse }
    }
}

fn reply(net: &mut Net, to: NodeId, what: What, payload: &[u8]) {
    // No link: the port is told of that apart.
    let _ = net.send(to, PROMPT, Kind::Reply, Tag::plain(what), payload);
}

impl Port for Server {
    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        let Some(tag) = Tag::read(message.tag) else { return };
        // What comes after the end is for the port that takes this one's place: its hello is said
        // again.
        if self.progress.is_done() || self.client.is_some_and(|client| client != message.from) {
            return;
        }
        let from = message.from;
        match tag.what {
            What::Hello => {
                self.client = Some(from);
                reply(net, from, What::Welcome, &[]);
            }
            What::Begin => self.begin(net, from, tag.trial, message.payload),
            What::Mark => {
                self.cpu_at_mark_ns = Usage::cpu_ns();
                if let Some(side) = &mut self.side {
                    clock::calibrate();
                    side.mark(clock::now());
                }
            }
            What::End => {
                let report = self.report();
                let report = serde_json::to_vec(&report).expect("a report has no map and no failing part");
                reply(net, from, What::Ended, &report);
            }
            What::Drain => {
                self.drained += 1;
                if self.drained.is_multiple_of(DRAINS) {
                    drain(net, from);
                }
            }
            What::Bye => self.progress.finish(Ok(())),
            _ => {
                let Some(side) = &mut self.side else { return };
                if let Err(error) = side.message(net, tag, &message) {
                    self.fail(net, error);
                }
            }
        }
    }

    #[inline]
    fn reply(&mut self, net: &mut Net, from: NodeId, token: u64, payload: &[u8]) {
        let (Some(tag), Some(side)) = (Tag::read(token as u32), &mut self.side) else { return };
        if self.client == Some(from)
            && let Err(error) = side.reply(net, tag, payload)
        {
            self.fail(net, error);
        }
    }

    #[inline]
    fn turn(&mut self, net: &mut Net) -> usize {
        let Some(side) = &mut self.side else { return 0 };
        if self.progress.is_done() {
            return 0;
        }
        match side.turn(net) {
            Ok((done, _)) => done,
            Err(error) => {
                self.fail(net, error);
                0
            }
        }
    }

    fn pending(&self) -> bool {
        !self.progress.is_done() && self.side.as_ref().is_some_and(Side::pending)
    }

    fn peer_gone(&mut self, _: &mut Net, peer: NodeId) {
        if self.client.is_none_or(|client| client == peer) {
            self.progress.finish(Err(PerfError::PeerGone(peer)));
        }
    }
}
