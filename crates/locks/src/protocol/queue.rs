//! Who waits for a resource, in the order in which they are served: conversions, then new locks, each first come, first served.
//!
//! Anybody can be found and can leave at the price of a search, however many wait.

use std::collections::{BTreeMap, BTreeSet};

use super::resource::{Waiter, Who};

/// Which of the two queues, conversions first; and the number in it.
type Place = (bool, u64);

/// The two queues of a resource, one behind the other.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Queue {
    line: BTreeMap<Place, Waiter>,
    places: BTreeMap<Who, Place>,
    /// Those that must not wait.
    attempts: BTreeSet<Place>,
    last: u64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    /// Whether nobody waits for a new lock.
    pub(super) fn has_no_new(&self) -> bool {
        self.line.last_key_value().is_none_or(|((new, _), _)| !new)
    }

    /// All, the first first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.line.values()
    }

    /// Those that convert, or those that want a new lock.
    pub(super) fn part(&self, new: bool) -> impl Iterator<Item = &Waiter> {
        self.line.range((new, 0)..=(new, u64::MAX)).map(|(_, waiter)| waiter)
    }

    /// The first, and whether it wants a new lock.
    pub(super) fn first(&self) -> Option<(&Waiter, bool)> {
        self.line.first_key_value().map(|((new, _), waiter)| (waiter, *new))
    }

    pub(super) fn find(&self, who: Who) -> Option<&Waiter> {
        self.line.get(self.places.get(&who)?)
    }

    /// Joins the end of the conversions, or of all.
    pub(super) fn add(&mut self, new: bool, waiter: Waiter) {
        self.last += 1;
        let place = (new, self.last);
        self.places.insert(waiter.who, place);
        if waiter.attempt {
            self.attempts.insert(place);
        }
        self.line.insert(place, waiter);
    }

    pub(super) fn remove(&mut self, who: Who) -> Option<Waiter> {
        let place = self.places.remove(&who)?;
        self.attempts.remove(&place);
        self.line.remove(&place)
    }

    /// Takes out those that must not wait.
    pub(super) fn take_attempts(&mut self) -> Vec<Waiter> {
        let attempts = std::mem::take(&mut self.attempts);
        let taken: Vec<Waiter> = attempts.iter().filter_map(|place| self.line.remove(place)).collect();
        for waiter in &taken {
            self.places.remove(&waiter.who);
        }
        taken
    }

    /// Brings both queues into the order of their waiting.
    pub(super) fn sort(&mut self) {
        let line = std::mem::take(self).line;
        let mut all: Vec<(bool, Waiter)> = line.into_iter().map(|((new, _), waiter)| (new, waiter)).collect();
        all.sort_by_key(|(new, waiter)| (*new, waiter.since, waiter.who));
        for (new, waiter) in all {
            self.add(new, waiter);
        }
    }
}
