//! The copies of one node on two disks that fail, with crashes at any step.
//!
//! After every crash, the content found is complete, one of those that were to be saved, and no
//! older than the last reported one. After healing both copies are equal and hold the last content
//! to save.

use std::{collections::VecDeque, sync::Arc};

use plexus_registry::protocol::{
    Action, COPIES, Change, ClusterName, Contents, Event, Found, Key, Kind, Step, Store, encode, open,
};

use plexus_sim::Random;

use super::disks::{Disks, Faults};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation, chance::Chance},
};

const CLUSTER: ClusterName = ClusterName(7);
/// The number of steps in which healed copies must come to rest.
const REST: usize = 100;

/// The parameters of a run.
#[derive(Clone, Copy)]
pub struct Plan {
    /// The number of contents to save.
    pub saves: u64,
    /// The failing steps and disks.
    pub faults: Faults,
    /// The number of steps, of a thousand, that are followed by a crash.
    pub crash: u64,
    /// The number of steps, of a thousand, that are followed by the loss of a copy while both are
    /// good.
    pub damage: u64,
}

/// One node and its disks.
pub struct Copies {
    plan: Plan,
    chance: Chance,
    disks: Disks,
    store: Store,
    actions: VecDeque<Action>,
    step: Option<(usize, Step)>,
    /// The last generation to save, and the last one reported.
    newest: u64,
    reported: u64,
    /// The last generation that this process has reported.
    in_this_incarnation: u64,
    /// The damaged copy, until it is written again.
    damaged: Option<(usize, u64)>,
    /// The digest of all events.
    digest: u64,
    /// The number of disk steps.
    steps: u64,
    crashes: u64,
    /// The number of reported saves.
    saved: u64,
}

impl Simulation for Copies {
    fn now(&self) -> u64 {
        self.steps
    }

    fn drive(&mut self) -> Result<Outcome, Broken> {
        self.run().map_err(|what| Broken::general("registry", what))?;
        let Self { digest, steps, saved, crashes, .. } = *self;
        let outcome = Outcome { digest, events: steps, operations: saved, ..Outcome::default() };
        Ok(outcome.with([("crashes", crashes)]))
    }
}

impl Copies {
    /// Creates a history drawn from a seed.
    pub fn drawn(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan {
            saves: random.between(5, 60),
            faults: Faults { step: *random.pick(&[0, 20, 150]), disk: *random.pick(&[0, 5, 30]) },
            crash: *random.pick(&[0, 20, 100]),
            damage: *random.pick(&[0, 20]),
        };
        Self { digest: seed, ..Self::new(plan, Chance::Drawn(random)) }
    }

    /// Creates a node with empty disks.
    pub fn new(plan: Plan, chance: Chance) -> Self {
        Self {
            plan,
            chance,
            disks: Disks::new(plan.faults),
            store: Store::new([None; COPIES]),
            actions: VecDeque::new(),
            step: None,
            newest: 0,
            reported: 0,
            in_this_incarnation: 0,
            damaged: None,
            digest: 0,
            steps: 0,
            crashes: 0,
            saved: 0,
        }
    }

    /// Returns the decisions, for the next run.
    pub fn into_chance(self) -> Chance {
        self.chance
    }

    /// Runs the plan, heals everything, and checks the result.
    ///
    /// # Errors
    /// The property that does not hold.
    pub fn run(&mut self) -> Result<(), String> {
        let mut saves = self.plan.saves;
        while saves > 0 || self.step.is_some() {
            let (now, repair) = match &mut self.chance {
                Chance::Drawn(random) => (random.percent(30), random.percent(10)),
                // The third comes while the second is saved.
                Chance::Every { .. } => (self.newest == 2, false),
            };
            if saves > 0 && (now || self.step.is_none()) && !repair {
                saves -= 1;
                self.save()?;
            } else if self.step.is_none() {
                self.handle(Event::Repair)?;
            }
            self.advance()?;
        }
        self.heal()
    }

    fn save(&mut self) -> Result<(), String> {
        self.newest += 1;
        self.handle(Event::Save(Arc::new(contents(self.newest))))
    }

    /// Carries out the current step, sometimes followed by a crash.
    fn advance(&mut self) -> Result<(), String> {
        if let Some((copy, step)) = self.step.take() {
            let succeeded = self.disks.step(copy, &step, &mut self.chance);
            self.steps += 1;
            self.digest = self.digest.wrapping_mul(31).wrapping_add(copy as u64 * 2 + u64::from(succeeded));
            match self.chance.fault(self.plan.crash, 2) {
                0 => self.handle(Event::Stepped(succeeded))?,
                kind => self.crash(kind == 2)?,
            }
        }
        self.damage();
        Ok(())
    }

    fn heal(&mut self) -> Result<(), String> {
        (self.disks.faults, self.plan.crash, self.plan.damage) = (Faults { step: 0, disk: 0 }, 0, 0);
        if let Chance::Every { left, .. } = &mut self.chance {
            *left = 0;
        }
        // A copy that was damaged meanwhile is found at a start.
        self.crash(false)?;
        self.save()?;
        for _ in 0..REST {
            if self.step.is_none() {
                self.handle(Event::Repair)?;
            }
            self.advance()?;
        }
        let image = Found::Bytes(encode(Kind::Copy, &contents(self.newest)));
        if self.step.is_some() || self.reported != self.newest {
            return Err("does not come to rest".into());
        }
        match self.disks.found().iter().position(|copy| *copy != image) {
            Some(copy) => Err(format!("healed, but copy {copy} does not hold generation {}", self.newest)),
            None => Ok(()),
        }
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let actions = &mut self.actions;
        self.store.handle(event, &mut |action| actions.push_back(action));
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Step(copy, step) => {
                    if self.step.replace((copy, step)).is_some() {
                        return Err("two steps at once".into());
                    }
                }
                Action::Saved(generation) => {
                    if generation <= self.reported || generation > self.newest {
                        return Err(format!("{generation} is reported after {}", self.reported));
                    }
                    (self.reported, self.in_this_incarnation) = (generation, generation);
                    self.saved += 1;
                }
            }
        }
        let is_repaired =
            |(copy, at)| self.store.is_whole()[copy] && self.newest > at && !self.store.is_busy();
        self.damaged = self.damaged.filter(|damaged| !is_repaired(*damaged));
        Ok(())
    }

    /// Ends the process at this moment; a new one opens the files that it finds.
    fn crash(&mut self, power: bool) -> Result<(), String> {
        self.crashes += 1;
        (self.step, self.in_this_incarnation) = (None, 0);
        self.disks.process_ends();
        if power {
            self.disks.power_fails(&mut self.chance);
        }
        let opened = open(CLUSTER, &self.disks.found()).map_err(|error| error.to_string())?;
        let generation = opened.contents.generation();
        if opened.is_lost || generation < self.reported {
            return Err(format!("generation {} was reported as saved, {generation} is there", self.reported));
        }
        if opened.contents != contents(generation) {
            return Err(format!("generation {generation} was found but never written"));
        }
        self.store = Store::new(opened.holds);
        Ok(())
    }

    /// Damages one copy if both are good: the protocol does not promise more.
    fn damage(&mut self) {
        let is_good = self.store.is_whole() == [true; COPIES] && self.in_this_incarnation == self.newest;
        if self.damaged.is_some() || !is_good || self.store.is_busy() {
            return;
        }
        let kind = self.chance.fault(self.plan.damage, COPIES);
        if kind > 0 {
            self.disks.damage(kind - 1, &mut self.chance);
            self.damaged = Some((kind - 1, self.newest));
        }
    }
}

/// Returns the contents of a generation.
fn contents(generation: u64) -> Contents {
    let mut contents = Contents::new(CLUSTER);
    if generation > 0 {
        let value = generation.to_le_bytes().repeat(1 + generation as usize % 20);
        let change = Change::set(Key::new("a").expect("a key"), &value);
        contents.change(generation, None, &change).expect("it fits");
    }
    contents
}
