//! Rows for what all databases share, and for schemas: `pg_authid`,
//! `pg_database`, `pg_namespace`.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::{
    Snapshot, acl,
    rows::row,
    snapshot::{FIRST_ROLE, PUBLIC, SchemaOf},
};
use crate::{
    activity::SessionInfo,
    catalog::{Grant, Privilege},
    functions::Context,
    statements::StatementInfo,
    types::{
        Interval, Value,
        time::{self, SECOND},
        zone::Zone,
    },
};

/// Makes the rows of `pg_authid`. Passwords are not shown.
pub(super) fn roles(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let row = |(oid, name, role): &(u32, String, crate::roles::Role)| {
        let has_all = *oid == FIRST_ROLE;
        let most_sessions = role.most_sessions.map_or(-1, |most| most as i32);
        row![
            [*oid, name, role.is_superuser, role.creates_roles, role.creates_databases],
            [role.can_login, has_all, has_all, most_sessions],
        ]
    };
    snapshot.roles.iter().map(row).collect()
}

/// Makes the rows of `pg_stat_activity`: the sessions of all nodes, without a part of those of
/// other roles.
pub(super) fn activity(snapshot: &Snapshot, context: &Context) -> Vec<Vec<Value>> {
    let row = |session: SessionInfo| {
        let begun = |seconds: f64| Value::Time(time::now() - (seconds * SECOND as f64) as i64);
        let is_shown = context.place.is_superuser || session.user == context.user;
        let show = |value: Value| if is_shown { value } else { Value::Null };
        let (since, is_active) = (begun(session.seconds), session.state == "active");
        let waits = session.waits_for.as_ref().map(|_| "Lock");
        let statement_since = if is_active { since.clone() } else { Value::Null };
        let statement = if is_shown { &session.statement } else { "<insufficient privilege>" };
        row![
            [snapshot.database_oid(&session.database), &session.database, session.id],
            [snapshot.role(&session.user), &session.user, &session.application],
            [
                show(session.transaction_seconds.map_or(Value::Null, begun)),
                show(statement_since),
                show(since)
            ],
            [show(waits.into()), show(session.waits_for.as_deref().into()), show(session.state.into())],
            [statement, "client backend"],
        ]
    };
    context.sessions.take().into_iter().map(row).collect()
}

/// Makes the rows of `pg_stat_statements`: the counts of all nodes together, since the start of
/// each, without the texts of other roles.
pub(super) fn statements(snapshot: &Snapshot, context: &Context) -> Vec<Vec<Value>> {
    let row = |info: StatementInfo| {
        let StatementInfo { user, database, statement, calls, rows, total_ms, .. } = &info;
        let is_shown = context.place.is_superuser || *user == context.user;
        let mean = total_ms / (*calls).max(1) as f64;
        let variance = info.squares_ms / (*calls).max(1) as f64 - mean * mean;
        let mut number = DefaultHasher::new();
        statement.hash(&mut number);
        let number = is_shown.then(|| number.finish() as i64);
        let statement = if is_shown { statement } else { "<insufficient privilege>" };
        row![
            [snapshot.role(user), snapshot.database_oid(database), number, statement],
            [*calls as i64, *total_ms, info.least_ms, info.most_ms, mean, variance.max(0.0).sqrt()],
            [*rows as i64],
        ]
    };
    context.sessions.statements.take().into_iter().map(row).collect()
}

/// Makes the rows of `pg_settings`. Descriptions and limits are not known.
pub(super) fn settings(_: &Snapshot, context: &Context) -> Vec<Vec<Value>> {
    let row = |(name, value, first, can_change): (&'static str, String, &'static str, bool)| {
        let (kind, source) = match (can_change, value == first) {
            (false, _) => ("internal", "default"),
            (true, true) => ("user", "default"),
            (true, false) => ("user", "session"),
        };
        row![name, value, kind, source, first, first]
    };
    context.settings.borrow().all().map(row).collect()
}

/// Makes the rows of `pg_timezone_names`.
pub(super) fn zones(_: &Snapshot, context: &Context) -> Vec<Vec<Value>> {
    let row = |name: String| {
        let (zone, _) = Zone::named(&name)?;
        let (abbreviation, is_summer) = zone.abbreviation(context.begun);
        Some(row![name, abbreviation, span(zone.offset_at(context.begun)), is_summer])
    };
    Zone::names().filter_map(row).collect()
}

/// Makes the rows of `pg_timezone_abbrevs`.
pub(super) fn abbreviations(_: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    Zone::abbreviations().map(|(name, east, is_summer)| row![name, span(east), is_summer]).collect()
}

fn span(seconds: i64) -> Value {
    Value::Interval(Interval { microseconds: seconds * SECOND, ..Interval::default() })
}

/// Makes the rows of `pg_database`.
pub(super) fn databases(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    snapshot.databases.iter().map(|(oid, name)| row![*oid, name]).collect()
}

/// Makes the rows of `pg_namespace`.
pub(super) fn schemas(snapshot: &Snapshot, _: &Context) -> Vec<Vec<Value>> {
    let row = |schema: &SchemaOf| {
        let public = || {
            let owner = "pg_database_owner";
            let grant = Grant { role: None, privilege: Privilege::Usage, can_grant: false, by: owner.into() };
            (schema.oid == PUBLIC).then(|| acl::of(owner, "n", &[grant]))
        };
        let acl = schema.of.as_ref().map(|of| acl::of(&of.owner, "n", &of.grants)).or_else(public);
        row![schema.oid, &schema.name, schema.owner, acl]
    };
    snapshot.schemas.iter().map(row).collect()
}
