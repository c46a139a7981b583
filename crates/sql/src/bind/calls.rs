//! Calls of functions, also those with a syntax of their own.

use sqlparser::ast;

use super::{Scope, ScopeColumn, Typed, coerce, select::ResultColumn, sets, system_name};
use crate::{
    error::{Result, SqlError, error},
    expr::Expr,
    functions::{self, BoundFunction, Function, FunctionBody, conditional},
    parse::{VARIADIC, expression, folded},
    types::{Type, Value},
};

/// The names of types that are no functions: a call of one converts its argument.
const TYPES: &[&str] =
    &["bool", "date", "float4", "float8", "int2", "int4", "int8", "name", "text", "varchar"];

impl Scope<'_> {
    /// Binds a call of the table of functions.
    pub(super) fn call(&self, name: &str, arguments: Vec<Typed>) -> Result<Typed> {
        self.resolved(name, arguments, false)
    }

    fn resolved(&self, name: &str, mut arguments: Vec<Typed>, is_spread: bool) -> Result<Typed> {
        let types: Vec<Type> = arguments.iter().map(|(_, of)| *of).collect();
        if let [_] = types[..]
            && let Some(of) = Type::all().find(|of| of.catalog_name() == name && TYPES.contains(&name))
        {
            return Ok((coerce(arguments.remove(0), of, self.parameters, true)?, of));
        }
        let mut bound = functions::resolve(name, &types, is_spread)?;
        let declared = &bound.function.arguments;
        // An argument that is left out has its default; a variadic one is simply not there.
        let mut all_types = bound.types.to_vec();
        if !bound.function.is_variadic && arguments.len() < declared.len() {
            let missing = &declared[arguments.len()..];
            let defaults = bound.function.defaults.iter().rev().take(missing.len()).rev();
            for (of, default) in missing.iter().zip(defaults) {
                let functions::DeclaredType::Is(of) = of else { continue };
                arguments.push((Expr::Value(Value::Text((*default).to_owned())), Type::Unknown));
                all_types.push(*of);
            }
        }
        bound.types = all_types.into();
        self.bound_call(bound, arguments)
    }

    /// Returns the call of a function that is resolved. The body of one of SQL takes the place of
    /// the call.
    pub(super) fn bound_call(&self, bound: BoundFunction, arguments: Vec<Typed>) -> Result<Typed> {
        let all = arguments.into_iter().zip(&bound.types);
        let all = all.map(|(typed, to)| coerce(typed, *to, self.parameters, false));
        let all = all.collect::<Result<Vec<Expr>>>()?;
        let result = bound.result;
        let FunctionBody::Sql(body) = bound.function.body else {
            return Ok((Expr::Call(bound, all), result));
        };
        let column = |((name, of), value): ((&&str, &Type), Expr)| {
            let column = ResultColumn { name: (*name).to_owned(), of: *of };
            ScopeColumn { value, ..ScopeColumn::new("", &column, 0) }
        };
        let columns = bound.function.names.iter().zip(&bound.types).zip(all).map(column);
        let columns: Vec<ScopeColumn> = columns.collect();
        let typed = Scope::new(&columns, self.parameters).bind(&expression(body)?)?;
        Ok((coerce(typed, result, self.parameters, false)?, result))
    }

    /// Binds an argument that an aggregate or sequence does not take.
    pub(super) fn function(&self, function: &ast::Function) -> Result<Typed> {
        let unsupported = || SqlError::unsupported(format!("the call {function}"));
        let name = system_name(&function.name).ok_or_else(unsupported)?;
        if function.over.is_some() {
            return self.window(&name, function);
        }
        if let Some(found) = self.aggregate_call(&name, function)? {
            return Ok(found);
        }
        let empty =
            ast::FunctionArgumentList { duplicate_treatment: None, args: Vec::new(), clauses: Vec::new() };
        let list = match &function.args {
            ast::FunctionArguments::None => &empty,
            ast::FunctionArguments::List(list) => list,
            ast::FunctionArguments::Subquery(query) if name == "array" => return self.array_of(query),
            ast::FunctionArguments::Subquery(_) => return Err(unsupported()),
        };
        if !is_plain(function)
            || function.filter.is_some()
            || !list.clauses.is_empty()
            || list.duplicate_treatment.is_some()
        {
            return Err(unsupported());
        }
        if matches!(name.as_str(), "nextval" | "currval" | "setval") {
            return self.sequence(&name, function, list);
        }
        let mut arguments = Vec::new();
        let mut names = Vec::new();
        let mut is_spread = false;
        for argument in &list.args {
            use ast::{FunctionArg as A, FunctionArgExpr::Expr};
            match argument {
                A::Unnamed(Expr(argument)) if names.is_empty() && !is_spread => {
                    arguments.push(self.bind(argument)?);
                }
                A::ExprNamed { name: ast::Expr::Identifier(name), arg: Expr(argument), .. } => {
                    match folded(name) {
                        name if name == VARIADIC && names.is_empty() && !is_spread => is_spread = true,
                        name => names.push(name),
                    }
                    arguments.push(self.bind(argument)?);
                }
                _ => return Err(unsupported()),
            }
        }
        if sets::is_set(&name) && names.is_empty() && !is_spread {
            return self.set_call(function, &name, arguments);
        }
        if !names.is_empty() {
            return self.named_call(&name, arguments, &names);
        }
        self.plain_call(&name, arguments, is_spread)
    }

    /// Binds a call whose last arguments have names.
    fn named_call(&self, name: &str, arguments: Vec<Typed>, names: &[String]) -> Result<Typed> {
        let missing =
            || error!(UNDEFINED_FUNCTION, "function {name} with arguments of these names does not exist");
        let first = arguments.len() - names.len();
        let takes = |function: &&&Function| {
            names.iter().all(|name| function.names.iter().skip(first).any(|known| known == name))
        };
        let function = functions::named(name).iter().find(takes).ok_or_else(missing)?;
        let mut slots: Vec<Option<Typed>> = vec![None; function.arguments.len()];
        for (at, argument) in arguments.into_iter().enumerate() {
            let at = match at.checked_sub(first) {
                None => at,
                Some(named) => {
                    let is_it = |known: &&str| *known == names[named];
                    function.names.iter().position(is_it).ok_or_else(missing)?
                }
            };
            match slots.get_mut(at) {
                Some(slot) if slot.is_none() => *slot = Some(argument),
                _ => return Err(missing()),
            }
        }
        let required = slots.len() - function.defaults.len();
        let mut all = Vec::new();
        for (at, slot) in slots.into_iter().enumerate() {
            let default = at.checked_sub(required).map(|at| function.defaults[at].to_owned());
            let default = default.map(|text| (Expr::Value(Value::Text(text)), Type::Unknown));
            all.push(slot.or(default).ok_or_else(missing)?);
        }
        self.call(name, all)
    }

    fn plain_call(&self, name: &str, arguments: Vec<Typed>, is_spread: bool) -> Result<Typed> {
        let to = |(expr, from): Typed, to: Type| {
            (Expr::Cast { value: expr.boxed(), from, to, is_explicit: true }, to)
        };
        Ok(match name {
            "coalesce" if !arguments.is_empty() => {
                let (all, of) = self.unified(arguments, "COALESCE")?;
                (Expr::Coalesce(all), of)
            }
            "greatest" | "least" if !arguments.is_empty() => {
                let (all, of) =
                    self.unified(arguments, if name == "least" { "LEAST" } else { "GREATEST" })?;
                (
                    Expr::Apply(
                        if name == "least" { conditional::least } else { conditional::greatest },
                        all,
                    ),
                    of,
                )
            }
            "nullif" if arguments.len() == 2 => {
                let (first, second) = (arguments[0].1, arguments[1].1);
                if first.common(second).is_none() {
                    return Err(super::operators::no_operator(&format!(
                        "{} = {}",
                        first.name(),
                        second.name()
                    )));
                }
                let (all, common) = self.unified(arguments, "NULLIF")?;
                // Numbers of one kind are compared without a conversion of the first one.
                let is_same = first.is_integer() && common.is_integer();
                let of = if is_same { first } else { common };
                (Expr::Apply(conditional::nullif, all), of)
            }
            "current_timestamp" => self.call("now", arguments)?,
            "localtimestamp" => to(self.call("now", arguments)?, Type::Timestamp),
            "current_time" => to(self.call("now", arguments)?, Type::TimeTz),
            "localtime" => to(self.call("now", arguments)?, Type::TimeOfDay),
            "current_date" => to(self.call("now", arguments)?, Type::Date),
            "user" | "current_role" => self.call("current_user", arguments)?,
            "current_catalog" => self.call("current_database", arguments)?,
            name => self.resolved(name, arguments, is_spread)?,
        })
    }

    /// Binds a call with a syntax of its own.
    pub(super) fn special_call(&self, expr: &ast::Expr) -> Result<Typed> {
        use ast::{CeilFloorKind, DateTimeField, Expr as E};
        let parts_of = |all: &[Option<&ast::Expr>]| -> Result<Vec<Typed>> {
            all.iter().flatten().map(|one| self.bind(one)).collect()
        };
        let name = special_name(expr).unwrap_or_default();
        let whole = CeilFloorKind::DateTimeField(DateTimeField::NoDateTime);
        match expr {
            E::Substring { expr, substring_from: None, substring_for: Some(count), .. } => {
                let one = (Expr::Value(Value::Int(1)), Type::Int4);
                self.call("substring", vec![self.bind(expr)?, one, self.bind(count)?])
            }
            E::Substring { expr, substring_from, substring_for, shorthand, .. } => {
                let name = if *shorthand { "substr" } else { "substring" };
                let parts = [Some(&**expr), substring_from.as_deref(), substring_for.as_deref()];
                self.call(name, parts_of(&parts)?)
            }
            E::Trim { trim_what, expr, trim_characters, .. } => {
                let mut parts = vec![Some(&**expr), trim_what.as_deref()];
                parts.extend(trim_characters.iter().flatten().map(Some));
                self.call(name, parts_of(&parts)?)
            }
            E::Position { expr, r#in } => self.call(name, parts_of(&[Some(r#in), Some(expr)])?),
            E::Overlay { expr, overlay_what, overlay_from, overlay_for } => {
                let parts = [Some(&**expr), Some(overlay_what), Some(overlay_from), overlay_for.as_deref()];
                self.call(name, parts_of(&parts)?)
            }
            E::Ceil { expr, field } if *field == whole => self.call(name, parts_of(&[Some(expr)])?),
            E::Floor { expr, field } if *field == whole => self.call(name, parts_of(&[Some(expr)])?),
            other => Err(SqlError::unsupported(format!("the expression {other}"))),
        }
    }
}

/// Returns the function of a call with a syntax of its own, after which its column is named.
pub(super) fn special_name(expr: &ast::Expr) -> Option<&'static str> {
    use ast::Expr as E;
    Some(match expr {
        E::Trim { trim_where: Some(ast::TrimWhereField::Leading), .. } => "ltrim",
        E::Trim { trim_where: Some(ast::TrimWhereField::Trailing), .. } => "rtrim",
        E::Trim { .. } => "btrim",
        E::Position { .. } => "position",
        E::Overlay { .. } => "overlay",
        E::Ceil { .. } => "ceil",
        E::Floor { .. } => "floor",
        E::Extract { .. } => "extract",
        _ => return None,
    })
}

/// Returns true for a call without clauses behind its arguments, FILTER and OVER aside.
pub(super) fn is_plain(function: &ast::Function) -> bool {
    function.within_group.is_empty()
        && function.null_treatment.is_none()
        && function.parameters == ast::FunctionArguments::None
}

/// Returns the expression of an argument without a name.
pub(super) fn plain_argument(argument: &ast::FunctionArg) -> Option<&ast::Expr> {
    match argument {
        ast::FunctionArg::Unnamed(ast::FunctionArgExpr::Expr(expr)) => Some(expr),
        _ => None,
    }
}
