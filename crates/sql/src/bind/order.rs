//! The order in which the sources of a query are joined, by the sizes of their tables.
//!
//! The first source is read row by row. Each other one is kept by the values that must be equal, or
//! its rows are looked up one by one. All first sources are tried; the next one is always that
//! which costs least with its result. The unit of costs is the reading of one row. Nothing is known
//! of the values of columns, so conditions have a fixed share of rows.

use std::collections::BTreeSet;

use super::{
    Parameters, ScopeColumn,
    from::{Relation, Source, conjuncts},
    paths::choose_path,
};
use crate::{
    catalog::Table,
    expr::{Comparison, Expr},
};

/// The rows of a source that is no table.
const OTHER_ROWS: f64 = 1000.0;

/// Sources with fewer rows stay in the order of FROM, and so do more sources.
const LEAST_ROWS: f64 = 1000.0;
const MOST_SOURCES: usize = 12;

/// The cost of a row that is looked up by a key, kept for a join, compared with kept ones, and
/// joined.
const LOOKUP: f64 = 4.0;
const KEEP: f64 = 0.7;
const COMPARE: f64 = 0.6;
const JOINED: f64 = 0.5;

/// Another order is taken if it costs less than this part of the order of FROM.
const GAIN: f64 = 0.8;

/// A source, with estimates of its rows.
struct Size<'s> {
    source: &'s Source,
    /// The rows, and those that meet its own conditions.
    all: f64,
    wanted: f64,
    /// Its columns that are equal to values without columns.
    fixed: BTreeSet<usize>,
}

/// Columns of two sources that are equal in joined rows; `None` for other expressions.
struct Edge {
    sides: [(usize, Option<usize>); 2],
}

/// An order of sources: their numbers, which of them are kept though they could be looked up, and
/// the cost.
struct Order {
    sources: Vec<(usize, bool)>,
    cost: f64,
}

/// Brings the sources of inner joins into a better order, and gives all columns their new places.
/// Without the sizes of all tables, which are wanted then, nothing is changed.
pub(super) fn order(
    sources: &mut Vec<Source>,
    columns: &mut [ScopeColumn],
    conditions: &mut [Expr],
    parameters: &Parameters,
) {
    let is_free = |source: &Source| source.outer.is_none() && !source.is_full && !source.has_key;
    let is_free = |source: &Source| is_free(source) && !source.depends();
    if !(2..=MOST_SOURCES).contains(&sources.len())
        || !sources.iter().all(is_free)
        || conditions.iter().any(Expr::is_volatile)
    {
        return;
    }
    // Each is asked for, so all that are missing are found at once.
    let rows: Vec<Option<f64>> = sources
        .iter()
        .map(|source| source.table().map_or(Some(OTHER_ROWS), |table| parameters.size_of(table)))
        .collect();
    let Some(rows) = rows.into_iter().collect::<Option<Vec<_>>>() else { return };
    if rows.iter().all(|rows| *rows < LEAST_ROWS) {
        return;
    }
    let sizes: Vec<Size<'_>> =
        sources.iter().zip(rows).map(|(source, rows)| Size::new(source, rows, conditions)).collect();
    let edges: Vec<Edge> = conditions.iter().filter_map(|expr| Edge::new(expr, sources)).collect();
    let given = Order::of(&sizes, &edges, 0, true);
    let best = (0..sizes.len()).map(|first| Order::of(&sizes, &edges, first, false));
    let best = best.min_by(|one, other| one.cost.total_cmp(&other.cost));
    let best = best.filter(|best| best.cost < GAIN * given.cost).unwrap_or(given);

    let width = sources.iter().map(|source| source.width).sum();
    let (mut places, mut at) = (vec![0; width], 0);
    let mut ordered = Vec::with_capacity(sources.len());
    for (number, is_kept) in best.sources {
        let mut source = sources[number].clone();
        for column in 0..source.width {
            places[source.offset + column] = at + column;
        }
        (source.offset, source.is_kept) = (at, is_kept);
        at += source.width;
        ordered.push(source);
    }
    *sources = ordered;
    let to = |column: usize| places[column];
    conditions.iter_mut().for_each(|expr| expr.move_columns(&to));
    columns.iter_mut().for_each(|column| column.value.move_columns(&to));
}

/// Lets sources be kept that could be looked up.
pub(super) fn keep_chosen(sources: &mut [Source]) {
    for source in sources.iter_mut().filter(|source| source.is_kept) {
        if let Relation::Table(table) = &source.relation {
            let own: Vec<Expr> =
                source.conditions.iter().filter(|expr| source.has_all(expr)).cloned().collect();
            source.path = choose_path(table, source.offset, &own);
        }
    }
}

impl<'s> Size<'s> {
    fn new(source: &'s Source, all: f64, conditions: &[Expr]) -> Self {
        let mut size = Self { source, all: all.max(1.0), wanted: all.max(1.0), fixed: BTreeSet::new() };
        for expr in conditions.iter().filter(|expr| source.has_all(expr)) {
            size.wanted *= share(expr);
            if let Expr::Compare(Comparison::Equal, one, other) = expr {
                let sides = [(one, other), (other, one)];
                let fixed = sides.into_iter().filter(|(_, value)| !value.has_column());
                size.fixed
                    .extend(fixed.filter_map(|(side, _)| column(side)).map(|column| column - source.offset));
            }
        }
        if size.is_unique(&size.fixed) {
            size.wanted = 1.0;
        }
        size.wanted = size.wanted.max(1.0);
        size
    }

    fn keys(&self) -> impl Iterator<Item = (&[usize], bool)> {
        let table = self.source.table().map(|table| &**table);
        table.into_iter().flat_map(keys_of)
    }

    /// Returns whether these columns have other values in each row.
    fn is_unique(&self, columns: &BTreeSet<usize>) -> bool {
        self.keys().any(|(key, is_unique)| is_unique && key.iter().all(|column| columns.contains(column)))
    }

    /// Returns whether a key begins with one of these columns.
    fn has_path(&self, columns: &BTreeSet<usize>) -> bool {
        self.keys().any(|(key, _)| columns.contains(&key[0]))
    }
}

/// Returns the columns of each key and index of a table, and whether it is unique.
fn keys_of(table: &Table) -> impl Iterator<Item = (&[usize], bool)> {
    let primary = table.primary.iter().map(|key| (&key.columns[..], true));
    let indexes = table.indexes.iter().map(|index| (&index.columns[..], index.is_unique));
    primary.chain(indexes).filter(|(columns, _)| !columns.is_empty())
}

/// Returns the share of rows that meet a condition, as far as its form tells.
fn share(expr: &Expr) -> f64 {
    match expr {
        Expr::Compare(Comparison::Equal, ..) => 0.02,
        Expr::Compare(Comparison::NotEqual, ..) => 0.9,
        Expr::Compare(..) => 0.33,
        Expr::Like { .. } => 0.1,
        Expr::In(_, all) => (0.02 * all.len() as f64).min(0.5),
        Expr::IsNull(_) => 0.05,
        Expr::And(all) => all.iter().map(share).product(),
        Expr::Or(all) => all.iter().map(share).sum::<f64>().min(1.0),
        Expr::Not(one) => (1.0 - share(one)).max(0.1),
        _ => 0.5,
    }
}

/// Returns the column that an expression is, or is a cast of.
fn column(expr: &Expr) -> Option<usize> {
    match expr {
        Expr::Column(column) => Some(*column),
        Expr::Cast { value, .. } => column(value),
        _ => None,
    }
}

impl Edge {
    fn new(expr: &Expr, sources: &[Source]) -> Option<Self> {
        let Expr::Compare(Comparison::Equal, one, other) = expr else { return None };
        let side = |expr: &Expr| {
            let number = sources.iter().position(|source| expr.has_column() && source.has_all(expr))?;
            Some((number, column(expr).map(|column| column - sources[number].offset)))
        };
        let sides = [side(one)?, side(other)?];
        (sides[0].0 != sides[1].0).then_some(Self { sides })
    }
}

impl Order {
    /// Orders sources behind a first one, or as they are given.
    fn of(sizes: &[Size<'_>], edges: &[Edge], first: usize, is_given: bool) -> Self {
        let size = &sizes[first];
        let mut rows = size.wanted;
        let has_path = size.has_path(&size.fixed);
        let cost = if has_path { LOOKUP * size.wanted } else { size.all };
        let mut order = Self { sources: vec![(first, false)], cost };
        while order.sources.len() < sizes.len() {
            let is_new = |number: &usize| order.sources.iter().all(|(known, _)| known != number);
            let new = (0..sizes.len()).filter(is_new).take(if is_given { 1 } else { sizes.len() });
            let steps = new.map(|number| (number, order.step(sizes, edges, number, rows)));
            let best = steps
                .min_by(|(_, one), (_, other)| (one.cost + one.rows).total_cmp(&(other.cost + other.rows)));
            let Some((number, step)) = best else { break };
            order.sources.push((number, step.is_kept));
            order.cost += step.cost;
            rows = step.rows;
        }
        order
    }

    /// Joins a source with so many rows of those before it.
    fn step(&self, sizes: &[Size<'_>], edges: &[Edge], number: usize, rows: f64) -> Step {
        let size = &sizes[number];
        let mut equal = size.fixed.clone();
        // The columns of the sources before it.
        let mut others: Vec<(usize, BTreeSet<usize>)> = Vec::new();
        for Edge { sides: [one, other] } in edges {
            let sides = [(one, other), (other, one)];
            for (own, (known, of_known)) in sides.into_iter().filter(|(own, _)| own.0 == number) {
                if self.sources.iter().all(|(source, _)| source != known) {
                    continue;
                }
                equal.extend(own.1);
                let at = others.iter().position(|(source, _)| source == known).unwrap_or_else(|| {
                    others.push((*known, sizes[*known].fixed.clone()));
                    others.len() - 1
                });
                others[at].1.extend(*of_known);
            }
        }
        let keep = size.all + KEEP * size.wanted + COMPARE * rows;
        if others.is_empty() {
            let joined = rows * size.wanted;
            return Step { rows: joined, cost: keep + joined, is_kept: false };
        }
        // The rows of this source for each row before it, with its conditions and without.
        let part = match size.is_unique(&equal) {
            true => 1.0 / size.all,
            false => {
                let parts = others.iter().map(|(known, columns)| match sizes[*known].is_unique(columns) {
                    true => 1.0 / sizes[*known].all,
                    false => 1.0 / size.all.min(sizes[*known].all).sqrt(),
                });
                parts.fold(1.0, f64::min)
            }
        };
        let joined = (rows * part * size.wanted).max(1.0);
        let lookup = LOOKUP * rows * (1.0 + part * size.all);
        let has_path = size.has_path(&equal);
        let cost = if has_path { lookup.min(keep) } else { keep };
        Step { rows: joined, cost: cost + JOINED * joined, is_kept: has_path && keep < lookup }
    }
}

/// A source that is joined with those before it.
struct Step {
    rows: f64,
    cost: f64,
    is_kept: bool,
}

/// Takes out of OR what all its parts demand. Of what is left, each source gets what it demands of
/// it alone.
pub(super) fn divide(conditions: Vec<Expr>, sources: &[Source]) -> Vec<Expr> {
    let mut divided = Vec::with_capacity(conditions.len());
    for condition in conditions {
        // A number that is drawn twice is another one.
        let parts = match condition {
            Expr::Or(parts) if !parts.iter().any(Expr::is_volatile) => parts,
            other => {
                divided.push(other);
                continue;
            }
        };
        let mut parts: Vec<Vec<Expr>> = parts
            .into_iter()
            .map(|part| {
                let mut all = Vec::new();
                conjuncts(part, &mut all);
                all
            })
            .collect();
        let text = |expr: &Expr| format!("{expr:?}");
        let has = |part: &[Expr], wanted: &str| part.iter().any(|expr| text(expr) == wanted);
        let common: Vec<String> = match &parts[..] {
            [first, others @ ..] => {
                let texts = first.iter().map(text);
                texts.filter(|wanted| others.iter().all(|part| has(part, wanted))).collect()
            }
            [] => Vec::new(),
        };
        for (number, part) in parts.iter_mut().enumerate() {
            let is_common = |expr: &mut Expr| common.contains(&text(expr));
            let taken: Vec<Expr> = part.extract_if(.., is_common).collect();
            if number == 0 {
                divided.extend(taken);
            }
        }
        if parts.iter().any(Vec::is_empty) {
            continue;
        }
        let whole = |parts: Vec<Vec<Expr>>| Expr::Or(parts.into_iter().map(Expr::And).collect());
        for source in sources.iter().filter(|_| sources.len() > 1) {
            let is_own = |expr: &&Expr| expr.has_column() && source.has_all(expr) && !expr.has_subquery();
            let own: Vec<Vec<Expr>> =
                parts.iter().map(|part| part.iter().filter(is_own).cloned().collect()).collect();
            let is_whole = own.iter().zip(&parts).all(|(own, part)| own.len() == part.len());
            if !is_whole && own.iter().all(|part| !part.is_empty()) {
                divided.push(whole(own));
            }
        }
        divided.push(whole(parts));
    }
    divided
}
