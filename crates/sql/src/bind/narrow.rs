//! What a query needs of its sources: conditions of one source are tested before it is joined, and
//! columns that nothing names are not read.

use std::collections::BTreeSet;

use super::{
    aggregates::{Aggregate, AggregateKind},
    from::{Relation, Source},
    select::Select,
    windows::{Bound, Range, WindowCall, WindowFunction},
};
use crate::expr::Expr;

/// Lets the rows of each source behind the first one meet its own conditions before they are
/// joined.
pub(super) fn filter_early(sources: &mut [Source]) {
    for source in sources.iter_mut().skip(1).filter(|source| !source.is_full) {
        let (start, end) = (source.offset, source.offset + source.width);
        let is_own = |expr: &mut Expr| {
            let is_own = !expr.any_column(|column| !(start..end).contains(&column));
            is_own && expr.has_column() && !expr.has_subquery() && !expr.is_volatile()
        };
        // The conditions of WHERE are also about rows without partner.
        let mut early: Vec<Expr> = match &mut source.outer {
            Some(outer) => outer.extract_if(.., is_own).collect(),
            None => source.conditions.extract_if(.., is_own).collect(),
        };
        early.iter_mut().for_each(|expr| expr.move_columns(&|column| column - start));
        source.filter.extend(early);
    }
}

/// Lets a query read only the columns of tables that it names.
pub(super) fn read_less(select: &mut Select) {
    // The row of one table that is locked is read again as a whole.
    let is_alone = select.has_locks && select.sources.len() == 1;
    if is_alone || !select.sources.iter().any(|source| source.table().is_some()) {
        return;
    }
    let width = select.sources.iter().map(|source| source.width).sum::<usize>();
    let mut named = BTreeSet::new();
    row_exprs(select, &mut |expr| {
        expr.columns(&mut |column| {
            named.insert(column);
        });
    });
    let (mut places, mut at) = (vec![0; width], 0);
    for source in &mut select.sources {
        // Its key, which this has put behind them before, is none of its columns.
        let (start, end) = (source.offset, source.offset + source.width - usize::from(source.has_key));
        source.filter.iter().for_each(|expr| {
            expr.columns(&mut |column| {
                named.insert(start + column);
            });
        });
        source.offset = at;
        // Its key leads to the row that is locked.
        source.has_key = source.locked.is_some();
        let reads_all = source.has_key || !matches!(source.relation, Relation::Table(_));
        let is_read = |column: &usize| reads_all || named.contains(column);
        let columns: Vec<usize> = (start..end).filter(is_read).map(|column| column - start).collect();
        for (place, column) in columns.iter().enumerate() {
            places[start + column] = at + place;
        }
        let to = |column: usize| places[start + column] - at;
        source.filter.iter_mut().for_each(|expr| expr.move_columns(&to));
        source.width = columns.len() + usize::from(source.has_key);
        at += source.width;
        let before = source.columns.take();
        let of_table = |column: usize| before.as_ref().map_or(column, |before| before[column]);
        source.columns = (!reads_all).then(|| columns.into_iter().map(of_table).collect());
    }
    let is_grouped = select.groups.is_some();
    // The values of windows and of functions that return rows are behind those of the row.
    let to = |column: usize| places.get(column).copied().unwrap_or_else(|| column - width + at);
    row_exprs(select, &mut |expr| expr.move_columns(&to));
    if !is_grouped {
        select.width = at;
    }
}

/// Calls `act` with each expression about the rows of the sources.
pub(super) fn row_exprs(select: &mut Select, act: &mut dyn FnMut(&mut Expr)) {
    let Select { sources, groups, output, order, windows, sets, distinct_on, .. } = select;
    for source in sources {
        source.exprs(act);
        source.path.exprs(act);
    }
    if let Some(groups) = groups {
        groups.by.iter_mut().for_each(&mut *act);
        groups.aggregates.iter_mut().for_each(|aggregate| of_aggregate(aggregate, act));
        return;
    }
    windows.iter_mut().for_each(|call| of_window(call, act));
    sets.iter_mut().flat_map(|call| &mut call.arguments).for_each(&mut *act);
    let order = order.iter_mut().map(|key| &mut key.by);
    output.iter_mut().chain(order).chain(distinct_on).for_each(act);
}

fn of_aggregate(aggregate: &mut Aggregate, act: &mut dyn FnMut(&mut Expr)) {
    // Its arguments are about the keys of groups.
    if aggregate.kind == AggregateKind::Grouping {
        return;
    }
    let order = aggregate.order.iter_mut().map(|key| &mut key.by);
    aggregate.arguments.iter_mut().chain(&mut aggregate.filter).chain(order).for_each(act);
}

fn of_window(call: &mut WindowCall, act: &mut dyn FnMut(&mut Expr)) {
    let order = call.order.iter_mut().map(|key| &mut key.by);
    call.partition.iter_mut().chain(order).for_each(&mut *act);
    for bound in [&mut call.frame.start, &mut call.frame.end] {
        if let Bound::Before(expr) | Bound::Behind(expr) = bound {
            act(expr);
        }
    }
    if let Some(Range { key, start, end, .. }) = &mut call.frame.range {
        [key].into_iter().chain(start).chain(end).for_each(&mut *act);
    }
    call.arguments.iter_mut().for_each(&mut *act);
    if let WindowFunction::Aggregate(aggregate) = &mut call.function {
        of_aggregate(aggregate, act);
    }
}
