//! The ways to the rows of tables: which key or index serves which conditions.

use std::rc::Rc;

use super::{
    from::{Relation, Source, conjuncts},
    select::OrderKey,
};
use crate::{
    catalog::Table,
    dml::target::BoundIndex,
    expr::{Comparison, Expr},
    spool::Direction,
    types::Type,
};

/// The place of an expression among the columns of a key.
const NO_COLUMN: usize = usize::MAX;

/// The way to the rows of a table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Path {
    /// The index; `None`: the order of the rows themselves.
    pub(crate) index: Option<usize>,
    /// The values of the first columns of the key.
    pub(crate) prefix: Vec<Expr>,
    /// The place in `prefix` of an array: the column has one of its values.
    pub(crate) list: Option<usize>,
    /// The bounds of the next column; true if the value itself belongs to it.
    pub(crate) lower: Option<(Expr, bool)>,
    pub(crate) upper: Option<(Expr, bool)>,
    /// The columns of the key, and the types of their values; [`NO_COLUMN`] for an expression.
    pub(crate) columns: Vec<usize>,
    pub(crate) types: Vec<Type>,
    /// The rows come from the last one to the first one.
    pub(crate) is_backward: bool,
    /// It leads to no row with NULL in the column behind the equal ones.
    pub(crate) skips_null: bool,
    /// The query relies on the order of its rows.
    pub(crate) is_ordered: bool,
    /// Other ways to the rows. The numbers of rows decide when the values are known.
    pub(crate) others: Vec<Path>,
    /// In the place of all others: each row is on one of these ways, or on several.
    pub(crate) any_of: Vec<Path>,
}

impl Path {
    /// Returns true if it leads to at most one row, by its primary key.
    pub(crate) fn is_point(&self, table: &Table) -> bool {
        self.index.is_none()
            && self.list.is_none()
            && table.primary.as_ref().is_some_and(|primary| primary.columns.len() == self.prefix.len())
    }

    /// Returns true if all columns of a unique key have one value, or one of a list.
    fn is_key(&self, table: &Table) -> bool {
        let is_unique = self.index.is_none_or(|index| table.indexes[index].is_unique);
        is_unique && self.prefix.len() == self.columns.len() && !self.columns.is_empty()
    }

    /// Returns true if other ways can cost less, which the numbers of rows tell when the values are
    /// known.
    pub(crate) fn has_choice(&self, table: &Table) -> bool {
        let is_sure =
            self.is_key(table) && self.list.is_none() || self.index.is_none() && self.list.is_none();
        !self.is_ordered && (!is_sure || !self.others.is_empty() || !self.any_of.is_empty())
    }

    /// Returns true if it leads to rows in the order of these columns, those with equal values in
    /// any order.
    fn orders(&self, wanted: &[usize]) -> bool {
        let (equal, rest) = self.columns.split_at(self.prefix.len());
        let listed = self.list.map(|at| &equal[at]);
        let mut rest = listed.into_iter().chain(rest);
        let is_equal = |column: &usize| equal.contains(column) && listed != Some(column);
        wanted.iter().all(|column| is_equal(column) || rest.next() == Some(column))
    }

    /// Returns true if it leads to all rows.
    fn is_whole(&self) -> bool {
        self.prefix.is_empty() && self.lower.is_none() && self.upper.is_none() && self.any_of.is_empty()
    }

    /// Calls `act` with each of its expressions, to change it.
    pub(super) fn exprs(&mut self, act: &mut dyn FnMut(&mut Expr)) {
        let bounds = [&mut self.lower, &mut self.upper].into_iter().flatten().map(|(bound, _)| bound);
        self.prefix.iter_mut().chain(bounds).for_each(&mut *act);
        self.any_of.iter_mut().chain(&mut self.others).for_each(|path| path.exprs(act));
    }

    /// Returns whether a test holds for one of its expressions.
    pub(super) fn any(&self, test: fn(&Expr) -> bool) -> bool {
        let bounds = [&self.lower, &self.upper].into_iter().flatten().map(|(bound, _)| bound);
        self.prefix.iter().chain(bounds).any(test)
            || self.any_of.iter().chain(&self.others).any(|path| path.any(test))
    }

    /// Returns true if it does not depend on sources before it.
    pub(crate) fn is_constant(&self) -> bool {
        !self.any(Expr::has_column)
    }
}

/// Returns the number of sources that a condition needs.
fn needs(expr: &Expr, offsets: &[usize]) -> usize {
    let mut last = None;
    expr.columns(&mut |column| last = last.max(Some(column)));
    last.map_or(0, |column| offsets.iter().filter(|offset| **offset <= column).count())
}

/// A part of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
enum KeyPart {
    Column(usize),
    /// An expression over the columns of the table, as a text.
    Expression(String),
}

impl KeyPart {
    /// Returns the part that an expression can be; its first column has this number.
    fn of(expr: &Expr, offset: usize) -> Self {
        match expr.key_column() {
            Some(column) => Self::Column(column - offset),
            None => Self::Expression(text_of(expr, offset)),
        }
    }
}

/// Returns the text of an expression, which is equal for equal ones.
fn text_of(expr: &Expr, offset: usize) -> String {
    // Whether a cast is written or not makes no difference.
    fn forget(expr: &mut Expr) {
        if let Expr::Cast { is_explicit, .. } = expr {
            *is_explicit = false;
        }
        expr.children_mut(&mut forget);
    }
    let mut own = expr.clone();
    own.move_columns(&|column| column - offset);
    forget(&mut own);
    format!("{own:?}")
}

/// A condition `part comparison value`, where the value needs only the sources before.
struct Bound {
    part: KeyPart,
    /// `None`: the part has one of the values of an array.
    comparison: Option<Comparison>,
    value: Expr,
}

impl Bound {
    fn of(expr: &Expr, offset: usize, table: &Table) -> Option<Self> {
        let end = offset + table.columns.len();
        let has_parts = table.indexes.iter().any(|index| !index.is_plain());
        let is_own = |side: &Expr| {
            (has_parts || side.key_column().is_some())
                && side.has_column()
                && !side.any_column(|column| !(offset..end).contains(&column))
                && !side.is_volatile()
        };
        let is_known = |value: &Expr| !value.any_column(|column| column >= offset) && !value.is_volatile();
        if let Some((value, array)) = expr.list() {
            let is_it = is_own(value) && is_known(&array);
            return is_it.then(|| Self { part: KeyPart::of(value, offset), comparison: None, value: array });
        }
        let Expr::Compare(comparison, one, other) = expr else { return None };
        let sides = [(one, *comparison, other), (other, comparison.exchanged(), one)];
        let (side, comparison, value) =
            sides.into_iter().find(|(side, _, value)| is_own(side) && is_known(value))?;
        let (part, value) = (KeyPart::of(side, offset), (**value).clone());
        Some(Self { part, comparison: Some(comparison), value })
    }
}

/// The parts of a key of a table, and its index, if it is not that of the rows themselves.
struct TableKey {
    index: Option<usize>,
    parts: Vec<KeyPart>,
    types: Vec<Type>,
}

impl TableKey {
    /// Returns the keys of a table by which rows with these conditions can be found.
    fn all(table: &Table, offset: usize, conditions: &[Expr], bounds: &[Bound]) -> Vec<Self> {
        let plain = |index: Option<usize>, columns: &[usize]| Self {
            index,
            parts: columns.iter().copied().map(KeyPart::Column).collect(),
            types: columns.iter().map(|column| table.columns[*column].of).collect(),
        };
        let mut all: Vec<Self> = table.primary.iter().map(|primary| plain(None, &primary.columns)).collect();
        for (at, index) in table.indexes.iter().enumerate() {
            if index.is_plain() {
                all.push(plain(Some(at), &index.columns));
                continue;
            }
            if index.is_building {
                continue;
            }
            let Ok(bound) = BoundIndex::of(table, index) else { continue };
            // Its entries are those of the rows with a condition: is it demanded here?
            let mut demanded = Vec::new();
            bound.condition.into_iter().for_each(|condition| conjuncts(condition, &mut demanded));
            let is_met = |wanted: &Expr| match wanted {
                Expr::Not(inner) if let Expr::IsNull(value) = &**inner => {
                    bounds.iter().any(|bound| bound.part == KeyPart::of(value, 0))
                }
                _ => false,
            };
            let has = |wanted: &Expr| {
                let text = text_of(wanted, 0);
                conditions.iter().any(|known| {
                    !known.any_column(|column| column < offset) && text_of(known, offset) == text
                })
            };
            if demanded.iter().all(|wanted| is_met(wanted) || has(wanted)) {
                let (parts, types) =
                    bound.parts.into_iter().map(|(part, of)| (KeyPart::of(&part, 0), of)).unzip();
                all.push(Self { index: Some(at), parts, types });
            }
        }
        all
    }

    /// Returns the way by this key to all rows that it has.
    fn path(&self) -> Path {
        let column = |part: &KeyPart| match part {
            KeyPart::Column(column) => *column,
            KeyPart::Expression(_) => NO_COLUMN,
        };
        let columns = self.parts.iter().map(column).collect();
        Path { index: self.index, columns, types: self.types.clone(), ..Path::default() }
    }
}

/// Chooses the way to a table's rows for conditions that are needed for each of them.
pub(crate) fn choose_path(table: &Table, offset: usize, conditions: &[Expr]) -> Path {
    let path = one_path(table, offset, conditions);
    if !path.prefix.is_empty() {
        return path;
    }
    // Each part of a disjunction can have a way of its own.
    let ways = conditions.iter().find_map(|condition| {
        let Expr::Or(parts) = condition else { return None };
        let way = |part: &Expr| {
            let mut all = Vec::new();
            conjuncts(part.clone(), &mut all);
            Some(one_path(table, offset, &all)).filter(|path| !path.prefix.is_empty())
        };
        parts.iter().map(way).collect::<Option<Vec<_>>>()
    });
    ways.map_or(path, |any_of| Path { any_of, ..Path::default() })
}

fn one_path(table: &Table, offset: usize, conditions: &[Expr]) -> Path {
    let bounds: Vec<Bound> = conditions.iter().filter_map(|expr| Bound::of(expr, offset, table)).collect();
    let path_of = |key: TableKey| {
        let mut list = None;
        let equal = |(at, part): (usize, &KeyPart)| {
            let find = |comparison| {
                bounds.iter().find(|bound| bound.part == *part && bound.comparison == comparison)
            };
            let bound = find(Some(Comparison::Equal)).or_else(|| {
                let listed = find(None).filter(|_| list.is_none())?;
                list = Some(at);
                Some(listed)
            })?;
            Some(bound.value.clone())
        };
        let prefix: Vec<Expr> = key.parts.iter().enumerate().map_while(equal).collect();
        let find = |open, closed| {
            let part = key.parts.get(prefix.len())?;
            let is_it = |bound: &&Bound| {
                bound.part == *part && [Some(open), Some(closed)].contains(&bound.comparison)
            };
            bounds.iter().find(is_it).map(|bound| (bound.value.clone(), bound.comparison == Some(closed)))
        };
        let lower = find(Comparison::Greater, Comparison::GreaterOrEqual);
        let upper = find(Comparison::Less, Comparison::LessOrEqual);
        Path { prefix, list, lower, upper, ..key.path() }
    };
    // All columns of a unique key, the most equal columns, then a range, then an index of few rows,
    // then the rows themselves.
    let worth = |path: &Path| {
        let ranges = usize::from(path.lower.is_some()) + usize::from(path.upper.is_some());
        let is_unique = path.index.is_none_or(|index| table.indexes[index].is_unique);
        let is_partial = path.index.is_some_and(|index| table.indexes[index].condition.is_some());
        let of_form = (ranges, is_partial, path.index.is_none(), is_unique);
        (path.is_key(table), path.prefix.len(), path.list.is_none(), of_form)
    };
    let paths = TableKey::all(table, offset, conditions, &bounds).into_iter().map(path_of);
    let mut paths: Vec<Path> = paths.filter(|path| !path.is_whole()).collect();
    paths.sort_by_key(worth);
    let best = paths.pop().unwrap_or_default();
    let others = if best.is_key(table) && best.list.is_none() { Vec::new() } else { paths };
    Path { others, ..best }
}

/// Lets a table's rows come in the order of columns, if its path or an index allows that. Another
/// path than that of the conditions is for queries that need only the first rows.
pub(super) fn order_path(
    source: &mut Source,
    wanted: &[usize],
    is_backward: bool,
    needs_first: bool,
) -> bool {
    let Relation::Table(table) = &source.relation else { return false };
    if !source.path.orders(wanted) {
        let is_free = source.path.is_whole();
        let keys = TableKey::all(table, source.offset, &source.conditions, &[]);
        let keys = keys.into_iter().filter(|key| key.index.is_none() || needs_first);
        let paths = keys.map(|key| key.path()).filter(|path| path.orders(wanted));
        // The rows themselves, unless an index has few of them.
        let is_plain = |path: &Path| path.index.is_none_or(|index| table.indexes[index].condition.is_none());
        match paths.min_by_key(is_plain).filter(|_| is_free) {
            Some(path) => source.path = path,
            None => return false,
        }
    }
    (source.path.is_backward, source.path.is_ordered) = (is_backward, true);
    true
}

/// Returns the columns of an order in which one path can lead to rows, and whether it leads
/// backward.
pub(super) fn path_order(order: &[OrderKey]) -> Option<(Vec<usize>, bool)> {
    let is_backward = order.first()?.direction.is_descending;
    // NULL is the highest value of a key.
    let direction = Direction { is_descending: is_backward, nulls_first: is_backward };
    let column = |key: &OrderKey| match key.by {
        Expr::Column(column) if key.direction == direction => Some(column),
        _ => None,
    };
    Some((order.iter().map(column).collect::<Option<_>>()?, is_backward))
}

/// Returns the source of a statement that changes rows of one table.
pub(crate) fn single_source(table: &Rc<Table>, condition: Option<Expr>) -> Source {
    let mut conditions = Vec::new();
    condition.into_iter().for_each(|condition| conjuncts(condition, &mut conditions));
    let path = choose_path(table, 0, &conditions);
    let source = Source::new(Relation::Table(table.clone()), 0, table.columns.len());
    Source { path, conditions, ..source }
}

/// Distributes conditions over sources, and chooses the ways to their rows. Returns the conditions
/// that are the same for all rows.
pub(crate) fn place(sources: &mut [Source], mut conditions: Vec<Expr>) -> Vec<Expr> {
    let offsets: Vec<usize> = sources.iter().map(|source| source.offset).collect();
    // A volatile one is asked for each row of all sources, and one with rows of its own for as few
    // rows as possible.
    let is_last = |expr: &Expr| expr.is_volatile() || expr.has_correlated();
    let needs = |expr: &Expr| if is_last(expr) { offsets.len() } else { needs(expr, &offsets) };
    let constant = conditions.extract_if(.., |expr| needs(expr) == 0).collect();
    // A row without partner has NULL in the sources before it, so conditions of these come behind.
    let first = sources.iter().rposition(|source| source.is_full).unwrap_or(0);
    for (at, source) in sources.iter_mut().enumerate().skip(first) {
        let here: Vec<Expr> = conditions.extract_if(.., |expr| needs(expr) <= at + 1).collect();
        if let Some(table) = source.table().filter(|_| !source.is_full) {
            source.path = choose_path(table, source.offset, source.outer.as_ref().unwrap_or(&here));
        }
        source.conditions.extend(here);
    }
    constant
}
