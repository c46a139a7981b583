//! The serving side: takes part in the client's trials and reports its own CPU time.

use std::sync::Arc;

use plexus_base::NodeId;
use plexus_fabric::Window;
use plexus_interconnect::{Kind, Message, Net};
use plexus_node::ChannelPort;

use super::{
    PerfError, Trial,
    parameters::PROMPT,
    progress::Progress,
    result::{Flow, ServerReport},
    side::Side,
    wire::{DRAINS, MessageKind, Tag, drain},
};
use crate::{Usage, clock};

pub(super) struct Server {
    client: Option<NodeId>,
    window: Arc<Window>,
    side: Option<Side>,
    cpu_at_mark_ns: u64,
    /// The number of drain messages received.
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
                reply(net, from, MessageKind::Ready, &[]);
                side.start(net);
            }
            Err(why) => {
                reply(net, from, MessageKind::Ready, format!("the other side cannot: {why}").as_bytes())
            }
        }
    }

    /// Fails, and tells the client, which would otherwise wait for its timeout.
    #[cold]
    fn fail(&mut self, net: &mut Net, error: PerfError) {
        if let Some(client) = self.client {
            reply(net, client, MessageKind::Failed, error.to_string().as_bytes());
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

fn reply(net: &mut Net, to: NodeId, what: MessageKind, payload: &[u8]) {
    // Without a link this fails; the port is notified separately.
    let _ = net.send(to, PROMPT, Kind::Reply, Tag::plain(what), payload);
}

impl ChannelPort for Server {
    #[inline]
    fn message(&mut self, net: &mut Net, message: Message<'_>) {
        let Some(tag) = Tag::read(message.tag) else { return };
        // Messages after the end are for the port that follows this one: its client repeats the
        // hello.
        if self.progress.is_done() || self.client.is_some_and(|client| client != message.from) {
            return;
        }
        let from = message.from;
        match tag.what {
            MessageKind::Hello => {
                self.client = Some(from);
                reply(net, from, MessageKind::Welcome, &[]);
            }
            MessageKind::Begin => self.begin(net, from, tag.trial, message.payload),
            MessageKind::Mark => {
                self.cpu_at_mark_ns = Usage::cpu_ns();
                if let Some(side) = &mut self.side {
                    clock::calibrate();
                    side.mark(clock::now());
                }
            }
            MessageKind::End => {
                let report = self.report();
                let report = serde_json::to_vec(&report).expect("a report has no map and no failing part");
                reply(net, from, MessageKind::Ended, &report);
            }
            MessageKind::Drain => {
                self.drained += 1;
                if self.drained.is_multiple_of(DRAINS) {
                    drain(net, from);
                }
            }
            MessageKind::Bye => self.progress.finish(Ok(())),
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
