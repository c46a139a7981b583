//! The choice among functions of one name, by PostgreSQL's rules (its manual, *Type Conversion*).

use std::fmt::Display;

use super::{Call, Context, DeclaredType, Function, FunctionBody, named};
use crate::{
    error::{Result, SqlError, error},
    system::category,
    types::{Type, Value},
};

/// A function with the types of a call.
#[derive(Clone, Debug)]
pub(crate) struct BoundFunction {
    pub(crate) function: &'static Function,
    /// The type that each argument must be converted to.
    pub(crate) types: Box<[Type]>,
    pub(crate) result: Type,
    /// The last argument is an array of the variadic ones.
    pub(crate) is_spread: bool,
}

impl BoundFunction {
    /// Calls the function.
    pub(crate) fn call(&self, values: &[Value], context: &Context) -> Result<Value> {
        let Self { function, types, result, is_spread } = self;
        let is_null = |at: &usize| values.get(*at).is_none_or(Value::is_null);
        let is_refused = function.is_strict && values.iter().any(Value::is_null);
        if is_refused || function.required.iter().any(is_null) {
            return Ok(Value::Null);
        }
        let call = Call { values, types, result: *result, is_spread: *is_spread, context };
        match function.body {
            FunctionBody::Native(act) => act(&call),
            FunctionBody::Sql(_) => {
                Err(SqlError::unsupported(format!("a call of {} in this place", function.name)))
            }
        }
    }
}

/// Returns whether a value becomes one of another type without a cast (`pg_cast.castcontext`).
pub(crate) fn is_implicit(from: Type, to: Type) -> bool {
    let (from, to) = (from.without_limits(), to.without_limits());
    match (from, to) {
        (from, to) if from == to => true,
        (Type::Unknown, _) => true,
        (from, to) if from.is_number() && to.is_number() => from.rank() < to.rank(),
        (from, Type::Oid) => from.is_integer() || from.is_reg(),
        (Type::Oid, to) => to.is_reg(),
        (Type::Text | Type::Varchar(_), Type::Regclass) => true,
        (from, to) if to.is_reg() => from.is_integer(),
        (Type::Name, to) => to == Type::Text,
        (Type::OneByte, to) => to == Type::Text,
        (from, to) if from.is_text() && to.is_text() => true,
        (Type::Cidr, to) => to == Type::Inet,
        (Type::Date, to) => matches!(to, Type::Timestamp | Type::TimestampTz),
        (Type::Timestamp, to) => to == Type::TimestampTz,
        (Type::TimeOfDay, to) => matches!(to, Type::Interval | Type::TimeTz),
        (Type::Array(from), Type::Array(to)) => is_implicit(*from, *to),
        _ => false,
    }
}

/// The category of types that stand for others.
const PSEUDO: (&str, bool) = ("P", false);

/// A function that takes so many arguments, and its type for each of them.
struct Candidate {
    function: &'static Function,
    declared: Vec<DeclaredType>,
}

impl Candidate {
    fn new(function: &'static Function, count: usize, is_spread: bool) -> Option<Self> {
        let mut declared = function.arguments.clone();
        if function.is_variadic && !is_spread {
            let last = match declared.pop()? {
                DeclaredType::Is(Type::Array(of)) => DeclaredType::Is(*of),
                DeclaredType::AnyArray => DeclaredType::AnyElement,
                DeclaredType::AnyCompatibleArray => DeclaredType::AnyCompatible,
                other => other,
            };
            declared.resize(count.max(declared.len() + 1), last);
        }
        let least = declared.len().checked_sub(function.defaults.len().max(function.optional))?;
        if is_spread && !function.is_variadic || !(least..=declared.len()).contains(&count) {
            return None;
        }
        declared.truncate(count);
        Some(Self { function, declared })
    }

    /// Returns whether values of these types become its arguments.
    fn takes(&self, types: &[Type]) -> bool {
        let takes = |(from, to): (&Type, &DeclaredType)| match to {
            DeclaredType::Is(to) => is_implicit(*from, *to),
            DeclaredType::AnyArray | DeclaredType::AnyCompatibleArray => {
                *from == Type::Unknown || from.element().is_some()
            }
            _ => true,
        };
        types.iter().zip(&self.declared).all(takes) && self.elements(types).is_ok()
    }

    /// Returns what `anyelement` and `anycompatible` stand for in a call.
    fn elements(&self, types: &[Type]) -> Result<(Type, Type)> {
        let (mut element, mut compatible) = (Type::Unknown, Type::Unknown);
        for (given, declared) in types.iter().zip(&self.declared) {
            let inner = || given.element().unwrap_or(Type::Unknown);
            let (of, is_exact) = match declared {
                DeclaredType::Is(_) | DeclaredType::Any => continue,
                DeclaredType::AnyElement | DeclaredType::AnyEnum => (given.without_limits(), true),
                DeclaredType::AnyArray => (inner(), true),
                DeclaredType::AnyCompatible => (given.without_limits(), false),
                DeclaredType::AnyCompatibleArray => (inner(), false),
            };
            let differ = || error!(DATATYPE_MISMATCH, "arguments declared of one type are not all alike");
            if !is_exact {
                compatible = compatible.common(of).ok_or_else(differ)?;
            } else if element == Type::Unknown || of == Type::Unknown || element == of {
                element = if element == Type::Unknown { of } else { element };
            } else {
                return Err(differ());
            }
        }
        let needs_enum = self.declared.contains(&DeclaredType::AnyEnum);
        if needs_enum && !matches!(element, Type::Enum(_)) {
            return Err(error!(DATATYPE_MISMATCH, "no argument is of an enumerated type"));
        }
        Ok((element, if compatible == Type::Unknown { Type::Text } else { compatible }))
    }

    /// Returns the candidate with the types of the call.
    fn bound(&self, types: &[Type], is_spread: bool) -> Result<BoundFunction> {
        let (element, compatible) = self.elements(types)?;
        let undetermined = || {
            error!(DATATYPE_MISMATCH, "could not determine polymorphic type because input has type unknown")
        };
        let array = |of: Type| of.array().ok_or_else(|| SqlError::unsupported(format!("{}[]", of.name())));
        let real = |declared: DeclaredType, given: Type| match declared {
            DeclaredType::Is(of) => Ok(of),
            DeclaredType::Any => Ok(given),
            DeclaredType::AnyCompatible => Ok(compatible),
            DeclaredType::AnyCompatibleArray => array(compatible),
            _ if element == Type::Unknown => Err(undetermined()),
            // With its limits, which its text may need.
            DeclaredType::AnyElement if given.without_limits() == element => Ok(given),
            DeclaredType::AnyElement | DeclaredType::AnyEnum => Ok(element),
            DeclaredType::AnyArray if given.element() == Some(element) => Ok(given),
            DeclaredType::AnyArray => array(element),
        };
        let pairs = self.declared.iter().zip(types);
        let bound = pairs.map(|(declared, given)| real(*declared, *given)).collect::<Result<_>>()?;
        let result = real(self.function.result(), Type::Unknown)?;
        Ok(BoundFunction { function: self.function, types: bound, result, is_spread })
    }

    fn declared_type(&self, at: usize) -> Option<Type> {
        match self.declared[at] {
            DeclaredType::Is(of) => Some(of),
            _ => None,
        }
    }
}

/// Returns the text of a call for messages.
fn shown(name: impl Display, types: &[Type]) -> String {
    let types: Vec<&str> = types.iter().map(|of| of.name()).collect();
    format!("function {name}({})", types.join(", "))
}

/// Returns the function of a name that takes arguments of these types; if it `is_spread`, the last
/// one is an array of the variadic arguments.
pub(crate) fn resolve(name: &str, types: &[Type], is_spread: bool) -> Result<BoundFunction> {
    let functions = named(name).iter().copied().filter(|function| !function.is_operator());
    resolve_among(functions, name, types, is_spread)
}

/// As [`resolve`], among these functions.
pub(super) fn resolve_among(
    all: impl Iterator<Item = &'static Function>,
    name: &str,
    types: &[Type],
    is_spread: bool,
) -> Result<BoundFunction> {
    let all: Vec<Candidate> =
        all.filter_map(|function| Candidate::new(function, types.len(), is_spread)).collect();
    match best(&all, types, types, is_spread) {
        Ok(candidate) => candidate.bound(types, is_spread),
        Err(true) => Err(error!(AMBIGUOUS_FUNCTION, "{} is not unique", shown(name, types))),
        Err(false) => Err(undefined(name, types)),
    }
}

/// Returns the operator of a symbol that takes operands of these types, if there is one.
pub(crate) fn operator(symbol: &str, types: &[Type]) -> Result<Option<BoundFunction>> {
    let all = named(symbol).iter().filter_map(|function| Candidate::new(function, types.len(), false));
    let all: Vec<Candidate> = all.collect();
    // A literal beside a value is first taken for a value of the same type.
    let same = match *types {
        [Type::Unknown, of] | [of, Type::Unknown] => vec![of; 2],
        _ => types.to_vec(),
    };
    match best(&all, types, &same, false) {
        Ok(candidate) => candidate.bound(types, false).map(Some),
        Err(true) => {
            let mut names: Vec<&str> = types.iter().map(|of| of.name()).collect();
            names.insert(types.len() - 1, symbol);
            Err(error!(AMBIGUOUS_FUNCTION, "operator is not unique: {}", names.join(" ")))
        }
        Err(false) => Ok(None),
    }
}

/// Returns the best candidate, one of exactly the types `same` before others; else whether there
/// are several.
fn best<'a>(
    all: &'a [Candidate],
    types: &[Type],
    same: &[Type],
    is_spread: bool,
) -> std::result::Result<&'a Candidate, bool> {
    let is_exact = |candidate: &&Candidate| {
        let is_same = |(at, of): (usize, &Type)| {
            *of != Type::Unknown && candidate.declared_type(at) == Some(of.without_limits())
        };
        (is_spread || !candidate.function.is_variadic) && same.iter().enumerate().all(is_same)
    };
    if let Some(exact) = all.iter().find(is_exact) {
        return Ok(exact);
    }
    let mut fitting: Vec<&Candidate> = all.iter().filter(|candidate| candidate.takes(types)).collect();
    // A function that is not variadic goes before one that is.
    if fitting.iter().any(|candidate| !candidate.function.is_variadic) {
        fitting.retain(|candidate| !candidate.function.is_variadic);
    }
    select(fitting, types)
}

/// The error for a call that no function takes.
pub(crate) fn undefined(name: impl Display, types: &[Type]) -> SqlError {
    let hint =
        "No function matches the given name and argument types. You might need to add explicit type casts.";
    error!(UNDEFINED_FUNCTION, "{} does not exist", shown(name, types)).with_hint(hint)
}

/// Returns the best candidate; else whether there are several (`func_select_candidate`).
fn select<'a>(mut left: Vec<&'a Candidate>, types: &[Type]) -> std::result::Result<&'a Candidate, bool> {
    match left[..] {
        [] => return Err(false),
        [one] => return Ok(one),
        _ => {}
    }
    let types: Vec<Type> = types.iter().map(|of| of.without_limits()).collect();
    let is_same = |candidate: &Candidate, at: usize| candidate.declared_type(at) == Some(types[at]);
    let known = || (0..types.len()).filter(|at| types[*at] != Type::Unknown);
    keep_best(&mut left, |candidate| known().filter(|at| is_same(candidate, *at)).count());
    let is_preferred = |candidate: &Candidate, at: usize| {
        let (group, is_preferred) = candidate.declared_type(at).map_or(PSEUDO, category);
        is_same(candidate, at) || is_preferred && group == category(types[at]).0
    };
    keep_best(&mut left, |candidate| known().filter(|at| is_preferred(candidate, *at)).count());
    if left.len() > 1 && known().count() < types.len() {
        decide_unknown(&mut left, &types);
    }
    // Last: literals have the type of the other arguments, if these all have one.
    let first = known().next().map(|at| types[at]);
    if let Some(first) = first.filter(|first| left.len() > 1 && known().all(|at| types[at] == *first)) {
        let all = vec![first; types.len()];
        left.retain(|candidate| candidate.takes(&all));
    }
    if let [one] = left[..] { Ok(one) } else { Err(true) }
}

/// Keeps the candidates with the highest score.
fn keep_best(left: &mut Vec<&Candidate>, score: impl Fn(&Candidate) -> usize) {
    let best = left.iter().map(|candidate| score(candidate)).max();
    left.retain(|candidate| Some(score(candidate)) == best);
}

/// Keeps the candidates that take literals of the likeliest category: a text if any takes one, else
/// the one that all take.
fn decide_unknown(left: &mut Vec<&Candidate>, types: &[Type]) {
    let mut chosen = Vec::new();
    for at in (0..types.len()).filter(|at| types[*at] == Type::Unknown) {
        let of = |candidate: &Candidate| candidate.declared_type(at).map_or(PSEUDO, category);
        let all: Vec<(&str, bool)> = left.iter().map(|candidate| of(candidate)).collect();
        let group = match all.iter().find(|(group, _)| *group == "S") {
            Some((string, _)) => *string,
            None if all.iter().all(|(group, _)| *group == all[0].0) => all[0].0,
            None => return,
        };
        let has_preferred = all.contains(&(group, true));
        chosen.push((at, group, has_preferred));
    }
    let fits = |candidate: &&&Candidate| {
        chosen.iter().all(|(at, group, has_preferred)| {
            let of = candidate.declared_type(*at).map_or(PSEUDO, category);
            of.0 == *group && (of.1 || !has_preferred)
        })
    };
    let fitting: Vec<&Candidate> = left.iter().filter(fits).copied().collect();
    if !fitting.is_empty() {
        *left = fitting;
    }
}
