//! The functions of SQL: one table of names, arguments, results and what they do, in the chapters
//! of PostgreSQL's manual. The binder finds functions in it, and `pg_proc` is made of it.
//!
//! An entry is a line: `function("left", &[TEXT, INT4], TEXT, left)`. It is immutable, and NULL if
//! an argument is NULL, unless methods of [`Function`] say otherwise.

mod advisory;
mod arrays;
mod bytes;
pub(crate) mod conditional;
pub(crate) mod json;
pub(crate) mod mathematics;
pub(crate) mod names;
mod networks;
mod number_format;
mod others;
pub(crate) mod patterns;
pub(crate) mod precise;
mod resolve;
mod session;
pub(crate) mod sets;
mod strings;
mod time_format;
mod times;
mod trigonometry;

use std::{cell::RefCell, collections::HashMap, sync::LazyLock};

pub(crate) use self::{
    advisory::Advisory,
    others::OtherSessions,
    resolve::{BoundFunction, resolve, undefined},
    session::start_time,
};
use crate::{
    answers::Answers,
    catalog::SessionPlace,
    dml::foreign::Constraints,
    error::{Result, SqlError, code},
    notifications::SessionNotifications,
    sequences::{Drawn, Set},
    session::settings::Settings,
    system::{self, Definitions},
    types::{Type, Value, array::Array, numeric::Numeric, text},
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
        (self.sequences.end_statement(), self.advisory.end_statement())
    }
}

#[cfg(test)]
use {crate::activity::Activity, std::sync::Arc};

#[cfg(test)]
impl Context {
    /// Makes that of a test.
    pub(crate) fn of_test(role: &str) -> Self {
        let activity = Arc::new(Activity::new(0, role.into(), role.into(), role.into()));
        Self {
            begun: 0,
            statement_begun: 0,
            settings: Settings::new(true).into(),
            user: role.into(),
            database: "postgres".into(),
            process: 1,
            sequences: Drawn::default(),
            place: SessionPlace { database: 0, role: role.into(), is_superuser: true },
            definitions: Definitions::new(role.into()),
            answers: Answers::default(),
            advisory: Advisory::new(None, activity.clone(), 0),
            notifications: SessionNotifications::new(None, activity, 0, 1),
            sessions: OtherSessions::new(None),
            temporary: Default::default(),
            constraints: Constraints::default(),
        }
    }
}

/// A function as the binder and the catalogs see it.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) arguments: &'static [DeclaredType],
    /// The names of the arguments, if they have any.
    pub(crate) names: &'static [&'static str],
    /// The values of the last arguments that a call may leave out, as literals.
    pub(crate) defaults: &'static [&'static str],
    /// The number of last arguments that a call may leave out, which has no value then.
    pub(crate) optional: usize,
    /// The last argument is an array, which a call may give as separate values.
    pub(crate) is_variadic: bool,
    pub(crate) result: DeclaredType,
    pub(crate) volatility: Volatility,
    /// NULL as an argument gives NULL.
    pub(crate) is_strict: bool,
    pub(crate) act: fn(&Call<'_>) -> Result<Value>,
}

/// A type in the declaration of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeclaredType {
    Is(Type),
    /// Each argument has its own type, which may stay unknown.
    Any,
    AnyElement,
    AnyArray,
    AnyCompatible,
    AnyCompatibleArray,
}

/// A promise about the results of a function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Volatility {
    /// The same arguments give the same result for ever.
    Immutable,
    /// The same arguments give the same result within a statement.
    Stable,
    Volatile,
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

// The names of types in entries.
pub(crate) const BOOL: DeclaredType = DeclaredType::Is(Type::Bool);
pub(crate) const INT2: DeclaredType = DeclaredType::Is(Type::Int2);
pub(crate) const INT4: DeclaredType = DeclaredType::Is(Type::Int4);
pub(crate) const INT8: DeclaredType = DeclaredType::Is(Type::Int8);
pub(crate) const FLOAT4: DeclaredType = DeclaredType::Is(Type::Float4);
pub(crate) const FLOAT8: DeclaredType = DeclaredType::Is(Type::Float8);
pub(crate) const NUMERIC: DeclaredType = DeclaredType::Is(Type::Numeric(None));
pub(crate) const TEXT: DeclaredType = DeclaredType::Is(Type::Text);
pub(crate) const NAME: DeclaredType = DeclaredType::Is(Type::Name);
pub(crate) const BYTEA: DeclaredType = DeclaredType::Is(Type::Bytea);
pub(crate) const OID: DeclaredType = DeclaredType::Is(Type::Oid);
pub(crate) const REGTYPE: DeclaredType = DeclaredType::Is(Type::Regtype);
pub(crate) const REGCLASS: DeclaredType = DeclaredType::Is(Type::Regclass);
pub(crate) const INET: DeclaredType = DeclaredType::Is(Type::Inet);
pub(crate) const CIDR: DeclaredType = DeclaredType::Is(Type::Cidr);
pub(crate) const UUID: DeclaredType = DeclaredType::Is(Type::Uuid);
pub(crate) const DATE: DeclaredType = DeclaredType::Is(Type::Date);
pub(crate) const TIME: DeclaredType = DeclaredType::Is(Type::TimeOfDay);
pub(crate) const TIMETZ: DeclaredType = DeclaredType::Is(Type::TimeTz);
pub(crate) const INTERVAL: DeclaredType = DeclaredType::Is(Type::Interval);
pub(crate) const JSON: DeclaredType = DeclaredType::Is(Type::Json);
pub(crate) const JSONB: DeclaredType = DeclaredType::Is(Type::Jsonb);
pub(crate) const TIMESTAMP: DeclaredType = DeclaredType::Is(Type::Timestamp);
pub(crate) const TIMESTAMPTZ: DeclaredType = DeclaredType::Is(Type::TimestampTz);
pub(crate) const TEXTS: DeclaredType = DeclaredType::Is(Type::Array(&Type::Text));
pub(crate) const INT4S: DeclaredType = DeclaredType::Is(Type::Array(&Type::Int4));
pub(crate) const NAMES: DeclaredType = DeclaredType::Is(Type::Array(&Type::Name));
pub(crate) const VOID: DeclaredType = DeclaredType::Is(Type::Void);
pub(crate) const ANY: DeclaredType = DeclaredType::Any;
pub(crate) const ANYELEMENT: DeclaredType = DeclaredType::AnyElement;
pub(crate) const ANYARRAY: DeclaredType = DeclaredType::AnyArray;
pub(crate) const ANYCOMPATIBLE: DeclaredType = DeclaredType::AnyCompatible;
pub(crate) const ANYCOMPATIBLEARRAY: DeclaredType = DeclaredType::AnyCompatibleArray;

/// The chapters of the table, in the order of the documentation.
static CHAPTERS: &[(&str, &[Function])] = &[
    ("Numbers", mathematics::FUNCTIONS),
    ("Texts", strings::FUNCTIONS),
    ("Regular expressions", patterns::FUNCTIONS),
    ("Bytes", bytes::FUNCTIONS),
    ("Addresses of networks", networks::FUNCTIONS),
    ("Dates and times", times::FUNCTIONS),
    ("Templates of numbers", number_format::FUNCTIONS),
    ("Templates of times", time_format::FUNCTIONS),
    ("JSON", json::FUNCTIONS),
    ("Arrays", arrays::FUNCTIONS),
    ("Session and system", session::FUNCTIONS),
    ("Advisory locks", advisory::FUNCTIONS),
    ("Sleep and other sessions", others::FUNCTIONS),
    ("Catalogs", system::functions::SYSTEM),
];

/// The functions of each name.
static BY_NAME: LazyLock<HashMap<&'static str, Vec<&'static Function>>> = LazyLock::new(|| {
    let mut by_name: HashMap<_, Vec<_>> = HashMap::new();
    for function in all() {
        by_name.entry(function.name).or_default().push(function);
    }
    by_name
});

/// Returns all functions.
pub(crate) fn all() -> impl Iterator<Item = &'static Function> {
    CHAPTERS.iter().flat_map(|(_, functions)| functions.iter())
}

/// Returns the functions with a name.
pub(crate) fn named(name: &str) -> &'static [&'static Function] {
    BY_NAME.get(name).map_or(&[], Vec::as_slice)
}

/// Makes an entry of the table.
pub(crate) const fn function(
    name: &'static str,
    arguments: &'static [DeclaredType],
    result: DeclaredType,
    act: fn(&Call<'_>) -> Result<Value>,
) -> Function {
    Function {
        name,
        arguments,
        names: &[],
        defaults: &[],
        optional: 0,
        is_variadic: false,
        result,
        volatility: Volatility::Immutable,
        is_strict: true,
        act,
    }
}

impl Function {
    /// Makes the results depend on the statement.
    pub(crate) const fn stable(self) -> Self {
        Self { volatility: Volatility::Stable, ..self }
    }

    /// Makes each result a new one.
    pub(crate) const fn volatile(self) -> Self {
        Self { volatility: Volatility::Volatile, ..self }
    }

    /// Calls the function with NULL, too.
    pub(crate) const fn takes_null(self) -> Self {
        Self { is_strict: false, ..self }
    }

    /// Lets calls give the elements of the last argument, which is an array or [`ANY`], one by one.
    pub(crate) const fn variadic(self) -> Self {
        Self { is_variadic: true, ..self }
    }

    /// Names the arguments.
    pub(crate) const fn names(self, names: &'static [&'static str]) -> Self {
        Self { names, ..self }
    }

    /// Lets calls leave out the last arguments.
    pub(crate) const fn defaults(self, defaults: &'static [&'static str]) -> Self {
        Self { defaults, ..self }
    }

    /// Lets calls leave out so many last arguments. For the catalog each number of arguments is a
    /// function of its own.
    pub(crate) const fn optional(self, optional: usize) -> Self {
        Self { optional, ..self }
    }

    /// Returns the arguments of each function that the catalog has for this one.
    pub(crate) fn forms(&self) -> impl Iterator<Item = &'static [DeclaredType]> + use<> {
        let arguments = self.arguments;
        (arguments.len() - self.optional..=arguments.len()).map(|count| &arguments[..count])
    }
}

impl DeclaredType {
    /// Returns its name in PostgreSQL.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Is(of) => of.name(),
            Self::Any => "\"any\"",
            Self::AnyElement => "anyelement",
            Self::AnyArray => "anyarray",
            Self::AnyCompatible => "anycompatible",
            Self::AnyCompatibleArray => "anycompatiblearray",
        }
    }

    /// Returns its identifier in PostgreSQL's catalog.
    pub(crate) fn oid(self) -> u32 {
        match self {
            Self::Is(of) => of.oid(),
            Self::Any => 2276,
            Self::AnyElement => 2283,
            Self::AnyArray => 2277,
            Self::AnyCompatible => 5077,
            Self::AnyCompatibleArray => 5078,
        }
    }
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
        match self.values.get(at) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    pub(crate) fn bytes(&self, at: usize) -> &[u8] {
        match self.values.get(at) {
            Some(Value::Bytes(bytes)) => bytes,
            _ => &[],
        }
    }

    /// Returns an integer, or an identifier.
    pub(crate) fn int(&self, at: usize) -> i64 {
        match self.values.get(at) {
            Some(Value::Int(number)) => *number,
            _ => 0,
        }
    }

    pub(crate) fn float(&self, at: usize) -> f64 {
        match self.values.get(at) {
            Some(Value::Float(number)) => *number,
            _ => 0.0,
        }
    }

    pub(crate) fn bool(&self, at: usize) -> bool {
        matches!(self.values.get(at), Some(Value::Bool(true)))
    }

    pub(crate) fn numeric(&self, at: usize) -> Numeric {
        match self.values.get(at) {
            Some(Value::Numeric(number)) => *number,
            _ => Numeric::from_int(0),
        }
    }

    pub(crate) fn array(&self, at: usize) -> &Array {
        static EMPTY: Array = Array { dimensions: Vec::new(), values: Vec::new() };
        match self.values.get(at) {
            Some(Value::Array(array)) => array,
            _ => &EMPTY,
        }
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
