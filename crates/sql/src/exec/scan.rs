//! Scans: the rows of one source of FROM.

use std::rc::Rc;

use foldhash::HashSet;
use plexus_base::BlockId;
use plexus_store::tree::{Entries, ScanPlace};

use super::{Run, join::joined, query};
use crate::{
    bind::{
        from::{Relation, Source},
        paths::Path,
        sets::SetCall,
    },
    catalog::Table,
    error::Result,
    expr::{Expr, Inputs, evaluate_all},
    types::{Type, Value, encode},
};

/// Rows that are kept in memory.
pub(crate) type KeptRows = Rc<Vec<Vec<Value>>>;

/// The keys that a path leads to.
enum Keys {
    None,
    Point(Vec<u8>),
    Range(Vec<u8>, Option<Vec<u8>>),
}

impl Keys {
    fn first(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Point(key) | Self::Range(key, _) => key,
        }
    }
}

/// The cost of a key that is sought, and of a row to which an index leads, compared with a row that
/// is read with those beside it.
const SEEK: f64 = 4.0;
const LOOKUP: f64 = 4.0;

/// The keys of a list whose rows are estimated.
const ESTIMATED: usize = 8;

/// Keys of the index of a path; `None`: of the rows themselves.
type PathKeys = (Option<usize>, Keys);

/// Returns the keys of a path with a list or with others in its place, in their order: the last one
/// first, unless it is backward.
async fn all_keys(run: &mut Run<'_>, path: &Path, table: &Table, before: &[Value]) -> Result<Vec<PathKeys>> {
    let mut find = |run: &mut Run<'_>| {
        let inputs = run.inputs(before);
        let mut all = Vec::new();
        for path in if path.any_of.is_empty() { std::slice::from_ref(path) } else { &path.any_of } {
            let mut values = evaluate_all(&path.prefix, inputs)?;
            let list = path.list.map(|at| (at, std::mem::replace(&mut values[at], Value::Null)));
            let Some((at, Value::Array(array))) = list else {
                all.push((path.index, keys_of(path, table, &values, inputs)?));
                continue;
            };
            for value in array.values {
                values[at] = value;
                all.push((path.index, keys_of(path, table, &values, inputs)?));
            }
        }
        Ok(all)
    };
    let mut all = run.complete(&mut find).await?;
    all.retain(|(_, keys)| !matches!(keys, Keys::None));
    all.sort_by(|(index, one), (other_index, other)| (other_index, other.first()).cmp(&(index, one.first())));
    if path.any_of.is_empty() {
        all.dedup_by(|(_, one), (_, other)| one.first() == other.first());
    }
    if path.is_backward {
        all.reverse();
    }
    Ok(all)
}

/// Returns the keys of a path or of the others beside it, whichever cost least, and the number of
/// the path; without one, those of all rows.
async fn cheapest_keys(
    run: &mut Run<'_>,
    path: &Path,
    table: &Table,
) -> Result<(Vec<PathKeys>, Option<usize>)> {
    let mut best = (vec![(None, Keys::Range(Vec::new(), None))], None);
    let mut least = run.by.rows_about(table.rows()).await? as f64;
    for (number, path) in [path].into_iter().chain(&path.others).enumerate() {
        let keys = all_keys(run, path, table, &[]).await?;
        let step = keys.len().div_ceil(ESTIMATED).max(1);
        let (mut estimated, mut cost) = (0.0, 0.0);
        for (index, keys) in keys.iter().step_by(step) {
            estimated += 1.0;
            cost += SEEK;
            if let Keys::Range(from, to) = keys {
                let tree = index.map_or(table.rows(), |index| table.indexes[index].tree());
                let rows = run.by.rows_between_about(tree, from, to.as_deref()).await?;
                cost += if index.is_some() { rows * LOOKUP } else { rows };
            }
        }
        let cost = if keys.is_empty() { 0.0 } else { cost / estimated * keys.len() as f64 };
        // The first path has the conditions that promise most.
        if cost < least {
            (best, least) = ((keys, Some(number)), cost);
        }
    }
    Ok(best)
}

/// Leaves only the path of a source on which its rows will be found, as the rows are now.
pub(crate) async fn choose_path(run: &mut Run<'_>, source: &mut Source) -> Result<()> {
    let Some(table) = source.table().cloned().filter(|table| source.path.has_choice(table)) else {
        return Ok(());
    };
    match cheapest_keys(run, &source.path, &table).await?.1 {
        None => source.path = Path::default(),
        Some(0) => {}
        Some(number) => source.path = source.path.others.swap_remove(number - 1),
    }
    Ok(())
}

/// Returns the keys of a path, for these first values and a row of the sources before it.
fn keys_of(path: &Path, table: &Table, values: &[Value], inputs: Inputs<'_>) -> Result<Keys> {
    let mut key = Vec::new();
    let mut of = path.types.iter().copied();
    for value in values {
        if value.is_null() {
            return Ok(Keys::None);
        }
        encode::put_key(&mut key, value, of.next().unwrap_or(Type::Unknown))?;
    }
    if path.is_point(table) {
        return Ok(Keys::Point(key));
    }
    let of = of.next().unwrap_or(Type::Unknown);
    let bound = |bound: &Option<(Expr, bool)>| -> Result<Option<(Vec<u8>, bool)>> {
        let Some((expr, is_closed)) = bound else { return Ok(None) };
        let value = expr.evaluate(inputs)?;
        let mut at = key.clone();
        encode::put_key(&mut at, &value, of)?;
        Ok(Some((at, *is_closed)))
    };
    let (lower, upper) = (bound(&path.lower)?, bound(&path.upper)?);
    let end = |of: &[u8]| encode::after(of);
    let from = match &lower {
        None => key.clone(),
        Some((at, true)) => at.clone(),
        Some((at, false)) => end(at).unwrap_or_else(|| at.clone()),
    };
    let to = match &upper {
        // NULL is the highest value.
        None if path.skips_null => Some([&key[..], &[encode::KEY_NULL]].concat()),
        None => end(&key),
        Some((at, true)) => end(at),
        Some((at, false)) => Some(at.clone()),
    };
    Ok(Keys::Range(from, to))
}

/// The rows of a source that a row of the sources before it leads to, one after the other.
pub(super) struct SourceRows<'s> {
    source: &'s Source,
    place: RowsPlace,
    /// The index of the present keys, and those that are left, the next one last.
    index: Option<usize>,
    rest: Vec<PathKeys>,
    /// The keys of the rows that were found, if several ways can lead to one.
    seen: Option<HashSet<Vec<u8>>>,
    /// The present row of a table. Its memory is used for the next one.
    key: Vec<u8>,
    values: Vec<Value>,
    /// The bytes of rows that are kept until the end.
    own: usize,
}

/// The rows with which a source goes on.
enum RowsPlace {
    End,
    Point(Vec<u8>),
    Kept(KeptRows, usize),
    Range(Box<Range>),
}

struct Range {
    from: Vec<u8>,
    to: Option<Vec<u8>>,
    tree: BlockId,
    /// Entries that were found, and how many of them are done.
    found: Entries,
    done: usize,
    /// The keys of the rows of an entry of an index, the last first.
    keys: Vec<Vec<u8>>,
    next: Option<NextRows>,
}

/// The entries with which a scan goes on.
enum NextRows {
    From(ScanPlace),
    Below(Option<Vec<u8>>),
}

impl<'s> SourceRows<'s> {
    pub(super) async fn open(run: &mut Run<'_>, source: &'s Source, before: &[Value]) -> Result<Self> {
        let (place, index) = (RowsPlace::End, source.path.index);
        let seen = (!source.path.any_of.is_empty()).then(HashSet::default);
        let (rest, key, values) = (Vec::new(), Vec::new(), Vec::new());
        let mut opened = Self { source, place, index, rest, seen, key, values, own: 0 };
        let Relation::Table(table) = &source.relation else {
            let memory = run.memory;
            let rows = Box::pin(rows_of(run, source, before)).await?;
            // Those of a query in FROM are gone at the end.
            if matches!(source.relation, Relation::Query { .. } | Relation::Joined(_)) {
                opened.own = run.memory - memory;
            }
            opened.place = RowsPlace::Kept(rows, 0);
            return Ok(opened);
        };
        let path = &source.path;
        if before.is_empty() && path.has_choice(table) {
            opened.rest = cheapest_keys(run, path, table).await?.0;
            return Ok(opened);
        }
        if path.list.is_some() || opened.seen.is_some() {
            opened.rest = all_keys(run, path, table, before).await?;
            return Ok(opened);
        }
        let keys = |run: &mut Run<'_>| {
            let inputs = run.inputs(before);
            keys_of(path, table, &evaluate_all(&path.prefix, inputs)?, inputs)
        };
        let keys = run.complete(&mut |run| keys(run)).await?;
        opened.begin(table, path.index, keys);
        Ok(opened)
    }

    /// Begins with the rows of keys.
    fn begin(&mut self, table: &Table, index: Option<usize>, keys: Keys) {
        self.index = index;
        self.place = match keys {
            Keys::None => RowsPlace::End,
            Keys::Point(key) => RowsPlace::Point(key),
            Keys::Range(from, to) => {
                let tree = index.map_or(table.rows(), |index| table.indexes[index].tree());
                let next = match self.source.path.is_backward {
                    true => NextRows::Below(to.clone()),
                    false => NextRows::From(ScanPlace::from(&from)),
                };
                let (found, next) = (Entries::default(), Some(next));
                RowsPlace::Range(Box::new(Range { from, to, tree, found, done: 0, keys: Vec::new(), next }))
            }
        };
    }

    /// Goes to the next row, if it is there without waiting.
    fn go_on(&mut self) -> Result<bool> {
        match &mut self.place {
            RowsPlace::Kept(rows, next) => {
                *next += 1;
                Ok(*next <= rows.len())
            }
            RowsPlace::Range(range) if self.index.is_none() => {
                let Some((key, row)) = range.found.entry(range.done) else { return Ok(false) };
                if self.source.path.is_backward && *key < range.from[..] {
                    return Ok(false);
                }
                range.done += 1;
                self.key.clear();
                self.key.extend_from_slice(key);
                self.source.read(row, &mut self.values)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Goes to the next row, which may have to be read. Returns false at the end.
    async fn read_on(&mut self, run: &mut Run<'_>) -> Result<bool> {
        let Some(table) = self.source.table() else { return Ok(false) };
        loop {
            let key = match &mut self.place {
                RowsPlace::Kept(..) => return Ok(false),
                RowsPlace::End => {
                    let Some((index, keys)) = self.rest.pop() else { return Ok(false) };
                    self.begin(table, index, keys);
                    continue;
                }
                RowsPlace::Point(key) => {
                    let key = std::mem::take(key);
                    self.place = RowsPlace::End;
                    key
                }
                RowsPlace::Range(range) => {
                    if let Some(key) = range.keys.pop() {
                        key
                    } else if let Some((entry, value)) = range.found.entry(range.done) {
                        if self.source.path.is_backward && *entry < range.from[..] {
                            self.place = RowsPlace::End;
                            continue;
                        }
                        range.done += 1;
                        let index = self.index.map(|index| &table.indexes[index]);
                        let keys = index.map(|index| index.row_keys(value)).unwrap_or_default();
                        range.keys = keys.into_iter().rev().map(<[u8]>::to_vec).collect();
                        continue;
                    } else if !range.read_more(run).await? {
                        self.place = RowsPlace::End;
                        continue;
                    } else if self.go_on()? {
                        return Ok(true);
                    } else {
                        continue;
                    }
                }
            };
            if let Some(row) = run.by.get(table.rows(), &key).await? {
                self.key = key;
                self.source.read(&row, &mut self.values)?;
                return Ok(true);
            }
        }
    }

    /// Goes to the next row. Returns false at the end.
    pub(super) async fn next(&mut self, run: &mut Run<'_>) -> Result<bool> {
        // What waits is in a box: it is large, and most rows do not need it.
        while self.go_on()? || Box::pin(self.read_on(run)).await? {
            let Some(seen) = &mut self.seen else { return Ok(true) };
            if seen.insert(self.key.clone()) {
                let bytes = size_of::<Vec<u8>>() + self.key.len();
                self.own += bytes;
                run.keep_bytes(bytes)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the key and the values of the present row.
    pub(super) fn row(&self) -> (&[u8], &[Value]) {
        match &self.place {
            RowsPlace::Kept(rows, next) => (&[], next.checked_sub(1).map_or(&[][..], |at| &rows[at])),
            _ => (&self.key, &self.values),
        }
    }

    /// Ends it: its rows are gone.
    pub(super) fn close(self, run: &mut Run<'_>) {
        run.memory -= self.own;
    }
}

impl Range {
    /// Reads the next entries. Returns false at the end.
    async fn read_more(&mut self, run: &mut Run<'_>) -> Result<bool> {
        (self.found, self.next) = match self.next.take() {
            None => return Ok(false),
            Some(NextRows::From(place)) => {
                let (found, next) = run.by.scan_below(self.tree, &place, self.to.as_deref()).await?;
                (found, next.map(NextRows::From))
            }
            Some(NextRows::Below(key)) => {
                let (found, next) = run.by.scan_back(self.tree, key.as_deref()).await?;
                (found, next.map(|key| NextRows::Below(Some(key))))
            }
        };
        self.done = 0;
        Ok(true)
    }
}

/// Calls `act` with the key and the values of each row of a source that a row of the sources before
/// it leads to; it returns false to end. It is called again with the same row when it has missed
/// what a subquery gives.
pub(crate) async fn each_row(
    run: &mut Run<'_>,
    source: &Source,
    before: &[Value],
    act: &mut dyn FnMut(&mut Run<'_>, &[u8], &[Value]) -> Result<bool>,
) -> Result<()> {
    let mut rows = SourceRows::open(run, source, before).await?;
    while rows.next(run).await? {
        let (key, values) = rows.row();
        if !run.complete(&mut |run| act(run, key, values)).await? {
            break;
        }
    }
    rows.close(run);
    Ok(())
}

/// Returns the rows of a relation that is no table.
async fn rows_of(run: &mut Run<'_>, source: &Source, before: &[Value]) -> Result<KeptRows> {
    match &source.relation {
        Relation::Table(_) => Ok(Rc::default()),
        Relation::System(table) => {
            let context = run.context;
            match table.name {
                "pg_stat_activity" => context.sessions.find().await,
                "pg_stat_statements" => context.sessions.find_statements().await,
                _ => {}
            }
            run.complete(&mut |_| context.definitions.rows(table, context)).await
        }
        Relation::Sequence(sequence) => {
            let (last, is_called) = sequence.state(run.by).await?;
            Ok(Rc::new(vec![vec![Value::Int(last), Value::Int(0), Value::Bool(is_called)]]))
        }
        Relation::Query { query, outer: None } => {
            let outer = run.outer;
            query::kept(run, query, outer).await.map(Rc::new)
        }
        Relation::Query { query, outer: Some(outer) } => {
            let outer = run.evaluate(outer, before).await?;
            query::kept(run, query, &outer).await.map(Rc::new)
        }
        Relation::Shared(shared) => query::shared(run, shared).await,
        Relation::Working(number) => Ok(run.context.answers.working(*number)),
        Relation::Functions(calls, is_numbered) => {
            let mut rows =
                run.complete(&mut |run| call_all(calls, run.inputs(before), calls.len() > 1)).await?;
            if *is_numbered {
                (1..).zip(&mut rows).for_each(|(number, row)| row.push(Value::Int(number)));
            }
            Ok(Rc::new(rows))
        }
        Relation::Joined(sources) => {
            let mut rows = Vec::new();
            joined(run, sources, &mut |run, row| {
                run.keep(row)?;
                rows.push(row.to_vec());
                Ok(true)
            })
            .await?;
            Ok(Rc::new(rows))
        }
    }
}

/// Returns the rows of functions side by side; those with fewer rows get NULL.
pub(super) fn call_all(calls: &[SetCall], inputs: Inputs<'_>, is_padded: bool) -> Result<Vec<Vec<Value>>> {
    let mut all = Vec::new();
    for call in calls {
        let values = evaluate_all(&call.arguments, inputs)?;
        let is_missing = !call.function.name().is_empty() && values.iter().any(Value::is_null);
        let rows = match is_missing {
            true => Vec::new(),
            false => (call.function.act)(&values, &call.types, inputs.context)?,
        };
        all.push((rows, call.columns.len()));
    }
    if !is_padded && all.len() == 1 {
        return Ok(all.pop().unwrap_or_default().0);
    }
    let count = all.iter().map(|(rows, _)| rows.len()).max().unwrap_or(0);
    let row = |at: usize| {
        let parts = all
            .iter()
            .map(|(rows, width)| rows.get(at).cloned().unwrap_or_else(|| vec![Value::Null; *width]));
        parts.flatten().collect()
    };
    Ok((0..count).map(row).collect())
}
