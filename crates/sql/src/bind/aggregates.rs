//! Aggregate functions, and the groups over which they are.

use std::cell::RefCell;

use sqlparser::ast;

use super::{
    Scope, ScopeColumn, Typed,
    calls::{is_plain, plain_argument},
    coerce,
    from::Source,
    select::{OrderKey, direction_of},
};
use crate::{
    error::{Result, SqlError, error, fail},
    expr::Expr,
    functions,
    types::Type,
};

/// An aggregate function of a group of rows.
#[derive(Clone, Debug)]
pub(crate) struct Aggregate {
    pub(crate) kind: AggregateKind,
    /// None for the number of rows.
    pub(crate) arguments: Vec<Expr>,
    /// The type of the first argument.
    pub(crate) input: Type,
    pub(crate) is_distinct: bool,
    /// Only rows with which it holds count.
    pub(crate) filter: Option<Expr>,
    /// The order in which it takes the rows.
    pub(crate) order: Vec<OrderKey>,
}

impl Aggregate {
    /// Returns one of all rows in any order.
    fn new(kind: AggregateKind, arguments: Vec<Expr>, input: Type) -> Self {
        Self { kind, arguments, input, is_distinct: false, filter: None, order: Vec::new() }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AggregateKind {
    Count,
    Sum,
    Average,
    Least,
    Greatest,
    /// The value of the first row: a column that is the same in the whole group.
    First,
    Array,
    /// A text of all, with a text between them.
    Text,
    And,
    Or,
    BitAnd,
    BitOr,
    /// The variance; of a sample or of all; perhaps its root.
    Variance {
        is_sample: bool,
        is_root: bool,
    },
    /// Which of these keys of GROUP BY the set of the group has not.
    Grouping,
}

/// A key of GROUP BY.
#[derive(Clone, Debug)]
pub(crate) struct GroupKey {
    pub(crate) original: ast::Expr,
    pub(crate) expr: Expr,
    pub(crate) of: Type,
}

/// The groups of a query: their keys, and the aggregates so far.
pub(crate) struct Grouping<'a> {
    keys: &'a [GroupKey],
    /// The columns that are the same in each group, because the keys have a primary key.
    determined: Vec<usize>,
    found: RefCell<Vec<(Called, Aggregate, Type)>>,
}

/// The text of an aggregate, by which it is found again.
#[derive(PartialEq)]
enum Called {
    Function(Box<ast::Function>),
    Column(usize),
}

impl<'a> Grouping<'a> {
    pub(crate) fn new(keys: &'a [GroupKey], sources: &[Source], is_one_set: bool) -> Self {
        let grouped =
            |column: usize| keys.iter().any(|key| matches!(key.expr, Expr::Column(known) if known == column));
        let determined = sources.iter().filter(|_| is_one_set).flat_map(|source| {
            let primary = source.table().and_then(|table| table.primary.as_ref());
            let is_whole = primary
                .is_some_and(|primary| primary.columns.iter().all(|column| grouped(source.offset + column)));
            let columns = if is_whole { 0..source.width } else { 0..0 };
            columns.map(|column| source.offset + column)
        });
        Self { keys, determined: determined.collect(), found: RefCell::default() }
    }

    /// Returns the aggregates.
    pub(crate) fn take(&self) -> Vec<Aggregate> {
        self.found.take().into_iter().map(|(_, aggregate, _)| aggregate).collect()
    }

    /// Returns the key that an expression is.
    pub(super) fn find(&self, expr: &ast::Expr, scope: &Scope<'_>) -> Option<Typed> {
        let as_key = |at: usize| (Expr::Column(at), self.keys[at].of);
        if let Some(at) = self.keys.iter().position(|key| key.original == *expr) {
            return Some(as_key(at));
        }
        let is_plain = |key: &GroupKey| matches!(key.expr, Expr::Column(_));
        let may_be = !matches!(expr, ast::Expr::Identifier(_) | ast::Expr::Value(_));
        if !may_be || self.keys.iter().all(is_plain) {
            return None;
        }
        // The same with other names, as `t.a` and `a`.
        let plain = Scope { grouping: None, calls: None, ..*scope };
        let shown = format!("{:?}", plain.bind(expr).ok()?.0);
        self.keys.iter().position(|key| format!("{:?}", key.expr) == shown).map(as_key)
    }

    /// Returns the value of a column in a group.
    pub(super) fn value_of(&self, column: &ScopeColumn) -> Result<Typed> {
        let shown = format!("{:?}", column.value);
        if let Some(at) = self.keys.iter().position(|key| format!("{:?}", key.expr) == shown) {
            return Ok((Expr::Column(at), column.of));
        }
        if let Expr::Column(at) = column.value
            && self.determined.contains(&at)
        {
            let aggregate = Aggregate::new(AggregateKind::First, vec![column.value.clone()], column.of);
            return self.add(Called::Column(at), || Ok((aggregate, column.of)));
        }
        Err(error!(
            GROUPING_ERROR,
            "column \"{}.{}\" must appear in the GROUP BY clause or be used in an aggregate function",
            column.table,
            column.name
        ))
    }

    fn add(&self, called: Called, make: impl FnOnce() -> Result<(Aggregate, Type)>) -> Result<Typed> {
        let before = self.keys.len();
        let known = self.found.borrow().iter().position(|(known, ..)| *known == called);
        if let Some(at) = known {
            return Ok((Expr::Column(before + at), self.found.borrow()[at].2));
        }
        let (aggregate, of) = make()?;
        let mut found = self.found.borrow_mut();
        found.push((called, aggregate, of));
        Ok((Expr::Column(before + found.len() - 1), of))
    }
}

/// Returns the aggregate with a name.
pub(super) fn kind_of(name: &str) -> Option<AggregateKind> {
    use AggregateKind as K;
    let variance = |is_sample, is_root| K::Variance { is_sample, is_root };
    Some(match name {
        "count" => K::Count,
        "sum" => K::Sum,
        "avg" => K::Average,
        "min" => K::Least,
        "max" => K::Greatest,
        "array_agg" => K::Array,
        "string_agg" => K::Text,
        "bool_and" | "every" => K::And,
        "bool_or" => K::Or,
        "bit_and" => K::BitAnd,
        "bit_or" => K::BitOr,
        "variance" | "var_samp" => variance(true, false),
        "var_pop" => variance(false, false),
        "stddev" | "stddev_samp" => variance(true, true),
        "stddev_pop" => variance(false, true),
        _ => return None,
    })
}

/// Returns whether a name is that of an aggregate.
pub(super) fn is_aggregate(name: &str) -> bool {
    kind_of(name).is_some()
}

impl Scope<'_> {
    /// Binds a call of an aggregate; `None` if it is another function.
    pub(super) fn aggregate_call(&self, name: &str, function: &ast::Function) -> Result<Option<Typed>> {
        if name == "grouping" {
            return self.grouping_call(function).map(Some);
        }
        let Some(kind) = kind_of(name) else { return Ok(None) };
        let Some(grouping) = self.grouping else {
            fail!(GROUPING_ERROR, "aggregate functions are not allowed here");
        };
        grouping
            .add(Called::Function(Box::new(function.clone())), || self.aggregate(kind, function))
            .map(Some)
    }

    /// Binds GROUPING: its arguments are keys of GROUP BY.
    fn grouping_call(&self, function: &ast::Function) -> Result<Typed> {
        let wrong = || {
            error!(
                GROUPING_ERROR,
                "arguments to GROUPING must be grouping expressions of the associated query level"
            )
        };
        let grouping = self.grouping.ok_or_else(wrong)?;
        let ast::FunctionArguments::List(list) = &function.args else { return Err(wrong()) };
        let key = |argument| match self.bind(plain_argument(argument).ok_or_else(wrong)?)? {
            (Expr::Column(at), _) if at < grouping.keys.len() => Ok(Expr::Column(at)),
            _ => Err(wrong()),
        };
        let arguments = list.args.iter().map(key).collect::<Result<_>>()?;
        let aggregate = Aggregate::new(AggregateKind::Grouping, arguments, Type::Int4);
        grouping.add(Called::Function(Box::new(function.clone())), || Ok((aggregate, Type::Int4)))
    }

    fn aggregate(&self, kind: AggregateKind, function: &ast::Function) -> Result<(Aggregate, Type)> {
        self.aggregate_in(kind, function, Scope { grouping: None, calls: None, ..*self })
    }

    /// Binds an aggregate over the rows of a scope. Returns the type of its result, too.
    pub(super) fn aggregate_in(
        &self,
        kind: AggregateKind,
        function: &ast::Function,
        inner: Scope<'_>,
    ) -> Result<(Aggregate, Type)> {
        let unsupported = || SqlError::unsupported(format!("the call {function}"));
        let ast::FunctionArguments::List(list) = &function.args else { return Err(unsupported()) };
        if !is_plain(function) {
            return Err(unsupported());
        }
        let mut order = Vec::new();
        for clause in &list.clauses {
            let ast::FunctionArgumentClause::OrderBy(keys) = clause else { return Err(unsupported()) };
            for key in keys {
                order.push(OrderKey { by: inner.bind(&key.expr)?.0, direction: direction_of(key)? });
            }
        }
        let mut arguments = Vec::new();
        for argument in &list.args {
            match argument {
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard)
                    if kind == AggregateKind::Count && list.args.len() == 1 => {}
                ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument)) => {
                    arguments.push(inner.bind(argument)?);
                }
                _ => return Err(unsupported()),
            }
        }
        let types: Vec<Type> = arguments.iter().map(|(_, of)| *of).collect();
        let wrong = || functions::undefined(&function.name, &types);
        let wanted = if kind == AggregateKind::Text { 2 } else { 1 };
        if arguments.len() != wanted && !(arguments.is_empty() && kind == AggregateKind::Count) {
            return Err(wrong());
        }
        let input = types.first().copied().unwrap_or(Type::Unknown);
        let (input, result) = types_of(kind, input).ok_or_else(wrong)?;
        let mut exprs = Vec::new();
        for (at, typed) in arguments.into_iter().enumerate() {
            let to = if at == 0 { input } else { Type::Text };
            exprs.push(coerce(typed, to, self.parameters, false)?);
        }
        let filter = function.filter.as_ref().map(|filter| inner.condition(filter, "FILTER")).transpose()?;
        let is_distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
        Ok((Aggregate { is_distinct, filter, order, ..Aggregate::new(kind, exprs, input) }, result))
    }
}

/// Returns the types of the argument and of the result of an aggregate for a type of argument.
fn types_of(kind: AggregateKind, input: Type) -> Option<(Type, Type)> {
    use AggregateKind as K;
    let of_text = |input: Type| if input.is_text() || input == Type::Unknown { Type::Text } else { input };
    Some(match kind {
        K::Count => (input, Type::Int8),
        K::Least | K::Greatest => match of_text(input) {
            Type::Bool | Type::Bytea | Type::Uuid | Type::Json | Type::Jsonb => return None,
            _ if matches!(input, Type::Char(_)) => (input, input),
            Type::Cidr => (Type::Inet, Type::Inet),
            other => (other, other),
        },
        K::Sum => match input {
            Type::Int2 | Type::Int4 => (input, Type::Int8),
            Type::Int8 => (input, Type::Numeric(None)),
            // A sum is not within the limits of its column.
            Type::Numeric(_) => (Type::Numeric(None), Type::Numeric(None)),
            float if float.is_float() => (input, input),
            Type::Interval => (input, input),
            _ => return None,
        },
        K::Average => match input {
            float if float.is_float() => (input, Type::Float8),
            other if other.is_number() => (input, Type::Numeric(None)),
            _ => return None,
        },
        K::First => (input, input),
        K::Array => {
            let input = if input == Type::Unknown { Type::Text } else { input };
            (input, input.array()?)
        }
        K::Text => (Type::Text, Type::Text),
        K::And | K::Or => match input {
            Type::Bool | Type::Unknown => (Type::Bool, Type::Bool),
            _ => return None,
        },
        K::BitAnd | K::BitOr => match input {
            of if of.is_integer() => (of, of),
            _ => return None,
        },
        K::Variance { .. } => match input {
            float if float.is_float() => (Type::Float8, Type::Float8),
            other if other.is_number() => (Type::Numeric(None), Type::Numeric(None)),
            _ => return None,
        },
        K::Grouping => (Type::Int4, Type::Int4),
    })
}
