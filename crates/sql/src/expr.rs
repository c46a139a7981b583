//! Expressions whose names and types are known, and their evaluator.

use std::cmp::Ordering;

use crate::{
    error::{Result, SqlError, code},
    functions::{BoundFunction, Context},
    sequences::SequenceSlot,
    system,
    types::{Type, Value, numeric::Numeric, out_of_range},
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
    /// Conditions with their results, and the result if none is true.
    Case(Vec<(Expr, Expr)>, Box<Expr>),
    Call(BoundFunction, Vec<Expr>),
    Sequence(SequenceSlot, SequenceCall),
    Coalesce(Vec<Expr>),
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
    fn holds(self, order: Ordering) -> bool {
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
    pub(crate) context: &'a Context,
}

impl Expr {
    pub(crate) fn boxed(self) -> Box<Self> {
        Box::new(self)
    }

    /// Calls `act` with each column.
    pub(crate) fn columns(&self, act: &mut impl FnMut(usize)) {
        match self {
            Self::Column(column) => act(*column),
            Self::Value(_) | Self::Parameter(_) => {}
            Self::Sequence(_, SequenceCall::Next | SequenceCall::Current) => {}
            Self::Sequence(_, SequenceCall::Set(last, is_called)) => {
                last.columns(act);
                is_called.columns(act);
            }
            Self::Not(one) | Self::IsNull(one) | Self::Is(one, _) | Self::Negative(_, one) => {
                one.columns(act)
            }
            Self::Cast { value, .. } => value.columns(act),
            Self::And(all) | Self::Or(all) | Self::Call(_, all) | Self::Coalesce(all) => {
                all.iter().for_each(|one| one.columns(act));
            }
            Self::Compare(_, one, other)
            | Self::Arithmetic(_, _, one, other)
            | Self::IsDistinct(one, other)
            | Self::Concat(one, other) => {
                one.columns(act);
                other.columns(act);
            }
            Self::Like { value, pattern, .. } => {
                value.columns(act);
                pattern.columns(act);
            }
            Self::In(one, all) => {
                one.columns(act);
                all.iter().for_each(|one| one.columns(act));
            }
            Self::Case(cases, otherwise) => {
                for (condition, result) in cases {
                    condition.columns(act);
                    result.columns(act);
                }
                otherwise.columns(act);
            }
        }
    }

    /// Returns whether a condition holds: NULL does not.
    pub(crate) fn holds(&self, inputs: Inputs<'_>) -> Result<bool> {
        Ok(matches!(self.evaluate(inputs)?, Value::Bool(true)))
    }

    pub(crate) fn evaluate(&self, inputs: Inputs<'_>) -> Result<Value> {
        Ok(match self {
            Self::Value(value) => value.clone(),
            Self::Column(column) => inputs.row[*column].clone(),
            Self::Parameter(number) => inputs.parameters.get(*number).cloned().unwrap_or(Value::Null),
            Self::Not(one) => match one.evaluate(inputs)? {
                Value::Bool(value) => Value::Bool(!value),
                _ => Value::Null,
            },
            Self::And(all) => all_of(all, inputs, false)?,
            Self::Or(all) => all_of(all, inputs, true)?,
            Self::IsNull(one) => Value::Bool(one.evaluate(inputs)?.is_null()),
            Self::Is(one, wanted) => Value::Bool(one.evaluate(inputs)? == Value::Bool(*wanted)),
            Self::IsDistinct(one, other) => {
                Value::Bool(one.evaluate(inputs)?.compare(&other.evaluate(inputs)?).is_ne())
            }
            Self::Compare(comparison, one, other) => match (one.evaluate(inputs)?, other.evaluate(inputs)?) {
                (Value::Null, _) | (_, Value::Null) => Value::Null,
                (one, other) => Value::Bool(comparison.holds(one.compare(&other))),
            },
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
                (Value::Text(one), Value::Text(other)) => Value::Text(one + &other),
                _ => Value::Null,
            },
            Self::Cast { value, from, to, .. } if from.is_reg() || to.is_reg() => {
                system::cast(value.evaluate(inputs)?, *from, *to, inputs.context)?
            }
            Self::Cast { value, from, to, is_explicit } => {
                value.evaluate(inputs)?.cast(*from, *to, *is_explicit)?
            }
            Self::Like { value, pattern, ignores_case } => {
                match (value.evaluate(inputs)?, pattern.evaluate(inputs)?) {
                    (Value::Text(text), Value::Text(pattern)) if *ignores_case => {
                        Value::Bool(is_like(&text.to_lowercase(), &pattern.to_lowercase())?)
                    }
                    (Value::Text(text), Value::Text(pattern)) => Value::Bool(is_like(&text, &pattern)?),
                    _ => Value::Null,
                }
            }
            Self::In(one, all) => {
                let value = one.evaluate(inputs)?;
                if value.is_null() {
                    return Ok(Value::Null);
                }
                let mut has_null = false;
                for one in all {
                    let other = one.evaluate(inputs)?;
                    has_null |= other.is_null();
                    if !other.is_null() && value.compare(&other).is_eq() {
                        return Ok(Value::Bool(true));
                    }
                }
                if has_null { Value::Null } else { Value::Bool(false) }
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
            Self::Sequence(slot, call) => {
                let drawn = &inputs.context.sequences;
                let missing = || SqlError::unsupported("a sequence in this place");
                let sequence = slot.get().ok_or_else(missing)?;
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
            Self::Call(function, arguments) => {
                let values: Vec<Value> =
                    arguments.iter().map(|argument| argument.evaluate(inputs)).collect::<Result<_>>()?;
                function.call(&values, inputs.context)?
            }
        })
    }
}

/// Returns the conjunction, or the disjunction if one that is `deciding` decides.
fn all_of(all: &[Expr], inputs: Inputs<'_>, deciding: bool) -> Result<Value> {
    let mut has_null = false;
    for one in all {
        match one.evaluate(inputs)? {
            Value::Bool(value) if value == deciding => return Ok(Value::Bool(deciding)),
            Value::Bool(_) => {}
            _ => has_null = true,
        }
    }
    Ok(if has_null { Value::Null } else { Value::Bool(!deciding) })
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

/// Returns whether a text matches a pattern of LIKE.
fn is_like(text: &str, pattern: &str) -> Result<bool> {
    enum Part {
        One(char),
        Any,
        Many,
    }
    let mut parts = Vec::new();
    let mut chars = pattern.chars();
    while let Some(char) = chars.next() {
        parts.push(match char {
            '%' => Part::Many,
            '_' => Part::Any,
            '\\' => {
                Part::One(chars.next().ok_or_else(|| {
                    SqlError::new("22025", "LIKE pattern must not end with escape character")
                })?)
            }
            char => Part::One(char),
        });
    }
    let text: Vec<char> = text.chars().collect();
    let (mut at, mut part) = (0, 0);
    // The last `%`, and the place in the text from which it is tried next.
    let mut retry = None;
    loop {
        match parts.get(part) {
            Some(Part::Many) => {
                retry = Some((part + 1, at));
                part += 1;
                continue;
            }
            Some(Part::Any) if at < text.len() => {
                at += 1;
                part += 1;
                continue;
            }
            Some(Part::One(char)) if text.get(at) == Some(char) => {
                at += 1;
                part += 1;
                continue;
            }
            None if at == text.len() => return Ok(true),
            _ => {}
        }
        match retry {
            Some((after, from)) if from < text.len() => {
                retry = Some((after, from + 1));
                (part, at) = (after, from + 1);
            }
            _ => return Ok(false),
        }
    }
}
