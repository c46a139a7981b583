//! How contents become durable in two copies.
//!
//! A *save* writes all contents to one copy and then to the other: to a new file, synced, which then takes the copy's name, and
//! the directory synced. Contents that come meanwhile wait; of several the newest is saved.
//!
//! Guarantees:
//! - A copy is replaced by one step that happens or does not, and never both copies at once; the one that holds the newest
//!   generation comes last. So at every moment one whole copy of the newest generation or one before it stands.
//! - Contents are reported as saved when they are durable in one copy at least, and the other holds them too or has failed.
//! - After a failed step the new file is begun afresh: a sync that is tried again may report as written what was dropped.
//!
//! Contents of one generation are the same wherever they are. Whoever drives it carries out one [`Step`] at a time, as told, and
//! reports it. Must not know files, nor what contents say.

use std::{collections::VecDeque, sync::Arc};

use super::{Contents, Kind, encode};

/// Copies that are kept.
pub const COPIES: usize = 2;

/// What is to be done to a copy. Each may fail and may then have happened all the same.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Make a new file beside the copy (instead of one that is left there) of these bytes.
    Write(Arc<[u8]>),
    /// Make the new file durable.
    Sync,
    /// Give it the name of the copy: it takes its place.
    Replace,
    /// Make the name durable.
    SyncName,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// There are newer contents.
    Save(Arc<Contents>),
    /// The step that was given out last is over; whether it succeeded.
    Stepped(bool),
    /// A while has passed: try a copy again that failed.
    Repair,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Do this to a copy and report it.
    Step(usize, Step),
    /// Everything up to this generation is durable.
    Saved(u64),
}

struct Save {
    generation: u64,
    image: Arc<[u8]>,
    /// The copy under way.
    copy: usize,
    step: Step,
    /// The copies after it.
    rest: VecDeque<usize>,
}

/// Keeps the two copies of one node.
pub struct Store {
    /// What the copies are to hold.
    newest: Option<Arc<Contents>>,
    /// The generation that each copy is known to hold.
    holds: [Option<u64>; COPIES],
    save: Option<Save>,
    /// The last generation that was reported as saved.
    saved: u64,
}

impl Store {
    /// Copies that hold these generations; `None`: nothing that is whole. Writes nothing before there is something to save.
    #[must_use]
    pub fn new(holds: [Option<u64>; COPIES]) -> Self {
        Self { newest: None, holds, save: None, saved: 0 }
    }

    /// Whether a step is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.save.is_some()
    }

    /// Whether each copy holds what it is to hold.
    #[must_use]
    pub fn is_whole(&self) -> [bool; COPIES] {
        let newest = self.newest.as_ref().map(|contents| contents.generation);
        self.holds.map(|holds| newest.is_none_or(|newest| holds == Some(newest)))
    }

    /// Takes what happened and says what is to be done.
    ///
    /// # Panics
    /// Contents are to be saved that are not newer than the last, or a step is reported that was not given out.
    pub fn handle(&mut self, event: Event, out: &mut impl FnMut(Action)) {
        match event {
            Event::Save(contents) => {
                let last = self.newest.as_ref().map(|newest| newest.generation);
                assert!(last < Some(contents.generation), "generations go up");
                self.newest = Some(contents);
                if self.save.is_none() {
                    self.begin(out);
                }
            }
            Event::Stepped(succeeded) => self.stepped(succeeded, out),
            Event::Repair if self.save.is_none() => self.begin(out),
            Event::Repair => {}
        }
    }

    /// Begins a save of the newest contents to the copies that lack them.
    fn begin(&mut self, out: &mut impl FnMut(Action)) {
        let Some(newest) = &self.newest else { return };
        let generation = newest.generation;
        let mut order: Vec<usize> =
            (0..COPIES).filter(|copy| self.holds[*copy] != Some(generation)).collect();
        order.sort_by_key(|copy| self.holds[*copy]);
        let mut rest = VecDeque::from(order);
        let Some(copy) = rest.pop_front() else { return };
        let image: Arc<[u8]> = encode(Kind::Copy, newest).into();
        let step = Step::Write(Arc::clone(&image));
        out(Action::Step(copy, step.clone()));
        self.save = Some(Save { generation, image, copy, step, rest });
    }

    fn stepped(&mut self, succeeded: bool, out: &mut impl FnMut(Action)) {
        let save = self.save.as_mut().expect("a step was given out");
        let further = match save.step {
            Step::Write(_) => Some(Step::Sync),
            Step::Sync => Some(Step::Replace),
            Step::Replace => Some(Step::SyncName),
            Step::SyncName => None,
        };
        match further.filter(|_| succeeded) {
            Some(step) => {
                if step == Step::Replace {
                    // From here until its name is durable it may hold either.
                    self.holds[save.copy] = None;
                }
                save.step = step.clone();
                return out(Action::Step(save.copy, step));
            }
            None if succeeded => self.holds[save.copy] = Some(save.generation),
            None => {}
        }
        if let Some(copy) = save.rest.pop_front() {
            (save.copy, save.step) = (copy, Step::Write(Arc::clone(&save.image)));
            return out(Action::Step(copy, save.step.clone()));
        }
        self.ended(out);
    }

    fn ended(&mut self, out: &mut impl FnMut(Action)) {
        let Save { generation, .. } = self.save.take().expect("a save is under way");
        if self.holds.contains(&Some(generation)) && generation > self.saved {
            self.saved = generation;
            out(Action::Saved(generation));
        }
        // After a failure a while must pass first.
        if self.newest.as_ref().is_some_and(|newest| newest.generation > generation) {
            self.begin(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ClusterName;

    fn contents(generation: u64) -> Arc<Contents> {
        let mut contents = Contents::new(ClusterName(1));
        contents.generation = generation;
        Arc::new(contents)
    }

    /// Has the store handle an event; the copy whose step it gives out, and what it reports as saved.
    fn handle(store: &mut Store, event: Event) -> (Option<usize>, Option<u64>) {
        let (mut copy, mut saved) = (None, None);
        store.handle(event, &mut |action| match action {
            Action::Step(at, _) => copy = Some(at),
            Action::Saved(generation) => saved = Some(generation),
        });
        (copy, saved)
    }

    /// Carries a save out; copies that are `sick` fail. The order of copies, and what was saved.
    fn save(store: &mut Store, event: Event, sick: [bool; COPIES]) -> (Vec<usize>, Option<u64>) {
        let (mut copy, mut saved) = handle(store, event);
        let mut order = Vec::new();
        while let Some(at) = copy {
            order.push(at);
            (copy, saved) = handle(store, Event::Stepped(!sick[at]));
        }
        order.dedup();
        (order, saved)
    }

    #[test]
    fn the_copy_that_holds_the_newest_is_replaced_last() {
        let mut store = Store::new([Some(4), Some(3)]);
        let well = [false; COPIES];
        assert_eq!(save(&mut store, Event::Save(contents(5)), well), (vec![1, 0], Some(5)));
        assert_eq!(save(&mut store, Event::Save(contents(6)), [true, false]), (vec![0, 1], Some(6)));
        assert_eq!(store.is_whole(), [false, true]);
        assert_eq!(save(&mut store, Event::Save(contents(7)), [false, true]), (vec![0, 1], Some(7)));
        assert_eq!(save(&mut store, Event::Save(contents(8)), well), (vec![1, 0], Some(8)));
    }

    #[test]
    fn what_is_durable_in_neither_is_not_saved_before_it_is() {
        let mut store = Store::new([None; COPIES]);
        assert_eq!(save(&mut store, Event::Save(contents(1)), [true; COPIES]), (vec![0, 1], None));
        assert_eq!(save(&mut store, Event::Repair, [true; COPIES]), (vec![0, 1], None));
        assert_eq!(save(&mut store, Event::Repair, [true, false]), (vec![0, 1], Some(1)));
        // It was said already.
        assert_eq!(save(&mut store, Event::Repair, [false; COPIES]), (vec![0], None));
        assert_eq!(save(&mut store, Event::Repair, [false; COPIES]), (vec![], None));
    }

    #[test]
    fn of_what_comes_during_a_save_the_newest_is_saved_next() {
        let mut store = Store::new([None; COPIES]);
        handle(&mut store, Event::Save(contents(1)));
        assert_eq!(handle(&mut store, Event::Save(contents(2))), (None, None));
        assert_eq!(handle(&mut store, Event::Save(contents(3))), (None, None));
        let said: Vec<u64> = (0..16).filter_map(|_| handle(&mut store, Event::Stepped(true)).1).collect();
        assert_eq!(said, [1, 3]);
        assert!(!store.is_busy());
    }
}
