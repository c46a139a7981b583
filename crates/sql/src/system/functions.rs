//! The functions of the catalogs.

use std::rc::Rc;

use super::{
    Snapshot, acl, comments, constraints, describe, names,
    snapshot::{Relation, RelationOf},
    types,
};
use crate::{
    error::{Result, SqlError, code},
    functions::{
        BOOL, Call, DeclaredType, Function, INT4, INT8, NAME, OID, REGCLASS, REGTYPE, TEXT, TEXTS, function,
        names::quoted_name, ok,
    },
    types::{Type, Value},
};

const REGPROC: DeclaredType = DeclaredType::Is(Type::Regproc);
const REGNAMESPACE: DeclaredType = DeclaredType::Is(Type::Regnamespace);
const REGROLE: DeclaredType = DeclaredType::Is(Type::Regrole);
const ONE_BYTE: DeclaredType = DeclaredType::Is(Type::OneByte);

/// The functions that show definitions, for the table of all functions.
pub(crate) static SYSTEM: &[Function] = &[
    function("_pg_char_max_length", &[OID, INT4], INT4, |call| limit(call, Limit::Characters)),
    function("_pg_char_octet_length", &[OID, INT4], INT4, |call| limit(call, Limit::Bytes)),
    function("_pg_datetime_precision", &[OID, INT4], INT4, |call| limit(call, Limit::Seconds)),
    function("_pg_numeric_precision", &[OID, INT4], INT4, |call| limit(call, Limit::Digits)),
    function("_pg_numeric_precision_radix", &[OID, INT4], INT4, |call| limit(call, Limit::Radix)),
    function("_pg_numeric_scale", &[OID, INT4], INT4, |call| limit(call, Limit::Scale)),
    function("acldefault", &[ONE_BYTE, OID], TEXTS, acl_default).stable(),
    function("col_description", &[OID, INT4], TEXT, column_comment).stable(),
    function("format_type", &[OID, INT4], TEXT, format_type).stable().takes_null(),
    function("obj_description", &[OID, NAME], TEXT, comment).stable().optional(1),
    function("pg_char_to_encoding", &[NAME], INT4, char_to_encoding).stable(),
    function("pg_collation_is_visible", &[OID], BOOL, |_| ok(true)).stable(),
    function("pg_conversion_is_visible", &[OID], BOOL, none).stable(),
    function("pg_encoding_to_char", &[INT4], NAME, encoding_to_char).stable(),
    function("pg_function_is_visible", &[OID], BOOL, |_| ok(true)).stable(),
    function("pg_get_constraintdef", &[OID, BOOL], TEXT, constraint_definition).stable().optional(1),
    function("pg_get_expr", &[TEXT, OID, BOOL], TEXT, |call| ok(call.text(0))).stable().optional(1),
    function("pg_get_function_arg_default", &[OID, INT4], TEXT, none).stable(),
    function("pg_get_function_arguments", &[OID], TEXT, none).stable(),
    function("pg_get_function_identity_arguments", &[OID], TEXT, none).stable(),
    function("pg_get_function_result", &[OID], TEXT, none).stable(),
    function("pg_get_function_sqlbody", &[OID], TEXT, none).stable(),
    function("pg_get_functiondef", &[OID], TEXT, none).stable(),
    function("pg_get_indexdef", &[OID], TEXT, index_definition).stable(),
    function("pg_get_indexdef", &[OID, INT4, BOOL], TEXT, index_definition).stable(),
    function("pg_get_partition_constraintdef", &[OID], TEXT, none).stable(),
    function("pg_get_partkeydef", &[OID], TEXT, none).stable(),
    function("pg_get_replica_identity_index", &[REGCLASS], REGCLASS, none).stable(),
    function("pg_get_ruledef", &[OID, BOOL], TEXT, none).stable().optional(1),
    function("pg_get_serial_sequence", &[TEXT, TEXT], TEXT, serial_sequence).stable(),
    function("pg_get_statisticsobjdef", &[OID], TEXT, none).stable(),
    function("pg_get_statisticsobjdef_columns", &[OID], TEXT, none).stable(),
    function("pg_get_triggerdef", &[OID, BOOL], TEXT, none).stable().optional(1),
    function("pg_get_userbyid", &[OID], NAME, user_by_id).stable(),
    function("pg_get_viewdef", &[OID, BOOL], TEXT, view_definition).stable().optional(1),
    function("pg_index_column_has_property", &[REGCLASS, INT4, TEXT], BOOL, index_column_property).stable(),
    function("pg_index_has_property", &[REGCLASS, TEXT], BOOL, index_property).stable(),
    function("pg_indexam_has_property", &[OID, TEXT], BOOL, access_property).stable(),
    function("pg_indexes_size", &[REGCLASS], INT8, none).volatile(),
    function("pg_opclass_is_visible", &[OID], BOOL, |_| ok(true)).stable(),
    function("pg_operator_is_visible", &[OID], BOOL, |_| ok(true)).stable(),
    function("pg_opfamily_is_visible", &[OID], BOOL, |_| ok(true)).stable(),
    function("pg_relation_filenode", &[REGCLASS], OID, file_node).stable(),
    function("pg_relation_is_publishable", &[REGCLASS], BOOL, |_| ok(false)).stable(),
    // The blocks of a relation are not counted.
    function("pg_relation_size", &[REGCLASS, TEXT], INT8, none).volatile().optional(1),
    function("pg_sequence_last_value", &[REGCLASS], INT8, none).volatile(),
    function("pg_stat_get_numscans", &[OID], INT8, none).stable(),
    function("pg_statistics_obj_is_visible", &[OID], BOOL, none).stable(),
    function("pg_table_is_visible", &[OID], BOOL, table_is_visible).stable(),
    function("pg_table_size", &[REGCLASS], INT8, none).volatile(),
    function("pg_tablespace_location", &[OID], TEXT, |_| ok("")).stable(),
    function("pg_tablespace_size", &[OID], INT8, none).volatile(),
    function("pg_total_relation_size", &[REGCLASS], INT8, none).volatile(),
    function("pg_ts_config_is_visible", &[OID], BOOL, none).stable(),
    function("pg_ts_dict_is_visible", &[OID], BOOL, none).stable(),
    function("pg_ts_parser_is_visible", &[OID], BOOL, none).stable(),
    function("pg_ts_template_is_visible", &[OID], BOOL, none).stable(),
    function("pg_type_is_visible", &[OID], BOOL, type_is_visible).stable(),
    function("shobj_description", &[OID, NAME], TEXT, none).stable(),
    function("to_regclass", &[TEXT], REGCLASS, |call| to_name(call, Type::Regclass)).stable(),
    function("to_regnamespace", &[TEXT], REGNAMESPACE, |call| to_name(call, Type::Regnamespace)).stable(),
    function("to_regproc", &[TEXT], REGPROC, |call| to_name(call, Type::Regproc)).stable(),
    function("to_regrole", &[TEXT], REGROLE, |call| to_name(call, Type::Regrole)).stable(),
    function("to_regtype", &[TEXT], REGTYPE, |call| to_name(call, Type::Regtype)).stable(),
];

/// A limit of a type, as `information_schema` shows it.
enum Limit {
    Characters,
    Bytes,
    Digits,
    Radix,
    Scale,
    /// The digits of fractions of a second.
    Seconds,
}

/// Returns a limit of the type with a number and an encoded limit.
fn limit(call: &Call<'_>, wanted: Limit) -> Result<Value> {
    let Some(of) = Type::of_oid(oid(call)) else { return Ok(Value::Null) };
    let encoded = i32::try_from(call.int(1)).ok().filter(|encoded| *encoded >= 4).map(|encoded| encoded - 4);
    let is_limited = matches!(of, Type::Char(_) | Type::Varchar(_));
    let characters = encoded.filter(|_| is_limited);
    let is_numeric = matches!(of, Type::Numeric(_));
    let found = match wanted {
        Limit::Characters => characters,
        Limit::Bytes if is_limited || of == Type::Text => {
            Some(characters.map_or(1 << 30, |count| count.saturating_mul(4)))
        }
        Limit::Digits => match of {
            Type::Int2 => Some(16),
            Type::Int4 => Some(32),
            Type::Int8 => Some(64),
            Type::Float4 => Some(24),
            Type::Float8 => Some(53),
            _ => encoded.filter(|_| is_numeric).map(|encoded| encoded >> 16),
        },
        Limit::Radix if is_numeric => Some(10),
        Limit::Radix if of.is_number() => Some(2),
        Limit::Scale if of.is_integer() => Some(0),
        Limit::Scale => encoded.filter(|_| is_numeric).map(|encoded| encoded & 0x7ff),
        Limit::Seconds => match of {
            Type::Date => Some(0),
            Type::TimeOfDay | Type::TimeTz | Type::Timestamp | Type::TimestampTz | Type::Interval => Some(6),
            _ => None,
        },
        Limit::Bytes | Limit::Radix => None,
    };
    ok(found)
}

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

fn to_name(call: &Call<'_>, of: Type) -> Result<Value> {
    let found = names::find(call.context, call.text(0), of)?;
    ok(found)
}

fn format_type(call: &Call<'_>) -> Result<Value> {
    if call.is_null(0) {
        return Ok(Value::Null);
    }
    let modifier = (!call.is_null(1)).then(|| call.int(1) as i32);
    ok(describe::format_type(oid(call), modifier))
}

fn char_to_encoding(call: &Call<'_>) -> Result<Value> {
    let name: String = call.text(0).to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    ok(match name.as_str() {
        "sqlascii" => 0,
        "utf8" | "unicode" => super::cluster::UTF8,
        "latin1" | "iso88591" => 8,
        _ => -1,
    })
}

fn encoding_to_char(call: &Call<'_>) -> Result<Value> {
    ok(match call.int(0) {
        0 => "SQL_ASCII",
        6 => "UTF8",
        8 => "LATIN1",
        _ => "",
    })
}

fn constraint_definition(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let found = constraints::find(&snapshot, oid(call));
    let path = snapshot.path(call.context);
    let is_pretty = call.count() > 1 && call.bool(1);
    ok(found.map(|of| describe::constraint(&snapshot, &path, &of, is_pretty)))
}

fn index_definition(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let Some(key) = snapshot.relation(oid(call)).and_then(Relation::key) else { return Ok(Value::Null) };
    match call.int(1) {
        0 => ok(describe::index(&snapshot, &key)),
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
    let name = snapshot.roles.iter().find(|(known, ..)| *known == number).map(|(_, name, _)| name.clone());
    ok(name.unwrap_or_else(|| format!("unknown (OID={number})")))
}

fn table_is_visible(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let path = snapshot.path(call.context);
    ok(snapshot.relation(oid(call)).map(|relation| snapshot.is_visible(&path, relation)))
}

fn type_is_visible(call: &Call<'_>) -> Result<Value> {
    ok(types::is_known(oid(call)).then_some(true))
}

fn file_node(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let relation = snapshot.relation(oid(call)).filter(|relation| !relation.is_system());
    ok(relation.map(|relation| relation.oid))
}

/// Returns the name of the sequence that belongs to a column.
fn serial_sequence(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let undefined = || crate::catalog::undefined(call.text(0));
    let number = names::find(call.context, call.text(0), Type::Regclass)?.ok_or_else(undefined)?;
    let relation = snapshot.relation(number).ok_or_else(undefined)?;
    let RelationOf::Table(table) = &relation.of else { return Ok(Value::Null) };
    let column = table.columns.iter().find(|column| column.name == call.text(1)).ok_or_else(|| {
        let message = format!("column \"{}\" of relation \"{}\" does not exist", call.text(1), table.name);
        SqlError::new(code::UNDEFINED_COLUMN, message)
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
    let name = snapshot.roles.iter().find(|(known, ..)| i64::from(*known) == owner);
    let name = name.map_or_else(|| owner.to_string(), |(_, name, _)| name.clone());
    let all = acl::default(&name, call.text(0)).ok_or_else(|| {
        SqlError::new(code::SYSTEM_ERROR, format!("unrecognized objtype abbreviation: {}", call.text(0)))
    })?;
    ok(all.into_iter().map(Value::from).collect::<Vec<_>>())
}

/// Returns the comment on an object of a table of the catalog, or of any of them.
fn comment(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let class = match call.count() {
        1 => None,
        _ => match snapshot.find(super::relations::PG_CATALOG, call.text(1)) {
            Some(class) => Some(class.oid),
            None => return Ok(Value::Null),
        },
    };
    let all = comments::of(&snapshot, oid(call), 0);
    let is_it = |(of, _): &&(u32, String)| class.is_none_or(|class| class == *of);
    ok(all.iter().find(is_it).map(|(_, text)| text.clone()))
}

fn column_comment(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let column = usize::try_from(call.int(1)).unwrap_or_default();
    let all = comments::of(&snapshot, oid(call), column);
    ok(all.first().filter(|_| column != 0).map(|(_, text)| text.clone()))
}

fn access_property(call: &Call<'_>) -> Result<Value> {
    let is_btree = oid(call) == 403;
    ok(Some(call.text(1)).filter(|_| is_btree).and_then(|property| match property {
        "can_order" | "can_unique" | "can_multi_col" => Some(true),
        // An index has no other columns, and there are no exclusion constraints.
        "can_exclude" | "can_include" => Some(false),
        _ => None,
    }))
}

fn index_property(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let is_index = snapshot.relation(oid(call)).is_some_and(|relation| relation.key().is_some());
    ok(Some(call.text(1)).filter(|_| is_index).and_then(|property| match property {
        "index_scan" => Some(true),
        "clusterable" | "bitmap_scan" | "backward_scan" => Some(false),
        _ => None,
    }))
}

fn index_column_property(call: &Call<'_>) -> Result<Value> {
    let snapshot = definitions(call)?;
    let key = snapshot.relation(oid(call)).and_then(Relation::key);
    let is_column = key.is_some_and(|key| (1..=key.parts.len() as i64).contains(&call.int(1)));
    ok(Some(call.text(2)).filter(|_| is_column).and_then(|property| match property {
        "asc" | "nulls_last" | "orderable" | "search_nulls" | "search_array" | "returnable" => Some(true),
        "desc" | "nulls_first" | "distance_orderable" => Some(false),
        _ => None,
    }))
}
