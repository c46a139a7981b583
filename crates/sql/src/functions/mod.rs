//! The functions of SQL: one table of names, arguments, results and what they do, in the chapters
//! of PostgreSQL's manual. The binder finds functions in it, and `pg_proc` is made of it.
//!
//! Operators stand in the same table under their symbols and are resolved in the same way. An entry
//! is a line, in the notation of [`declared`]; `defined.sql` has those whose body is an expression
//! of SQL: each argument stands in it as often as the body names it, so once, unless calls of it
//! cannot be in each other.

mod advisory;
mod arrays;
mod bytes;
pub(crate) mod conditional;
pub(crate) mod declared;
mod enums;
pub(crate) mod json;
mod json_parts;
pub(crate) mod like;
mod mathematics;
pub(crate) mod names;
mod networks;
mod number_format;
mod others;
mod patterns;
mod precise;
mod resolve;
mod session;
pub(crate) mod sets;
pub(crate) mod spans;
mod strings;
mod time_format;
mod times;
mod trigonometry;

use std::{cell::RefCell, collections::HashMap, sync::LazyLock};

pub(crate) use self::{
    advisory::Advisory,
    declared::{Declared, DeclaredType, Function, FunctionBody, Volatility, function},
    others::OtherSessions,
    resolve::{BoundFunction, operator, resolve, undefined},
    session::start_time,
};
use crate::{
    answers::Answers,
    catalog::SessionPlace,
    dml::foreign::Constraints,
    error::{Result, SqlError, code},
    memory::StatementMemory,
    notifications::SessionNotifications,
    sequences::{Drawn, Set},
    session::settings::Settings,
    system::{self, Definitions},
    types::{
        Interval, Type, Value,
        array::Array,
        json::{Json, parse as parse_json},
        numeric::Numeric,
        text,
    },
};

/// The facts about a session that functions need.
#[derive(Debug)]
pub(crate) struct Context {
    /// The time of the transaction's begin, in microseconds from 2000-01-01.
    pub(crate) begun: i64,
    /// The time of the statement's begin; 0 before it.
    pub(crate) statement_begun: i64,
    pub(crate) settings: RefCell<Settings>,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) process: i32,
    pub(crate) sequences: Drawn,
    pub(crate) constraints: Constraints,
    /// The database and the role.
    pub(crate) place: SessionPlace,
    pub(crate) definitions: Definitions,
    pub(crate) answers: Answers,
    pub(crate) memory: StatementMemory,
    pub(crate) advisory: Advisory,
    pub(crate) notifications: SessionNotifications,
    pub(crate) sessions: OtherSessions,
    /// The schema of the session for temporary relations.
    pub(crate) temporary: RefCell<Option<String>>,
}

impl Context {
    /// Forgets what belongs to a statement, which has ended or was given up. Returns its calls of
    /// `setval`, which are to be done if it has succeeded, and its warnings.
    pub(crate) fn end_statement(&mut self) -> (Vec<Set>, Vec<String>) {
        self.statement_begun = 0;
        self.definitions.end_statement();
        self.answers.end_statement();
        self.memory.end_statement();
        (self.sequences.end_statement(), self.advisory.end_statement())
    }
}

/// A call: the values of the arguments, their types, and the session.
pub(crate) struct Call<'a> {
    pub(crate) values: &'a [Value],
    pub(crate) types: &'a [Type],
    pub(crate) result: Type,
    /// The last argument is an array of the variadic ones, after the word VARIADIC.
    pub(crate) is_spread: bool,
    pub(crate) context: &'a Context,
}

/// The chapters of the table, in the order of the documentation.
static CHAPTERS: &[(&str, &[Declared])] = &[
    ("Numbers", mathematics::FUNCTIONS),
    ("Texts", strings::FUNCTIONS),
    ("Regular expressions", patterns::FUNCTIONS),
    ("Bytes", bytes::FUNCTIONS),
    ("Addresses of networks", networks::FUNCTIONS),
    ("Dates and times", times::FUNCTIONS),
    ("Dates and times", spans::FUNCTIONS),
    ("Templates of numbers", number_format::FUNCTIONS),
    ("Templates of times", time_format::FUNCTIONS),
    ("JSON", json::FUNCTIONS),
    ("JSON", json_parts::FUNCTIONS),
    ("Arrays", arrays::FUNCTIONS),
    ("Enumerated types", enums::FUNCTIONS),
    ("Session and system", session::FUNCTIONS),
    ("Advisory locks", advisory::FUNCTIONS),
    ("Sleep and other sessions", others::FUNCTIONS),
    ("Catalogs", system::functions::SYSTEM),
];

/// All functions and operators, with the titles of their chapters.
static TABLE: LazyLock<Vec<(&'static str, Function)>> = LazyLock::new(|| {
    let chapters = CHAPTERS.iter().flat_map(|(title, all)| all.iter().map(|one| (*title, *one)));
    let mut all: Vec<_> = chapters.collect();
    let mut title = "";
    for entry in include_str!("defined.sql").split("\n\n").map(str::trim) {
        match (entry.strip_prefix("-- "), entry.split_once(":=")) {
            (Some(new), _) => title = new,
            (None, Some((text, body))) => all.push((title, (text.trim(), FunctionBody::Sql(body)))),
            (None, None) => {}
        }
    }
    all.into_iter().flat_map(|(title, one)| Function::all_of(one).map(move |one| (title, one))).collect()
});

/// The functions and the operators of each name.
static BY_NAME: LazyLock<HashMap<&'static str, Vec<&'static Function>>> = LazyLock::new(|| {
    let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
    for (_, function) in TABLE.iter() {
        by_name.entry(function.name).or_default().push(function);
    }
    by_name
});

/// Returns all functions.
pub(crate) fn all() -> impl Iterator<Item = &'static Function> {
    TABLE.iter().map(|(_, function)| function).filter(|function| !function.is_operator())
}

/// Returns the functions or the operators with a name.
pub(crate) fn named(name: &str) -> &'static [&'static Function] {
    BY_NAME.get(name).map_or(&[], Vec::as_slice)
}

impl Call<'_> {
    pub(crate) fn count(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn is_null(&self, at: usize) -> bool {
        self.values.get(at).is_none_or(Value::is_null)
    }

    /// Returns a text; an argument of another type, which the binder excludes, is the empty text.
    pub(crate) fn text(&self, at: usize) -> &str {
        let Some(Value::Text(text)) = self.values.get(at) else { return "" };
        text
    }

    pub(crate) fn bytes(&self, at: usize) -> &[u8] {
        let Some(Value::Bytes(bytes)) = self.values.get(at) else { return &[] };
        bytes
    }

    /// Returns an integer, or an identifier.
    pub(crate) fn int(&self, at: usize) -> i64 {
        let Some(Value::Int(number)) = self.values.get(at) else { return 0 };
        *number
    }

    pub(crate) fn float(&self, at: usize) -> f64 {
        let Some(Value::Float(number)) = self.values.get(at) else { return 0.0 };
        *number
    }

    pub(crate) fn date(&self, at: usize) -> i32 {
        let Some(Value::Date(day)) = self.values.get(at) else { return 0 };
        *day
    }

    /// Returns a moment, a time of day or a packed time of day with a zone.
    pub(crate) fn time(&self, at: usize) -> i64 {
        let Some(Value::Time(time)) = self.values.get(at) else { return 0 };
        *time
    }

    pub(crate) fn span(&self, at: usize) -> Interval {
        let Some(Value::Interval(span)) = self.values.get(at) else { return Interval::default() };
        *span
    }

    pub(crate) fn bool(&self, at: usize) -> bool {
        matches!(self.values.get(at), Some(Value::Bool(true)))
    }

    pub(crate) fn numeric(&self, at: usize) -> Numeric {
        let Some(Value::Numeric(number)) = self.values.get(at) else { return Numeric::from_int(0) };
        *number
    }

    /// Returns the value of a jsonb.
    pub(crate) fn json(&self, at: usize) -> Result<Json> {
        let Some(Value::Json(text)) = self.values.get(at) else { return Ok(Json::Null) };
        parse_json(text)
    }

    pub(crate) fn array(&self, at: usize) -> &Array {
        static EMPTY: Array = Array { dimensions: Vec::new(), values: Vec::new() };
        let Some(Value::Array(array)) = self.values.get(at) else { return &EMPTY };
        array
    }

    /// Returns the arguments of a variadic function from `first` on, with their types.
    pub(crate) fn rest(&self, first: usize) -> impl Iterator<Item = (&Value, Type)> {
        let (values, element) = match self.is_spread {
            true => (&self.array(first).values[..], self.types.get(first).and_then(|of| of.element())),
            false => (self.values.get(first..).unwrap_or_default(), None),
        };
        let types = &self.types[first.min(self.types.len())..];
        let type_of = move |at: usize| element.or(types.get(at).copied()).unwrap_or(Type::Unknown);
        values.iter().enumerate().map(move |(at, value)| (value, type_of(at)))
    }
}

/// Returns a result.
pub(crate) fn ok(value: impl Into<Value>) -> Result<Value> {
    Ok(value.into())
}

/// Returns the text of a value that is not NULL.
pub(crate) fn printed(value: &Value, of: Type) -> String {
    text::print(value, of)
}

/// The most bytes of a result.
pub(crate) const MOST_BYTES: usize = 64 << 20;

/// The most elements of an array that a function makes.
const MOST_ELEMENTS: usize = 8 << 20;

pub(crate) fn too_long() -> SqlError {
    SqlError::new(code::PROGRAM_LIMIT, "requested length too large")
}

fn array_too_large() -> SqlError {
    SqlError::new(code::PROGRAM_LIMIT, "array size exceeds the maximum allowed")
}

/// Returns texts with a separator between them, unless they are too long.
fn join(parts: impl Iterator<Item = String>, separator: &str) -> Result<Value> {
    let mut all = String::new();
    for (at, part) in parts.enumerate() {
        all.push_str(if at == 0 { "" } else { separator });
        all.push_str(&part);
        if all.len() > MOST_BYTES {
            return Err(too_long());
        }
    }
    ok(all)
}

pub(crate) fn invalid_parameter(message: impl Into<String>) -> SqlError {
    SqlError::new(code::INVALID_PARAMETER_VALUE, message)
}

#[cfg(test)]
mod tests;
