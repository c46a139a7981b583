//! Sequences: each caller of any node gets another number.
//!
//! The state of a sequence is a row of the catalog's tree, and not part of the transactions that
//! draw numbers. A node takes a range of numbers at once. The range is durable before its first
//! number is used, so a number is never given twice; what a node has not used at its end is left
//! out. `setval` raises a generation in the row, and each call compares it, so ranges that were
//! taken before are not used on any node. The row stays when the sequence is dropped: so only
//! transactions that do nothing else change it, and no caller waits for a longer one.

use std::{
    cell::{Cell, OnceCell, RefCell},
    collections::{HashMap, HashSet},
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::lock::Mutex as TaskMutex;
use plexus_store::{Isolation, RowChange};
use serde::{Deserialize, Serialize};

use crate::{
    catalog::{Grant, RelationName, Transaction, public, undefined},
    error::{Result, SqlError, code, error, fail},
    types::Type,
};

/// The numbers that a node takes at once.
const RANGE: i64 = 128;

/// A sequence as the catalog describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Sequence {
    pub(crate) id: u64,
    #[serde(default = "public")]
    pub(crate) schema: String,
    pub(crate) name: String,
    /// The role that may change it, beside superusers.
    pub(crate) owner: String,
    pub(crate) start: i64,
    pub(crate) increment: i64,
    pub(crate) least: i64,
    pub(crate) most: i64,
    /// Begins again behind its end.
    pub(crate) cycles: bool,
    /// The numbers that CACHE names. Only shown: each node takes a range of its own.
    #[serde(default = "one")]
    pub(crate) cache: i64,
    /// The type of its numbers.
    #[serde(default = "bigint")]
    pub(crate) of: Type,
    #[serde(default)]
    pub(crate) grants: Vec<Grant>,
    pub(crate) comment: Option<String>,
}

fn one() -> i64 {
    1
}

fn bigint() -> Type {
    Type::Int8
}

/// The sequence that an expression names, once it is found in the catalog.
pub(crate) type SequenceSlot = Rc<OnceCell<Rc<Sequence>>>;

/// The state of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct State {
    last: i64,
    /// `last` was given to a caller.
    is_called: bool,
    generation: u64,
}

impl State {
    fn read(bytes: &[u8]) -> Option<Self> {
        let (last, rest) = bytes.split_first_chunk()?;
        let (generation, rest) = rest.split_first_chunk()?;
        let &[is_called @ 0..=1] = rest else { return None };
        let (last, generation) = (i64::from_le_bytes(*last), u64::from_le_bytes(*generation));
        Some(Self { last, is_called: is_called == 1, generation })
    }

    fn bytes(self) -> Vec<u8> {
        let mut bytes = self.last.to_le_bytes().to_vec();
        bytes.extend(self.generation.to_le_bytes());
        bytes.push(self.is_called.into());
        bytes
    }
}

/// Numbers of a sequence that a node may give to callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Range {
    next: i64,
    left: i64,
    generation: u64,
}

impl Sequence {
    pub(crate) fn relation(&self) -> RelationName {
        RelationName::new(&self.schema, &self.name)
    }

    /// Returns the last number that a node has taken, and whether one was.
    pub(crate) async fn state(&self, by: &mut Transaction) -> Result<(i64, bool)> {
        self.stored(by).await.map(|state| (state.last, state.is_called))
    }

    async fn stored(&self, by: &mut Transaction) -> Result<State> {
        let state = by.get(by.store().catalog(), &self.key()).await?;
        state.and_then(|bytes| State::read(&bytes)).ok_or_else(|| undefined(&self.name))
    }

    async fn store(&self, by: &mut Transaction, state: State) -> Result<()> {
        Ok(by.change(by.store().catalog(), &self.key(), &mut |_| RowChange::Set(state.bytes())).await?)
    }

    fn key(&self) -> Vec<u8> {
        [b"s", &self.id.to_be_bytes()[..]].concat()
    }

    /// Takes up to `most` numbers.
    fn take(&self, state: State, most: i64) -> Result<(Range, State)> {
        let State { last, is_called, generation } = state;
        let (least, end) = (i128::from(self.least), i128::from(self.most));
        let increment = i128::from(self.increment);
        let next = i128::from(last) + if is_called { increment } else { 0 };
        let first = match (least..=end).contains(&next) {
            true => next,
            false if self.cycles && increment > 0 => least,
            false if self.cycles => end,
            false => {
                let (word, bound) =
                    if increment > 0 { ("maximum", self.most) } else { ("minimum", self.least) };
                fail!("2200H", "nextval: reached {word} value of sequence \"{}\" ({bound})", self.name);
            }
        };
        let room = (if increment > 0 { end - first } else { first - least }) / increment.abs() + 1;
        let left = room.min(most.into());
        let (next, last) = (first as i64, (first + increment * (left - 1)) as i64);
        let state = State { last, is_called: true, generation };
        Ok((Range { next, left: left as i64, generation }, state))
    }

    /// Makes the state of a new sequence, as a part of the transaction that makes it.
    pub(crate) async fn make(&self, by: &mut Transaction) -> Result<()> {
        let state = State { last: self.start, is_called: false, generation: 0 };
        self.store(by, state).await
    }

    /// Makes the state of a sequence that takes the place of this one: at a number, or where this
    /// one is.
    pub(crate) async fn replace(&self, new: &Self, restart: Option<i64>, by: &mut Transaction) -> Result<()> {
        let known = self.stored(by).await?;
        let state = match restart {
            Some(last) => State { last, is_called: false, generation: 0 },
            None => State { generation: 0, ..known },
        };
        new.store(by, state).await
    }

    /// Changes the state. Returns what `act` returns beside the new one.
    async fn change<T>(&self, by: &mut Transaction, act: impl Fn(State) -> Result<(T, State)>) -> Result<T> {
        let mut result = Err(undefined(&self.name));
        let mut decide = |bytes: Option<&[u8]>| {
            let Some(state) = bytes.and_then(State::read) else { return RowChange::Keep };
            match act(state) {
                Ok((value, state)) => {
                    result = Ok(value);
                    RowChange::Set(state.bytes())
                }
                Err(error) => {
                    result = Err(error);
                    RowChange::Keep
                }
            }
        };
        by.change(by.store().catalog(), &self.key(), &mut decide).await?;
        result
    }

    /// Checks a number for [`Ranges::set`].
    fn check(&self, number: i64) -> Result<()> {
        if (self.least..=self.most).contains(&number) {
            return Ok(());
        }
        let Self { name, least, most, .. } = self;
        Err(error!(
            NUMERIC_OUT_OF_RANGE,
            "setval: value {number} is out of bounds for sequence \"{name}\" ({least}..{most})"
        ))
    }
}

/// The ranges of a node, shared by its sessions.
#[derive(Default)]
pub(crate) struct Ranges(Mutex<HashMap<u64, Arc<TaskMutex<Range>>>>);

impl Ranges {
    /// Draws a number. It is never given again, whatever becomes of the transaction.
    pub(crate) async fn draw(&self, by: &mut Transaction, drawn: &Drawn, sequence: &Sequence) -> Result<i64> {
        if drawn.made.borrow().contains(&sequence.id) {
            // Only this transaction sees it.
            return sequence.change(by, |state| sequence.take(state, 1)).await.map(|range| range.next);
        }
        let range =
            self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(sequence.id).or_default().clone();
        let mut range = range.lock().await;
        let state = sequence.stored(&mut by.store().begin(Isolation::ReadCommitted)).await?;
        if range.left == 0 || range.generation != state.generation {
            let mut own = by.store().begin(Isolation::ReadCommitted);
            let taken = sequence.change(&mut own, |state| sequence.take(state, RANGE)).await?;
            own.commit().await?;
            *range = taken;
        }
        let number = range.next;
        range.left -= 1;
        // The last one may be at the end of all numbers.
        range.next = range.next.wrapping_add(sequence.increment);
        Ok(number)
    }

    /// Sets the state of a sequence, for all nodes at once.
    pub(crate) async fn set(
        &self,
        by: &mut Transaction,
        drawn: &Drawn,
        Set { sequence, last, is_called }: Set,
    ) -> Result<()> {
        let set = |State { generation, .. }| Ok(((), State { last, is_called, generation: generation + 1 }));
        if drawn.made.borrow().contains(&sequence.id) {
            return sequence.change(by, set).await;
        }
        let mut own = by.store().begin(Isolation::ReadCommitted);
        sequence.change(&mut own, set).await?;
        Ok(own.commit().await?)
    }
}

/// A call of `setval`, which is done at the end of its statement.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) sequence: Rc<Sequence>,
    last: i64,
    is_called: bool,
}

/// The numbers that a session has drawn from sequences, and its calls of `setval`.
#[derive(Default, Debug)]
pub(crate) struct Drawn {
    /// The sequences that the transaction has made.
    pub(crate) made: RefCell<HashSet<u64>>,
    /// The number that the session has drawn last from each.
    current: RefCell<HashMap<u64, i64>>,
    last: Cell<Option<u64>>,
    /// Numbers for the expressions that are evaluated, and whether they are used.
    supplied: RefCell<Vec<(u64, i64, bool)>>,
    wanted: RefCell<Option<Rc<Sequence>>>,
    sets: RefCell<Vec<Set>>,
    /// The transaction reads only.
    pub(crate) is_read_only: Cell<bool>,
}

impl Drawn {
    /// Returns the next number that was supplied; else notes that one is wanted, and fails.
    pub(crate) fn next(&self, sequence: &Rc<Sequence>) -> Result<i64> {
        if self.is_read_only.get() {
            return Err(SqlError::read_only("nextval()"));
        }
        let mut supplied = self.supplied.borrow_mut();
        let found = supplied.iter_mut().find(|(of, _, is_used)| *of == sequence.id && !is_used);
        let Some((_, number, is_used)) = found else {
            *self.wanted.borrow_mut() = Some(sequence.clone());
            return Err(SqlError::unsupported("nextval in this place"));
        };
        *is_used = true;
        self.note(sequence.id, *number);
        Ok(*number)
    }

    fn note(&self, id: u64, number: i64) {
        self.current.borrow_mut().insert(id, number);
        self.last.set(Some(id));
    }

    /// Returns the sequence whose number an evaluation has missed; it can be repeated with a number
    /// that is [supplied](Self::supply).
    pub(crate) fn take_wanted(&self) -> Option<Rc<Sequence>> {
        let wanted = self.wanted.take();
        self.supplied.borrow_mut().iter_mut().for_each(|(.., is_used)| *is_used = false);
        wanted
    }

    /// Ends an evaluation: the numbers that it got are used.
    pub(crate) fn end_evaluation(&self) {
        self.supplied.borrow_mut().clear();
    }

    /// Returns the numbers of an evaluation that waits for one in a subquery.
    pub(crate) fn set_aside(&self) -> Vec<(u64, i64, bool)> {
        self.supplied.take()
    }

    pub(crate) fn restore(&self, before: Vec<(u64, i64, bool)>) {
        self.supplied.replace(before);
    }

    pub(crate) fn supply(&self, id: u64, number: i64) {
        self.supplied.borrow_mut().push((id, number, false));
    }

    pub(crate) fn current(&self, sequence: &Sequence) -> Result<i64> {
        self.current.borrow().get(&sequence.id).copied().ok_or_else(|| {
            error!(
                NOT_IN_STATE,
                "currval of sequence \"{}\" is not yet defined in this session", sequence.name
            )
        })
    }

    pub(crate) fn last(&self) -> Result<i64> {
        let last = self.last.get().and_then(|id| self.current.borrow().get(&id).copied());
        last.ok_or_else(|| SqlError::new(code::NOT_IN_STATE, "lastval is not yet defined in this session"))
    }

    /// Notes a call of `setval`.
    pub(crate) fn set(&self, sequence: &Rc<Sequence>, last: i64, is_called: bool) -> Result<()> {
        if self.is_read_only.get() {
            return Err(SqlError::read_only("setval()"));
        }
        sequence.check(last)?;
        if is_called {
            self.current.borrow_mut().insert(sequence.id, last);
        }
        self.sets.borrow_mut().push(Set { sequence: sequence.clone(), last, is_called });
        Ok(())
    }

    /// Ends a statement. Returns its calls of `setval`.
    pub(crate) fn end_statement(&self) -> Vec<Set> {
        self.wanted.take();
        self.supplied.borrow_mut().clear();
        self.sets.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequence(increment: i64, least: i64, most: i64, cycles: bool) -> Sequence {
        Sequence {
            id: 1,
            cache: 1,
            schema: public(),
            name: "s".into(),
            owner: "o".into(),
            start: least,
            increment,
            least,
            most,
            cycles,
            of: Type::Int8,
            grants: Vec::new(),
            comment: None,
        }
    }

    #[test]
    fn ranges_end_at_the_bounds_and_follow_each_other() {
        for (increment, cycles) in [(1, false), (3, false), (-2, false), (3, true)] {
            let sequence = sequence(increment, 1, 10, cycles);
            let first = if increment > 0 { 1 } else { 10 };
            for most in [1, 2, 4, 100] {
                let mut state = State { last: first, is_called: false, generation: 7 };
                let mut drawn = Vec::new();
                while drawn.len() < 30 {
                    let Ok((range, next)) = sequence.take(state, most) else { break };
                    assert!((1..=most).contains(&range.left));
                    drawn.extend((0..range.left).map(|at| range.next + at * increment));
                    assert_eq!((next.last, next.generation), (*drawn.last().unwrap(), 7));
                    state = next;
                }
                let once: Vec<i64> =
                    (0..10).map(|at| first + at * increment).filter(|n| (1..=10).contains(n)).collect();
                match cycles {
                    false => assert_eq!(drawn, once),
                    true => assert!(drawn.iter().zip(once.iter().cycle()).all(|(one, other)| one == other)),
                }
            }
        }
    }

    #[test]
    fn the_state_is_read_as_it_was_written() {
        let state = State { last: -5, is_called: true, generation: 3 };
        assert_eq!(State::read(&state.bytes()), Some(state));
        assert_eq!(State::read(&[0; 16]), None);
        assert_eq!(State::read(&[2; 17]), None);
    }
}
