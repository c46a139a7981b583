//! The queue of a resource in serving order, and the holders that were already notified of it.
//!
//! Conversions come first, then new locks, each first come, first served. Each waiter can be found
//! and removed in logarithmic time.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Mode,
    resource::{ClusterLockId, Waiter},
};

/// A position. Conversions come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct QueuePosition {
    /// True for a request for a new lock, false for a conversion.
    new: bool,
    number: u64,
}

/// The two queues of a resource, one behind the other. It takes one word until the first request
/// waits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Queue(Option<Box<Lines>>);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Lines {
    line: BTreeMap<QueuePosition, Waiter>,
    places: BTreeMap<ClusterLockId, QueuePosition>,
    /// The requests that may not wait.
    attempts: BTreeSet<QueuePosition>,
    last: u64,
    told: NotifiedHolders,
}

/// Which holders were notified that others wait.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct NotifiedHolders {
    /// The first of the queue and its mode: all holders of that time that block it were notified.
    pub(super) of: Option<(ClusterLockId, Mode)>,
    /// The locks that were granted since.
    pub(super) fresh: Vec<ClusterLockId>,
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

    /// True if no request for a new lock waits.
    pub(super) fn has_no_new(&self) -> bool {
        let last = self.lines().and_then(|lines| lines.line.last_key_value());
        last.is_none_or(|(position, _)| !position.new)
    }

    /// Returns all waiters in serving order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        self.lines().into_iter().flat_map(|lines| lines.line.values())
    }

    /// Returns the waiting conversions, or the waiting requests for new locks.
    pub(super) fn part(&self, new: bool) -> impl Iterator<Item = &Waiter> {
        let [first, last] = [0, u64::MAX].map(|number| QueuePosition { new, number });
        let lines = self.lines().into_iter();
        lines.flat_map(move |lines| lines.line.range(first..=last)).map(|(_, waiter)| waiter)
    }

    /// Returns the first waiter, and true if it wants a new lock.
    pub(super) fn first(&self) -> Option<(&Waiter, bool)> {
        let (position, waiter) = self.lines()?.line.first_key_value()?;
        Some((waiter, position.new))
    }

    /// Returns which holders were notified; `None` if no request has waited yet.
    pub(super) fn told(&mut self) -> Option<&mut NotifiedHolders> {
        self.0.as_mut().map(|lines| &mut lines.told)
    }

    pub(super) fn find(&self, who: ClusterLockId) -> Option<&Waiter> {
        let lines = self.lines()?;
        lines.line.get(lines.places.get(&who)?)
    }

    /// Adds a waiter at the end of the conversions or of the new locks.
    pub(super) fn add(&mut self, new: bool, waiter: Waiter) {
        self.0.get_or_insert_default().add(new, waiter);
    }

    pub(super) fn remove(&mut self, who: ClusterLockId) -> Option<Waiter> {
        let lines = self.0.as_mut()?;
        let place = lines.places.remove(&who)?;
        lines.attempts.remove(&place);
        lines.line.remove(&place)
    }

    /// Removes and returns the requests that may not wait.
    pub(super) fn take_attempts(&mut self) -> Vec<Waiter> {
        let Some(Lines { line, places, attempts, .. }) = self.0.as_deref_mut() else { return Vec::new() };
        let attempts = std::mem::take(attempts);
        let taken: Vec<Waiter> = attempts.iter().filter_map(|place| line.remove(place)).collect();
        for waiter in &taken {
            places.remove(&waiter.who);
        }
        taken
    }

    /// Sorts both queues by waiting time.
    pub(super) fn sort(&mut self) {
        let line = self.0.take().unwrap_or_default().line;
        let mut all: Vec<(QueuePosition, Waiter)> = line.into_iter().collect();
        all.sort_by_key(|(position, waiter)| (position.new, waiter.since, waiter.who));
        for (position, waiter) in all {
            self.add(position.new, waiter);
        }
    }
}

impl Lines {
    fn add(&mut self, new: bool, waiter: Waiter) {
        self.last += 1;
        let place = QueuePosition { new, number: self.last };
        self.places.insert(waiter.who, place);
        if waiter.attempt {
            self.attempts.insert(place);
        }
        self.line.insert(place, waiter);
    }
}
