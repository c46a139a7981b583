//! Anomalies in a history of transactions that append to lists and read them.
//!
//! Each value is appended once, so a list tells in which order its values were written, and a read
//! of it tells what its transaction has seen. From these follow the dependencies of transactions
//! (Adya 1999; Kingsbury and Alvaro, Elle, 2020): `U` wrote behind `T` (ww), `U` read what `T`
//! wrote (wr), `U` overwrote what `T` read (rw). `U` began when `T` had been acknowledged, on any
//! node, is a dependency, too. A circle of ww, wr and time is forbidden to all; one with a single
//! rw is so if its reader is repeatable read.

use std::collections::{BTreeMap, HashMap};

/// A part of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Appends a value to a list.
    Append(u64, u64),
    /// Reads the values of a list.
    Read(u64, Vec<u64>),
}

/// The end of a transaction, as its client knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Outcome {
    /// It was acknowledged.
    Committed,
    /// It is rolled back.
    Aborted,
    /// It may be either.
    #[default]
    Unknown,
}

/// A transaction as its client has seen it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecordedTransaction {
    /// A time before its begin, in nanoseconds.
    pub begin: u64,
    /// A time after its end.
    pub end: u64,
    /// It is repeatable read, else read committed.
    pub is_repeatable: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Its parts, in their order.
    pub operations: Vec<Operation>,
}

/// The dependencies between transactions. The nodes behind them are moments of time.
struct Graph {
    /// ww, wr and time, by the transaction on which others depend.
    follow: Vec<Vec<usize>>,
    /// rw: the reader, and who overwrote.
    overwritten: Vec<(usize, usize)>,
}

/// Checks a history.
///
/// # Errors
/// The first anomaly, with its transactions.
pub fn check(history: &[RecordedTransaction]) -> Result<(), String> {
    let lists = lists(history)?;
    let mut writers = HashMap::new();
    for (index, transaction) in history.iter().enumerate() {
        writers.extend(appends(transaction).map(|(list, value)| (value, (index, list))));
    }
    for (list, values) in &lists {
        for value in values {
            let (writer, of) =
                *writers.get(value).ok_or(format!("no one has appended {value} to list {list}"))?;
            if of != *list || history[writer].outcome == Outcome::Aborted {
                return Err(format!("list {list} has {value} of {:?}", history[writer]));
            }
        }
    }
    for transaction in history {
        not_intermediate(history, transaction, &writers)?;
    }
    whole(history, &writers)?;
    let graph = graph(history, &lists, &writers);
    let places = graph.places(history)?;
    for (reader, writer) in &graph.overwritten {
        if graph.leads(*writer, *reader, &places) {
            return Err(format!(
                "one read before the other wrote, and follows it (G-single): {:?}\n{:?}",
                history[*reader], history[*writer]
            ));
        }
    }
    Ok(())
}

/// Returns the values of each list, of which every read has seen a first part.
fn lists(history: &[RecordedTransaction]) -> Result<BTreeMap<u64, Vec<u64>>, String> {
    let mut longest: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    // What a transaction has read behind its own appends may be rolled back with it.
    for transaction in history.iter().filter(|transaction| transaction.outcome == Outcome::Committed) {
        for operation in &transaction.operations {
            let Operation::Read(list, values) = operation else { continue };
            let known = longest.entry(*list).or_default();
            if !values.starts_with(known) && !known.starts_with(values) {
                return Err(format!("list {list} was read as {known:?} and as {values:?}"));
            }
            if values.len() > known.len() {
                known.clone_from(values);
            }
        }
    }
    Ok(longest)
}

/// Checks that each read has all values that were acknowledged before, and that one snapshot has
/// all of a transaction or nothing.
fn whole(history: &[RecordedTransaction], writers: &HashMap<u64, (usize, u64)>) -> Result<(), String> {
    let mut acknowledged: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
    let is_committed = |transaction: &&RecordedTransaction| transaction.outcome == Outcome::Committed;
    for transaction in history.iter().filter(is_committed) {
        for (list, value) in appends(transaction) {
            acknowledged.entry(list).or_default().push((transaction.end, value));
        }
    }
    for reader in history.iter().filter(is_committed) {
        let reads = reader.operations.iter().filter_map(|operation| match operation {
            Operation::Read(list, values) => Some((*list, values)),
            Operation::Append(..) => None,
        });
        let reads: Vec<(u64, &Vec<u64>)> = reads.collect();
        for (list, values) in &reads {
            let before = acknowledged.get(list).into_iter().flatten().filter(|(end, _)| *end < reader.begin);
            if let Some((_, value)) = before.into_iter().find(|(_, value)| !values.contains(value)) {
                return Err(format!("list {list} has lost {value}: {reader:?}"));
            }
        }
        let all: BTreeMap<u64, &Vec<u64>> = reads.into_iter().filter(|_| reader.is_repeatable).collect();
        for value in all.values().flat_map(|values| values.iter()) {
            let Some((writer, _)) = writers.get(value) else { continue };
            let writer = &history[*writer];
            let is_missing =
                |(list, value): &(u64, u64)| all.get(list).is_some_and(|values| !values.contains(value));
            if !std::ptr::eq(writer, reader) && appends(writer).any(|append| is_missing(&append)) {
                return Err(format!("{reader:?} has read a part of {writer:?}"));
            }
        }
    }
    Ok(())
}

fn appends(transaction: &RecordedTransaction) -> impl Iterator<Item = (u64, u64)> + '_ {
    transaction.operations.iter().filter_map(|operation| match operation {
        Operation::Append(list, value) => Some((*list, *value)),
        Operation::Read(..) => None,
    })
}

/// Checks that no other transaction has read what this one appended before its last append.
fn not_intermediate(
    history: &[RecordedTransaction],
    transaction: &RecordedTransaction,
    writers: &HashMap<u64, (usize, u64)>,
) -> Result<(), String> {
    for operation in &transaction.operations {
        let Operation::Read(list, values) = operation else { continue };
        let Some(last) = values.last() else { continue };
        // A transaction that was rolled back may have read something that was rolled back, too,
        // only of itself.
        let Some((writer, _)) = writers.get(last) else {
            return Err(format!("no one has appended {last} to list {list}"));
        };
        let writer = &history[*writer];
        if std::ptr::eq(writer, transaction) {
            continue;
        }
        if writer.outcome == Outcome::Aborted {
            return Err(format!("{transaction:?} has read {last}, rolled back: {writer:?}"));
        }
        let last_append = appends(writer).filter(|(of, _)| of == list).last();
        if last_append != Some((*list, *last)) {
            return Err(format!("{transaction:?} has read {last}, an intermediate value of {writer:?}"));
        }
    }
    Ok(())
}

fn graph(
    history: &[RecordedTransaction],
    lists: &BTreeMap<u64, Vec<u64>>,
    writers: &HashMap<u64, (usize, u64)>,
) -> Graph {
    let writer = |value: &u64| writers[value].0;
    let committed: Vec<usize> =
        (0..history.len()).filter(|index| history[*index].outcome == Outcome::Committed).collect();
    let mut graph =
        Graph { follow: vec![Vec::new(); history.len() + committed.len()], overwritten: Vec::new() };
    let mut add = |from: usize, to: usize| {
        if from != to {
            graph.follow[from].push(to);
        }
    };
    for values in lists.values() {
        values.windows(2).for_each(|pair| add(writer(&pair[0]), writer(&pair[1])));
    }
    for reader in &committed {
        for operation in &history[*reader].operations {
            let Operation::Read(list, values) = operation else { continue };
            values.last().into_iter().for_each(|last| add(writer(last), *reader));
            let next = lists[list].get(values.len()).map(writer).filter(|next| next != reader);
            if let Some(next) = next.filter(|_| history[*reader].is_repeatable) {
                graph.overwritten.push((*reader, next));
            }
        }
    }
    // A chain of moments, one behind the end of each transaction.
    let mut by_end = committed;
    by_end.sort_unstable_by_key(|index| history[*index].end);
    let moment = |at: usize| history.len() + at;
    for (at, index) in by_end.iter().enumerate() {
        add(*index, moment(at));
        if at > 0 {
            add(moment(at - 1), moment(at));
        }
    }
    for (index, transaction) in history.iter().enumerate() {
        let before = by_end.partition_point(|other| history[*other].end < transaction.begin);
        if before > 0 {
            add(moment(before - 1), index);
        }
    }
    graph
}

impl Graph {
    /// Returns a place for each node so that all that follow it have higher ones.
    fn places(&self, history: &[RecordedTransaction]) -> Result<Vec<usize>, String> {
        let mut waits_for = vec![0; self.follow.len()];
        self.follow.iter().flatten().for_each(|to| waits_for[*to] += 1);
        let mut ready: Vec<usize> = (0..waits_for.len()).filter(|index| waits_for[*index] == 0).collect();
        let mut places = vec![usize::MAX; self.follow.len()];
        let mut next = 0;
        while let Some(index) = ready.pop() {
            places[index] = next;
            next += 1;
            for to in &self.follow[index] {
                waits_for[*to] -= 1;
                if waits_for[*to] == 0 {
                    ready.push(*to);
                }
            }
        }
        if next == places.len() {
            return Ok(places);
        }
        // Each node that is left follows another one that is left; so going back ends in a circle.
        let is_left = |index: &usize| places[*index] == usize::MAX;
        let before = |of: usize| {
            (0..places.len()).filter(is_left).find(|index| self.follow[*index].contains(&of)).unwrap_or(of)
        };
        let mut at = (0..places.len()).find(is_left).unwrap_or_default();
        for _ in 0..places.len() {
            at = before(at);
        }
        let (start, mut circle) = (at, Vec::new());
        loop {
            circle.extend(history.get(at).map(|transaction| format!("{transaction:?}")));
            at = before(at);
            if at == start {
                break;
            }
        }
        circle.reverse();
        Err(format!("each follows the one before, and the first the last (G1c):\n{}", circle.join("\n")))
    }

    /// Returns whether a way leads from one node to another.
    fn leads(&self, from: usize, to: usize, places: &[usize]) -> bool {
        let (mut open, mut seen) = (vec![from], std::collections::HashSet::from([from]));
        while let Some(at) = open.pop() {
            if at == to {
                return true;
            }
            let nearer = self.follow[at].iter().filter(|next| places[**next] <= places[to]);
            open.extend(nearer.filter(|next| seen.insert(**next)));
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::{Operation::*, *};

    /// A transaction of repeatable read from `begin` to `end`.
    fn ended(begin: u64, end: u64, operations: Vec<Operation>) -> RecordedTransaction {
        RecordedTransaction { begin, end, is_repeatable: true, outcome: Outcome::Committed, operations }
    }

    fn aborted(begin: u64, operations: Vec<Operation>) -> RecordedTransaction {
        RecordedTransaction { outcome: Outcome::Aborted, ..ended(begin, u64::MAX, operations) }
    }

    fn refused(history: &[RecordedTransaction], why: &str) {
        let found = check(history).expect_err(why);
        assert!(found.contains(why), "{found}");
    }

    #[test]
    fn what_snapshots_allow_is_no_anomaly() {
        let serial = [
            ended(0, 1, vec![Append(1, 1)]),
            ended(2, 3, vec![Read(1, vec![1]), Append(1, 2), Read(1, vec![1, 2]), Append(2, 3)]),
            aborted(2, vec![Append(1, 9)]),
            ended(4, 5, vec![Read(1, vec![1, 2]), Read(2, vec![3])]),
        ];
        assert_eq!(check(&serial), Ok(()));
        // Each reads what the other then changes: snapshot isolation allows it.
        let skew = [
            ended(0, 9, vec![Read(1, vec![]), Append(2, 1)]),
            ended(0, 9, vec![Read(2, vec![]), Append(1, 2)]),
            ended(10, 11, vec![Read(1, vec![2]), Read(2, vec![1])]),
        ];
        assert_eq!(check(&skew), Ok(()));
        let unknown = RecordedTransaction {
            outcome: Outcome::Unknown,
            ..ended(0, u64::MAX, vec![Append(1, 1), Append(2, 2)])
        };
        let reader = ended(5, 6, vec![Read(1, vec![1]), Read(2, vec![2])]);
        assert_eq!(check(&[unknown.clone(), reader]), Ok(()));
        assert_eq!(check(&[unknown, ended(5, 6, vec![Read(1, vec![]), Read(2, vec![])])]), Ok(()));
    }

    #[test]
    fn lost_and_rolled_back_values_are_found() {
        let writer = ended(0, 1, vec![Append(1, 1)]);
        refused(&[writer.clone(), ended(2, 3, vec![Read(1, vec![])])], "has lost 1");
        refused(&[aborted(0, vec![Append(1, 1)]), ended(2, 3, vec![Read(1, vec![1])])], "of Recorded");
        let twice = ended(0, 1, vec![Append(1, 1), Append(1, 2)]);
        refused(&[twice, ended(0, 3, vec![Read(1, vec![1])])], "intermediate");
        let other = ended(0, 1, vec![Append(1, 2)]);
        let readers = [ended(2, 3, vec![Read(1, vec![1, 2])]), ended(2, 3, vec![Read(1, vec![2, 1])])];
        refused(&[writer, other, readers[0].clone(), readers[1].clone()], "was read as");
    }

    #[test]
    fn circles_are_found() {
        // Each wrote behind the other (G0).
        let writes = [
            ended(0, 9, vec![Append(1, 1), Append(2, 2)]),
            ended(0, 9, vec![Append(1, 3), Append(2, 4)]),
            ended(10, 11, vec![Read(1, vec![1, 3]), Read(2, vec![4, 2])]),
        ];
        refused(&writes, "(G1c)");
        // One has seen the other's first change and not the second (G-single).
        let half = [
            ended(0, 9, vec![Append(1, 1), Append(2, 2)]),
            ended(0, 9, vec![Read(1, vec![1]), Read(2, vec![])]),
            ended(10, 11, vec![Read(2, vec![2])]),
        ];
        refused(&half, "has read a part of");
        // A lost update.
        let lost = [
            ended(0, 9, vec![Read(1, vec![]), Append(1, 1)]),
            ended(0, 9, vec![Read(1, vec![]), Append(1, 2)]),
            ended(10, 11, vec![Read(1, vec![1, 2])]),
        ];
        refused(&lost, "(G-single)");
        // The same is no anomaly of read committed.
        let committed = lost.map(|transaction| RecordedTransaction { is_repeatable: false, ..transaction });
        assert_eq!(check(&committed), Ok(()));
    }

    #[test]
    fn the_order_of_time_counts_on_all_nodes() {
        // The second began when the first was acknowledged, and the third read only the second.
        let old = [
            ended(1, 2, vec![Append(1, 1)]),
            ended(3, 4, vec![Append(2, 2)]),
            ended(0, 9, vec![Read(2, vec![2]), Read(1, vec![])]),
            ended(10, 11, vec![Read(1, vec![1]), Read(2, vec![2])]),
        ];
        refused(&old, "(G-single)");
        let committed = old.map(|transaction| RecordedTransaction { is_repeatable: false, ..transaction });
        assert_eq!(check(&committed), Ok(()));
        // A read committed reader that began later must see it, too.
        let reads = [
            ended(0, 1, vec![Append(1, 1)]),
            RecordedTransaction { is_repeatable: false, ..ended(2, 3, vec![Read(1, vec![])]) },
            ended(0, 4, vec![Read(1, vec![1])]),
        ];
        refused(&reads, "has lost 1");
    }
}
