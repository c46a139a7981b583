//! Subqueries whose rows depend on the query around them only by equality: they can run once for
//! all values, with the columns that must be equal as a key.

use super::{
    from::Relation,
    narrow::{read_less, row_exprs},
    query::{Keyed, Query, QueryBody},
    select::{ResultColumn, Select},
};
use crate::{
    expr::{Comparison, Expr},
    types::{Type, Value},
};

/// Returns a query for all values that a query gets, if that can be faster. Of one that
/// `is_exists` only the existence of a row is asked.
pub(super) fn of(query: &Query, is_exists: bool) -> Option<Box<Keyed>> {
    let QueryBody::Select(select) = &query.body else { return None };
    let is_table = |relation: &Relation| matches!(relation, Relation::Table(_) | Relation::System(_));
    let is_plain = query.with.is_empty()
        && !select.sources.is_empty()
        && select.sources.iter().all(|source| is_table(&source.relation) && !source.is_full)
        && select
            .groups
            .as_ref()
            .is_none_or(|groups| groups.is_one && !groups.is_first && groups.having.is_none())
        && select.windows.is_empty()
        && select.sets.is_empty()
        && select.order.is_empty()
        && !select.is_distinct
        && select.distinct_on.is_empty()
        && (select.limit.is_none() || is_exists)
        && select.offset.is_none()
        && !select.has_locks;
    let is_bound = |expr: &Expr| expr.has_outer() || expr.is_volatile() || expr.has_subquery();
    if !is_plain || is_exists && select.groups.is_some() || select.constant.iter().any(is_bound) {
        return None;
    }
    let mut copy = Select { limit: None, ..(**select).clone() };
    if is_exists {
        copy.output.clear();
    }
    let (mut own, mut key) = (Vec::new(), Vec::new());
    for source in &mut copy.sources {
        // A path by such a value finds the rows of each at once.
        if source.path.any(Expr::has_outer) {
            return None;
        }
        let start = source.offset;
        let mut take = |expr: &mut Expr, offset: usize| {
            let Some((mut of_row, of_outer)) = equal(expr) else { return false };
            of_row.move_columns(&|column| column + offset);
            own.push(of_row);
            key.push(of_outer);
            true
        };
        source.conditions.retain_mut(|expr| !take(expr, 0));
        if source.outer.is_none() {
            source.filter.retain_mut(|expr| !take(expr, start));
        }
    }
    let count = own.len();
    match &mut copy.groups {
        Some(groups) => {
            (groups.by, groups.sets, groups.is_one) = (own, vec![vec![true; count]], false);
            copy.output.iter_mut().for_each(|expr| expr.move_columns(&|column| column + count));
            copy.output.extend((0..count).map(Expr::Column));
            copy.width += count;
        }
        None => copy.output.extend(own),
    }
    let mut is_free = count > 0;
    row_exprs(&mut copy, &mut |expr| is_free &= !is_bound(expr));
    let filters = copy.sources.iter().flat_map(|source| &source.filter);
    if !is_free || filters.chain(&copy.output).any(is_bound) {
        return None;
    }
    read_less(&mut copy);
    let whole = |select: Select| {
        let column = |_: &Expr| ResultColumn { name: String::new(), of: Type::Unknown };
        let columns = select.output.iter().map(column).collect();
        Query::new(QueryBody::Select(Box::new(select)), columns)
    };
    let constant = vec![Expr::Value(Value::Bool(false))];
    let none = select.groups.is_some().then(|| whole(Select { constant, ..(**select).clone() }));
    Some(Box::new(Keyed { query: whole(copy), none, key }))
}

/// Returns the sides of a condition that a value of the rows is equal to one of the query around.
fn equal(expr: &Expr) -> Option<(Expr, Expr)> {
    let Expr::Compare(Comparison::Equal, one, other) = expr else { return None };
    let is_own = |expr: &Expr| expr.has_column() && !expr.has_outer() && !expr.has_subquery();
    let is_outer =
        |expr: &Expr| !expr.has_column() && expr.has_outer() && !expr.has_subquery() && !expr.is_volatile();
    let sides = [(one, other), (other, one)];
    let (own, outer) = sides.into_iter().find(|(own, outer)| is_own(own) && is_outer(outer))?;
    Some(((**own).clone(), (**outer).clone()))
}
