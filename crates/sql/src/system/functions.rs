//! The functions of the catalogs.

use std::rc::Rc;

use super::{
    Snapshot, acl, constraints, describe, names,
    snapshot::{Relation, RelationOf},
    types,
};
use crate::{
    error::{Result, error},
    functions::{Call, Declared, function, names::quoted_name, ok},
    types::{Type, Value},
};

/// The functions that show definitions, for the table of all functions.
pub(crate) static SYSTEM: &[Declared] = &[
    function("acldefault(char, oid) _text stable", acl_default),
    function("format_type(oid!, int4) text stable null", format_type),
    function(
        "pg_collation_is_visible pg_function_is_visible pg_opclass_is_visible pg_operator_is_visible pg_opfamily_is_visible(oid) bool stable",
        |_| ok(true),
    ),
    function(
        "pg_conversion_is_visible pg_statistics_obj_is_visible pg_ts_config_is_visible pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible(oid) bool; \
         pg_get_function_arg_default(oid, int4) text; \
         pg_get_function_arguments pg_get_function_identity_arguments pg_get_function_result pg_get_function_sqlbody pg_get_functiondef pg_get_partition_constraintdef pg_get_partkeydef pg_get_statisticsobjdef pg_get_statisticsobjdef_columns(oid) text; \
         pg_get_replica_identity_index(regclass) regclass; \
         pg_get_ruledef pg_get_triggerdef(oid, [bool]) text; pg_stat_get_numscans(oid) int8; \
         shobj_description(oid, name) text stable",
        none,
    ),
    function("pg_get_constraintdef(oid, [bool]) text stable", constraint_definition),
    function("pg_get_expr(text, oid, [bool]) text stable", |call| ok(call.text(0))),
    function("pg_get_indexdef(oid) text; pg_get_indexdef(oid, int4, bool) text stable", index_definition),
    function("pg_get_serial_sequence(text, text) text stable", serial_sequence),
    function("pg_get_userbyid(oid) name stable", user_by_id),
    function("pg_get_viewdef(oid, [bool]) text stable", view_definition),
    function(
        "pg_indexes_size pg_sequence_last_value pg_table_size pg_total_relation_size(regclass) int8; \
         pg_relation_size(regclass, [text]) int8; pg_tablespace_size(oid) int8 volatile",
        none,
    ),
    function("pg_relation_is_publishable(regclass) bool stable", |_| ok(false)),
    function("pg_table_is_visible(oid) bool stable", table_is_visible),
    function("pg_tablespace_location(oid) text stable", |_| ok("")),
    function("pg_type_is_visible(oid) bool stable", type_is_visible),
    function(
        "to_regclass(text) regclass; to_regnamespace(text) regnamespace; to_regproc(text) regproc; \
         to_regrole(text) regrole; to_regtype(text) regtype stable",
        |call| ok(names::find(call.context, call.text(0), call.result)?),
    ),
];

fn none(_: &Call<'_>) -> Result<Value> {
    Ok(Value::Null)
}

/// Returns the definitions.
fn definitions(call: &Call<'_>) -> Result<Rc<Snapshot>> {
    call.context.definitions.get()
}

/// Returns the argument as the number of an object.
fn oid(call: &Call<'_>) -> u32 {
    u32::try_from(call.int(0)).unwrap_or(0)
}

fn format_type(call: &Call<'_>) -> Result<Value> {
    let modifier = (!call.is_null(1)).then(|| call.int(1) as i32);
    let known = describe::format_type(oid(call), modifier);
    if known != "???" {
        return ok(known);
    }
    let snapshot = definitions(call)?;
    ok(describe::type_name(&snapshot, &snapshot.path(call.context), oid(call), modifier))
}

fn constraint_definition(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let found = constraints::find(&snapshot, oid(call));
    let path = snapshot.path(call.context);
    let is_pretty = call.count() > 1 && call.bool(1);
    if let Some((.., condition)) = snapshot.domain_checks().find(|(number, ..)| *number == oid(call)) {
        let condition = if is_pretty { condition.to_owned() } else { describe::nested(condition) };
        return ok(format!("CHECK ({condition})"));
    }
    ok(found.map(|of| describe::constraint(&snapshot, &path, &of, is_pretty)))
}

fn index_definition(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let Some(key) = snapshot.relation(oid(call)).and_then(Relation::key) else { return Ok(Value::Null) };
    match call.int(1) {
        0 => ok(describe::index(&snapshot, &snapshot.path(call.context), &key)),
        // PostgreSQL has no column of this number, and returns the empty text.
        number => ok(describe::index_column(&key, number).unwrap_or_default()),
    }
}

fn view_definition(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let path = snapshot.path(call.context);
    let shown = |text: &str, uses| ok(format!(" {};", describe::query_text(&snapshot, &path, text, uses)));
    match snapshot.relation(oid(call)).map(|relation| &relation.of) {
        Some(RelationOf::View(view)) => shown(&view.text, &view.uses),
        Some(RelationOf::Table(table)) => match &table.materialized {
            Some(view) => shown(&view.text, &view.uses),
            None => Ok(Value::Null),
        },
        Some(RelationOf::System(table)) => {
            ok(super::find_view(Some(table.schema), table.name).map(|view| view.text.clone()))
        }
        _ => Ok(Value::Null),
    }
}

fn user_by_id(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let number = oid(call);
    ok(snapshot.role_name(number).map_or_else(|| format!("unknown (OID={number})"), str::to_owned))
}

fn table_is_visible(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let path = snapshot.path(call.context);
    ok(snapshot.relation(oid(call)).map(|relation| snapshot.is_visible(&path, relation)))
}

fn type_is_visible(call: &Call<'_>) -> Result<Value> {
    if types::is_known(oid(call)) {
        return ok(true);
    }
    let snapshot = definitions(call)?;
    let path = snapshot.path(call.context);
    ok(snapshot.named_type(oid(call)).map(|of| snapshot.find_type(&path, &of.name) == Some(of)))
}

/// Returns the name of the sequence that belongs to a column.
fn serial_sequence(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let undefined = || crate::catalog::undefined(call.text(0));
    let number = names::find(call.context, call.text(0), Type::Regclass)?.ok_or_else(undefined)?;
    let relation = snapshot.relation(number).ok_or_else(undefined)?;
    let RelationOf::Table(table) = &relation.of else { return Ok(Value::Null) };
    let column = table.columns.iter().find(|column| column.name == call.text(1)).ok_or_else(|| {
        error!(UNDEFINED_COLUMN, "column \"{}\" of relation \"{}\" does not exist", call.text(1), table.name)
    })?;
    let sequence = column.own_sequence.as_ref().and_then(|name| snapshot.sequence(name));
    ok(sequence.map(|sequence| {
        let schema = snapshot.schema_name(sequence.schema).unwrap_or_default();
        format!("{}.{}", quoted_name(schema), quoted_name(&sequence.name))
    }))
}

/// Returns the rights to an object before any statement has changed them.
fn acl_default(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let owner = call.int(1);
    let name = u32::try_from(owner).ok().and_then(|owner| snapshot.role_name(owner));
    let name = name.map_or_else(|| owner.to_string(), str::to_owned);
    let all = acl::default(&name, call.text(0))
        .ok_or_else(|| error!(SYSTEM_ERROR, "unrecognized objtype abbreviation: {}", call.text(0)))?;
    ok(all.into_iter().map(Value::from).collect::<Vec<_>>())
}
