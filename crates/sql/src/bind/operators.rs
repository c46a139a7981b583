//! Operators: the types of their operands and results, and what they do.

use sqlparser::ast::{self, BinaryOperator};

use super::{Scope, Typed, calls::plain_argument, coerce, system_name};
use crate::{
    error::{Result, SqlError, code, error, fail},
    expr::{Comparison, Expr, Operation, Quantified, Subscript},
    functions::{self, like},
    types::{Type, Value, array, interval},
};

/// The collations with their numbers, as `pg_collation` has them.
pub(crate) static COLLATIONS: &[(&str, u32)] = &[
    ("default", 100),
    ("C", 950),
    ("POSIX", 951),
    ("ucs_basic", 12340),
    ("C.utf8", 12341),
    ("C.UTF-8", 12341),
];

/// Returns the number of a collation for values of a type. All that are known have the order of
/// bytes.
pub(crate) fn collation_of(name: &ast::ObjectName, of: Type) -> Result<u32> {
    let wanted = system_name(name);
    let found = COLLATIONS.iter().find(|(known, _)| wanted.as_deref() == Some(*known));
    let (_, number) = *found.ok_or_else(|| SqlError::unsupported(format!("the collation {name}")))?;
    match of.element().unwrap_or(of) {
        of if of.is_text() || of == Type::Unknown => Ok(number),
        _ => Err(error!(DATATYPE_MISMATCH, "collations are not supported by type {}", of.name())),
    }
}

impl Scope<'_> {
    /// Binds two sides of an operator that must have one type.
    pub(super) fn pair(
        &self,
        one: &ast::Expr,
        other: &ast::Expr,
        operator: &str,
    ) -> Result<(Expr, Expr, Type)> {
        self.paired(self.bind(one)?, self.bind(other)?, operator)
    }

    pub(super) fn paired(&self, one: Typed, other: Typed, operator: &str) -> Result<(Expr, Expr, Type)> {
        let Some(mut common) = one.1.common(other.1).filter(|common| *common != Type::Json) else {
            return Err(no_binary(operator, one.1, other.1));
        };
        if common == Type::Unknown {
            common = Type::Text;
        }
        // A text that is compared with a column may be longer than the column's.
        if common.is_text() {
            common = common.without_limits();
        }
        let one = coerce(one, common, self.parameters, false)?;
        Ok((one, coerce(other, common, self.parameters, false)?, common))
    }

    /// Binds the operands of an operator on texts.
    fn texts(&self, one: &ast::Expr, other: &ast::Expr, operator: &str) -> Result<(Expr, Expr)> {
        let (one, other) = (self.bind(one)?, self.bind(other)?);
        if ![one.1, other.1].iter().all(|of| of.is_text() || *of == Type::Unknown) {
            return Err(no_binary(operator, one.1, other.1));
        }
        let text = |typed| coerce(typed, Type::Text, self.parameters, false);
        Ok((text(one)?, text(other)?))
    }

    pub(super) fn like(
        &self,
        value: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::Expr>,
        negated: bool,
        ignores_case: bool,
    ) -> Result<Typed> {
        let operator = match (negated, ignores_case) {
            (false, false) => "~~",
            (false, true) => "~~*",
            (true, false) => "!~~",
            (true, true) => "!~~*",
        };
        let (text, mut like) = self.texts(value, pattern, operator)?;
        if let Some(escape) = escape {
            like = Expr::Apply(like::escaped_like, vec![like, self.texts(value, escape, "~~")?.1]);
        }
        let like = Expr::Like { value: text.boxed(), pattern: like.boxed(), ignores_case };
        Ok((like.negated(negated), Type::Bool))
    }

    pub(super) fn similar(
        &self,
        value: &ast::Expr,
        pattern: &ast::Expr,
        escape: Option<&ast::Expr>,
        negated: bool,
    ) -> Result<Typed> {
        let escape = match escape {
            Some(escape) => self.texts(value, escape, "~")?.1,
            None => Expr::Value(Value::Text("\\".into())),
        };
        let (value, pattern) = self.texts(value, pattern, "~")?;
        let all = vec![value, pattern, escape];
        let similar = Expr::Apply(like::is_similar, all);
        Ok((similar.negated(negated), Type::Bool))
    }

    /// Binds an expression with a collation, which must be the one that there is.
    pub(super) fn collated(&self, expr: &ast::Expr, collation: &ast::ObjectName) -> Result<Typed> {
        let (expr, of) = self.bind(expr)?;
        collation_of(collation, of)?;
        Ok((expr, of))
    }

    /// Binds an operator before its operand.
    pub(super) fn prefixed(&self, op: &str, operand: Typed) -> Result<Typed> {
        let of = operand.1;
        let found = self.found(op, vec![operand])?;
        found.ok_or_else(|| no_operator(&format!("{op} {}", of.name())))
    }

    /// Binds an operator of the table of functions, if there is one for these operands.
    fn found(&self, op: &str, operands: Vec<Typed>) -> Result<Option<Typed>> {
        let types: Vec<Type> = operands.iter().map(|(_, of)| *of).collect();
        functions::operator(op, &types)?.map(|bound| self.bound_call(bound, operands)).transpose()
    }

    /// Binds IS NULL or IS NOT NULL of a row: of all its values.
    pub(super) fn is_null(&self, row: &ast::Expr, wanted: bool) -> Result<Typed> {
        let tests = row_of(row).unwrap_or_default().into_iter().map(|value| {
            let is_null = Expr::IsNull(self.bind(&value)?.0.boxed());
            Ok(is_null.negated(!wanted))
        });
        Ok((Expr::And(tests.collect::<Result<_>>()?), Type::Bool))
    }

    /// Compares rows: the first values that differ decide.
    fn compare_rows(&self, op: &str, one: &[ast::Expr], other: &[ast::Expr]) -> Result<Typed> {
        if one.len() != other.len() {
            fail!(SYNTAX_ERROR, "unequal number of entries in row expressions");
        }
        let pairs = || one.iter().zip(other);
        let compare = |op: &str, (one, other): (&ast::Expr, &ast::Expr)| {
            Ok(self.operate(op, self.bind(one)?, self.bind(other)?)?.0)
        };
        let all = |op: &str| pairs().map(|pair| compare(op, pair)).collect::<Result<Vec<_>>>();
        let strict = match op {
            "=" => return Ok((Expr::And(all("=")?), Type::Bool)),
            "<>" => return Ok((Expr::Or(all("<>")?), Type::Bool)),
            "<" | "<=" => "<",
            ">" | ">=" => ">",
            _ => return Err(SqlError::unsupported(format!("the operator {op} of rows"))),
        };
        let mut ways = Vec::new();
        for (at, pair) in pairs().enumerate() {
            let mut way: Vec<Expr> =
                pairs().take(at).map(|pair| compare("=", pair)).collect::<Result<_>>()?;
            let is_last = at + 1 == one.len();
            way.push(compare(if is_last { op } else { strict }, pair)?);
            ways.push(Expr::And(way));
        }
        Ok((Expr::Or(ways), Type::Bool))
    }

    pub(super) fn binary(&self, left: &ast::Expr, op: &BinaryOperator, right: &ast::Expr) -> Result<Typed> {
        match op {
            BinaryOperator::And | BinaryOperator::Or => {
                let of = |expr| self.condition(expr, if *op == BinaryOperator::And { "AND" } else { "OR" });
                // A long chain is one expression, so it is not deep.
                let (mut first, mut all) = (left, vec![of(right)?]);
                while let ast::Expr::BinaryOp { left, op: inner, right } = first
                    && inner == op
                {
                    all.push(of(right)?);
                    first = left;
                }
                all.push(of(first)?);
                all.reverse();
                let chain = if *op == BinaryOperator::And { Expr::And } else { Expr::Or };
                Ok((chain(all), Type::Bool))
            }
            op => match (row_of(left), row_of(right)) {
                (Some(one), Some(other)) => self.compare_rows(&name_of(op)?, &one, &other),
                _ => self.operate(&name_of(op)?, self.bind(left)?, self.bind(right)?),
            },
        }
    }

    /// Applies an operator to two operands.
    pub(crate) fn operate(&self, op: &str, one: Typed, other: Typed) -> Result<Typed> {
        if let Some(comparison) = Comparison::named(op) {
            let (one, other, _) = self.paired(one, other, op)?;
            return Ok((Expr::Compare(comparison, one.boxed(), other.boxed()), Type::Bool));
        }
        let may_be_number = |of: Type| of.is_number() || of == Type::Unknown;
        let operation = match op {
            "+" => Some(Operation::Add),
            "-" => Some(Operation::Subtract),
            "*" => Some(Operation::Multiply),
            "/" => Some(Operation::Divide),
            "%" => Some(Operation::Modulo),
            _ => None,
        };
        if let Some(operation) = operation.filter(|_| may_be_number(one.1) && may_be_number(other.1)) {
            return self.arithmetic(operation, op, one, other);
        }
        let has = |is_it: fn(Type) -> bool| is_it(one.1) || is_it(other.1);
        let is_text =
            op == "||" && has(|of| of.is_text() || of == Type::Unknown) && !has(|of| of.element().is_some());
        let has_own = has(|of| matches!(of, Type::Bytea | Type::Jsonb));
        if (!is_text || has_own)
            && let Some(found) = self.found(op, vec![one.clone(), other.clone()])?
        {
            return Ok(found);
        }
        if is_text {
            let one = coerce(one, Type::Text, self.parameters, false)?;
            let other = coerce(other, Type::Text, self.parameters, false)?;
            return Ok((Expr::Concat(one.boxed(), other.boxed()), Type::Text));
        }
        match functions::named(op).is_empty() {
            false => Err(no_binary(op, one.1, other.1)),
            true => Err(SqlError::unsupported(format!("the operator {op}"))),
        }
    }

    fn arithmetic(&self, operation: Operation, op: &str, one: Typed, other: Typed) -> Result<Typed> {
        let none = || no_binary(op, one.1, other.1);
        let common = one.1.common(other.1).ok_or_else(none)?;
        if common == Type::Unknown {
            fail!(AMBIGUOUS_FUNCTION, "operator is not unique: unknown {op} unknown");
        }
        if !common.is_number() {
            return Err(none());
        }
        let one = coerce(one, common, self.parameters, false)?;
        let other = coerce(other, common, self.parameters, false)?;
        Ok((Expr::Arithmetic(operation, common, one.boxed(), other.boxed()), common))
    }

    /// Binds a comparison with the elements of an array.
    pub(super) fn quantified(
        &self,
        left: &ast::Expr,
        op: &BinaryOperator,
        right: &ast::Expr,
        is_of_all: bool,
    ) -> Result<Typed> {
        let name = name_of(op)?;
        let (value, array) = (self.bind(left)?, self.bind(right)?);
        let array_type = match array.1 {
            Type::Unknown => match value.1 {
                Type::Unknown => Type::Text.array(),
                of => of.array(),
            },
            of => Some(of),
        };
        let Some((of, element)) = array_type.and_then(|of| Some((of, of.element()?))) else {
            fail!(WRONG_OBJECT_TYPE, "op ANY/ALL (array) requires array on right side");
        };
        let array = coerce(array, of, self.parameters, false)?;
        let (value, value_type) = match value.1 {
            Type::Unknown => (coerce(value, element, self.parameters, false)?, element),
            _ => value,
        };
        let test = self.operate(&name, (Expr::Column(0), value_type), (Expr::Column(1), element))?;
        if test.1 != Type::Bool {
            fail!(WRONG_OBJECT_TYPE, "op ANY/ALL (array) requires operator to yield boolean");
        }
        let quantified = Quantified { value, array, test: test.0, is_of_all };
        Ok((Expr::Quantified(Box::new(quantified)), Type::Bool))
    }

    /// Binds ARRAY[…], whose elements have this type if it is known.
    pub(super) fn array(&self, elements: &[ast::Expr], wanted: Option<Type>) -> Result<Typed> {
        let mut is_nested = false;
        let mut typed = Vec::with_capacity(elements.len());
        for element in elements {
            let bound = match element {
                ast::Expr::Array(inner) => self.array(&inner.elem, wanted)?,
                element => self.bind(element)?,
            };
            is_nested |= bound.1.element().is_some();
            typed.push(bound);
        }
        let undecided = || SqlError::new(code::INDETERMINATE_TYPE, "cannot determine type of empty array");
        let (values, of) = match wanted {
            Some(element) => {
                let of = element.array().ok_or_else(undecided)?;
                let to = if is_nested { of } else { element };
                let values = typed.into_iter().map(|typed| coerce(typed, to, self.parameters, true));
                (values.collect::<Result<_>>()?, of)
            }
            None if typed.is_empty() => return Err(undecided()),
            None => {
                let (values, common) = self.unified(typed, "ARRAY")?;
                let of = if is_nested { Some(common) } else { common.array() };
                let unsupported = || SqlError::unsupported(format!("an array of type {}", common.name()));
                let of = of.ok_or_else(unsupported)?;
                // The elements lose the limits of their types.
                (values, of)
            }
        };
        Ok((Expr::Array { values, is_nested }, of))
    }

    /// Binds the steps to a part of a value of jsonb.
    fn jsonb_part(&self, root: Expr, chain: &[ast::AccessExpr]) -> Result<Typed> {
        let step = |access: &ast::AccessExpr| match access {
            ast::AccessExpr::Subscript(ast::Subscript::Index { index }) => {
                coerce(self.bind(index)?, Type::Text, self.parameters, false)
            }
            other => Err(SqlError::unsupported(format!("the part {other} of a value of jsonb"))),
        };
        let values = chain.iter().map(step).collect::<Result<_>>()?;
        let path = (Expr::Array { values, is_nested: false }, Type::Array(&Type::Text));
        let root = (root, Type::Jsonb);
        self.found("#>", vec![root, path])?.ok_or_else(|| no_binary("#>", Type::Jsonb, Type::Text))
    }

    /// Binds the subscripts behind an expression.
    pub(super) fn subscripted(&self, root: &ast::Expr, chain: &[ast::AccessExpr]) -> Result<Typed> {
        let text = root;
        let (root, of) = self.bind(root)?;
        if of == Type::Jsonb {
            return self.jsonb_part(root, chain);
        }
        // A name is also an array of characters, which begins at 0.
        let is_column = matches!(text, ast::Expr::Identifier(_) | ast::Expr::CompoundIdentifier(_));
        if let (Type::Name, true, [ast::AccessExpr::Subscript(ast::Subscript::Index { index })]) =
            (of, is_column, chain)
        {
            let text = format!("substr(({text})::text, ({index}) + 1, 1)");
            return self.bind(&crate::parse::expression(&text)?);
        }
        let Some(element) = of.element() else {
            fail!(
                DATATYPE_MISMATCH,
                "cannot subscript type {} because it does not support subscripting",
                of.name()
            );
        };
        let place = |expr: &ast::Expr| coerce(self.bind(expr)?, Type::Int4, self.parameters, false);
        let mut subscripts = Vec::new();
        for access in chain {
            subscripts.push(match access {
                ast::AccessExpr::Subscript(ast::Subscript::Index { index }) => {
                    Subscript::Place(place(index)?)
                }
                ast::AccessExpr::Subscript(ast::Subscript::Slice {
                    lower_bound,
                    upper_bound,
                    stride: None,
                }) => {
                    let bound = |bound: &Option<ast::Expr>| bound.as_ref().map(place).transpose();
                    Subscript::Slice(bound(lower_bound)?, bound(upper_bound)?)
                }
                other => return Err(SqlError::unsupported(format!("the part {other} of a value"))),
            });
        }
        if subscripts.len() > array::MOST_DIMENSIONS {
            return Err(SqlError::new(code::PROGRAM_LIMIT, "number of array dimensions exceeds the maximum"));
        }
        let is_slice = subscripts.iter().any(|subscript| matches!(subscript, Subscript::Slice(..)));
        let result = if is_slice { element.array().unwrap_or(of) } else { element };
        Ok((Expr::Subscript(root.boxed(), subscripts), result))
    }
}

/// Returns the name of an operator; its schema, if it is written, must be that of all operators.
fn name_of(op: &BinaryOperator) -> Result<String> {
    match op {
        BinaryOperator::PGCustomBinaryOperator(parts) => match &parts[..] {
            [name] => Ok(name.clone()),
            [schema, name] if schema.eq_ignore_ascii_case("pg_catalog") => Ok(name.clone()),
            _ => Err(SqlError::unsupported(format!("the operator {op}"))),
        },
        op => Ok(op.to_string()),
    }
}

pub(super) fn no_operator(what: &str) -> SqlError {
    let hint =
        "No operator matches the given name and argument types. You might need to add explicit type casts.";
    error!(UNDEFINED_FUNCTION, "operator does not exist: {what}").with_hint(hint)
}

fn no_binary(op: &str, one: Type, other: Type) -> SqlError {
    no_operator(&format!("{} {op} {}", one.name(), other.name()))
}

/// Returns the values of a row that is written as such.
pub(crate) fn row_of(expr: &ast::Expr) -> Option<Vec<ast::Expr>> {
    match expr {
        ast::Expr::Tuple(values) => Some(values.clone()),
        ast::Expr::Nested(inner) => row_of(inner),
        ast::Expr::Function(ast::Function { name, args: ast::FunctionArguments::List(list), .. })
            if name.to_string().eq_ignore_ascii_case("row") =>
        {
            list.args.iter().map(|argument| plain_argument(argument).cloned()).collect()
        }
        _ => None,
    }
}

/// Returns the span of a literal, perhaps with the names of its units behind it.
pub(crate) fn interval(literal: &ast::Interval) -> Result<Typed> {
    let unsupported = || SqlError::unsupported(format!("the literal {literal}"));
    let text = match &*literal.value {
        ast::Expr::Value(value) => value.value.clone().into_string().ok_or_else(unsupported)?,
        _ => return Err(unsupported()),
    };
    if literal.leading_precision.is_some() || literal.fractional_seconds_precision.is_some() {
        return Err(unsupported());
    }
    let unit = |field: &ast::DateTimeField| {
        let unit = interval::unit_name(&field.to_string().to_ascii_lowercase()).ok_or_else(unsupported)?;
        let is_known = matches!(unit, "year" | "month" | "day" | "hour" | "minute" | "second");
        if is_known { Ok(unit) } else { Err(unsupported()) }
    };
    let smallest = literal.last_field.as_ref().or(literal.leading_field.as_ref()).map(unit).transpose()?;
    // `MINUTE TO SECOND` reads the first of two parts as minutes.
    let is_of_minutes = matches!(literal.leading_field, Some(ast::DateTimeField::Minute))
        && smallest == Some("second")
        && text.matches(':').count() == 1;
    let text = if is_of_minutes { format!("0:{}", text.trim()) } else { text };
    let span = interval::parse(&text, smallest)?;
    // Seconds keep their parts.
    let shown = smallest.filter(|unit| *unit != "second").and_then(|unit| span.truncated(unit));
    let span = shown.unwrap_or(span);
    Ok((Expr::Value(Value::Interval(span)), Type::Interval))
}
