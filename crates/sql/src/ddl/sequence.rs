//! Sequences: statements that make, change and remove them.

use sqlparser::ast;

use super::exists;
use crate::{
    bind,
    catalog::{Catalog, Column, Entry, RelationName},
    error::{Result, SqlError, code},
    exec::Run,
    parse::relation,
    sequences::Sequence,
    types::Type,
};

/// The most bytes of a name that is made.
const MOST_NAME: usize = 63;

/// Returns a name of parts, of which the longest become shorter until it fits, and an ending.
pub(super) fn joined(parts: &[&str], ending: &str) -> String {
    let mut parts: Vec<&str> = parts.to_vec();
    let length = |parts: &[&str]| parts.iter().map(|part| part.len() + 1).sum::<usize>() + ending.len();
    while length(&parts) > MOST_NAME {
        let Some(longest) = parts.iter_mut().rev().max_by_key(|part| part.len()) else { break };
        let end = longest.char_indices().next_back().map_or(0, |(at, _)| at);
        *longest = &longest[..end];
    }
    format!("{}_{ending}", parts.join("_"))
}

/// Returns the type of a column that draws its values from a sequence.
pub(super) fn serial_of(of: &ast::DataType) -> Option<Type> {
    match of.to_string().to_ascii_lowercase().as_str() {
        "serial" | "serial4" => Some(Type::Int4),
        "bigserial" | "serial8" => Some(Type::Int8),
        "smallserial" | "serial2" => Some(Type::Int2),
        _ => None,
    }
}

/// Makes the sequence of a column.
pub(super) async fn own_sequence(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    table: &RelationName,
    column: &mut Column,
    options: &[ast::SequenceOptions],
) -> Result<()> {
    let base = joined(&[&table.name, &column.name], "seq");
    let mut name = RelationName::new(&table.schema, &base);
    for number in 1.. {
        if !catalog.has(run.store, run.by, &name).await? {
            break;
        }
        name.name = format!("{base}{number}");
    }
    make_sequence(run, catalog, &name, column.of, options).await?;
    column.not_null = true;
    column.default = Some(format!("nextval('{}'::regclass)", name.quoted().replace('\'', "''")));
    column.own_sequence = Some(name.key());
    Ok(())
}

/// Runs CREATE SEQUENCE. Returns a notice if there was nothing to do.
pub(crate) async fn create_sequence(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    name: &ast::ObjectName,
    if_not_exists: bool,
    options: &[ast::SequenceOptions],
) -> Result<Option<String>> {
    let name = catalog.place_of(run.store, run.by, &relation(name)?).await?;
    if catalog.has(run.store, run.by, &name).await? {
        return exists(&name.name, if_not_exists);
    }
    make_sequence(run, catalog, &name, Type::Int8, options).await?;
    Ok(None)
}

async fn make_sequence(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    name: &RelationName,
    of: Type,
    options: &[ast::SequenceOptions],
) -> Result<()> {
    let id = run.store.fresh_id().await?;
    let sequence = Sequence { owner: catalog.place().role.clone(), ..sequence_of(id, name, of, options)? };
    let entry = Entry::Sequence(sequence.clone());
    catalog.change_entry(run.store, run.by, name, Some(&entry)).await?;
    sequence.make(run.store, run.by).await?;
    run.context.sequences.made.borrow_mut().insert(id);
    Ok(())
}

/// Returns the sequence that options describe.
fn sequence_of(
    id: u64,
    name: &RelationName,
    mut of: Type,
    options: &[ast::SequenceOptions],
) -> Result<Sequence> {
    use ast::SequenceOptions as O;
    let number = |expr: &ast::Expr| -> Result<i64> {
        let text = expr.to_string().replace(' ', "");
        text.parse()
            .map_err(|_| SqlError::new(code::SYNTAX_ERROR, format!("syntax error at or near \"{text}\"")))
    };
    let invalid = |message: String| Err(SqlError::new(code::INVALID_PARAMETER_VALUE, message));
    let (mut increment, mut least, mut most, mut start, mut cycles) = (1, None, None, None, false);
    for option in options {
        match option {
            O::DataType(named) => of = bind::type_of(named)?,
            O::IncrementBy(by, _) => increment = number(by)?,
            O::MinValue(value) => least = value.as_ref().map(number).transpose()?,
            O::MaxValue(value) => most = value.as_ref().map(number).transpose()?,
            O::StartWith(value, _) => start = Some(number(value)?),
            // Each node takes a range of numbers.
            O::Cache(value) => match number(value)? {
                1.. => {}
                other => return invalid(format!("CACHE ({other}) must be greater than zero")),
            },
            O::Cycle(is_off) => cycles = !is_off,
            O::OwnedBy(None) => {}
            O::OwnedBy(Some(_)) => return Err(SqlError::unsupported("OWNED BY")),
        }
    }
    let (lowest, highest) = match of {
        Type::Int2 => (i16::MIN.into(), i16::MAX.into()),
        Type::Int4 => (i32::MIN.into(), i32::MAX.into()),
        Type::Int8 => (i64::MIN, i64::MAX),
        _ => return invalid("sequence type must be smallint, integer, or bigint".into()),
    };
    if increment == 0 {
        return invalid("INCREMENT must not be zero".into());
    }
    let is_rising = increment > 0;
    let least = least.unwrap_or(if is_rising { 1 } else { lowest });
    let most = most.unwrap_or(if is_rising { highest } else { -1 });
    for (word, bound) in [("MAXVALUE", most), ("MINVALUE", least)] {
        if !(lowest..=highest).contains(&bound) {
            return invalid(format!("{word} ({bound}) is out of range for sequence data type {}", of.name()));
        }
    }
    if least >= most {
        return invalid(format!("MINVALUE ({least}) must be less than MAXVALUE ({most})"));
    }
    let start = start.unwrap_or(if is_rising { least } else { most });
    if start < least {
        return invalid(format!("START value ({start}) cannot be less than MINVALUE ({least})"));
    }
    if start > most {
        return invalid(format!("START value ({start}) cannot be greater than MAXVALUE ({most})"));
    }
    let RelationName { schema, name } = name.clone();
    Ok(Sequence {
        id,
        schema,
        name,
        owner: String::new(),
        start,
        increment,
        least,
        most,
        cycles,
        of,
        grants: Vec::new(),
        comment: None,
    })
}

/// Removes a sequence, unless a table needs it.
pub(super) async fn drop_sequence(
    run: &mut Run<'_>,
    catalog: &mut Catalog,
    name: &RelationName,
) -> Result<()> {
    let users = catalog.users_of_sequence(run.store, run.by, name).await?;
    if !users.is_empty() {
        let name = &name.name;
        let message = format!("cannot drop sequence {name} because other objects depend on it");
        let detail: Vec<String> = users
            .iter()
            .map(|(table, column)| {
                format!(
                    "default value for column {column} of table {} depends on sequence {name}",
                    table.name
                )
            })
            .collect();
        return Err(SqlError::new(code::DEPENDENT_OBJECTS, message)
            .with_detail(detail.join("\n"))
            .with_hint("Use DROP ... CASCADE to drop the dependent objects too."));
    }
    catalog.change_entry(run.store, run.by, name, None).await
}
