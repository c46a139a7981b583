//! The real link core over rails that are lost and come back.
//!
//! Two [`LinkCore`]s for each pair of workers, over a path in each direction. Plays the part of the link's driver:
//! offers frames to the rail, has what waits pumped when there is room, notices the loss of a rail at each end in its own time,
//! and lets the ends resume on the next rail once both have destroyed theirs.

use plexus_base::NodeId;
use plexus_cache::protocol;
use plexus_fabric::{LANES, Lane};
use plexus_interconnect::{
    KINDS, Kind,
    link::protocol::{Limits, LinkCore, NoRoom, Outgoing, Stamp},
};
use plexus_sim::{Engine, Network, PathId};

use super::{Arrival, NetEvent, Packet, Paths, Port, Transport};
use crate::{cluster::Ev, scenario::Params};

/// What is on a rail.
#[derive(Clone, Copy, Debug)]
struct OnRail {
    stamp: Stamp,
    lane: Lane,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// A frame; its block was written into the receiver's frame when it was sent.
    Frame(Packet, bool),
    Note([u64; LANES]),
}

/// One end of a link, at the sender of the path with the same number.
struct End {
    core: LinkCore<Packet>,
    /// The rail that it uses or is about to use, counted for each pair.
    rail: u32,
    /// The last rail whose loss it has noticed.
    lost: Option<u32>,
    /// Has not resumed since.
    down: bool,
    /// What the other end said it had received, until this end resumes with it.
    resume_with: Option<[u64; LANES]>,
}

/// All links.
pub struct Linked {
    paths: Paths,
    cuts_ns: u64,
    healed: bool,
    bulk_delay: plexus_sim::Delay,
    network: Network<OnRail>,
    ends: Vec<End>,
}

impl Linked {
    /// Links between all nodes, cut now and then if the parameters say so.
    #[must_use]
    pub fn new(params: &Params, engine: &mut Engine<Ev>) -> Self {
        let paths = Paths::new(params.nodes, params.workers);
        let retains = params.cuts_ns > 0 || engine.random.percent(50);
        let limits = Limits { credits: [params.credits; KINDS] };
        let mut network = Network::default();
        for _ in 0..paths.count() {
            network.add(LANES, params.slots, params.prompt);
        }
        let ends = (0..paths.count())
            .map(|_| End {
                core: LinkCore::new(limits, retains),
                rail: 0,
                lost: None,
                down: false,
                resume_with: None,
            })
            .collect();
        let (cuts_ns, bulk_delay) = (params.cuts_ns, params.bulk);
        let mut linked = Self { paths, cuts_ns, healed: false, bulk_delay, network, ends };
        for path in 0..paths.count() {
            let (from, to) = paths.ends(path);
            if from.node < to.node {
                linked.plan_cut(engine, path);
            }
        }
        linked
    }

    fn plan_cut(&mut self, engine: &mut Engine<Ev>, path: usize) {
        if self.cuts_ns > 0 && !self.healed {
            let after = engine.random.below(2 * self.cuts_ns);
            engine.schedule(after, None, Ev::Net(NetEvent::Cut(path)));
        }
    }

    fn back(&self, path: usize) -> usize {
        let (from, to) = self.paths.ends(path);
        self.paths.between(to, from)
    }

    /// Brings to the rail what waits at the sender of `path`.
    fn pump(&mut self, engine: &mut Engine<Ev>, path: usize, out: &mut Vec<Arrival>) {
        let (_, to) = self.paths.ends(path);
        let Self { network, ends, bulk_delay, .. } = self;
        ends[path].core.pump(&mut |lane, stamp, outgoing| {
            let what = match outgoing {
                Outgoing::Frame(packet) => What::Frame(*packet, early(engine, packet)),
                Outgoing::Note(received) => What::Note(received),
            };
            offer(network, *bulk_delay, engine, (path, to), OnRail { stamp, lane, what }, out)
        });
    }

    /// Takes what has arrived at the receiver of `path`.
    fn poll(&mut self, engine: &mut Engine<Ev>, path: usize, lane: usize, out: &mut Vec<Arrival>) {
        let (from, to) = self.paths.ends(path);
        let receiver = self.back(path);
        // An end that has destroyed its rail sees nothing of the next one before it resumes.
        while !self.ends[receiver].down
            && let Some(on_rail) = self.network.receive(PathId(path), lane, engine.now())
        {
            let kind = match &on_rail.what {
                What::Frame(packet, _) => Some(kind(packet)),
                What::Note(_) => None,
            };
            let core = &mut self.ends[receiver].core;
            let mut result = core.receive(kind, on_rail.lane, on_rail.stamp);
            if let What::Note(received) = on_rail.what {
                result = result.and_then(|()| core.noted(received));
            }
            result.expect("a link core never breaks its own rules");
            if let What::Frame(packet, early) = on_rail.what {
                if !early && let Some(put) = packet.put {
                    out.push(Arrival::Land(to, put));
                }
                out.push(Arrival::Message { to, from: from.node, packet });
                let after = engine.random.between(10, 1_000);
                let handled = NetEvent::Handled(receiver, kind.map_or(0, |kind| kind as usize));
                engine.schedule(after, Some(to.node.index()), Ev::Net(handled));
            }
            let after = engine.random.between(50, 500);
            engine.schedule(after, Some(from.node.index()), Ev::Net(NetEvent::Room(path, lane)));
        }
        // Credits may have come.
        self.pump(engine, receiver, out);
    }

    /// The rail of a pair is lost: what is under way is gone, and each end notices when it does.
    fn cut(&mut self, engine: &mut Engine<Ev>, path: usize) {
        let back = self.back(path);
        if self.network.is_up(PathId(path)) && !self.healed {
            self.network.cut(PathId(path));
            self.network.cut(PathId(back));
            for end in [path, back] {
                let most = *engine.random.pick(&[300, 20_000]);
                let after = engine.random.below(most);
                let owner = self.paths.ends(end).0.node.index();
                engine.schedule(after, Some(owner), Ev::Net(NetEvent::Noticed(end, self.ends[end].rail)));
            }
        }
        self.plan_cut(engine, path);
    }

    /// An end has destroyed its rail. When the other has too, both say on the next one what they have received.
    fn noticed(&mut self, engine: &mut Engine<Ev>, end: usize, rail: u32) {
        let other = self.back(end);
        let this = &mut self.ends[end];
        if this.rail != rail {
            return;
        }
        this.core.rail_lost();
        (this.down, this.lost) = (true, Some(rail));
        if self.ends[other].lost != Some(rail) {
            return;
        }
        // The next rail may have less room than what was under way on the last one.
        let slots = *engine.random.pick(&[2, 2, 3, 16]);
        for (this, peer) in [(end, other), (other, end)] {
            self.network.restore(PathId(this), slots);
            let received = self.ends[peer].core.received();
            self.ends[this].resume_with = Some(received);
            self.ends[this].rail = rail + 1;
            let most = *engine.random.pick(&[300, 20_000]);
            let after = engine.random.between(100, most);
            let owner = self.paths.ends(this).0.node.index();
            engine.schedule(after, Some(owner), Ev::Net(NetEvent::Resume(this, rail + 1)));
        }
    }

    fn resume(&mut self, engine: &mut Engine<Ev>, end: usize, rail: u32, out: &mut Vec<Arrival>) {
        let this = &mut self.ends[end];
        if this.rail != rail || this.lost == Some(rail) {
            return;
        }
        let received = this.resume_with.take().expect("the other end has said");
        this.core.resume(received).expect("a link core never breaks its own rules");
        this.down = false;
        self.pump(engine, end, out);
        let incoming = self.back(end);
        (0..LANES).for_each(|lane| self.poll(engine, incoming, lane, out));
    }
}

fn kind(packet: &Packet) -> Kind {
    match packet.kind {
        protocol::Kind::Request => Kind::Request,
        protocol::Kind::Forward => Kind::Forward,
        protocol::Kind::Reply => Kind::Reply,
    }
}

fn early(engine: &mut Engine<Ev>, packet: &Packet) -> bool {
    packet.put.is_some() && engine.random.percent(50)
}

fn offer(
    network: &mut Network<OnRail>,
    bulk: plexus_sim::Delay,
    engine: &mut Engine<Ev>,
    (path, to): (usize, Port),
    on_rail: OnRail,
    out: &mut Vec<Arrival>,
) -> Result<(), NoRoom> {
    let (lane, now) = (on_rail.lane.index(), engine.now());
    let sent = network.send(PathId(path), lane, on_rail, now, &mut engine.random);
    let mut after = sent.map_err(|_| NoRoom)?;
    if on_rail.lane == Lane::Bulk {
        after += bulk.draw(&mut engine.random);
    }
    if let What::Frame(Packet { put: Some(put), .. }, true) = on_rail.what {
        out.push(Arrival::Land(to, put));
    }
    engine.schedule(after, Some(to.node.index()), Ev::Net(NetEvent::Arrived(path, lane)));
    Ok(())
}

impl Transport for Linked {
    fn send(
        &mut self,
        engine: &mut Engine<Ev>,
        from: Port,
        to: Port,
        packet: Packet,
        out: &mut Vec<Arrival>,
    ) {
        let path = self.paths.between(from, to);
        let (kind, lane) = (kind(&packet), if packet.put.is_some() { Lane::Bulk } else { Lane::Prompt });
        let Self { network, ends, bulk_delay, .. } = self;
        let core = &mut ends[path].core;
        if core.ready(kind, lane) {
            let stamp = core.stamp();
            let what = What::Frame(packet, early(engine, &packet));
            if offer(network, *bulk_delay, engine, (path, to), OnRail { stamp, lane, what }, out).is_ok() {
                return core.sent(kind, lane, stamp, || packet);
            }
        }
        core.queue(kind, lane, packet);
    }

    fn event(&mut self, engine: &mut Engine<Ev>, event: NetEvent, out: &mut Vec<Arrival>) {
        match event {
            NetEvent::Arrived(path, lane) => self.poll(engine, path, lane, out),
            NetEvent::Room(path, _) => self.pump(engine, path, out),
            NetEvent::Handled(end, kind) => {
                self.ends[end].core.consume(Kind::ALL[kind]);
                self.pump(engine, end, out);
            }
            NetEvent::Cut(path) => self.cut(engine, path),
            NetEvent::Noticed(end, rail) => self.noticed(engine, end, rail),
            NetEvent::Resume(end, rail) => self.resume(engine, end, rail, out),
        }
    }

    fn heal(&mut self) {
        self.healed = true;
    }

    fn node_died(&mut self, engine: &mut Engine<Ev>, node: NodeId) {
        for path in 0..self.ends.len() {
            if self.paths.ends(path).0.node == node && engine.random.percent(50) {
                self.network.cut(PathId(path));
            }
        }
    }

    fn rest(&self) -> Result<(), String> {
        for (path, end) in self.ends.iter().enumerate() {
            let (from, to) = self.paths.ends(path);
            if end.core.queued() > 0 || end.down {
                return Err(format!("{} frames wait from {} to {}", end.core.queued(), from.node, to.node));
            }
        }
        Ok(())
    }
}
