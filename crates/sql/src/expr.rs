//! Expressions whose names and types are known, and their evaluator.

use std::{borrow::Cow, cmp::Ordering, rc::Rc};

use crate::{
    bind::query::Query,
    error::{Result, SqlError, code},
    functions::{BoundFunction, Context, MOST_BYTES, Volatility, like::is_like, too_long},
    sequences::SequenceSlot,
    system,
    types::{Type, Value, array::Array, encode, named::NamedType, numeric::Numeric, out_of_range},
};

/// An expression over the values of a row and the parameters of a statement.
#[derive(Clone, Debug)]
pub(crate) enum Expr {
    Value(Value),
    Column(usize),
    Parameter(usize),
    Not(Box<Expr>),
    And(Vec<Expr>),
    Or(Vec<Expr>),
    IsNull(Box<Expr>),
    /// True if the value is this one, which NULL is not.
    Is(Box<Expr>, bool),
    IsDistinct(Box<Expr>, Box<Expr>),
    Compare(Comparison, Box<Expr>, Box<Expr>),
    Arithmetic(Operation, Type, Box<Expr>, Box<Expr>),
    Negative(Type, Box<Expr>),
    Concat(Box<Expr>, Box<Expr>),
    Cast {
        value: Box<Expr>,
        from: Type,
        to: Type,
        is_explicit: bool,
    },
    Like {
        value: Box<Expr>,
        pattern: Box<Expr>,
        ignores_case: bool,
    },
    In(Box<Expr>, Vec<Expr>),
    /// The same for values in their order that are those of all rows; true if NULL is among them.
    Member(Box<Expr>, Rc<[Value]>, bool),
    /// Conditions with their results, and the result if none is true.
    Case(Vec<(Expr, Expr)>, Box<Expr>),
    Call(BoundFunction, Vec<Expr>),
    Sequence(NamedSequence, SequenceCall),
    Coalesce(Vec<Expr>),
    /// A value that the query around this one gives.
    Outer(usize),
    Subquery {
        query: Rc<Query>,
        /// The values that it gets from here.
        outer: Vec<Expr>,
        asked: SubqueryUse,
    },
    /// An operator: what it does with the values of its operands.
    Apply(Act, Vec<Expr>),
    /// An array of values, or of arrays that become its last dimensions.
    Array {
        values: Vec<Expr>,
        is_nested: bool,
    },
    Subscript(Box<Expr>, Vec<Subscript>),
    Quantified(Box<Quantified>),
    /// A value that becomes one of a domain, and the conditions of its checks over the value alone.
    Checked(Box<Expr>, &'static NamedType, Rc<[Expr]>),
}

/// The question to which the rows of a subquery are the answer.
#[derive(Clone, Debug)]
pub(crate) enum SubqueryUse {
    /// The value of its only row.
    Value,
    Exists,
    /// Values that are compared with each row, until one holds or all do.
    Compare {
        comparison: Comparison,
        values: Vec<Expr>,
        is_all: bool,
    },
    /// All values, as an array.
    Array,
}

/// Calculates the value of an operator from those of its operands.
pub(crate) type Act = fn(&[Value]) -> Result<Value>;

/// A place of an array, or the bounds of places.
#[derive(Clone, Debug)]
pub(crate) enum Subscript {
    Place(Expr),
    Slice(Option<Expr>, Option<Expr>),
}

/// A test of a value and each element of an array.
#[derive(Clone, Debug)]
pub(crate) struct Quantified {
    pub(crate) value: Expr,
    pub(crate) array: Expr,
    /// The test: its columns are the value and the element.
    pub(crate) test: Expr,
    /// It must be true of all elements, else of one.
    pub(crate) is_of_all: bool,
}

/// The sequence of a call.
#[derive(Clone, Debug)]
pub(crate) enum NamedSequence {
    /// Its name is a literal.
    Found(SequenceSlot),
    /// This is its name, or its number.
    Of(Box<Expr>),
}

/// A call that names a sequence.
#[derive(Clone, Debug)]
pub(crate) enum SequenceCall {
    Next,
    Current,
    /// The last number, and whether it was given.
    Set(Box<Expr>, Box<Expr>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    /// Returns the comparison that an operator is.
    pub(crate) fn named(operator: &str) -> Option<Self> {
        Some(match operator {
            "=" => Self::Equal,
            "<>" => Self::NotEqual,
            "<" => Self::Less,
            "<=" => Self::LessOrEqual,
            ">" => Self::Greater,
            ">=" => Self::GreaterOrEqual,
            _ => return None,
        })
    }

    pub(crate) fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::NotEqual => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::LessOrEqual => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::GreaterOrEqual => order.is_ge(),
        }
    }

    /// Returns the comparison with its sides exchanged.
    pub(crate) fn exchanged(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            same => same,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
}

/// The inputs of an expression.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) row: &'a [Value],
    pub(crate) parameters: &'a [Value],
    /// The values that the query around this one gives.
    pub(crate) outer: &'a [Value],
    pub(crate) context: &'a Context,
}

/// Calls a function with each expression directly in another one.
macro_rules! each_child {
    ($expr:expr, $act:expr, $iter:ident $(, $mutable:tt)?) => {
        match $expr {
            Expr::Column(_) | Expr::Value(_) | Expr::Parameter(_) | Expr::Outer(_) => {}
            Expr::Sequence(named, call) => {
                if let NamedSequence::Of(name) = named {
                    $act(name);
                }
                if let SequenceCall::Set(last, is_called) = call {
                    $act(last);
                    $act(is_called);
                }
            }
            Expr::Not(one) | Expr::IsNull(one) | Expr::Is(one, _) | Expr::Negative(_, one) => $act(one),
            Expr::Cast { value, .. } | Expr::Checked(value, ..) | Expr::Member(value, ..) => $act(value),
            Expr::And(all)
            | Expr::Or(all)
            | Expr::Call(_, all)
            | Expr::Coalesce(all)
            | Expr::Apply(_, all)
            | Expr::Array { values: all, .. } => all.$iter().for_each(&mut *$act),
            Expr::Subscript(array, subscripts) => {
                $act(array);
                for subscript in subscripts {
                    match subscript {
                        Subscript::Place(place) => $act(place),
                        Subscript::Slice(from, to) => from.$iter().chain(to.$iter()).for_each(&mut *$act),
                    }
                }
            }
            Expr::Quantified(quantified) => {
                let Quantified { value, array, .. } = & $($mutable)? **quantified;
                $act(value);
                $act(array);
            }
            Expr::Compare(_, one, other)
            | Expr::Arithmetic(_, _, one, other)
            | Expr::IsDistinct(one, other)
            | Expr::Concat(one, other) => {
                $act(one);
                $act(other);
            }
            Expr::Like { value, pattern, .. } => {
                $act(value);
                $act(pattern);
            }
            Expr::In(one, all) => {
                $act(one);
                all.$iter().for_each(&mut *$act);
            }
            Expr::Case(cases, otherwise) => {
                for (condition, result) in cases {
                    $act(condition);
                    $act(result);
                }
                $act(otherwise);
            }
            Expr::Subquery { outer, asked, .. } => {
                outer.$iter().for_each(&mut *$act);
                if let SubqueryUse::Compare { values, .. } = asked {
                    values.$iter().for_each(&mut *$act);
                }
            }
        }
    };
}

impl Expr {
    pub(crate) fn boxed(self) -> Box<Self> {
        Box::new(self)
    }

    /// Returns its negation, if it is negated.
    pub(crate) fn negated(self, is_negated: bool) -> Self {
        if is_negated { Self::Not(self.boxed()) } else { self }
    }

    /// Calls `act` with each expression directly in this one.
    pub(crate) fn children(&self, act: &mut dyn FnMut(&Expr)) {
        each_child!(self, act, iter);
    }

    /// Calls `act` with each expression directly in this one, to change it.
    pub(crate) fn children_mut(&mut self, act: &mut dyn FnMut(&mut Expr)) {
        each_child!(self, act, iter_mut, mut);
    }

    /// Returns true if the test holds for the expression or for one inside of it. The queries of
    /// subqueries are not inside.
    pub(crate) fn any(&self, test: &mut dyn FnMut(&Expr) -> bool) -> bool {
        let mut found = test(self);
        if !found {
            self.children(&mut |inner| found = found || inner.any(test));
        }
        found
    }

    /// Calls `act` for each column of the row.
    pub(crate) fn columns(&self, act: &mut impl FnMut(usize)) {
        self.any_column(|column| {
            act(column);
            false
        });
    }

    pub(crate) fn any_column(&self, mut test: impl FnMut(usize) -> bool) -> bool {
        self.any(&mut |one| matches!(one, Self::Column(column) if test(*column)))
    }

    pub(crate) fn has_column(&self) -> bool {
        self.any_column(|_| true)
    }

    /// Returns true if the expression needs a value of the query around.
    pub(crate) fn has_outer(&self) -> bool {
        self.any(&mut |one| matches!(one, Self::Outer(_)))
    }

    pub(crate) fn has_subquery(&self) -> bool {
        self.any(&mut |one| matches!(one, Self::Subquery { .. }))
    }

    /// Returns true if the expression has a subquery with values of the row.
    pub(crate) fn has_correlated(&self) -> bool {
        self.any(&mut |one| matches!(one, Self::Subquery { outer, .. } if !outer.is_empty()))
    }

    /// Returns true if each evaluation can have another result.
    pub(crate) fn is_volatile(&self) -> bool {
        self.any(&mut |one| match one {
            Self::Call(bound, _) => bound.function.volatility == Volatility::Volatile,
            one => matches!(one, Self::Sequence(..)),
        })
    }

    /// Calculates what is the same for all rows. What fails is left: it may not be needed.
    pub(crate) fn fold(&mut self, inputs: Inputs<'_>) {
        if matches!(self, Self::Value(_)) {
            return;
        }
        match self.is_fixed().then(|| self.evaluate(inputs)) {
            Some(Ok(value)) => *self = Self::Value(value),
            _ => self.children_mut(&mut |inner| inner.fold(inputs)),
        }
        if let Some((value, array)) = self.list()
            && array.is_fixed()
            && let Ok(Value::Array(array)) = array.evaluate(inputs)
        {
            let (count, mut values) = (array.values.len(), array.values);
            values.retain(|value| !value.is_null());
            let has_null = values.len() < count;
            values.sort_by(Value::compare);
            *self = Self::Member(value.clone().boxed(), values.into(), has_null);
        }
    }

    /// Returns the column whose keys are those of an expression. Integers of all lengths have the
    /// same keys.
    pub(crate) fn key_column(&self) -> Option<usize> {
        // A shorter text is another one.
        let keeps_text = |from: &Type, to: &Type| match (from, to) {
            (Type::Text | Type::Varchar(_) | Type::Name, Type::Text | Type::Varchar(None)) => true,
            (Type::Varchar(Some(from)), Type::Varchar(Some(to))) => from <= to,
            (from, to) => from == to && *from == Type::Name,
        };
        match self {
            Self::Column(column) => Some(*column),
            Self::Cast { value, from, to, .. }
                if from.is_integer() && to.is_integer() || keeps_text(from, to) =>
            {
                match **value {
                    Self::Column(column) => Some(column),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    /// Returns the value that this condition demands to be in an array, and the array.
    pub(crate) fn list(&self) -> Option<(&Expr, Expr)> {
        let is_equal = |test: &Expr| match test {
            Self::Compare(Comparison::Equal, one, other) => {
                (one.key_column(), other.key_column()) == (Some(0), Some(1))
            }
            _ => false,
        };
        match self {
            Self::In(value, all) => Some((value, Self::Array { values: all.clone(), is_nested: false })),
            Self::Quantified(of) if !of.is_of_all && is_equal(&of.test) => {
                Some((&of.value, of.array.clone()))
            }
            Self::Subquery {
                query,
                outer,
                asked: SubqueryUse::Compare { comparison, values, is_all: false },
            } => {
                let ([value], Comparison::Equal) = (&values[..], comparison) else { return None };
                let (query, outer) = (query.clone(), outer.clone());
                Some((value, Self::Subquery { query, outer, asked: SubqueryUse::Array }))
            }
            _ => None,
        }
    }

    /// Returns whether it needs nothing but values: no row, and nothing that is supplied.
    fn is_fixed(&self) -> bool {
        let is_plain = match self {
            Self::Value(_) | Self::Parameter(_) | Self::Outer(_) => return true,
            Self::Cast { from, to, .. } => {
                let is_named = |of: Type| of.is_reg() || is_array_of_reg(of);
                !is_named(*from) && !is_named(*to)
            }
            Self::Not(_) | Self::Compare(..) | Self::Arithmetic(..) | Self::Negative(..) => true,
            Self::Concat(..) | Self::Apply(..) | Self::Array { .. } => true,
            Self::Call(bound, _) => bound.function.volatility == Volatility::Immutable,
            _ => false,
        };
        let mut is_fixed = is_plain;
        self.children(&mut |inner| is_fixed = is_fixed && inner.is_fixed());
        is_fixed
    }

    /// Gives each column another place.
    pub(crate) fn move_columns(&mut self, to: &dyn Fn(usize) -> usize) {
        match self {
            Self::Column(column) => *column = to(*column),
            other => other.children_mut(&mut |inner| inner.move_columns(to)),
        }
    }

    /// Returns whether a condition holds: NULL does not.
    pub(crate) fn holds(&self, inputs: Inputs<'_>) -> Result<bool> {
        Ok(self.truth(inputs)? == Some(true))
    }

    /// Returns its value if that is there already.
    fn present<'a>(&'a self, inputs: Inputs<'a>) -> Option<&'a Value> {
        match self {
            Self::Value(value) => Some(value),
            Self::Column(column) => inputs.row.get(*column),
            Self::Outer(number) => inputs.outer.get(*number),
            Self::Parameter(number) => inputs.parameters.get(*number),
            _ => None,
        }
    }

    /// Evaluates it without a copy of a value that is there.
    pub(crate) fn look<'a>(&'a self, inputs: Inputs<'a>) -> Result<Cow<'a, Value>> {
        match self.present(inputs) {
            Some(value) => Ok(Cow::Borrowed(value)),
            None => self.evaluate(inputs).map(Cow::Owned),
        }
    }

    /// Appends bytes to `key` that are equal for equal values. Returns false if it is NULL.
    pub(crate) fn put_identity(&self, key: &mut Vec<u8>, inputs: Inputs<'_>) -> Result<bool> {
        let value = self.look(inputs)?;
        encode::put_identity(key, &value);
        Ok(!value.is_null())
    }

    /// Evaluates a condition; `None` is NULL.
    fn truth(&self, inputs: Inputs<'_>) -> Result<Option<bool>> {
        Ok(match self {
            Self::Compare(comparison, one, other) => {
                let compare = |one: &Value, other: &Value| match one.is_null() || other.is_null() {
                    true => None,
                    false => Some(comparison.holds(one.compare(other))),
                };
                match (one.present(inputs), other.present(inputs)) {
                    (Some(one), Some(other)) => compare(one, other),
                    _ => compare(&*one.look(inputs)?, &*other.look(inputs)?),
                }
            }
            Self::And(all) => all_of(all, inputs, false)?,
            Self::Or(all) => all_of(all, inputs, true)?,
            Self::Not(one) => one.truth(inputs)?.map(|value| !value),
            Self::IsNull(one) => Some(one.look(inputs)?.is_null()),
            Self::Is(one, wanted) => Some(one.truth(inputs)? == Some(*wanted)),
            Self::IsDistinct(one, other) => Some(one.look(inputs)?.compare(&*other.look(inputs)?).is_ne()),
            Self::Like { value, pattern, ignores_case } => {
                match (&*value.look(inputs)?, &*pattern.look(inputs)?) {
                    (Value::Text(text), Value::Text(pattern)) => Some(is_like(text, pattern, *ignores_case)?),
                    _ => None,
                }
            }
            Self::In(one, all) => {
                let value = one.look(inputs)?;
                if value.is_null() {
                    return Ok(None);
                }
                let mut has_null = false;
                for one in all {
                    let other = one.look(inputs)?;
                    has_null |= other.is_null();
                    if !other.is_null() && value.compare(&other).is_eq() {
                        return Ok(Some(true));
                    }
                }
                (!has_null).then_some(false)
            }
            Self::Member(one, values, has_null) => {
                let value = one.look(inputs)?;
                let is_there = || values.binary_search_by(|other| other.compare(&value)).is_ok();
                match value.is_null() {
                    true => (values.is_empty() && !has_null).then_some(false),
                    false if is_there() => Some(true),
                    false => (!has_null).then_some(false),
                }
            }
            other => match &*other.look(inputs)? {
                Value::Bool(value) => Some(*value),
                _ => None,
            },
        })
    }

    pub(crate) fn evaluate(&self, inputs: Inputs<'_>) -> Result<Value> {
        Ok(match self {
            Self::Value(value) => value.clone(),
            Self::Column(column) => inputs.row[*column].clone(),
            Self::Outer(number) => inputs.outer.get(*number).cloned().unwrap_or(Value::Null),
            Self::Subquery { query, outer, asked } => {
                inputs.context.answers.get(query, evaluate_all(outer, inputs)?, inputs)?.to(asked, inputs)?
            }
            Self::Parameter(number) => inputs.parameters.get(*number).cloned().unwrap_or(Value::Null),
            Self::Not(_)
            | Self::And(_)
            | Self::Or(_)
            | Self::IsNull(_)
            | Self::Is(..)
            | Self::IsDistinct(..)
            | Self::Compare(..)
            | Self::Like { .. }
            | Self::In(..)
            | Self::Member(..) => self.truth(inputs)?.map_or(Value::Null, Value::Bool),
            Self::Arithmetic(operation, of, one, other) => {
                match (one.evaluate(inputs)?, other.evaluate(inputs)?) {
                    (Value::Null, _) | (_, Value::Null) => Value::Null,
                    (one, other) => calculate(*operation, *of, one, other)?,
                }
            }
            Self::Negative(of, one) => match one.evaluate(inputs)? {
                Value::Null => Value::Null,
                Value::Float(number) => Value::Float(-number),
                Value::Numeric(number) => Value::Numeric(Numeric { digits: -number.digits, ..number }),
                value => calculate(Operation::Subtract, *of, Value::Int(0), value)?,
            },
            Self::Concat(one, other) => match (one.evaluate(inputs)?, other.evaluate(inputs)?) {
                (Value::Text(one), Value::Text(other)) if one.len() + other.len() > MOST_BYTES => {
                    return Err(too_long());
                }
                (Value::Text(one), Value::Text(other)) => Value::Text(one + &other),
                _ => Value::Null,
            },
            Self::Checked(value, of, conditions) => {
                let value = value.evaluate(inputs)?;
                of.check(&value, conditions, inputs.context)?;
                value
            }
            Self::Cast { value, from, to, .. } if from.is_reg() || to.is_reg() => {
                system::cast(value.evaluate(inputs)?, *from, *to, inputs.context)?
            }
            Self::Cast { value, from, to, .. } if is_array_of_reg(*from) || is_array_of_reg(*to) => {
                cast_names(value.evaluate(inputs)?, *from, *to, inputs.context)?
            }
            Self::Cast { value, from, to, is_explicit } => {
                value.evaluate(inputs)?.cast(*from, *to, *is_explicit)?
            }
            Self::Case(cases, otherwise) => {
                for (condition, result) in cases {
                    if condition.holds(inputs)? {
                        return result.evaluate(inputs);
                    }
                }
                otherwise.evaluate(inputs)?
            }
            Self::Coalesce(all) => {
                for one in all {
                    let value = one.evaluate(inputs)?;
                    if !value.is_null() {
                        return Ok(value);
                    }
                }
                Value::Null
            }
            Self::Sequence(named, call) => {
                let drawn = &inputs.context.sequences;
                let missing = || SqlError::unsupported("a sequence in this place");
                let sequence = match named {
                    NamedSequence::Found(slot) => slot.get().ok_or_else(missing)?.clone(),
                    NamedSequence::Of(name) => match name.evaluate(inputs)? {
                        Value::Int(number) => system::sequence(inputs.context, number)?,
                        _ => return Ok(Value::Null),
                    },
                };
                let sequence = &sequence;
                match call {
                    SequenceCall::Next => Value::Int(drawn.next(sequence)?),
                    SequenceCall::Current => Value::Int(drawn.current(sequence)?),
                    SequenceCall::Set(last, is_called) => {
                        match (last.evaluate(inputs)?, is_called.evaluate(inputs)?) {
                            (Value::Int(last), Value::Bool(is_called)) => {
                                drawn.set(sequence, last, is_called)?;
                                Value::Int(last)
                            }
                            _ => Value::Null,
                        }
                    }
                }
            }
            Self::Apply(act, operands) => act(&evaluate_all(operands, inputs)?)?,
            Self::Array { values, is_nested } => {
                let values = evaluate_all(values, inputs)?;
                Value::Array(Box::new(if *is_nested { Array::nested(values)? } else { values.into() }))
            }
            Self::Subscript(array, subscripts) => subscript(array, subscripts, inputs)?,
            Self::Quantified(quantified) => quantified.evaluate(inputs)?,
            Self::Call(function, arguments) => {
                function.call(&evaluate_all(arguments, inputs)?, inputs.context)?
            }
        })
    }
}

/// Returns the values of expressions.
pub(crate) fn evaluate_all(all: &[Expr], inputs: Inputs<'_>) -> Result<Vec<Value>> {
    all.iter().map(|expr| expr.evaluate(inputs)).collect()
}

impl Quantified {
    fn evaluate(&self, inputs: Inputs<'_>) -> Result<Value> {
        let (value, array) = (self.value.evaluate(inputs)?, self.array.evaluate(inputs)?);
        let Value::Array(array) = array else { return Ok(Value::Null) };
        let mut row = [value, Value::Null];
        let mut has_null = false;
        for element in array.values {
            row[1] = element;
            match self.test.evaluate(Inputs { row: &row, ..inputs })? {
                Value::Bool(is_true) if is_true != self.is_of_all => return Ok(Value::Bool(is_true)),
                Value::Bool(_) => {}
                _ => has_null = true,
            }
        }
        Ok(if has_null { Value::Null } else { Value::Bool(self.is_of_all) })
    }
}

/// Returns an element or a part of an array.
fn subscript(array: &Expr, subscripts: &[Subscript], inputs: Inputs<'_>) -> Result<Value> {
    let Value::Array(array) = array.evaluate(inputs)? else { return Ok(Value::Null) };
    let is_slice = subscripts.iter().any(|subscript| matches!(subscript, Subscript::Slice(..)));
    // The first and last place in each dimension.
    let mut bounds = Vec::with_capacity(subscripts.len());
    let place = |expr: &Expr| -> Result<Option<i64>> {
        Ok(match expr.evaluate(inputs)? {
            Value::Int(place) => Some(place),
            _ => None,
        })
    };
    for (at, subscript) in subscripts.iter().enumerate() {
        let (first, last) = array.bounds(at);
        let bound = match subscript {
            Subscript::Place(expr) if is_slice => (Some(1), place(expr)?),
            Subscript::Place(expr) => {
                let place = place(expr)?;
                (place, place)
            }
            Subscript::Slice(from, to) => {
                (from.as_ref().map_or(Ok(Some(first)), place)?, to.as_ref().map_or(Ok(Some(last)), place)?)
            }
        };
        let (Some(first), Some(last)) = bound else { return Ok(Value::Null) };
        bounds.push((first, last));
    }
    Ok(match is_slice {
        true => Value::Array(Box::new(array.slice(&bounds))),
        false => array.element(&bounds).cloned().unwrap_or(Value::Null),
    })
}

fn is_array_of_reg(of: Type) -> bool {
    of.element().is_some_and(Type::is_reg)
}

/// Converts arrays to or from those whose elements are shown as names.
fn cast_names(value: Value, from: Type, to: Type, context: &Context) -> Result<Value> {
    let (value, from) = match value {
        Value::Text(text) => {
            (crate::types::text::parse(&text, Type::Array(&Type::Text))?, Type::Array(&Type::Text))
        }
        value => (value, from),
    };
    let Value::Array(mut array) = value else { return Ok(Value::Null) };
    let one = from.element().unwrap_or(Type::Text);
    let other = to.element().unwrap_or(Type::Text);
    for value in &mut array.values {
        *value = system::cast(std::mem::replace(value, Value::Null), one, other, context)?;
    }
    Ok(match to.element() {
        Some(_) => Value::Array(array),
        None => Value::Text(array.print(Type::Array(&Type::Text))),
    })
}

/// Returns the conjunction, or the disjunction if one that is `deciding` decides.
fn all_of(all: &[Expr], inputs: Inputs<'_>, deciding: bool) -> Result<Option<bool>> {
    let mut has_null = false;
    for one in all {
        match one.truth(inputs)? {
            Some(value) if value == deciding => return Ok(Some(deciding)),
            Some(_) => {}
            None => has_null = true,
        }
    }
    Ok((!has_null).then_some(!deciding))
}

fn calculate(operation: Operation, of: Type, one: Value, other: Value) -> Result<Value> {
    let by_zero = || SqlError::new(code::DIVISION_BY_ZERO, "division by zero");
    match (one, other) {
        (Value::Int(one), Value::Int(other)) => {
            let result = match operation {
                Operation::Add => one.checked_add(other),
                Operation::Subtract => one.checked_sub(other),
                Operation::Multiply => one.checked_mul(other),
                Operation::Divide | Operation::Modulo if other == 0 => return Err(by_zero()),
                Operation::Divide => one.checked_div(other),
                Operation::Modulo => Some(one.wrapping_rem(other)),
            };
            let fits = |number: &i64| match of {
                Type::Int2 => i16::try_from(*number).is_ok(),
                Type::Int4 => i32::try_from(*number).is_ok(),
                _ => true,
            };
            result.filter(fits).map(Value::Int).ok_or_else(|| out_of_range(of))
        }
        (Value::Float(one), Value::Float(other)) => {
            let result = match operation {
                Operation::Add => one + other,
                Operation::Subtract => one - other,
                Operation::Multiply => one * other,
                Operation::Divide | Operation::Modulo if other == 0.0 => return Err(by_zero()),
                Operation::Divide => one / other,
                Operation::Modulo => one % other,
            };
            if result.is_infinite() && one.is_finite() && other.is_finite() {
                return Err(SqlError::new(code::NUMERIC_OUT_OF_RANGE, "value out of range: overflow"));
            }
            Value::Float(result).fit(of, false)
        }
        (Value::Numeric(one), Value::Numeric(other)) => Ok(Value::Numeric(match operation {
            Operation::Add => one.add(other)?,
            Operation::Subtract => one.sub(other)?,
            Operation::Multiply => one.mul(other)?,
            Operation::Divide => one.div(other)?,
            Operation::Modulo => one.rem(other)?,
        })),
        // The binder gives both sides the same type.
        _ => Err(SqlError::unsupported(format!("arithmetic of type {}", of.name()))),
    }
}
