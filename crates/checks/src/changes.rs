//! Changes the members under the cache: nodes die, leave and join with a new incarnation, and
//! membership decides views.
//!
//! Each view has the nodes that are alive. Each worker receives it at its own time, and sometimes
//! misses it. Until then, the last messages of nodes outside the view arrive in part, and their
//! last disk writes may reach the disk. Afterwards nothing of them arrives. Every run begins with a
//! first view.
//!
//! In most scenarios at least one participant of the last view stays alive. Where all nodes may die
//! ([`Params::all_may_die`]), a cold start uses the records of the nodes. This module counts deaths
//! to know the true state (`insight.rs`).

use plexus_base::{BlockId, Epoch, NodeId};
use plexus_cache::protocol::{Event, Lost, Members, Mode, Slot};

use crate::{
    cluster::{Cluster, ClusterEvent, Local, Phase, config},
    failure::Broken,
    harness::{self, Instance},
    insight::Past,
    properties::{named, recorded},
    scenario::{Carrier, Params},
};

/// The time after which a leaving node checks again whether it may leave.
const LOOK_NS: u64 = 20_000;

/// The time after which a node that is to die checks again whether others can continue without it.
const DIE_NS: u64 = 20_000;

/// A change of the members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// A node dies or leaves, or membership decides again without need.
    Next,
    /// An operator accepts what is lost.
    Accept,
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
    pub(crate) past: Past,
    /// The first view whose masters may have been the last to open.
    open_since: usize,
    accesses: Vec<Access>,
    /// True if a node died since.
    died: bool,
    leaving: Option<usize>,
    made: u64,
    /// True if the master has named the block as lost, by block.
    pub(crate) lost: Vec<bool>,
    /// True if an operator asked to accept it since.
    pub(crate) accepted: Vec<bool>,
    /// The lost blocks when an operator last looked before accepting, by worker.
    seen: Vec<Lost>,
    /// The view in which the block was accepted as it is on the disk.
    pub(crate) taken: Vec<Epoch>,
    /// True if a node died that may have had the latest version.
    pub(crate) suspect: Vec<bool>,
}

impl Changes {
    pub(crate) fn new(params: &Params) -> Self {
        let (nodes, blocks) = (usize::from(params.nodes), params.blocks as usize);
        let mut cluster = harness::Cluster::new(nodes);
        (0..nodes).for_each(|node| _ = cluster.start(node, |_| ()));
        Self {
            nodes: cluster,
            owners: (0..nodes).collect(),
            fenced: vec![false; nodes * (1 + params.changes as usize)],
            views: Vec::new(),
            past: Past::new(params),
            open_since: 0,
            accesses: Vec::new(),
            died: false,
            leaving: None,
            made: 0,
            lost: vec![false; blocks],
            accepted: vec![false; blocks],
            seen: vec![Lost::default(); nodes * usize::from(params.workers)],
            taken: vec![Epoch(0); blocks],
            suspect: vec![false; blocks],
        }
    }

    pub(crate) fn view(&self) -> &Members {
        self.views.last().expect("a first view")
    }

    /// Returns true if the master has named the block as lost.
    pub fn is_lost(&self, block: BlockId) -> bool {
        self.lost[block.0 as usize]
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
            Change::Accept => {
                let node = self.living().next();
                return node.map_or(Ok(()), |node| self.accept_what_was_seen(usize::from(node)));
            }
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

    /// Returns the members of a view that still run in the incarnation that the view has.
    pub(crate) fn members_alive(&self, epoch: Epoch) -> impl Iterator<Item = u8> {
        let view =
            self.changes.views.iter().find(|view| view.epoch == epoch).expect("a view that was decided");
        let alive = self.changes.nodes.members();
        view.members.iter().filter(move |member| alive.contains(member)).map(|(node, _)| node.0)
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
                self.changes.leaving = Some(node);
                self.hand_back(node)?;
                self.look_later(node);
            }
            _ => self.decide_soon(),
        }
        Ok(())
    }

    /// Accepts the lost blocks as an operator does.
    ///
    /// # Errors
    /// A property does not hold.
    pub fn accept_lost(&mut self, node: usize) -> Result<(), Broken> {
        for local in self.indices(node as u8) {
            let seen = self.locals[local].shard.lost().clone();
            self.accept(local, &seen)?;
        }
        Ok(())
    }

    /// Accepts the lost blocks, perhaps from an older listing: the command is refused if more
    /// blocks are lost by now.
    fn accept_what_was_seen(&mut self, node: usize) -> Result<(), Broken> {
        for local in self.indices(node as u8) {
            let now = self.locals[local].shard.lost().clone();
            let before = std::mem::replace(&mut self.changes.seen[local], now.clone());
            let seen = if self.engine.random.below(2) == 0 { before } else { now };
            self.accept(local, &seen)?;
        }
        Ok(())
    }

    fn accept(&mut self, local: usize, seen: &Lost) -> Result<(), Broken> {
        let shard = &self.locals[local].shard;
        // The command accepts all of them or none.
        if shard.is_open() && shard.lost().is_within(seen) {
            let worker = shard.config().worker;
            for block in (0..self.params.blocks).map(BlockId) {
                let is_its = block.partition().worker(self.params.workers) == worker;
                if is_its && self.changes.is_lost(block) && seen.contains(block) {
                    self.changes.accepted[block.0 as usize] = true;
                }
            }
        }
        self.drive(local, |shard, now, io| shard.accept_lost(now, seen, io))
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
            self.is_clean(node, instance.member().1);
            let most = *self.engine.random.pick(&[1, self.params.change_ns]);
            self.schedule_at(node, 1..=most, ClusterEvent::Change(Change::Go(instance)));
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
        let dead = NodeId(node as u8);
        for block in (0..self.params.blocks).map(BlockId) {
            let had = self.local(dead.0, block).shard.has_frame(block);
            let given =
                self.last_given[block.0 as usize].is_some_and(|(from, to)| [from, to].contains(&dead));
            if had || given {
                self.changes.suspect[block.0 as usize] = true;
            }
        }
        self.changes.died = true;
        if self.params.redo {
            self.undo(node);
        }
        self.end(node);
    }

    /// Takes a dead node's redo that is not durable, in part, and notes the blocks whose last
    /// change may be gone with it.
    fn undo(&mut self, node: usize) {
        let (owner, kept) = (self.owner(node), self.engine.random.bits());
        self.streams[owner].tear(kept);
        for block in (0..self.params.blocks).map(BlockId) {
            let last = self.truth.last(block);
            let has_last = |other: u8| {
                let local = self.local(other, block);
                // A shared copy may be evicted before its holder takes over the debt.
                let is_debtor = local.owes(block) || local.shard.holds(block) == (Mode::X, false);
                let is_last = |frame: &crate::frames::Frame| frame.block == block && frame.page == last;
                is_debtor && local.frames.frames.iter().any(is_last)
            };
            if !self.living().any(|other| usize::from(other) != node && has_last(other)) {
                self.truth.doubt(block);
                self.sessions.iter_mut().for_each(|session| session.forgive(block));
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

    /// After a death, marks the blocks whose masters are gone as suspect: those of dead masters,
    /// and of masters that left at the same time.
    fn suspect_orphans(&mut self) {
        let changes = &mut self.changes;
        let is_gone = |view: &Members, block: BlockId| {
            let master = changes.nodes.instance(view.master(block.partition()).index());
            !changes.nodes.is_up(master) || !view.members.contains(&master.member())
        };
        for block in (0..self.params.blocks).map(BlockId).filter(|_| changes.died) {
            if changes.views[changes.open_since..].iter().any(|view| is_gone(view, block)) {
                changes.suspect[block.0 as usize] = true;
            }
        }
    }

    /// Ends an incarnation.
    fn end(&mut self, node: usize) {
        self.engine.kill(self.owner(node));
        self.changes.nodes.kill(node, |_, _| 0);
        self.suspect_orphans();
        if self.changes.leaving == Some(node) {
            self.changes.leaving = None;
        }
        for at in self.indices(node as u8) {
            self.turns.void(at);
            self.tear_record(at);
            self.ended.push(*self.locals[at].shard.counts());
        }
        for session in 0..self.sessions.len() {
            if self.sessions[session].node.index() == node {
                self.turns.woken(session);
                self.sessions[session].end();
            }
        }
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
            let (epoch, lost) = self.records[at].recalled();
            self.locals[at].shard.recall(epoch, lost);
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
        self.note_decision();
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
        let before = self.changes.past.view(next.epoch).loss_history(me);
        self.drive(at, |shard, now, io| shard.view(now, (&next, before), io))
    }

    /// Checks a master that has opened.
    pub(crate) fn opens(&mut self, at: usize, epoch: Epoch) -> Result<(), Broken> {
        self.locals[at].opened = true;
        let me = self.port(at).node;
        let worker = self.locals[at].shard.config().worker;
        if let Some(block) = self.traced {
            self.note(block, || format!("{me} opens worker {} in {epoch:?}", worker.0));
        }
        let current = epoch == self.epoch() && self.changes.is_current();
        for block in (0..self.params.blocks).map(BlockId) {
            let shard = &self.locals[at].shard;
            if block.partition().worker(self.params.workers) == worker && shard.master(block) == me {
                if self.params.redo {
                    continue;
                }
                recorded::check(self, at, block)?;
                if named::check(self, at, block, current)? && self.engine.random.percent(80) {
                    self.engine.schedule_in(1..=200_000, None, ClusterEvent::Change(Change::Accept));
                }
                if current {
                    self.changes.suspect[block.0 as usize] = false;
                }
            }
        }
        Ok(())
    }

    /// Notes that the lost blocks of a worker have changed: blocks that its master names no more
    /// were accepted.
    pub(crate) fn take_back(&mut self, at: usize) -> Result<(), Broken> {
        let me = self.port(at).node;
        for block in (0..self.params.blocks)
            .map(BlockId)
            .filter(|block| self.index(me.0, *block) == at)
            .collect::<Vec<_>>()
        {
            let shard = &self.locals[at].shard;
            if shard.masters() && shard.master(block) == me && !shard.lost().contains(block) {
                let index = block.0 as usize;
                if self.changes.lost[index] && !self.changes.accepted[index] {
                    return Err(Broken::new("named", block, "lost, but not accepted by any operator".into()));
                }
                self.accepts(block);
            }
        }
        Ok(())
    }

    /// Takes the content on the disk as the current version of a lost block.
    pub(crate) fn accepts(&mut self, block: BlockId) {
        if !self.changes.lost[block.0 as usize] {
            return;
        }
        self.changes.lost[block.0 as usize] = false;
        self.changes.taken[block.0 as usize] = self.epoch();
        let page = self.disk.page(block);
        self.truth.commit(page);
        self.acknowledged[block.0 as usize] = page.value;
        self.sessions.iter_mut().for_each(|session| session.forgive(block));
        self.note(block, || format!("accepted as {page:?}"));
    }

    /// Forgets the masters of earlier views once all are open in a view.
    pub(crate) fn forget_masters(&mut self) {
        if self.changes.open_since + 1 < self.changes.views.len()
            && (0..self.params.blocks).map(BlockId).all(|block| self.is_settled(block))
        {
            self.changes.open_since = self.changes.views.len() - 1;
            self.changes.died = false;
        }
    }

    /// Returns true if a living node still holds the block.
    pub(crate) fn is_held(&self, block: BlockId) -> bool {
        self.living().any(|node| self.local(node, block).shard.holds(block).0 != Mode::N)
    }
}
