//! CREATE and DROP SCHEMA.

use std::rc::Rc;

use sqlparser::ast;

use super::{Definer, sequence::drop_sequence};
use crate::{
    bind::select::refuse,
    catalog::{PUBLIC, Schema, Table, undefined_schema},
    error::{Result, SqlError, error, fail},
    parse::{folded, simple},
};

/// Runs CREATE SCHEMA.
pub(crate) async fn create_schema(
    define: &mut Definer<'_, '_>,
    name: &ast::SchemaName,
    if_not_exists: bool,
) -> Result<()> {
    let (name, owner) = match name {
        ast::SchemaName::Simple(name) => (simple(name)?, None),
        ast::SchemaName::UnnamedAuthorization(owner) => (folded(owner), Some(folded(owner))),
        ast::SchemaName::NamedAuthorization(name, owner) => (simple(name)?, Some(folded(owner))),
    };
    let place = define.catalog.place();
    let owner = owner.unwrap_or_else(|| place.role.clone());
    if !place.is(&owner) {
        fail!(INSUFFICIENT_PRIVILEGE, "must be member of role \"{owner}\"");
    }
    if name.starts_with("pg_") {
        let message = format!("unacceptable schema name \"{name}\"");
        let detail = "The prefix \"pg_\" is reserved for system schemas.";
        return Err(SqlError::new("42939", message).with_detail(detail));
    }
    let is_there = matches!(name.as_str(), PUBLIC | "information_schema")
        || define.catalog.schema(define.run.by, &name).await?.is_some();
    if is_there {
        return define.skip(if_not_exists, error!("42P06", "schema \"{name}\" already exists"));
    }
    let id = define.run.by.store().fresh_id().await?;
    let schema = Schema { id, name: name.clone(), owner, grants: Vec::new(), comment: None };
    define.catalog.change_schema(define.run.by, &name, Some(&schema)).await
}

/// Runs DROP SCHEMA.
pub(crate) async fn drop_schemas(
    define: &mut Definer<'_, '_>,
    names: &[ast::ObjectName],
    if_exists: bool,
    cascade: bool,
) -> Result<()> {
    for name in names {
        let name = simple(name)?;
        refuse(name == PUBLIC, "DROP SCHEMA of public")?;
        let Some(schema) = define.catalog.schema(define.run.by, &name).await? else {
            define.skip(if_exists, undefined_schema(&name))?;
            continue;
        };
        define.catalog.place().check_owner(&schema.owner, "schema", &name)?;
        let mut relations = define.catalog.relations(define.run.by).await?;
        relations.tables.retain(|table| table.schema == name);
        relations.views.retain(|view| view.schema == name);
        relations.sequences.retain(|sequence| {
            let key = sequence.relation().key();
            let is_own = relations.tables.iter().flat_map(|table| &table.columns);
            sequence.schema == name
                && !is_own.into_iter().any(|column| column.own_sequence.as_ref() == Some(&key))
        });
        let mut lines: Vec<(u64, String)> = Vec::new();
        let object = |table: &Table| {
            format!("{} {name}.{}", table.view().map_or("table", |view| view.kind()), table.name)
        };
        lines.extend(relations.tables.iter().map(|table| (table.id, object(table))));
        lines.extend(relations.views.iter().map(|view| (view.id, format!("view {name}.{}", view.name))));
        let sequences = relations.sequences.iter();
        lines.extend(sequences.map(|one| (one.id, format!("sequence {name}.{}", one.name))));
        relations.types.retain(|of| of.of.named().is_some_and(|of| of.schema == name));
        let types = relations.types.iter().filter_map(|of| of.of.named());
        lines.extend(types.map(|of| (of.oid.into(), format!("type {name}.{}", of.name))));
        // In the order in which they were made.
        lines.sort();
        let objects: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
        let (schema, told) = (format!("schema {name}"), define.notices.len());
        define.release(&schema, &schema, objects, &[], cascade).await?;
        define.cascades(Vec::new(), &relations.views).await?;
        let tables: Vec<_> = relations.tables.into_iter().map(Rc::new).collect();
        define.drop_tables(&tables, true).await?;
        for sequence in &relations.sequences {
            drop_sequence(define, &sequence.relation(), true).await?;
        }
        for of in &relations.types {
            define.drop_type(of, true).await?;
        }
        define.notices.truncate(told + 1);
        define.catalog.change_schema(define.run.by, &name, None).await?;
    }
    Ok(())
}
