//! The copies of one node on two disks that fail, with crashes at any step.
//!
//! After every crash what is found is whole, one of the contents that were to be saved, and no older than what was reported as saved. When
//! everything is healed both copies hold the same, and that is what was to be saved last.

use std::{collections::VecDeque, sync::Arc};

use plexus_registry::protocol::{
    Action, COPIES, Change, ClusterName, Contents, Event, Found, Key, Kind, Step, Store, encode, open,
};

use plexus_sim::Random;

use super::{
    chance::Chance,
    disks::{Disks, Faults},
};
use crate::{
    failure::Broken,
    harness::{Outcome, Simulation},
};

const CLUSTER: ClusterName = ClusterName(7);
/// Steps in which what is healed must have come to rest.
const REST: usize = 100;

/// What is varied.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Contents that are to be saved, in all.
    pub saves: u64,
    /// Failing steps and disks.
    pub faults: Faults,
    /// Of a thousand steps, so many are followed by a crash.
    pub crash: u64,
    /// Of a thousand steps, so many are followed by the loss of a copy, when both are good.
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
    /// The last generation that was to be saved, and the last that was reported.
    newest: u64,
    reported: u64,
    /// The last that this process has reported.
    in_this_incarnation: u64,
    /// The copy that was damaged, until it was written again.
    damaged: Option<(usize, u64)>,
    /// Of all that happened.
    digest: u64,
    /// Steps of disks.
    steps: u64,
    crashes: u64,
    /// Saves that were reported.
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
    /// A history drawn from a seed.
    #[must_use]
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

    /// Nothing on either disk.
    #[must_use]
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

    /// Gives the decisions back, for the next run.
    #[must_use]
    pub fn into_chance(self) -> Chance {
        self.chance
    }

    /// Runs everything, heals, and looks whether all is well.
    ///
    /// # Errors
    /// What is not.
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

    /// Carries out the step that is under way, and perhaps ends everything behind it.
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

    /// Everything ends at this moment; a new process opens what it finds.
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
            return Err(format!("what is found as generation {generation} was never written"));
        }
        self.store = Store::new(opened.holds);
        Ok(())
    }

    /// Spoils one copy, if both are good: more than one at a time is not promised.
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

/// The contents of a generation, as all know them.
fn contents(generation: u64) -> Contents {
    let mut contents = Contents::new(CLUSTER);
    if generation > 0 {
        let value = generation.to_le_bytes().repeat(1 + generation as usize % 20);
        let change = Change::set(Key::new("a").expect("a key"), &value);
        contents.change(generation, None, &change).expect("it fits");
    }
    contents
}
