//! The binder: statements of names become expressions over columns with types.

pub(crate) mod aggregates;
mod calls;
pub(crate) mod from;
mod keyed;
pub(crate) mod locks;
mod narrow;
pub(crate) mod operators;
mod order;
pub(crate) mod paths;
pub(crate) mod query;
pub(crate) mod select;
pub(crate) mod sets;
mod subqueries;
mod types;
pub(crate) mod windows;

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
};

use sqlparser::ast::{self, BinaryOperator, Spanned, UnaryOperator};

pub(crate) use self::types::{type_of, undefined_type};
use self::{aggregates::Grouping, query::With, select::ResultColumn, windows::Calls};
use crate::{
    catalog::{Grant, Privilege, Relation, RelationName, SessionPlace, Table, undefined},
    dml::Targets,
    error::{At, ErrorFields, Result, SqlError, code, error, fail},
    exec::query::{LEAST_STACK, MORE_STACK},
    expr::{Comparison, Expr, NamedSequence, SequenceCall},
    parse::{folded, relation_of_text},
    sequences::SequenceSlot,
    shape::number,
    types::{Type, Value, moment},
};

/// The deepest nesting of expressions, those of all queries together.
const MOST_EXPRESSIONS: usize = 1000;

/// An expression and its type.
pub(crate) type Typed = (Expr, Type);

/// A column that names may mean.
#[derive(Clone, Debug)]
pub(crate) struct ScopeColumn {
    pub(crate) table: String,
    pub(crate) name: String,
    pub(crate) of: Type,
    pub(crate) value: Expr,
    /// It is found only with the name of its table.
    pub(crate) is_hidden: bool,
    /// It stands for columns of both sides of a join with USING.
    pub(crate) is_merged: bool,
}

/// The column of the tables of the catalog that has their own number; `*` does not show it.
pub(crate) const TABLE_OID: &str = "tableoid";

impl ScopeColumn {
    /// Returns the column at a place of the row.
    pub(crate) fn new(table: &str, column: &ResultColumn, at: usize) -> Self {
        Self {
            table: table.to_owned(),
            name: column.name.clone(),
            of: column.of.unrounded(),
            value: Expr::Column(at),
            is_hidden: false,
            is_merged: false,
        }
    }
}

/// The facts that the binding of a statement needs and finds.
#[derive(Default, Debug)]
pub(crate) struct Parameters {
    /// The types of the parameters, as far as they are known.
    pub(crate) types: RefCell<Vec<Type>>,
    /// The sequences that it names, which are found in the catalog once it is bound.
    pub(crate) sequences: RefCell<Vec<(String, SequenceSlot)>>,
    /// The relations that were looked up, and that which must be for the binding to go on.
    pub(crate) relations: RefCell<HashMap<String, Option<(RelationName, Relation)>>>,
    pub(crate) missing: RefCell<Option<String>>,
    /// The types that names mean where the catalog is not asked: expressions of a table name those
    /// of its columns.
    pub(crate) own_types: RefCell<Option<Vec<Type>>>,
    /// The numbers of rows of tables, about, and the tables whose size would help.
    pub(crate) sizes: RefCell<HashMap<u64, u64>>,
    pub(crate) unsized_tables: RefCell<Vec<Rc<Table>>>,
    /// The role whose rights count.
    pub(crate) place: Option<SessionPlace>,
    /// The rules of the tables that it changes, and the table whose rules are missing.
    pub(crate) targets: RefCell<HashMap<u64, Rc<Targets>>>,
    pub(crate) missing_targets: RefCell<Option<Rc<Table>>>,
    /// The tables that it changes or, if false, whose rows must stay.
    pub(crate) changed: RefCell<Vec<(u64, bool)>>,
    /// Whether it is the query of a new view.
    pub(crate) is_view: bool,
    /// It does not run.
    pub(crate) is_only_bound: bool,
    /// The views around the present query: their owners had the rights.
    pub(crate) views: Cell<usize>,
    /// The schemas in which names are looked for, if not in those of the session.
    pub(crate) path: Option<Vec<String>>,
    /// The schemas in which the innermost view looks for names.
    pub(crate) view_path: RefCell<Option<Vec<String>>>,
    /// The number of the next query of WITH.
    pub(crate) next_shared: Cell<usize>,
    /// The queries and the expressions around the present one.
    pub(crate) depth: Cell<usize>,
    pub(crate) expressions: Cell<usize>,
    /// The queries that were bound.
    pub(crate) queries: Cell<usize>,
    /// It has an operator whose result depends on the session.
    pub(crate) is_stable: Cell<bool>,
}

/// The parts of a statement around a query.
#[derive(Clone, Copy)]
pub(crate) struct Around<'a> {
    pub(crate) parameters: &'a Parameters,
    pub(crate) parent: Option<&'a Parent<'a>>,
    pub(crate) with: Option<&'a With<'a>>,
}

impl<'a> Around<'a> {
    /// Returns a scope of columns.
    pub(crate) fn scope(self, columns: &'a [ScopeColumn]) -> Scope<'a> {
        Scope { parent: self.parent, with: self.with, ..Scope::new(columns, self.parameters) }
    }
}

/// The scope around a query, and the expressions of it whose values the query gets.
pub(crate) struct Parent<'a> {
    pub(crate) scope: Scope<'a>,
    pub(crate) captured: RefCell<Vec<Typed>>,
}

/// The names that an expression may use.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) columns: &'a [ScopeColumn],
    pub(crate) parameters: &'a Parameters,
    /// If set, rows are groups: first the values by which they are grouped, then the aggregates.
    pub(crate) grouping: Option<&'a Grouping<'a>>,
    /// The scope around the query.
    pub(crate) parent: Option<&'a Parent<'a>>,
    pub(crate) with: Option<&'a With<'a>>,
    /// Window functions and functions that return rows, where these are allowed.
    pub(crate) calls: Option<&'a Calls>,
}

impl<'a> Scope<'a> {
    /// Returns a scope of columns that is in no query.
    pub(crate) fn new(columns: &'a [ScopeColumn], parameters: &'a Parameters) -> Self {
        Self { columns, parameters, grouping: None, parent: None, with: None, calls: None }
    }
}

impl Parameters {
    /// Returns a relation; else notes that it is missing, and fails.
    pub(crate) fn relation(&self, name: &str) -> Result<Relation> {
        let path = self.view_path.borrow();
        let Some(path) = path.as_ref().filter(|_| !name.contains('\0')) else { return self.look_up(name) };
        for schema in path {
            match self.look_up(&format!("{schema}\0{name}")) {
                Err(error) if self.missing.borrow().is_none() => drop(error),
                found => return found,
            }
        }
        Err(undefined(name))
    }

    fn look_up(&self, name: &str) -> Result<Relation> {
        match self.relations.borrow().get(name) {
            Some(Some((_, relation))) => Ok(relation.clone()),
            Some(None) => Err(undefined(name)),
            None => {
                *self.missing.borrow_mut() = Some(name.to_owned());
                Err(undefined(name))
            }
        }
    }

    /// Returns a table for which the role has a right.
    pub(crate) fn table_for(&self, name: &str, privilege: Privilege) -> Result<Rc<Table>> {
        match self.relation(name)? {
            Relation::Table(table) => {
                self.check(&table.owner, &table.grants, privilege, "table", &table.name)?;
                if privilege != Privilege::Select {
                    table.check_changeable("change")?;
                }
                Ok(table)
            }
            Relation::View(view) => {
                let verb = match privilege {
                    Privilege::Insert => "insert into",
                    Privilege::Delete => "delete from",
                    _ => "update",
                };
                Err(error!(NOT_IN_STATE, "cannot {verb} view \"{}\"", view.name))
            }
            Relation::Type(_) => Err(undefined(name)),
            Relation::Sequence(_) | Relation::Index(_) => Err(wrong_kind(name)),
        }
    }

    /// Returns the rules of a table that changes; else notes that they are missing, and fails.
    pub(crate) fn targets_of(&self, table: &Rc<Table>) -> Result<Rc<Targets>> {
        match self.targets.borrow().get(&table.id) {
            Some(targets) => Ok(targets.clone()),
            None => {
                *self.missing_targets.borrow_mut() = Some(table.clone());
                Err(undefined(&table.name))
            }
        }
    }

    /// Refuses a use for which the role has no right.
    pub(crate) fn check(
        &self,
        owner: &str,
        grants: &[Grant],
        privilege: Privilege,
        what: &str,
        name: &str,
    ) -> Result<()> {
        match &self.place {
            Some(place) if self.views.get() == 0 => place.check(owner, grants, privilege, what, name),
            _ => Ok(()),
        }
    }

    /// Binds a part of an expression or of a set operation, unless it is too deep.
    fn deeper<T>(&self, bind: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.expressions.get() >= MOST_EXPRESSIONS {
            return Err(SqlError::new("54001", "stack depth limit exceeded"));
        }
        self.expressions.set(self.expressions.get() + 1);
        let bound = stacker::maybe_grow(LEAST_STACK, MORE_STACK, bind);
        self.expressions.set(self.expressions.get() - 1);
        bound
    }

    /// Forgets what a binding has found that is repeated.
    pub(crate) fn begin_again(&self) {
        self.sequences.borrow_mut().clear();
        self.next_shared.set(0);
        self.depth.set(0);
        self.expressions.set(0);
        self.queries.set(0);
        self.views.set(0);
        self.view_path.replace(self.path.clone());
        self.changed.borrow_mut().clear();
    }

    /// Returns the number of rows of a table, about. One that is not known is noted.
    fn size_of(&self, table: &Rc<Table>) -> Option<f64> {
        let known = self.sizes.borrow().get(&table.id).copied();
        if known.is_none() {
            self.unsized_tables.borrow_mut().push(table.clone());
        }
        known.map(|rows| rows as f64)
    }

    /// Returns the type of a parameter; `wanted` is noted if it had none.
    fn decide(&self, number: usize, wanted: Type) -> Type {
        let mut types = self.types.borrow_mut();
        if types.len() <= number {
            types.resize(number + 1, Type::Unknown);
        }
        if types[number] == Type::Unknown {
            // The names of objects come as text.
            types[number] = if wanted.is_reg() { Type::Text } else { wanted.without_limits() };
        }
        types[number]
    }
}

fn literal_number(text: &str) -> Result<Typed> {
    let (of, value) = number(text)?;
    Ok((Expr::Value(value), of))
}

/// Converts an expression to a type; a literal or parameter without type gets it.
pub(crate) fn coerce((expr, from): Typed, to: Type, on: &Parameters, is_explicit: bool) -> Result<Expr> {
    if let Type::Domain(domain) = to {
        let value = coerce((expr, from), to.base(), on, is_explicit)?;
        let column = ResultColumn { name: "value".to_owned(), of: to };
        let (columns, none) = ([ScopeColumn::new("", &column, 0)], Parameters::default());
        let scope = Scope::new(&columns, &none);
        let checks = domain.domain.iter().flat_map(|domain| &domain.checks);
        let conditions = checks.map(|(_, text)| scope.condition(&crate::parse::expression(text)?, "CHECK"));
        let conditions = conditions.collect::<Result<Rc<[Expr]>>>()?;
        let is_plain = !conditions.iter().any(Expr::has_subquery);
        let checked = is_plain.then(|| Expr::Checked(value.boxed(), domain, conditions));
        return checked.ok_or_else(|| SqlError::unsupported("a subquery in a check"));
    }
    let from = from.base();
    if let (Expr::Parameter(number), Type::Unknown) = (&expr, from) {
        // The names of objects are looked up in each execution.
        let has = on.decide(*number, if to.is_reg() { Type::Text } else { to });
        return match has == to {
            true => Ok(expr),
            false => Ok(Expr::Cast { value: expr.boxed(), from: has, to, is_explicit }),
        };
    }
    // A value with limits is one without them, but for char(n), whose values have no blanks.
    let is_wider = from.without_limits() == to && !matches!(to, Type::Char(_));
    if from == to || is_wider || to == Type::Unknown {
        return Ok(expr);
    }
    if let Expr::Value(value) = &expr
        && !from.is_reg()
        && !to.is_reg()
    {
        if let Value::Text(text) = value
            && moment::depends_on_session(text, to)
        {
            on.is_stable.set(true);
        }
        return Ok(Expr::Value(value.clone().cast(from, to, is_explicit)?));
    }
    Ok(Expr::Cast { value: expr.boxed(), from, to, is_explicit })
}

/// Returns the type of values of several types in one place.
pub(crate) fn common_type(types: &[Type], what: &str) -> Result<Type> {
    let mut common = Type::Unknown;
    for of in types {
        common = common.common(*of).ok_or_else(|| {
            error!(DATATYPE_MISMATCH, "{what} types {} and {} cannot be matched", common.name(), of.name())
        })?;
    }
    // A limit stays only if all have it.
    if types.iter().any(|of| *of != common) {
        common = common.without_limits();
    }
    // Here, other than for an operator, the other number becomes a real one.
    if common == Type::Float8 && !types.contains(&Type::Float8) {
        common = Type::Float4;
    }
    Ok(common)
}

/// Converts an expression to the type of a column, as an assignment does.
pub(crate) fn assign(typed: Typed, to: Type, name: &str, on: &Parameters) -> Result<Expr> {
    let from = typed.1;
    let fits = from.is_assignable_to(to);
    if !fits {
        let (to, from) = (to.name(), from.name());
        let message = format!("column \"{name}\" is of type {to} but expression is of type {from}");
        let hint = "You will need to rewrite or cast the expression.";
        return Err(SqlError::new(code::DATATYPE_MISMATCH, message).with_hint(hint));
    }
    coerce(typed, to, on, false)
}

/// Words that begin the next clause.
const NO_NAMES: [&str; 12] =
    ["from", "where", "group", "having", "order", "limit", "offset", "union", "then", "when", "else", "end"];

/// Notes the place of an error in an expression: the literal that is malformed, or the operator.
fn place_in(expr: &ast::Expr, error: SqlError) -> SqlError {
    use ast::Expr as E;
    if error.fields.as_ref().is_some_and(ErrorFields::has_place) {
        return error;
    }
    let (operands, word): (Vec<&E>, String) = match expr {
        E::BinaryOp { left, op, right } => (vec![left, right], op.to_string()),
        E::Like { negated, expr, pattern, .. } => {
            (vec![expr, pattern], if *negated { "NOT" } else { "LIKE" }.into())
        }
        E::ILike { negated, expr, pattern, .. } => {
            (vec![expr, pattern], if *negated { "NOT" } else { "ILIKE" }.into())
        }
        E::Between { expr, low, high, .. } => (vec![expr, low, high], "BETWEEN".into()),
        E::In { expr, target: ast::InTarget::List(list), .. } => {
            ([&**expr].into_iter().chain(list).collect(), "IN".into())
        }
        E::IsDistinctFrom(one, other) | E::IsNotDistinctFrom(one, other) => (vec![one, other], "IS".into()),
        E::Array(array) => (array.elem.iter().collect(), String::new()),
        E::Function(ast::Function { args: ast::FunctionArguments::List(list), .. }) => {
            (list.args.iter().filter_map(calls::plain_argument).collect(), String::new())
        }
        _ => return error.at(expr.span().start),
    };
    let is_named = |operand: &&&E| match operand {
        E::Value(ast::ValueWithSpan { value: ast::Value::SingleQuotedString(text), .. }) => {
            error.message.contains(&format!("\"{text}\""))
        }
        _ => false,
    };
    let named = operands.iter().find(is_named).filter(|_| error.code.starts_with("22"));
    match (named, operands.first().filter(|_| !word.is_empty())) {
        (Some(literal), _) => error.at(literal.span().start),
        (None, Some(first)) => error.near(first.span().end, &word),
        (None, None) => error.at(expr.span().start),
    }
}

impl Scope<'_> {
    /// Finds a column by its name; `None` if there is none, which is an error only if no scope
    /// around it has one.
    fn find(&self, table: Option<&str>, name: &str) -> Result<Option<usize>> {
        let is_it = |column: &ScopeColumn| match table {
            None => column.name == name && (!column.is_hidden || name == TABLE_OID),
            Some(table) => column.name == name && column.table == table && !column.is_merged,
        };
        let mut found = self.columns.iter().enumerate().filter(|(_, column)| is_it(column));
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Ok(Some(at)),
            (Some(_), Some(_)) => {
                let shown = table.map_or(String::new(), |table| format!("{table}.")) + name;
                Err(error!(AMBIGUOUS_COLUMN, "column reference \"{shown}\" is ambiguous"))
            }
            (None, _) => Ok(None),
        }
    }

    /// Returns the error that no scope has a column.
    fn no_column(&self, table: Option<&str>, name: &str) -> SqlError {
        let has = |scope: &Scope<'_>, table: &str| scope.columns.iter().any(|column| column.table == table);
        match table {
            Some(table) if !has(self, table) => {
                error!(UNDEFINED_TABLE, "missing FROM-clause entry for table \"{table}\"")
            }
            Some(table) => {
                error!(UNDEFINED_COLUMN, "column {table}.{name} does not exist")
            }
            None => error!(UNDEFINED_COLUMN, "column \"{name}\" does not exist"),
        }
    }

    fn named(&self, table: Option<&str>, name: &str) -> Result<Typed> {
        if let Some(at) = self.find(table, name)? {
            return self.value_of(at);
        }
        let Some(parent) = self.parent else { return Err(self.no_column(table, name)) };
        let (expr, of) = match parent.scope.named(table, name) {
            Ok(found) => found,
            Err(error) if matches!(error.code, code::UNDEFINED_COLUMN | code::UNDEFINED_TABLE) => {
                let is_own = table.is_some_and(|table| self.columns.iter().any(|c| c.table == table));
                return Err(if is_own { self.no_column(table, name) } else { error });
            }
            Err(error) => return Err(error),
        };
        if matches!(expr, Expr::Value(_)) {
            return Ok((expr, of));
        }
        let mut captured = parent.captured.borrow_mut();
        let shown = format!("{expr:?}");
        let known = captured.iter().position(|(known, _)| format!("{known:?}") == shown);
        let at = known.unwrap_or_else(|| {
            captured.push((expr, of));
            captured.len() - 1
        });
        Ok((Expr::Outer(at), of))
    }

    /// Returns the value of a column.
    pub(crate) fn value_of(&self, at: usize) -> Result<Typed> {
        let column = &self.columns[at];
        match self.grouping {
            None => Ok((column.value.clone(), column.of)),
            Some(grouping) => grouping.value_of(column),
        }
    }

    /// Binds a condition.
    pub(crate) fn condition(&self, expr: &ast::Expr, of: &str) -> Result<Expr> {
        let typed = self.bind(expr)?;
        if !matches!(typed.1, Type::Bool | Type::Unknown) {
            let of = format!("argument of {of} must be type boolean, not type {}", typed.1.name());
            return Err(SqlError::new(code::DATATYPE_MISMATCH, of)).at(expr);
        }
        coerce(typed, Type::Bool, self.parameters, false)
    }

    /// Binds an expression.
    pub(crate) fn bind(&self, expr: &ast::Expr) -> Result<Typed> {
        let bound = self.parameters.deeper(|| self.bind_one(expr));
        bound.map_err(|error| place_in(expr, error))
    }

    fn bind_one(&self, expr: &ast::Expr) -> Result<Typed> {
        use ast::Expr as E;
        if let Some(found) = self.grouping.and_then(|grouping| grouping.find(expr, self)) {
            return Ok(found);
        }
        Ok(match expr {
            E::Identifier(name) if is_current_schema(name) => self.call("current_schema", Vec::new())?,
            E::Identifier(name) => self.named(None, &folded(name)).map_err(|error| {
                // The library takes some words for names that are none.
                let word = folded(name);
                let is_name = name.quote_style.is_some() || !NO_NAMES.contains(&&*word);
                if is_name {
                    error
                } else {
                    error!(SYNTAX_ERROR, "syntax error at or near \"{}\"", name.value)
                }
            })?,
            E::CompoundIdentifier(names) => match &names[..] {
                [table, name] => self.named(Some(&folded(table)), &folded(name))?,
                // The schema adds nothing: a query has each name of a table once.
                [_, table, name] => self.named(Some(&folded(table)), &folded(name))?,
                _ => return Err(SqlError::unsupported(format!("the name {expr}"))),
            },
            E::Nested(inner) => self.bind(inner)?,
            E::Value(value) => self.value(&value.value)?,
            E::TypedString(typed) => {
                let text = typed.value.clone().value.into_string().unwrap_or_default();
                let of = type_of(&typed.data_type, self.parameters)?;
                let text = (Expr::Value(Value::Text(text)), Type::Unknown);
                (coerce(text, of, self.parameters, true)?, of.unrounded())
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
            E::IsTrue(inner) | E::IsNotTrue(inner) => {
                let is = Expr::Is(self.condition(inner, "IS TRUE")?.boxed(), true);
                (is.negated(matches!(expr, E::IsNotTrue(_))), Type::Bool)
            }
            E::IsFalse(inner) | E::IsNotFalse(inner) => {
                let is = Expr::Is(self.condition(inner, "IS FALSE")?.boxed(), false);
                (is.negated(matches!(expr, E::IsNotFalse(_))), Type::Bool)
            }
            E::IsDistinctFrom(one, other) | E::IsNotDistinctFrom(one, other) => {
                let (one, other, _) = self.pair(one, other, "IS DISTINCT FROM")?;
                let is_distinct = Expr::IsDistinct(one.boxed(), other.boxed());
                (is_distinct.negated(matches!(expr, E::IsNotDistinctFrom(..))), Type::Bool)
            }
            E::Between { expr, negated, low, high } => {
                let (value, low, _) = self.pair(expr, low, ">=")?;
                let (same, high, _) = self.pair(expr, high, "<=")?;
                let both = vec![
                    Expr::Compare(Comparison::GreaterOrEqual, value.boxed(), low.boxed()),
                    Expr::Compare(Comparison::LessOrEqual, same.boxed(), high.boxed()),
                ];
                let both = Expr::And(both);
                (both.negated(*negated), Type::Bool)
            }
            E::In { expr, target: ast::InTarget::List(list), negated, global: false } => {
                if operators::row_of(expr).is_some() {
                    let equal = |one: &ast::Expr| Ok(self.binary(expr, &BinaryOperator::Eq, one)?.0);
                    let found = Expr::Or(list.iter().map(equal).collect::<Result<_>>()?);
                    return Ok((found.negated(*negated), Type::Bool));
                }
                let mut typed = vec![self.bind(expr)?];
                for one in list {
                    typed.push(self.bind(one)?);
                }
                let (mut all, _) = self.unified(typed, "IN")?;
                let value = all.remove(0);
                let found = Expr::In(value.boxed(), all);
                (found.negated(*negated), Type::Bool)
            }
            E::Like { negated, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, escape_char.as_deref(), *negated, false)?
            }
            E::ILike { negated, any: false, expr, pattern, escape_char } => {
                self.like(expr, pattern, escape_char.as_deref(), *negated, true)?
            }
            E::Like { negated, any: true, expr, pattern, escape_char: None } => {
                let operator =
                    if *negated { BinaryOperator::PGNotLikeMatch } else { BinaryOperator::PGLikeMatch };
                self.quantified(expr, &operator, pattern, false)?
            }
            E::ILike { negated, any: true, expr, pattern, escape_char: None } => {
                let operator =
                    if *negated { BinaryOperator::PGNotILikeMatch } else { BinaryOperator::PGILikeMatch };
                self.quantified(expr, &operator, pattern, false)?
            }
            E::SimilarTo { negated, expr, pattern, escape_char } => {
                self.similar(expr, pattern, escape_char.as_deref(), *negated)?
            }
            E::Collate { expr, collation } => self.collated(expr, collation)?,
            E::Interval(interval) => operators::interval(interval)?,
            E::AtTimeZone { timestamp, time_zone } => {
                let moment = self.bind(timestamp)?;
                self.call("timezone", vec![self.bind(time_zone)?, moment])?
            }
            E::Extract { field, expr, .. } => {
                let field = (Expr::Value(Value::Text(field.to_string())), Type::Text);
                self.call("extract", vec![field, self.bind(expr)?])?
            }
            E::BinaryOp { left, op, right } => self.binary(left, op, right)?,
            E::Array(array) => self.array(&array.elem, None)?,
            E::CompoundFieldAccess { root, access_chain } => {
                // The name of a column before the subscripts may have that of its table before it.
                let (mut names, mut rest) = (Vec::new(), &access_chain[..]);
                if let E::Identifier(first) = &**root {
                    names.push(first.clone());
                    while let [ast::AccessExpr::Dot(E::Identifier(name)), more @ ..] = rest {
                        names.push(name.clone());
                        rest = more;
                    }
                }
                match names.len() {
                    0 | 1 => self.subscripted(root, access_chain)?,
                    _ => self.subscripted(&E::CompoundIdentifier(names), rest)?,
                }
            }
            E::Cast {
                kind: ast::CastKind::Cast | ast::CastKind::DoubleColon,
                expr,
                data_type,
                format: None,
            } => {
                let of = type_of(data_type, self.parameters)?;
                if let (E::Array(array), Some(element)) = (&**expr, of.element()) {
                    return self.array(&array.elem, Some(element));
                }
                (coerce(self.bind(expr)?, of, self.parameters, true)?, of.unrounded())
            }
            E::Case { operand, conditions, else_result, .. } => {
                self.case(operand.as_deref(), conditions, else_result.as_deref())?
            }
            E::Function(function) => self.function(function)?,
            E::Subquery(query) => self.subquery(query)?,
            E::Exists { subquery, negated } => self.exists(subquery, *negated)?,
            E::In { expr, target: ast::InTarget::Subquery(query), negated, global: false } => {
                self.in_subquery(expr, query, *negated)?
            }
            E::AnyOp { left, compare_op, right, .. } if let Some(query) = subqueries::of(right) => {
                self.compared(left, compare_op, query, false)?
            }
            E::AllOp { left, compare_op, right } if let Some(query) = subqueries::of(right) => {
                self.compared(left, compare_op, query, true)?
            }
            E::AnyOp { left, compare_op, right, .. } => self.quantified(left, compare_op, right, false)?,
            E::AllOp { left, compare_op, right } => self.quantified(left, compare_op, right, true)?,
            other => self.special_call(other)?,
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
                    fail!(UNDEFINED_PARAMETER, "there is no parameter {name}");
                };
                (Expr::Parameter(number - 1), self.parameters.decide(number - 1, Type::Unknown))
            }
            other => return Err(SqlError::unsupported(format!("the literal {other}"))),
        })
    }

    /// Gives expressions one type.
    pub(crate) fn unified(&self, all: Vec<Typed>, what: &str) -> Result<(Vec<Expr>, Type)> {
        let types: Vec<Type> = all.iter().map(|(_, of)| *of).collect();
        let common = match common_type(&types, what)? {
            Type::Unknown => Type::Text,
            common => common,
        };
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

    /// Binds a call that names a sequence, as text or as `regclass`.
    fn sequence(
        &self,
        name: &str,
        function: &ast::Function,
        list: &ast::FunctionArgumentList,
    ) -> Result<Typed> {
        let unsupported = || SqlError::unsupported(format!("the call {function}"));
        let argument = |argument| calls::plain_argument(argument).ok_or_else(unsupported);
        let all: Vec<&ast::Expr> = list.args.iter().map(argument).collect::<Result<_>>()?;
        let (first, rest) = all.split_first().ok_or_else(unsupported)?;
        let named = match *first {
            ast::Expr::Cast { expr, data_type, .. }
                if data_type.to_string().eq_ignore_ascii_case("regclass") =>
            {
                expr
            }
            plain => plain,
        };
        let of = match named {
            ast::Expr::Value(ast::ValueWithSpan { value: ast::Value::SingleQuotedString(named), .. }) => {
                let slot = SequenceSlot::default();
                self.parameters.sequences.borrow_mut().push((relation_of_text(named), slot.clone()));
                NamedSequence::Found(slot)
            }
            _ => {
                let name = coerce(self.bind(first)?, Type::Regclass, self.parameters, false)?;
                NamedSequence::Of(name.boxed())
            }
        };
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
        Ok((Expr::Sequence(of, call), Type::Int8))
    }
}

/// Returns the name of an object of the system, whose schema may stand before it.
fn system_name(name: &ast::ObjectName) -> Option<String> {
    let (schema, name) = match &name.0[..] {
        [name] => (None, name),
        [schema, name] => (Some(folded(schema.as_ident()?)), name),
        _ => return None,
    };
    let name = name.as_ident().map(folded);
    name.filter(|_| schema.is_none_or(|schema| schema == "pg_catalog"))
}

/// Returns whether a name is the word of SQL, which the parser does not know.
fn is_current_schema(name: &ast::Ident) -> bool {
    name.quote_style.is_none() && name.value.eq_ignore_ascii_case("current_schema")
}

/// The error for a relation that has no rows.
pub(crate) fn wrong_kind(name: &str) -> SqlError {
    error!("42809", "cannot open relation \"{}\"", crate::catalog::shown(name))
}
