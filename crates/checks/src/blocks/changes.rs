//! Changes the members under the cache: nodes die, leave and join with a new incarnation, and
//! membership decides views.
//!
//! Each view has the nodes that are alive. Each worker receives it at its own time, and sometimes
//! misses it. Until then, the last messages of nodes outside the view arrive in part, and their
//! last disk writes may reach the disk. Afterwards nothing of them arrives. Every run begins with a
//! first view.
//!
//! In most scenarios at least one participant of the last view stays alive, unless all nodes may
//! die ([`Params::all_may_die`]).

use plexus_base::{BlockId, Epoch, NodeId};
use plexus_cache::protocol::{Event, Members, Slot};

use super::cluster::{Cluster, ClusterEvent, Local, Phase, config};
use crate::{
    failure::Broken,
    harness::{self, Instance},
    scenario::{Carrier, Params},
};

/// The time after which a leaving node checks again whether it may leave.
const LOOK_NS: u64 = 20_000;

/// The looks after which a node leaves as after a crash, as a real one does after `LEAVE_WITHIN`. A
/// task of another node may have a block on its way through this master, and wait for another one
/// of this master, which begins nothing any more.
const LOOKS: u32 = 1_000;

/// The time after which a node that is to die checks again whether others can continue without it.
const DIE_NS: u64 = 20_000;

/// A change of the members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A node dies or leaves, or membership decides again without need.
    Next,
    /// A node starts another incarnation.
    Join(usize),
    /// A leaving node checks whether it may leave.
    Look(Instance),
    /// The node leaves.
    Go(Instance),
    /// Membership decides a view.
    Decide,
    /// A worker receives a view.
    Give(usize, usize),
}

/// A disk access of an incarnation.
#[derive(Clone, Copy, Debug)]
struct Access {
    owner: usize,
    at: usize,
    slot: Slot,
    block: BlockId,
    write: bool,
    /// True if its worker knows that the result is void.
    discarded: bool,
}

/// The members, and the state of blocks that former members had.
pub struct Changes {
    pub(crate) nodes: harness::Cluster<(), ()>,
    /// The owner number in the engine of each node's incarnation.
    pub(crate) owners: Vec<usize>,
    /// True if no access of the incarnation reaches the disk any more, by owner.
    pub(crate) fenced: Vec<bool>,
    views: Vec<Members>,
    accesses: Vec<Access>,
    leaving: Option<usize>,
    /// How often the leaving node has looked in vain whether it may leave.
    looks: u32,
    made: u64,
}

impl Changes {
    pub(crate) fn new(params: &Params) -> Self {
        let nodes = usize::from(params.nodes);
        let mut cluster = harness::Cluster::new(nodes);
        (0..nodes).for_each(|node| _ = cluster.start(node, |_| ()));
        Self {
            nodes: cluster,
            owners: (0..nodes).collect(),
            fenced: vec![false; nodes * (1 + params.changes as usize)],
            views: Vec::new(),
            accesses: Vec::new(),
            leaving: None,
            looks: 0,
            made: 0,
        }
    }

    pub(crate) fn view(&self) -> &Members {
        self.views.last().expect("a first view")
    }

    /// Returns true if a message sent in a view can reach a node: there is a link to the
    /// incarnation in that view.
    pub(crate) fn reaches(&self, epoch: Epoch, to: NodeId) -> bool {
        let view = self.views.iter().find(|view| view.epoch == epoch);
        let to = self.nodes.instance(to.index());
        view.is_none_or(|view| self.nodes.is_up(to) && view.members.contains(&to.member()))
    }

    pub(crate) fn begins(&mut self, owner: usize, at: usize, (slot, block): (Slot, BlockId), write: bool) {
        self.accesses.push(Access { owner, at, slot, block, write, discarded: false });
    }

    /// Ends a disk access; returns true if its result is valid.
    pub(crate) fn ended(&mut self, at: usize, slot: Slot, write: bool) -> bool {
        let is_it = |access: &Access| (access.at, access.slot, access.write) == (at, slot, write);
        let access = self.accesses.iter().position(is_it).expect("an access that began");
        !self.accesses.swap_remove(access).discarded
    }

    /// Returns true if the members of the last view are the nodes that are alive.
    fn is_current(&self) -> bool {
        self.view().members == self.nodes.members()
    }
}

impl Cluster {
    /// Decides the first view.
    pub(crate) fn first_view(&mut self) {
        self.decide();
        if self.params.changes > 0 {
            self.engine.schedule_in(1_000..=self.params.change_ns, None, ClusterEvent::Change(Change::Next));
        }
    }

    /// Applies a change of the members.
    pub(crate) fn change(&mut self, change: Change) -> Result<(), Broken> {
        match change {
            Change::Next => return self.next_change(),
            Change::Join(node) if self.phase == Phase::Running || self.living().next().is_none() => {
                self.join(node);
            }
            Change::Join(_) => {}
            Change::Look(instance) => return self.look(instance),
            Change::Go(instance) => self.end(instance.node),
            Change::Decide => self.decide(),
            Change::Give(at, view) => return self.give(at, view),
        }
        Ok(())
    }

    /// Returns true if every member has the last view, no node died since, and all masters are
    /// open. Before there is a second view the result is true.
    pub fn is_settled(&self, block: BlockId) -> bool {
        let epoch = self.epoch();
        let open = |node: u8| {
            let shard = &self.local(node, block).shard;
            shard.epoch() == epoch && shard.is_open()
        };
        self.changes.is_current() && (self.changes.views.len() == 1 || self.living().all(open))
    }

    /// Returns true if another node of the last settled view stays.
    fn others_stay(&self, node: usize) -> bool {
        let stays = |other: usize| {
            let locals = self.indices(other as u8);
            self.changes.nodes.node(other).is_some()
                && self.changes.leaving != Some(other)
                && self.locals[locals].iter().all(|local| local.opened)
        };
        self.changes.nodes.nodes().any(|other| other != node && stays(other))
    }

    fn next_change(&mut self) -> Result<(), Broken> {
        if self.phase > Phase::Running || self.changes.made == self.params.changes {
            return Ok(());
        }
        self.engine.schedule_in(1..=self.params.change_ns, None, ClusterEvent::Change(Change::Next));
        let up: Vec<usize> = self.changes.nodes.up().map(|(node, ())| node).collect();
        if up.is_empty() {
            return Ok(());
        }
        let node = *self.engine.random.pick(&up);
        self.changes.made += 1;
        match self.engine.random.below(100) {
            // Over the link core, which knows one incarnation of each node, views change but
            // members do not.
            _ if self.params.carrier == Carrier::Linked => self.decide_soon(),
            0..10 if self.params.all_may_die => up.into_iter().for_each(|node| self.kill(node)),
            0..60 if self.params.all_may_die || self.others_stay(node) => self.kill(node),
            60..80
                if (self.params.all_may_die || self.others_stay(node)) && self.changes.leaving.is_none() =>
            {
                (self.changes.leaving, self.changes.looks) = (Some(node), 0);
                self.hand_back(node)?;
                self.look_later(node);
            }
            _ => self.decide_soon(),
        }
        Ok(())
    }

    fn look_later(&mut self, node: usize) {
        let look = Change::Look(self.changes.nodes.instance(node));
        self.engine.schedule(LOOK_NS, Some(self.owner(node)), ClusterEvent::Change(look));
    }

    /// Lets a leaving node go as soon as membership has removed it; until then other nodes may join
    /// and leave.
    fn look(&mut self, instance: Instance) -> Result<(), Broken> {
        let node = instance.node;
        let locals = self.indices(node as u8);
        if self.locals[locals.clone()].iter().all(|local| local.may_leave) {
            let most = *self.engine.random.pick(&[1, self.params.change_ns]);
            self.schedule_at(node, 1..=most, ClusterEvent::Change(Change::Go(instance)));
            return Ok(());
        }
        self.changes.looks += 1;
        if self.changes.looks > LOOKS && (self.params.all_may_die || self.others_stay(node)) {
            self.kill(node);
            return Ok(());
        }
        for at in locals {
            match self.locals[at].handed_back {
                Some(0) => self.shard(at, Event::Leave)?,
                Some(_) => {
                    self.locals[at].handed_back = None;
                    self.shard(at, Event::HandBack)?;
                }
                None => {}
            }
        }
        self.look_later(node);
        Ok(())
    }

    /// Kills the one node that dies in a run, unless the run is over.
    pub(crate) fn die(&mut self, node: usize) {
        if self.phase > Phase::Running {
            return;
        }
        if !self.others_stay(node) {
            self.engine.schedule(DIE_NS, None, ClusterEvent::Die(node));
            return;
        }
        self.transport.node_died(&mut self.engine, NodeId(node as u8));
        self.kill(node);
    }

    fn kill(&mut self, node: usize) {
        self.undo(node);
        self.end(node);
    }

    /// Notes the blocks whose last changes may be gone with a node that dies. With redo a part of
    /// its records that are not durable stays. Without redo, also a block that others have may go:
    /// they drop their copies if the dead node was to give the block.
    fn undo(&mut self, node: usize) {
        if self.params.redo {
            let (owner, kept) = (self.owner(node), self.engine.random.bits());
            self.streams[owner].tear(kept);
        }
        for block in (0..self.params.blocks).map(BlockId) {
            let last = self.truth.last(block);
            let keeps = |other: u8| self.local(other, block).keeps(last);
            let stays = || self.living().any(|other| usize::from(other) != node && keeps(other));
            if !self.params.redo || self.truth.durable(block) < last.version && !stays() {
                self.truth.doubt(block);
                self.sessions.iter_mut().for_each(|session| session.forgive(block));
                self.tasks.iter_mut().for_each(|task| task.forgive(block));
            }
        }
    }

    /// Returns the owner numbers of the members of a view.
    pub(crate) fn owners_of(&self, epoch: Epoch) -> Vec<usize> {
        let view = self.changes.views.iter().find(|view| view.epoch == epoch).expect("a view");
        let nodes = usize::from(self.params.nodes);
        view.members
            .iter()
            .map(|(node, incarnation)| node.index() + nodes * (incarnation.0 as usize - 1))
            .collect()
    }

    /// Ends an incarnation.
    fn end(&mut self, node: usize) {
        self.engine.kill(self.owner(node));
        self.changes.nodes.kill(node, |_, _| 0);
        if self.changes.leaving == Some(node) {
            self.changes.leaving = None;
        }
        for at in self.indices(node as u8) {
            self.turns.void(at);
            self.ended.push(*self.locals[at].shard.counts());
        }
        for session in 0..self.sessions.len() {
            if self.sessions[session].node.index() == node {
                self.turns.woken(session);
                self.sessions[session].end();
            }
        }
        self.kill_tasks(node);
        for other in self.changes.nodes.nodes().filter(|other| *other != node) {
            self.sever(other, node);
            if self.engine.random.percent(50) {
                self.sever(node, other);
            }
        }
        let is_last = self.params.all_may_die && self.living().next().is_none();
        let may_come = self.params.changes > 0 && self.phase == Phase::Running;
        if is_last || may_come && self.engine.random.percent(75) {
            self.engine.schedule_in(
                1..=self.params.change_ns,
                None,
                ClusterEvent::Change(Change::Join(node)),
            );
        }
        self.decide_soon();
    }

    fn sever(&mut self, from: usize, to: usize) {
        let (from, to) = (NodeId(from as u8), NodeId(to as u8));
        self.transport.purge(from, to);
        self.delivery.purge(from, to);
    }

    fn join(&mut self, node: usize) {
        for other in self.changes.nodes.nodes().filter(|other| *other != node) {
            self.sever(other, node);
            self.sever(node, other);
        }
        let changes = &mut self.changes;
        let Instance { incarnation, .. } = changes.nodes.start(node, |_| ());
        changes.owners[node] = node + changes.owners.len() * (incarnation as usize - 1);
        for (worker, at) in self.indices(node as u8).enumerate() {
            self.locals[at] = Local::new(config(&self.params, node as u8, worker as u8));
            if self.params.checkpoint_ns > 0 {
                self.plan_checkpoint(at);
            }
        }
        for session in
            (0..self.sessions.len()).filter(|n| self.sessions[*n].node.index() == node).collect::<Vec<_>>()
        {
            self.sessions[session].begin();
            self.schedule_at(node, ..1000, ClusterEvent::Session(session));
        }
        self.begin_tasks(node);
        self.decide_soon();
    }

    fn decide_soon(&mut self) {
        self.engine.schedule_in(1..=20_000, None, ClusterEvent::Change(Change::Decide));
    }

    fn decide(&mut self) {
        if self.living().next().is_none() {
            return;
        }
        let Self { changes, disk, engine, .. } = self;
        // A node outside the view is fenced: none of its accesses reaches the disk any more.
        changes.accesses.retain(|access| {
            let dead = engine.is_dead(access.owner);
            if dead && access.write {
                disk.write_ends(access.block);
            } else if dead && !access.discarded {
                disk.read_ends(access.block);
            }
            !dead
        });
        (0..changes.fenced.len()).for_each(|owner| changes.fenced[owner] |= engine.is_dead(owner));
        let further = if engine.random.percent(10) { 2 } else { 1 };
        let epoch = Epoch(changes.views.last().map_or(0, |view| view.epoch.0) + further);
        changes.views.push(Members { epoch, members: changes.nodes.members() });
        self.debts_under_way.fill(0);
        let view = self.changes.views.len() - 1;
        for Instance { node, .. } in self.changes.nodes.instances() {
            for at in self.indices(node as u8) {
                let most = *self.engine.random.pick(&[500, 5_000, 50_000]);
                self.schedule_at(node, 1..=most, ClusterEvent::Change(Change::Give(at, view)));
            }
        }
    }

    /// Gives a view to a worker, unless the worker knows a later one or misses this one.
    fn give(&mut self, at: usize, view: usize) -> Result<(), Broken> {
        let last = view + 1 == self.changes.views.len();
        let next = self.changes.views[view].clone();
        let known = self.locals[at].shard.epoch();
        if known >= next.epoch || !last && self.engine.random.percent(20) {
            return Ok(());
        }
        let me = self.port(at).node;
        for gone in
            self.changes.nodes.nodes().map(|node| self.changes.nodes.instance(node)).collect::<Vec<_>>()
        {
            if !self.changes.nodes.is_up(gone) && !next.members.contains(&gone.member()) {
                self.sever(gone.node, me.index());
            }
        }
        let (owner, Self { changes, disk, .. }) = (self.owner(me.index()), &mut *self);
        for access in &mut changes.accesses {
            if (access.owner, access.at, access.write, access.discarded) == (owner, at, false, false) {
                access.discarded = true;
                disk.read_ends(access.block);
            }
        }
        self.turns.void(at);
        if let Some(block) = self.traced {
            let worker = self.port(at).worker;
            self.note(block, || format!("{me} worker {worker} <- {next:?}"));
        }
        self.drive(at, |shard, now, io| shard.view(now, &next, io))
    }

    /// Notes that a master has opened.
    pub(crate) fn opens(&mut self, at: usize, epoch: Epoch) {
        self.locals[at].opened = true;
        let (me, worker) = (self.port(at).node, self.port(at).worker);
        if let Some(block) = self.traced {
            self.note(block, || format!("{me} opens worker {worker} in {epoch:?}"));
        }
    }
}
