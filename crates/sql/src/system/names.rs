//! Types whose values are numbers of objects and are shown as names: `regclass`, `regtype`,
//! `regproc`, `regnamespace`, `regrole`.

use std::rc::Rc;

use super::{describe, procedures, snapshot::RelationOf, types};
use crate::{
    error::{Result, SqlError, code, error, fail},
    functions::{
        Context,
        names::{quoted_name, read_quoted},
    },
    sequences::Sequence,
    types::{Type, Value},
};

/// Converts a value to or from a type whose values are shown as names.
pub(crate) fn cast(value: Value, from: Type, to: Type, context: &Context) -> Result<Value> {
    match (&value, to) {
        (Value::Null, _) => Ok(Value::Null),
        (Value::Int(_), to) if !to.is_text() => value.cast(from, to, true),
        (Value::Int(oid), _) => Ok(Value::Text(name_of(*oid, from, context)?)),
        (Value::Text(name), _) => Ok(Value::Int(identifier_of(name, to, context)?)),
        _ => Err(error!(CANNOT_COERCE, "cannot cast to type {}", to.name())),
    }
}

/// Returns the name of the object with an identifier, or the identifier if there is none.
pub(crate) fn name_of(oid: i64, of: Type, context: &Context) -> Result<String> {
    let snapshot = context.definitions.get()?;
    let Ok(number) = u32::try_from(oid) else { return Ok(oid.to_string()) };
    let name = match of {
        _ if number == 0 => Some("-".into()),
        Type::Regclass => snapshot
            .relation(number)
            .map(|relation| describe::relation_name(&snapshot, &snapshot.path(context), relation)),
        Type::Regtype => Some(describe::type_name(&snapshot, &snapshot.path(context), number, None))
            .filter(|name| name != "???"),
        Type::Regproc => procedures::name_of(number).map(quoted_name),
        Type::Regnamespace => snapshot.schema_name(number).map(quoted_name),
        Type::Regrole => snapshot.role_name(number).map(quoted_name),
        _ => None,
    };
    Ok(name.unwrap_or_else(|| number.to_string()))
}

/// Returns the identifier of the object with a name.
fn identifier_of(name: &str, of: Type, context: &Context) -> Result<i64> {
    let name = name.trim();
    if name == "-" {
        return Ok(0);
    }
    if name.starts_with(|char: char| char.is_ascii_digit())
        && let Ok(number) = name.parse::<u32>()
    {
        return Ok(number.into());
    }
    find(context, name, of)?.map(i64::from).ok_or_else(|| undefined(name, of))
}

/// Returns the number of the object with a name.
pub(crate) fn number_of(context: &Context, name: &str, of: Type) -> Result<u32> {
    find(context, name, of)?.ok_or_else(|| undefined(name, of))
}

/// Returns the sequence with a number, which the role may use.
pub(crate) fn sequence(context: &Context, number: i64) -> Result<Rc<Sequence>> {
    let snapshot = context.definitions.get()?;
    let relation = u32::try_from(number).ok().and_then(|number| snapshot.relation(number));
    match relation.map(|relation| &relation.of) {
        Some(RelationOf::Sequence(sequence)) => {
            context.place.check_sequence(sequence)?;
            Ok(Rc::new(sequence.clone()))
        }
        Some(_) => {
            let name = relation.map_or("", |relation| &relation.name);
            Err(error!(WRONG_OBJECT_TYPE, "\"{name}\" is not a sequence"))
        }
        None => Err(error!(UNDEFINED_TABLE, "could not open relation with OID {number}")),
    }
}

/// Returns the number of the object with a name, if there is one.
pub(crate) fn find(context: &Context, name: &str, of: Type) -> Result<Option<u32>> {
    if of == Type::Regtype {
        return type_of(name, context);
    }
    let snapshot = context.definitions.get()?;
    let parts = split(name)?;
    let (schema, own) = match &parts[..] {
        [own] => (None, own.as_str()),
        [schema, own] => (Some(schema.as_str()), own.as_str()),
        _ => return Ok(None),
    };
    Ok(match (of, schema) {
        (Type::Regclass, None) => {
            let path = snapshot.path(context);
            let found = path.iter().find_map(|schema| snapshot.find(*schema, own));
            found.map(|relation| relation.oid)
        }
        (Type::Regclass, Some(schema)) => {
            let schema = snapshot.schema_oid(schema);
            schema.and_then(|schema| snapshot.find(schema, own)).map(|relation| relation.oid)
        }
        (Type::Regproc, None | Some("pg_catalog")) => match procedures::named(own)[..] {
            [] => None,
            [one] => Some(one),
            _ => {
                fail!("42725", "more than one function named \"{own}\"");
            }
        },
        (Type::Regnamespace, None) => snapshot.schema_oid(own),
        (Type::Regrole, None) => {
            snapshot.roles.iter().find(|(_, known, _)| known == own).map(|(oid, ..)| *oid)
        }
        _ => None,
    })
}

fn undefined(name: &str, of: Type) -> SqlError {
    let (state, what) = match of {
        Type::Regclass => (code::UNDEFINED_TABLE, "relation"),
        Type::Regproc => (code::UNDEFINED_FUNCTION, "function"),
        Type::Regnamespace => ("3F000", "schema"),
        Type::Regrole => (code::UNDEFINED_OBJECT, "role"),
        _ => (code::UNDEFINED_OBJECT, "type"),
    };
    let shown = split(name).map_or_else(|_| name.to_owned(), |parts| parts.join("."));
    SqlError::new(state, format!("{what} \"{shown}\" does not exist"))
}

/// Returns the parts of a name with points and quotes.
pub(crate) fn split(name: &str) -> Result<Vec<String>> {
    let invalid = || SqlError::new("42602", "invalid name syntax");
    let (mut parts, mut rest) = (Vec::new(), name.trim());
    loop {
        let (part, after) = match rest.strip_prefix('"') {
            Some(quoted) => read_quoted(quoted).ok_or_else(invalid)?,
            None => {
                let end = rest.find('.').unwrap_or(rest.len());
                (rest[..end].trim().to_lowercase(), &rest[end..])
            }
        };
        if part.is_empty() || part.contains('"') && !rest.starts_with('"') {
            return Err(invalid());
        }
        parts.push(part);
        let after = after.trim_start();
        match after.strip_prefix('.') {
            Some(more) => rest = more.trim_start(),
            None if after.is_empty() => return Ok(parts),
            None => return Err(invalid()),
        }
    }
}

/// Returns the number of the type with a name as SQL writes it.
fn type_of(name: &str, context: &Context) -> Result<Option<u32>> {
    let name = name.trim();
    if let Some(element) = name.strip_suffix("[]") {
        let Some(element) = type_of(element, context)? else { return Ok(None) };
        let array = match types::plain(element) {
            Some(of) => Some(of.array),
            None => {
                context.definitions.get()?.named_type(element).and_then(|of| of.of().array()).map(Type::oid)
            }
        };
        return Ok(array.filter(|array| *array != 0));
    }
    // The limits of a type do not change its number.
    let (open, end) = (name.find('('), name.find(')').map(|end| end + 1));
    let plain = match (open, end) {
        (Some(open), Some(end)) if open < end => [name[..open].trim_end(), &name[end..]].concat(),
        _ => name.to_owned(),
    };
    let lower = plain.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ");
    let known = match lower.as_str() {
        "int" => "integer",
        "float" => "double precision",
        "decimal" | "dec" => "numeric",
        "char" => "character",
        name => name,
    };
    if let Some(of) = Type::all().find(|of| of.name() == known) {
        return Ok(Some(of.oid()));
    }
    let parts = split(&plain)?;
    let known = match &parts[..] {
        [own] => types::find(own),
        [schema, own] if schema == "pg_catalog" => types::find(own),
        _ => None,
    };
    if let Some(known) = known.filter(|oid| types::is_known(*oid)) {
        return Ok(Some(known));
    }
    let snapshot = context.definitions.get()?;
    let (path, own) = match &parts[..] {
        [own] => (snapshot.path(context), own),
        [schema, own] => (snapshot.schema_oid(schema).into_iter().collect(), own),
        _ => return Ok(None),
    };
    let array = |own| snapshot.find_type(&path, own)?.of().array().map(Type::oid);
    Ok(snapshot.find_type(&path, own).map(|of| of.oid).or_else(|| own.strip_prefix('_').and_then(array)))
}
