//! Who waits for a resource, in the order in which they are served: conversions, then new locks, each first come, first served; and who of its holders
//! need not be told of that any more.
//!
//! Anybody can be found and can leave at the price of a search, however many wait.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Mode,
    resource::{Waiter, Who},
};

/// Which of the two queues, conversions first; and the number in it.
type QueuePosition = (bool, u64);

/// The two queues of a resource, one behind the other. Nothing but a word where nobody has waited yet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Queue(Option<Box<Lines>>);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Lines {
    line: BTreeMap<QueuePosition, Waiter>,
    places: BTreeMap<Who, QueuePosition>,
    /// Those that must not wait.
    attempts: BTreeSet<QueuePosition>,
    last: u64,
    told: NotifiedHolders,
}

/// Which holders were told that others wait.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NotifiedHolders {
    /// The first of the queue, and the mode that it wants: all that held then and stand in its way were told.
    pub(super) of: Option<(Who, Mode)>,
    /// Who was granted since.
    pub(super) fresh: Vec<Who>,
}

impl Queue {
    fn lines(&self) -> Option<&Lines> {
        self.0.as_deref()
    }

    pub(super) fn len(&self) -> usize {
        self.lines().map_or(0, |lines| lines.line.len())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nobody waits for a new lock.
    pub(super) fn has_no_new(&self) -> bool {
        let last = self.lines().and_then(|lines| lines.line.last_key_value());
        last.is_none_or(|((new, _), _)| !new)
    }

    /// All, the first first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.lines().into_iter().flat_map(|lines| lines.line.values())
    }

    /// Those that convert, or those that want a new lock.
    pub(super) fn part(&self, new: bool) -> impl Iterator<Item = &Waiter> {
        let lines = self.lines().into_iter();
        lines.flat_map(move |lines| lines.line.range((new, 0)..=(new, u64::MAX))).map(|(_, waiter)| waiter)
    }

    /// The first, and whether it wants a new lock.
    pub(super) fn first(&self) -> Option<(&Waiter, bool)> {
        let ((new, _), waiter) = self.lines()?.line.first_key_value()?;
        Some((waiter, *new))
    }

    /// Which holders were told of them; nothing where nobody has waited yet.
    pub(super) fn told(&mut self) -> Option<&mut NotifiedHolders> {
        self.0.as_mut().map(|lines| &mut lines.told)
    }

    pub(super) fn find(&self, who: Who) -> Option<&Waiter> {
        let lines = self.lines()?;
        lines.line.get(lines.places.get(&who)?)
    }

    /// Joins the end of the conversions, or of all.
    pub(super) fn add(&mut self, new: bool, waiter: Waiter) {
        self.0.get_or_insert_default().add(new, waiter);
    }

    pub(super) fn remove(&mut self, who: Who) -> Option<Waiter> {
        let lines = self.0.as_mut()?;
        let place = lines.places.remove(&who)?;
        lines.attempts.remove(&place);
        lines.line.remove(&place)
    }

    /// Takes out those that must not wait.
    pub(super) fn take_attempts(&mut self) -> Vec<Waiter> {
        let Some(Lines { line, places, attempts, .. }) = self.0.as_deref_mut() else { return Vec::new() };
        let attempts = std::mem::take(attempts);
        let taken: Vec<Waiter> = attempts.iter().filter_map(|place| line.remove(place)).collect();
        for waiter in &taken {
            places.remove(&waiter.who);
        }
        taken
    }

    /// Brings both queues into the order of their waiting.
    pub(super) fn sort(&mut self) {
        let line = self.0.take().unwrap_or_default().line;
        let mut all: Vec<(bool, Waiter)> = line.into_iter().map(|((new, _), waiter)| (new, waiter)).collect();
        all.sort_by_key(|(new, waiter)| (*new, waiter.since, waiter.who));
        for (new, waiter) in all {
            self.add(new, waiter);
        }
    }
}

impl Lines {
    fn add(&mut self, new: bool, waiter: Waiter) {
        self.last += 1;
        let place = (new, self.last);
        self.places.insert(waiter.who, place);
        if waiter.attempt {
            self.attempts.insert(place);
        }
        self.line.insert(place, waiter);
    }
}
