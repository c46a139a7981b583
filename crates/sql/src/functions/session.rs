//! Functions about the session and the system (chapters 9.26 and 9.27 of PostgreSQL's manual).

use std::sync::OnceLock;

use super::{Call, Declared, function, invalid_parameter, ok, precise};
use crate::{
    catalog::{Grant, Schema, SessionPlace, undefined_schema},
    error::{Result, SqlError, code},
    system,
    types::{Type, Value, numeric::Numeric, time},
};

pub(super) static FUNCTIONS: &[Declared] = &[
    function("current_database() name stable", |call| ok(&*call.context.database)),
    function("current_schema() name stable", |call| {
        Ok(schemas(call, false)?.into_iter().next().unwrap_or(Value::Null))
    }),
    function("current_schemas(bool) _name stable", |call| ok(schemas(call, call.bool(0))?)),
    function("current_setting(text, [bool]) text stable", current_setting),
    function("current_user session_user() name stable", |call| ok(&*call.context.user)),
    function("getdatabaseencoding pg_client_encoding() name stable", |_| ok("UTF8")),
    function(
        "inet_client_addr inet_server_addr() text; inet_client_port inet_server_port() int4 stable null",
        |_| Ok(Value::Null),
    ),
    function("lastval() int8 volatile", |call| call.context.sequences.last().map(Value::Int)),
    function("pg_backend_pid() int4 stable", |call| ok(call.context.process)),
    function("pg_conf_load_time pg_postmaster_start_time() timestamptz stable", |_| {
        Ok(Value::Time(start_time()))
    }),
    function("pg_is_in_recovery pg_jit_available() bool volatile", |_| ok(false)),
    function("pg_is_other_temp_schema(oid) bool; row_security_active(text) bool stable", |_| ok(false)),
    function("pg_my_temp_schema() oid; pg_trigger_depth() int4 stable", |_| ok(0i64)),
    function("pg_size_bytes(text) int8", size_bytes),
    function("pg_size_pretty(int8) text", |call| ok(size_pretty(call.int(0).into()))),
    function("pg_size_pretty(numeric) text", |call| {
        ok(size_pretty(precise::round(call.numeric(0), 0)?.digits))
    }),
    function("pg_notify(text, text) void volatile null", |call| {
        call.context.notifications.notify(call.text(0), call.text(1))?;
        ok("")
    }),
    function("pg_typeof(any) regtype stable null", |call| ok(i64::from(call.types[0].oid()))),
    function("set_config(text, text, bool) text volatile null", set_config),
    function("txid_current() int8 stable", |_| Err(SqlError::unsupported("txid_current"))),
    function("version() text stable", |_| ok(VERSION)),
    function(
        "has_any_column_privilege has_table_privilege(text, text) bool; \
         has_column_privilege(text, text, text) bool; \
         has_table_privilege(name, text, text) bool; (oid, text) bool stable",
        |call| table_right(call, TABLE),
    ),
    function(
        "has_database_privilege(name, text, text) bool; \
         (oid/text, text) bool stable",
        |call| right(call, DATABASE, "CREATE"),
    ),
    function("has_function_privilege(oid/text, text) bool stable", |call| right(call, &["EXECUTE"], "")),
    function("has_language_privilege has_type_privilege(text, text) bool stable", |call| {
        right(call, &["USAGE"], "")
    }),
    function("has_schema_privilege(name, text, text) bool; (oid/text, text) bool stable", schema_right),
    function("has_sequence_privilege(text, text) bool stable", |call| table_right(call, SEQUENCE)),
    function("has_tablespace_privilege(text, text) bool stable", |call| right(call, &["CREATE"], "CREATE")),
];

/// The text of `version()`.
const VERSION: &str = concat!("Plexus ", env!("CARGO_PKG_VERSION"), ", compatible with PostgreSQL 15.0");

// The privileges on objects.
const DATABASE: &[&str] = &["CONNECT", "CREATE", "TEMP", "TEMPORARY"];
const SCHEMA: &[&str] = &["CREATE", "USAGE"];
const SEQUENCE: &[&str] = &["SELECT", "UPDATE", "USAGE"];
const TABLE: &[&str] = &["DELETE", "INSERT", "REFERENCES", "SELECT", "TRIGGER", "TRUNCATE", "UPDATE"];

/// Returns the moment when the process began to serve, or was first asked.
pub(crate) fn start_time() -> i64 {
    static STARTED: OnceLock<i64> = OnceLock::new();
    *STARTED.get_or_init(time::now)
}

/// Returns the schemas of the search path that there are.
fn schemas(call: &Call<'_>, with_implicit: bool) -> Result<Vec<Value>> {
    let definitions = call.context.definitions.get()?;
    let setting = call.context.settings.borrow().show("search_path")?;
    let names_system = setting.split(',').any(|name| name.trim().trim_matches('"') == "pg_catalog");
    let path = definitions.path(call.context);
    let named = path.iter().filter_map(|schema| definitions.schema_name(*schema));
    let is_implicit = |name: &str| name.starts_with("pg_temp_") || !names_system && name == "pg_catalog";
    let shown = named.filter(|name| with_implicit || !is_implicit(name));
    Ok(shown.map(Value::from).collect())
}

fn current_setting(call: &Call<'_>) -> Result<Value> {
    match call.context.settings.borrow().show(call.text(0)) {
        Err(error) if call.bool(1) && error.code == code::UNDEFINED_OBJECT => Ok(Value::Null),
        shown => shown.map(Value::Text),
    }
}

fn set_config(call: &Call<'_>) -> Result<Value> {
    if call.is_null(0) {
        return Err(SqlError::new("22004", "SET requires parameter name"));
    }
    let (name, mut settings) = (call.text(0), call.context.settings.borrow_mut());
    match call.is_null(1) {
        true => settings.reset(name, call.bool(2))?,
        false => settings.set_for(name, call.text(1), call.bool(2))?,
    }
    settings.show(name).map(Value::Text)
}

/// Returns the privileges of a list, which must be some of these.
fn privileges(list: &str, known: &[&str]) -> Result<Vec<String>> {
    let read = |one: &str| {
        let upper = one.trim().to_ascii_uppercase();
        let plain = upper.strip_suffix(" WITH GRANT OPTION").unwrap_or(&upper).to_owned();
        match known.contains(&plain.as_str()) {
            true => Ok(plain),
            false => Err(invalid_parameter(format!("unrecognized privilege type: \"{}\"", one.trim()))),
        }
    };
    list.split(',').map(read).collect()
}

/// Returns the place of the object among the arguments, and the privileges that are asked for. A
/// question about another role is refused: the session knows only its own.
fn question(call: &Call<'_>, known: &[&str]) -> Result<(usize, Vec<String>)> {
    let is_named = call.types[0] == Type::Name;
    if is_named && call.text(0) != call.context.user {
        return Err(SqlError::unsupported("a privilege of another role"));
    }
    Ok((usize::from(is_named), privileges(call.text(call.count() - 1), known)?))
}

/// Returns whether the role has one of the privileges; all roles have all but one of them.
fn right(call: &Call<'_>, known: &[&str], of_superusers: &str) -> Result<Value> {
    let (_, asked) = question(call, known)?;
    ok(call.context.place.is_superuser || asked.iter().any(|one| one != of_superusers))
}

/// Returns whether the role has a privilege on a relation: it is a superuser or the owner.
fn table_right(call: &Call<'_>, known: &[&str]) -> Result<Value> {
    let (at, asked) = question(call, known)?;
    let definitions = call.context.definitions.get()?;
    let place = &call.context.place;
    let oid = match &call.values[at] {
        Value::Int(oid) => u32::try_from(*oid).ok(),
        _ => Some(system::number_of(call.context, call.text(at), Type::Regclass)?),
    };
    let Some(relation) = oid.and_then(|oid| definitions.relation(oid)) else { return Ok(Value::Null) };
    ok(relation.owner().is_none_or(|owner| place.is(owner)) || is_given(relation.grants(), place, &asked))
}

fn is_given(grants: &[Grant], place: &SessionPlace, asked: &[String]) -> bool {
    let is_it = |grant: &Grant| {
        let is_own = grant.role.as_ref().is_none_or(|role| *role == place.role);
        is_own && asked.iter().any(|asked| format!("{:?}", grant.privilege).eq_ignore_ascii_case(asked))
    };
    grants.iter().any(is_it)
}

/// Returns whether the role has a privilege on a schema; all roles have those of `public`.
fn schema_right(call: &Call<'_>) -> Result<Value> {
    let (at, asked) = question(call, SCHEMA)?;
    let definitions = call.context.definitions.get()?;
    let place = &call.context.place;
    let found = match &call.values[at] {
        Value::Int(oid) => definitions.schemas.iter().find(|schema| i64::from(schema.oid) == *oid),
        _ => {
            let name = call.text(at);
            let found = definitions.schemas.iter().find(|schema| schema.name == name);
            Some(found.ok_or_else(|| undefined_schema(name))?)
        }
    };
    let Some(schema) = found else { return Ok(Value::Null) };
    let has = |schema: &Schema| place.is(&schema.owner) || is_given(&schema.grants, place, &asked);
    ok(schema.of.as_ref().is_none_or(has))
}

const UNITS: &[(&str, u32)] = &[("bytes", 0), ("kB", 10), ("MB", 20), ("GB", 30), ("TB", 40), ("PB", 50)];

/// Returns a number of bytes with the largest unit that leaves a small number, rounded.
fn size_pretty(bytes: i128) -> String {
    let last = UNITS.len() - 1;
    let divided = |shift: u32| match shift {
        0 => bytes,
        shift => {
            // Half of the unit is rounded away from zero.
            let doubled = bytes / (1i128 << (shift - 1));
            (doubled + doubled.signum()) / 2
        }
    };
    let fits = |at: usize| {
        let limit = 10 * 1024 * if at == 0 { 1 } else { 2 } - i128::from(at > 0);
        let (_, shift) = UNITS[at];
        (bytes / (1i128 << shift.saturating_sub(1))).abs() < limit
    };
    let at = (0..last).find(|at| fits(*at)).unwrap_or(last);
    let (unit, shift) = UNITS[at];
    format!("{} {unit}", divided(shift))
}

fn size_bytes(call: &Call<'_>) -> Result<Value> {
    let text = call.text(0).trim();
    let invalid = || invalid_parameter(format!("invalid size: \"{}\"", call.text(0)));
    let is_number = |char: char| char.is_ascii_digit() || matches!(char, '.' | '-' | '+' | 'e');
    let end = text.find(|char| !is_number(char)).unwrap_or(text.len());
    let number = Numeric::parse(&text[..end]).map_err(|_| invalid())?;
    let unit = text[end..].trim();
    let known = |(name, _): &&(&str, u32)| {
        name.eq_ignore_ascii_case(unit) || unit.eq_ignore_ascii_case("b") && *name == "bytes"
    };
    let shift = match unit {
        "" => 0,
        _ => UNITS.iter().find(known).ok_or_else(invalid)?.1,
    };
    let bytes = number.mul(Numeric::from_int(1i64 << shift))?;
    ok(bytes.to_int().ok_or_else(|| crate::types::out_of_range(Type::Int8))?)
}
