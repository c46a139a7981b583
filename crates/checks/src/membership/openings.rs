//! Checks the opening of views and leases alone: a rival decides views of arbitrary nodes, and two
//! or three members learn of them in any order.
//!
//! The rival is a node that belongs to no cluster: its writes to the voting files outbid every
//! proposal of the members. It evicts healthy members, admits nodes that have just started, and
//! processes end meanwhile. Files and messages may take as long as a lease, and files stall for
//! longer than the disk timeout. So only leases and waits protect a view, and [`super::witness`]
//! checks them. In [`super::Membership`] views change after faults, and most affected nodes know of
//! them.

use std::sync::Arc;

use plexus_base::{Incarnation, MAX_NODES, Nanos, NodeId};
use plexus_membership::protocol::{Profile, Report, Seat, View};
use plexus_sim::Random;

use super::world::{MembershipEvent, MembershipWorld, RIVAL};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation},
};

/// The actions of a run.
const ACTS: u64 = 60;

/// The run of one seed.
pub struct Openings {
    world: MembershipWorld,
    random: Random,
    chosen: Arc<View>,
    reports: u64,
}

impl Openings {
    /// Creates a run with two or three nodes, and one or three files.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6f70_656e);
        let (nodes, files) = (random.between(2, 3) as usize, *random.pick(&[1, 3]));
        let (_, mut profile) = *random.pick(&Profile::ALL);
        profile.disk_timeout = Nanos(profile.lease.0 * random.between(2, 6));
        let mut world = MembershipWorld::new(seed, nodes, &vec![None; files], profile, None);
        (world.proofs, world.rests, world.has_rival) = (random.percent(50), true, true);
        let mut proofs = Random::new(seed ^ 0x70_726f_6f66);
        if proofs.percent(40) {
            world.require_proofs(&mut proofs);
        }
        let chosen = Arc::clone(&world.first);
        Self { world, random, chosen, reports: 0 }
    }

    fn run(&mut self, for_ns: u64) -> Result<(), Broken> {
        self.world.engine.schedule(for_ns, None, MembershipEvent::Next);
        while !self.world.step()? {}
        Ok(())
    }

    /// Draws a duration: mostly less than a heartbeat, sometimes about a lease.
    fn while_ns(&mut self) -> u64 {
        let Profile { heartbeat, lease, .. } = self.world.profile;
        let most = *self.random.pick(&[heartbeat.0 / 20, heartbeat.0, heartbeat.0, lease.0]);
        self.random.below(most)
    }

    fn act(&mut self) -> Result<(), Broken> {
        let node = self.random.below(self.world.nodes.len() as u64) as usize;
        match self.random.below(15) {
            0..=4 => {
                let seats = self.draw_seats();
                self.decide(seats)?;
            }
            5..=7 => self.tell(node),
            8 => {
                let file = self.random.below(self.world.files.len() as u64) as usize;
                self.world.files[file].outbid(RIVAL, Some(&self.chosen), None);
            }
            9 => self.restart(node),
            10 => {
                let pause = self.random.below(2 * self.world.profile.lease.0);
                self.world.pause(node, pause);
            }
            11 | 12 => {
                let opener = Some(node).filter(|_| self.random.percent(50));
                let for_ns = self.random.below(2 * self.world.profile.disk_timeout.0);
                for file in 0..self.world.files.len() {
                    self.world.stall(opener, file, for_ns);
                }
            }
            13 if self.random.percent(30) => self.world.thaw(),
            14 => self.take_over(node)?,
            _ => {
                // The other nodes receive either nothing of it or all of it again.
                let cut = self.random.percent(50);
                self.world.cut[node].iter_mut().for_each(|way| *way = cut);
            }
        }
        let after = self.while_ns();
        self.run(after)
    }

    fn restart(&mut self, node: usize) {
        self.world.crash(node);
        let Profile { kill_margin, heartbeat, .. } = self.world.profile;
        let after = self.random.between(kill_margin.0, kill_margin.0 + heartbeat.0);
        self.world.engine.schedule(after, None, MembershipEvent::Start(node));
    }

    /// Draws the next view, of any nodes that run.
    fn draw_seats(&mut self) -> [Seat; MAX_NODES] {
        let mut seats = self.chosen.seats;
        for (node, seat) in seats.iter_mut().enumerate().take(self.world.nodes.len()) {
            *seat = match *seat {
                Seat::In(incarnation) if self.random.percent(35) => Seat::Out(incarnation),
                seat if self.random.percent(60) => self.joined(node, seat),
                seat => seat,
            };
        }
        seats
    }

    /// Returns the seat of a node as a member, if it runs and may be one.
    fn joined(&self, node: usize, seat: Seat) -> Seat {
        let incarnation = Incarnation(self.world.nodes[node].incarnation);
        let is_past = self.chosen.is_past(NodeId(node as u8), incarnation);
        match self.world.nodes[node].member.is_some() && !is_past {
            true => Seat::In(incarnation),
            false => seat,
        }
    }

    /// Adds a node that the others do not hear, and then decides a view of this node alone, which
    /// the others do not learn: paths to it are cut, and files stall for them.
    fn take_over(&mut self, node: usize) -> Result<(), Broken> {
        let Profile { lease, disk_timeout, .. } = self.world.profile;
        let others: Vec<usize> = (0..self.world.nodes.len()).filter(|other| *other != node).collect();
        others.iter().for_each(|other| self.world.cut[node][*other] = true);
        let mut seats = self.chosen.seats;
        let is_new = self.random.percent(50);
        if is_new {
            // The others act in a view without the node, which then starts again.
            self.world.thaw();
            self.restart(node);
            if let Seat::In(incarnation) = seats[node] {
                seats[node] = Seat::Out(incarnation);
            }
            others.iter().for_each(|other| seats[*other] = self.joined(*other, seats[*other]));
            self.decide(seats)?;
            others.iter().for_each(|other| self.tell(*other));
            self.run(2 * lease.0)?;
        }
        seats[node] = self.joined(node, seats[node]);
        self.decide(seats)?;
        self.tell(node);
        if !is_new {
            others.iter().for_each(|other| self.tell(*other));
        }
        let after = *self.random.pick(&[0, lease.0 / 4, lease.0, disk_timeout.0]);
        self.run(after)?;
        for other in &others {
            self.world.cut[*other][node] = self.random.percent(80);
            let seat = &mut seats[*other];
            *seat = if let Seat::In(incarnation) = *seat { Seat::Out(incarnation) } else { *seat };
        }
        let is_early = self.random.percent(50);
        if !is_early {
            self.decide(seats)?;
        }
        for file in 0..self.world.files.len() {
            let is_stalled = self.random.percent(70);
            let for_ns = self.random.below(2 * disk_timeout.0);
            for other in others.iter().filter(|_| is_stalled) {
                self.world.stall(Some(*other), file, for_ns);
            }
            if self.random.percent(40) {
                self.world.stall(Some(node), file, self.random.below(2 * lease.0));
            }
        }
        if is_early {
            self.decide(seats)?;
        }
        self.tell(node);
        let after = self.random.below(disk_timeout.0 * 5 / 4);
        self.run(after)
    }

    /// Decides the next view. It is written to one file after the other, and is chosen once it is
    /// in most files.
    fn decide(&mut self, seats: [Seat; MAX_NODES]) -> Result<(), Broken> {
        let no_member = seats.iter().all(|seat| !matches!(seat, Seat::In(_)));
        if seats == self.chosen.seats || no_member {
            return Ok(());
        }
        let view = self.chosen.next(seats, self.chosen.files.clone());
        let view = Arc::new(view);
        for file in 0..self.chosen.majority() {
            let after = self.while_ns();
            self.run(after)?;
            self.world.files[file].outbid(RIVAL, Some(&self.chosen), Some(&view));
        }
        self.chosen = view;
        Ok(())
    }

    /// Sends the last view to a node, unless it learns of it earlier in another way.
    fn tell(&mut self, to: usize) {
        self.reports += 1;
        let first = Report::first(RIVAL, Incarnation(1), &self.world.profile, Arc::clone(&self.chosen));
        let report = Report { counter: self.reports, ..first };
        let after = self.while_ns();
        self.world.engine.schedule(
            after,
            Some(to),
            MembershipEvent::Deliver { to, report: Arc::new(report) },
        );
    }
}

impl Simulation for Openings {
    fn now(&self) -> u64 {
        self.world.engine.now()
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        for node in 0..self.world.nodes.len() {
            let after = self.while_ns();
            self.world.engine.schedule(after, None, MembershipEvent::Start(node));
        }
        let evict = self.world.profile.evict.0;
        self.run(evict)?;
        for _ in 0..ACTS {
            self.act()?;
        }
        Ok(Outcome::of(&self.world.engine, self.world.opened)
            .with([("decided", u64::from(self.chosen.epoch.0))]))
    }
}
