//! How contents become durable in two copies.
//!
//! A *save* writes all contents to one copy and then to the other: to a new file, which is synced
//! and takes the name of the copy; then the directory is synced. Contents that come meanwhile wait,
//! and only the newest of them are saved.
//!
//! Guarantees:
//!
//! - A copy is replaced by one atomic step, and never both copies at once; the one that holds the
//!   newest generation comes last. So there is always a whole copy of the newest generation or the
//!   one before it.
//! - Contents are reported as saved when they are durable in at least one copy, and the other copy
//!   holds them too or has failed.
//! - After a failed step the new file is written from its start: a repeated sync may report data as
//!   written that the system has dropped.
//!
//! Contents of one generation are the same on all nodes. The driver carries out one [`Step`] at a
//! time and reports it. Must not know files, nor the meaning of contents.

use std::{collections::VecDeque, sync::Arc};

use super::{Contents, Kind, encode};

/// The number of copies on a node.
pub const COPIES: usize = 2;

/// An operation on a copy. Each may fail and may still have taken effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Write these bytes to the new file beside the copy, in place of what is there.
    Write(Arc<[u8]>),
    /// Make the new file durable.
    Sync,
    /// Give the new file the name of the copy, which it replaces.
    Replace,
    /// Make the name durable.
    SyncName,
}

/// An input of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// There are newer contents.
    Save(Arc<Contents>),
    /// The last step has ended; true if it succeeded.
    Stepped(bool),
    /// Time to try a failed copy again.
    Repair,
}

/// An output of the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Carry out this step on a copy and report it.
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

/// The state of the two copies of one node.
pub struct Store {
    /// The newest contents, which the copies should hold.
    newest: Option<Arc<Contents>>,
    /// The generation that each copy is known to hold.
    holds: [Option<u64>; COPIES],
    save: Option<Save>,
    /// The last generation that was reported as saved.
    saved: u64,
}

impl Store {
    /// Creates the store of copies with these generations; `None` for a copy that is not whole. It
    /// writes nothing before the first save.
    pub fn new(holds: [Option<u64>; COPIES]) -> Self {
        Self { newest: None, holds, save: None, saved: 0 }
    }

    /// True while a step is under way.
    pub fn is_busy(&self) -> bool {
        self.save.is_some()
    }

    /// Returns, for each copy, whether it holds the newest contents.
    pub fn is_whole(&self) -> [bool; COPIES] {
        let newest = self.newest.as_ref().map(|contents| contents.generation);
        self.holds.map(|holds| newest.is_none_or(|newest| holds == Some(newest)))
    }

    /// Handles an event and returns the resulting actions through `out`.
    ///
    /// # Panics
    /// The contents to be saved are not newer than the last, or a step is reported that was not
    /// requested.
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
                    // Until the name is durable the copy may hold either contents.
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
        // After a failure the store waits before it tries again.
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

    /// Handles an event; returns the copy whose step is requested, and the generation reported as
    /// saved.
    fn handle(store: &mut Store, event: Event) -> (Option<usize>, Option<u64>) {
        let (mut copy, mut saved) = (None, None);
        store.handle(event, &mut |action| match action {
            Action::Step(at, _) => copy = Some(at),
            Action::Saved(generation) => saved = Some(generation),
        });
        (copy, saved)
    }

    /// Carries out a save in which the `sick` copies fail. Returns the order of copies and the
    /// saved generation.
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
    fn contents_are_not_saved_before_they_are_durable_in_one_copy() {
        let mut store = Store::new([None; COPIES]);
        assert_eq!(save(&mut store, Event::Save(contents(1)), [true; COPIES]), (vec![0, 1], None));
        assert_eq!(save(&mut store, Event::Repair, [true; COPIES]), (vec![0, 1], None));
        assert_eq!(save(&mut store, Event::Repair, [true, false]), (vec![0, 1], Some(1)));
        // The generation was reported before.
        assert_eq!(save(&mut store, Event::Repair, [false; COPIES]), (vec![0], None));
        assert_eq!(save(&mut store, Event::Repair, [false; COPIES]), (vec![], None));
    }

    #[test]
    fn the_newest_contents_that_come_during_a_save_are_saved_next() {
        let mut store = Store::new([None; COPIES]);
        handle(&mut store, Event::Save(contents(1)));
        assert_eq!(handle(&mut store, Event::Save(contents(2))), (None, None));
        assert_eq!(handle(&mut store, Event::Save(contents(3))), (None, None));
        let said: Vec<u64> = (0..16).filter_map(|_| handle(&mut store, Event::Stepped(true)).1).collect();
        assert_eq!(said, [1, 3]);
        assert!(!store.is_busy());
    }
}
