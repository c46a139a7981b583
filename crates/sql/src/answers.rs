//! The rows of subqueries, for the expressions that ask for them.
//!
//! An evaluation that needs rows which are not there notes the subquery with the values of its row,
//! and fails; it is repeated when the rows are there. The same values have the same answer, so each
//! is found once in a statement.

use std::{
    cell::{Cell, OnceCell, RefCell},
    rc::Rc,
};

use foldhash::{HashMap, HashSet};

use crate::{
    bind::query::{Query, Shared},
    error::{Result, SqlError, error},
    exec::{KeptRows, MOST_MEMORY, out_of_memory},
    expr::{Comparison, Inputs, SubqueryUse, evaluate_all},
    spool::bytes_of,
    types::{Value, encode},
};

/// The bytes of rows that are kept; beyond it those for the values of one row are found again.
const MOST_BYTES: usize = 64 << 20;

/// A subquery that is to run, with the values that it gets.
type Wanted = (Rc<Query>, Vec<Value>);

/// The answers in a statement.
#[derive(Default, Debug)]
pub(crate) struct Answers {
    known: RefCell<Known>,
    wanted: RefCell<Option<Wanted>>,
    /// The bytes of all answers, also of those that are set aside.
    bytes: Cell<usize>,
    /// The evaluations that wait for an answer: each runs a query whose rows are evaluated in turn.
    depth: Cell<usize>,
    /// None is forgotten before the end of the statement.
    keeps_all: Cell<bool>,
    /// Each subquery runs for one value at a time.
    runs_alone: Cell<bool>,
    /// The answers of subqueries for all values, by the query.
    keyed: RefCell<HashMap<*const Query, KeyedAnswers>>,
    shared: RefCell<HashMap<usize, SharedRows>>,
    working: RefCell<HashMap<usize, KeptRows>>,
}

/// Answers, by the query and the values that it got.
pub(crate) type Known = HashMap<(*const Query, Vec<u8>), Rc<Answer>>;

/// The values for which a subquery runs alone, before it runs for all values.
const RUN_ALONE: usize = 4;

/// The answers of a subquery for all values of the query around it.
#[derive(Debug)]
enum KeyedAnswers {
    /// It has run for so many values.
    Alone(usize),
    /// The answers by their keys, and the one without rows.
    Known(HashMap<Vec<u8>, Rc<Answer>>, Rc<Answer>),
    /// They need too much memory, or one has failed.
    Never,
}

/// The rows of a query of WITH.
#[derive(Debug)]
enum SharedRows {
    /// They are not known yet; it gets these values.
    Open(Vec<Value>),
    Known(KeptRows),
}

/// The rows of a subquery.
#[derive(Debug)]
pub(crate) struct Answer {
    rows: Vec<Vec<Value>>,
    bytes: usize,
    /// The depth of the evaluation that asked for it.
    depth: usize,
    /// The rows without NULL, and whether there are others.
    set: OnceCell<(HashSet<Vec<u8>>, bool)>,
}

impl Answers {
    /// Returns the rows of a subquery; else notes that they are wanted, and fails.
    pub(crate) fn get(&self, query: &Rc<Query>, outer: Vec<Value>, inputs: Inputs<'_>) -> Result<Rc<Answer>> {
        if let Some(keyed) = &query.keyed
            && let Some(KeyedAnswers::Known(answers, none)) = self.keyed.borrow().get(&Rc::as_ptr(query))
        {
            // One that fails is not asked for, perhaps.
            if let Ok(key) = evaluate_all(&keyed.key, Inputs { row: &[], outer: &outer, ..inputs }) {
                let found = answers.get(&encode::identity(&key)).filter(|_| !key.iter().any(Value::is_null));
                return Ok(found.unwrap_or(none).clone());
            }
        }
        let key = (Rc::as_ptr(query), encode::row(&outer));
        if let Some(known) = self.known.borrow().get(&key) {
            return Ok(known.clone());
        }
        *self.wanted.borrow_mut() = Some((query.clone(), outer));
        Err(SqlError::unsupported("a subquery in this place"))
    }

    /// Returns the subquery whose rows an evaluation has missed, which waits for them.
    pub(crate) fn take_wanted(&self) -> Option<Wanted> {
        let wanted = self.wanted.take()?;
        self.depth.set(self.depth.get() + 1);
        Some(wanted)
    }

    pub(crate) fn supply(&self, query: &Rc<Query>, outer: &[Value], rows: Vec<Vec<Value>>) -> Result<()> {
        let bytes = 64 + rows.iter().map(|row| bytes_of(row)).sum::<usize>();
        self.bytes.set(self.bytes.get() + bytes);
        if self.bytes.get() > MOST_MEMORY {
            return Err(out_of_memory());
        }
        let depth = self.depth.get() - 1;
        self.depth.set(depth);
        let answer = Answer { rows, bytes, depth, set: OnceCell::new() };
        self.known.borrow_mut().insert((Rc::as_ptr(query), encode::row(outer)), Rc::new(answer));
        Ok(())
    }

    /// Returns true if a subquery is to run for all values, because it has run for some.
    pub(crate) fn is_for_all(&self, query: &Rc<Query>) -> bool {
        if query.keyed.is_none() || self.keeps_all.get() || self.runs_alone.get() {
            return false;
        }
        let mut keyed = self.keyed.borrow_mut();
        match keyed.entry(Rc::as_ptr(query)).or_insert(KeyedAnswers::Alone(0)) {
            KeyedAnswers::Alone(count) => {
                *count += 1;
                *count > RUN_ALONE
            }
            KeyedAnswers::Known(..) | KeyedAnswers::Never => false,
        }
    }

    /// Supplies the rows of a subquery for all values, with their keys behind them, and those
    /// without any row; or notes that there are too many.
    pub(crate) fn supply_all(
        &self,
        query: &Rc<Query>,
        rows: Option<(Vec<Vec<Value>>, Vec<Vec<Value>>)>,
    ) -> Result<()> {
        self.depth.set(self.depth.get() - 1);
        let Some(((all, none), keyed)) = rows.zip(query.keyed.as_ref()) else {
            self.keyed.borrow_mut().insert(Rc::as_ptr(query), KeyedAnswers::Never);
            return Ok(());
        };
        let answer = |rows| Answer { rows, bytes: 0, depth: 0, set: OnceCell::new() };
        let mut by: HashMap<Vec<u8>, Vec<Vec<Value>>> = HashMap::default();
        let mut bytes = 0;
        for mut row in all {
            let key = row.split_off(row.len() - keyed.key.len());
            if key.iter().any(Value::is_null) {
                continue;
            }
            let key = encode::identity(&key);
            let key_bytes = 64 + key.len();
            let rows = by.entry(key).or_default();
            bytes += if rows.is_empty() { key_bytes } else { 0 };
            // One row without values says that there is one.
            if !row.is_empty() || rows.is_empty() {
                bytes += bytes_of(&row);
                rows.push(row);
            }
        }
        if self.bytes.get() + bytes > MOST_MEMORY {
            self.keyed.borrow_mut().insert(Rc::as_ptr(query), KeyedAnswers::Never);
            return Ok(());
        }
        let by = by.into_iter().map(|(key, rows)| (key, Rc::new(answer(rows)))).collect();
        let known = KeyedAnswers::Known(by, Rc::new(answer(none)));
        self.keyed.borrow_mut().insert(Rc::as_ptr(query), known);
        Ok(())
    }

    /// Ends the evaluation of a row. It may have needed several answers at once, so only now some
    /// are forgotten, if they are large: not those that are the same for all rows, nor those of an
    /// evaluation that waits for this one.
    pub(crate) fn end_evaluation(&self) {
        if self.bytes.get() <= MOST_BYTES || self.keeps_all.get() {
            return;
        }
        let (depth, mut forgotten) = (self.depth.get(), 0);
        self.known.borrow_mut().retain(|(_, outer), answer| {
            let stays = answer.depth < depth || *outer == encode::row(&[]);
            forgotten += if stays { 0 } else { answer.bytes };
            stays
        });
        self.bytes.set(self.bytes.get() - forgotten);
    }

    /// Keeps all answers until the end of the statement, which changes the rows they are of.
    pub(crate) fn keep_all(&self) {
        self.keeps_all.set(true);
    }

    /// Lets each subquery run for one value at a time: the rows that it reads are being changed.
    pub(crate) fn run_alone(&self) {
        self.runs_alone.set(true);
    }

    /// Begins queries whose answers depend on more than the values that they get: on the rows of a
    /// query of WITH, which are others each time. Returns the answers so far.
    pub(crate) fn set_aside(&self) -> Known {
        self.known.take()
    }

    /// Ends them: their answers are forgotten, and those before are there again.
    pub(crate) fn restore(&self, before: Known) {
        let gone = self.known.replace(before);
        let bytes: usize = gone.values().map(|answer| answer.bytes).sum();
        self.bytes.set(self.bytes.get() - bytes);
    }

    /// Forgets all: the next statement has other rows.
    pub(crate) fn end_statement(&self) {
        self.known.borrow_mut().clear();
        self.wanted.take();
        self.bytes.set(0);
        self.depth.set(0);
        self.keeps_all.set(false);
        self.runs_alone.set(false);
        self.keyed.borrow_mut().clear();
        self.shared.borrow_mut().clear();
        self.working.borrow_mut().clear();
    }

    /// Begins a query whose WITH has a query, with the values that this gets.
    pub(crate) fn begin_shared(&self, shared: &Shared, outer: Vec<Value>) {
        self.shared.borrow_mut().insert(shared.number, SharedRows::Open(outer));
    }

    /// Returns the rows of a query of WITH; else the values with which it must run.
    pub(crate) fn shared(&self, number: usize) -> std::result::Result<KeptRows, Vec<Value>> {
        match self.shared.borrow().get(&number) {
            Some(SharedRows::Known(rows)) => Ok(rows.clone()),
            Some(SharedRows::Open(outer)) => Err(outer.clone()),
            None => Err(Vec::new()),
        }
    }

    pub(crate) fn set_shared(&self, number: usize, rows: KeptRows) {
        self.shared.borrow_mut().insert(number, SharedRows::Known(rows));
    }

    /// Returns the newest rows of a recursive query.
    pub(crate) fn working(&self, number: usize) -> KeptRows {
        self.working.borrow().get(&number).cloned().unwrap_or_default()
    }

    /// Sets the newest rows of a recursive query. Returns those before.
    pub(crate) fn set_working(&self, number: usize, rows: KeptRows) -> Option<KeptRows> {
        self.working.borrow_mut().insert(number, rows)
    }

    pub(crate) fn restore_working(&self, number: usize, before: Option<KeptRows>) {
        match before {
            Some(rows) => self.working.borrow_mut().insert(number, rows),
            None => self.working.borrow_mut().remove(&number),
        };
    }
}

impl Answer {
    /// Answers a question.
    pub(crate) fn to(&self, asked: &SubqueryUse, inputs: Inputs<'_>) -> Result<Value> {
        match asked {
            SubqueryUse::Exists => Ok(Value::Bool(!self.rows.is_empty())),
            SubqueryUse::Value => match &self.rows[..] {
                [] => Ok(Value::Null),
                [row] => Ok(row[0].clone()),
                _ => Err(error!("21000", "more than one row returned by a subquery used as an expression")),
            },
            SubqueryUse::Array => {
                let values: Vec<Value> = self.rows.iter().map(|row| row[0].clone()).collect();
                Ok(Value::Array(Box::new(values.into())))
            }
            SubqueryUse::Compare { comparison, values, is_all } => {
                Ok(self.compared(*comparison, &evaluate_all(values, inputs)?, *is_all))
            }
        }
    }

    fn compared(&self, comparison: Comparison, values: &[Value], is_all: bool) -> Value {
        if self.rows.is_empty() {
            return Value::Bool(is_all);
        }
        let is_set =
            !is_all && comparison == Comparison::Equal || is_all && comparison == Comparison::NotEqual;
        if is_set && !values.iter().any(Value::is_null) {
            let (set, has_null) = self.set.get_or_init(|| {
                let whole = self.rows.iter().filter(|row| !row.iter().any(Value::is_null));
                let set: HashSet<Vec<u8>> = whole.map(|row| encode::identity(row)).collect();
                let has_null = self.rows.iter().any(|row| row.iter().any(Value::is_null));
                (set, has_null)
            });
            let is_there = set.contains(&encode::identity(values));
            if is_there || !has_null {
                return Value::Bool(is_there != is_all);
            }
            if let [_] = values {
                return Value::Null;
            }
        }
        // The first row that decides; else NULL if one is unknown.
        let mut is_unknown = false;
        for row in &self.rows {
            match compare_rows(comparison, values, row) {
                Some(holds) if holds != is_all => return Value::Bool(holds),
                Some(_) => {}
                None => is_unknown = true,
            }
        }
        if is_unknown { Value::Null } else { Value::Bool(is_all) }
    }
}

/// Compares rows as SQL does; `None` if NULL leaves it open.
pub(crate) fn compare_rows(comparison: Comparison, one: &[Value], other: &[Value]) -> Option<bool> {
    let pairs = one.iter().zip(other);
    let mut is_unknown = false;
    for (one, other) in pairs {
        if one.is_null() || other.is_null() {
            if !matches!(comparison, Comparison::Equal | Comparison::NotEqual) {
                return None;
            }
            is_unknown = true;
            continue;
        }
        let order = one.compare(other);
        if order.is_ne() {
            return Some(comparison.holds(order));
        }
    }
    if is_unknown { None } else { Some(comparison.holds(std::cmp::Ordering::Equal)) }
}
