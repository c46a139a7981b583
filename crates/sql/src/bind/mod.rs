//! The binder: statements of names become expressions over columns with types.

pub(crate) mod operators;
pub(crate) mod select;

use std::cell::RefCell;

use sqlparser::ast::{self, BinaryOperator, UnaryOperator};

use crate::{
    error::{Result, SqlError, code},
    expr::{Comparison, Expr, SequenceCall},
    functions,
    parse::folded,
    sequences::SequenceSlot,
    types::{Clock, Type, Value},
};

/// An expression and its type.
pub(crate) type Typed = (Expr, Type);

/// A column that names may mean.
#[derive(Clone, Debug)]
pub(crate) struct ScopeColumn {
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) of: Type,
}

/// The types of a statement's parameters, as far as they are known, and the sequences that it
/// names, which are found in the catalog once it is bound.
#[derive(Default, Debug)]
pub(crate) struct Parameters {
    pub(crate) types: RefCell<Vec<Type>>,
    pub(crate) sequences: RefCell<Vec<(String, SequenceSlot)>>,
}

/// An aggregate function of a group of rows.
#[derive(Clone, Debug)]
pub(crate) struct Aggregate {
    pub(crate) kind: AggregateKind,
    /// `None`: the rows are counted.
    pub(crate) of: Option<Expr>,
    pub(crate) input: Type,
    pub(crate) is_distinct: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AggregateKind {
    Count,
    Sum,
    Average,
    Least,
    Greatest,
}

/// The groups of a query: the expressions that it groups by, and its aggregates so far.
pub(crate) struct Grouping<'a> {
    pub(crate) by: &'a [(ast::Expr, Type)],
    pub(crate) aggregates: RefCell<Vec<(ast::Function, Aggregate, Type)>>,
}

/// The columns and parameters that an expression may name.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) columns: &'a [ScopeColumn],
    pub(crate) parameters: &'a Parameters,
    /// If set, rows are groups: first the values by which they are grouped, then the aggregates.
    pub(crate) grouping: Option<&'a Grouping<'a>>,
}

impl Parameters {
    /// Returns the type of a parameter; `wanted` is noted if it had none.
    fn decide(&self, number: usize, wanted: Type) -> Type {
        let mut types = self.types.borrow_mut();
        if types.len() <= number {
            types.resize(number + 1, Type::Unknown);
        }
        if types[number] == Type::Unknown {
            types[number] = wanted.without_limits();
        }
        types[number]
    }
}

fn literal_number(text: &str) -> Result<Typed> {
    if let Ok(number) = text.parse::<i64>() {
        let of = if i32::try_from(number).is_ok() { Type::Int4 } else { Type::Int8 };
        return Ok((Expr::Value(Value::Int(number)), of));
    }
    let number = crate::types::numeric::Numeric::parse(text)?;
    Ok((Expr::Value(Value::Numeric(number)), Type::Numeric(None)))
}

/// Converts an expression to a type; a literal or parameter without type gets it.
pub(crate) fn coerce((expr, from): Typed, to: Type, on: &Parameters, is_explicit: bool) -> Result<Expr> {
    if let (Expr::Parameter(number), Type::Unknown) = (&expr, from) {
        let has = on.decide(*number, to);
        return match has == to {
            true => Ok(expr),
            false => Ok(Expr::Cast { value: expr.boxed(), from: has, to, is_explicit }),
        };
    }
    if from == to || to == Type::Unknown {
        return Ok(expr);
    }
    if let Expr::Value(value) = &expr
        && !from.is_reg()
        && !to.is_reg()
    {
        return Ok(Expr::Value(value.clone().cast(from, to, is_explicit)?));
    }
    Ok(Expr::Cast { value: expr.boxed(), from, to, is_explicit })
}

/// Converts an expression to the type of a column, as an assignment does.
pub(crate) fn assign(typed: Typed, to: Type, name: &str, on: &Parameters) -> Result<Expr> {
    let from = typed.1;
    let fits = from.is_assignable_to(to);
    if !fits {
        let (to, from) = (to.name(), from.name());
        let message = format!("column \"{name}\" is of type {to} but expression is of type {from}");
        return Err(SqlError::new(code::DATATYPE_MISMATCH, message));
    }
    coerce(typed, to, on, false)
}

/// Returns the type that a name of SQL means.
pub(crate) fn type_of(of: &ast::DataType) -> Result<Type> {
    use ast::{CharacterLength, DataType as D, ExactNumberInfo as N, TimezoneInfo as Z};
    let length = |length: &Option<CharacterLength>| match length {
        None => Ok(None),
        Some(CharacterLength::IntegerLength { length, unit: None }) => match u32::try_from(*length) {
            Ok(length @ 1..=10_485_760) => Ok(Some(length)),
            _ => Err(SqlError::new(code::INVALID_PARAMETER_VALUE, "the length of a type must be at least 1")),
        },
        Some(other) => Err(SqlError::unsupported(format!("the length {other}"))),
    };
    let numeric = |digits: u64, scale: i64| match (u16::try_from(digits), u16::try_from(scale)) {
        (Ok(digits @ 1..=38), Ok(scale)) if scale <= digits.min(37) => {
            Ok(Type::Numeric(Some((digits, scale))))
        }
        _ => Err(SqlError::unsupported(format!("numeric({digits},{scale})"))),
    };
    // More than six digits of seconds are not kept.
    let clock = |clock: Clock, digits: &Option<u64>| match digits {
        None => Type::Rounded(clock, 6).unrounded(),
        Some(digits) => Type::Rounded(clock, (*digits).min(6) as u8),
    };
    Ok(match of {
        D::Bool | D::Boolean => Type::Bool,
        D::SmallInt(None) | D::Int2(None) => Type::Int2,
        D::Int(None) | D::Integer(None) | D::Int4(None) => Type::Int4,
        D::BigInt(None) | D::Int8(None) => Type::Int8,
        D::Real | D::Float4 | D::Float(N::Precision(1..=24)) => Type::Float4,
        D::DoublePrecision | D::Float8 | D::Float(N::Precision(25..=53)) => Type::Float8,
        D::Double(N::None) | D::Float(N::None) => Type::Float8,
        D::Numeric(N::None) | D::Decimal(N::None) | D::Dec(N::None) => Type::Numeric(None),
        D::Numeric(N::Precision(digits)) | D::Decimal(N::Precision(digits)) => numeric(*digits, 0)?,
        D::Numeric(N::PrecisionAndScale(digits, scale)) | D::Decimal(N::PrecisionAndScale(digits, scale)) => {
            numeric(*digits, *scale)?
        }
        D::Text => Type::Text,
        D::Varchar(size) | D::CharacterVarying(size) | D::CharVarying(size) => Type::Varchar(length(size)?),
        D::Char(size) | D::Character(size) => Type::Char(length(size)?.unwrap_or(1)),
        D::Bytea => Type::Bytea,
        D::Uuid => Type::Uuid,
        D::Date => Type::Date,
        D::Interval { fields: None, precision } => clock(Clock::Interval, precision),
        D::Time(digits, Z::None | Z::WithoutTimeZone) => clock(Clock::TimeOfDay, digits),
        D::Time(digits, Z::Tz | Z::WithTimeZone) => clock(Clock::TimeTz, digits),
        D::Timestamp(digits, Z::None | Z::WithoutTimeZone) => clock(Clock::Timestamp, digits),
        D::Timestamp(digits, Z::Tz | Z::WithTimeZone) => clock(Clock::TimestampTz, digits),
        D::Regclass => Type::Regclass,
        D::JSON => Type::Json,
        D::JSONB => Type::Jsonb,
        D::Array(ast::ArrayElemTypeDef::SquareBracket(element, _)) => {
            match type_of(element)? {
                // All arrays of one element are of one type.
                array @ Type::Array(_) => array,
                element => (element.array().filter(|array| array.element() == Some(element)))
                    .ok_or_else(|| SqlError::unsupported(format!("the type {of}")))?,
            }
        }
        D::Custom(name, modifiers) if modifiers.is_empty() => {
            let parts: Vec<String> = name.0.iter().filter_map(|part| part.as_ident().map(folded)).collect();
            let name = match &parts[..] {
                [name] => name,
                [schema, name] if schema == "pg_catalog" => name,
                _ => return Err(SqlError::unsupported(format!("the type {of}"))),
            };
            match name.as_str() {
                // Only with quotes: else it is a type of the language.
                "char" => Type::OneByte,
                "name" => Type::Name,
                "oid" => Type::Oid,
                "regclass" => Type::Regclass,
                "regtype" => Type::Regtype,
                "regproc" => Type::Regproc,
                "regnamespace" => Type::Regnamespace,
                "regrole" => Type::Regrole,
                "int2vector" => Type::Int2Vector,
                "oidvector" => Type::OidVector,
                "bool" => Type::Bool,
                "int2" => Type::Int2,
                "int4" => Type::Int4,
                "int8" => Type::Int8,
                "float4" => Type::Float4,
                "float8" => Type::Float8,
                "bpchar" => Type::Char(u32::MAX),
                "text" => Type::Text,
                "varchar" => Type::Varchar(None),
                "numeric" => Type::Numeric(None),
                "uuid" => Type::Uuid,
                "bytea" => Type::Bytea,
                "json" => Type::Json,
                "jsonb" => Type::Jsonb,
                "date" => Type::Date,
                "timestamp" => Type::Timestamp,
                "timestamptz" => Type::TimestampTz,
                "time" => Type::TimeOfDay,
                "timetz" => Type::TimeTz,
                "interval" => Type::Interval,
                _ => return Err(SqlError::unsupported(format!("the type {of}"))),
            }
        }
        other => return Err(SqlError::unsupported(format!("the type {other}"))),
    })
}

impl Scope<'_> {
    /// Finds a column by its name.
    pub(crate) fn column(&self, table: Option<&str>, name: &str) -> Result<usize> {
        let is_it =
            |column: &ScopeColumn| column.name == name && table.is_none_or(|table| column.table == table);
        let mut found = self.columns.iter().enumerate().filter(|(_, column)| is_it(column));
        let shown = table.map_or(String::new(), |table| format!("{table}.")) + name;
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Ok(at),
            (Some(_), Some(_)) => {
                let message = format!("column reference \"{shown}\" is ambiguous");
                Err(SqlError::new(code::AMBIGUOUS_COLUMN, message))
            }
            (None, _)
                if table.is_some_and(|table| self.columns.iter().all(|column| column.table != table)) =>
            {
                let message =
                    format!("missing FROM-clause entry for table \"{}\"", table.unwrap_or_default());
                Err(SqlError::new(code::UNDEFINED_TABLE, message))
            }
            (None, _) => {
                let shown = if table.is_some() { shown } else { format!("\"{shown}\"") };
                Err(SqlError::new(code::UNDEFINED_COLUMN, format!("column {shown} does not exist")))
            }
        }
    }

    fn named(&self, table: Option<&str>, name: &str) -> Result<Typed> {
        let at = self.column(table, name)?;
        if self.grouping.is_some() {
            let column = &self.columns[at];
            let message = format!(
                "column \"{}.{}\" must appear in the GROUP BY clause or be used in an aggregate function",
                column.table, column.name
            );
            return Err(SqlError::new(code::GROUPING_ERROR, message));
        }
        Ok((Expr::Column(at), self.columns[at].of.unrounded()))
    }

    /// Binds a condition.
    pub(crate) fn condition(&self, expr: &ast::Expr, of: &str) -> Result<Expr> {
        let typed = self.bind(expr)?;
        if !matches!(typed.1, Type::Bool | Type::Unknown) {
            let message = format!("argument of {of} must be type boolean, not type {}", typed.1.name());
            return Err(SqlError::new(code::DATATYPE_MISMATCH, message));
        }
        coerce(typed, Type::Bool, self.parameters, false)
    }

    /// Binds an expression.
    pub(crate) fn bind(&self, expr: &ast::Expr) -> Result<Typed> {
        use ast::Expr as E;
        if let Some(grouping) = self.grouping
            && let Some(at) = grouping.by.iter().position(|(by, _)| by == expr)
        {
            return Ok((Expr::Column(at), grouping.by[at].1));
        }
        Ok(match expr {
            E::Identifier(name) => self.named(None, &folded(name))?,
            E::CompoundIdentifier(names) => match &names[..] {
                [table, name] => self.named(Some(&folded(table)), &folded(name))?,
                _ => return Err(SqlError::unsupported(format!("the name {expr}"))),
            },
            E::Nested(inner) => self.bind(inner)?,
            E::Value(value) => self.value(&value.value)?,
            E::TypedString(typed) => {
                let text = typed.value.clone().value.into_string().unwrap_or_default();
                let of = type_of(&typed.data_type)?;
                (Expr::Value(Value::Text(text).cast(Type::Unknown, of, true)?), of.unrounded())
            }
            E::UnaryOp { op: UnaryOperator::Minus, expr: inner } => {
                if let E::Value(ast::ValueWithSpan { value: ast::Value::Number(text, _), .. }) = &**inner {
                    return literal_number(&format!("-{text}"));
                }
                let (inner, of) = self.bind(inner)?;
                match of.is_number() {
                    true => (Expr::Negative(of, inner.boxed()), of),
                    false => self.prefixed("-", (inner, of))?,
                }
            }
            E::UnaryOp {
                op:
                    op @ (UnaryOperator::BitwiseNot
                    | UnaryOperator::PGAbs
                    | UnaryOperator::PGSquareRoot
                    | UnaryOperator::PGCubeRoot),
                expr,
            } => self.prefixed(&op.to_string(), self.bind(expr)?)?,
            E::UnaryOp { op: UnaryOperator::Plus, expr } => self.bind(expr)?,
            E::UnaryOp { op: UnaryOperator::Not, expr } => {
                (Expr::Not(self.condition(expr, "NOT")?.boxed()), Type::Bool)
            }
            E::IsNull(inner) if operators::row_of(inner).is_some() => self.is_null(inner, true)?,
            E::IsNotNull(inner) if operators::row_of(inner).is_some() => self.is_null(inner, false)?,
            E::IsNull(inner) => (Expr::IsNull(self.bind(inner)?.0.boxed()), Type::Bool),
            E::IsNotNull(inner) => (Expr::Not(Expr::IsNull(self.bind(inner)?.0.boxed()).boxed()), Type::Bool),
            E::IsTrue(inner) => (Expr::Is(self.condition(inner, "IS TRUE")?.boxed(), true), Type::Bool),
            E::IsFalse(inner) => (Expr::Is(self.condition(inner, "IS FALSE")?.boxed(), false), Type::Bool),
            E::IsNotTrue(inner) => {
                (Expr::Not(Expr::Is(self.condition(inner, "IS TRUE")?.boxed(), true).boxed()), Type::Bool)
            }
            E::IsNotFalse(inner) => {
                (Expr::Not(Expr::Is(self.condition(inner, "IS FALSE")?.boxed(), false).boxed()), Type::Bool)
            }
            E::IsDistinctFrom(one, other) => {
                let (one, other, _) = self.pair(one, other, "IS DISTINCT FROM")?;
                (Expr::IsDistinct(one.boxed(), other.boxed()), Type::Bool)
            }
            E::IsNotDistinctFrom(one, other) => {
                let (one, other, _) = self.pair(one, other, "IS DISTINCT FROM")?;
                (Expr::Not(Expr::IsDistinct(one.boxed(), other.boxed()).boxed()), Type::Bool)
            }
            E::Between { expr, negated, low, high } => {
                let (value, low, _) = self.pair(expr, low, ">=")?;
                let (same, high, _) = self.pair(expr, high, "<=")?;
                let both = vec![
                    Expr::Compare(Comparison::GreaterOrEqual, value.boxed(), low.boxed()),
                    Expr::Compare(Comparison::LessOrEqual, same.boxed(), high.boxed()),
                ];
                let both = Expr::And(both);
                (if *negated { Expr::Not(both.boxed()) } else { both }, Type::Bool)
            }
            E::In { expr, target: ast::InTarget::List(list), negated, global: false } => {
                if operators::row_of(expr).is_some() {
                    let equal = |one: &ast::Expr| Ok(self.binary(expr, &BinaryOperator::Eq, one)?.0);
                    let found = Expr::Or(list.iter().map(equal).collect::<Result<_>>()?);
                    return Ok((if *negated { Expr::Not(found.boxed()) } else { found }, Type::Bool));
                }
                let mut typed = vec![self.bind(expr)?];
                for one in list {
                    typed.push(self.bind(one)?);
                }
                let (mut all, _) = self.unified(typed, "IN")?;
                let value = all.remove(0);
                let found = Expr::In(value.boxed(), all);
                (if *negated { Expr::Not(found.boxed()) } else { found }, Type::Bool)
            }
            E::Like { negated, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, escape_char.as_deref(), *negated, false)?
            }
            E::ILike { negated, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, escape_char.as_deref(), *negated, true)?
            }
            E::SimilarTo { negated, expr, pattern, escape_char } => {
                self.similar(expr, pattern, escape_char.as_deref(), *negated)?
            }
            E::Collate { expr, collation } => self.collated(expr, collation)?,
            E::Interval(interval) => operators::interval(interval)?,
            E::AtTimeZone { timestamp, time_zone } => self.at_zone(timestamp, time_zone)?,
            E::Extract { field, expr, .. } => {
                let field = (Expr::Value(Value::Text(field.to_string())), Type::Text);
                self.part("extract", field, self.bind(expr)?, true)?
            }
            E::BinaryOp { left, op, right } => self.binary(left, op, right)?,
            E::AnyOp { left, compare_op, right, .. } => self.quantified(left, compare_op, right, false)?,
            E::AllOp { left, compare_op, right } => self.quantified(left, compare_op, right, true)?,
            E::Array(array) => self.array(&array.elem, None)?,
            E::CompoundFieldAccess { root, access_chain } => self.subscripted(root, access_chain)?,
            E::Cast {
                kind: ast::CastKind::Cast | ast::CastKind::DoubleColon,
                expr,
                data_type,
                format: None,
            } => {
                let of = type_of(data_type)?;
                if let (E::Array(array), Some(element)) = (&**expr, of.element()) {
                    return self.array(&array.elem, Some(element));
                }
                (coerce(self.bind(expr)?, of, self.parameters, true)?, of.unrounded())
            }
            E::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref())?
            }
            E::Substring { expr, substring_from, substring_for, .. } => {
                let mut arguments = vec![self.bind(expr)?];
                let one = ast::Expr::value(ast::Value::Number("1".into(), false));
                arguments.push(self.bind(substring_from.as_deref().unwrap_or(&one))?);
                if let Some(count) = substring_for {
                    arguments.push(self.bind(count)?);
                }
                self.call("substr", arguments)?
            }
            E::Function(function) => self.function(function)?,
            other => return Err(SqlError::unsupported(format!("the expression {other}"))),
        })
    }

    fn value(&self, value: &ast::Value) -> Result<Typed> {
        Ok(match value {
            ast::Value::Number(text, _) => literal_number(text)?,
            ast::Value::SingleQuotedString(text) | ast::Value::EscapedStringLiteral(text) => {
                (Expr::Value(Value::Text(text.clone())), Type::Unknown)
            }
            ast::Value::DollarQuotedString(text) => {
                (Expr::Value(Value::Text(text.value.clone())), Type::Unknown)
            }
            ast::Value::Boolean(value) => (Expr::Value(Value::Bool(*value)), Type::Bool),
            ast::Value::Null => (Expr::Value(Value::Null), Type::Unknown),
            ast::Value::Placeholder(name) => {
                let number = name.strip_prefix('$').and_then(|digits| digits.parse::<usize>().ok());
                let Some(number @ 1..=65_535) = number else {
                    let message = format!("there is no parameter {name}");
                    return Err(SqlError::new(code::UNDEFINED_PARAMETER, message));
                };
                (Expr::Parameter(number - 1), self.parameters.decide(number - 1, Type::Unknown))
            }
            other => return Err(SqlError::unsupported(format!("the literal {other}"))),
        })
    }

    /// Gives expressions one type.
    pub(crate) fn unified(&self, all: Vec<Typed>, what: &str) -> Result<(Vec<Expr>, Type)> {
        let mut common = Type::Unknown;
        for (_, of) in &all {
            common = common.common(*of).ok_or_else(|| {
                let message = format!("{what} types {} and {} cannot be matched", common.name(), of.name());
                SqlError::new(code::DATATYPE_MISMATCH, message)
            })?;
        }
        if common == Type::Unknown {
            common = Type::Text;
        }
        // Here, other than for an operator, the other number becomes a real one.
        if common == Type::Float8 && all.iter().all(|(_, of)| *of != Type::Float8) {
            common = Type::Float4;
        }
        let unified = all.into_iter().map(|typed| coerce(typed, common, self.parameters, false));
        Ok((unified.collect::<Result<_>>()?, common))
    }

    fn case(
        &self,
        operand: Option<&ast::Expr>,
        cases: &[ast::CaseWhen],
        otherwise: Option<&ast::Expr>,
    ) -> Result<Typed> {
        let mut conditions = Vec::new();
        let mut results = Vec::new();
        for case in cases {
            conditions.push(match operand {
                None => self.condition(&case.condition, "CASE/WHEN")?,
                Some(operand) => {
                    let (one, other, _) = self.pair(operand, &case.condition, "=")?;
                    Expr::Compare(Comparison::Equal, one.boxed(), other.boxed())
                }
            });
            results.push(self.bind(&case.result)?);
        }
        results.push(match otherwise {
            Some(otherwise) => self.bind(otherwise)?,
            None => (Expr::Value(Value::Null), Type::Unknown),
        });
        let (mut results, of) = self.unified(results, "CASE")?;
        let otherwise = results.pop().unwrap_or(Expr::Value(Value::Null));
        Ok((Expr::Case(conditions.into_iter().zip(results).collect(), otherwise.boxed()), of))
    }

    fn call(&self, name: &str, arguments: Vec<Typed>) -> Result<Typed> {
        let types: Vec<Type> = arguments.iter().map(|(_, of)| *of).collect();
        let Some(function) = functions::find(name, &types) else {
            let types: Vec<&str> = types.iter().map(|of| of.name()).collect();
            let message = format!("function {name}({}) does not exist", types.join(", "));
            return Err(SqlError::new(code::UNDEFINED_FUNCTION, message));
        };
        let arguments = arguments.into_iter().zip(function.arguments);
        let arguments = arguments.map(|(typed, to)| coerce(typed, *to, self.parameters, false));
        Ok((Expr::Call(function, arguments.collect::<Result<_>>()?), function.result))
    }

    fn function(&self, function: &ast::Function) -> Result<Typed> {
        let unsupported = || SqlError::unsupported(format!("the call {function}"));
        let name = match &function.name.0[..] {
            [name] => name.as_ident().map(folded).ok_or_else(unsupported)?,
            [schema, name] if schema.as_ident().map(folded).as_deref() == Some("pg_catalog") => {
                name.as_ident().map(folded).ok_or_else(unsupported)?
            }
            _ => return Err(unsupported()),
        };
        let is_plain = function.filter.is_none()
            && function.over.is_none()
            && function.within_group.is_empty()
            && function.null_treatment.is_none()
            && function.parameters == ast::FunctionArguments::None;
        let empty =
            ast::FunctionArgumentList { duplicate_treatment: None, args: Vec::new(), clauses: Vec::new() };
        let list = match &function.args {
            ast::FunctionArguments::None => &empty,
            ast::FunctionArguments::List(list) => list,
            ast::FunctionArguments::Subquery(_) => return Err(unsupported()),
        };
        if !is_plain || !list.clauses.is_empty() {
            return Err(unsupported());
        }
        let kind = match name.as_str() {
            "count" => Some(AggregateKind::Count),
            "sum" => Some(AggregateKind::Sum),
            "avg" => Some(AggregateKind::Average),
            "min" => Some(AggregateKind::Least),
            "max" => Some(AggregateKind::Greatest),
            _ => None,
        };
        if let Some(kind) = kind {
            return self.aggregate(function, kind, list);
        }
        if list.duplicate_treatment.is_some() {
            return Err(unsupported());
        }
        if matches!(name.as_str(), "nextval" | "currval" | "setval") {
            return self.sequence(&name, function, list);
        }
        let mut arguments = Vec::new();
        for argument in &list.args {
            let ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument)) = argument else {
                return Err(unsupported());
            };
            arguments.push(self.bind(argument)?);
        }
        match name.as_str() {
            "coalesce" if !arguments.is_empty() => {
                let (all, of) = self.unified(arguments, "COALESCE")?;
                Ok((Expr::Coalesce(all), of))
            }
            "current_timestamp" => self.call("now", arguments),
            "localtimestamp" => {
                let (now, of) = self.call("now", arguments)?;
                let value = now.boxed();
                let to = Type::Timestamp;
                Ok((Expr::Cast { value, from: of, to, is_explicit: true }, to))
            }
            "current_date" => {
                let (now, of) = self.call("now", arguments)?;
                Ok((
                    Expr::Cast { value: now.boxed(), from: of, to: Type::Date, is_explicit: true },
                    Type::Date,
                ))
            }
            "date_part" if arguments.len() == 2 => {
                let value = arguments.remove(1);
                self.part(&name, arguments.remove(0), value, false)
            }
            "user" | "current_role" => self.call("current_user", arguments),
            "current_catalog" => self.call("current_database", arguments),
            name => self.call(name, arguments),
        }
    }

    /// Binds a call that names a sequence, as text or as `regclass`.
    fn sequence(
        &self,
        name: &str,
        function: &ast::Function,
        list: &ast::FunctionArgumentList,
    ) -> Result<Typed> {
        let unsupported = || SqlError::unsupported(format!("the call {function}"));
        let argument = |argument: &ast::FunctionArg| match argument {
            ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument)) => Ok(argument.clone()),
            _ => Err(unsupported()),
        };
        let all: Vec<ast::Expr> = list.args.iter().map(argument).collect::<Result<_>>()?;
        let (first, rest) = all.split_first().ok_or_else(unsupported)?;
        let named = match first {
            ast::Expr::Cast { expr, data_type, .. }
                if data_type.to_string().eq_ignore_ascii_case("regclass") =>
            {
                expr
            }
            plain => plain,
        };
        let ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::SingleQuotedString(named), .. }) = named
        else {
            return Err(unsupported());
        };
        let slot = SequenceSlot::default();
        self.parameters.sequences.borrow_mut().push((named_relation(named), slot.clone()));
        let call = match (name, rest) {
            ("nextval", []) => SequenceCall::Next,
            ("currval", []) => SequenceCall::Current,
            ("setval", [last]) => {
                let last = coerce(self.bind(last)?, Type::Int8, self.parameters, false)?;
                SequenceCall::Set(last.boxed(), Expr::Value(Value::Bool(true)).boxed())
            }
            ("setval", [last, is_called]) => {
                let last = coerce(self.bind(last)?, Type::Int8, self.parameters, false)?;
                SequenceCall::Set(last.boxed(), self.condition(is_called, "setval")?.boxed())
            }
            _ => return Err(unsupported()),
        };
        Ok((Expr::Sequence(slot, call), Type::Int8))
    }

    fn aggregate(
        &self,
        function: &ast::Function,
        kind: AggregateKind,
        list: &ast::FunctionArgumentList,
    ) -> Result<Typed> {
        let Some(grouping) = self.grouping else {
            let message = "aggregate functions are not allowed here";
            return Err(SqlError::new(code::GROUPING_ERROR, message));
        };
        let before = grouping.by.len();
        let known = grouping.aggregates.borrow().iter().position(|(known, ..)| known == function);
        if let Some(at) = known {
            let of = grouping.aggregates.borrow()[at].2;
            return Ok((Expr::Column(before + at), of));
        }
        let inner = Scope { grouping: None, ..*self };
        let argument = match &list.args[..] {
            [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Wildcard)] if kind == AggregateKind::Count => {
                None
            }
            [ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(argument))] => Some(inner.bind(argument)?),
            _ => return Err(SqlError::unsupported(format!("the call {function}"))),
        };
        let input = argument.as_ref().map_or(Type::Unknown, |(_, of)| *of);
        let wrong = || {
            let message = format!("function {}({}) does not exist", function.name, input.name());
            SqlError::new(code::UNDEFINED_FUNCTION, message)
        };
        let result = match kind {
            AggregateKind::Count => Type::Int8,
            AggregateKind::Least | AggregateKind::Greatest => match input {
                Type::Unknown => Type::Text,
                Type::Bool | Type::Bytea | Type::Uuid => return Err(wrong()),
                Type::Varchar(_) => Type::Text,
                other => other,
            },
            AggregateKind::Sum => match input {
                Type::Int2 | Type::Int4 => Type::Int8,
                Type::Int8 | Type::Numeric(_) => Type::Numeric(None),
                float if float.is_float() => float,
                _ => return Err(wrong()),
            },
            AggregateKind::Average => match input {
                float if float.is_float() => Type::Float8,
                other if other.is_number() => Type::Numeric(None),
                _ => return Err(wrong()),
            },
        };
        let is_distinct = list.duplicate_treatment == Some(ast::DuplicateTreatment::Distinct);
        let of = argument.map(|(expr, _)| expr);
        let aggregate = Aggregate { kind, of, input, is_distinct };
        let mut aggregates = grouping.aggregates.borrow_mut();
        aggregates.push((function.clone(), aggregate, result));
        Ok((Expr::Column(before + aggregates.len() - 1), result))
    }
}

/// Returns the name of a relation in a text of SQL: folded, unless it is quoted.
fn named_relation(text: &str) -> String {
    let name = text.strip_prefix("public.").unwrap_or(text);
    match name.strip_prefix('"').and_then(|name| name.strip_suffix('"')) {
        Some(quoted) => quoted.to_owned(),
        None => name.to_ascii_lowercase(),
    }
}
