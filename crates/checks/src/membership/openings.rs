//! Checks the opening of views and leases alone: a rival decides views of arbitrary nodes, and two
//! or three members learn of them in any order.
//!
//! The rival is a node that belongs to no cluster: its writes to the voting files outbid every
//! proposal of the members. It evicts healthy members, admits nodes that have just started, and
//! processes end meanwhile. Files and messages may take as long as a lease. So only leases and
//! waits protect a view, and [`super::witness`] checks them. In [`super::Membership`] views change
//! after faults, and most affected nodes know of them.

use std::sync::Arc;

use plexus_base::{Epoch, Incarnation, MAX_NODES, NodeId, NodeSet};
use plexus_membership::protocol::{Clean, Profile, Report, Seat, View};
use plexus_sim::Random;

use super::world::{MembershipEvent, RIVAL, World};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation},
};

/// The actions of a run.
const ACTS: u64 = 60;

/// The run of one seed.
pub struct Openings {
    world: World,
    random: Random,
    chosen: Arc<View>,
    reports: u64,
}

impl Openings {
    /// Creates a run with two or three nodes, and one or three files.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6f70_656e);
        let (nodes, files) = (random.between(2, 3) as usize, *random.pick(&[1, 3]));
        let (_, profile) = *random.pick(&Profile::ALL);
        let mut world = World::new(seed, nodes, &vec![None; files], profile, None);
        (world.proofs, world.rests, world.has_rival) = (random.percent(50), true, true);
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
        match self.random.below(12) {
            0..=4 => self.decide()?,
            5..=7 => self.tell(node),
            8 => {
                let file = self.random.below(self.world.files.len() as u64) as usize;
                self.world.files[file].outbid(RIVAL, Some(&self.chosen), None);
            }
            9 => {
                self.world.crash(node);
                let Profile { kill_margin, heartbeat, .. } = self.world.profile;
                let after = self.random.between(kill_margin.0, kill_margin.0 + heartbeat.0);
                self.world.engine.schedule(after, None, MembershipEvent::Start(node));
            }
            10 => {
                let pause = self.random.below(2 * self.world.profile.lease.0);
                self.world.pause(node, pause);
            }
            _ => {
                // The other nodes receive either nothing of it or all of it again.
                let cut = self.random.percent(50);
                self.world.cut[node].iter_mut().for_each(|way| *way = cut);
            }
        }
        let after = self.while_ns();
        self.run(after)
    }

    /// Decides the next view, of any nodes that run. It is written to one file after the other, and
    /// is chosen once it is in most files.
    fn decide(&mut self) -> Result<(), Broken> {
        let mut seats = self.chosen.seats;
        for (node, one) in self.world.nodes.iter().enumerate() {
            let incarnation = Incarnation(one.incarnation);
            let may_be = one.member.is_some() && !self.chosen.is_past(NodeId(node as u8), incarnation);
            let seat = &mut seats[node];
            *seat = match *seat {
                Seat::In(incarnation) if self.random.percent(35) => Seat::Out(incarnation),
                Seat::Out(_) | Seat::In(_) if may_be && self.random.percent(60) => Seat::In(incarnation),
                seat => seat,
            };
        }
        let no_member = seats.iter().all(|seat| !matches!(seat, Seat::In(_)));
        if seats == self.chosen.seats || no_member {
            return Ok(());
        }
        let view = self.chosen.next(seats, self.chosen.files.clone(), &[Clean::NONE; MAX_NODES]);
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
        let report = Report {
            node: RIVAL,
            incarnation: Incarnation(1),
            counter: self.reports,
            opened: Epoch(0),
            hears: NodeSet::EMPTY,
            reaches: false,
            leaving: false,
            lease: self.world.profile.lease,
            registry: 0,
            dead: [Incarnation(0); MAX_NODES],
            clean: [Clean::NONE; MAX_NODES],
            decided: Arc::clone(&self.chosen),
        };
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
