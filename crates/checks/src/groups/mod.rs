//! Checks groups of processes: clients join, leave, send, wait at barriers and die. Nodes,
//! including the sequencer, die at any moment and come back. Cluster views follow each other
//! quickly, and some nodes miss some.
//!
//! The code is that of nodes. Messages are late, in order for each pair of incarnations; the last
//! messages of a dead node arrive in part. The properties are in `received.rs`; [`Sabotage`] shows
//! that each detects its violation.

pub mod again;
pub mod explored;
mod nodes;
mod received;

use std::collections::BTreeMap;

use plexus_base::Epoch;
use plexus_membership::{
    groups::protocol::{Action, Deed, GroupMember, Groups as Protocol, Name, WINDOW},
    protocol::partitions::Members,
};
use plexus_sim::Engine;

use self::{
    nodes::Node,
    received::{Barriers, Client},
};
use crate::{
    failure::Broken,
    harness::{Cluster, Instance, Lane, Outcome, Simulation},
};

/// The longest delay until a node receives a cluster view.
const VIEW_NS: u64 = 3_000_000;

/// Clients of a node.
const MOST_CLIENTS: usize = 5;

/// The cluster views that a node may keep beside commands. It keeps one until all nodes are known
/// to have it, which takes rounds of messages; more views come meanwhile, and some nodes miss some.
const MOST_VIEWS: usize = 16;

/// The actions of a run.
const DEEDS: u64 = 600;

/// Breaks an assumption of the protocol, so that a property must fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sabotage {
    /// Messages of one node to another overtake each other.
    Overtaken,
    /// The messages that a node keeps are not exchanged at a view change.
    NotKept,
    /// A message of a client is lost before it reaches its node.
    Unsaid,
    /// A client receives messages in another order than the rest.
    Swapped,
    /// A client misses a view of its group now and then.
    Unseen,
    /// Nodes receive no more cluster views once clients are quiet.
    NotGiven,
    /// The check expects that nodes keep nothing.
    NoRoom,
    /// A client takes a new view of the group for the passing of a barrier.
    Passed,
    /// Nodes do not learn the number of clients for which a client waits at a barrier.
    Few,
}

/// An event of the simulation.
#[derive(Clone, Debug)]
pub(crate) enum GroupsEvent {
    /// The first message of a lane arrives.
    Deliver(Lane),
    /// A client of a node's incarnation acts.
    Client(Instance),
    /// A node dies.
    Kill,
    /// A node starts its next incarnation.
    Start(usize),
    /// The cluster decides a view.
    Decide,
    /// A node's incarnation receives a view.
    Give(Instance, Members),
}

/// The run of one seed.
pub struct Groups {
    engine: Engine<GroupsEvent>,
    cluster: Cluster<Node, Vec<u8>>,
    epoch: u32,
    clients: BTreeMap<GroupMember, Client>,
    barriers: Barriers,
    /// The state that members have when they begin a view, by view.
    opened: BTreeMap<Epoch, (u64, u64)>,
    deeds: u64,
    deaths: u64,
    told: u64,
    ending: bool,
    sabotage: Option<Sabotage>,
    actions: Vec<Action>,
}

impl Simulation for Groups {
    fn now(&self) -> u64 {
        self.engine.now()
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        for node in self.cluster.nodes() {
            self.engine.schedule_in(..VIEW_NS, None, GroupsEvent::Start(node));
        }
        self.engine.schedule(VIEW_NS, None, GroupsEvent::Decide);
        self.engine.schedule(2 * VIEW_NS, None, GroupsEvent::Kill);
        while let Some(event) = self.engine.advance() {
            self.take(event)?;
            if self.deeds >= DEEDS && !self.ending {
                self.ending = true;
            }
        }
        self.at_the_end()?;
        Ok(Outcome::of(&self.engine, self.told).with([("deaths", self.deaths)]))
    }
}

impl Groups {
    /// Creates a run with two to five nodes.
    pub fn new(seed: u64, sabotage: Option<Sabotage>) -> Self {
        let mut engine = Engine::new(seed ^ 0x6772_6f75_7073, 0);
        let nodes = engine.random.between(2, 5) as usize;
        Self {
            engine,
            cluster: Cluster::new(nodes),
            epoch: 0,
            clients: BTreeMap::new(),
            barriers: Barriers::default(),
            opened: BTreeMap::new(),
            deeds: 0,
            deaths: 0,
            told: 0,
            ending: false,
            sabotage,
            actions: Vec::new(),
        }
    }

    fn take(&mut self, event: GroupsEvent) -> Result<(), Broken> {
        match event {
            GroupsEvent::Deliver(lane) => self.deliver(lane),
            GroupsEvent::Client(instance) => self.client(instance),
            GroupsEvent::Kill => {
                self.kill_one();
                Ok(())
            }
            GroupsEvent::Start(node) => {
                self.start(node);
                Ok(())
            }
            GroupsEvent::Decide => {
                self.decide();
                Ok(())
            }
            GroupsEvent::Give(instance, view) => self.give(instance, &view),
        }
    }

    /// Starts a client, or makes a client act.
    fn client(&mut self, instance: Instance) -> Result<(), Broken> {
        if self.ending || !self.cluster.is_up(instance) {
            return Ok(());
        }
        self.engine.schedule_in(1..=400_000, None, GroupsEvent::Client(instance));
        let (id, _) = instance.member();
        let free: Vec<GroupMember> = self
            .clients
            .iter()
            .filter(|(who, client)| who.node == id && client.may_act())
            .map(|(who, _)| *who)
            .collect();
        let room = self.clients.iter().filter(|(who, client)| who.node == id && !client.has_left()).count()
            < MOST_CLIENTS;
        if room && (free.is_empty() || self.engine.random.percent(20)) {
            return self.joins(instance);
        }
        if free.is_empty() {
            // All of them wait; that counts as an action, so that a run ends.
            self.deeds += 1;
            return Ok(());
        }
        let who = *self.engine.random.pick(&free);
        // All that wait at a barrier require the same number of members.
        let (barrier, least) = if self.engine.random.percent(80) { ("here", 1) } else { ("there", 3) };
        let deed = match self.engine.random.below(20) {
            0 => Deed::Leave { died: false },
            1 => Deed::Leave { died: true },
            2..=6 => Deed::Arrive { barrier: name(barrier), least, strict: self.engine.random.percent(20) },
            _ => Deed::Send(self.deeds.to_le_bytes().as_slice().into()),
        };
        self.does(who, deed)
    }

    fn joins(&mut self, instance: Instance) -> Result<(), Broken> {
        let Some(node) = self.cluster.node_mut(instance.node) else { return Ok(()) };
        node.last_client += 1;
        let (client, (node, incarnation)) = (node.last_client, instance.member());
        let who = GroupMember { node, incarnation, client };
        let which = if self.engine.random.percent(50) { "a" } else { "b" };
        let group = name(which);
        self.clients.insert(who, Client::new(group));
        self.does(who, Deed::Join)
    }

    fn does(&mut self, who: GroupMember, mut deed: Deed) -> Result<(), Broken> {
        self.deeds += 1;
        let Some(client) = self.clients.get_mut(&who) else { return Ok(()) };
        client.does(&deed);
        let group = client.group.clone();
        if let Deed::Arrive { barrier, least, strict } = &mut deed {
            self.barriers.arrives(who, &group, barrier, *least, *strict);
            if self.sabotage == Some(Sabotage::Few) {
                *least = 1;
            }
        }
        if self.sabotage == Some(Sabotage::Unsaid)
            && matches!(deed, Deed::Send(_))
            && self.engine.random.percent(2)
        {
            return Ok(());
        }
        self.with(who.node.index(), |groups, out| {
            // Few enough that none is refused: each client has a few under way.
            groups.submit(who.client, group, deed, out).expect("there is room");
        })
    }

    /// Calls the groups of a node, and carries out the resulting actions.
    fn with(&mut self, node: usize, act: impl FnOnce(&mut Protocol, &mut Vec<Action>)) -> Result<(), Broken> {
        let Some(Node { groups, .. }) = self.cluster.node_mut(node) else { return Ok(()) };
        let mut actions = std::mem::take(&mut self.actions);
        act(groups, &mut actions);
        let kept = groups.kept();
        let most = if self.sabotage == Some(Sabotage::NoRoom) {
            0
        } else {
            WINDOW * self.cluster.nodes().len() + MOST_VIEWS
        };
        if kept > most {
            return Err(Broken::general("bounded", format!("node {node} keeps {kept} entries")));
        }
        for action in actions.drain(..) {
            self.act(node, action)?;
        }
        self.actions = actions;
        Ok(())
    }

    fn act(&mut self, node: usize, action: Action) -> Result<(), Broken> {
        match action {
            Action::Send { to, message } => {
                self.send(node, to, &message);
                Ok(())
            }
            Action::Tell { client, seq, what } => {
                let (node, incarnation) = self.cluster.instance(node).member();
                self.note_received(GroupMember { node, incarnation, client }, seq, what)
            }
            Action::Opened(epoch, applied, digest) => {
                self.engine.digest.add(digest);
                let known = *self.opened.entry(epoch).or_insert((applied, digest));
                match known == (applied, digest) {
                    true => Ok(()),
                    false => Err(Broken::general(
                        "synchrony",
                        format!(
                            "node {node} begins view {} after {applied} entries, another after {}",
                            epoch.0, known.0
                        ),
                    )),
                }
            }
            Action::Fault { from, what } => {
                Err(Broken::general("fault", format!("node {node} says of node {from}: {what}")))
            }
        }
    }
}

fn name(name: &str) -> Name {
    Name::new(name.as_bytes()).expect("a short name")
}
