//! Errors of statements, with the codes that clients of PostgreSQL know.

use std::{
    fmt,
    ops::{Deref, DerefMut},
};

use plexus_cache::CacheError;
use plexus_store::StoreError;
use sqlparser::{ast::Spanned, tokenizer::Location};

/// An error of a statement or a session. In a box, so that results without an error are short.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SqlError(Box<ErrorParts>);

/// The parts of an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorParts {
    /// The SQLSTATE.
    pub code: &'static str,
    /// The message.
    pub message: String,
    /// More about it, if there is any.
    pub detail: Option<String>,
    /// The objects that it is about, and advice.
    pub fields: Option<ErrorFields>,
}

impl Deref for SqlError {
    type Target = ErrorParts;

    fn deref(&self) -> &ErrorParts {
        &self.0
    }
}

impl DerefMut for SqlError {
    fn deref_mut(&mut self) -> &mut ErrorParts {
        &mut self.0
    }
}

/// The parts of an error for programs, and its advice.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ErrorFields {
    /// The schema of the table.
    pub schema: Option<String>,
    /// The table that the error is about.
    pub table: Option<String>,
    /// Its column.
    pub column: Option<String>,
    /// The type of the value.
    pub data_type: Option<String>,
    /// The constraint that is violated.
    pub constraint: Option<String>,
    /// The way out.
    pub hint: Option<String>,
    /// The place in the text of the statement, in characters from 1.
    pub position: Option<usize>,
    /// The same as line and column, from 1, and the first word or sign behind it that is meant.
    place: Option<(u64, u64, String)>,
}

impl ErrorFields {
    pub(crate) fn has_place(&self) -> bool {
        self.place.is_some()
    }
}

pub(crate) type Result<T> = std::result::Result<T, SqlError>;

/// The SQLSTATEs in use, by their names in PostgreSQL's documentation.
pub(crate) mod code {
    pub(crate) const CANNOT_CONNECT_NOW: &str = "57P03";
    pub(crate) const PROTOCOL_VIOLATION: &str = "08P01";
    pub(crate) const FEATURE_NOT_SUPPORTED: &str = "0A000";
    pub(crate) const STRING_RIGHT_TRUNCATION: &str = "22001";
    pub(crate) const NUMERIC_OUT_OF_RANGE: &str = "22003";
    pub(crate) const DATETIME_OUT_OF_RANGE: &str = "22008";
    pub(crate) const INVALID_DATETIME: &str = "22007";
    pub(crate) const DIVISION_BY_ZERO: &str = "22012";
    pub(crate) const INVALID_PARAMETER_VALUE: &str = "22023";
    pub(crate) const INVALID_TEXT: &str = "22P02";
    pub(crate) const INVALID_BINARY: &str = "22P03";
    pub(crate) const BAD_COPY: &str = "22P04";
    pub(crate) const NOT_NULL_VIOLATION: &str = "23502";
    pub(crate) const UNIQUE_VIOLATION: &str = "23505";
    pub(crate) const FOREIGN_KEY_VIOLATION: &str = "23503";
    pub(crate) const CHECK_VIOLATION: &str = "23514";
    pub(crate) const NO_ACTIVE_TRANSACTION: &str = "25P01";
    pub(crate) const IN_FAILED_TRANSACTION: &str = "25P02";
    pub(crate) const ACTIVE_TRANSACTION: &str = "25001";
    pub(crate) const INVALID_STATEMENT_NAME: &str = "26000";
    pub(crate) const INVALID_AUTHORIZATION: &str = "28000";
    pub(crate) const INVALID_PASSWORD: &str = "28P01";
    pub(crate) const INVALID_CATALOG_NAME: &str = "3D000";
    pub(crate) const INVALID_CURSOR_NAME: &str = "34000";
    pub(crate) const INVALID_SAVEPOINT: &str = "3B001";
    pub(crate) const INVALID_SCHEMA_NAME: &str = "3F000";
    pub(crate) const SERIALIZATION_FAILURE: &str = "40001";
    pub(crate) const DEADLOCK_DETECTED: &str = "40P01";
    pub(crate) const INSUFFICIENT_PRIVILEGE: &str = "42501";
    pub(crate) const SYNTAX_ERROR: &str = "42601";
    pub(crate) const DUPLICATE_COLUMN: &str = "42701";
    pub(crate) const AMBIGUOUS_COLUMN: &str = "42702";
    pub(crate) const UNDEFINED_COLUMN: &str = "42703";
    pub(crate) const UNDEFINED_OBJECT: &str = "42704";
    pub(crate) const GENERATED_ALWAYS: &str = "428C9";
    pub(crate) const INVALID_FOREIGN_KEY: &str = "42830";
    pub(crate) const INVALID_OBJECT_DEFINITION: &str = "42P17";
    pub(crate) const OBJECT_IN_USE: &str = "55006";
    pub(crate) const WRONG_OBJECT_TYPE: &str = "42809";
    pub(crate) const GROUPING_ERROR: &str = "42803";
    pub(crate) const DATATYPE_MISMATCH: &str = "42804";
    pub(crate) const CANNOT_COERCE: &str = "42846";
    pub(crate) const INDETERMINATE_TYPE: &str = "42P18";
    pub(crate) const AMBIGUOUS_FUNCTION: &str = "42725";
    pub(crate) const ARRAY_SUBSCRIPT: &str = "2202E";
    pub(crate) const UNDEFINED_FUNCTION: &str = "42883";
    pub(crate) const UNDEFINED_TABLE: &str = "42P01";
    pub(crate) const UNDEFINED_PARAMETER: &str = "42P02";
    pub(crate) const NOT_IN_STATE: &str = "55000";
    pub(crate) const DEPENDENT_OBJECTS: &str = "2BP01";
    pub(crate) const DUPLICATE_TABLE: &str = "42P07";
    pub(crate) const DUPLICATE_DATABASE: &str = "42P04";
    pub(crate) const DUPLICATE_OBJECT: &str = "42710";
    pub(crate) const DUPLICATE_ALIAS: &str = "42712";
    pub(crate) const INVALID_COLUMN_REFERENCE: &str = "42P10";
    pub(crate) const INVALID_TABLE_DEFINITION: &str = "42P16";
    pub(crate) const OUT_OF_MEMORY: &str = "53200";
    pub(crate) const LOCK_NOT_AVAILABLE: &str = "55P03";
    pub(crate) const DISK_FULL: &str = "53100";
    pub(crate) const TOO_MANY_CONNECTIONS: &str = "53300";
    pub(crate) const PROGRAM_LIMIT: &str = "54000";
    pub(crate) const QUERY_CANCELED: &str = "57014";
    pub(crate) const ADMIN_SHUTDOWN: &str = "57P01";
    pub(crate) const SYSTEM_ERROR: &str = "58000";
    pub(crate) const DATA_CORRUPTED: &str = "XX001";
    pub(crate) const IO_ERROR: &str = "58030";
}

/// Makes an error of the name of a code or of an SQLSTATE, and of a message as for `format!`.
macro_rules! error {
    ($code:ident, $($message:tt)+) => {
        $crate::error::SqlError::new($crate::error::code::$code, format!($($message)+))
    };
    ($code:literal, $($message:tt)+) => {
        $crate::error::SqlError::new($code, format!($($message)+))
    };
}

/// Returns an error of the function around, as [`error!`] makes it.
macro_rules! fail {
    ($($error:tt)+) => { return Err($crate::error::error!($($error)+)) };
}

pub(crate) use {error, fail};

impl SqlError {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorParts { code, message: message.into(), detail: None, fields: None }))
    }

    /// Adds parts for programs.
    pub(crate) fn with(mut self, set: impl FnOnce(&mut ErrorFields)) -> Self {
        set(self.fields.get_or_insert_default());
        self
    }

    /// Adds a hint: the way out of the error.
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        self.with(|fields| fields.hint = Some(hint.into()))
    }

    pub(crate) fn with_detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// Notes that the error is about a place of the text, unless one is known.
    pub(crate) fn at(self, place: Location) -> Self {
        self.near(place, "")
    }

    /// Notes that it is about the first word or sign like this one behind a place.
    pub(crate) fn near(mut self, Location { line, column }: Location, word: &str) -> Self {
        if line > 0 {
            let place = &mut self.fields.get_or_insert_default().place;
            place.get_or_insert_with(|| (line, column, word.to_owned()));
        }
        self
    }

    /// Forgets the place: it is one of another text than the client's.
    pub(crate) fn elsewhere(mut self) -> Self {
        self.fields.iter_mut().for_each(|fields| fields.place = None);
        self
    }

    /// Makes of its place a position in the text of the client.
    pub(crate) fn located(mut self, text: &str) -> Self {
        if let Some(fields) = &mut self.fields
            && let Some((line, column, word)) = fields.place.take()
        {
            let start = offset_of(text, Location { line, column });
            let rest = text[start..].to_ascii_lowercase();
            let place = start + rest.find(&word.to_ascii_lowercase()).unwrap_or(0);
            fields.position = Some(text[..place].chars().count() + 1);
        }
        self
    }

    /// The error for a change in a transaction that reads only.
    pub(crate) fn read_only(what: &str) -> Self {
        Self::new("25006", format!("cannot execute {what} in a read-only transaction"))
    }

    /// The error for something that is not built.
    pub(crate) fn unsupported(what: impl fmt::Display) -> Self {
        Self::new(code::FEATURE_NOT_SUPPORTED, format!("{what} is not supported"))
    }
}

/// Returns the bytes of a text before a place.
pub(crate) fn offset_of(text: &str, place: Location) -> usize {
    let lines = text.split_inclusive('\n').take(place.line.saturating_sub(1) as usize);
    let start = lines.map(str::len).sum::<usize>();
    let mut chars = text[start..].char_indices().skip(place.column.saturating_sub(1) as usize);
    chars.next().map_or(text.len(), |(at, _)| start + at)
}

/// Adds the place in the text to an error.
pub(crate) trait At {
    /// The error is about this part of a statement.
    fn at(self, of: &impl Spanned) -> Self;
}

impl<T> At for Result<T> {
    fn at(self, of: &impl Spanned) -> Self {
        self.map_err(|error| error.at(of.span().start))
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)
    }
}

impl std::error::Error for SqlError {}

impl From<StoreError> for SqlError {
    fn from(error: StoreError) -> Self {
        let code = match &error {
            StoreError::Serialization => {
                let message = "could not serialize access due to concurrent update";
                return Self::new(code::SERIALIZATION_FAILURE, message);
            }
            StoreError::Deadlock => return Self::new(code::DEADLOCK_DETECTED, "deadlock detected"),
            StoreError::LockTimeout => code::LOCK_NOT_AVAILABLE,
            StoreError::Full => code::DISK_FULL,
            StoreError::TooLong { .. } | StoreError::TooManySavepoints => code::PROGRAM_LIMIT,
            StoreError::NoMember => code::ADMIN_SHUTDOWN,
            StoreError::Damaged { .. }
            | StoreError::NotAStore(_)
            | StoreError::Cache(CacheError::Damaged(_)) => code::DATA_CORRUPTED,
            StoreError::Cache(CacheError::Unreadable(_)) => code::IO_ERROR,
            StoreError::Cache(_) => code::SYSTEM_ERROR,
        };
        Self::new(code, error.to_string())
    }
}
