//! The store of one node over two disks that fail, with crashes at any step.
//!
//! After every step: what is shown is what the answers say, in order of generations. After every crash: what was answered as done is
//! there; what was not is there whole or not at all; a numbered operation that is sent again is done once; generations
//! do not go back. When everything is healed both copies hold the same, and that is what is shown.

use std::{collections::VecDeque, sync::Arc};

use plexus_registry::protocol::{
    Action, COPIES, ClusterName, Event, Failed, Found, Kind, Refused, Step, Store, Ticket, encode,
};

use super::{
    chance::Chance,
    disks::{Disks, Faults},
    model::{Op, State, UNTOLD, origin},
};

const CLUSTER: ClusterName = ClusterName(7);
/// Steps in which what is healed must have come to rest.
const REST: usize = 100;

/// What is varied.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Operations asked for, in all.
    pub operations: u64,
    /// Keys that there are.
    pub keys: u64,
    /// Failing steps and disks.
    pub faults: Faults,
    /// Of a thousand steps, so many are followed by a crash.
    pub crash: u64,
    /// Of a thousand steps, so many are followed by the loss of a copy, when both are good.
    pub damage: u64,
}

struct Asked {
    ticket: Ticket,
    op: Op,
    number: Option<u64>,
}

/// One node and its disks.
pub struct Copies {
    plan: Plan,
    chance: Chance,
    disks: Disks,
    store: Option<Store>,
    actions: VecDeque<Action>,
    step: Option<(usize, Step)>,
    asked: VecDeque<Asked>,
    /// What is shown, and its generation.
    shown: (u64, State),
    /// What may come to light at the next start instead: from saves that failed or were cut short.
    maybe: Vec<State>,
    backup: Option<Op>,
    /// The last operation that had a number.
    numbered: Option<Op>,
    numbers: u64,
    tickets: u64,
    damaged: Option<(usize, u64)>,
    /// Of all that happened.
    pub digest: u64,
    /// Steps of disks.
    pub steps: u64,
    /// Crashes there were.
    pub crashes: u64,
    /// Operations answered as done.
    pub done: u64,
}

impl Copies {
    /// A new registry, made before anything fails.
    ///
    /// # Errors
    /// It is not made.
    pub fn new(plan: Plan, chance: Chance) -> Result<Self, String> {
        let calm = Faults { step: 0, disk: 0 };
        let mut copies = Self {
            plan: Plan { faults: calm, crash: 0, damage: 0, ..plan },
            chance,
            disks: Disks::new(calm),
            store: None,
            actions: VecDeque::new(),
            step: None,
            asked: VecDeque::new(),
            shown: (0, State::default()),
            maybe: Vec::new(),
            backup: None,
            numbered: None,
            numbers: 0,
            tickets: 0,
            damaged: None,
            digest: 0,
            steps: 0,
            crashes: 0,
            done: 0,
        };
        let actions = &mut copies.actions;
        copies.store = Some(Store::create(CLUSTER, &mut |action| actions.push_back(action)));
        copies.settle()?;
        (copies.disks.faults, copies.plan) = (plan.faults, plan);
        Ok(copies)
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
        let mut operations = self.plan.operations;
        while operations > 0 || self.step.is_some() {
            let ready = self.store.as_ref().is_some_and(Store::is_ready);
            let (now, repair) = match &mut self.chance {
                Chance::Drawn(random) => (random.percent(30), random.percent(10)),
                // The third comes while the second is saved.
                Chance::Every { .. } => (self.tickets == 2, false),
            };
            if ready && operations > 0 && (now || self.step.is_none()) && !repair {
                operations -= 1;
                self.ask()?;
            } else if self.step.is_none() {
                self.handle(Event::Repair)?;
            }
            self.advance()?;
        }
        self.heal()
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
        self.settle()?;
        self.handle(Event::Repair)?;
        self.settle()?;
        let store = self.store.as_ref().ok_or("no store")?;
        let image = Found::Bytes(encode(Kind::Copy, store.contents()));
        let found = self.disks.found();
        if found.iter().any(|copy| *copy != image) || store.holds() != [Some(self.shown.0); COPIES] {
            return Err(format!(
                "healed, but the copies hold {:?}, generation {} is shown",
                store.holds(),
                self.shown.0
            ));
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), String> {
        self.drain()?;
        for _ in 0..REST {
            if self.step.is_none() && self.store.as_ref().is_some_and(Store::is_ready) {
                return Ok(());
            }
            if self.step.is_none() {
                self.handle(Event::Repair)?;
            }
            self.advance()?;
        }
        Err("does not come to rest".into())
    }

    fn ask(&mut self) -> Result<(), String> {
        let (op, number) = self.draw();
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let command = op.command();
        self.asked.push_back(Asked { ticket, op, number });
        self.handle(Event::Submit { ticket, origin: number.map(origin), command })
    }

    /// What is asked for next: values are the number of the operation, so each is seen once.
    fn draw(&mut self) -> (Op, Option<u64>) {
        let value = self.tickets + 1;
        let Chance::Drawn(random) = &mut self.chance else {
            // The same short history each time: one key, then both and a comparison, then the second again under its number.
            return match value {
                1 => (Op::Edits(vec![(0, None, Some(1))]), None),
                2 => {
                    self.numbers = 1;
                    let op = Op::Edits(vec![(0, None, Some(2)), (1, Some(0), Some(2))]);
                    self.numbered = Some(op.clone());
                    (op, Some(1))
                }
                _ => (self.numbered.clone().expect("the second"), Some(1)),
            };
        };
        match random.below(20) {
            0 => {
                let store = self.store.as_ref().expect("running");
                self.backup = Some(Op::Restore(self.shown.1.keys.clone(), Arc::clone(store.contents())));
            }
            1 => {
                if let Some(backup) = self.backup.take() {
                    return (backup, None);
                }
            }
            2..5 => {
                if let Some(op) = &self.numbered {
                    return (op.clone(), Some(self.numbers));
                }
            }
            _ => {}
        }
        let first = random.below(self.plan.keys);
        let parts = (0..random.between(1, self.plan.keys)).map(|n| {
            let key = (first + n) % self.plan.keys;
            let version = self.shown.1.keys.get(&key).map_or(0, |(_, version)| *version);
            let expect = random.percent(30).then_some(version);
            (key, expect, (!random.percent(15)).then_some(value))
        });
        let op = Op::Edits(parts.collect());
        // One numbered operation at a time: the next when the last was answered.
        let last = Some(self.numbers);
        if random.percent(40) && self.asked.iter().all(|asked| asked.number != last) {
            self.numbers += 1;
            self.numbered = Some(op.clone());
            return (op, Some(self.numbers));
        }
        (op, None)
    }

    fn handle(&mut self, event: Event) -> Result<(), String> {
        let (store, actions) = (self.store.as_mut().expect("running"), &mut self.actions);
        store.handle(event, &mut |action| actions.push_back(action));
        self.drain()
    }

    /// Takes what the store said, and compares what it shows with what it answered.
    fn drain(&mut self) -> Result<(), String> {
        let mut now = self.shown.clone();
        let (mut failed, mut changes) = (None, VecDeque::new());
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Step(copy, step) => {
                    if self.step.replace((copy, step)).is_some() {
                        return Err("two steps at once".into());
                    }
                }
                Action::Changed(changed) => changes.push_back(changed.generation),
                Action::Answer(ticket, result) => {
                    let asked = self.asked.pop_front().filter(|asked| asked.ticket == ticket);
                    let Asked { op, number, .. } = asked.ok_or("answered out of turn")?;
                    let before = now.1.done(number);
                    match result {
                        Ok(generation) if before.is_some() => {
                            if before != Some(generation) {
                                return Err(format!("sent again: {generation}, not {before:?}"));
                            }
                        }
                        Ok(generation) => {
                            if generation <= now.0 || changes.pop_front() != Some(generation) {
                                return Err(format!("generation {generation} after {}", now.0));
                            }
                            if !now.1.apply(&op, number, generation) {
                                return Err(format!(
                                    "{op:?} is done, but its versions do not fit {:?}",
                                    now.1
                                ));
                            }
                            now.0 = generation;
                            self.done += 1;
                        }
                        Err(Failed::Refused(Refused::Version { .. })) => {
                            if before.is_some() || now.1.clone().apply(&op, number, UNTOLD) {
                                return Err(format!("{op:?} is refused, but it fits {:?}", now.1));
                            }
                        }
                        Err(Failed::Unsaved { .. }) => {
                            let state: &mut State = failed.get_or_insert(self.shown.1.clone());
                            if state.done(number).is_none() {
                                state.apply(&op, number, UNTOLD);
                            }
                        }
                        Err(error) => return Err(format!("{op:?}: {error}")),
                    }
                }
            }
        }
        if !changes.is_empty() {
            return Err(format!("changes {changes:?} that nobody asked for"));
        }
        self.maybe.extend(failed);
        self.look(now)
    }

    fn look(&mut self, mut now: (u64, State)) -> Result<(), String> {
        let Some(store) = self.store.as_ref().filter(|store| store.is_ready()) else { return Ok(()) };
        let contents = store.contents();
        let seen = State::of(contents, self.numbers);
        let (newer, generation) = (contents.generation() > self.shown.0, contents.generation());
        if generation < now.0 {
            return Err(format!("generation {generation} is shown after {}", now.0));
        }
        if newer && generation > now.0 && now.0 == self.shown.0 {
            // A start, or a repair that was put above what a failed save may have left.
            let lawful = now.1.agrees(&seen) || self.maybe.iter().any(|maybe| maybe.agrees(&seen));
            if !lawful {
                return Err(format!("{seen:?} came to light; lawful: {:?} and {:?}", now.1, self.maybe));
            }
            now = (generation, seen.clone());
        }
        if now.1 != seen || now.0 != generation {
            return Err(format!("shown: {generation} {seen:?}, answered: {now:?}"));
        }
        if newer {
            self.maybe.clear();
        }
        if let Some((copy, at)) = self.damaged
            && store.holds()[copy].is_some_and(|holds| holds > at)
        {
            self.damaged = None;
        }
        self.shown = now;
        Ok(())
    }

    /// Everything ends at this moment; a new process opens what it finds.
    fn crash(&mut self, power: bool) -> Result<(), String> {
        self.crashes += 1;
        // What waited may have been saved, up to any point.
        let mut state = self.shown.1.clone();
        for Asked { op, number, .. } in std::mem::take(&mut self.asked) {
            if state.done(number).is_none() && state.apply(&op, number, UNTOLD) {
                self.maybe.push(state.clone());
            }
        }
        (self.store, self.step) = (None, None);
        self.actions.clear();
        self.disks.process_ends();
        if power {
            self.disks.power_fails(&mut self.chance);
        }
        let known = if self.chance.of(2) == 0 { self.shown.0 } else { 0 };
        let actions = &mut self.actions;
        let opened = Store::open(CLUSTER, known, self.disks.found(), &mut |action| actions.push_back(action));
        self.store = Some(opened.map_err(|error| error.to_string())?);
        self.drain()
    }

    /// Spoils one copy, if both are good: more than one at a time is not promised.
    fn damage(&mut self) {
        let Some(store) = self.store.as_ref().filter(|store| store.is_ready() && !store.is_busy()) else {
            return;
        };
        if self.damaged.is_some() || store.holds() != [Some(self.shown.0); COPIES] {
            return;
        }
        let kind = self.chance.fault(self.plan.damage, COPIES);
        if kind > 0 {
            self.disks.damage(kind - 1, &mut self.chance);
            self.damaged = Some((kind - 1, self.shown.0));
        }
    }
}
