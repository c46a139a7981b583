//! Window functions: values of a row that depend on others of its query.

use std::cell::RefCell;

use sqlparser::ast;

use super::{
    Scope, Typed,
    aggregates::{Aggregate, AggregateKind, is_aggregate},
    calls::plain_argument,
    coerce,
    select::{OrderKey, direction_of},
    sets::SetCall,
};
use crate::{
    error::{Result, SqlError, error, fail},
    expr::Expr,
    spool::Direction,
    types::{Type, Value},
};

/// A window function, with the rows that it sees.
#[derive(Clone, Debug)]
pub(crate) struct WindowCall {
    pub(crate) function: WindowFunction,
    /// The arguments of a function that is no aggregate.
    pub(crate) arguments: Vec<Expr>,
    pub(crate) partition: Vec<Expr>,
    pub(crate) order: Vec<OrderKey>,
    pub(crate) frame: Frame,
}

#[derive(Clone, Debug)]
pub(crate) enum WindowFunction {
    Aggregate(Box<Aggregate>),
    RowNumber,
    Rank,
    DenseRank,
    PercentRank,
    CumeDist,
    Ntile,
    /// The value of the row so many behind it or before it, or the other value.
    Offset {
        is_before: bool,
    },
    First,
    Last,
    Nth,
}

/// The rows around a row that a function sees.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) units: ast::WindowFrameUnits,
    pub(crate) start: Bound,
    pub(crate) end: Bound,
    /// The values to compare if an end is so much before or behind the value of the row.
    pub(crate) range: Option<Range>,
}

/// The value of a row by which RANGE counts, and the values at the ends of its frame.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) key: Expr,
    pub(crate) start: Option<Expr>,
    pub(crate) end: Option<Expr>,
    pub(crate) direction: Direction,
}

/// An end of a frame.
#[derive(Clone, Debug)]
pub(crate) enum Bound {
    First,
    /// So many before the row.
    Before(Expr),
    Current,
    /// So many behind the row.
    Behind(Expr),
    Last,
}

/// The window functions and the functions that return rows of a query.
pub(crate) struct Calls {
    named: Vec<ast::NamedWindowDefinition>,
    windows: RefCell<Vec<(ast::Function, WindowCall, Type)>>,
    sets: RefCell<Vec<(ast::Function, SetCall)>>,
}

impl Calls {
    /// The first places of their values in rows, until the places are known.
    pub(crate) const WINDOWS: usize = 1 << 32;
    pub(crate) const SETS: usize = 2 << 32;

    pub(crate) fn new(named: &[ast::NamedWindowDefinition]) -> Self {
        Self { named: named.to_vec(), windows: RefCell::default(), sets: RefCell::default() }
    }

    pub(crate) fn clear(&self) {
        self.windows.borrow_mut().clear();
        self.sets.borrow_mut().clear();
    }

    pub(crate) fn take(&self) -> (Vec<WindowCall>, Vec<SetCall>) {
        let windows = self.windows.take().into_iter().map(|(_, call, _)| call).collect();
        (windows, self.sets.take().into_iter().map(|(_, call)| call).collect())
    }

    pub(super) fn add_set(&self, function: &ast::Function, call: SetCall) -> Typed {
        let mut sets = self.sets.borrow_mut();
        let of = call.columns[0].of;
        let known = sets.iter().position(|(known, _)| known == function);
        let at = known.unwrap_or_else(|| {
            sets.push((function.clone(), call));
            sets.len() - 1
        });
        (Expr::Column(Self::SETS + at), of)
    }

    /// Returns the window with a name.
    fn named(&self, name: &ast::Ident) -> Result<&ast::WindowSpec> {
        let found = self.named.iter().find(|ast::NamedWindowDefinition(known, _)| known == name);
        match found {
            Some(ast::NamedWindowDefinition(_, ast::NamedWindowExpr::WindowSpec(spec))) => Ok(spec),
            Some(ast::NamedWindowDefinition(_, ast::NamedWindowExpr::NamedWindow(other)))
                if other != name =>
            {
                self.named(other)
            }
            _ => Err(error!(UNDEFINED_OBJECT, "window \"{}\" does not exist", name.value)),
        }
    }
}

impl Scope<'_> {
    /// Binds a call with OVER.
    pub(super) fn window(&self, name: &str, function: &ast::Function) -> Result<Typed> {
        let Some(calls) = self.calls else {
            fail!("42P20", "window functions are not allowed here");
        };
        let known = calls.windows.borrow().iter().position(|(known, ..)| known == function);
        if let Some(at) = known {
            return Ok((Expr::Column(Calls::WINDOWS + at), calls.windows.borrow()[at].2));
        }
        let spec = match &function.over {
            Some(ast::WindowType::WindowSpec(spec)) => spec.clone(),
            Some(ast::WindowType::NamedWindow(name)) => calls.named(name)?.clone(),
            None => return Err(SqlError::unsupported(format!("the call {function}"))),
        };
        let spec = match &spec.window_name {
            None => spec,
            Some(name) => {
                let base = calls.named(name)?;
                let order_by = if spec.order_by.is_empty() { &base.order_by } else { &spec.order_by }.clone();
                let partition_by = base.partition_by.clone();
                ast::WindowSpec { window_name: None, partition_by, order_by, ..spec }
            }
        };
        // The functions see groups if the query has them.
        let inner = Scope { calls: None, ..*self };
        let partition =
            spec.partition_by.iter().map(|expr| Ok(inner.bind(expr)?.0)).collect::<Result<Vec<_>>>()?;
        let mut order = Vec::new();
        for key in &spec.order_by {
            order.push(OrderKey { by: inner.bind(&key.expr)?.0, direction: direction_of(key)? });
        }
        let frame = match &spec.window_frame {
            None => Frame {
                units: ast::WindowFrameUnits::Range,
                start: Bound::First,
                end: if order.is_empty() { Bound::Last } else { Bound::Current },
                range: None,
            },
            Some(frame) => inner.frame(frame, &spec.order_by, &order)?,
        };
        let (bound, arguments, of) = inner.window_function(name, function)?;
        let call = WindowCall { function: bound, arguments, partition, order, frame };
        let mut windows = calls.windows.borrow_mut();
        windows.push((function.clone(), call, of));
        Ok((Expr::Column(Calls::WINDOWS + windows.len() - 1), of))
    }

    fn frame(&self, frame: &ast::WindowFrame, by: &[ast::OrderByExpr], order: &[OrderKey]) -> Result<Frame> {
        use ast::WindowFrameBound as B;
        let is_range = frame.units == ast::WindowFrameUnits::Range;
        let bound = |bound: &B| -> Result<Bound> {
            let count = |expr: &ast::Expr| match is_range {
                true => Ok(self.bind(expr)?.0),
                false => coerce(self.bind(expr)?, Type::Int8, self.parameters, false),
            };
            Ok(match bound {
                B::CurrentRow => Bound::Current,
                B::Preceding(None) => Bound::First,
                B::Following(None) => Bound::Last,
                B::Preceding(Some(expr)) => Bound::Before(count(expr)?),
                B::Following(Some(expr)) => Bound::Behind(count(expr)?),
            })
        };
        let start = bound(&frame.start_bound)?;
        let end = frame.end_bound.as_ref().map_or(Ok(Bound::Current), bound)?;
        let counts = |bound: &Bound| matches!(bound, Bound::Before(_) | Bound::Behind(_));
        let mut range = None;
        if is_range && (counts(&start) || counts(&end)) {
            let ([by], [OrderKey { direction, .. }]) = (by, order) else {
                fail!("42P20", "RANGE with offset PRECEDING/FOLLOWING requires exactly one ORDER BY column");
            };
            let mut types = Vec::new();
            let mut value = |bound: Option<&B>| -> Result<Option<Expr>> {
                let (offset, is_before) = match bound {
                    Some(B::Preceding(Some(offset))) => (offset, true),
                    Some(B::Following(Some(offset))) => (offset, false),
                    _ => return Ok(None),
                };
                let op = match is_before != direction.is_descending {
                    true => ast::BinaryOperator::Minus,
                    false => ast::BinaryOperator::Plus,
                };
                let left = Box::new(ast::Expr::Nested(Box::new(by.expr.clone())));
                let right = Box::new(ast::Expr::Nested(offset.clone()));
                let (value, found) = self.bind(&ast::Expr::BinaryOp { left, op, right })?;
                types.push(found);
                Ok(Some(value))
            };
            let (start, end) = (value(Some(&frame.start_bound))?, value(frame.end_bound.as_ref())?);
            let key = self.bind(&by.expr)?;
            let of = types.first().copied().unwrap_or(key.1);
            // A time of the day begins again at midnight.
            let is_fit =
                types.iter().all(|found| *found == of) && !matches!(of, Type::TimeOfDay | Type::TimeTz);
            if !is_fit {
                return Err(SqlError::unsupported("RANGE with these offsets"));
            }
            let key = coerce(key, of, self.parameters, false)?;
            range = Some(Range { key, start, end, direction: *direction });
        }
        Ok(Frame { units: frame.units, start, end, range })
    }

    fn window_function(
        &self,
        name: &str,
        function: &ast::Function,
    ) -> Result<(WindowFunction, Vec<Expr>, Type)> {
        use WindowFunction as W;
        let unsupported = || SqlError::unsupported(format!("the call {function}"));
        if is_aggregate(name) {
            // Its arguments may be aggregates of the groups of the query.
            let (aggregate, of) = self.aggregate_over(name, function)?;
            return Ok((W::Aggregate(Box::new(aggregate)), Vec::new(), of));
        }
        let list = match &function.args {
            ast::FunctionArguments::List(list) if function.filter.is_none() => list,
            _ => return Err(unsupported()),
        };
        let bind = |argument| self.bind(plain_argument(argument).ok_or_else(unsupported)?);
        let mut arguments = list.args.iter().map(bind).collect::<Result<Vec<Typed>>>()?;
        let count = |typed: Typed| coerce(typed, Type::Int8, self.parameters, false);
        let plain = |made, of| Ok((made, Vec::new(), of));
        match (name, arguments.len()) {
            ("row_number", 0) => plain(W::RowNumber, Type::Int8),
            ("rank", 0) => plain(W::Rank, Type::Int8),
            ("dense_rank", 0) => plain(W::DenseRank, Type::Int8),
            ("percent_rank", 0) => plain(W::PercentRank, Type::Float8),
            ("cume_dist", 0) => plain(W::CumeDist, Type::Float8),
            ("ntile", 1) => Ok((W::Ntile, vec![count(arguments.remove(0))?], Type::Int4)),
            ("lag" | "lead", 1..=3) => {
                let null = (Expr::Value(Value::Null), Type::Unknown);
                let default = if arguments.len() == 3 { arguments.remove(2) } else { null };
                let one = (Expr::Value(Value::Int(1)), Type::Int8);
                let count = count(if arguments.len() == 2 { arguments.remove(1) } else { one })?;
                let (mut all, of) = self.unified(vec![arguments.remove(0), default], name)?;
                all.push(count);
                Ok((W::Offset { is_before: name == "lag" }, all, of))
            }
            ("first_value" | "last_value", 1) => {
                let (value, of) = arguments.remove(0);
                Ok((if name == "first_value" { W::First } else { W::Last }, vec![value], of))
            }
            ("nth_value", 2) => {
                let number = count(arguments.remove(1))?;
                let (value, of) = arguments.remove(0);
                Ok((W::Nth, vec![value, number], of))
            }
            _ => fail!(UNDEFINED_FUNCTION, "window function {name} does not exist"),
        }
    }

    fn aggregate_over(&self, name: &str, function: &ast::Function) -> Result<(Aggregate, Type)> {
        let kind = super::aggregates::kind_of(name).unwrap_or(AggregateKind::Count);
        let plain = ast::Function { over: None, ..function.clone() };
        self.aggregate_in(kind, &plain, *self)
    }
}
