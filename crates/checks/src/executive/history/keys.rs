//! Judges registers with compare-and-set, each key by itself.
//!
//! The search is that of Wing and Gong (1993) with the memory of Lowe (2017). Starting from the
//! first operation, any operation may be the next if no other was answered before it was requested.
//! Its answer must match the register; otherwise another operation is tried. Each pair of completed
//! operations and register value is visited once. The search is bounded, and reports when it gives
//! up.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

/// The configurations visited for one key before the search gives up.
const MOST_LOOKS: usize = 2_000_000;

/// An operation on a key. Values are numbers, each written once in a history, or the search cannot
/// tell them apart; `None`: the key does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// A read, with its answer.
    Read(Option<u64>),
    /// A write of a value.
    Write(u64),
    /// A write on the condition that the key has a value. If the answer is unknown, `done` does not
    /// count.
    Swap {
        /// The required value.
        expected: Option<u64>,
        /// The new value.
        new: u64,
        /// True if the condition was met.
        done: bool,
    },
}

/// One operation of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Operation {
    /// The key.
    pub key: String,
    /// The operation and its result.
    pub op: Op,
    /// The time of the request.
    pub begin: u64,
    /// The time of the answer. `None`: never answered, so the operation may have happened or not.
    pub end: Option<u64>,
}

/// The reason why a history is not accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Judgement {
    /// No order of the operations explains the answers. Names the longest explained prefix and the
    /// operations that could not follow it.
    Impossible {
        /// The key.
        key: String,
        /// The number of answered operations explained.
        explained: usize,
        /// The operations of which one had to be next.
        stuck: Vec<Operation>,
    },
    /// The search gave up.
    Undecided {
        /// The key.
        key: String,
    },
}

impl fmt::Display for Judgement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Impossible { key, explained, stuck } => {
                write!(
                    f,
                    "{key:?}: no order explains the answers; after {explained} of them, none of these:"
                )?;
                stuck.iter().try_for_each(|operation| write!(f, "\n  {operation:?}"))
            }
            Self::Undecided { key } => write!(f, "{key:?}: undecided after {MOST_LOOKS} configurations"),
        }
    }
}

/// Checks that one server could have given these answers.
///
/// # Errors
/// The first key whose history is impossible or undecided.
pub fn check(operations: &[Operation]) -> Result<(), Judgement> {
    let mut keys: BTreeMap<&str, Vec<&Operation>> = BTreeMap::new();
    for operation in operations {
        keys.entry(&operation.key).or_default().push(operation);
    }
    keys.into_iter().try_for_each(|(key, operations)| Search::new(key, operations).run())
}

/// The completed operations, and the value of the register after them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Configuration {
    /// All answered operations before this one are done.
    prefix: usize,
    /// The answered operations after it that are done.
    ahead: Vec<usize>,
    /// The unanswered operations that are done.
    unanswered: Vec<usize>,
    value: Option<u64>,
}

struct Search<'a> {
    key: &'a str,
    /// The answered operations, by start time.
    answered: Vec<(&'a Operation, u64)>,
    /// The unanswered operations without reads, which change nothing.
    unanswered: Vec<&'a Operation>,
    seen: BTreeSet<Configuration>,
    /// The configuration that explained most.
    best: Option<Configuration>,
}

impl<'a> Search<'a> {
    fn new(key: &'a str, mut operations: Vec<&'a Operation>) -> Self {
        operations.sort_by_key(|operation| operation.begin);
        let answered = operations.iter().filter_map(|operation| Some((*operation, operation.end?))).collect();
        let changes =
            |operation: &&&Operation| operation.end.is_none() && !matches!(operation.op, Op::Read(_));
        let unanswered = operations.iter().filter(changes).copied().collect();
        Self { key, answered, unanswered, seen: BTreeSet::new(), best: None }
    }

    fn run(mut self) -> Result<(), Judgement> {
        let start = Configuration { prefix: 0, ahead: Vec::new(), unanswered: Vec::new(), value: None };
        let mut open = vec![start];
        while let Some(now) = open.pop() {
            if now.prefix == self.answered.len() {
                return Ok(());
            }
            if !self.seen.insert(now.clone()) {
                continue;
            }
            if self.seen.len() > MOST_LOOKS {
                return Err(Judgement::Undecided { key: self.key.to_owned() });
            }
            open.extend(self.next(&now));
            if self.best.as_ref().is_none_or(|best| explained(best) < explained(&now)) {
                self.best = Some(now);
            }
        }
        let best = self.best.take();
        let stuck = best.as_ref().map(|best| self.candidates(best).map(|at| self.answered[at].0.clone()));
        Err(Judgement::Impossible {
            key: self.key.to_owned(),
            explained: best.as_ref().map_or(0, explained),
            stuck: stuck.into_iter().flatten().collect(),
        })
    }

    /// Returns the first answer among the operations that are not done: no operation requested
    /// after it can come before it.
    fn horizon(&self, now: &Configuration) -> u64 {
        let open = (now.prefix..self.answered.len()).filter(|at| !now.ahead.contains(at));
        open.map(|at| self.answered[at].1).min().unwrap_or(u64::MAX)
    }

    /// Returns the answered operations that may be next.
    fn candidates(&self, now: &Configuration) -> impl Iterator<Item = usize> {
        let horizon = self.horizon(now);
        let asked = move |at: &usize| self.answered[*at].0.begin <= horizon;
        let ahead = now.ahead.clone();
        (now.prefix..self.answered.len()).take_while(asked).filter(move |at| !ahead.contains(at))
    }

    /// Returns the configurations that may follow, the first to try last: answered operations by
    /// the time of their answer, then unanswered ones.
    fn next(&self, now: &Configuration) -> Vec<Configuration> {
        let horizon = self.horizon(now);
        let may = |at: &usize| self.unanswered[*at].begin <= horizon && !now.unanswered.contains(at);
        let unanswered: Vec<usize> = (0..self.unanswered.len()).filter(may).collect();
        let mut all = Vec::new();
        for at in unanswered.iter().copied() {
            let value = match self.unanswered[at].op {
                Op::Write(new) => new,
                Op::Swap { expected, new, .. } if expected == now.value => new,
                // It changes nothing then.
                Op::Swap { .. } | Op::Read(_) => continue,
            };
            if !self.is_wanted(value, now, &unanswered) {
                continue;
            }
            let mut after = now.clone();
            after.value = Some(value);
            after.unanswered.push(at);
            after.unanswered.sort_unstable();
            all.push(after);
        }
        let mut candidates: Vec<usize> = self.candidates(now).collect();
        candidates.sort_by_key(|at| Reverse(self.answered[*at].1));
        for at in candidates {
            let value = match self.answered[at].0.op {
                Op::Read(value) if value == now.value => value,
                Op::Write(new) => Some(new),
                Op::Swap { expected, new, done: true } if expected == now.value => Some(new),
                Op::Swap { expected, done: false, .. } if expected != now.value => now.value,
                Op::Read(_) | Op::Swap { .. } => continue,
            };
            let mut after = Configuration { value, ..now.clone() };
            after.ahead.push(at);
            after.ahead.sort_unstable();
            while after.ahead.first() == Some(&after.prefix) {
                after.ahead.remove(0);
                after.prefix += 1;
            }
            all.push(after);
        }
        all
    }

    /// Returns true if a possible next operation needs the value that an unanswered operation would
    /// write. Otherwise that operation can be left out or come later, so the orders with it here
    /// are skipped.
    fn is_wanted(&self, value: u64, now: &Configuration, unanswered: &[usize]) -> bool {
        let needs = |op: &Op| match *op {
            Op::Read(read) => read == Some(value),
            Op::Swap { expected, done: true, .. } => expected == Some(value),
            Op::Swap { expected, done: false, .. } => expected == now.value,
            Op::Write(_) => false,
        };
        let builds_on = |op: &Op| matches!(*op, Op::Swap { expected, .. } if expected == Some(value));
        self.candidates(now).any(|at| needs(&self.answered[at].0.op))
            || unanswered.iter().any(|at| builds_on(&self.unanswered[*at].op))
    }
}

fn explained(configuration: &Configuration) -> usize {
    configuration.prefix + configuration.ahead.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use plexus_sim::Random;

    fn operation(op: Op, begin: u64, end: impl Into<Option<u64>>) -> Operation {
        Operation { key: "k".into(), op, begin, end: end.into() }
    }

    fn swap(expected: Option<u64>, new: u64, done: bool) -> Op {
        Op::Swap { expected, new, done }
    }

    fn impossible(history: &[Operation]) -> bool {
        matches!(check(history), Err(Judgement::Impossible { .. }))
    }

    #[test]
    fn linearizable_histories_are_accepted() {
        use Op::{Read, Write};
        let write = operation(Write(1), 0, 100);
        check(&[write.clone(), operation(Read(Some(1)), 10, 20), operation(Read(Some(1)), 30, 40)]).unwrap();
        check(&[write.clone(), operation(Read(None), 10, 20), operation(Read(Some(1)), 30, 40)]).unwrap();
        // Two compare at once, and one of them is first.
        check(&[operation(swap(None, 1, true), 0, 10), operation(swap(None, 2, false), 0, 10)]).unwrap();
        // Never answered: done late, early or never.
        let lost = operation(Write(9), 0, None);
        check(&[lost.clone(), operation(Read(None), 10, 20), operation(Read(Some(9)), 500, 600)]).unwrap();
        check(&[lost, operation(Read(None), 10, 20), operation(Read(None), 500, 600)]).unwrap();
    }

    #[test]
    fn impossible_histories_are_refused() {
        use Op::{Read, Write};
        let write = operation(Write(1), 0, 100);
        // A return to an earlier value.
        assert!(impossible(&[
            write.clone(),
            operation(Read(Some(1)), 10, 20),
            operation(Read(None), 30, 40)
        ]));
        // A forgotten write.
        assert!(impossible(&[write, operation(Read(None), 101, 110)]));
        // Both succeed.
        assert!(impossible(&[operation(swap(None, 1, true), 0, 10), operation(swap(None, 2, true), 0, 10)]));
        // Neither succeeds.
        assert!(impossible(&[operation(swap(None, 1, false), 0, 10)]));
        // A read before the write was requested.
        assert!(impossible(&[operation(Read(Some(9)), 0, 5), operation(Write(9), 10, None)]));
        // Done, undone and done again.
        let lost = operation(Write(9), 0, None);
        let back = [(1, None), (2, Some(9)), (3, None)];
        let reads = back.map(|(at, value)| operation(Read(value), at * 10, at * 10 + 5));
        assert!(impossible(&[&[lost][..], &reads].concat()));
    }

    /// Returns the history of a sequential server, as clients see it; some get no answer.
    fn reference(random: &mut Random) -> Vec<Operation> {
        let (mut value, mut history) = (None, Vec::new());
        let mut now = 100;
        for number in 1..=20 + random.below(40) {
            now += 1 + random.below(20);
            let kind = random.below(4);
            let guess = if random.below(2) == 0 { value } else { Some(random.below(number)) };
            let op = match kind {
                0 => Op::Write(number),
                1 => swap(guess, number, guess == value),
                _ => Op::Read(value),
            };
            let answered = random.below(8) > 0;
            let applied = answered || random.below(2) == 0;
            if applied {
                value = match op {
                    Op::Read(value) => value,
                    Op::Write(new) | Op::Swap { new, done: true, .. } => Some(new),
                    Op::Swap { .. } => value,
                };
            }
            let (begin, end) = (now - random.below(60), now + random.below(60));
            history.push(operation(op, begin, answered.then_some(end)));
        }
        history
    }

    #[test]
    fn generated_histories_are_accepted_and_corrupted_ones_refused() {
        let mut read_strange = 0;
        for seed in 0..1000 {
            let mut random = Random::new(seed);
            let good = reference(&mut random);
            check(&good).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
            // A value that was never written.
            let mut strange = good.clone();
            let read = strange.iter_mut().find(|one| matches!(one.op, Op::Read(_)) && one.end.is_some());
            if let Some(read) = read {
                read.op = Op::Read(Some(1_000_000));
                assert!(impossible(&strange), "seed {seed}");
                read_strange += 1;
            }
            // After all operations were answered and one more was written, a read of the value
            // before that.
            let end = good.iter().filter_map(|one| one.end).max().unwrap_or(0);
            let mut stale = good.clone();
            stale.push(operation(Op::Write(2_000_000), end + 10, end + 20));
            stale.push(operation(Op::Write(3_000_000), end + 30, end + 40));
            let mut fresh = stale.clone();
            stale.push(operation(Op::Read(Some(2_000_000)), end + 50, end + 60));
            assert!(impossible(&stale), "seed {seed}");
            fresh.push(operation(Op::Read(Some(3_000_000)), end + 50, end + 60));
            check(&fresh).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        }
        assert!(read_strange > 990, "{read_strange}");
    }

    #[test]
    fn many_unanswered_operations_are_judged() {
        use Op::{Read, Write};
        // Of forty unanswered operations a few were done, one of them based on another, all late.
        let mut history: Vec<_> = (1..=40).map(|number| operation(Write(number), number, None)).collect();
        history.push(operation(swap(Some(7), 100, true), 50, None));
        history.push(operation(swap(Some(8), 101, true), 50, None));
        let reads = [(1, None), (2, Some(3)), (3, Some(100)), (4, Some(20))];
        history.extend(reads.map(|(at, value)| operation(Read(value), at * 100, at * 100 + 5)));
        history.push(operation(swap(Some(20), 200, false), 500, 505));
        check(&history).unwrap();
        // An operation that was done once is not done again.
        history.push(operation(Read(Some(3)), 600, 605));
        assert!(impossible(&history));
    }

    #[test]
    fn first_failing_operation_is_reported() {
        let history = [operation(Op::Write(1), 0, 5), operation(Op::Read(None), 10, 20)];
        let said = check(&history).unwrap_err().to_string();
        assert!(said.starts_with("\"k\": no order explains the answers; after 1 of them"), "{said}");
        assert!(said.contains("Read(None)"), "{said}");
    }
}
