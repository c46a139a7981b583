//! How changes become durable in two copies.
//!
//! A *save* writes all contents to one copy and then to the other: to a new file, synced, which then takes the copy's name, and
//! the directory synced. All changes that wait go into the next save, each with a generation of its own.
//!
//! Guarantees:
//! - A copy is replaced by one step that happens or does not, and never both copies at once; the one that holds the newest
//!   generation comes last. So at every moment one whole copy of the newest or the generation before it stands.
//! - A command is answered as done when its save is durable in one copy at least, and the other holds it too or has failed.
//!   Nothing is shown before.
//! - A save that fails in both copies may have reached a disk. Its generation is never used again, so that whatever comes to light
//!   after a crash is recognised as older than what was saved later.
//! - What is found when the registry is opened is made durable before it is shown: a process that ended may have left it
//!   in the system's memory only.
//! - After a failed step the new file is begun afresh: a sync that is tried again may report as written what was dropped.
//!
//! Whoever drives it carries out one [`Step`] at a time, as told, and reports it. Must not know files, nor who asks.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Changed, ClusterName, Command, Contents, Found, Kind, Origin, Refused, Unopened, encode,
    limits::{QUEUED_BYTES_MAX, QUEUED_MAX},
    open::{choose, newest},
};

/// Copies that are kept.
pub const COPIES: usize = 2;

/// Finds the answer to a command; means nothing here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

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
    /// Make the copy that stands there durable, and its name.
    Confirm,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Somebody wants a command done.
    Submit {
        /// For the answer.
        ticket: Ticket,
        /// By which a command is recognised when it is sent again; done once only.
        origin: Option<Origin>,
        /// What.
        command: Command,
    },
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
    /// A command is over: the generation that it made, durable, or why not.
    Answer(Ticket, Result<u64, Failed>),
    /// This was done, in the order of generations; the contents show it.
    Changed(Changed),
}

/// Why a command was not done.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Failed {
    /// It cannot be done; nothing has changed.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Neither copy could be written.
    #[error(
        "neither copy of the registry can be written (generation {generation}): make room or mend the disks; whether the change was made is known after the next start or the next change"
    )]
    Unsaved {
        /// The generation of the save.
        generation: u64,
    },
}

struct Waiting {
    ticket: Ticket,
    origin: Option<Origin>,
    command: Command,
}

struct Save {
    next: Arc<Contents>,
    image: Arc<[u8]>,
    answers: Vec<(Ticket, Result<u64, Refused>)>,
    changes: Vec<Changed>,
    /// The copy under way.
    copy: usize,
    step: Step,
    /// The copies after it, and whether each needs only be confirmed.
    rest: VecDeque<(usize, bool)>,
}

/// The registry of one node: its contents, and two copies of them.
pub struct Store {
    contents: Arc<Contents>,
    /// The highest generation that a save ever had.
    used: u64,
    /// What each copy is known to hold, durable.
    holds: [Option<u64>; COPIES],
    queue: VecDeque<Waiting>,
    queued_bytes: usize,
    save: Option<Save>,
    /// Which copies were found to say just what the contents say, until these are durable: they need only be confirmed.
    found: [bool; COPIES],
    ready: bool,
}

impl Store {
    /// Opens the registry of `cluster` from what was found in its two places; `known` is the newest generation that the
    /// cluster remembers elsewhere (0: none). Nothing is shown before [`Store::is_ready`].
    ///
    /// # Errors
    /// Why neither copy is believed.
    pub fn open(
        cluster: ClusterName,
        known: u64,
        found: [Found; COPIES],
        out: &mut impl FnMut(Action),
    ) -> Result<Self, Unopened> {
        let (contents, found) = choose(cluster, known, found)?;
        Ok(Self::begin(contents, found, out))
    }

    /// A new registry, empty, whatever stands in its two places.
    pub fn create(cluster: ClusterName, out: &mut impl FnMut(Action)) -> Self {
        Self::begin(Contents::new(cluster), [false; COPIES], out)
    }

    /// Makes a registry of a backup, above all generations that are known or were found: for when [`Store::open`] fails.
    ///
    /// # Errors
    /// A copy belongs to somebody else, the backup to another cluster, or no generation is left.
    pub fn restore(
        cluster: ClusterName,
        known: u64,
        found: [Found; COPIES],
        backup: Arc<Contents>,
        out: &mut impl FnMut(Action),
    ) -> Result<Self, Unopened> {
        let above = newest(cluster, &found)?.max(known).max(backup.generation);
        let mut contents = Contents::new(cluster);
        contents.apply(above.saturating_add(1), None, &Command::Restore(backup))?;
        Ok(Self::begin(contents, [false; COPIES], out))
    }

    fn begin(contents: Contents, found: [bool; COPIES], out: &mut impl FnMut(Action)) -> Self {
        let mut store = Self {
            used: contents.generation,
            contents: Arc::new(contents),
            holds: [None; COPIES],
            queue: VecDeque::new(),
            queued_bytes: 0,
            save: None,
            found,
            ready: false,
        };
        store.save(Arc::clone(&store.contents), Vec::new(), Vec::new(), out);
        store
    }

    /// Whether what was opened is durable and may be shown.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether a step is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.save.is_some()
    }

    /// What is durable.
    ///
    /// # Panics
    /// When nothing is yet ([`Store::is_ready`]).
    #[must_use]
    pub fn contents(&self) -> &Arc<Contents> {
        assert!(self.ready, "nothing is shown before it is durable");
        &self.contents
    }

    /// The generation that each copy is known to hold; `None`: it failed.
    #[must_use]
    pub fn holds(&self) -> [Option<u64>; COPIES] {
        self.holds
    }

    /// Takes what happened and says what is to be done.
    ///
    /// # Panics
    /// A step is reported that was not given out.
    pub fn handle(&mut self, event: Event, out: &mut impl FnMut(Action)) {
        match event {
            Event::Submit { ticket, origin, command } => {
                self.queued_bytes += command.bytes();
                if self.queue.len() >= QUEUED_MAX || self.queued_bytes > QUEUED_BYTES_MAX {
                    self.queued_bytes -= command.bytes();
                    return out(Action::Answer(ticket, Err(Refused::Busy.into())));
                }
                self.queue.push_back(Waiting { ticket, origin, command });
            }
            Event::Stepped(succeeded) => self.stepped(succeeded, out),
            Event::Repair => self.repair(out),
        }
        self.next(out);
    }

    fn repair(&mut self, out: &mut impl FnMut(Action)) {
        let whole = self.holds.iter().all(|holds| *holds == Some(self.contents.generation));
        if whole || self.save.is_some() {
            return;
        }
        let mut next = Arc::clone(&self.contents);
        if self.used > next.generation {
            // What a failed save may have left in a copy must stay older than what is put over it.
            self.used += 1;
            Arc::make_mut(&mut next).generation = self.used;
        }
        self.save(next, Vec::new(), Vec::new(), out);
    }

    /// Begins a save of all that waits, if none is under way.
    fn next(&mut self, out: &mut impl FnMut(Action)) {
        if self.save.is_some() || !self.ready || self.queue.is_empty() {
            return;
        }
        let mut next = Contents::clone(&self.contents);
        self.queued_bytes = 0;
        let (mut answers, mut changes) = (Vec::new(), Vec::new());
        for Waiting { ticket, origin, command } in std::mem::take(&mut self.queue) {
            let before = origin.and_then(|origin| next.done(origin));
            let result = match before {
                Some(generation) => Ok(generation),
                None => next.apply(self.used.max(command.above()) + 1, origin, &command).map(|changed| {
                    self.used = changed.generation;
                    let generation = changed.generation;
                    changes.push(changed);
                    generation
                }),
            };
            answers.push((ticket, result));
        }
        if changes.is_empty() {
            // Every answer follows from what is durable.
            for (ticket, result) in answers {
                out(Action::Answer(ticket, result.map_err(Failed::Refused)));
            }
            return;
        }
        self.save(Arc::new(next), answers, changes, out);
    }

    fn save(
        &mut self,
        next: Arc<Contents>,
        answers: Vec<(Ticket, Result<u64, Refused>)>,
        changes: Vec<Changed>,
        out: &mut impl FnMut(Action),
    ) {
        let generation = next.generation;
        let mut order: Vec<usize> =
            (0..COPIES).filter(|copy| self.holds[*copy] != Some(generation)).collect();
        // What stands is confirmed first; of what is replaced, the copy that holds the newest comes last.
        order.sort_by_key(|copy| (!self.found[*copy], self.holds[*copy]));
        let mut rest: VecDeque<_> = order.into_iter().map(|copy| (copy, self.found[copy])).collect();
        let image: Arc<[u8]> = encode(Kind::Copy, &next).into();
        let (copy, confirm) = rest.pop_front().expect("a copy does not hold it yet");
        let step = first(confirm, &image);
        out(Action::Step(copy, step.clone()));
        self.save = Some(Save { next, image, answers, changes, copy, step, rest });
    }

    fn stepped(&mut self, succeeded: bool, out: &mut impl FnMut(Action)) {
        let save = self.save.as_mut().expect("a step was given out");
        let further = match save.step {
            Step::Write(_) => Some(Step::Sync),
            Step::Sync => Some(Step::Replace),
            Step::Replace => Some(Step::SyncName),
            Step::SyncName | Step::Confirm => None,
        };
        match further.filter(|_| succeeded) {
            Some(step) => {
                if step == Step::Replace {
                    // From here until its name is durable it may hold either.
                    (self.holds[save.copy], self.found[save.copy]) = (None, false);
                }
                save.step = step.clone();
                return out(Action::Step(save.copy, step));
            }
            None if succeeded => self.holds[save.copy] = Some(save.next.generation),
            None => {}
        }
        if let Some((copy, confirm)) = save.rest.pop_front() {
            save.copy = copy;
            save.step = first(confirm, &save.image);
            return out(Action::Step(copy, save.step.clone()));
        }
        self.saved(out);
    }

    fn saved(&mut self, out: &mut impl FnMut(Action)) {
        let Save { next, answers, changes, .. } = self.save.take().expect("a save is under way");
        let generation = next.generation;
        let durable = self.holds.contains(&Some(generation));
        if durable {
            self.found = [false; COPIES];
            self.contents = next;
            self.ready = true;
            changes.into_iter().for_each(|changed| out(Action::Changed(changed)));
        }
        for (ticket, result) in answers {
            let result =
                if durable { result.map_err(Failed::Refused) } else { Err(Failed::Unsaved { generation }) };
            out(Action::Answer(ticket, result));
        }
    }
}

fn first(confirm: bool, image: &Arc<[u8]>) -> Step {
    if confirm { Step::Confirm } else { Step::Write(Arc::clone(image)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Change, EDITS_MAX, Edit, Key, VALUE_MAX, What, decode};

    const CLUSTER: ClusterName = ClusterName(1);

    /// Has the store handle an event; the step that it gives out, and its answers.
    fn handle(store: &mut Store, event: Event) -> (Option<(usize, Step)>, Vec<Result<u64, Failed>>) {
        let (mut step, mut answers) = (None, Vec::new());
        store.handle(event, &mut |action| match action {
            Action::Step(copy, next) => step = Some((copy, next)),
            Action::Answer(_, result) => answers.push(result),
            Action::Changed(_) => {}
        });
        (step, answers)
    }

    fn created() -> Store {
        let mut store = Store::create(CLUSTER, &mut |_| ());
        while store.is_busy() {
            handle(&mut store, Event::Stepped(true));
        }
        assert!(store.is_ready());
        store
    }

    fn submit(change: Change) -> Event {
        Event::Submit { ticket: Ticket(0), origin: None, command: Command::Change(change) }
    }

    fn set(key: &str) -> Event {
        submit(Change::set(Key::new(key).unwrap(), b""))
    }

    #[test]
    fn a_repair_is_newer_than_what_a_failed_save_may_have_left() {
        let mut store = created();
        handle(&mut store, set("a"));
        // Written, synced, in its place, but for how long; and the other is not even written.
        for succeeded in [true, true, true, false] {
            handle(&mut store, Event::Stepped(succeeded));
        }
        let (_, answers) = handle(&mut store, Event::Stepped(false));
        assert_eq!(answers, [Err(Failed::Unsaved { generation: 1 })]);
        let (step, _) = handle(&mut store, Event::Repair);
        let Some((0, Step::Write(image))) = step else { panic!("{step:?}") };
        let put = decode(Kind::Copy, CLUSTER, &image).unwrap();
        assert_eq!((put.generation(), put.keys()), (2, 0));
    }

    #[test]
    fn the_copy_that_holds_the_newest_is_replaced_last() {
        let mut store = created();
        let (step, _) = handle(&mut store, set("a"));
        assert!(matches!(step, Some((0, Step::Write(_)))));
        // The first fails: only the second holds it.
        handle(&mut store, Event::Stepped(false));
        while store.is_busy() {
            handle(&mut store, Event::Stepped(true));
        }
        assert_eq!(store.holds(), [Some(0), Some(1)]);
        handle(&mut store, set("b"));
        while store.is_busy() {
            let first = store.holds()[0] != Some(2);
            handle(&mut store, Event::Stepped(first));
        }
        assert_eq!(store.holds(), [Some(2), Some(1)]);
        let (step, _) = handle(&mut store, set("c"));
        assert!(matches!(step, Some((1, Step::Write(_)))), "{step:?}");
    }

    #[test]
    fn what_waits_is_bounded_by_number_and_bytes() {
        let mut store = created();
        let busy = vec![Err(Failed::Refused(Refused::Busy))];
        for _ in 0..=QUEUED_MAX {
            assert_eq!(handle(&mut store, set("a")).1, []);
        }
        assert_eq!(handle(&mut store, set("a")).1, busy);

        let mut store = created();
        let value: Arc<[u8]> = vec![0; VALUE_MAX].into();
        let edit = |n| Edit {
            key: Key::new(&format!("{n}")).unwrap(),
            expect: None,
            what: What::Set(Arc::clone(&value)),
        };
        let large = Change((0..EDITS_MAX / 8).map(edit).collect());
        let taken = (0..).take_while(|_| handle(&mut store, submit(large.clone())).1.is_empty()).count();
        assert_eq!(taken, 4, "one is being saved, three of 8 MiB wait");
        assert_eq!(handle(&mut store, set("a")).1, [], "what is small still has room");
    }
}
