//! Joins: the rows of all sources of FROM together.
//!
//! The rows of a source that do not depend on others are kept in memory, with a table of their
//! values if some must be equal to those of the rows before. If they are too many, the rows of both
//! sides go to files in the order of a hash of these values, and are joined at the end, part by
//! part.

use std::{borrow::Cow, hash::BuildHasher};

use foldhash::HashMap;

use super::{
    Run, all_hold,
    scan::{SourceRows, each_row},
    spill::Spilled,
};
use crate::{
    bind::from::Source,
    error::{Result, SqlError},
    expr::{Comparison, Expr},
    spool::bytes_of,
    types::Value,
};

/// The least number of rows for which a join makes a table of their values.
const LEAST_HASHED: usize = 8;

/// Rows of a source that are kept for all rows before it.
struct Kept {
    rows: Vec<OwnRow>,
    is_matched: Vec<bool>,
    hashed: Option<Hashed>,
}

impl Kept {
    async fn new(
        run: &mut Run<'_>,
        rows: Vec<OwnRow>,
        of_before: Vec<Expr>,
        of_own: &[Expr],
    ) -> Result<Self> {
        let mut hashed = None;
        if !of_own.is_empty() && rows.len() >= LEAST_HASHED {
            run.keep_bytes(rows.len() * size_of::<[usize; 5]>())?;
            let mut new = Hashed::new(of_before, rows.len());
            let mut key = Vec::new();
            for (at, (_, row)) in rows.iter().enumerate() {
                if join_key(run, of_own, row, &mut key).await? {
                    new.add(&key, at);
                }
            }
            hashed = Some(new);
        }
        Ok(Self { is_matched: vec![false; rows.len()], rows, hashed })
    }
}

/// The rows of a source that are kept.
enum KeptSide {
    InMemory(Kept),
    Spilled(SpilledSides),
}

/// The places of kept rows by the hash of values that are equal to those of the rows before. The
/// conditions are tested for each row, so rows of other values do no harm.
struct Hashed {
    /// The expressions of the rows before.
    of_before: Vec<Expr>,
    /// The first and the last row of each hash.
    ends: HashMap<u64, (usize, usize)>,
    /// The row behind each, with the same hash; itself, if there is none.
    next: Vec<usize>,
}

impl Hashed {
    fn new(of_before: Vec<Expr>, rows: usize) -> Self {
        Self { of_before, ends: HashMap::default(), next: (0..rows).collect() }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.ends.hasher().hash_one(key)
    }

    fn add(&mut self, key: &[u8], at: usize) {
        let hash = self.hash(key);
        let (_, last) = self.ends.entry(hash).or_insert((at, at));
        self.next[std::mem::replace(last, at)] = at;
    }

    fn first(&self, key: &[u8]) -> Option<usize> {
        self.ends.get(&self.hash(key)).map(|(first, _)| *first)
    }

    fn after(&self, at: usize) -> Option<usize> {
        Some(self.next[at]).filter(|next| *next != at)
    }
}

/// Returns pairs of expressions that are equal in joined rows: of the rows before, and of the
/// source.
fn equal_pairs(source: &Source) -> (Vec<Expr>, Vec<Expr>) {
    let (start, end) = (source.offset, source.offset + source.width);
    let side = |expr: &Expr| {
        let (mut is_before, mut is_own, mut has_column) = (true, true, false);
        expr.columns(&mut |column| {
            has_column = true;
            is_before &= column < start;
            is_own &= (start..end).contains(&column);
        });
        (is_before, is_own && has_column)
    };
    let (mut before, mut own) = (Vec::new(), Vec::new());
    for condition in source.outer.as_ref().unwrap_or(&source.conditions) {
        let Expr::Compare(Comparison::Equal, one, other) = condition else { continue };
        let pair = match (side(one), side(other)) {
            ((true, _), (_, true)) => Some((one, other)),
            ((_, true), (true, _)) => Some((other, one)),
            _ => None,
        };
        if let Some((of_before, of_own)) = pair {
            let mut of_own = (**of_own).clone();
            of_own.move_columns(&|column| column - start);
            before.push((**of_before).clone());
            own.push(of_own);
        }
    }
    (before, own)
}

/// Makes the key of values that are equal in joined rows. Returns false if one of them is NULL.
async fn join_key(run: &mut Run<'_>, of: &[Expr], row: &[Value], key: &mut Vec<u8>) -> Result<bool> {
    run.complete(&mut |run| put_join_key(run, of, row, key)).await
}

fn put_join_key(run: &Run<'_>, of: &[Expr], row: &[Value], key: &mut Vec<u8>) -> Result<bool> {
    key.clear();
    let mut is_whole = true;
    for expr in of {
        is_whole &= expr.put_identity(key, run.inputs(row))?;
    }
    Ok(is_whole)
}

/// A row of a source: its key, if the source has it in its rows, and its values.
type OwnRow = (Vec<u8>, Vec<Value>);

/// The rows of both sides of a join, which go to files.
struct SpilledSides {
    of_before: Vec<Expr>,
    before: Spilled,
    own: Spilled,
}

fn bytes_of_own((key, values): &OwnRow) -> usize {
    size_of::<OwnRow>() + key.len() + bytes_of(values)
}

/// Keeps the rows of a source, in memory or in a file.
async fn keep(run: &mut Run<'_>, source: &Source) -> Result<KeptSide> {
    let (of_before, of_own) = equal_pairs(source);
    let (mut rows, mut bytes, mut spilled) = (Vec::new(), 0, None);
    let mut tests = Tests::Of(source, 0);
    let (mut key, most) = (Vec::new(), run.work_mem());
    // Those without a key have no partner.
    let mut spill = |run: &mut Run<'_>, own: &mut Spilled, row: OwnRow| -> Result<()> {
        let is_whole = put_join_key(run, &of_own, &row.1, &mut key)?;
        if is_whole || source.is_full {
            own.push(&key, [row.1, vec![Value::Bytes(row.0)]].concat())?;
        }
        Ok(())
    };
    each_row(run, source, &[], &mut |run, key, values| {
        tests.count(run, 1);
        if !all_hold(tests.filter(), run.inputs(values))? {
            return Ok(true);
        }
        let row = (if source.has_key { key.to_vec() } else { Vec::new() }, values.to_vec());
        if spilled.is_none() && bytes > most && !of_own.is_empty() {
            // What fails is repeated, so they stay until all are written.
            let mut own = Spilled::new(run);
            rows.iter().try_for_each(|row: &OwnRow| spill(run, &mut own, row.clone()))?;
            rows = Vec::new();
            run.memory -= bytes;
            spilled = Some(own);
        }
        match &mut spilled {
            Some(own) => spill(run, own, row)?,
            None => {
                let own_bytes = bytes_of_own(&row);
                bytes += own_bytes;
                run.keep_bytes(own_bytes)?;
                rows.push(row);
            }
        }
        Ok(true)
    })
    .await?;
    match spilled {
        None => Kept::new(run, rows, of_before, &of_own).await.map(KeptSide::InMemory),
        Some(own) => {
            let before = Spilled::new(run);
            Ok(KeptSide::Spilled(SpilledSides { of_before, before, own }))
        }
    }
}

/// Returns the values of a row, and its key behind them if the source has it there.
fn values_with_key<'a>(source: &Source, key: &[u8], values: &'a [Value]) -> Cow<'a, [Value]> {
    match source.has_key {
        false => Cow::Borrowed(values),
        true => Cow::Owned([values, &[Value::Bytes(key.to_vec())]].concat()),
    }
}

/// A source that is joined with those before it.
struct Level<'s> {
    source: &'s Source,
    tests: Tests<'s>,
    /// Its rows do not depend on others, so they are read once.
    is_kept: bool,
    kept: Option<KeptSide>,
}

impl<'s> Level<'s> {
    fn new((at, source): (usize, &'s Source)) -> Self {
        let is_point = source.table().is_some_and(|table| source.path.is_point(table));
        let tests = Tests::Of(source, 0);
        Self { source, tests, is_kept: at > 0 && source.is_constant() && !is_point, kept: None }
    }
}

/// The conditions of a source.
enum Tests<'s> {
    /// As they are; they were tested for so many rows.
    Of(&'s Source, usize),
    /// With what is the same for all rows: of the rows of the source, of joined rows with and
    /// without partner.
    Folded { filter: Vec<Expr>, outer: Option<Vec<Expr>>, conditions: Vec<Expr> },
}

/// The rows for which conditions are tested as they are.
const FEW_ROWS: usize = 32;

impl Tests<'_> {
    /// Notes rows that are to be tested.
    fn count(&mut self, run: &Run<'_>, rows: usize) {
        let Self::Of(source, count) = self else { return };
        *count += rows;
        if *count > FEW_ROWS {
            let fold = |all: &Vec<Expr>| {
                let mut all = all.clone();
                all.iter_mut().for_each(|expr| expr.fold(run.inputs(&[])));
                all
            };
            let (filter, outer) = (fold(&source.filter), source.outer.as_ref().map(fold));
            *self = Self::Folded { filter, outer, conditions: fold(&source.conditions) };
        }
    }

    fn filter(&self) -> &[Expr] {
        match self {
            Self::Of(source, _) => &source.filter,
            Self::Folded { filter, .. } => filter,
        }
    }

    fn outer(&self) -> Option<&[Expr]> {
        match self {
            Self::Of(source, _) => source.outer.as_deref(),
            Self::Folded { outer, .. } => outer.as_deref(),
        }
    }

    fn conditions(&self) -> &[Expr] {
        match self {
            Self::Of(source, _) => &source.conditions,
            Self::Folded { conditions, .. } => conditions,
        }
    }
}

/// The function that gets joined rows; it returns false to end.
type Act<'a> = &'a mut dyn FnMut(&mut Run<'_>, &[Value]) -> Result<bool>;

/// The rows and bytes that go to the next source at once.
const MOST_ROWS: usize = 1024;
const MOST_BYTES: usize = 1 << 20;

/// Joined rows on their way to the next source.
#[derive(Default)]
struct Batch {
    rows: Vec<Vec<Value>>,
    bytes: usize,
}

impl Batch {
    /// Adds a row if it meets the conditions of the last source, or gives it to `act` if there is
    /// no other source. Returns false to end.
    fn add(
        &mut self,
        run: &mut Run<'_>,
        tests: &Tests<'_>,
        row: &[Value],
        last: Option<Act<'_>>,
    ) -> Result<bool> {
        if !all_hold(tests.conditions(), run.inputs(row))? {
            return Ok(true);
        }
        if let Some(act) = last {
            return act(run, row);
        }
        let bytes = bytes_of(row);
        run.keep_bytes(bytes)?;
        self.bytes += bytes;
        self.rows.push(row.to_vec());
        Ok(true)
    }

    /// Adds a row of one side that has no partner. Returns false to end.
    async fn add_alone(
        &mut self,
        run: &mut Run<'_>,
        tests: &Tests<'_>,
        row: &[Value],
        rest: &mut [Level<'_>],
        act: Act<'_>,
    ) -> Result<bool> {
        let is_last = rest.is_empty();
        let mut add = |run: &mut Run<'_>| self.add(run, tests, row, is_last.then_some(&mut *act));
        let goes_on = run.complete(&mut add).await?;
        Ok(goes_on && self.go_on_if_full(run, rest, act).await?)
    }

    /// Gives the rows to the next sources if they are many. Returns false to end.
    async fn go_on_if_full(
        &mut self,
        run: &mut Run<'_>,
        levels: &mut [Level<'_>],
        act: Act<'_>,
    ) -> Result<bool> {
        let is_full = self.rows.len() >= MOST_ROWS || self.bytes >= MOST_BYTES;
        if is_full { self.go_on(run, levels, act).await } else { Ok(true) }
    }

    /// Gives the rows to the next sources. Returns false to end.
    async fn go_on(&mut self, run: &mut Run<'_>, levels: &mut [Level<'_>], act: Act<'_>) -> Result<bool> {
        let Self { rows, bytes } = std::mem::take(self);
        let goes_on = rows.is_empty() || Box::pin(join_rows(run, levels, rows, act)).await?;
        run.memory -= bytes;
        Ok(goes_on)
    }
}

/// Calls `act` with each row of the joined sources; it returns false to end.
pub(crate) async fn joined(run: &mut Run<'_>, sources: &[Source], act: Act<'_>) -> Result<()> {
    let mut levels: Vec<Level<'_>> = sources.iter().enumerate().map(Level::new).collect();
    if !join_rows(run, &mut levels, vec![Vec::new()], act).await? {
        return Ok(());
    }
    for at in 0..levels.len() {
        let goes_on = match levels[at].kept.take_if(|kept| matches!(kept, KeptSide::Spilled(_))) {
            Some(KeptSide::Spilled(sides)) => join_spilled(run, sides, &mut levels[at..], act).await?,
            _ if levels[at].source.is_full => join_unmatched(run, &mut levels[at..], act).await?,
            _ => true,
        };
        if !goes_on {
            break;
        }
    }
    Ok(())
}

/// The rows of both sides that are joined at once, about, when these are in files.
const PART_ROWS: usize = 10_000;

/// Joins the rows of both sides that went to files, part by part. Returns false to end.
async fn join_spilled(
    run: &mut Run<'_>,
    sides: SpilledSides,
    levels: &mut [Level<'_>],
    act: Act<'_>,
) -> Result<bool> {
    let (source, most) = (levels[0].source, run.work_mem());
    let (of_before, of_own) = equal_pairs(source);
    let (mut before, mut own) = (sides.before.rows().await?, sides.own.rows().await?);
    loop {
        let (mut first, mut rows) = (Vec::new(), Vec::new());
        let memory = run.memory;
        // All rows with a hash are in one part.
        while let Some(hash) = before.hash()?.into_iter().chain(own.hash()?).min() {
            if first.len() + rows.len() >= PART_ROWS || run.memory - memory > most {
                break;
            }
            while let Some(row) = before.next_up_to(hash)? {
                run.keep(&row)?;
                first.push(row);
            }
            while let Some(mut row) = own.next_up_to(hash)? {
                let Some(Value::Bytes(key)) = row.pop() else { break };
                let row = (key, row);
                run.keep_bytes(bytes_of_own(&row))?;
                rows.push(row);
            }
        }
        if first.is_empty() && rows.is_empty() {
            return Ok(true);
        }
        let kept = Kept::new(run, rows, of_before.clone(), &of_own).await?;
        let part = run.memory - memory;
        levels[0].kept = Some(KeptSide::InMemory(kept));
        let goes_on = join_rows(run, levels, first, act).await?
            && (!source.is_full || join_unmatched(run, levels, act).await?);
        levels[0].kept = None;
        // What others have kept meanwhile stays.
        run.memory -= part;
        if !goes_on {
            return Ok(false);
        }
    }
}

/// Joins rows with the next sources. Returns false to end.
async fn join_rows(
    run: &mut Run<'_>,
    levels: &mut [Level<'_>],
    before: Vec<Vec<Value>>,
    act: Act<'_>,
) -> Result<bool> {
    let Some((level, rest)) = levels.split_first_mut() else { return Ok(true) };
    let (source, is_last) = (level.source, rest.is_empty());
    let (mut batch, mut key) = (Batch::default(), Vec::new());
    // The values of a partner come behind those of the row, and go again.
    for mut row in before {
        let width = row.len();
        let mut has_match = false;
        // Returns whether the row has this partner, and whether to go on.
        let take = |run: &mut Run<'_>,
                    tests: &Tests<'_>,
                    batch: &mut Batch,
                    act: Act<'_>,
                    row: &mut Vec<Value>,
                    values: &[Value]| {
            let whole = match width {
                0 => values,
                _ => {
                    row.truncate(width);
                    row.extend_from_slice(values);
                    &row[..]
                }
            };
            if let Some(outer) = tests.outer()
                && !all_hold(outer, run.inputs(whole))?
            {
                return Ok((false, true));
            }
            let goes_on = batch.add(run, tests, whole, is_last.then_some(act))?;
            Ok::<_, SqlError>((true, goes_on))
        };
        if level.is_kept {
            if level.kept.is_none() {
                level.kept = Some(keep(run, source).await?);
            }
            let (rows, is_matched, hashed) = match &mut level.kept {
                Some(KeptSide::InMemory(Kept { rows, is_matched, hashed })) => (rows, is_matched, hashed),
                Some(KeptSide::Spilled(sides)) => {
                    let has_key = join_key(run, &sides.of_before, &row, &mut key).await?;
                    if has_key {
                        sides.before.push(&key, row)?;
                    } else if source.outer.is_some() {
                        row.resize(width + source.width, Value::Null);
                        if !batch.add_alone(run, &level.tests, &row, rest, act).await? {
                            return Ok(false);
                        }
                    }
                    continue;
                }
                None => break,
            };
            let mut next = match hashed {
                None => Some(0),
                Some(by) if join_key(run, &by.of_before, &row, &mut key).await? => by.first(&key),
                Some(_) => None,
            };
            while let Some(at) = next.filter(|at| *at < rows.len()) {
                next = hashed.as_ref().map_or(Some(at + 1), |by| by.after(at));
                level.tests.count(run, 1);
                let values = values_with_key(source, &rows[at].0, &rows[at].1);
                let mut join =
                    |run: &mut Run<'_>| take(run, &level.tests, &mut batch, act, &mut row, &values);
                let (is_partner, goes_on) = run.complete(&mut join).await?;
                is_matched[at] |= is_partner;
                has_match |= is_partner;
                if !goes_on || !batch.go_on_if_full(run, rest, act).await? {
                    return Ok(false);
                }
            }
        } else {
            let mut rows = SourceRows::open(run, source, &row).await?;
            while rows.next(run).await? {
                let (key, values) = rows.row();
                level.tests.count(run, 1);
                let tests = &level.tests;
                let mut join = |run: &mut Run<'_>| match all_hold(tests.filter(), run.inputs(values))? {
                    true => {
                        let values = values_with_key(source, key, values);
                        take(run, tests, &mut batch, act, &mut row, &values)
                    }
                    false => Ok((false, true)),
                };
                let (is_partner, goes_on) = run.complete(&mut join).await?;
                has_match |= is_partner;
                if !goes_on || !batch.go_on_if_full(run, rest, act).await? {
                    rows.close(run);
                    return Ok(false);
                }
            }
            rows.close(run);
        }
        if source.outer.is_some() && !has_match {
            row.truncate(width);
            row.resize(width + source.width, Value::Null);
            if !batch.add_alone(run, &level.tests, &row, rest, act).await? {
                return Ok(false);
            }
        }
    }
    batch.go_on(run, rest, act).await
}

/// Joins the rows of a source that had no partner with the next sources. Returns false to end.
async fn join_unmatched(run: &mut Run<'_>, levels: &mut [Level<'_>], act: Act<'_>) -> Result<bool> {
    let source = levels[0].source;
    let kept = match levels[0].kept.take() {
        Some(kept) => kept,
        None => keep(run, source).await?,
    };
    let kept = match kept {
        KeptSide::InMemory(kept) => kept,
        // No row came before it.
        KeptSide::Spilled(sides) => {
            levels[0].kept = None;
            return Box::pin(join_spilled(run, sides, levels, act)).await;
        }
    };
    let Some((level, rest)) = levels.split_first_mut() else { return Ok(true) };
    let mut batch = Batch::default();
    for ((_, values), _) in kept.rows.iter().zip(&kept.is_matched).filter(|(_, is_matched)| !**is_matched) {
        let whole = [&vec![Value::Null; source.offset][..], values].concat();
        if !batch.add_alone(run, &level.tests, &whole, rest, act).await? {
            return Ok(false);
        }
    }
    batch.go_on(run, rest, act).await
}
