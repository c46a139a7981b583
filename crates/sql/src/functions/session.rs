//! Functions about the session and the system (chapter 9.26 of PostgreSQL's manual).

use super::{
    ANY, BOOL, Call, Function, INT4, INT8, NAME, TEXT, function, ok,
};
use crate::{
    error::Result,
    types::Value,
};

pub(super) static FUNCTIONS: &[Function] = &[
    function("current_database", &[], NAME, |call| ok(&*call.context.database)).stable(),
    function("current_schema", &[], NAME, |_| ok("public")).stable(),
    function("current_user", &[], NAME, |call| ok(&*call.context.user)).stable(),
    function("lastval", &[], INT8, |call| call.context.sequences.last().map(Value::Int)).volatile(),
    function("pg_backend_pid", &[], INT4, |call| ok(call.context.process)).stable(),
    function("pg_is_in_recovery", &[], BOOL, |_| ok(false)).volatile(),
    function("session_user", &[], NAME, |call| ok(&*call.context.user)).stable(),
    function("version", &[], TEXT, |_| ok(VERSION)).stable(),
];

/// The text of `version()`.
const VERSION: &str = concat!("Plexus ", env!("CARGO_PKG_VERSION"), ", compatible with PostgreSQL 15.0");
